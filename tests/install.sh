#!/usr/bin/env bash
# Tests of install.sh and of build.sh's list of plugins, in temporary folders, with scripts that act as plugins. Needs root.
# The last line counts tests: "N passed, N failed". Arguments are names of tests to run.
#
# shellcheck disable=SC2015 # A && B || C: every C ends the test
set -uo pipefail
export LC_ALL=C

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
reference=${FERRULE_REFERENCE_DIR:-/usr/lib/cni}
[ "$(id -u)" -eq 0 ] || { echo "tests/install.sh: run this as root: it mounts and changes users" >&2; exit 1; }

# On a tmpfs in a private mount namespace: no disk has to sync, and nothing is left behind.
if [ -z "${FERRULE_TEST_NAMESPACE-}" ]; then
    FERRULE_TEST_NAMESPACE=1 exec unshare --mount --propagation private "$0" "$@"
fi
base=$(mktemp -d)
trap 'umount -l -- "$base"; rmdir -- "$base"' EXIT
mount -t tmpfs -o mode=0755 none "$base" || exit 1

# ---------------------------------------------------------------------------------------------------------------
# Fixture and assertions. Every test runs in a subshell, in $work. That folder contains only $tree, a copy of the
# scripts that other users can read. A failed assertion ends the subshell.

fail() { printf '  %s\n' "$*"; exit 1; }

# Runs install.sh; sets status, out (stdout) and err (stderr).
run() {
    status=0
    "$tree/install.sh" --bin-dir "$bin" "$@" >"$work/out" 2>"$work/err" || status=$?
    out=$(<"$work/out") err=$(<"$work/err")
}

succeeds() { run "$@"; [ "$status" -eq 0 ] || fail "install.sh $*: status $status: $out $err"; }

# install.sh fails with status $1, prints one line with $2 to stderr, and changes nothing.
refuses() {
    local want=$1 words=$2 was
    shift 2
    was=$(snapshot "$work")
    run "$@"
    [ "$status" -eq "$want" ] || fail "install.sh $*: status $status instead of $want: $out $err"
    [[ $err == *"$words"* ]] || fail "install.sh $*: does not say '$words' but: $err"
    [ "$(wc -l <"$work/err")" -eq 1 ] || fail "install.sh $*: more than one line on stderr: $err"
    [ "$(snapshot "$work")" = "$was" ] || fail "install.sh $*: refused and yet changed something"
}

says() { [[ $out$err == *"$1"* ]] || fail "does not say '$1' but: $out $err"; }

# The state of a folder: type, mode, name and link target of each entry; then the contents.
snapshot() {
    (
        cd "$1" || exit
        find . ! -path ./out ! -path ./err -printf '%y %m %U %p %l\n' | sort -k4
        find . -type f ! -path ./out ! -path ./err -exec sha256sum {} + | sort -k2
    )
}

# The files that a runtime can find in a folder.
visible() {
    (
        cd "$1" || exit
        find . -maxdepth 1 ! -name '.?*' -printf '%y %m %p %l\n' | sort -k3
        find . -maxdepth 1 -type f ! -name '.?*' -exec sha256sum {} + | sort -k2
    )
}

