#!/usr/bin/env bash
# All checks and tests, or those named. Run with --help for the rest.
#
# shellcheck disable=SC2317 # functions are called by name, through step()
set -euo pipefail
export LC_ALL=C

here=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")" && pwd -P)
invoked_in=$PWD
# What both forms begin with, and what "all" goes on with.
plugin_steps=(packages lint build unit)
other_steps=(clippy doc system kernel install package demo)

usage() {
    cat <<END
Usage: ./test.sh            the plugins, the command line and the suite on them
       ./test.sh all        everything that has to hold before a change is accepted; CI runs this
       ./test.sh STEP ...
       ./test.sh kernel --arch arm64

As root on Debian: tests make network namespaces, mounts and firewall rules, each
in namespaces of its own. Steps, always in this order:

  packages  install the Debian packages that are missing (install.sh --deps-only), and
            unpack Debian's kernel into /var/cache
  lint      format, shellcheck, tests/architecture.sh (the rules of ARCHITECTURE.md),
            tests/workflows.sh (the files in .github), tests/semver.sh (the API of cni-common),
            tests/manifests.sh (kustomize and helm),
            docs/book.sh (the documents as a book)
  build     the static programs (build.sh); it begins before lint. Without a step:
            of the daemons only ferrule-dhcp
  unit      the tests of the plugins, of the command line and of what they are made of, with
            the plugins just built in FERRULE_BIN_DIR; the conformance suite on our plugins,
            the reference's and mutants
Without a step that is all. With "all" go on:
  clippy, doc  no warning in the code and its documentation
  system    the tests of daemons, clusters and whole nodes under runtimes, beside the
            reference; the rates of bandwidth; the examples in the documentation
  kernel    in a virtual machine with Debian's kernel: the tests that cargo shows as
            "ignored, stock kernel" or "ignored, SR-IOV", and a sample of the suite. With system, the
            machine runs beside its tests.
            With --arch arm64 instead: the chain of plugins from ADD to DEL, with
            traffic, built for arm64, on Debian's kernel for arm64. It installs
            qemu-system-arm if that is missing
  install   tests/install.sh
  package   tests/release.sh: tarball and packages
  demo      examples/demo.sh
Only if they are named:
  release   tests/release.sh --full: also whether builds in two folders are equal,
            and the way from the tarball to a pod on a clean Debian 12. Takes half an hour
  cluster   tests/cluster.sh: a real Kubernetes of two nodes. Its programs are in the folder
            KUBERNETES_BIN; without that it is skipped

A failing packages, lint or build ends the run; other steps that fail do not keep
the next from running. A test of unit, system or kernel that fails is run again alone
(tests/rerun.sh). If it passes then, it is flaky; more than two flaky tests are a failure.
At the end come the flaky tests, what was skipped or left out, and the measurements and
test cases that were repeated because the first attempt failed. The last line is
"N passed, N failed": tests, and one for every other step that failed. The exit status is
0 only if none failed.
END
}

say() { printf '%s\n' "$*"; }
die() { printf 'test.sh: %s\n' "$*" >&2; exit 2; }

passed=0 failed=0 remarks=() left_out=() few_daemons=() builder='' guests=()

# Runs a step's function and prints its time. tests() or this function counts a failure. Bash ignores errexit in a
# function that "if" tests, so these functions check for failures themselves.
step() {
    local name=$1 began=$SECONDS before=$failed
    shift
    say "=== $name"
    if "$@"; then
        say "=== $name: ok, $((SECONDS - began)) s"
        return 0
    fi
    [ "$failed" -gt "$before" ] || failed=$((failed + 1))
    say "=== $name: FAILED, $((SECONDS - began)) s"
    return 1
}

