#!/usr/bin/env bash
# Gives a test's node its root file system, and runs a command there:
#   unshare --mount --net --pid --ipc --uts --fork --kill-child --propagation private tests/node-root.sh LOWER LAYER SHARED COMMAND ...
#
# The root is the folder LOWER under a layer in memory, at the folder LAYER. The folder SHARED is /mnt there.
set -euo pipefail
lower=$1 layer=$2 shared=$3 root=$2/root
shift 3

mkdir -p "$layer" && mount -t tmpfs layer "$layer" && mkdir "$root" "$layer/upper" "$layer/work"
mount -t overlay -o "lowerdir=$lower,upperdir=$layer/upper,workdir=$layer/work" overlay "$root"
mount --rbind /dev "$root/dev"
mount -t proc proc "$root/proc"
mount -t sysfs sys "$root/sys"
grep '^[^:]*:[^:]' /proc/self/cgroup | cut -d : -f 2 >"$layer/hierarchies" || true
if [ -s "$layer/hierarchies" ]; then
    mount -t tmpfs cgroups "$root/sys/fs/cgroup"
    while read -r hierarchy; do
        mkdir "$root/sys/fs/cgroup/${hierarchy#name=}"
        mount -t cgroup -o "$hierarchy" cgroup "$root/sys/fs/cgroup/${hierarchy#name=}"
    done <"$layer/hierarchies"
else
    mount -t cgroup2 cgroup2 "$root/sys/fs/cgroup"
fi
mkdir -p "$root/var/lib/cni"
for folder in run tmp var/lib/cni; do mount -t tmpfs tmpfs "$root/$folder"; done
mount --bind "$shared" "$root/mnt"
ip link set lo up
# Not chroot alone: a process that enters a mount namespace, as those that join a container, comes out at that namespace's root.
cd "$root"
pivot_root . .
umount --lazy .
exec chroot . "$@"
