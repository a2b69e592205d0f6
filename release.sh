#!/usr/bin/env bash
# Builds the files of a release. Run with --help for the rest.
set -euo pipefail
export LC_ALL=C
umask 022

here=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")" && pwd -P)
package=ferrule-cni-plugins

usage() {
    cat <<'END'
Usage: ./release.sh [--arch ARCH] ... [--out DIR]

Builds for each architecture:
  ferrule-VERSION-linux-ARCH.tar.gz      programs, units, man pages, completions of shells,
                                         examples, DaemonSet, licences, SBOM
  ferrule-VERSION-linux-ARCH.cdx.json    the SBOM alone: CycloneDX 1.5
  ferrule-cni-plugins_VERSION_ARCH.deb   the Debian package
  ferrule-cni-plugins-VERSION-1.ARCH.rpm the package for Fedora, RHEL and their like
and SHA256SUMS of all of them. Prints the absolute path of the folder on stdout; all
else goes to stderr.

  --arch ARCH  amd64 or arm64; may be repeated (default: both)
  --out DIR    the folder for the files (default: dist). SHA256SUMS is written last
  -h, --help   print this

The same commit gives the same bytes in every folder, if compiler, tar, gzip, dpkg-deb,
xz, rpmbuild and lowdown have the same versions. Times are those of the commit; SOURCE_DATE_EPOCH names
another one. VERSION is that of Cargo.toml. build.sh builds the programs.
END
}

