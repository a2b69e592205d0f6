#!/usr/bin/env bash
# Installs the Ferrule CNI plugins on a node, rolls an installation back, or removes the plugins. --help has the options.
#
# Runtimes start plugins at any time. So a plugin's file changes only by rename(2), from a complete file beside it. An
# installation first writes its changes to a journal. If it fails, or is killed and then run again, it reads the journal
# and restores the files.
#
# "A && B || C" is intended: C runs if A or B fails.
# shellcheck disable=SC2015
set -euo pipefail
export LC_ALL=C
umask 022

here=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")" && pwd -P)

# For --with-deps: names of Debian packages. After a colon: a program that may come from elsewhere. If it exists, the
# package is not installed, because it could replace that program.
build_packages=(gcc libc6-dev)
test_packages=(
    busybox-static containerd:containerd containernetworking-plugins cpio curl dbus firewalld iperf3 iproute2 ipset iptables iputils-ping
    ipvsadm jq kmod nftables podman:podman qemu-system-x86 runc:runc shellcheck strace tcpdump util-linux xz-utils
)

usage() {
    cat <<'END'
Usage: ./install.sh [--from DIR] [--bin-dir DIR] [--plugins "NAME ..."] [--demo]
       ./install.sh --rollback | --uninstall [--bin-dir DIR] [--plugins "NAME ..."]
                    [--force] [--host-ports TO]
       ./install.sh --deps-only

Installs the Ferrule CNI plugins where container runtimes look for them. It is safe
on a running node: a runtime always finds the complete old program or the complete new
one. The script first runs every new plugin with the command VERSION. If a step fails,
it restores the files that it has already replaced.

What to install
  --from DIR          install the programs in DIR (default: build them with build.sh)
  --plugins "NAME .." only these plugins (default: all)
  --bin-dir DIR       the folder to install into (default: /opt/cni/bin)

Going back
  --rollback          restore the files that the last installation replaced; these
                      may be an earlier Ferrule
  --uninstall         restore the files from before the first installation, remove
                      files that did not exist then, and delete the records
  --force             also restore files that have changed since the installation;
                      without it they stay, and the exit status is 3
  --host-ports TO     where the host ports of running pods go when portmap is replaced:
                      to the backend iptables or nftables of the reference plugin, or
                      nowhere with keep (default: iptables if the node has it, else
                      nftables, as the reference plugin chooses; if your configuration
                      says nftables, use --host-ports nftables)

More
  --dry-run           check everything, print the steps, change nothing
  --wait SECONDS      how long to wait for another install.sh that works on the same
                      folder (default: 30)
  --demo              after installing, run examples/demo.sh with the new plugins
  --with-deps         first install the Debian packages to build and test Ferrule
  --deps-only         only install these packages
  -h, --help          print this

BIN_DIR/.ferrule has the replaced files, and a manifest in plain text. If an
installation was interrupted, run the command again: it first restores the files that
the interrupted one replaced.

Host ports move before any file changes, and again afterwards, for pods that started
in the meantime. They work all the time, even if a step fails: each portmap removes
the host ports that it received, and Ferrule's also removes the reference's.

Exit status: 0 done, or nothing to do; 1 failed, no file has changed; 2 wrong usage;
3 done, except for files that have changed since the installation, or for host ports
that had to stay in Ferrule's table.
END
}

say() { printf '%s\n' "$*"; }
note() { printf 'install.sh: %s\n' "$*" >&2; }
die() { note "$*"; exit 1; }
misuse() { note "$*; see ./install.sh --help"; exit 2; }

# ---------------------------------------------------------------------------------------------------------------
# Packages