same() { cmp -s "$1" "$2" || fail "$1 is not the same as $2"; }
gone() { [ ! -e "$1" ] && [ ! -L "$1" ] || fail "$1 is there"; }
no_leftovers() {
    local file
    for file in "$bin"/.ferrule-new "$bin"/.ferrule/journal* "$bin"/.ferrule/*.part; do
        [ ! -e "$file" ] || fail "left behind: $file"
    done
}

# fake DIR VERSION NAME...: creates programs that answer VERSION like a plugin if they are called as a runtime calls them.
fake() {
    local dir=$1 version=$2 name
    shift 2
    mkdir -p "$dir"
    for name in "$@"; do
        cat >"$dir/$name" <<END
#!/bin/sh
[ -n "\$CNI_COMMAND" ] || { echo "CNI $name plugin v$version" >&2; exit; }
[ "\$CNI_COMMAND" = VERSION ] && [ "\$(cat)" = '{"cniVersion":"1.0.0"}' ] || exit 9
echo '{"cniVersion": "1.0.0",'
echo ' "supportedVersions": ["0.4.0", "1.0.0"]}'
END
        chmod 0755 "$dir/$name"
    done
}

as_nobody() { setpriv --reuid 65534 --regid 65534 --clear-groups "$@"; }

manifest_has() { grep -q "$1" "$bin/.ferrule/manifest" || fail "no '$1' in the manifest: $(<"$bin/.ferrule/manifest")"; }

# ---------------------------------------------------------------------------------------------------------------
# Installing

test_help_is_given_without_changes() {
    run --help
    [ "$status" -eq 0 ] || fail "status $status"
    for option in --from --bin-dir --plugins --dry-run --rollback --uninstall --force --host-ports --with-deps --deps-only --demo; do
        says "$option"
    done
    gone "$bin"
}

test_a_fresh_installation() {
    succeeds --from v1
    for name in $all; do
        same "v1/$name" "$bin/$name"
        [ "$(stat -c %a "$bin/$name")" = 755 ] || fail "mode of $name: $(stat -c %a "$bin/$name")"
        manifest_has "^plugin $name none $(sha256sum <"v1/$name" | cut -d' ' -f1) v1.0.0$"
    done
    no_leftovers
}

test_modes_do_not_depend_on_umask_or_source() {
    chmod 0700 v1/*
    (umask 077 && succeeds --from v1) || exit 1
    [ "$(stat -c %a "$bin/loopback" "$bin" "$bin/.ferrule" | tr '\n' ' ')" = '755 755 755 ' ] || fail "modes"
}

test_missing_folders_are_made_and_removed_on_failure() {
    bin=$work/a/b/c
    succeeds --from v1
    same v1/bridge "$bin/bridge"
    bin=$work/d/e
    mkdir nocopy
    printf '#!/bin/sh\nexit 1\n' >nocopy/cp && chmod 0755 nocopy/cp
    PATH=$work/nocopy:$PATH refuses 1 "cannot copy" --from v2
    gone "$work/d"
}

test_a_second_run_does_nothing() {
    succeeds --from v1
    was=$(snapshot "$bin")
    inode=$(stat -c %i "$bin/bridge")
    succeeds --from v1
    says "Nothing to do"
    [ "$(snapshot "$bin")" = "$was" ] || fail "something changed"
    [ "$(stat -c %i "$bin/bridge")" = "$inode" ] || fail "bridge was exchanged"
}

test_a_subset() {
    succeeds --from v1 --plugins "loopback bridge"
    same v1/bridge "$bin/bridge"
    same v1/loopback "$bin/loopback"
    gone "$bin/host-local"
}

test_a_dry_run_changes_nothing() {
    fake "$bin" old bridge
    was=$(snapshot "$bin")
    succeeds --from v1 --dry-run
    says "bridge: would install v1.0.0 and keep"
    says "loopback: would install v1.0.0"
    [ "$(snapshot "$bin")" = "$was" ] || fail "something changed"
    succeeds --from v1
    was=$(snapshot "$bin")
    succeeds --rollback --dry-run
    says "bridge: would put back"
    says "loopback: would remove"
    succeeds --uninstall --dry-run
    [ "$(snapshot "$bin")" = "$was" ] || fail "something changed"
    bin=$work/none
    succeeds --from v1 --dry-run
    gone "$bin"
}

test_other_files_are_not_touched() {
    fake "$bin" other dhcp firewall
    was=$(visible "$bin")
    succeeds --from v1
    succeeds --uninstall
    [ "$(visible "$bin")" = "$was" ] || fail "something changed"
}

test_an_identical_file_that_was_there_is_kept_too() {
    mkdir "$bin" && cp v1/bridge "$bin" && chmod 0711 "$bin/bridge"
    was=$(snapshot "$bin")
    succeeds --from v1
    [ "$(stat -c %a "$bin/bridge")" = 755 ] || fail "not installed"
    succeeds --uninstall
    [ "$(snapshot "$bin")" = "$was" ] || fail "not as before"
}

test_a_lost_execute_bit_is_mended() {
    succeeds --from v1
    chmod 0644 "$bin/bridge"
    succeeds --from v1
    [ -x "$bin/bridge" ] || fail "bridge is not executable"
}

# ---------------------------------------------------------------------------------------------------------------
# Going back

test_uninstall_puts_originals_back_and_removes_the_rest() {
    fake "$bin" old bridge loopback
    chmod 0700 "$bin/bridge" && chown 7:8 "$bin/bridge" && touch -d 2020-02-02 "$bin/bridge"
    was=$(snapshot "$bin")
    succeeds --from v1
    manifest_has "^plugin bridge $(sha256sum <"$bin/.ferrule/saved/"bridge.* | cut -d' ' -f1) "
    succeeds --uninstall
    [ "$(snapshot "$bin")" = "$was" ] || fail "not as before: $(snapshot "$bin")"
    [ "$(stat -c %u:%g:%y "$bin/bridge" | cut -c1-14)" = 7:8:2020-02-02 ] || fail "owner or time: $(stat "$bin/bridge")"
    gone "$bin/host-local"
    gone "$bin/.ferrule"
    succeeds --uninstall
    says "Nothing to do"
}

test_originals_survive_many_installations() {
    fake "$bin" old bridge
    was=$(snapshot "$bin")
    for round in v1 v2 v1 v2; do
        succeeds --from "$round"
        same "$round/bridge" "$bin/bridge"
    done
    [ "$(find "$bin/.ferrule/saved" -name 'bridge.*' | wc -l)" -eq 2 ] || fail "more is kept than the original and the last"
    succeeds --uninstall
    [ "$(snapshot "$bin")" = "$was" ] || fail "not as before"
}

test_rollback_goes_back_one_installation() {
    fake "$bin" old bridge
    was=$(snapshot "$bin")
    succeeds --from v1
    succeeds --from v2
    succeeds --rollback
    for name in $all; do same "v1/$name" "$bin/$name"; done
    manifest_has "^plugin bridge .* v1.0.0$"
    refuses 1 "no installation" --rollback
    succeeds --from v1
    says "Nothing to do"
    succeeds --uninstall
    [ "$(snapshot "$bin")" = "$was" ] || fail "not as before"
}

test_rollback_of_the_first_installation() {
    fake "$bin" old bridge
    was=$(snapshot "$bin")
    succeeds --from v1
    succeeds --rollback
    [ "$(snapshot "$bin")" = "$was" ] || fail "not as before"
    refuses 1 "no installation" --rollback
}

test_rollback_concerns_only_what_the_last_one_replaced() {
    succeeds --from v1
    succeeds --from v2 --plugins bridge
    succeeds --from v2 --plugins bridge
    succeeds --rollback
    for name in $all; do same "v1/$name" "$bin/$name"; done
}

test_rollback_and_uninstall_of_a_subset() {
    succeeds --from v1
    succeeds --from v2
    succeeds --rollback --plugins bridge
    same v1/bridge "$bin/bridge"
    same v2/loopback "$bin/loopback"
    refuses 1 "bridge: there is nothing to take back" --rollback --plugins bridge
    succeeds --uninstall --plugins bridge
    gone "$bin/bridge"
    same v2/loopback "$bin/loopback"
    succeeds --rollback
    same v1/loopback "$bin/loopback"
    succeeds --uninstall
    gone "$bin/.ferrule"
}

test_a_link_is_put_back_as_a_link() {
    mkdir "$bin" && ln -s ../v2/bridge "$bin/bridge" && ln -s nowhere "$bin/loopback"
    was=$(snapshot "$bin")
    succeeds --from v1
    [ -f "$bin/bridge" ] && [ ! -L "$bin/bridge" ] || fail "bridge is still a link"
    succeeds --from v2
    succeeds --uninstall
    [ "$(snapshot "$bin")" = "$was" ] || fail "not as before"
}

test_a_file_changed_since_is_left_alone() {
    fake "$bin" old bridge loopback
    cp -a "$bin" old
    succeeds --from v1
    echo '# changed' >>"$bin/bridge"
    cp "$bin/bridge" changed
    for verb in --rollback --uninstall; do
        run "$verb"
        [ "$status" -eq 3 ] || fail "$verb: status $status"
        says "bridge: left alone"
        same changed "$bin/bridge"
        same old/loopback "$bin/loopback"
    done
    succeeds --uninstall --force
    same old/bridge "$bin/bridge"
    gone "$bin/.ferrule"
}

test_a_file_changed_since_is_rolled_back_by_force() {
    fake "$bin" old bridge
    cp -a "$bin" old
    succeeds --from v1
    fake "$bin" foreign bridge
    run --rollback
    [ "$status" -eq 3 ] || fail "status $status"
    succeeds --rollback --force
    same old/bridge "$bin/bridge"
}

test_a_file_removed_since_is_left_removed() {
    fake "$bin" old bridge
    succeeds --from v1
    rm "$bin/bridge" "$bin/loopback"
    run --uninstall
    [ "$status" -eq 3 ] || fail "status $status"
    gone "$bin/bridge"
    gone "$bin/host-local"
    succeeds --uninstall --force
    [ -e "$bin/bridge" ] || fail "bridge was not put back"
}

test_installing_over_a_foreign_change_can_be_rolled_back() {
    fake "$bin" old bridge
    cp -a "$bin" old
    succeeds --from v1
    fake "$bin" foreign bridge
    cp "$bin/bridge" foreign
    succeeds --from v2
    says "bridge: install v2.0.0 in place of a file that is not what we installed last"
    succeeds --rollback
    same foreign "$bin/bridge"
    run --uninstall
    [ "$status" -eq 3 ] || fail "status $status"
    same foreign "$bin/bridge"
    succeeds --uninstall --force
    same old/bridge "$bin/bridge"
}

test_a_later_write_to_the_original_by_another_name_is_not_kept() {
    fake "$bin" old bridge
    cp -a "$bin" old
    ln "$bin/bridge" other-name
    succeeds --from v1
    echo '# changed' >>other-name
    succeeds --uninstall
    same old/bridge "$bin/bridge"
}

test_a_damaged_copy_is_never_put_back() {
    fake "$bin" old bridge loopback
    succeeds --from v1
    echo damage >>"$(echo "$bin"/.ferrule/saved/loopback.*)"
    was=$(visible "$bin")
    run --uninstall
    [ "$status" -eq 1 ] || fail "status $status"
    says "missing or damaged"
    [ "$(visible "$bin")" = "$was" ] || fail "something changed"
    no_leftovers
}

test_a_manifest_of_the_future_is_not_guessed_at() {
    succeeds --from v1
    sed -i 's/^format 1$/format 2/' "$bin/.ferrule/manifest"
    refuses 1 "newer install.sh" --uninstall
}

# ---------------------------------------------------------------------------------------------------------------
# Host ports of running pods

# v1 and v2 with a portmap that records its arguments in $work/handed, and whether it was still installed then. It exits
# with the status in $work/status.
with_portmap() {
    local dir
    fake v1 1.0.0 portmap
    fake v2 2.0.0 portmap
    for dir in v1 v2; do
        sed -i "2i\\
if [ \"\$1\" = hand-back ]; then\\
    cmp -s $bin/portmap $work/$dir/portmap && place=there || place=gone\\
    echo \"\$* \$place \${0##*/} \$CNI_COMMAND\" >>$work/handed\\
    echo 'container one: 2 host ports'\\
    [ \$(cat $work/status) -eq 0 ] || echo 'container two: 3 host ports stay: because' >\&2\\
    exit \$(cat $work/status)\\
