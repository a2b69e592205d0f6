#!/usr/bin/env bash
# Builds the plugins as static programs, and the daemons and cnirun beside them. Run with --help for the rest.
set -euo pipefail
export LC_ALL=C

here=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")" && pwd -P)
invoked_in=$PWD

usage() {
    cat <<'END'
Usage: ./build.sh [--profile NAME] [--arch ARCH] [--daemon NAME|--no-daemons]
       ./build.sh --list

Builds the plugins as one program that needs no shared library, with a name (a
hard link) for each plugin under plugins/ and the name ferrule for its command
line, the daemons ferrule-dhcp, ferrule-nic and ferrule-node, and the network runner cnirun. Prints one line on
stdout: the absolute path of the folder that holds them. All else goes to stderr.

  --profile NAME  a cargo profile (default: release)
  --arch ARCH     amd64 or arm64 (default: this machine's)
  --no-daemons    build no daemon: they take three times as long as all plugins
  --daemon NAME   build only this one: dhcp, nic or node
  --list          print the names of the plugins, one a line, and build nothing
  -h, --help      print this

The target is <machine>-unknown-linux-musl, linked with the rust-lld of the
toolchain. Where it is neither installed nor to be had from rustup, it is
<machine>-unknown-linux-gnu, linked statically, but only for this machine's
architecture. CARGO_TARGET_DIR, RUSTFLAGS and CARGO_TARGET_<TARGET>_LINKER are
honoured.
END
}

say() { printf 'build.sh: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }

# The one list of plugins: each has a folder plugins/KIND/NAME, named like its program.
plugins() {
    local manifest
    for manifest in "$here"/plugins/*/*/Cargo.toml; do
        [ -f "$manifest" ] || die "no plugins under $here/plugins"
        basename "$(dirname "$manifest")"
    done | sort
}

has_target() {
    local libraries
    libraries=$(rustc --print target-libdir --target "$1" 2>/dev/null) || return 1
    compgen -G "$libraries/libstd-*.rlib" >/dev/null
}

# Whether the 64-bit little-endian ELF program $1 has a PT_INTERP header, that is, wants a dynamic loader.
# Read by hand: ldd and file are worded differently from one system to the next, and readelf may not be there.
wants_loader() {
    local start size count header
    start=$(od -An -td8 -j32 -N8 "$1")
    size=$(od -An -tu2 -j54 -N2 "$1")
    count=$(od -An -tu2 -j56 -N2 "$1")
    for ((header = 0; header < count; header++)); do
        [ "$(od -An -tu4 -j$((start + header * size)) -N4 "$1")" -ne 3 ] || return 0
    done
    return 1
}

check_static() {
    [ -f "$1" ] || die "cargo left no $1"
    [ "$(od -An -tx1 -N6 "$1")" = ' 7f 45 4c 46 02 01' ] || die "$1 is not a 64-bit little-endian ELF program"
    [ "$(od -An -tu2 -j18 -N2 "$1")" -eq "$elf_machine" ] || die "$1 is not a program for $machine"
    ! wants_loader "$1" || die "$1 is not static: it names a dynamic loader"
}

profile=release
arch=$(uname -m)
daemons=(ferrule-dhcp ferrule-nic ferrule-node)
while [ $# -gt 0 ]; do
    case $1 in
    --profile)
        [ $# -ge 2 ] || die "--profile needs a name"
        profile=$2
        shift
        ;;
    --profile=*) profile=${1#*=} ;;
    --arch)
        [ $# -ge 2 ] || die "--arch needs a name"
        arch=$2
        shift
        ;;
    --arch=*) arch=${1#*=} ;;
    --no-daemons) daemons=() ;;
    --daemon)
        [[ ${2-} =~ ^(dhcp|nic|node)$ ]] || die "--daemon needs dhcp, nic or node"
        daemons=("ferrule-$2")
        shift
        ;;
    --list)
        plugins
        exit
        ;;
    -h | --help)
        usage
        exit
        ;;
    *) die "unknown option '$1'; see ./build.sh --help" ;;
    esac
    shift
done
[ -n "$profile" ] || die "--profile needs a name"

command -v cargo >/dev/null || die "cargo is not installed; see https://rustup.rs"

# The ELF header has the number of the machine (e_machine).
case $arch in
x86_64 | amd64) machine=x86_64 debian=amd64 elf_machine=62 ;;
aarch64 | arm64) machine=aarch64 debian=arm64 elf_machine=183 ;;
*) die "no build is known for the architecture '$arch'" ;;
esac

