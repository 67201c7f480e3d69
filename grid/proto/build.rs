//! Compiles the schema in `proto/` with protox: no protoc is needed.

use std::path::Path;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../proto");
    let files = ["grid", "posix", "snapshot"].map(|name| root.join(format!("kuroshio/grid/v1/{name}.proto")));
    for file in &files {
        println!("cargo::rerun-if-changed={}", file.display());
    }
    let set = protox::compile(&files, [&root])?;
    tonic_prost_build::configure()
        .build_transport(false)
        .compile_fds(set)?;
    Ok(())
}