fi" "$dir/portmap"
    done
    all="bridge host-local loopback portmap"
    mkdir "$tree/plugins/main/portmap" && : >"$tree/plugins/main/portmap/Cargo.toml"
    fake "$bin" old bridge portmap
    cp -a "$bin" old
    echo 0 >status
    : >handed
}
handed() { [ "$(<handed)" = "$1" ] || fail "handed over by: $(<handed)"; }

test_host_ports_are_handed_over_before_portmap_goes_and_once_more() {
    with_portmap
    for verb in --rollback --uninstall; do
        : >handed
        succeeds --from v1
        handed ''
        succeeds "$verb"
        # A script sees the name of the open file descriptor, 8; a real program sees the name portmap.
        handed $'hand-back there 8 \nhand-back gone 8 '
        says "portmap: hand over container one: 2 host ports"
        same old/portmap "$bin/portmap"
    done
}

test_host_ports_go_to_the_backend_that_is_asked_for() {
    with_portmap
    for backend in iptables nftables; do
        : >handed
        succeeds --from v1
        succeeds --uninstall --host-ports "$backend"
        handed "hand-back --to $backend there 8 "$'\n'"hand-back --to $backend gone 8 "
    done
}

test_host_ports_stay_for_an_earlier_ferrule_or_if_told_so() {
    with_portmap
    succeeds --from v1
    succeeds --from v2
    succeeds --rollback
    same v1/portmap "$bin/portmap"
    succeeds --uninstall --plugins bridge
    succeeds --uninstall --host-ports keep
    same old/portmap "$bin/portmap"
    handed ''
    refuses 2 "--host-ports wants" --uninstall --host-ports ipvs
    refuses 2 "belongs to --rollback and --uninstall" --from v1 --host-ports keep
}

