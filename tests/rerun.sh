#!/usr/bin/env bash
# Runs each failed test of a log again, alone, with the seed of the failed run. Run with --help for the rest.
set -euo pipefail
export LC_ALL=C

# So many failures have a cause, and end the run as failures anyway.
most=10

usage() {
    cat <<END
Usage: tests/rerun.sh LOG [COMMAND ...]

LOG is the output of tests/programs.sh or of "cargo test --no-fail-fast", both streams.
Runs each test that failed again, alone, with the FERRULE_SEED that the failed one has
printed. A COMMAND such as "tests/guest.sh" starts the test's program.

A line "REMARK flaky: ..." names each test that passes then. The exit status is 0 if all
of them pass, and 1 if one fails again, if there are more than $most, or if LOG has another
failure than those of tests: a program that crashed, a run that did not end.
END
}

say() { printf 'rerun.sh: %s\n' "$*"; }

# Prints a line "PROGRAM|CARGO'S OPTIONS FOR THE TARGET|SEED|NAME" for each failed test. Without a name: a target that failed
# without one, or the whole run.
failures() {
    awk '
        /^     Running .*\)$/ { program = $NF; gsub(/[()]/, "", program); split("", seeds); of = ""; n = 0 }
        /^   Doc-tests / { program = ""; split("", seeds); of = ""; n = 0 }
        /^---- .* stdout ----$/ { of = $0; sub(/^---- /, "", of); sub(/ stdout ----$/, "", of) }
        match($0, /FERRULE_SEED=[0-9]+/) && of { seeds[of] = substr($0, RSTART + 13, RLENGTH - 13) }
        # The last list before the result. A test may have printed one too.
        /^failures:$/ { listing = 1; n = 0; next }
        listing && /^    / { names[++n] = substr($0, 5); next }
        { listing = 0 }
        # A crash may leave the line of a test incomplete: another thread had written "test NAME ... ", or that and "ok".
        /^(test .* \.\.\. (ok|ignored.*)?)?error: (doc)?test failed, to rerun pass `/ {
            split($0, parts, "`")
            for (i = 1; i <= n; i++) print program "|" parts[2] "|" seeds[names[i]] "|" names[i]
            if (!n) print program "|" parts[2] "||"
            targets++
            n = 0
        }
        /^error: [0-9]+ targets? failed:$/ { counted += $2 }
        END { if (!targets || counted != targets) print "|||" }' "$1"
}

# The folder of the package in "-p PACKAGE ...".
folder() {
    cargo metadata --locked --no-deps --format-version 1 |
        jq -r --arg name "$(cut -d ' ' -f 2 <<<"$1")" '.packages[] | select(.name == $name) | .manifest_path | sub("/[^/]*$"; "")'
}

# again PROGRAM TARGET SEED NAME: the other arguments start the program.
again() {
    local program=$1 target=$2 seed=$3 name=$4
    shift 4
    local -a with=(${seed:+"FERRULE_SEED=$seed"})
    if [ -z "$program" ]; then
        # rustdoc would split the name at its spaces: all examples of the crate run again.
        # shellcheck disable=SC2086 # several options
        env "${with[@]}" cargo test --locked $target
    else
        "$@" env -C "$(folder "$target")" "${with[@]}" "$(realpath "$program")" --include-ignored --exact "$name"
    fi
}

case ${1-} in
-h | --help)
    usage
    exit
    ;;
'')
    usage >&2
    exit 2
    ;;
esac
log=$1
shift
failed=$(failures "$log")
count=$(wc -l <<<"$failed")
if [ "$count" -gt "$most" ]; then
    say "$count tests have failed: no test is run again"
    exit 1
fi
status=0
while IFS='|' read -r program target seed name <&3; do
    if [ -z "$name" ]; then
        say "${target:-the run} has failed without naming a failed test"
        status=1
        continue
    fi
    output=$(again "$program" "$target" "$seed" "$name" "$@" 2>&1 </dev/null) || true
    if grep -q '^test result: ok\. [1-9]' <<<"$output"; then
        say "REMARK flaky: $name of $target, ${seed:+FERRULE_SEED=}${seed:-no seed}: failed, and passed alone"
    else
        say "$name of $target has failed again:"
        printf '%s\n' "$output" | sed 's/^/  /'
        status=1
    fi
done 3<<<"$failed"
exit "$status"
