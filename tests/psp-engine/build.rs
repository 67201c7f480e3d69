//! Compiles the engine as the kernel would, with warnings as errors and traps on undefined behaviour.

fn main() {
    let kernel = "../../kernel";
    for file in ["psp_engine.c", "psp_engine.h", "psp_types.h"] {
        println!("cargo:rerun-if-changed={kernel}/{file}");
    }
    cc::Build::new()
        .file(format!("{kernel}/psp_engine.c"))
        .std("gnu11")
        .opt_level(2)
        .warnings(true)
        .extra_warnings(true)
        .flag("-Werror")
        .flag("-fsanitize=undefined")
        .flag("-fsanitize-undefined-trap-on-error")
        .compile("psp_engine");
}
