//! Links the command and the tests at a fixed address. Both stand in for plugins, thousands of times in a run, and at each start the dynamic
//! linker would change thousands of addresses.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    if std::env::var("CARGO_CFG_TARGET_ENV").as_deref() == Ok("gnu") {
        println!("cargo::rustc-link-arg-bins=-no-pie");
        println!("cargo::rustc-link-arg-tests=-no-pie");
    }
}