install_packages() {
    local wanted package program missing=()
    if ! command -v apt-get >/dev/null || ! command -v dpkg-query >/dev/null; then
        wanted="${build_packages[*]} ${test_packages[*]%:*}"
        die "--with-deps knows Debian and its derivatives only. Install what matches these packages by hand: $wanted"
    fi
    for wanted in "${build_packages[@]}" "${test_packages[@]}"; do
        package=${wanted%:*} program=${wanted#"$package"} program=${program#:}
        [ -z "$program" ] || ! command -v "$program" >/dev/null || continue
        [ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null || true)" = installed ] ||
            missing+=("$package")
    done
    if [ ${#missing[@]} -eq 0 ]; then
        say "packages: none is missing"
    elif [ "$dry_run" ]; then
        say "packages: would install ${missing[*]}"
    else
        [ "$(id -u)" -eq 0 ] || die "only root can install packages; missing: ${missing[*]}"
        say "packages: installing ${missing[*]}"
        # Update the package lists only if the present ones do not lead to the packages.
        apt_install "${missing[@]}" || { apt-get update >&2 && apt_install "${missing[@]}"; } ||
            die "apt-get cannot install ${missing[*]}; what it says is above"
    fi
}

apt_install() {
    DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends "$@" >&2
}

# ---------------------------------------------------------------------------------------------------------------
# The plugins in a folder

# Prints the fingerprint of a path: "none", the SHA-256 of a file's content, or that of a symbolic link's target.
fingerprint() {
    local sum
    if [ -L "$1" ]; then
        sum=$(readlink -- "$1" | sha256sum) || die "cannot read the link $1"
        printf 'link-%s\n' "${sum%% *}"
    elif [ ! -e "$1" ]; then
        echo none
    elif [ -f "$1" ]; then
        sum=$(sha256sum <"$1") || die "cannot read $1"
        printf '%s\n' "${sum%% *}"
    else
        die "$1 is neither a file nor a link; what is it doing there?"
    fi
}

# Runs a plugin without our environment, lock and standard input.
run_plugin() {
    local program=$1
    shift
    timeout --kill-after=1 10 env -i PATH="$PATH" "$@" "$program" 9>&-
}

check_machine() {
    local header want
    case $(uname -m) in
    x86_64) want=3e00 ;;
    aarch64) want=b700 ;;
    *) return 0 ;;
    esac
    header=$(od -An -v -tx1 -N20 -- "$1" | tr -d ' \n')
    [ "${header:0:8}" = 7f454c46 ] || return 0
    [ "${header:36:4}" = "$want" ] || die "$1 is built for another machine than this $(uname -m)"
}

# Checks that a plugin answers VERSION on this machine, called as a runtime calls it.
check_plugin() {
    local answer status=0
    [ -e "$1" ] || die "$1 is missing"
    [ -f "$1" ] || die "$1 is not a file"
    [ -r "$1" ] || die "$1 cannot be read"
    check_machine "$1"
    [ -x "$1" ] || die "$1 is not executable, or is on a file system mounted noexec"
    answer=$(run_plugin "$1" CNI_COMMAND=VERSION CNI_NETNS=dummy CNI_IFNAME=dummy CNI_PATH=dummy \
        <<<'{"cniVersion":"1.0.0"}' 2>/dev/null | tr -d '\0') || status=$?
    [ "$status" -ne 124 ] || die "$1 does not answer VERSION within 10 seconds"
    [ "$status" -eq 0 ] || die "$1 fails at VERSION with status $status: ${answer:-no output on stdout}"
    case $(tr -d '[:space:]' <<<"$answer") in
    '{'*'"supportedVersions":["'*']'*'}') ;;
    *) die "$1 does not answer VERSION with supportedVersions but with: ${answer:-nothing}" ;;
    esac
}

# The version that a program prints without CNI variables; if it prints none, the version of the source tree.
plugin_version() {
    local words
    words=$(run_plugin "$1" </dev/null 2>&1 | tr -d '\0' | head -n 1 | grep -oE 'v?[0-9]+\.[0-9]+\.[0-9]+[^[:space:],]*') || true
    words=${words%%$'\n'*}
    printf '%s\n' "${words:-$tree_version}"
}

# ---------------------------------------------------------------------------------------------------------------
# The state folder: manifest, journal, saved files
#
#   manifest   plugin NAME ORIGINAL INSTALLED VERSION   one for each installed plugin: the fingerprints of the file from
#                                                       before Ferrule and of ours
#              last NAME REPLACED INSTALLED VERSION     one for each plugin of the last installation: the fingerprint of
#                                                       the replaced file, and the earlier plugin line ("-" for none)
#   journal    commits SUM                              the change is complete if the manifest has this SHA-256
#              swap NAME BEFORE AFTER                   one for each file that changes
#   saved/     NAME.FINGERPRINT

declare -A original=() installed=() version=()
declare -A last_replaced=() last_installed=() last_version=()

