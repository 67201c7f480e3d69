//! Runs experiments in virtual time and prints their checks: `cargo run --release -p kuroshio-lab --example sim NAME...`

use std::process::ExitCode;

fn main() -> ExitCode {
    let mut code = ExitCode::SUCCESS;
    for name in std::env::args().skip(1) {
        let run = kuroshio_lab::experiment::load(&name)
            .map_err(|e| e.to_string())
            .and_then(|e| {
                kuroshio_lab::sim::run(&e, &mut |line| eprintln!("{line}")).map_err(|m| m.to_string())
            });
        match run {
            Ok(run) => {
                for c in &run.result.checks {
                    let word = if c.ok { "holds" } else { "FAILS" };
                    println!("{name}  {word}  {}: {} [{}]", c.name, c.value, c.bound);
                }
                if std::env::var_os("VERBOSE").is_some() {
                    println!("{}", serde_json::json!(run.result.measured));
                }
                if !run.result.all_hold() {
                    code = ExitCode::FAILURE;
                }
            }
            Err(problem) => {
                eprintln!("{name}: {problem}");
                code = ExitCode::from(2);
            }
        }
    }
    code
}
