#!/usr/bin/env bash
# Runs test programs side by side. Run with --help for the rest.
set -euo pipefail
export LC_ALL=C

usage() {
    cat <<END
Usage: tests/programs.sh [--compile|--list|--packages] [--of plugins|system] [CARGO'S OPTIONS FOR TARGETS ...]

Runs the test programs of the workspace, or those of the targets that are named, such as
"--test suite". "cargo test" runs one program after the other, but most tests wait for the
kernel: here, three times as many programs run as there are cores, each in a PID
namespace of its own. The output of a program comes when it ends, with cargo's lines
around it, which tests/rerun.sh reads, and its time. Their temporary files are in memory. Needs root
for that.

  --of plugins  only the plugins, the command line, what both are made of, and the suite
  --of system   only the rest: daemons, whole nodes under runtimes, clusters
  --compile     compiles them, and runs nothing
  --list        prints a line "PROGRAM|FOLDER|CARGO'S OPTIONS" for each program instead
  --packages    prints cargo's options for the crates that it would compile
END
}

# The names of the programs that take longest. They start first, so that all cores have work until the end.
slow='^(broken|cluster|daemon|hostile|inspect|install|interleave|iptables|killed|repair|repair_runtimes|suite)$'

# The folders of the crates of "--of plugins".
plugins='^/(cni-common|kernel|kit|plugins|operator|conformance/(runner|lab|suite))(/|$)'

# Sets options: which crates cargo compiles. The tests of the rest share crates with the plugins', so all are compiled for them.
options() {
    options=(--workspace)
    [ "$of" = plugins ] || return 0
    mapfile -t options < <(cargo metadata --locked --no-deps --format-version 1 |
        jq -r --arg plugins "$plugins" '.workspace_root as $root | .packages[]
            | select(.manifest_path | ltrimstr($root) | test($plugins)) | "--package=" + .name')
}

packages() {
    local options
    options
    printf '%s\n' "${options[@]}"
}

compile() {
    local options
    options
    cargo test --locked --no-run "${options[@]}" "$@"
}

list() {
    compile --message-format=json "$@" | jq -r --arg slow "$slow" --arg of "$of" --arg plugins "$plugins" --arg root "$PWD" '
        select(.executable and .profile.test)
        | select($of == "" or ((.manifest_path | ltrimstr($root) | test($plugins)) == ($of == "plugins")))
        | (.package_id | capture("#(?<name>.*)@") // capture("/(?<name>[^/]*)#")).name as $package
        | .target.kind[0] as $kind
        | [(if .target.name | test($slow) then 0 else 1 end), .executable, (.manifest_path | sub("/[^/]*$"; "")),
           "-p \($package) --\($kind)" + if $kind == "lib" then "" else " " + .target.name end]
        | join("|")' | sort -t '|' -k 1,1 -k 3 | cut -d '|' -f 2-
}

# The suite judges one plugin folder after the other, and so it takes longest of all. The others give way to it.
longest='--test suite$'

# The first process of a PID namespace waits for all that lose their parents. Without the second command, bash would become the program.
init='"$@"; exit'

# run_one PROGRAM|FOLDER|OPTIONS, in a PID namespace, where it sees no plugin of another test, and leaves no process.
run_one() {
    local program folder options output status=0 niceness=5
    IFS='|' read -r program folder options <<<"$1"
    [[ ! $options =~ $longest ]] || niceness=0
    output=$(mktemp)
    local TIMEFORMAT="took %R s, of the processors %U + %S s: $options"
    {
        echo "     Running ($program)"
        time env -C "$folder" CARGO_MANIFEST_DIR="$folder" \
            nice -n "$niceness" unshare --pid --fork --kill-child --mount-proc bash -c "$init" bash "$program" --test-threads "$(nproc)" || status=1
        [ "$status" -eq 0 ] || echo "error: test failed, to rerun pass \`$options\`"
    } >"$output" 2>&1 </dev/null
    # Whole outputs, one after the other.
    flock "$0" cat "$output"
    rm "$output"
    return "$status"
}

# run_all, in a mount namespace of its own: tests make and remove many files, and ext4 searches long for an inode that was not
# freed a moment ago. So TMPDIR, an empty folder, becomes one in memory.
run_all() {
    mount -t tmpfs -o mode=1777 tests "$TMPDIR"
    xargs -d '\n' -n 1 -P "$((3 * $(nproc)))" "$0" --one
}

run() {
    local programs log folder failed
    programs=$(list "$@")
    log=$(mktemp)
    folder=$(mktemp -d)
    if ! TMPDIR=$folder unshare --mount "$0" --all <<<"$programs" | tee "$log"; then
        failed=$(grep -c 'error: test failed, to rerun pass `' "$log") || true
        echo "error: $failed targets failed:"
    fi
    rm -d "$log" "$folder"
    [ -z "${failed-}" ]
}

do=run of=''
while true; do
    case ${1-} in
    -h | --help)
        usage
        exit
        ;;
    --compile | --list | --packages) do=${1#--} ;;
    --of)
        of=${2-}
        [[ $of == plugins || $of == system ]] || { usage >&2; exit 2; }
        shift
        ;;
    --all | --one)
        "run_${1#--}" "${@:2}"
        exit
        ;;
    *) break ;;
    esac
    shift
done
"$do" "$@"
