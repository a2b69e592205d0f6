#!/usr/bin/env bash
# Tests of the files that release.sh builds. Run with --help for the rest. The last line counts tests: "N passed, N failed".
#
# shellcheck disable=SC2015 # A && B || C: every C ends the test
# shellcheck disable=SC2016 # commands in single quotes are for the node's shell
set -uo pipefail
export LC_ALL=C
PATH=$PATH:/usr/sbin:/sbin

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
. "$root/tests/cases.sh"
cache=/var/cache/ferrule-release
arch=$(dpkg --print-architecture)

usage() {
    cat <<END
Usage: tests/release.sh [--full] [TEST ...]

Builds the tarball and both packages with the programs of build.sh, and installs, upgrades
and removes them on nodes of their own: each is this machine's file system under a layer
in memory, with namespaces of its own. Needs root.

  --full      also: builds for amd64 and arm64 in two folders, which takes 10 minutes or
              more and needs a clean checkout; and the commands of docs/install.md from the tarball
              to a pod, on a Debian 12 without Rust from mmdebstrap, which is installed
  TEST ...    only these tests

Debian 12 is kept in $cache; delete that to get a newer one.
END
}

fail() { printf '  %s\n' "$*"; exit 1; }
equal() { [ "$1" = "$2" ] || fail "is '$1' instead of '$2'"; }

# ---------------------------------------------------------------------------------------------------------------
# Nodes

# node FOLDER COMMANDS [ARGUMENT ...]: runs commands of bash on a node whose file system is FOLDER under a layer in memory.
# The folder $work is /mnt there. A failed command ends them.
node() {
    local lower=$1 commands=$2
    shift 2
    unshare --mount --net --pid --ipc --uts --fork --kill-child --propagation private "$root/tests/node-root.sh" \
        "$lower" "$work/layer" "$work" bash -euo pipefail -c "cd /mnt; $commands" node "$@"
}

# Packs the reference's package again, from the files installed on this machine: there may be no network.
pack_reference() {
    local name=containernetworking-plugins file
    mkdir -p old/DEBIAN
    dpkg-query --listfiles "$name" | while read -r file; do
        [ ! -f "$file" ] || cp --archive --parents "$file" old
    done
    dpkg-query --status "$name" | grep -v ^Status: >old/DEBIAN/control || fail "$name is not installed"
    for file in preinst postinst prerm postrm; do
        [ ! -f "/var/lib/dpkg/info/$name.$file" ] || cp "/var/lib/dpkg/info/$name.$file" "old/DEBIAN/$file"
    done
    dpkg-deb -Znone --build old "$name.deb" >/dev/null
}

# ---------------------------------------------------------------------------------------------------------------
# The files

# Other times, and rights of files that another umask makes, change nothing.
test_the_same_programs_make_the_same_files() {
    cmp "$dist/SHA256SUMS" "$again/SHA256SUMS" || fail "$(diff "$dist/SHA256SUMS" "$again/SHA256SUMS")"
    (cd "$again" && sha256sum --quiet --check SHA256SUMS) || fail "SHA256SUMS is wrong"
    equal "$(wc -l <"$again/SHA256SUMS")" 4
}

