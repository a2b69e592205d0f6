#!/usr/bin/env bash
# Runs a command in a virtual machine with Debian's stock kernel. Run with --help for the rest.
set -euo pipefail
export LC_ALL=C
PATH=$PATH:/usr/sbin:/sbin

cache=/var/cache/ferrule-kernel
# Seconds. Alone it takes 5; with a low priority on a machine that is full of tests, it took 60.
start_and_end=600

usage() {
    cat <<END
Usage: tests/guest.sh [--arch ARCH] [--sriov] [--timeout SECONDS] COMMAND [ARGUMENT ...]
       tests/guest.sh [--arch ARCH] [--sriov] --download

Boots Debian's kernel under qemu, without KVM, and runs the command there as root.

The guest's root is this machine's, read-only, under a layer in memory: the command
may write anywhere, and nothing stays. /run and /var/lib/cni are empty. Modules are
loaded on demand; with virtio_net the guest has eth0, a network card that leads nowhere.
The files that the guest uses must not change on this machine meanwhile. The command
starts in the caller's directory, with an environment of PATH, HOME and LC_ALL, and an
empty stdin. The guest ends with the command.

  --arch ARCH        amd64 (default) or arm64. An arm64 guest sees the same files, but it
                     runs only programs for arm64: busybox, coreutils and nft, which come
                     from Debian, and what is built for it
  --sriov            the guest has a NIC with SR-IOV too, an igb with up to 7 virtual functions, in amd64 only.
                     Debian 12's qemu has none; the one from its backports is unpacked beside the guest's packages
  --timeout SECONDS  the limit for the command (default: 300); the guest's start and end
                     may take $start_and_end seconds more
  --download         only fetch and unpack the packages for the guest, unless this is done.
                     They are kept in $cache; delete that to get newer ones
  -h, --help         print this

FERRULE_GUEST_KERNEL names another kernel image, which must suit the modules.

Exit status: the command's; 2 wrong usage; 124 the command exceeded the limit; 125 the
guest did not start, or its kernel crashed: the end of its console goes to stderr.
END
}

say() { printf 'guest.sh: %s\n' "$*" >&2; }
die() { say "$1"; exit "${2-125}"; }

# ---------------------------------------------------------------------------------------------------------------
# The packages

# The package that linux-image-ARCH depends on; its name has the version.
kernel_package() {
    apt-cache "${apt[@]}" depends "linux-image-$arch" | sed -n 's/^ *Depends: \(linux-image-.*\)/\1/p'
}

fetch() {
    local package
    package=$(kernel_package) && [ -n "$package" ] || return 1
    say "downloading $package"
    (cd "$work" && apt-get "${apt[@]}" download -q "$package" >&2) || return 1
    [ "$arch" = amd64 ] ||
        apt-get "${apt[@]}" install -q --yes --download-only --no-install-recommends busybox-static coreutils nftables >&2
}