end() {
    local flaky repeated
    flaky=$(printf '%s\n' "${remarks[@]}" | grep -c '^flaky: ') || true
    repeated=$(printf '%s\n' "${remarks[@]}" | grep -c '^repeated: ') || true
    say
    say "$repeated measurements repeated, $flaky tests flaky"
    [ ${#remarks[@]} -eq 0 ] || printf '  %s\n' "${remarks[@]}"
    [ ${#left_out[@]} -eq 0 ] || say "left out: ${left_out[*]}; ./test.sh all runs them too, ./test.sh STEP one of them"
    if [ "$flaky" -gt 2 ]; then
        say "more than two flaky tests: a failure"
        failed=$((failed + 1))
    fi
    say "$passed passed, $failed failed"
    [ "$failed" -eq 0 ] || exit 1
    exit 0
}

# Runs tests and adds up what their closing lines say: cargo's "test result: ..." or a plain "N passed, N failed", which may go on.
# Stdout only; a test that ends without such a line, or badly in spite of it, is a failure that step() counts. A flaky test has
# passed.
tests() {
    local status=0 more_passed more_failed count flaky
    "$@" 2>&1 | tee "$log" || status=$?
    read -r more_passed more_failed count < <(awk '
        /^test result: / { gsub(/[;.]/, ""); for (i = 2; i <= NF; i++) {
            if ($i == "passed") p += $(i - 1)
            if ($i == "failed") f += $(i - 1)
        } n++ }
        /^[0-9]+ passed, [0-9]+ failed/ { p += $1; f += $3; n++ }
        END { print p + 0, f + 0, n + 0 }' "$log")
    mapfile -t -O ${#remarks[@]} remarks < <(grep -o 'REMARK \(repeated\|flaky\|skipped\): .*' "$log" | cut -d ' ' -f 2-)
    flaky=$(grep -c '^rerun.sh: REMARK flaky: ' "$log") || true
    more_passed=$((more_passed + flaky)) more_failed=$((more_failed - flaky))
    passed=$((passed + more_passed)) failed=$((failed + more_failed))
    if [ "$count" -eq 0 ]; then
        say "test.sh: no test has reported a result"
        return 1
    fi
    [ "$status" -eq 0 ] && [ "$more_failed" -eq 0 ]
}

# ---------------------------------------------------------------------------------------------------------------

# Without the guest's NIC only the tests of SR-IOV are left out.
packages() { ./install.sh --deps-only && ./tests/guest.sh --download && { ./tests/guest.sh --sriov --download || true; }; }

fmt() { cargo fmt --all -- --check; }

clippy() { cargo clippy --locked --workspace --all-targets -- -D warnings; }

shell() {
    local scripts
    mapfile -d '' -t scripts < <(git -c safe.directory="$here" ls-files -z -- '*.sh' .ci/run)
    [ ${#scripts[@]} -gt 0 ] || { say "test.sh: git lists no script"; return 1; }
    say "${scripts[*]}"
    shellcheck "${scripts[@]}"
}

architecture() { ./tests/architecture.sh; }

workflows() { remarking ./tests/workflows.sh; }

api() { remarking ./tests/semver.sh; }

manifests() { remarking ./tests/manifests.sh; }

# Runs a check that may skip itself.
remarking() {
    local status=0
    "$@" 2>&1 | tee "$log" || status=$?
    mapfile -t -O ${#remarks[@]} remarks < <(grep -o 'REMARK skipped: .*' "$log" | cut -d ' ' -f 2-)
    return "$status"
}

book() {
    command -v mdbook >/dev/null || { remarks+=("skipped: the book of the documents: there is no mdbook"); return 0; }
    ./docs/book.sh "$log.book"
}

# The optimiser leaves one core idle for most of a build. What comes next uses other folders below target, and runs meanwhile.
start_build() {
    ./build.sh ${arch:+--arch "$arch"} "$@" >"$log.folder" 2>"$log.build" &
    builder=$!
}

end_build() {
    local status=0
    wait "$builder" || status=$?
    builder=''
    cat "$log.build"
    [ "$status" -eq 0 ] || return 1
    FERRULE_BIN_DIR=$(<"$log.folder")
    export FERRULE_BIN_DIR
    say "$FERRULE_BIN_DIR"
}

# Builds for a step that wants the programs, when no step before it has.
built() {
    [ -z "${FERRULE_BIN_DIR-}" ] || return 0
    start_build ${arch:+--no-daemons}
    step build end_build || end
}

unit() {
    local status=0
    tests ./tests/rerun-test.sh || status=1
    tests plugin_tests || status=1
    return "$status"
}

plugin_tests() { ./tests/programs.sh --of plugins 2>&1 | tee "$log.most" || ./tests/rerun.sh "$log.most"; }

system() { tests system_tests; }

# The rates of bandwidth want to be alone, and while a guest runs nothing may be compiled, as the examples in the documentation are.
system_tests() {
    local status=0 run failed_runs=()
    ./tests/programs.sh --of system 2>&1 | tee "$log.most" || failed_runs+=(most)
    guests_ended
    ./tests/programs.sh --test rates 2>&1 | tee "$log.rates" || failed_runs+=(rates)
    cargo test --locked --workspace --no-fail-fast --doc 2>&1 | tee "$log.doc" || failed_runs+=(doc)
    for run in "${failed_runs[@]}"; do
        ./tests/rerun.sh "$log.$run" || status=1
    done
    return "$status"
}

compile_system() { ./tests/programs.sh --compile && ./tests/programs.sh --compile --test rates; }

# A guest computes, and the tests of system wait for most of their time. So guests start before these tests, with a low priority.
# Nothing may build meanwhile, since a guest uses this machine's files. With a kernel image that the caller names, as the runner's
# own tests do, those tests are left out.
start_guests() {
    ./tests/guest.sh --download || return 1
    [ -n "${FERRULE_GUEST_KERNEL-}" ] || in_background guest-test
    in_background kernel
}

# in_background NAME: starts tests/NAME.sh with a low priority. See outcome().
in_background() {
    {
        status=0
        setpriv --pdeathsig TERM nice -n 10 "./tests/$1.sh" >"$log.$1" 2>&1 || status=$?
        echo "$status" >"$log.$1.status"
    } &
    guests+=("$!:$1")
}

# outcome NAME: waits for the end of tests/NAME.sh, also in a subshell, and prints its output, which is in $log.NAME.
outcome() {
    local guest
    for guest in "${guests[@]}"; do
        [ "${guest#*:}" != "$1" ] || while kill -0 "${guest%%:*}" 2>/dev/null && [ ! -s "$log.$1.status" ]; do sleep 0.2; done
    done
    cat "$log.$1"
    [ -s "$log.$1.status" ] || return 1
    return "$(<"$log.$1.status")"
}

guests_ended() {
    local guest
    for guest in "${guests[@]}"; do outcome "${guest#*:}" >/dev/null || true; done
}

kernel() {
    local status=0
    if [ "$arch" ]; then
        emulated_arm
        return
    fi
    [ ${#guests[@]} -gt 0 ] || start_guests || return 1
    [ -n "${FERRULE_GUEST_KERNEL-}" ] || tests guest_cases || status=1
    tests guest_tests || status=1
    return "$status"
}

# Other tests may have left the emulator no time. Then the cases run again, alone.
guest_cases() {
    if outcome guest-test >"$log.cases"; then
        cat "$log.cases"
    else
        sed -n 's/^FAIL  /test.sh: REMARK flaky: guest-test.sh: /p' "$log.cases"
        ./tests/guest-test.sh
    fi
}

guest_tests() { outcome kernel || ./tests/rerun.sh "$log.kernel" ./tests/guest.sh --sriov env FERRULE_BIN_DIR="$FERRULE_BIN_DIR"; }

emulated_arm() {
    command -v qemu-system-aarch64 >/dev/null || apt_install qemu-system-arm ||
        { apt-get update && apt_install qemu-system-arm; } || return 1
    ./tests/guest.sh --arch "$arch" --download || return 1
    [ -n "${FERRULE_GUEST_KERNEL-}" ] || tests ./tests/guest-test.sh --arch "$arch" || return 1
    tests ./tests/guest.sh --arch "$arch" sh tests/guest-chain.sh "$FERRULE_BIN_DIR"
}

apt_install() { DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends "$@"; }

doc() { RUSTDOCFLAGS="${RUSTDOCFLAGS-} -D warnings" cargo doc --locked --workspace --no-deps; }

cluster() {
    if [ -z "${KUBERNETES_BIN-}" ]; then
        remarks+=("skipped: cluster: KUBERNETES_BIN names no folder with a Kubernetes (tests/cluster.sh --help)")
        return 0
    fi
    tests ./tests/cluster.sh
}

demo() { ./examples/demo.sh --bin-dir "$FERRULE_BIN_DIR"; }

# ---------------------------------------------------------------------------------------------------------------

declare -A wanted=()
arch=''
while [ $# -gt 0 ]; do
    case $1 in
    --arch)
        [ "${2-}" = arm64 ] || die "the only value of --arch is arm64"
        arch=$2
        shift
        ;;
    -h | --help)
        usage
        exit
        ;;
    all) for name in "${plugin_steps[@]}" "${other_steps[@]}"; do wanted[$name]=1; done ;;
    packages | lint | build | unit | clippy | doc | system | kernel | install | package | release | demo | cluster) wanted[$1]=1 ;;
    *) die "unknown step '$1'; see ./test.sh --help" ;;
    esac
    shift
done
[ -z "$arch" ] || [ "${!wanted[*]}" = kernel ] || die "--arch belongs to the step kernel alone"
if [ ${#wanted[@]} -eq 0 ]; then
    for name in "${plugin_steps[@]}"; do wanted[$name]=1; done
    left_out=("${other_steps[@]}")
    # The plugins' tests call no other daemon, and these take longer to build than all plugins.
    few_daemons=(--daemon dhcp)
fi

for name in packages unit system kernel install package release demo cluster; do
    [ -z "${wanted[$name]-}" ] || [ "$(id -u)" -eq 0 ] ||
        die "run this as root: the tests make namespaces, mounts and firewall rules (lint, build, clippy and doc need no root)"
done

# Programs that "cargo install" and rustup put where a CI's PATH may not lead.
PATH=$PATH:${CARGO_HOME:-$HOME/.cargo}/bin
if [ -n "${CARGO_TARGET_DIR-}" ]; then
    CARGO_TARGET_DIR=$(cd "$invoked_in" && realpath -m "$CARGO_TARGET_DIR")
    export CARGO_TARGET_DIR
fi
# Most runs compile everything, and need no debug information. Whole crates take a fifth less processor time than their parts together.
# With these of build scripts too, a crate that both want is compiled once.
export CARGO_INCREMENTAL="${CARGO_INCREMENTAL-0}" CARGO_PROFILE_DEV_DEBUG="${CARGO_PROFILE_DEV_DEBUG-none}"
export CARGO_PROFILE_DEV_CODEGEN_UNITS="${CARGO_PROFILE_DEV_CODEGEN_UNITS-1}"
export CARGO_PROFILE_DEV_BUILD_OVERRIDE_CODEGEN_UNITS="${CARGO_PROFILE_DEV_BUILD_OVERRIDE_CODEGEN_UNITS-1}"
cd "$here"
log=$(mktemp)
ended() {
    [ -z "$builder" ] || kill "$builder"
    for guest in "${guests[@]}"; do kill "${guest%%:*}" 2>/dev/null || true; done
    rm -rf -- "$log" "$log".*
}
trap ended EXIT

if [ "${wanted[packages]-}" ]; then
    step packages packages || end
fi
[ -z "${wanted[build]-}" ] || start_build "${few_daemons[@]}"
if [ "${wanted[lint]-}" ]; then
    for check in fmt shell architecture workflows manifests api book; do
        step "lint: $check" "$check" || end
    done
fi
if [ "${wanted[unit]-}" ]; then
    step "unit: compile" ./tests/programs.sh --compile --of plugins || end
fi
[ -z "${wanted[build]-}" ] || step build end_build || end
if [ "${wanted[unit]-}" ]; then
    built
    step unit unit || true
    say "=== so far $SECONDS s: ./test.sh without a step ends here, sooner because it builds fewer daemons"
fi
for check in clippy doc; do
    [ -z "${wanted[$check]-}" ] || step "$check" "$check" || true
done
if [ "${wanted[system]-}" ]; then
    step "system: compile" compile_system || end
fi
if [ "${wanted[system]-}" ]; then
    built
    # If they do not start, the step kernel says so.
    [ -z "${wanted[kernel]-}" ] || start_guests || true
    step system system || true
fi
if [ "${wanted[kernel]-}" ]; then
    built
    step kernel kernel || true
fi
if [ "${wanted[install]-}" ]; then
    step install tests ./tests/install.sh || true
fi
if [ "${wanted[release]-}" ]; then
    step release tests ./tests/release.sh --full || true
elif [ "${wanted[package]-}" ]; then
    step package tests ./tests/release.sh || true
fi
if [ "${wanted[demo]-}" ]; then
    built
    step demo demo || true
fi
if [ "${wanted[cluster]-}" ]; then
    built
    step cluster cluster || true
fi
end