load_manifest() {
    local kind name one two three
    [ -f "$state/manifest" ] || return 0
    while read -r kind name one two three; do
        case $kind in
        plugin) original[$name]=$one installed[$name]=$two version[$name]=$three ;;
        last) last_replaced[$name]=$one last_installed[$name]=$two last_version[$name]=$three ;;
        '#' | '') ;;
        format) [ "$name" = 1 ] || die "$state/manifest is of a newer install.sh (format $name)" ;;
        *) die "$state/manifest is damaged: '$kind $name'" ;;
        esac
    done <"$state/manifest"
}

print_manifest() {
    local name
    cat <<'END'
# Written by Ferrule's install.sh, which needs it for --rollback and --uninstall.
# plugin NAME ORIGINAL INSTALLED VERSION: SHA-256 of the file before Ferrule ("none": no file), and of ours
# last NAME REPLACED INSTALLED VERSION: what the last installation replaced, and the plugin line until then
format 1
END
    for name in $(sorted "${!installed[@]}"); do
        say "plugin $name ${original[$name]} ${installed[$name]} ${version[$name]}"
    done
    for name in $(sorted "${!last_replaced[@]}"); do
        say "last $name ${last_replaced[$name]} ${last_installed[$name]} ${last_version[$name]}"
    done
}

