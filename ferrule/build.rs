//! Gives the program a build ID, by which it recognises copies of itself.

use std::env;
use std::path::Path;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=RUSTC_LINKER");
    // cargo sets the variable only if a linker is configured. All other linkers are C compilers.
    let linker = env::var("RUSTC_LINKER").unwrap_or_default();
    let name = Path::new(&linker).file_stem().unwrap_or_default().to_string_lossy();
    let prefix = if ["ld", "ld.lld", "lld", "rust-lld"].contains(&&*name) { "" } else { "-Wl," };
    println!("cargo::rustc-link-arg-bins={prefix}--build-id=sha1");
}
