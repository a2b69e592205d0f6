#!/usr/bin/env bash
# Tests of what install.sh itself does (packages, build, the choice of the program) and of build.sh's list of plugins, in
# temporary folders, with scripts that act as build.sh and as the program. operator/ferrule/tests/install/ has the tests of the
# installation. Needs root.
# The last line counts tests: "N passed, N failed". Arguments are names of tests to run.
#
# shellcheck disable=SC2015 # A && B || C: every C ends the test
set -uo pipefail
export LC_ALL=C

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
. "$root/tests/cases.sh"
[ "$(id -u)" -eq 0 ] || { echo "tests/install.sh: run this as root: it changes users" >&2; exit 1; }
base=$(mktemp -d)
chmod 0755 "$base"
trap 'rm -rf -- "$base"' EXIT

# ---------------------------------------------------------------------------------------------------------------
# Fixture and assertions. Every test runs in a subshell, in $work. That folder contains $tree, a copy of the scripts that
# other users can read, and $work/built, what its build.sh builds. A failed assertion ends the subshell.

fail() { printf '  %s\n' "$*"; exit 1; }

# Runs install.sh; sets status, out (stdout) and err (stderr).
run() {
    status=0
    "$tree/install.sh" --bin-dir "$bin" "$@" >"$work/out" 2>"$work/err" || status=$?
    out=$(<"$work/out") err=$(<"$work/err")
}

succeeds() { run "$@"; [ "$status" -eq 0 ] || fail "install.sh $*: status $status: $out $err"; }

# install.sh fails with status $1, prints one line with $2 to stderr, and neither builds nor calls the program.
refuses() {
    local want=$1 words=$2
    shift 2
    run "$@"
    [ "$status" -eq "$want" ] || fail "install.sh $*: status $status instead of $want: $out $err"
    [[ $err == *"$words"* ]] || fail "install.sh $*: does not say '$words' but: $err"
    [ "$(wc -l <"$work/err")" -eq 1 ] || fail "install.sh $*: more than one line on stderr: $err"
    [ ! -e calls ] || fail "install.sh $*: refused, and yet: $(<calls)"
}

says() { [[ $out$err == *"$1"* ]] || fail "does not say '$1' but: $out $err"; }
called() { [ "$(cat calls)" = "$1" ] || fail "called: $(cat calls)"; rm -f calls; }

# program DIR: creates a command line that records its calls in $work/calls and exits with the status in $work/status.
program() {
    mkdir -p "$1"
    cat >"$1/ferrule" <<END
#!/bin/sh
[ "\$1" != version ] || { echo 'ferrule v1.0.0'; exit; }
echo "\${0#$work/}: \$*" >>"$work/calls"
exit "\$(cat "$work/status" 2>/dev/null || echo 0)"
END
    chmod 0755 "$1/ferrule"
}

as_nobody() { setpriv --reuid 65534 --regid 65534 --clear-groups "$@"; }

# ---------------------------------------------------------------------------------------------------------------
# The program

test_help_is_given_without_a_build() {
    run --help
    [ "$status" -eq 0 ] || fail "status $status"
    for option in --from --bin-dir --plugins --dry-run --wait --rollback --uninstall --force --host-ports --conf-dir \
        --data-dir --with-deps --deps-only --demo --daemons; do
        says "$option"
    done
    [ ! -e calls ] || fail "called: $(<calls)"
}

test_without_from_it_builds() {
    succeeds --plugins "bridge portmap" --wait=5 --dry-run
    called "build --no-daemons
built/ferrule: install --bin-dir $bin --plugins bridge portmap --wait 5 --dry-run"
    printf '#!/bin/sh\nexit 1\n' >"$tree/build.sh"
    refuses 1 "the build failed"
}

test_daemons_are_built_if_they_are_wanted() {
    local options
    for options in --daemons "--plugins=bridge dhcp" "--plugins=host-device"; do
        succeeds "$options"
        [ "$(head -n 1 calls)" = "build " ] || fail "$options: called: $(<calls)"
        rm calls
    done
}

test_from_a_folder() {
    program "$work/v1"
    succeeds --from v1
    called "v1/ferrule: install --bin-dir $bin --from v1"
    # An older Ferrule has no command line. The installed one is used, or else one is built.
    mkdir old && : >old/ferrule
    succeeds --from=old
    called "build --no-daemons
built/ferrule: install --bin-dir $bin --from old"
    program "$bin"
    succeeds --from old
    called "bin/ferrule: install --bin-dir $bin --from old"
    refuses 1 "there is no such folder" --from nowhere
}

test_going_back_uses_the_installed_program() {
    program "$bin"
    succeeds --rollback --force --host-ports nftables
    called "bin/ferrule: rollback --bin-dir $bin --force --host-ports nftables"
    succeeds --uninstall --conf-dir c --data-dir d --data-dir=e
    called "bin/ferrule: uninstall --bin-dir $bin --conf-dir c --data-dir d --data-dir e"
    program "$work/v1"
    succeeds --rollback --from v1
    called "v1/ferrule: rollback --bin-dir $bin"
    echo 3 >status
    run --uninstall
    [ "$status" -eq 3 ] || fail "status $status"
}

