#!/usr/bin/env bash
# Makes the image for both architectures from the tarballs of release.sh. Run with --help for the rest.
set -euo pipefail
export LC_ALL=C

usage() {
    cat <<'END'
Usage: release/image.sh [--push] NAME DIR

Makes a manifest list NAME:VERSION of the image for each tarball in DIR, which release.sh has
written. No program runs in the images, so podman needs no emulation.

  --push      also push the list, and NAME:latest; "podman login" comes first
  -h, --help  print this
END
}

die() { printf 'image.sh: %s\n' "$*" >&2; exit 2; }

push=''
case ${1-} in
-h | --help)
    usage
    exit
    ;;
--push)
    push=1
    shift
    ;;
esac
[ $# -eq 2 ] || die "needs a name and a folder; see release/image.sh --help"
name=$1 dir=$2
tarballs=("$dir"/ferrule-*-linux-*.tar.gz)
[ -f "${tarballs[0]}" ] || die "$dir has no tarball"
work=$(mktemp -d)
trap 'rm -rf -- "$work"' EXIT
version=''
for tarball in "${tarballs[@]}"; do
    file=${tarball##*/} file=${file%.tar.gz}
    arch=${file##*-} version=${file#ferrule-} version=${version%-linux-*}
    podman manifest inspect "$name:$version" >/dev/null 2>&1 || podman manifest create "$name:$version" >/dev/null
    tar -C "$work" -xf "$tarball"
    podman build --no-cache --platform "linux/$arch" --timestamp 0 --manifest "$name:$version" --file "$work/$file/Containerfile" "$work/$file/bin"
done
if [ "$push" ]; then
    podman manifest push --all "$name:$version" "docker://$name:$version"
    podman manifest push --all "$name:$version" "docker://$name:latest"
fi
