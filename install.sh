#!/usr/bin/env bash
# Builds Ferrule and installs it on a node by its own command line, `ferrule install`. Also installs the Debian packages
# that the build and the tests need. --help has the options.
# shellcheck disable=SC2015 # "A && B || C" is intended: C runs if A or B fails.
set -euo pipefail
export LC_ALL=C

here=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")" && pwd -P)

# Names of Debian packages: for the build and the demo, and for the tests in addition. After a colon: a program that may come
# from elsewhere. If it exists, the package is not installed, because it could replace that program.
packages=(gcc libc6-dev iperf3 iproute2 iputils-ping nftables util-linux)
test_packages=(
    busybox-static containerd:containerd containernetworking-plugins cpio curl dbus dnsmasq-base ethtool firewalld ipset iptables ipvsadm jq
    kmod lowdown podman:podman python3-venv python3-yaml qemu-system-x86 rpm runc:runc shellcheck strace tcpdump wireguard-tools
    xz-utils
)

usage() {
    cat <<'END'
Usage: ./install.sh [--from DIR] [--demo] [OPTIONS]
       ./install.sh --rollback | --uninstall [OPTIONS]
       ./install.sh --deps-only

Builds Ferrule with build.sh and installs it with `ferrule install`, or goes back with
`ferrule rollback` or `ferrule uninstall`.

  --from DIR          install the programs in DIR instead of building them
  --rollback          restore the files that the last installation replaced
  --uninstall         restore the files from before the first installation
  --demo              after installing, run examples/demo.sh with the new plugins
  --with-deps         first install the Debian packages for the build and the demo
  --deps-only         only install these packages and those for the tests
  --daemons           build ferrule-dhcp, ferrule-nic and ferrule-node too, as with --plugins that
                      names dhcp or host-device
  -h, --help          print this

Options of `ferrule`; `ferrule install --help` and `ferrule rollback --help` explain them:
  --bin-dir DIR   --plugins "NAME .."   --dry-run   --wait SECONDS
  --force   --host-ports iptables|nftables|keep   --conf-dir DIR   --data-dir DIR

To go back, the script runs DIR/ferrule of --from, else BIN_DIR/ferrule, else it builds one.

Exit status: 0 done, or nothing to do; 1 failed, no file has changed; 2 wrong usage;
3 done, except for files that have changed since the installation, or for host ports
that had to stay in Ferrule's table.
END
}

say() { printf '%s\n' "$*"; }
note() { printf 'install.sh: %s\n' "$*" >&2; }
die() { note "$*"; exit 1; }
misuse() { note "$*; see ./install.sh --help"; exit 2; }

install_packages() {
    local wanted package program missing=()
    if ! command -v apt-get >/dev/null || ! command -v dpkg-query >/dev/null; then
        die "--with-deps knows Debian and its derivatives only. Install what matches these packages by hand: ${packages[*]%:*}"
    fi
    for wanted in "${packages[@]}"; do
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

apt_install() { DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends "$@" >&2; }

# Whether a folder has the command line. An older Ferrule has only the plugins.
has_tool() { [ -f "$1/ferrule" ] && [[ "$("$1/ferrule" version 2>/dev/null)" == 'ferrule v'* ]]; }

build() {
    [ -x "$here/build.sh" ] || die "there is no program ferrule, and no build.sh beside install.sh to build one"
    programs=$("$here/build.sh" "${build_options[@]}") || die "the build failed"
}

# Sets programs: the folder with the command line to run.
find_tool() {
    if [ -n "$from" ]; then
        [ -d "$from" ] || die "--from $from: there is no such folder"
        programs=$from
        has_tool "$from" && return
    fi
    # Only a build installs itself.
    [ "$verb$from" != install ] || { build && return; }
    programs=$bin
    has_tool "$bin" || build
}

verb=install bin=/opt/cni/bin from='' dry_run='' demo='' deps='' options=() build_options=(--no-daemons)

choose() {
    [ "$verb" = install ] || [ "$verb" = "$1" ] || misuse "--$verb and --$1 exclude each other"
    verb=$1
}

while [ $# -gt 0 ]; do
    case $1 in
    --*=*)
        set -- "${1%%=*}" "${1#*=}" "${@:2}"
        continue
        ;;
    --from | --bin-dir | --plugins | --wait | --host-ports | --conf-dir | --data-dir)
        [ $# -ge 2 ] && [ -n "$2" ] || misuse "$1 needs a value"
        case $1 in
        --from) from=$2 ;;
        --bin-dir) bin=$2 ;;
        *) options+=("$1" "$2") ;;
        esac
        # These two plugins have a daemon.
        [ "$1" != --plugins ] || [[ " $2 " != *' dhcp '* && " $2 " != *' host-device '* ]] || build_options=()
        shift
        ;;
    --rollback | --uninstall | --deps-only) choose "${1#--}" ;;
    --with-deps) deps=1 ;;
    --daemons) build_options=() ;;
    --dry-run) dry_run=1 options+=("$1") ;;
    --force) options+=("$1") ;;
    --demo) demo=1 ;;
    -h | --help)
        usage
        exit
        ;;
    *) misuse "unknown option '$1'" ;;
    esac
    shift
done

[ "$verb" = install ] || [ -z "$demo$deps" ] || misuse "--demo and --with-deps belong to an installation"
[ -z "$demo" ] || [ -z "$dry_run" ] || misuse "--demo and --dry-run exclude each other"
[ -z "$demo" ] || [ -f "$here/examples/demo.sh" ] || die "there is no examples/demo.sh beside install.sh"

[ "$verb" != deps-only ] || packages+=("${test_packages[@]}")
[ -z "$deps" ] && [ "$verb" != deps-only ] || install_packages
[ "$verb" != deps-only ] || exit 0

find_tool
[ "$verb" != install ] || [ -z "$from" ] || options+=(--from "$from")
"$programs/ferrule" "$verb" --bin-dir "$bin" "${options[@]}"

# cnirun is not a plugin, so it is not installed.
[ -z "$demo" ] || "$here/examples/demo.sh" --bin-dir "$bin" --runner "${from:-$programs}/cnirun"