test_the_tarball_has_everything() {
    tar -xf "$tarball"
    cd ferrule-*/ || fail "no folder"
    for file in README.md CHANGELOG.md docs/{install,operate}.md LICENSE Containerfile daemonset.yaml daemonset-nic.yaml daemonset-housekeeping.yaml \
        systemd/{cni-dhcp.service,cni-dhcp.socket,ferrule-nic.service,ferrule-node.service,ferrule-gc.service,ferrule-gc.timer,ferrule-repair.service} \
        examples/kubernetes/ferrule.yaml bin/ferrule-{dhcp,nic,node} man/ferrule.1 man/ferrule-{install,gc,repair,dhcp}.1 \
        man/ferrule-{nic,node}.1 man/cni-{bridge,portmap}.8 completions/ferrule.bash completions/_ferrule completions/ferrule.fish completions/_ferrule-{nic,node}; do
        [ -s "$file" ] || fail "no $file"
    done
    # The example of a plugin belongs to the crate beside it in the repository.
    diff <(cd examples && ls -R -I '*.md') <(cd "$root/examples" && ls -R -I '*.md' -I '*.sh' -I plugin) || fail "not all examples"
    [[ $(bin/ferrule version) == "ferrule v$version"* ]] || fail "version: $(bin/ferrule version)"
    bash -c '. completions/ferrule.bash && complete -p ferrule' >/dev/null || fail "no completions for bash"
    grep "host port" man/ferrule-inspect.1 >/dev/null || fail "no man page"
    equal "$(find man -name "*.8" | wc -l)" "$("$root/build.sh" --list | wc -l)"
    for page in man/*.8; do
        LC_ALL=C.UTF-8 man -l "$page" | grep -q "^NAME" || fail "$page is no page"
        grep -q "^cni-.* the CNI plugin" "$page" || fail "$page has no name for whatis"
    done
    for file in daemonset*.yaml examples/{kubernetes,chart/files}/ferrule.yaml examples/{dra,chart/files}/ferrule-nic.yaml; do
        grep -qF "ferrule:$version" "$file" && ! grep -q @ "$file" || fail "$file names another version"
    done
    [ -z "$(tar -tvf "$tarball" | awk '$2 != "0/0" || substr($1, 6, 1) == "w" || substr($1, 9, 1) == "w"')" ] || fail "owners or modes"
    # Paths of the build machine would make the bytes depend on it.
    ! grep -aoF -e "$root" -e "${CARGO_HOME:-$HOME/.cargo}" -e "${RUSTUP_HOME:-$HOME/.rustup}" bin/* || fail "names a folder"
}

# Its README.md promises this.
test_the_device_plugin_is_small() {
    tar -xf "$tarball"
    local size
    size=$(stat -c %s ferrule-*/bin/ferrule-nic)
    [ "$size" -le 12000000 ] || fail "ferrule-nic has $size bytes"
}

test_sbom_and_licences_name_every_crate() {
    tar -xf "$tarball"
    local sbom licences program
    sbom=$(echo ferrule-*/sbom.cdx.json) licences=$(echo ferrule-*/licences/CRATES.txt)
    jq -r '.components[] | select(.purl) | "\(.name) \(.version)"' "$sbom" | sort >components
    sed -n 's/^\([^ ]* [0-9][^ ]*\) (.*): .*/\1/p' "$licences" | sort -u >licensed
    cmp components licensed || fail "$(diff components licensed)"
    [ "$(wc -l <components)" -gt 30 ] || fail "only $(wc -l <components) crates"
    grep -q '^tokio ' components && ! grep -qE '^(syn|tempfile|libtest-mimic) ' components || fail "not the linked crates"
    jq -e '[.dependencies[] | .ref, .dependsOn[]] - [.. | ."bom-ref"? // empty] == []' "$sbom" >/dev/null || fail "unknown references"
    jq -e 'all(.components[] | select(.purl); .hashes and (.licenses | length == 1))' "$sbom" >/dev/null || fail "no hash or licence"
    for program in ferrule ferrule-{dhcp,nic,node}; do
        equal "$(jq -r --arg name "$program" '.metadata.component.components[] | select(.name == $name).hashes[0].content' "$sbom")" \
            "$(sha256sum ferrule-*/bin/"$program" | cut -d ' ' -f 1)"
    done
}

test_the_tarball_installs_and_goes_back() {
    cp "$tarball" .
    node / '
        mkdir -p /opt/cni && mount -t tmpfs tmpfs /opt/cni
        tar -xf ferrule-*.tar.gz
        ferrule-*/bin/ferrule install >said
        [ "$(ls /opt/cni/bin | wc -l)" -eq $(($1 + 4)) ]
        [ /opt/cni/bin/bridge -ef /opt/cni/bin/ferrule ]
        for daemon in dhcp nic node; do [ -x /opt/cni/bin/ferrule-$daemon ]; done
        rm -r ferrule-*/
        /opt/cni/bin/ferrule status
        /opt/cni/bin/ferrule uninstall >said
        [ -z "$(ls -A /opt/cni/bin)" ]' "$("$root/build.sh" --list | wc -l)" || fail "see above"
}

# ---------------------------------------------------------------------------------------------------------------
# The Debian package

