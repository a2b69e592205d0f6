//! Compiles the program of stubs, and links the tests at a fixed address: mutants stand in for plugins, thousands of times in a run, and at
//! each start the dynamic linker would change thousands of addresses.

use std::env::var;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=src/stub_program.rs");
    if var("CARGO_CFG_TARGET_ENV").as_deref() == Ok("gnu") {
        println!("cargo::rustc-link-arg-tests=-no-pie");
    }
    let [rustc, folder, machine, target] =
        ["RUSTC", "OUT_DIR", "CARGO_CFG_TARGET_ARCH", "TARGET"].map(|name| var(name).unwrap_or_default());
    let compile = |target: &str, options: &[&str]| {
        Command::new(&rustc)
            .args(["--edition=2024", "-Copt-level=s", "-Cpanic=abort", "-Cstrip=symbols", "--target", target])
            .args(options)
            .args(["src/stub_program.rs", "-o", &format!("{folder}/stub")])
            .status()
            .is_ok_and(|status| status.success())
    };
    // Where rustup has not installed the first target, the second one does, in four times the time for each call.
    let musl = format!("{machine}-unknown-linux-musl");
    let is_compiled =
        compile(&musl, &["-Clinker=rust-lld", "-Crelocation-model=static"]) || compile(&target, &[]);
    assert!(is_compiled, "the program of stubs cannot be compiled");
}
