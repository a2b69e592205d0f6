//! Gives the program a build ID. The program compares it to recognise copies of itself. Makes it smaller by what only
//! unwinding needs, and by functions with the same instructions.

use std::env;
use std::path::Path;

fn main() {
    // cargo tells build scripts the configured linker, but does not run them again if it changes.
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=../../.cargo/config.toml");
    let target = env::var("TARGET").unwrap_or_default().to_uppercase().replace('-', "_");
    println!("cargo::rerun-if-env-changed=CARGO_TARGET_{target}_LINKER");

    // Without a configured linker it is a C compiler, as are all others.
    let linker = env::var("RUSTC_LINKER").unwrap_or_default();
    let name = Path::new(&linker).file_stem().unwrap_or_default().to_string_lossy();
    let prefix = if ["ld", "ld.lld", "lld", "rust-lld"].contains(&&*name) { "" } else { "-Wl," };
    println!("cargo::rustc-link-arg-bins={prefix}--build-id=sha1");

    // Only the static release for musl is linked by lld itself. glibc needs the tables to end threads.
    let is_small = env::var("PROFILE").as_deref() == Ok("release");
    if is_small && target.ends_with("MUSL") && prefix.is_empty() {
        println!("cargo::rerun-if-changed=sections.ld");
        let folder = env::var("CARGO_MANIFEST_DIR").unwrap_or_default();
        for argument in
            [&*format!("-T{folder}/sections.ld"), "--no-eh-frame-hdr", "--icf=all", "--no-rosegment"]
        {
            println!("cargo::rustc-link-arg-bins={argument}");
        }
    }
}