test_going_back_from_a_ferrule_without_command_line() {
    mkdir "$bin"
    printf '#!/bin/sh\nexit 1\n' >"$bin/ferrule" && chmod 0755 "$bin/ferrule"
    succeeds --rollback
    called "build --no-daemons
built/ferrule: rollback --bin-dir $bin"
    rm "$tree/build.sh"
    refuses 1 "no build.sh beside install.sh" --uninstall
}

test_wrong_usage() {
    refuses 2 "unknown option '--bogus'" --bogus
    refuses 2 "unknown option 'bridge'" bridge
    refuses 2 "--from needs a value" --from
    refuses 2 "--wait needs a value" --wait=
    refuses 2 "exclude each other" --rollback --uninstall
    refuses 2 "belong to an installation" --uninstall --demo
    refuses 2 "exclude each other" --demo --dry-run
}

test_the_list_of_plugins_is_the_folder() {
    cp "$root/build.sh" "$tree"
    mkdir -p "$tree"/plugins/{main/another,ipam/host-local}
    for folder in "$tree"/plugins/*/*; do : >"$folder/Cargo.toml"; done
    [ "$("$tree/build.sh" --list)" = $'another\nhost-local' ] || fail "--list: $("$tree/build.sh" --list)"
}

test_the_demo_gets_the_folder() {
    refuses 1 "no examples/demo.sh" --demo
    mkdir "$tree/examples"
    printf '#!/bin/sh\necho "demo of $*"\nexit 5\n' >"$tree/examples/demo.sh"
    chmod 0755 "$tree/examples/demo.sh"
    run --demo
    [ "$status" -eq 5 ] || fail "a failing demo: status $status"
    says "demo of --bin-dir $bin --runner $work/built/cnirun"
    echo 1 >status
    run --demo
    [ "$status" -eq 1 ] && [[ $out != *'demo of'* ]] || fail "after a failed installation: status $status, $out"
}

# ---------------------------------------------------------------------------------------------------------------
# Packages

# Scripts that act as dpkg-query and apt-get: every package is installed except those in $work/missing. $work/apt has
# apt-get's arguments.
make_debian() {
    mkdir debian
    cat >debian/dpkg-query <<END
#!/bin/sh
for package; do :; done
! grep -qx "\$package" "$work/missing" || exit 1
printf installed
END
    cat >debian/apt-get <<END
#!/bin/sh
echo "\$*" >>"$work/apt"
case "\$1" in
update) : >"$work/updated" ;;
install) [ ! -e "$work/stale" ] || [ -e "$work/updated" ] ;;
esac
END
    chmod 0755 debian/*
    PATH=$work/debian:$PATH
    : >missing
    : >apt
}

test_packages_none_missing() {
    make_debian
    succeeds --deps-only
    says "none is missing"
    [ ! -s apt ] || fail "apt-get was called: $(<apt)"
    [ ! -e calls ] || fail "called: $(<calls)"
}

test_packages_only_those_missing() {
    make_debian
    printf 'jq\nnftables\n' >missing
    succeeds --deps-only --dry-run
    says "would install"
    [ ! -s apt ] || fail "apt-get was called: $(<apt)"
    # jq is for the tests only.
    succeeds --with-deps
    [ "$(<apt)" = "install --yes --no-install-recommends nftables" ] || fail "apt-get was called with: $(<apt)"
    called "build --no-daemons
built/ferrule: install --bin-dir $bin"
}

test_packages_lists_are_fetched_only_when_needed() {
    make_debian
    echo jq >missing
    : >stale
    succeeds --deps-only
    [ "$(cut -d' ' -f1 apt | tr '\n' ' ')" = "install update install " ] || fail "apt-get was called with: $(<apt)"
    rm updated
    printf '#!/bin/sh\nexit 100\n' >debian/apt-get
    refuses 1 "apt-get cannot install jq" --deps-only
}

test_packages_for_an_ordinary_user() {
    make_debian
    echo jq >missing
    chmod 0644 missing
    status=0
    err=$(as_nobody env PATH="$PATH" "$tree/install.sh" --deps-only 2>&1) || status=$?
    [ "$status" -eq 1 ] || fail "status $status"
    [[ $err == *"only root can install packages; missing: jq"* ]] || fail "says: $err"
}

test_packages_elsewhere_than_on_debian() {
    mkdir tools
    find /bin/ /usr/bin/ -maxdepth 1 ! -type d ! -name 'apt*' ! -name 'dpkg*' -exec ln -sft tools {} +
    PATH=$work/tools refuses 1 "knows Debian and its derivatives only" --with-deps
}

# ---------------------------------------------------------------------------------------------------------------

mapfile -t tests < <(declare -F | sed -n 's/^declare -f test_//p')
if [ $# -gt 0 ]; then
    tests=("$@")
fi
for test in "${tests[@]}"; do
    work=$base/$test tree=$base/$test/tree bin=$base/$test/bin
    mkdir -p "$tree"
    cp "$root/install.sh" "$tree"
    program "$work/built"
    printf '#!/bin/sh\necho "build $*" >>%s/calls\necho %s/built\n' "$work" "$work" >"$tree/build.sh"
    chmod 0755 "$tree/build.sh"
    run_case "${test//_/ }" in_folder "$work" "test_$test"
    rm -rf -- "$work"
done
end_cases
