#!/usr/bin/env bash
# Tests of guest.sh, and that ./test.sh kernel fails if the guest does not start. Takes the options of guest.sh that
# name the guest. The last line counts tests.
set -uo pipefail
export LC_ALL=C
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
. "$root/tests/cases.sh"
work=$(mktemp -d)
options=("$@")
trap 'rm -rf -- "$work"' EXIT

# expect STATUS COMMAND...: its output goes to $work/out and $work/err.
expect() {
    local want=$1 status=0
    shift
    "$@" >"$work/out" 2>"$work/err" || status=$?
    [ "$status" -eq "$want" ] || { echo "  status $status, not $want: $*"; return 1; }
}

# has FILE REGEX
has() { grep -q -- "$2" "$work/$1" || { echo "  no '$2' in std$1"; return 1; }; }

guest() { "$root/tests/guest.sh" "${options[@]}" "$@"; }

the_command_has_status_streams_and_directory() {
    # Neither the console nor a process that stays behind gets in the way.
    # shellcheck disable=SC2016
    cd "$work" &&
        expect 7 guest sh -c 'sleep 1000 & echo no >/dev/console; echo "$1"; pwd >/dev/stderr; echo c >&2; exit 7' sh $'a \'b\'\n$c' &&
        [ "$(<out)" = $'a \'b\'\n$c' ] && [ "$(<err)" = "$work"$'\nc' ]
}

the_machine_is_not_changed() {
    echo old >"$work/old"
    expect 0 guest sh -c "echo changed >>'$work/old' && echo new >'$work/new' && cat '$work/old' '$work/new'" &&
        [ "$(<"$work/out")" = $'old\nchanged\nnew' ] && [ "$(<"$work/old")" = old ] && [ ! -e "$work/new" ]
}

a_command_that_takes_too_long_is_ended() { expect 124 guest --timeout 5 sh -c 'echo began; sleep 1000' && has out began; }

a_crash_is_a_failure_of_its_own() {
    # The guest passes output on through a pipe, which a crash would empty.
    expect 125 guest sh -c 'echo began; until grep -q began /run/guest/stdout; do :; done; echo c >/proc/sysrq-trigger' &&
        has out began && has err 'the guest crashed' && has err 'Kernel panic.*sysrq'
}

the_kernel_step_fails_if_the_guest_does_not_start() {
    export FERRULE_GUEST_KERNEL=$work/missing
    expect 125 guest true && has err 'the guest did not start' && expect 1 "$root/test.sh" kernel "${options[@]}" &&
        has out 'the guest did not start' && has out '=== kernel: FAILED' && [ "$(tail -n 1 "$work/out")" = "0 passed, 1 failed" ]
}

shown() { ("$1") || { cat "$work/out" "$work/err"; return 1; }; }
for test in the_command_has_status_streams_and_directory the_machine_is_not_changed a_command_that_takes_too_long_is_ended \
    a_crash_is_a_failure_of_its_own the_kernel_step_fails_if_the_guest_does_not_start; do
    run_case "$test" shown "$test"
done
end_cases
