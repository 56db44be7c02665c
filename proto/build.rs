//! Compiles the protos with a pure Rust compiler, so that a build needs no `protoc`.

use std::path::Path;

const PUBLIC: &[&str] = &[
    "seance/v1alpha1/engines.proto",
    "seance/v1alpha1/server.proto",
    "seance/v1alpha1/sessions.proto",
    "seance/v1alpha1/tools.proto",
    "seance/v1alpha1/types.proto",
];
const PRIVATE: &[&str] = &["seance/host/v1alpha1/host.proto", "seance/link/v1alpha1/link.proto"];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=seance");
    let out = std::env::var("OUT_DIR")?;
    let public = protox::Compiler::new(["."])?
        .include_source_info(true)
        .include_imports(true)
        .open_files(PUBLIC)?
        .encode_file_descriptor_set();
    std::fs::write(Path::new(&out).join("public_descriptor.bin"), public)?;
    let all = protox::compile(PUBLIC.iter().chain(PRIVATE), ["."])?;
    tonic_prost_build::configure().bytes(".seance").compile_fds(all)?;
    Ok(())
}