test_nothing_goes_if_host_ports_cannot_be_handed_over() {
    with_portmap
    succeeds --from v1
    was=$(snapshot "$bin")
    echo 1 >status
    for verb in --rollback --uninstall; do
        run "$verb"
        [ "$status" -eq 1 ] || fail "$verb: status $status"
        says "container two: 3 host ports stay"
        says "nothing is put back; with --host-ports keep"
        [ "$(snapshot "$bin")" = "$was" ] || fail "$verb: something changed"
    done
}

test_host_ports_that_have_to_stay_are_named() {
    with_portmap
    succeeds --from v1
    echo 3 >status
    was=$(snapshot "$bin")
    run --uninstall --dry-run
    [ "$status" -eq 3 ] || fail "status $status"
    says "portmap: would hand over container one: 2 host ports"
    handed 'hand-back --dry-run there 8 '
    [ "$(snapshot "$bin")" = "$was" ] || fail "something changed"
    run --uninstall
    [ "$status" -eq 3 ] || fail "status $status"
    says "portmap: container two: 3 host ports stay: because"
    same old/portmap "$bin/portmap"
}

test_any_name_of_the_program_hands_over() {
    with_portmap
    cp v1/portmap v1/bridge
    succeeds --from v1
    cp -a old/portmap "$bin/portmap"
    succeeds --uninstall
    handed $'hand-back gone 8 \nhand-back gone 8 '
    rm -rf "$bin" && cp -a old "$bin" && fake v1 1.0.0 bridge
    succeeds --from v1
    cp -a old/portmap "$bin/portmap"
    run --uninstall
    [ "$status" -eq 3 ] || fail "status $status"
    says "is not there any more"
    same old/bridge "$bin/bridge"
}

