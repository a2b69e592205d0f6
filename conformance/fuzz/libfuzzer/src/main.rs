//! Runs the decoder that the variable `TARGET` names under libFuzzer.
#![no_main]

use std::sync::OnceLock;

use ferrule_fuzz::Target;

static TARGET: OnceLock<Target> = OnceLock::new();

fn chosen() -> Target {
    let name = std::env::var("TARGET").unwrap_or_default();
    ferrule_fuzz::target(&name).unwrap_or_else(|| panic!("TARGET names no decoder: {name:?}"))
}

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| TARGET.get_or_init(chosen)(bytes));