sorted() { [ $# -eq 0 ] || printf '%s\n' "$@" | sort -u; }

# Saves a copy of the plugin that is in the folder now. Not a hard link: a later write into the file would change the
# saved one too.
save() {
    local name=$1 print=$2 kept=$state/saved/$1.$2
    [ "$print" != none ] || return 0
    [ "$(fingerprint "$kept")" != "$print" ] || return 0
    cp -a -- "$bin/$name" "$kept.part" || die "cannot keep a copy of $bin/$name"
    [ "$(fingerprint "$kept.part")" = "$print" ] || die "$bin/$name changed while it was being copied"
    [ -L "$kept.part" ] || sync -- "$kept.part" || die "cannot write $kept.part"
    mv -fT -- "$kept.part" "$kept" || die "cannot rename $kept.part"
}

# Under its own name, because the program selects the plugin by its file name.
staged() { printf '%s\n' "$new_files/$1"; }

# Prepares a saved file. By a hard link if possible, because restoring must work on a full disk too.
stage_saved() {
    local name=$1 print=$2 kept=$state/saved/$1.$2 new
    [ "$print" != none ] || return 0
    new=$(staged "$name")
    [ "$(fingerprint "$kept")" = "$print" ] || { note "$kept is missing or damaged"; return 1; }
    mkdir -p -- "$new_files" && rm -f -- "$new" && { ln -P -- "$kept" "$new" 2>/dev/null || cp -a -- "$kept" "$new"; }
}

# Names of one program become links of one file. bridge then calls host-local without starting a process.
declare -A file_of=()
stage_new() {
    local name=$1 source=$2 print=$3 new
    new=$(staged "$name")
    mkdir -p -- "$new_files" || die "cannot make $new_files"
    if [ "${file_of[$print]-}" ]; then
        ln -fP -- "${file_of[$print]}" "$new" || die "cannot link $new to ${file_of[$print]}"
    else
        cp -- "$source" "$new" || die "cannot copy $source into $bin"
        chmod 0755 -- "$new" || die "cannot set the mode of $new"
        sync -- "$new" || die "cannot write $new"
        file_of[$print]=$new
    fi
    [ "$(fingerprint "$new")" = "$print" ] || die "$source changed while it was being copied"
    check_plugin "$new"
}

# Replaces the file by one rename(2), or removes it by one unlink(2) if there was none before.
exchange() {
    local name=$1 print=$2
    if [ "$print" = none ]; then
        rm -f -- "$bin/$name"
    else
        mv -fT -- "$(staged "$name")" "$bin/$name"
    fi
}

# Restores the files that the journal names. A failure does not end the script; every file is tried.
undo() {
    local kind name before after now failed=
    while read -r kind name before after; do
        [ "$kind" = swap ] && [ "$before" != "$after" ] || continue
        now=$(fingerprint "$bin/$name") || { failed=1; continue; }
        [ "$now" = "$after" ] || continue
        if stage_saved "$name" "$before" && exchange "$name" "$before"; then
            note "$name: put back"
        else
            note "$name: CANNOT be put back; what was there is kept as $state/saved/$name.$before"
            failed=1
        fi
    done <"$state/journal"
    [ -z "$failed" ] || return 1
    sync -- "$bin" || true
    rm -f -- "$state/journal"
}

# Cleans up after an earlier run that was killed.
recover() {
    local kind sum _
    if [ -f "$state/journal" ]; then
        read -r kind sum _ <"$state/journal" || true
        if [ "$kind" = commits ] && [ -f "$state/manifest" ] && [ "$(fingerprint "$state/manifest")" = "$sum" ]; then
            rm -f -- "$state/journal"
        else
            note "an earlier run was interrupted; putting back what it had exchanged"
            undo || die "the state before the interrupted run cannot be restored"
        fi
    fi
    tidy
}

# Removes incomplete files, saved files that the manifest does not name, and an empty state folder.
tidy() {
    local file name print keep
    rm -rf -- "$new_files"
    [ -d "$state" ] || return 0
    [ ! -e "$state/journal" ] || return 0
    rm -f -- "$state"/*.part
    if [ ! -f "$state/manifest" ] || ! grep -q '^plugin ' "$state/manifest"; then
        rm -rf -- "$state"
        return 0
    fi
    for file in "$state"/saved/*; do
        [ -e "$file" ] || [ -L "$file" ] || continue
        name=${file##*/}
        print=${name##*.}
        name=${name%.*}
        keep=$(awk -v name="$name" -v print_="$print" '$2 == name && $3 == print_' "$state/manifest")
        [ "$keep" ] || rm -f -- "$file"
    done
}

# Replaces all files or none. Arguments: the names of the plugins that change. Expects the new files in the staging
# folder, the fingerprints in before[] and after[], and the manifest's arrays in their new state.
declare -A before=() after=()
transact() {
    local name now
    mkdir -p -- "$state/saved" || die "cannot make $state"
    for name in "$@"; do
        save "$name" "${before[$name]}"
    done
    print_manifest >"$state/manifest.part" && sync -- "$state/manifest.part" || die "cannot write $state/manifest.part"
    {
        say "commits $(fingerprint "$state/manifest.part")"
        for name in "$@"; do
            say "swap $name ${before[$name]} ${after[$name]}"
        done
    } >"$state/journal.part" && sync -- "$state/journal.part" "$state/saved" || die "cannot write $state/journal.part"
    in_flight=1
    mv -fT -- "$state/journal.part" "$state/journal" && sync -- "$state" || die "cannot write $state/journal"

    for name in "$@"; do
        now=$(fingerprint "$bin/$name")
        [ "$now" = "${before[$name]}" ] || die "$bin/$name has just been changed by somebody else"
        exchange "$name" "${after[$name]}" || die "cannot exchange $bin/$name"
    done
    sync -- "$bin" || die "cannot write $bin"
    mv -fT -- "$state/manifest.part" "$state/manifest" || die "cannot write $state/manifest"
    in_flight=
    # The change is complete. If one of these steps fails, the next run repeats it.
    sync -- "$state" && rm -f -- "$state/journal" && tidy || note "$state could not be cleaned up"
}

# ---------------------------------------------------------------------------------------------------------------
# Start and end

in_flight='' locked=''
made_dirs=()

finish() {
    local status=$? index
    trap - EXIT
    trap '' INT TERM HUP
    set +e
    if [ "$locked" ]; then
        if [ "$in_flight" ] && [ -f "$state/journal" ]; then
            note "putting back what was already exchanged"
            undo || status=1
        fi
        tidy
    fi
    if [ "$status" -ne 0 ]; then
        for ((index = ${#made_dirs[@]} - 1; index >= 0; index--)); do
            rmdir -- "${made_dirs[index]}" 2>/dev/null
        done
    fi
    exit "$status"
}

# Reports a folder that cannot be written, before the build.
check_bin_dir() {
    local there=$bin
    [ ! -e "$bin" ] || [ -d "$bin" ] || die "$bin is not a folder"
    [ ! -L "$state" ] || die "$state is a link and not a folder"
    [ ! -e "$state" ] || [ -d "$state" ] || die "$state is not a folder"
    while [ ! -e "$there" ]; do
        there=$(dirname "$there")
    done
    [ -d "$there" ] || die "$there is not a folder"
    [ "$dry_run" ] || [ -w "$there" ] || {
        [ "$(id -u)" -eq 0 ] || die "$there is not writable for you; run this as root, or name another --bin-dir"
        die "$there is not writable; is its file system mounted read-only?"
    }
}

make_bin_dir() {
    local there=$bin missing=() index
    while [ ! -e "$there" ]; do
        missing+=("$there")
        there=$(dirname "$there")
    done
    for ((index = ${#missing[@]} - 1; index >= 0; index--)); do
        mkdir -- "${missing[index]}" || die "cannot make ${missing[index]}"
        made_dirs+=("${missing[index]}")
    done
}

# Locks the folder itself, which leaves no lock file behind. File descriptor 9 stays open until the end.
lock() {
    exec 9<"$bin" || die "cannot open $bin"
    if ! flock --nonblock 9; then
        note "another install.sh is at work on $bin; waiting up to $wait seconds"
        flock --timeout "$wait" 9 || die "another install.sh is still at work on $bin; try again later"
    fi
    locked=1
    recover
}

# ---------------------------------------------------------------------------------------------------------------
# The three verbs

# Sets names: the plugins to install.
find_plugins() {
    local listed name
    if [ "$plugins" ]; then
        read -r -d '' -a names < <(printf '%s\0' "${plugins//,/ }") || true
        [ ${#names[@]} -gt 0 ] || misuse "--plugins names none"
        for name in "${names[@]}"; do
            # No dot and no slash, because the names become file names.
            [[ $name =~ ^[a-z0-9][a-z0-9_-]*$ ]] || misuse "'$name' is no name of a plugin"
        done
        mapfile -t names < <(sorted "${names[@]}")
    elif [ -d "$here/plugins" ]; then
        mapfile -t names < <("$here/build.sh" --list)
    else
        misuse "there is no source tree beside install.sh to tell the plugins' names: give them with --plugins"
    fi
    [ ${#names[@]} -gt 0 ] || die "there are no plugins in this source tree"
    [ -n "$from" ] || {
        listed=$("$here/build.sh" --list)
        for name in "${names[@]}"; do
            grep -qxF -- "$name" <<<"$listed" || misuse "there is no plugin '$name' in this source tree"
        done
    }
}

find_programs() {
    if [ -n "$from" ]; then
        [ -d "$from" ] || die "--from $from: there is no such folder"
        source_dir=$(cd "$from" && pwd -P)
    else
        source_dir=$("$here/build.sh") || die "the build failed"
        tree_version=$(sed -n '/^\[workspace\.package\]/,/^\[/s/^version *= *"\(.*\)".*/\1/p' "$here/Cargo.toml")
    fi
}

install_plugins() {
    local name now todo=()
    local -A sum=() says=()
    find_plugins
    find_programs
    for name in "${names[@]}"; do
        check_plugin "$source_dir/$name"
        sum[$name]=$(fingerprint "$(readlink -f -- "$source_dir/$name")")
        says[$name]=$(plugin_version "$source_dir/$name")
    done

    if [ -z "$dry_run" ]; then
        make_bin_dir
        lock
    fi
    load_manifest
    for name in "${names[@]}"; do
        now=$(fingerprint "$bin/$name")
        if [ "${installed[$name]-}" = "$now" ] && [ "$now" = "${sum[$name]}" ] && [ -x "$bin/$name" ]; then
            say "$name: is installed already"
            file_of[$now]=$bin/$name
            continue
        fi
        todo+=("$name")
        before[$name]=$now after[$name]=${sum[$name]}
        if [ "$now" = none ]; then
            say "$name: ${would}install ${says[$name]}"
        elif [ "${installed[$name]-}" = "$now" ]; then
            say "$name: ${would}install ${says[$name]} in place of ours of before (${version[$name]})"
        elif [ "${installed[$name]-}" ]; then
            say "$name: ${would}install ${says[$name]} in place of a file that is not what we installed last"
        else
            say "$name: ${would}install ${says[$name]} and keep what is there now"
        fi
    done
    if [ ${#todo[@]} -eq 0 ]; then
        say "Nothing to do in $bin."
        return
    fi
    [ -z "$dry_run" ] || return 0

    last_replaced=() last_installed=() last_version=()
    for name in "${todo[@]}"; do
        stage_new "$name" "$source_dir/$name" "${sum[$name]}"
        last_replaced[$name]=${before[$name]}
        last_installed[$name]=${installed[$name]:--}
        last_version[$name]=${version[$name]:--}
        original[$name]=${original[$name]:-${before[$name]}}
        installed[$name]=${sum[$name]}
        version[$name]=${says[$name]}
    done
    transact "${todo[@]}"
    say "Installed in $bin: ${todo[*]}."
}

# Sets names: the plugins to restore, of those that can be restored ($@).
select_kept() {
    local name
    mapfile -t names < <(sorted "$@")
    [ "$plugins" ] || return 0
    local known=" ${names[*]} "
    read -r -d '' -a names < <(printf '%s\0' "${plugins//,/ }") || true
    for name in "${names[@]}"; do
        [[ $known == *" $name "* ]] || die "$name: there is nothing to take back in $bin"
    done
    mapfile -t names < <(sorted "${names[@]}")
}

# Decides whether one plugin changes from our file ($2) to the earlier one ($3). Adds its name to todo or left.
plan_return() {
    local name=$1 ours=$2 goal=$3 now
    now=$(fingerprint "$bin/$name")
    if [ "$now" != "$goal" ] && [ "$now" != "$ours" ] && [ -z "$force" ]; then
        note "$name: left alone, since somebody has changed it after it was installed; --force takes it back all the same"
        left+=("$name")
        return
    fi
    settled+=("$name")
    # A file with the same content as ours may have another mode or owner, so it is restored too.
    if [ "$now" = "$goal" ] && [ "$now" != "$ours" ]; then
        say "$name: is already what it was before"
        return
    fi
    todo+=("$name")
    before[$name]=$now after[$name]=$goal
    if [ "$goal" = none ]; then
        say "$name: ${would}remove"
    else
        say "$name: ${would}put back what was there before"
    fi
}

# The reference's portmap does not know the table with our host ports. So our portmap exports them before its file
# changes, and again afterwards, for pods that started in the meantime. File descriptor 8 keeps the program open for that.
leaving='' stayed=''

# Called if another program replaces our portmap ($1). Opens a program that can export the host ports.
portmap_leaves() {
    local name
    [ "$host_ports" != keep ] && [[ " ${settled[*]} " == *' portmap '* ]] || return 0
    # Only root can read the tables. Without root this is no node with pods.
    [ "$(id -u)" -eq 0 ] || return 0
    # Every name leads to the same program.
    for name in "${todo[@]}"; do
        [ "${before[$name]}" = "$1" ] || continue
        exec 8<"$bin/$name" || die "cannot open $bin/$name"
        leaving=1
        break
    done
    if [ -z "$leaving" ]; then
        note "portmap: the program that could hand over the host ports of running pods is not there any more"
        stayed=1
    fi
}

hand_over() {
    local line said status=0 arguments=("$@")
    [ "$leaving" ] || return 0
    # Without --to, portmap chooses as the reference does: iptables if the node has it.
    [ "$host_ports" = auto ] || arguments+=(--to "$host_ports")
    # shellcheck disable=SC2016 # for the shell inside to expand
    said=$(timeout --kill-after=1 300 env -i PATH="$PATH" \
        bash -c 'exec -a portmap /proc/self/fd/8 hand-back "$@" 2>&1' - "${arguments[@]}" 9>&-) || status=$?
    while read -r line; do
        case $status:$line in
        *:) ;;
        [03]:*' stay: '*) note "portmap: $line" ;;
        [03]:*) say "portmap: ${would}hand over $line" ;;
        *) note "portmap: $line" ;;
        esac
    done <<<"$said"
    [ "$status" -ne 3 ] || stayed=1
    [ "$status" -eq 0 ] || [ "$status" -eq 3 ]
}

# The last part of --rollback and --uninstall: prepares the files, exchanges them, reports. The caller has set the
# manifest's arrays.
carry_out_return() {
    local name
    if [ "$dry_run" ]; then
        hand_over --dry-run || stayed=1
        return
    fi
    for name in "${todo[@]}"; do
        stage_saved "$name" "${after[$name]}" || die "$name cannot be put back"
    done
    [ ${#settled[@]} -gt 0 ] || return 0
    hand_over || die "host ports of running pods cannot be handed over (see above), so nothing is put back;" \
        "with --host-ports keep they stay where they are"
    transact "${todo[@]}"
    hand_over || stayed=1
    say "Done in $bin: ${settled[*]}."
}

open_kept() {
    if [ -z "$dry_run" ] && [ -d "$bin" ]; then
        lock
    fi
    load_manifest
}

roll_back() {
    local name
    todo=() left=() settled=()
    open_kept
    [ ${#last_replaced[@]} -gt 0 ] || die "there is no installation in $bin to roll back"
    select_kept "${!last_replaced[@]}"
    for name in "${names[@]}"; do
        plan_return "$name" "${installed[$name]}" "${last_replaced[$name]}"
    done
    # An earlier Ferrule knows our table.
    [ "${last_installed[portmap]-}" != - ] || portmap_leaves "${installed[portmap]}"
    for name in "${settled[@]}"; do
        if [ "${last_installed[$name]}" = - ]; then
            unset "original[$name]" "installed[$name]" "version[$name]"
        else
            installed[$name]=${last_installed[$name]} version[$name]=${last_version[$name]}
        fi
        unset "last_replaced[$name]" "last_installed[$name]" "last_version[$name]"
    done
    carry_out_return
    [ ${#left[@]} -eq 0 ] && [ -z "$stayed" ] || exit 3
}

uninstall() {
    local name
    todo=() left=() settled=()
    open_kept
    if [ ${#installed[@]} -eq 0 ]; then
        [ -z "$plugins" ] || note "--plugins $plugins: none of them is installed"
        say "Nothing to do: Ferrule is not installed in $bin."
        return
    fi
    select_kept "${!installed[@]}"
    for name in "${names[@]}"; do
        plan_return "$name" "${installed[$name]}" "${original[$name]}"
    done
    portmap_leaves "${installed[portmap]-}"
    for name in "${settled[@]}"; do
        unset "original[$name]" "installed[$name]" "version[$name]"
        unset "last_replaced[$name]" "last_installed[$name]" "last_version[$name]"
    done
    carry_out_return
    [ ${#left[@]} -eq 0 ] && [ -z "$stayed" ] || exit 3
}

# ---------------------------------------------------------------------------------------------------------------

verb=install bin=/opt/cni/bin from='' plugins='' wait=30 host_ports=auto
dry_run='' force='' demo='' deps='' would=''
tree_version=unknown

choose() {
    [ "$verb" = install ] || [ "$verb" = "$1" ] || misuse "--$verb and --$1 exclude each other"
    verb=$1
}

while [ $# -gt 0 ]; do
    case $1 in
    --from=* | --bin-dir=* | --plugins=* | --wait=* | --host-ports=*)
        set -- "${1%%=*}" "${1#*=}" "${@:2}"
        continue
        ;;
    --from | --bin-dir | --plugins | --wait | --host-ports)
        [ $# -ge 2 ] && [ -n "$2" ] || misuse "$1 needs a value"
        case $1 in
        --from) from=$2 ;;
        --bin-dir) bin=$2 ;;
        --plugins) plugins=$2 ;;
        --wait) wait=$2 ;;
        --host-ports) host_ports=$2 ;;
        esac
        shift
        ;;
    --rollback | --uninstall | --deps-only) choose "${1#--}" ;;
    --with-deps) deps=1 ;;
    --dry-run) dry_run=1 would='would ' ;;
    --force) force=1 ;;
    --demo) demo=1 ;;
    -h | --help)
        usage
        exit
        ;;
    *) misuse "unknown option '$1'" ;;
    esac
    shift
done

[[ $wait =~ ^[0-9]+$ ]] || misuse "--wait wants a number of seconds, not '$wait'"
[ "$verb" = install ] || [ -z "$from$demo$deps" ] || misuse "--from, --demo and --with-deps belong to an installation"
[[ $host_ports =~ ^(auto|iptables|nftables|keep)$ ]] || misuse "--host-ports wants iptables, nftables or keep"
[ "$verb" != install ] || [ "$host_ports" = auto ] || misuse "--host-ports belongs to --rollback and --uninstall"
[ -z "$demo" ] || [ -z "$dry_run" ] || misuse "--demo and --dry-run exclude each other"
[ -z "$demo" ] || [ -f "$here/examples/demo.sh" ] || die "there is no examples/demo.sh beside install.sh"
for tool in awk cp env flock grep mv od readlink realpath sha256sum sync timeout; do
    command -v "$tool" >/dev/null || die "the program '$tool' is needed and not there"
done

[ -z "$deps" ] && [ "$verb" != deps-only ] || install_packages
[ "$verb" != deps-only ] || exit 0

bin=$(realpath -m -- "$bin")
state=$bin/.ferrule
# On the same file system as the files that it replaces.
new_files=$bin/.ferrule-new
check_bin_dir
trap finish EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM

case $verb in
install) install_plugins ;;
rollback) roll_back ;;
uninstall) uninstall ;;
esac

if [ "$demo" ]; then
    exec 9>&-
    locked=
    # cnirun is not a plugin, so it is not installed.
    "$here/examples/demo.sh" --bin-dir "$bin" --runner "$source_dir/cnirun"
fi