say() { printf 'release.sh: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }

# ---------------------------------------------------------------------------------------------------------------
# Linked crates

hash() { sha256sum -- "$1" | cut -d ' ' -f 1; }

# The crates that are linked into a package's program, each as "NAME VERSION".
linked() {
    cargo tree --locked --target "$target" --package "$1" --edges normal,no-proc-macro --no-dedupe --prefix none --format '{p}' |
        awk '$2 ~ /^v/ { print $1, substr($2, 2) }' | sort -u
}

# metadata.json: all crates. linked.json: {PROGRAM: ["NAME VERSION", ..]}.
survey() {
    cargo metadata --locked --format-version 1 --filter-platform "$target" >"$work/metadata.json"
    {
        linked ferrule | sed 's/^/ferrule /'
        linked ferrule-dhcpd | sed 's/^/ferrule-dhcp /'
        linked ferrule-nic | sed 's/^/ferrule-nic /'
        linked ferrule-node | sed 's/^/ferrule-node /'
    } >"$work/linked"
    jq -Rn '[inputs | split(" ")] | group_by(.[0]) | map({key: .[0][0], value: map("\(.[1]) \(.[2])")}) | from_entries' \
        "$work/linked" >"$work/linked.json"
}

sbom() {
    local sums
    sums=$(awk -F '"' '/^name = /{ name = $2 } /^version = /{ version = $2 } /^checksum = /{ print name " " version " " $2 }' Cargo.lock |
        jq -Rn '[inputs | split(" ") | {key: "\(.[0]) \(.[1])", value: .[2]}] | from_entries')
    jq --slurpfile linked "$work/linked.json" --argjson sums "$sums" --arg version "$version" --arg target "$target" \
        --arg rust "$(rustc --version | cut -d ' ' -f 2)" --arg time "$(date --utc --date "@$SOURCE_DATE_EPOCH" +%FT%TZ)" \
        --arg ferrule "$(hash "$bin/ferrule")" --arg daemon "$(hash "$bin/ferrule-dhcp")" \
        --arg nic "$(hash "$bin/ferrule-nic")" --arg node "$(hash "$bin/ferrule-node")" \
        --from-file release/sbom.jq "$work/metadata.json"
}

# The licences of all linked crates, each text once, after the names of the crates that have it. A crate without a text has that
# of another crate from its repository, or ours if it is under Apache-2.0, too.
licences() {
    local crate number licence folder repository file found sum siblings
    local -A texts=() crates=()
    jq -r --slurpfile linked "$work/linked.json" '[$linked[0][][]] as $linked | .packages[] | select(.source)
        | select(IN("\(.name) \(.version)"; $linked[])) | [.name, .version, .license, (.manifest_path | rtrimstr("/Cargo.toml")), .repository] | @tsv' "$work/metadata.json" |
        sort >"$work/crates"
    cut -f 4,5 "$work/crates" >"$work/folders"
    while IFS=$'\t' read -r crate number licence folder repository; do
        mapfile -t siblings < <(awk -F '\t' -v repository="$repository" '$2 == repository { print $1 }' "$work/folders")
        for folder in "$folder" "${siblings[@]}"; do
            found=''
            for file in "$folder"/{LICEN[CS]E,COPY,NOTICE,UNLICENSE}*; do
                [ -f "$file" ] || continue
                found=1 sum=$(hash "$file")
                texts[$sum]=$file
                crates[$sum]+="$crate $number ($licence): ${file##*/}"$'\n'
            done
            [ -z "$found" ] || break
        done
        if [ -z "$found" ]; then
            [[ $licence == *Apache-2.0* && $licence != *AND* ]] || die "crate $crate $number has no licence text"
            sum=$(hash LICENSE)
            texts[$sum]=LICENSE
            crates[$sum]+="$crate $number ($licence): LICENSE of Apache-2.0"$'\n'
        fi
    done <"$work/crates"
    echo "The licences of the crates that are linked into ferrule, ferrule-dhcp, ferrule-nic and ferrule-node."
    while read -r sum; do
        printf '\n%s\n%s%s\n\n' ======== "${crates[$sum]}" ========
        cat "${texts[$sum]}"
    done < <(for sum in "${!texts[@]}"; do printf '%s\t%s\n' "${crates[$sum]%%$'\n'*}" "$sum"; done | sort | cut -f 2)
}

# ---------------------------------------------------------------------------------------------------------------
# The files

# Man pages and completions of bash, zsh and fish. The programs of this machine write them, because others may not run here. The page
# cni-NAME(8) is the README of a plugin: bridge(8) and others belong to other packages.
manuals() {
    local native daemon readme name
    native=$(./build.sh --arch "$(uname -m)")
    mkdir -p "$1"
    "$native/ferrule" generate "$1"
    for daemon in "$native"/ferrule-{dhcp,nic,node}; do "$daemon" --generate "$1"; done
    for readme in plugins/*/*/README.md; do
        name=${readme%/README.md} name=${name##*/}
        {
            printf '# NAME\n\ncni-%s - the CNI plugin %s of Ferrule\n\n# DESCRIPTION\n' "$name" "$name"
            tail -n +2 "$readme"
        } | lowdown -s -t man --nroff-nolinks -M title="cni-$name" -M section=8 -M source="Ferrule $version" >"$1/cni-$name.8"
    done
}

# set_version FOLDER MANIFEST ...: puts them there, with the image of this version.
set_version() {
    local manifest
    for manifest in "${@:2}"; do
        sed "s,\(image: registry.example/ferrule\):.*,\1:$version," "$manifest" >"$1/${manifest##*/}"
    done
}

# Licences, the SBOM and examples, for every tarball and package.
documents() {
    cp LICENSE CHANGELOG.md README.md "$work/sbom.cdx.json" "$1"
    mkdir -p "$1/licences" "$1/docs" "$1"/examples/{dra,kubernetes,monitoring}
    cp docs/{install,operate,cluster,devices}.md "$1/docs"
    cp "$work/crates.txt" "$1/licences/CRATES.txt"
    cp release/MUSL.txt "$1/licences"
    cp "$(rustc --print sysroot)/share/doc/rust/COPYRIGHT-library.html" "$1/licences/RUST-STD.html"
    cp -r examples/*.conflist examples/*.yaml examples/{policies,runtimes,shared} "$1/examples"
    cp examples/dra/*.conflist "$1/examples/dra"
    # The chart has links to the manifests.
    cp -rL examples/chart examples/overlays "$1/examples"
    set_version "$1/examples/chart/files" examples/chart/files/*.yaml
    sed -i -E "s/^(version|appVersion): .*/\\1: $version/" "$1/examples/chart/Chart.yaml"
    set_version "$1/examples/dra" examples/dra/*.yaml
    set_version "$1/examples/kubernetes" examples/kubernetes/*.yaml
    cp examples/monitoring/*.json examples/monitoring/*.yaml "$1/examples/monitoring"
}

tarball() {
    local name=ferrule-$version-linux-$arch
    local root=$work/tarball/$name
    mkdir -p "$root"/{bin,systemd,man,completions}
    documents "$root"
    cp "$manuals"/*.[18] "$root/man"
    cp "$manuals"/{*.bash,_*,*.fish} "$root/completions"
    install "$bin"/ferrule{,-dhcp,-nic,-node} "$root/bin"
    cp {daemons/{dhcp,nic,node},operator/inspect}/systemd/* "$root/systemd"
    cp Containerfile "$root"
    set_version "$root" release/*.yaml
    tar --create --directory "$work/tarball" --sort=name --format=gnu --owner=0 --group=0 --numeric-owner \
        --mode=u=rwX,go=rX --mtime="@$SOURCE_DATE_EPOCH" "$name" | gzip --no-name --best >"$out/$name.tar.gz"
    cp "$work/sbom.cdx.json" "$out/$name.cdx.json"
}

# files ROOT PROGRAMS UNITS: the files of a package, for these folders of programs and systemd's units, as in
# containernetworking-plugins. The programs are hard links to one file.
files() {
    local root=$1 programs=$2 units=$3 name page
    local share=$root/usr/share
    local doc=$share/doc/$package
    mkdir -p "$root/$programs" "$root/usr/sbin" "$root/$units" "$doc" "$share"/man/man{1,8} \
        "$share/bash-completion/completions" "$share/zsh/vendor-completions" "$share/fish/vendor_completions.d"
    documents "$doc"
    for page in "$manuals"/*.[18]; do gzip --no-name --best <"$page" >"$share/man/man${page##*.}/${page##*/}.gz"; done
    for name in ferrule ferrule-nic ferrule-node; do
        cp "$manuals/$name.bash" "$share/bash-completion/completions/$name"
        cp "$manuals/_$name" "$share/zsh/vendor-completions"
        cp "$manuals/$name.fish" "$share/fish/vendor_completions.d"
    done
    install "$bin"/ferrule{,-dhcp,-nic,-node} "$root/$programs"
    for name in $(./build.sh --list); do ln "$root/$programs/ferrule" "$root/$programs/$name"; done
    ln -s "../../$programs/ferrule" "$root/usr/sbin/ferrule"
    # The administrator enables those of Ferrule's names.
    for name in {daemons/{dhcp,nic,node},operator/inspect}/systemd/*; do
        sed "s,/opt/cni/bin,/$programs,g" "$name" >"$root/$units/${name##*/}"
    done
}