test_an_interruption_never_leaves_host_ports_to_who_does_not_know_them() {
    with_portmap
    rm -r "$bin" old
    fake old old portmap
    after_fault() {
        [ "$status" -eq 137 ] || fail "step $1: was not killed but: $status"
        ! cmp -s "$bin/portmap" old/portmap || grep -q 'there 8 $' handed || fail "step $1: $(<handed)"
        : >handed
        succeeds --uninstall
        [ "$(snapshot "$bin")" = "$(snapshot old)" ] || fail "step $1: $(snapshot "$bin")"
        : >handed
    }
    each_step kill old --uninstall
}

# ---------------------------------------------------------------------------------------------------------------
# Refusals

test_wrong_usage() {
    refuses 2 "unknown option '--bogus'" --bogus
    refuses 2 "unknown option 'bridge'" bridge
    refuses 2 "--from needs a value" --from
    refuses 2 "exclude each other" --rollback --uninstall
    refuses 2 "belong to an installation" --uninstall --from v1
    refuses 2 "'../x' is no name" --from v1 --plugins ../x
    refuses 2 "names none" --from v1 --plugins ' '
    refuses 2 "no plugin 'nonesuch'" --plugins nonesuch
    refuses 2 "--wait wants" --from v1 --wait soon
}

test_a_missing_source() {
    refuses 1 "there is no such folder" --from nowhere
    rm v1/loopback
    refuses 1 "v1/loopback is missing" --from v1
    mkdir v1/loopback
    refuses 1 "v1/loopback is not a file" --from v1
}

test_a_broken_source() {
    fake "$bin" old bridge
    chmod 0644 v1/loopback
    refuses 1 "v1/loopback is not executable" --from v1
    printf '#!/bin/sh\necho broken\nexit 4\n' >v1/loopback && chmod 0755 v1/loopback
    refuses 1 "v1/loopback fails at VERSION with status 4: broken" --from v1
    printf '#!/bin/sh\necho hello\n' >v1/loopback
    refuses 1 "does not answer VERSION with supportedVersions but with: hello" --from v1
    printf '#!/bin/sh\n' >v1/loopback
    refuses 1 "but with: nothing" --from v1
    : >v1/loopback
    refuses 1 "v1/loopback" --from v1
    head -c 5000 "$reference/loopback" >v1/loopback
    refuses 1 "v1/loopback fails at VERSION" --from v1
}

test_a_source_that_hangs() {
    printf '#!/bin/sh\nexec sleep 60\n' >v1/loopback
    refuses 1 "does not answer VERSION within 10 seconds" --from v1
}

test_another_machine() {
    cp "$reference/loopback" v1/loopback
    printf '\x15\x00' | dd of=v1/loopback bs=1 seek=18 conv=notrunc status=none
    refuses 1 "v1/loopback is built for another machine" --from v1
}

test_a_bin_dir_that_is_a_file() {
    : >"$bin"
    refuses 1 "is not a folder" --from v1
    bin=$bin/below
    refuses 1 "is not a folder" --from v1
}

test_something_else_in_a_plugins_place() {
    mkdir -p "$bin/loopback"
    refuses 1 "neither a file nor a link" --from v1
}

test_state_that_is_no_folder() {
    mkdir "$bin" elsewhere && ln -s ../elsewhere "$bin/.ferrule"
    refuses 1 "is a link" --from v1
}

test_an_ordinary_user() {
    mkdir "$bin"
    was=$(snapshot "$bin")
    for there in "$bin" "$bin/below"; do
        status=0
        err=$(as_nobody "$tree/install.sh" --from "$work/v1" --bin-dir "$there" 2>&1) || status=$?
        [ "$status" -eq 1 ] || fail "status $status: $err"
        [[ $err == *"is not writable for you"* ]] || fail "says: $err"
        [ "$(wc -l <<<"$err")" -eq 1 ] || fail "more than one line: $err"
    done
    [ "$(snapshot "$bin")" = "$was" ] || fail "something changed"
    chown 65534:65534 "$bin"
    as_nobody "$tree/install.sh" --from "$work/v1" --bin-dir "$bin" >out 2>&1 || fail "not into a folder of theirs: $(<out)"
    same v1/bridge "$bin/bridge"
}

test_a_read_only_file_system() {
    fake "$bin" old bridge
    private mount_read_only refuses 1 "read-only" --from v1
}
mount_read_only() { mount --bind "$bin" "$bin" && mount -o remount,ro,bind "$bin"; }

test_a_file_system_without_exec() {
    mkdir "$bin"
    private mount_noexec install_fails "mounted noexec"
    no_leftovers
}
mount_noexec() { mount --bind "$bin" "$bin" && mount -o remount,noexec,bind "$bin"; }

