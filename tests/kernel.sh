#!/usr/bin/env bash
# Runs side by side, in guests with a stock kernel: the tests that are ignored for that reason, a sample of the conformance
# suite, and the tests that need SR-IOV. test.sh calls this, with the plugins in FERRULE_BIN_DIR.
set -euo pipefail
export LC_ALL=C
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# --guest LOG: one guest, with the script LOG.script. Its output goes to LOG.
if [ "${1-}" = --guest ]; then
    option=$(<"$2.option")
    exec ./tests/guest.sh ${option:+"$option"} --timeout 3600 bash -c "$(<"$2.script")" >"$2" 2>&1
fi

# One version, for all plugins: requirements that depend on the kernel, that is, results, what CHECK notices, what DEL
# removes, what stays untouched.
sample_version=1.1.0
sample=(RES- CHK-03 CHK-04 CHK-05 CHN-05 CHN-06)
# More for plugins whose kind of link not every kernel has: they may be judged here alone. vrf has its own tests of kills.
rare_plugins=(ipvlan vlan dummy)
rare_sample=(ADD-08/killed-during-add DEL-03)

# Names of the tests in a program that are ignored for a reason. The reasons are printed where a run includes ignored tests.
ignored_tests() {
    local ignored
    mapfile -t ignored < <("$1" --list --ignored | sed -n 's/: test$//p')
    [ ${#ignored[@]} -eq 0 ] ||
        "$1" --exact "${ignored[@]}" | sed -n "s/^test \(.*\) \.\.\. ignored, $2\>.*/\1/p"
}

programs=$(./tests/programs.sh --list)
# With the tests of the suite comes its command.
suite=$(cargo test --no-run --locked --workspace --test suite --message-format=json |
    jq -r 'select(.executable and .target.name == "cni-conformance" and (.profile.test | not)) | .executable')

# The lines of cargo that tests/rerun.sh reads.
head="export FERRULE_BIN_DIR=${FERRULE_BIN_DIR@Q}; failed=0
    fails() { failed=\$((failed + 1)); echo \"error: test failed, to rerun pass \\\`\$1\\\`\"; }"
tail="
    [ \$failed -eq 0 ] || { echo \"error: \$failed targets failed:\"; exit 1; }"

# script_of REASON [FIRST STEP]: runs the tests that are ignored for this reason; of their programs, every STEPth from the FIRST on.
script_of() {
    local script='' program folder options names number=0
    while IFS='|' read -r program folder options; do
        names=$(ignored_tests "$program" "$1")
        [ "$names" ] || continue
        [ $((number++ % ${3:-1})) -ne "${2:-0}" ] || script+="
            echo '     Running ($program)'
            cd $folder && ${program@Q} --ignored --exact --test-threads=1 ${names//$'\n'/ } || fails '$options'"
    done <<<"$programs"
    [ -n "$script" ] || { echo "kernel.sh: no test is ignored with the reason \"$1: ./test.sh kernel\"" >&2; return 1; }
    printf '%s' "$script"
}

# These take longest. Their guests outlive the others and use both cores until the end.
stock=()
for part in 0 1 2; do
    stock[part]=$(script_of 'stock kernel' "$part" 3)
done
sriov=$(script_of SR-IOV)
judge="${suite@Q} run --bin-dir ${FERRULE_BIN_DIR@Q} --cni-version $sample_version"
judged="
    echo '     Running ($suite)'
    $judge ${sample[*]/#/--filter } || fails suite
    $judge ${rare_plugins[*]/#/--plugin } ${rare_sample[*]/#/--filter } || fails suite"

log=$(mktemp) guests=()
trap 'rm -f -- "$log" "$log".*' EXIT

# add NAME SCRIPT [OPTION]: a guest that runs this script, with an option of guest.sh.
add() {
    guests+=("$log.$1")
    printf '%s' "$head$2$tail" >"$log.$1.script"
    printf '%s' "${3-}" >"$log.$1.option"
}

for part in "${!stock[@]}"; do
    add "stock$part" "${stock[part]}"
done
add suite "$judged"
if ./tests/guest.sh --sriov --download; then
    add sriov "$sriov" --sriov
else
    echo "kernel.sh: REMARK skipped: the tests of SR-IOV: no qemu with the NIC igb from Debian's backports"
fi
# A guest uses one core for most of its time: with one guest more than there are cores, all have work.
status=0
printf '%s\n' "${guests[@]}" | setpriv --pdeathsig TERM xargs -n 1 -P "$(($(nproc) + 1))" \
    setpriv --pdeathsig TERM ./tests/kernel.sh --guest || status=1
cat "${guests[@]}"
exit "$status"