# The modes and the times of a package's files.
settled() {
    chmod -R u=rwX,go=rX "$1"
    find "$1" -exec touch --no-dereference --date "@$SOURCE_DATE_EPOCH" {} +
}

debian() {
    local root=$work/debian
    files "$root" usr/lib/cni lib/systemd/system
    mv "$root/usr/share/doc/$package/LICENSE" "$root/usr/share/doc/$package/copyright"
    mkdir "$root/DEBIAN"
    (cd "$root" && find lib usr -type f -print0 | sort -z | xargs -0 md5sum >DEBIAN/md5sums)
    sed -e "s/@VERSION@/$version/" -e "s/@ARCH@/$arch/" -e "s/@SIZE@/$(du -k --apparent-size -s "$root" | cut -f 1)/" \
        release/debian/control >"$root/DEBIAN/control"
    install release/debian/{postinst,prerm,postrm} "$root/DEBIAN"
    settled "$root"
    dpkg-deb --root-owner-group --threads-max=1 -Zxz --build "$root" "$out/${package}_${version}_$arch.deb" >&2
}

# A script of the Debian package, for rpm.
for_rpm() {
    sed -e 1d -e 's,/usr/lib/cni,/usr/libexec/cni,g' -e 's,deb-systemd-invoke,systemctl --system,g' "release/debian/$1"
}