# Calls a function that mounts, then a command, in a new mount namespace.
private() {
    local prepare=$1
    shift
    export work tree bin prepare
    # shellcheck disable=SC2016 # for the shell inside to expand
    unshare --mount --propagation private bash -c '
        set -uo pipefail
        '"$(declare -f)"'
        cd "$work" && "$prepare" || fail "cannot mount"
        "$@"
    ' private "$@" || exit 1
}

# install.sh --from v1 fails with $1 on stderr, and a runtime finds the same files as before.
install_fails() {
    local was
    was=$(visible "$bin")
    run --from v1
    [ "$status" -eq 1 ] || fail "status $status: $out $err"
    says "$1"
    [ "$(visible "$bin")" = "$was" ] || fail "something changed: $(visible "$bin")"
    no_leftovers
}

# ---------------------------------------------------------------------------------------------------------------
# Failures in the middle, interruptions, concurrent runs

test_a_full_disk() {
    head -c 600000 /dev/zero >>v1/loopback
    private mount_small on_the_small_disk
}
mount_small() { mkdir -p "$bin" && mount -t tmpfs -o size=500k none "$bin"; }
on_the_small_disk() {
    fake "$bin" old bridge loopback
    install_fails "cannot copy"
    gone "$bin/.ferrule"
}

# rename(2) onto a mount point fails with EBUSY; loopback is the last of the three.
test_what_was_exchanged_is_put_back_when_a_later_one_fails() {
    fake "$bin" old bridge loopback
    private mount_over_loopback install_fails "cannot exchange"
    gone "$bin/.ferrule"
    gone "$bin/host-local"
}
mount_over_loopback() { mount --bind "$bin/loopback" "$bin/loopback"; }

test_a_failed_update_leaves_the_earlier_installation() {
    fake "$bin" old bridge loopback
    cp -a "$bin" old
    succeeds --from v2
    cp "$bin/.ferrule/manifest" manifest
    private mount_over_loopback install_fails "cannot exchange"
    same manifest "$bin/.ferrule/manifest"
    succeeds --rollback
    same old/bridge "$bin/bridge"
}

# Programs that count their calls. At the selected call they either fail, or kill install.sh and do nothing.
make_faults() {
    local tool
    mkdir faults
    for tool in cp mv rm sync chmod mkdir; do
        cat >"faults/$tool" <<END
#!/bin/bash
read -r calls <"$work/calls"
echo \$((++calls)) >"$work/calls"
if [ "\$calls" -eq "\$FAULT_AT" ]; then
    [ "\$FAULT" != kill ] || kill -KILL "\$PPID"
    echo "$tool: told to fail" >&2
    exit 1
fi
exec $(command -v "$tool") "\$@"
END
        chmod 0755 "faults/$tool"
    done
}
faulty() {
    echo 0 >calls
    status=0
    FAULT=$1 FAULT_AT=$2 PATH=$work/faults:$PATH "$tree/install.sh" --bin-dir "$bin" "${@:3}" >out 2>err || status=$?
}

# Fails or kills install.sh at every step in turn; its arguments begin at $3, and other files are installed before. At
# every step each file is that of v1 or that of the folder $2.
each_step() {
    local step kind=$1 goal=$2
    shift 2
    make_faults
    fake old old bridge loopback
    cp -a old "$bin"
    succeeds --from v1
    was=$(visible "$bin")
    cp -a "$bin" start
    for ((step = 1; ; step++)); do
        [ "$step" -lt 200 ] || fail "there is no end to the steps"
        rm -rf "$bin"
        cp -a start "$bin"
        faulty "$kind" "$step" "$@"
        [ "$(<calls)" -ge "$step" ] || break
        for name in $all; do
            cmp -s "$bin/$name" "v1/$name" || cmp -s "$bin/$name" "$goal/$name" ||
                { [ ! -e "$bin/$name" ] && [ ! -e "$goal/$name" ]; } || fail "step $step: $name is neither old nor new"
        done
        after_fault "$step"
    done
    [ "$step" -gt 20 ] || fail "only $step steps: the faults are not reached"
    [ "$status" -eq 0 ] || fail "without a fault: status $status"
}

test_an_interrupted_installation_can_be_run_again_or_taken_back() {
    after_fault() {
        [ "$status" -eq 137 ] || fail "step $1: was not killed but: $status"
        rm -rf twin
        cp -a "$bin" twin
        succeeds --from v2
        for name in $all; do same "v2/$name" "$bin/$name"; done
        no_leftovers
        # A kill after the commit leaves the last state, and the second run had nothing to do.
        succeeds --rollback
        [ "$(visible "$bin")" = "$was" ] || fail "step $1: rollback leads elsewhere"
        rm -rf "$bin"
        mv twin "$bin"
        succeeds --uninstall
        [ "$(snapshot "$bin")" = "$(snapshot old)" ] || fail "step $1: uninstall leads elsewhere: $(snapshot "$bin")"
    }
    each_step kill v2 --from v2
}

