//! Compiles the programs of `bpf/` with clang; the objects become part of the library.

use std::path::{Path, PathBuf};
use std::process::Command;

const PROGRAMS: [&str; 3] = ["bic", "highspeed", "scalable"];

fn main() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bpf");
    let out = PathBuf::from(std::env::var_os("OUT_DIR").unwrap_or_default());
    // BPF_PROG reads the arguments' registers by the machine's convention; struct_ops has them in memory.
    let arch = std::env::var("CARGO_CFG_TARGET_ARCH").unwrap_or_default();
    let include = format!("/usr/include/{arch}-linux-gnu");
    println!("cargo:rerun-if-changed={}", source.display());
    for name in PROGRAMS {
        let status = Command::new("clang")
            .args([
                "-O2", "-g", "-Wall", "-Werror", "-target", "bpf", "-I", &include, "-c",
            ])
            .arg(source.join(format!("{name}.bpf.c")))
            .arg("-o")
            .arg(out.join(format!("{name}.bpf.o")))
            .status();
        match status {
            Ok(status) if status.success() => {}
            Ok(status) => panic!("clang of {name}.bpf.c: {status}"),
            Err(e) => panic!("clang is needed for the BPF programs (Debian: clang libbpf-dev): {e}"),
        }
    }
}