# On a node: calls of host-local and portmap for a container, host-local's reservations, and the state of the units.
node_functions='
plugin() {
    CNI_COMMAND=$2 CNI_CONTAINERID=$3 CNI_NETNS=/run/netns/pod CNI_IFNAME=eth0 CNI_PATH=/usr/lib/cni /usr/lib/cni/$1
}
address() {
    plugin host-local $1 $2 <<<"{\"cniVersion\":\"0.4.0\",\"name\":\"pods\",\"ipam\":{\"type\":\"host-local\",\"subnet\":\"10.1.0.0/24\"}}" |
        jq -r ".ips[0].address"
}
host_port() {
    plugin portmap ADD $1 <<END >/dev/null
{"cniVersion":"0.4.0","name":"pods","type":"portmap","runtimeConfig":{"portMappings":[{"hostPort":$3,"containerPort":80,"protocol":"tcp"}]},
"prevResult":{"cniVersion":"0.4.0","interfaces":[{"name":"eth0","sandbox":"/run/netns/pod"}],"ips":[{"version":"4","address":"$2/24","interface":0}]}}
END
}
reserved() { ls /var/lib/cni/networks/pods | grep "^10" | tr "\n" " "; }
fail() { echo "  $*"; exit 1; }
equal() { [ "$1" = "$2" ] || fail "is \"$1\" instead of \"$2\""; }
not() { ! "$@" || fail "not expected: $*"; }
socket=/etc/systemd/system/sockets.target.wants/cni-dhcp.socket
# The administrator has enabled the socket, and not the service.
units_are_as_before() {
    [ "$(readlink -f $socket)" = "$(readlink -f /lib/systemd/system/cni-dhcp.socket)" ] || fail "the socket is not enabled"
    [ ! -e /etc/systemd/system/multi-user.target.wants/cni-dhcp.service ] || fail "the service is enabled"
}
status() { dpkg-query -W -f "\${db:Status-Status}" $1 2>/dev/null || true; }
# Without the lists of packages, which take apt 5 seconds to read.
go_back() { apt-get install -qq --yes -o APT::Sandbox::User=root -o Dir::State::Lists=/run/lists ./containernetworking-plugins.deb >apt.log 2>&1 || { cat apt.log; exit 1; }; }
'