test_an_interrupted_uninstall_can_be_run_again() {
    after_fault() {
        [ "$status" -eq 137 ] || fail "step $1: was not killed but: $status"
        succeeds --uninstall
        [ "$(snapshot "$bin")" = "$(snapshot old)" ] || fail "step $1: $(snapshot "$bin")"
    }
    each_step kill old --uninstall
}

test_an_installation_that_fails_anywhere_is_all_or_nothing() {
    after_fault() {
        if [ "$status" -eq 0 ]; then
            for name in $all; do same "v2/$name" "$bin/$name"; done
        else
            [ "$(visible "$bin")" = "$was" ] || fail "step $1: something changed: $(<err)"
            [ -s err ] || fail "step $1: fails without a word"
        fi
        succeeds --uninstall
        [ "$(snapshot "$bin")" = "$(snapshot old)" ] || fail "step $1: uninstall leads elsewhere: $(snapshot "$bin")"
    }
    each_step fail v2 --from v2
}

test_a_signal_restores_too() {
    fake "$bin" old bridge
    was=$(snapshot "$bin")
    mkdir slow
    # Replacing the second plugin takes long enough for the signal to arrive.
    cat >slow/mv <<END
#!/bin/bash
case \$* in *"$bin/host-local") kill -TERM \$PPID; sleep 0.3 ;; esac
exec $(command -v mv) "\$@"
END
    chmod 0755 slow/mv
    PATH=$work/slow:$PATH run --from v1
    [ "$status" -eq 143 ] || fail "status $status: $out $err"
    says "put back"
    [ "$(snapshot "$bin")" = "$was" ] || fail "something changed"
}

test_two_at_once_exclude_each_other() {
    mkdir "$bin"
    (
        exec 8<"$bin"
        flock 8
        run --from v1 --wait 1
        [ "$status" -eq 1 ] || fail "status $status"
        says "another install.sh is still at work"
        [ -z "$(ls -A "$bin")" ] || fail "something changed"
    ) || exit 1
    succeeds --from v1
}

test_many_at_once() {
    fake "$bin" old bridge
    was=$(snapshot "$bin")
    pids=()
    for round in v1 v2 v1 v2 v1 v2; do
        "$tree/install.sh" --bin-dir "$bin" --from "$round" --wait 60 >/dev/null 2>&1 &
        pids+=($!)
    done
    for pid in "${pids[@]}"; do wait "$pid" || fail "one failed"; done
    for round in v1 v2; do cmp -s "$bin/bridge" "$round/bridge" && break; done
    for name in $all; do same "$round/$name" "$bin/$name"; done
    no_leftovers
    succeeds --uninstall
    [ "$(snapshot "$bin")" = "$was" ] || fail "not as before"
}

# A real program, because only those can be "text file busy". An additional byte at its end makes it another one.
make_programs() {
    mkdir p1 p2
    cp "$reference/loopback" p1/loopback
    { cat "$reference/loopback" && echo more; } >p2/loopback && chmod 0755 p2/loopback
}
# Starts the plugin repeatedly until $work/stop exists. Prints one line for each failure.
keep_running() {
    local runs=0
    while [ ! -e "$work/stop" ]; do
        CNI_COMMAND=VERSION "$bin/loopback" <<<'{"cniVersion":"1.0.0"}' >"$work/answer.$1" 2>&1 &&
            [[ $(<"$work/answer.$1") == *supportedVersions* ]] || echo "$(<"$work/answer.$1")" >>"$work/failures"
        runs=$((runs + 1))
    done
    echo "$runs" >"$work/runs.$1"
}

test_a_runtime_never_meets_a_gap_in_50_installations() {
    make_programs
    succeeds --from p1 --plugins loopback
    : >failures
    keep_running 1 &
    keep_running 2 &
    for ((round = 1; round <= 25; round++)); do
        succeeds --from p2 --plugins loopback
        same p2/loopback "$bin/loopback"
        succeeds --from p1 --plugins loopback
    done
    succeeds --from p2 --plugins loopback
    succeeds --rollback
    : >stop
    wait
    [ ! -s failures ] || fail "$(wc -l <failures) failures, the first: $(head -n 1 failures)"
    for runner in 1 2; do
        read -r runs <"runs.$runner"
        [ "$runs" -gt 100 ] || fail "runner $runner came to no more than $runs runs"
    done
}

