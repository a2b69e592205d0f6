#!/usr/bin/env bash
# Tests of rerun.sh, and of how ./test.sh counts flaky tests: a small package of tests that fail when they are told to, with
# the real cargo. The last line counts tests.
set -uo pipefail
export LC_ALL=C
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
. "$root/tests/cases.sh"
work=$(mktemp -d)
trap 'rm -rf -- "$work"' EXIT
unset CARGO_TARGET_DIR
export FERRULE_BIN_DIR=$work

# The names of the tests that fail: those whose name begins with "flaky" only once.
make_package() {
    mkdir -p "$work"/tests "$work"/{trial,other}/src "$work"/trial/{tests,failed} && cd "$work" || return 1
    cp "$root/test.sh" "$root/rust-toolchain.toml" .
    cp "$root"/tests/{rerun,programs}.sh tests/
    printf '[workspace]\nmembers = ["trial", "other"]\nresolver = "2"\n' >Cargo.toml
    printf '[package]\nname = "other"\nedition = "2021"\n' >other/Cargo.toml
    touch other/src/lib.rs
    printf '[package]\nname = "trial"\nedition = "2021"\n' >trial/Cargo.toml
    printf '[[test]]\nname = "rates"\ntest = false\n' >>trial/Cargo.toml
    cat >trial/src/lib.rs <<'END'
/// ```
/// trial::run("flaky_doc");
/// ```
pub fn run(name: &str) {
    let failing = std::env::var("FAILING").unwrap_or_default();
    if !failing.split(' ').any(|one| one == name) {
        return;
    }
    if name == "crash" {
        std::process::abort();
    }
    println!("failures:\n    another");
    let mark = format!("failed/{name}");
    // The test of the seed passes only with the seed that it has printed.
    let passes = name.starts_with("flaky") && std::path::Path::new(&mark).exists();
    println!("FERRULE_SEED={}", std::env::var("FERRULE_SEED").unwrap_or("77".to_owned()));
    std::fs::write(mark, "").unwrap();
    assert!(passes && (name != "flaky_seed" || std::env::var("FERRULE_SEED").as_deref() == Ok("77")));
}
END
    echo '#[test] fn passing() {}' >trial/tests/rates.rs
    for name in flaky flaky2 flaky_seed bad crash; do echo "#[test] fn $name() { trial::run(\"$name\"); }"; done >trial/tests/main.rs
    cargo generate-lockfile --offline --quiet
}

# run STATUS FAILING: what ./test.sh says goes to $work/out.
run() {
    local status=0
    rm -f trial/failed/*
    FAILING=$2 ./test.sh system >out 2>&1 || status=$?
    [ "$status" -eq "$1" ] || { echo "  status $status, not $1"; return 1; }
}

# The end of its output.
ends() { diff -u - <(tail -n "$(wc -l <<<"$1")" out) <<<"$1"; }

# Five of tests/main.rs, one of tests/rates.rs, one of the documentation.
nothing_fails() { run 0 '' && ends $'0 measurements repeated, 0 tests flaky\n7 passed, 0 failed'; }

two_flaky_tests_pass_and_are_named() {
    run 0 'flaky_seed flaky_doc' && ends '0 measurements repeated, 2 tests flaky
  flaky: flaky_seed of -p trial --test main, FERRULE_SEED=77: failed, and passed alone
  flaky: trial/src/lib.rs - run (line 1) of -p trial --doc, FERRULE_SEED=77: failed, and passed alone
7 passed, 0 failed'
}

three_flaky_tests_are_a_failure() { run 1 'flaky flaky2 flaky_seed' && ends $'more than two flaky tests: a failure\n7 passed, 1 failed'; }

a_test_that_fails_again_is_a_failure() {
    run 1 'flaky bad' && grep -q 'bad of -p trial --test main has failed again:' out &&
        ends $'  flaky: flaky of -p trial --test main, FERRULE_SEED=77: failed, and passed alone\n6 passed, 1 failed'
}

a_crash_is_a_failure() { run 1 crash && grep -q -e '-p trial --test main has failed without naming a failed test' out; }

# The crash may come between any two writes of the thread that prints.
a_crash_in_the_middle_of_a_line_is_a_failure() {
    local line
    for line in '' 'test good ... ' 'test good ... ok'; do
        printf '%s' "$line" >log
        printf '%s\n' "error: test failed, to rerun pass \`-p trial --test main\`" 'error: 1 target failed:' >>log
        tests/rerun.sh log >out && return 1
        diff -u - out <<<'rerun.sh: -p trial --test main has failed without naming a failed test' || return 1
    done
}

a_crash_beside_a_flaky_test_is_a_failure() {
    echo '#[test] fn flaky3() { trial::run("flaky3"); }' >>trial/tests/rates.rs
    run 1 'crash flaky3' && grep -q 'REMARK flaky: flaky3' out
}

# Also if a part of the run fails before its first test.
a_run_that_does_not_begin_is_a_failure() {
    sed -i '1a [ "${2-}" != rates ] || exit 1' tests/programs.sh
    run 1 flaky && grep -q 'the run has failed without naming a failed test' out && grep -q 'REMARK flaky: flaky' out
}

tests=(nothing_fails two_flaky_tests_pass_and_are_named three_flaky_tests_are_a_failure a_test_that_fails_again_is_a_failure
    a_crash_is_a_failure a_crash_in_the_middle_of_a_line_is_a_failure a_crash_beside_a_flaky_test_is_a_failure a_run_that_does_not_begin_is_a_failure)
make_package || exit 1
shown() { ("$1") || { cat out; return 1; }; }
for test in "${tests[@]}"; do run_case "$test" shown "$test"; done
end_cases