test_the_package_takes_over_and_gives_back() {
    pack_reference
    cp "$package" .
    # A later version, for the upgrade.
    dpkg-deb --raw-extract "$package" later
    sed -i 's/^Version: .*/Version: 99/' later/DEBIAN/control
    dpkg-deb --root-owner-group -Znone --build later later.deb >/dev/null
    node / "$node_functions"'
        mkdir -p ${socket%/*}
        ln -sf /lib/systemd/system/cni-dhcp.socket $socket
        ip netns add pod
        equal "$(address ADD one)" 10.1.0.2/24

        dpkg --install ./ferrule-cni-plugins_*.deb
        equal "$(status ferrule-cni-plugins) $(status containernetworking-plugins)" "installed config-files"
        dpkg --verify ferrule-cni-plugins
        [ -z "$(dpkg --audit)" ]
        units_are_as_before
        grep -q ^ExecStart=/usr/lib/cni/ferrule-dhcp /lib/systemd/system/cni-dhcp.service
        units=$(dpkg --listfiles ferrule-cni-plugins | grep "^/lib/systemd/system/.*\\.")
        equal "$(wc -w <<<"$units")" 7
        not grep -F /opt/cni/bin $units
        [ -z "$(find /etc/systemd/system -name "ferrule-*")" ] || fail "a unit is enabled"
        if command -v systemd-analyze >/dev/null; then
            equal "$(SYSTEMD_LOG_LEVEL=warning systemd-analyze verify --man=no --recursive-errors=no $units 2>&1)" ""
        fi
        for daemon in dhcp nic node; do [ -x /usr/lib/cni/ferrule-$daemon ]; done
        for name in $(ferrule plugins | cut -d " " -f 1); do [ /usr/lib/cni/$name -ef /usr/lib/cni/ferrule ]; done
        for name in $(dpkg --contents ./containernetworking-plugins.deb | sed -n "s,.* \./usr/lib/cni/,,p"); do [ -x /usr/lib/cni/$name ]; done
        [ -e /usr/share/man/man1/ferrule.1.gz ] && [ -e /usr/share/bash-completion/completions/ferrule ]
        # What podman in Debian depends on.
        dpkg-query -W -f "\${Provides}" ferrule-cni-plugins | grep -F "container-network-stack (= 1)" >/dev/null
        equal "$(address ADD two) $(reserved)" "10.1.0.3/24 10.1.0.2 10.1.0.3 "
        host_port two 10.1.0.3 8080

        dpkg --install ./later.deb >/dev/null
        equal "$(dpkg-query -W -f "\${Version}" ferrule-cni-plugins) $(reserved)" "99 10.1.0.2 10.1.0.3 "
        units_are_as_before
        nft list table inet cni_portmap | grep 8080 >/dev/null
        [ -e /var/lib/cni/networks/.ferrule ]

        go_back
        equal "$(status ferrule-cni-plugins) $(status containernetworking-plugins)" "config-files installed"
        not ls /usr/lib/cni/ferrule /usr/sbin/ferrule /usr/lib/cni/tap 2>/dev/null
        equal "$(/usr/lib/cni/bridge 2>&1 | head -c 17)" "CNI bridge plugin"
        [ ! -e /var/lib/cni/networks/.ferrule ]
        not nft list table inet cni_portmap 2>/dev/null
        iptables-save -t nat | grep -- "--dport 8080 -j DNAT --to-destination 10.1.0.3:80" >/dev/null
        equal "$(address ADD three) $(reserved)" "10.1.0.4/24 10.1.0.2 10.1.0.3 10.1.0.4 "
        address DEL two
        equal "$(reserved)" "10.1.0.2 10.1.0.4 "
        dpkg --purge ferrule-cni-plugins >/dev/null
        units_are_as_before' || fail "see above"
}

# Removed without a successor: nothing of ours stays but the reservations.
test_the_package_leaves_nothing() {
    cp "$package" .
    node / "$node_functions"'
        dpkg --purge --force-depends containernetworking-plugins >/dev/null 2>&1 || true
        files() { (find /etc /lib/systemd/ /usr/lib/cni /usr/sbin /usr/share/doc /var/lib/systemd; find /usr/share -maxdepth 3) | sort; }
        mkdir -p /usr/lib/cni /var/lib/systemd
        files >/run/before
        dpkg --install ./ferrule-cni-plugins_*.deb >/dev/null
        [ ! -e $socket ]
        ip netns add pod
        equal "$(address ADD one)" 10.1.0.2/24
        dpkg --purge --force-depends ferrule-cni-plugins >/dev/null 2>&1
        equal "$(reserved)" "10.1.0.2 "
        mkdir -p /usr/lib/cni
        files >/run/after
        diff /run/before /run/after' || fail "see above"
}

# ---------------------------------------------------------------------------------------------------------------
# The package for rpm. Its tests need no Fedora: rpm works on a database of its own.

test_the_rpm_installs_and_leaves_nothing() {
    cp "$rpm" .
    node / "$node_functions"'
        db="--dbpath /run/rpm"
        dpkg --purge --force-depends containernetworking-plugins >/dev/null 2>&1 || true
        # The folder belongs to the package of fish.
        mkdir -p /usr/share/fish/vendor_completions.d
        plugin() {
            CNI_COMMAND=$2 CNI_CONTAINERID=$3 CNI_NETNS=/run/netns/pod CNI_IFNAME=eth0 CNI_PATH=/usr/libexec/cni /usr/libexec/cni/$1
        }
        files() { (find /etc /usr/lib/systemd /usr/libexec/cni /usr/sbin /usr/share/doc; find /usr/share -maxdepth 3) 2>/dev/null | sort; }
        mkdir -p /usr/libexec/cni /usr/lib/systemd/system
        files >/run/before
        # The database does not know the shell of this machine.
        rpm $db --nodeps --install ./ferrule-cni-plugins-*.rpm
        rpm $db --verify --nodeps ferrule-cni-plugins
        rpm $db --query --provides ferrule-cni-plugins | grep "containernetworking-plugins = 1" >/dev/null
        equal "$(rpm $db --query --requires ferrule-cni-plugins | grep -v "^rpmlib\|^/bin/sh")" ""
        for name in $(ferrule plugins | cut -d " " -f 1); do [ /usr/libexec/cni/$name -ef /usr/libexec/cni/ferrule ]; done
        not grep -rF /opt/cni/bin /usr/lib/systemd/system/{cni-dhcp,ferrule-}*
        ip netns add pod
        equal "$(address ADD one)" 10.1.0.2/24
        host_port one 10.1.0.2 8080
        rpm $db --nodeps --install --force ./ferrule-cni-plugins-*.rpm
        nft list table inet cni_portmap | grep 8080 >/dev/null
        rpm $db --erase ferrule-cni-plugins
        not nft list table inet cni_portmap 2>/dev/null
        iptables-save -t nat | grep -- "--dport 8080 -j DNAT --to-destination 10.1.0.2:80" >/dev/null
        equal "$(reserved)" "10.1.0.2 "
        [ ! -e /var/lib/cni/networks/.ferrule ]
        mkdir -p /usr/libexec/cni
        files >/run/after
        diff /run/before /run/after' || fail "see above"
}

# ---------------------------------------------------------------------------------------------------------------
# Only with --full

full_two_folders_make_the_same_files() {
    local name
    [ -z "$(git -C "$root" status --porcelain)" ] || fail "the checkout is not clean"
    git clone --quiet --local "$root" deep/in/another/folder
    env --unset=CARGO_TARGET_DIR deep/in/another/folder/release.sh --out there >&2 || fail "release.sh fails there"
    "$root/release.sh" --out here >&2 || fail "release.sh fails here"
    equal "$(wc -l <here/SHA256SUMS)" 8
    cmp here/SHA256SUMS there/SHA256SUMS || fail "$(diff here/SHA256SUMS there/SHA256SUMS)"
    # Both architectures have the same files.
    for name in amd64 arm64; do dpkg-deb --contents here/*_"$name".deb | awk '{ print $1, $6 }' | sort >"$name"; done
    cmp amd64 arm64 || fail "$(diff amd64 arm64)"
    for name in x86_64 aarch64; do rpm --query --list --package here/*."$name".rpm | sort >"$name"; done
    cmp x86_64 aarch64 || fail "$(diff x86_64 aarch64)"
}

# With the features that its own manifest names.
full_cargo_installs_the_suite() {
    cargo install --debug --locked --quiet --path "$root/conformance/suite" --root "$PWD" >&2 || fail "cargo install"
    [ -n "$(bin/cni-conformance list)" ] || fail "the command lists nothing"
}

# Debian 12 with containerd, and with what these commands install. Sets debian.
debian_12() {
    debian=$cache/debian-12-$arch
    [ ! -d "$debian" ] || return 0
    command -v mmdebstrap >/dev/null || DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends mmdebstrap >&2 ||
        fail "cannot install mmdebstrap"
    mkdir -p "$cache"
    mmdebstrap --quiet --mode=root --variant=minbase --include=containerd,curl,busybox-static \
        bookworm "$debian.new" http://deb.debian.org/debian >&2 && mv "$debian.new" "$debian" || fail "mmdebstrap"
}

# The commands of a section of docs/install.md.
commands_of() {
    awk -v heading="$1" '/^```/ { code = ($0 == "```sh"); next } code && here; !code && /^#/ { here = ($0 == heading) }' "$root/docs/install.md"
}

full_a_new_user_follows_the_documents() {
    local debian
    debian_12
    commands_of '### From the tarball, to a pod' >commands
    grep -q 'ferrule install' commands || fail "docs/install.md has no such commands"
    cp "$dist"/* .
    # There is no systemd, which would start containerd.
    node "$debian" '
        [ -z "$(command -v cargo rustc)" ]
        containerd >containerd.log 2>&1 &
        for try in {1..100}; do ! ctr version >/dev/null 2>&1 || break; sleep 0.1; done
        status=0
        bash -eux commands >said 2>&1 || status=$?
        cat said
        [ "$status" -eq 0 ]
        grep -qx "hello from the pod" said
        [ -z "$(ls -A /opt/cni/bin)" ]
        [ -z "$(ls /var/lib/cni/networks/ferrule | grep "^10")" ]
        # The parent of the containers outlives them: control groups have no namespace here.
        rmdir /sys/fs/cgroup/default /sys/fs/cgroup/*/default 2>/dev/null || true' || fail "see above"
}

# ---------------------------------------------------------------------------------------------------------------

full='' chosen=()
while [ $# -gt 0 ]; do
    case $1 in
    --full) full=1 ;;
    -h | --help)
        usage
        exit
        ;;
    -*) echo "tests/release.sh: unknown option '$1'; see --help" >&2; exit 2 ;;
    *) chosen+=("$1") ;;
    esac
    shift
done
[ "$(id -u)" -eq 0 ] || { echo "tests/release.sh: run this as root: it makes namespaces" >&2; exit 1; }
mapfile -t tests < <(declare -F | sed -n "s/^declare -f \(test_${full:+\\|full_}\)/\1/p")
[ ${#chosen[@]} -eq 0 ] || tests=("${chosen[@]}")

base=$(mktemp -d)
trap 'rm -rf -- "$base"' EXIT
"$root/build.sh" --arch "$arch" >/dev/null || exit 1
# Twice at once: the compressors use one core each.
again=$base/again
(umask 077 && TZ=Asia/Tokyo exec "$root/release.sh" --arch "$arch" --out "$again" >/dev/null) &
dist=$("$root/release.sh" --arch "$arch" --out "$base/dist") && wait $! || exit 1
tarball=$(echo "$dist"/ferrule-*.tar.gz) package=$(echo "$dist"/*.deb) rpm=$(echo "$dist"/*.rpm)
version=${tarball##*/ferrule-} version=${version%-linux-*}
for test in "${tests[@]}"; do
    work=$base/$test name=${test#*_}
    mkdir "$work"
    run_case "${name//_/ }" in_folder "$work" "$test"
    rm -rf -- "$work"
done
end_cases
