//! Compiles `bpf/pace.bpf.c` with clang; the object becomes part of the library.

use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bpf/pace.bpf.c");
    let out = PathBuf::from(std::env::var_os("OUT_DIR").unwrap_or_default());
    let arch = std::env::var("CARGO_CFG_TARGET_ARCH").unwrap_or_default();
    let include = format!("/usr/include/{arch}-linux-gnu");
    println!("cargo:rerun-if-changed={}", source.display());
    let status = Command::new("clang")
        .args([
            "-O2", "-g", "-Wall", "-Werror", "-target", "bpf", "-I", &include, "-c",
        ])
        .arg(&source)
        .arg("-o")
        .arg(out.join("pace.bpf.o"))
        .status();
    match status {
        Ok(status) if status.success() => {}
        Ok(status) => panic!("clang of pace.bpf.c: {status}"),
        Err(e) => panic!("clang is needed for the BPF program (Debian: clang libbpf-dev): {e}"),
    }
}
