//! Runs a program while a congestion control of `bpf/` is registered:
//! `cargo run -p kuroshio-bpf --example hold -- bic iperf3 -c HOST -C bic`. Root only.

use std::process::{Command, ExitCode};

fn main() -> ExitCode {
    let mut words = std::env::args().skip(1);
    let (Some(name), Some(program)) = (words.next(), words.next()) else {
        eprintln!("hold: NAME PROGRAM ARG... (bic, highspeed or scalable)");
        return ExitCode::from(2);
    };
    let held = match kuroshio_bpf::load(&name) {
        Ok(Some(held)) => held,
        Ok(None) => {
            eprintln!("hold: the kernel has a {name} of its own");
            return ExitCode::from(2);
        }
        Err(problem) => {
            eprintln!("hold: {problem}");
            return ExitCode::FAILURE;
        }
    };
    let status = Command::new(&program).args(words).status();
    drop(held);
    match status {
        Ok(status) => ExitCode::from(u8::try_from(status.code().unwrap_or(1)).unwrap_or(1)),
        Err(problem) => {
            eprintln!("hold: {program}: {problem}");
            ExitCode::from(2)
        }
    }
}