# The package lists are fetched only if those at hand do not lead to the package.
download() {
    local root=$work/kernel version image offset package link
    [ ! -d "$cache/$arch" ] || return 0
    if [ "$arch" != amd64 ]; then
        # A state of its own keeps apt from adding the architecture to this machine. No package counts as installed.
        mkdir -p "$work"/apt/lists/partial "$work"/apt/archives/partial
        touch "$work/apt/status"
        apt+=(-o "APT::Architecture=$arch" -o "APT::Architectures=$arch" -o "Dir::State=$work/apt"
            -o "Dir::State::status=$work/apt/status" -o "Dir::Cache=$work/apt")
    fi
    fetch || { apt-get "${apt[@]}" update >&2 && fetch; } || die "cannot download Debian's packages for $arch"
    dpkg-deb -x "$work"/linux-image-*.deb "$root"
    version=$(ls "$root/lib/modules")
    depmod -b "$root" "$version"
    image=$root/boot/vmlinuz-$version
    if [ "$arch" = amd64 ]; then
        # The guest would take longer to unpack its kernel than for the rest of its start.
        offset=$(grep -abo -m 1 $'\xfd7zXZ' "$image")
        xz --decompress --single-stream < <(tail -c "+$((${offset%%:*} + 1))" "$image") >"$root/image"
    else
        ln "$image" "$root/image"
        # /bin, /lib and /sbin are links into /usr, as on this machine: each program hides this machine's.
        mkdir -p "$root"/system/usr/{bin,lib,sbin}
        ln -s usr/{bin,lib,sbin} "$root/system"
        for package in "$work"/apt/archives/*.deb; do
            dpkg-deb --fsys-tarfile "$package" | tar -x --keep-directory-symlink -C "$root/system"
        done
        for link in bin/sh sbin/modprobe; do ln -s /bin/busybox "$root/system/$link"; done
    fi
    mkdir -p "$cache"
    cp -a "$root" "$cache/new.$$"
    # Fails if another run was faster.
    mv -T "$cache/new.$$" "$cache/$arch" 2>/dev/null || rm -rf "$cache/new.$$"
}

# The emulator with the NIC igb, if this machine's has none. Nothing is installed.
download_emulator() {
    local package
    [ ! -d "$cache/emulator" ] || return 0
    mkdir -p "$work"/backports/lists/partial "$work"/backports/archives/partial
    echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian bookworm-backports main" \
        >"$work/backports/list"
    local -a options=(-o APT::Sandbox::User=root -o "Dir::Etc::sourcelist=$work/backports/list" -o Dir::Etc::sourceparts=/dev/null
        -o "Dir::State=$work/backports" -o Dir::State::status=/var/lib/dpkg/status -o "Dir::Cache=$work/backports")
    say "downloading qemu from bookworm-backports"
    { apt-get "${options[@]}" update &&
        apt-get "${options[@]}" install -q --yes --download-only --no-install-recommends -t bookworm-backports qemu-system-x86; } >&2 ||
        die "cannot download qemu from Debian's backports"
    for package in "$work"/backports/archives/*.deb; do dpkg-deb -x "$package" "$work/emulator"; done
    mkdir -p "$cache"
    cp -a "$work/emulator" "$cache/new-emulator.$$"
    mv -T "$cache/new-emulator.$$" "$cache/emulator" 2>/dev/null || rm -rf "$cache/new-emulator.$$"
}

# Its link leads nowhere, but has a carrier.
add_sriov() {
    if ! "${emulator[0]}" -device help | grep "^name \"igb\"" >/dev/null; then
        download_emulator
        emulator[0]=$cache/emulator/usr/bin/${emulator[0]}
        emulator+=(-L "$cache/emulator/usr/share/qemu" -L "$cache/emulator/usr/share/seabios")
    fi
    emulator+=(-machine q35 -device "pcie-root-port,id=root,slot=1"
        -netdev "hubport,id=igb,hubid=0" -device "igb,bus=root,netdev=igb,mac=02:00:00:00:98:00")
}

# ---------------------------------------------------------------------------------------------------------------
# The guest

# Process 1 of the initramfs: makes the root and moves there. The kernel puts lower= of its command line into the
# environment. If a step fails, this process ends and the kernel panics.
# shellcheck disable=SC2016
initramfs_init='#!/bin/busybox sh
set -e
/bin/busybox mount -t proc proc /proc
mount -t devtmpfs dev /dev
for module in /modules/*; do insmod "$module"; done
share="mount -t 9p -o trans=virtio,version=9p2000.L,msize=512000"
$share,ro,cache=loose host /host
[ "$lower" = /host ] || $share,ro,cache=loose system /system
mount -t tmpfs -o size=90% layer /layer
mkdir /layer/upper /layer/work
mount -t overlay -o lowerdir=$lower,upperdir=/layer/upper,workdir=/layer/work root /root
cd /root
mkdir -p lib/modules var/lib/cni
$share,ro,cache=loose modules lib/modules
mount -t tmpfs -o mode=755 run run
mount -t tmpfs -o mode=755 cni var/lib/cni
mkdir run/lock run/guest
$share,cache=none control run/guest
mount -t sysfs sys sys
mount -t cgroup2 cgroup2 sys/fs/cgroup
mkdir /dev/pts /dev/shm
mount -t devpts -o gid=5,mode=620,ptmxmode=666 devpts /dev/pts
mount -t tmpfs shm /dev/shm
for link in fd:fd stdin:fd/0 stdout:fd/1 stderr:fd/2; do ln -s "/proc/self/${link#*:}" "/dev/${link%:*}"; done
mount --move /dev dev
mount --move /proc proc
exec /bin/busybox switch_root /root /bin/sh /run/guest/init
'

# Process 1 of the root. The command writes to pipes, because a program that opens /dev/stderr would truncate a file.
# It has a PID namespace, so the processes that it leaves running end with it, and the pipes end too.
# shellcheck disable=SC2016
root_init='cd /run/guest
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C
mount --make-rshared /
ip link set lo up
# As udev does: who opens it loads the module.
mkdir -p /dev/net && mknod -m 666 /dev/net/tun c 10 200
mkfifo /run/guest.out /run/guest.err
cat /run/guest.out >>stdout &
cat /run/guest.err >>stderr &
>started
unshare --fork --pid --mount-proc sh /run/guest/command </dev/null >/run/guest.out 2>/run/guest.err
echo $? >status
wait
busybox poweroff -f
'

# The modules that the guest needs to see its root, in the order of their dependencies.
first_modules() {
    modprobe --config /dev/null --dirname "$cache/$arch" --set-version "$(ls "$cache/$arch/lib/modules")" \
        --show-depends --all virtio_pci 9pnet_virtio 9p overlay | awk '$1 == "insmod" && !seen[$2]++ { print $2 }'
}

make_initramfs() {
    local root=$work/initramfs module number=10
    mkdir -p "$root"/{bin,modules,proc,dev,host,system,layer,root}
    cp "$busybox" "$root/bin/busybox"
    for module in $(first_modules); do
        cp "$module" "$root/modules/$((number++)).ko"
    done
    printf '%s' "$initramfs_init" >"$root/init"
    chmod +x "$root/init"
    (cd "$root" && find . | cpio --quiet --create --format newc) >"$work/initramfs.cpio"
}

# For any shell, unlike printf's %q and bash's @Q.
quote() { printf " '%s'" "${@//\'/\'\\\'\'}"; }

# export_folder TAG FOLDER READONLY: adds a folder that the guest can mount.
export_folder() {
    qemu+=(-fsdev "local,id=$1,path=${2//,/,,},security_model=none,multidevs=remap,readonly=$3"
        -device "virtio-9p-pci,fsdev=$1,mount_tag=$1")
}

run() {
    local limit=$1 control=$work/control machine status=0
    shift
    make_initramfs
    mkdir "$control"
    touch "$control/stdout" "$control/stderr" "$work/console"
    printf '%s' "$root_init" >"$control/init"
    # /usr/bin/timeout is that of coreutils. Busybox's exits with 143, not 124, if the command takes too long.
    printf 'cd %s && /usr/bin/timeout -k 5 %s %s\nexit $?\n' "$(quote "$PWD")" "$limit" "$(quote "$@")" >"$control/command"

    # Fixed addresses spare the emulator from translating code again. A second processor, or one with the newest features, would
    # take it twice the time for the same work: kernel.sh runs several guests side by side.
    local -a qemu=("${emulator[@]}" -accel "tcg,thread=multi"
        -smp 1 -m 2048 -nodefaults -no-user-config -no-reboot -display none -serial "file:$work/console"
        -kernel "${FERRULE_GUEST_KERNEL:-$cache/$arch/image}" -initrd "$work/initramfs.cpio"
        -append "console=$console lower=$lower quiet panic=-1 oops=panic norandmaps nokaslr mitigations=off$boot")
    export_folder host / on
    [ "$lower" = /host ] || export_folder system "$cache/$arch/system" on
    export_folder modules "$cache/$arch/lib/modules" on
    export_folder control "$control" off
    qemu+=(-netdev "user,id=nic,restrict=on" -device "virtio-net-pci,netdev=nic,mac=02:00:00:00:00:99,romfile=")
    setpriv --pdeathsig TERM timeout --kill-after=5 "$((limit + start_and_end))" "${qemu[@]}" </dev/null >&2 &
    machine=$!
    tail -n +1 --follow --sleep-interval=0.1 --pid="$machine" "$control/stdout" &
    tail -n +1 --follow --sleep-interval=0.1 --pid="$machine" "$control/stderr" >&2 &
    wait "$machine" || status=$?
    wait

    [ ! -s "$control/status" ] || exit "$(<"$control/status")"
    if [ -e "$control/started" ]; then
        say "the guest crashed while the command ran (qemu: exit status $status); the end of its console:"
    else
        say "the guest did not start (qemu: exit status $status); the end of its console:"
    fi
    tail -n 60 "$work/console" >&2
    exit 125
}

# ---------------------------------------------------------------------------------------------------------------

limit=300 only_download='' sriov='' arch=amd64 boot=''
while [ $# -gt 0 ]; do
    case $1 in
    --timeout)
        [ $# -ge 2 ] || die "--timeout needs seconds" 2
        limit=$2
        shift
        ;;
    --arch)
        [ $# -ge 2 ] || die "--arch needs a name" 2
        arch=$2
        shift
        ;;
    --download) only_download=1 ;;
    --sriov) sriov=1 ;;
    -h | --help)
        usage
        exit
        ;;
    -*) die "unknown option '$1'; see --help" 2 ;;
    *) break ;;
    esac
    shift
done
[ $# -gt 0 ] || [ "$only_download" ] || die "no command; see --help" 2
apt=(-o APT::Sandbox::User=root)
case $arch in
amd64)
    emulator=(qemu-system-x86_64 -cpu qemu64) console=ttyS0
    lower=/host busybox=$(command -v busybox || true)
    # On a busy machine the kernel takes the emulated timer for broken, and panics.
    boot=' no_timer_check'
    ;;
arm64)
    # The architecture's own algorithm of pointer authentication is slow to emulate.
    emulator=(qemu-system-aarch64 -machine virt -cpu "max,pauth-impdef=on") console=ttyAMA0
    lower=/system:/host busybox=$cache/arm64/system/bin/busybox
    ;;
*) die "no guest is known for the architecture '$arch'" 2 ;;
esac
for tool in "${emulator[0]}" busybox cpio modprobe xz; do
    command -v "$tool" >/dev/null || die "$tool is missing: ./test.sh installs it; see its --help"
done
[ -z "$sriov" ] || [ "$arch" = amd64 ] || die "--sriov: the guest for $arch has no such NIC" 2
work=$(mktemp -d)
trap 'rm -rf -- "$work"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP
download
[ -z "$sriov" ] || add_sriov
[ "$only_download" ] || run "$limit" "$@"