# The same observer must see the gaps of a plain copy. Otherwise the test above would prove nothing.
test_the_observer_sees_the_gap_of_a_plain_copy() {
    make_programs
    mkdir "$bin" && cp p1/loopback "$bin"
    : >failures
    keep_running 1 2>/dev/null &
    for ((round = 1; round <= 2000; round++)); do
        cp -f "p$((round % 2 + 1))/loopback" "$bin/loopback" 2>/dev/null
        [ ! -s failures ] || break
    done
    : >stop
    wait
    [ -s failures ] || fail "no failure in $round copies"
}

# ---------------------------------------------------------------------------------------------------------------
# Sources, packages, demo

test_the_list_of_plugins_is_the_folder() {
    [ "$("$tree/build.sh" --list)" = "$(ls "$tree/plugins/main")" ] || fail "--list: $("$tree/build.sh" --list)"
    mkdir "$tree/plugins/main/another" && : >"$tree/plugins/main/another/Cargo.toml"
    refuses 1 "v1/another is missing" --from v1
    fake v1 1.0.0 another
    succeeds --from v1
    same v1/another "$bin/another"
}

test_without_a_source_tree_names_are_needed() {
    rm -r "$tree/plugins" "$tree/build.sh"
    refuses 2 "give them with --plugins" --from v1
    succeeds --from v1 --plugins "bridge,loopback"
    same v1/loopback "$bin/loopback"
}

test_without_from_it_builds() {
    cat >"$tree/build.sh" <<END
#!/bin/sh
[ "\$1" != --list ] || { echo bridge; exit; }
echo building >&2
echo "$work/v1"
END
    printf '[workspace.package]\nversion = "7.8.9"\n\n[other]\nversion = "1"\n' >"$tree/Cargo.toml"
    sed -i 's/plugin v1.0.0/plugin/' v1/bridge
    succeeds
    same v1/bridge "$bin/bridge"
    manifest_has '^plugin bridge .* 7.8.9$'
    # shellcheck disable=SC2016 # for the script to expand
    printf '#!/bin/sh\n[ "$1" = --list ] && echo bridge\n' >"$tree/build.sh"
    refuses 1 "the build failed"
}

test_the_demo_gets_the_folder() {
    refuses 1 "no examples/demo.sh" --from v1 --demo
    mkdir "$tree/examples"
    # shellcheck disable=SC2016 # for the demo to expand
    printf '#!/bin/sh\necho "demo of $*"\ntest -x "$2/bridge"\n' >"$tree/examples/demo.sh"
    chmod 0755 "$tree/examples/demo.sh"
    succeeds --from v1 --demo
    says "demo of --bin-dir $bin --runner "
    echo 'exit 5' >>"$tree/examples/demo.sh"
    run --from v1 --demo
    [ "$status" -eq 5 ] || fail "a failing demo: status $status"
    same v1/bridge "$bin/bridge"
}

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
    gone "$bin"
}

test_packages_only_those_missing() {
    make_debian
    printf 'jq\nnftables\n' >missing
    succeeds --deps-only --dry-run
    says "would install"
    [ ! -s apt ] || fail "apt-get was called: $(<apt)"
    succeeds --from v1 --with-deps
    [ "$(<apt)" = "install --yes --no-install-recommends jq nftables" ] || fail "apt-get was called with: $(<apt)"
    same v1/bridge "$bin/bridge"
}

test_packages_lists_are_fetched_only_when_needed() {
    make_debian
    echo jq >missing
    : >stale
    succeeds --deps-only
    [ "$(cut -d' ' -f1 apt | tr '\n' ' ')" = "install update install " ] || fail "apt-get was called with: $(<apt)"
    rm updated
    printf '#!/bin/sh\nexit 100\n' >debian/apt-get
    refuses 1 "apt-get cannot install jq" --from v1 --with-deps
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
    PATH=$work/tools refuses 1 "knows Debian and its derivatives only" --from v1 --with-deps
}

# ---------------------------------------------------------------------------------------------------------------

passed=0 failed=0

mapfile -t tests < <(declare -F | sed -n 's/^declare -f test_//p')
if [ $# -gt 0 ]; then
    tests=("$@")
fi
for test in "${tests[@]}"; do
    work=$base/$test tree=$base/$test/tree bin=$base/$test/bin
    mkdir -p "$tree"
    cp "$root/install.sh" "$root/build.sh" "$tree"
    for name in bridge host-local loopback; do
        mkdir -p "$tree/plugins/main/$name" && : >"$tree/plugins/main/$name/Cargo.toml"
    done
    all="bridge host-local loopback"
    fake "$work/v1" 1.0.0 bridge host-local loopback
    fake "$work/v2" 2.0.0 bridge host-local loopback
    if (cd "$work" && "test_$test") >"$base/output" 2>&1; then
        passed=$((passed + 1))
        echo "ok - ${test//_/ }"
    else
        failed=$((failed + 1))
        echo "not ok - ${test//_/ }"
        cat "$base/output"
    fi
    rm -rf -- "$work"
done
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