# .cargo/config.toml names it for ring, which is part of the daemons that talk to the API server.
compiler=CC_${machine}_unknown_linux_musl
compiler=${!compiler-$machine-linux-gnu-gcc}
[ ${#daemons[@]} -eq 0 ] || command -v "$compiler" >/dev/null ||
    die "the daemons need the C compiler $compiler (Debian's packages gcc-${machine/_/-}-linux-gnu and libc6-dev-$debian-cross); --no-daemons leaves them out"

# Resolve a relative CARGO_TARGET_DIR in the caller's directory; cargo runs at the root of the source tree.
if [ -n "${CARGO_TARGET_DIR-}" ]; then
    CARGO_TARGET_DIR=$(cd "$invoked_in" && realpath -m "$CARGO_TARGET_DIR")
    export CARGO_TARGET_DIR
fi
cd "$here"

target=$machine-unknown-linux-musl
if ! has_target "$target"; then
    say "$target is not installed; asking rustup for it"
    if ! { command -v rustup && rustup target add "$target"; } >&2 || ! has_target "$target"; then
        [ "$machine" = "$(uname -m)" ] || die "cannot build for $machine without $target"
        target=$machine-unknown-linux-gnu
        say "it cannot be had: falling back to $target with +crt-static"
        export RUSTFLAGS="${RUSTFLAGS-} -C target-feature=+crt-static"
    fi
fi

metadata=$(cargo metadata --no-deps --format-version 1)
target_dir=$(sed -n 's/.*"target_directory":"\([^"]*\)".*/\1/p' <<<"$metadata")
[ -n "$target_dir" ] || die "cargo metadata names no target directory"

# The same bytes in every folder: panic messages name source files. cargo splits flags at spaces, so paths with spaces stay.
for remapped in "$here=ferrule" "${CARGO_HOME:-$HOME/.cargo}=cargo" "$target_dir=target"; do
    [[ $remapped == *' '* ]] || RUSTFLAGS="${RUSTFLAGS-} --remap-path-prefix=$remapped"
done
# RUSTFLAGS would replace the flags of .cargo/config.toml; this variable adds to them.
flags=CARGO_TARGET_${target^^}_RUSTFLAGS
flags=${flags//-/_}
export "$flags=${!flags-} ${RUSTFLAGS-}"
unset RUSTFLAGS
# release.sh sets it. No program has a time in it, but cargo would compile ring, and all crates that use it, once more.
unset SOURCE_DATE_EPOCH

case $profile in
dev | test) folder=debug ;;
bench) folder=release ;;
*) folder=$profile ;;
esac
built=$target_dir/$target/$folder
# The daemons have a release profile of their own.
daemon_profile=$profile daemon_built=$built
[ "$profile" != release ] || daemon_profile=daemon daemon_built=$target_dir/$target/daemon

mapfile -t names < <(plugins)
[ ${#names[@]} -gt 0 ] || die "no plugins to build"

# Two calls: in one, cargo would give the plugins the crate features that only the daemons need. The daemons' profile has a folder of its
# own, so both builds run side by side: the optimiser uses one core for most of the time. What only cnirun needs costs the plugins 240 bytes.
build() {
    say "building $1 for $target, profile $2"
    cargo build --locked --target "$target" --profile "$2" "${@:3}" >&2
}
status=0 daemon_build=''
if [ ${#daemons[@]} -gt 0 ]; then
    # The plugin has the name ferrule-dhcp.
    packages=("${daemons[@]/%dhcp/dhcpd}")
    build "${daemons[*]}" "$daemon_profile" "${packages[@]/#/--package=}" &
    daemon_build=$!
fi
build "${names[*]} cnirun" "$profile" --package ferrule --package cni-runner || status=1
[ -z "$daemon_build" ] || wait "$daemon_build" || status=1
[ "$status" -eq 0 ] || exit 1
for program in "$built/ferrule" "$built/cnirun" "${daemons[@]/#/$daemon_built/}"; do
    check_static "$program"
done

# A folder with only the plugins, ferrule, the daemons and cnirun, to install or to use as CNI_PATH. Each name changes by one rename,
# because a test may be running the old program.
out=$built/cni
mkdir -p "$out"
publish() {
    [ "$1" -ef "$out/$2" ] && return
    ln -f "$1" "$out/.new"
    mv -fT "$out/.new" "$out/$2"
}
for name in "${names[@]}" ferrule; do
    publish "$built/ferrule" "$name"
done
# A daemon of an earlier build does not belong to these plugins.
for name in ferrule-{dhcp,nic,node}; do
    [[ " ${daemons[*]} " == *" $name "* ]] || rm -f "$out/$name"
done
for name in "${daemons[@]}"; do
    publish "$daemon_built/$name" "$name"
done
publish "$built/cnirun" cnirun
printf '%s\n' "$out"
