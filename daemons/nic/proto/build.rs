//! Generates clients and servers from the `.proto` files, without protoc.

use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    let files = [
        "deviceplugin.proto",
        "dra.proto",
        "dra_v1beta1.proto",
        "drahealth.proto",
        "drahealth_v1alpha1.proto",
        "pluginregistration.proto",
        "podresources.proto",
    ];
    for file in files {
        println!("cargo:rerun-if-changed={file}");
    }
    let definitions = protox::compile(files, ["."])?;
    tonic_prost_build::configure().compile_fds(definitions)?;
    Ok(())
}