# The folders are those of Fedora's containernetworking-plugins.
redhat() {
    local root=$work/redhat spec=$work/$package.spec machine=x86_64
    [ "$arch" = amd64 ] || machine=aarch64
    files "$root" usr/libexec/cni usr/lib/systemd/system
    settled "$root"
    (cd "$root" && {
        find usr \( -type f -o -type l \) -printf '"/%p"\n'
        find "usr/share/doc/$package" -type d -printf '%%dir "/%p"\n'
    } | sort) >"$work/list"
    for_rpm prerm >"$work/prerm"
    for_rpm postrm >"$work/postrm"
    sed -e "s,@ROOT@,$root,; s,@LIST@,$work/list,; s/@VERSION@/$version/" -e "/^@PRERM@/{r $work/prerm" -e 'd}' \
        -e "/^@POSTRM@/{r $work/postrm" -e 'd}' "release/rpm/$package.spec" >"$spec"
    rpmbuild --quiet -bb --target "$machine-linux" --define "_topdir $work/rpm" --define "_rpmdir $out" \
        --define '_rpmfilename %{name}-%{version}-%{release}.%{arch}.rpm' "$spec" >&2
}

# ---------------------------------------------------------------------------------------------------------------

arches=() out=$here/dist
while [ $# -gt 0 ]; do
    case $1 in
    --arch)
        [[ ${2-} == amd64 || ${2-} == arm64 ]] || die "--arch needs amd64 or arm64"
        arches+=("$2")
        shift
        ;;
    --out)
        [ -n "${2-}" ] || die "--out needs a folder"
        out=$(realpath -m -- "$2")
        shift
        ;;
    -h | --help)
        usage
        exit
        ;;
    *) die "unknown option '$1'; see ./release.sh --help" ;;
    esac
    shift
done
[ ${#arches[@]} -gt 0 ] || arches=(amd64 arm64)
for tool in cargo jq dpkg-deb gzip lowdown rpmbuild; do
    command -v "$tool" >/dev/null || die "$tool is not installed"
done
if [ -n "${CARGO_TARGET_DIR-}" ]; then
    CARGO_TARGET_DIR=$(realpath -m -- "$CARGO_TARGET_DIR")
    export CARGO_TARGET_DIR
fi
cd "$here"
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git -c safe.directory="$here" log -1 --format=%ct)}
export SOURCE_DATE_EPOCH
version=$(cargo metadata --locked --no-deps --format-version 1 | jq -r '.packages[] | select(.name == "ferrule").version')

mkdir -p "$out"
rm -f "$out"/{ferrule-*.tar.gz,ferrule-*.cdx.json,"$package"_*.deb,"$package"-*.rpm,SHA256SUMS}
work_of_all=$(mktemp -d)
trap 'rm -rf -- "$work_of_all"' EXIT
manuals=$work_of_all/manuals
manuals "$manuals"
for arch in "${arches[@]}"; do
    bin=$(./build.sh --arch "$arch")
    # TARGET_DIR/TARGET/release/cni
    target=${bin%/*/*} target=${target##*/} work=$work_of_all/$arch
    mkdir "$work"
    survey
    sbom >"$work/sbom.cdx.json"
    licences >"$work/crates.txt"
    tarball
    debian
    redhat
done
(cd "$out" && sha256sum -- ferrule-* >SHA256SUMS)
printf '%s\n' "$out"
