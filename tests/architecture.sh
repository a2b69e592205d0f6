#!/usr/bin/env bash
# Checks the rules of ARCHITECTURE.md, section "Rules that the lint step checks". Prints one line for each violation.
# The exit status is 1 if there is one. Needs cargo and jq, no root.
set -euo pipefail
export LC_ALL=C
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# What cargo builds for: crates that only other targets need are not looked at.
targets=(x86_64-unknown-linux-musl aarch64-unknown-linux-musl x86_64-unknown-linux-gnu aarch64-unknown-linux-gnu)

# Licences that every crate may have, and more of them for crates that need it, as "CRATE LICENCE".
licences=(Apache-2.0 MIT Unicode-3.0)
more_licences=(
    "matchit BSD-3-Clause" # of tonic's router, in ferrule-nic
    "ring ISC"             # of kube's TLS, in ferrule-node and ferrule-nic; so are the next three
    "rustls-webpki ISC"
    "untrusted ISC"
    "subtle BSD-3-Clause"
    "encoding_rs BSD-3-Clause"                        # of kube's reader of kubeconfig files
    "ar_archive_writer Apache-2.0 WITH LLVM-exception" # of a parser of kube, only while it is built
    "foldhash Zlib"                                   # of prost's generator, only while ferrule-nic is built
)

# Versions of crates that come in two versions.
second_versions=(
    base64@0.22.1       # by k8s-openapi, in ferrule-node and ferrule-nic
    getrandom@0.2.17    # by ring, in ferrule-node and ferrule-nic
    hashbrown@0.15.5    # by the compiler of protobuf definitions, while ferrule-nic is built; so are the next two
    itertools@0.14.0
    unicode-width@0.1.14
    cpufeatures@0.2.17  # by sha2 0.10; the other one only comes with proptest, into tests
    syn@2.0.119         # by macros of nftables, netlink-packet-route and dhcproto, which only tests and the daemons use
)

# Files that may open files for writing, beside host-local's store and the installation, which no plugin uses.
writers=(
    cni-common/src/netns.rs # opens a network namespace, for reading
    cni-common/src/plugin/call_log/file.rs # the log of calls, at a path that the administrator names
    cni-common/src/plugin/call_log/mod.rs  # opens ferrule.conf, for reading
    operator/inspect/src/calls/otlp.rs       # the file of spans, at a path that the user names
    kernel/src/file.rs      # replaces a file, whose path the caller names: state files, that for Prometheus, the totals in /run
    kernel/src/netns_file.rs # paths of network namespaces, which the caller names
    operator/inspect/src/selftest/pods.rs # the records of ferrule test, in /run/ferrule-test
    kernel/src/lock.rs      # creates a lock file, whose path the caller names
    kernel/src/sysctl.rs    # /proc/sys
    kernel/src/tun.rs       # /dev/net/tun; /proc/thread-self/attr/exec
    kit/kubelet/src/claims/folder.rs # the records of DRA claims, which ferrule-nic writes and gc removes
    plugins/ipam/dhcp/src/client.rs   # removes a lease's file beside the daemon's socket
    kit/policy/src/isolated.rs # the folder of the file of isolated namespaces, which ferrule-node writes
    kit/src/state_file.rs   # in /run/cni, in flannel's folder and that of claims, or in the configured dataDir of tuning, flannel and claims
)

# find_files NAME: the files of the source tree, without what cargo builds.
find_files() { find . \( -name target -o -name .git \) -prune -o -type f -name "$1" -print | sort; }

# code FOLDER ...: the code of these folders, as FILE:LINE:TEXT, without comments and test modules.
code() {
    # shellcheck disable=SC2016 # for awk to expand
    find "$@" -name '*.rs' ! -name tests.rs -print0 | sort -z | xargs -0 awk '
        FNR == 1 { in_test = 0; attribute = 0 }
        attribute && /^(pub\(super\) )?mod / { in_test = 1 }
        { is_test = attribute; attribute = /^[ \t]*#\[cfg\(test\)\]/ }
        !in_test && !is_test && !/^[ \t]*\/\// { print FILENAME ":" FNR ":" $0 }
        in_test && /^}/ { in_test = 0 }'
}

# Which kinds of crates a crate of each kind may use. The first list is for its library and programs, the second is
# for its tests in addition.
dependencies_point_downwards() {
    jq -r '
        def kind:
            if startswith("plugins/") then "plugin"
            elif test("^conformance/(runner|lab|suite)$") then "judge"
            elif startswith("kit/") and . != "kit/kubelet" then "kit/part"
            elif . == "conformance/fuzz" then "decoders"
            elif startswith("conformance/") then "tests"
            else . end;
        {
            "cni-common": [[], []],
            "kernel":     [[], ["judge", "tests"]],
            "kit":        [["cni-common", "kernel"], ["judge", "tests"]],
            "kit/kubelet": [["cni-common", "kernel"], ["judge", "tests"]],
            "kit/part":   [["cni-common", "kernel", "kit", "kit/kubelet"], ["judge", "tests"]],
            "plugin":     [["cni-common", "kernel", "kit", "kit/kubelet", "kit/part"], ["judge", "tests"]],
            "operator/install": [["cni-common", "kernel"], []],
            "operator/inspect": [["cni-common", "kernel", "kit", "kit/kubelet", "kit/part", "plugin"], []],
            "operator/ferrule": [["cni-common", "kernel", "kit", "plugin", "operator/install", "operator/inspect"], ["judge", "tests"]],
            "daemons/common": [["cni-common", "kernel"], []],
            "daemons/dhcp": [["cni-common", "kernel", "plugin", "daemons/common"], ["judge", "tests"]],
            "daemons/nic": [["cni-common", "kernel", "kit", "kit/kubelet", "daemons/common", "daemons/nic/proto"], ["judge", "tests"]],
            "daemons/nic/proto":  [[], []],
            "daemons/node": [["cni-common", "kernel", "kit", "kit/part", "daemons/common", "daemons/node/policy"], ["judge", "tests"]],
            "daemons/node/policy": [["kernel", "kit/part"], []],
            "judge":      [["judge"], ["kernel"]],
            "decoders":   [["cni-common", "kernel", "kit/kubelet", "kit/part", "plugin", "operator/inspect", "daemons/dhcp", "daemons/nic", "daemons/node"], ["judge"]],
            "tests":      [["judge", "tests", "cni-common", "kernel", "kit", "kit/kubelet", "daemons/nic/proto"], ["plugin", "operator/ferrule"]]
        } as $allowed
        | .workspace_root as $root
        | .packages[]
        | (.manifest_path | ltrimstr($root + "/") | rtrimstr("/Cargo.toml")) as $crate
        | $allowed[$crate | kind] as $lists
        | if $lists == null then "\($crate): tests/architecture.sh has no rule for this crate"
          else .dependencies[] | select(.path)
            | (.path | ltrimstr($root + "/")) as $used
            | (if .kind == "dev" then $lists[0] + $lists[1] else $lists[0] end) as $may
            | select($may | index($used | kind) | not)
            | "\($crate)/Cargo.toml: must not use \($used)"
          end' <<<"$metadata"
}

# By the features of its dependencies, and by the code: cargo gives all crates of one build the same features.
only_kernel_opens_sockets_and_enters_namespaces() {
    jq -r '
        .workspace_root as $root
        | .packages[]
        | (.manifest_path | ltrimstr($root + "/")) as $manifest
        | select($manifest | test("^(kernel|daemons|conformance)/") | not)
        | .dependencies[] | select(.kind != "dev")
        | select((.name | test("netlink|nftables|^(libc|neli|socket2|syscalls)$"))
            or (.name == "nix" and (.features | any(IN("sched", "socket", "net", "mount"))))
            or (.name == "rustix" and (.features | any(IN("net", "thread", "mount")))))
        | "\($manifest): only ferrule-kernel may use \(.name) \(.features | join(","))"' <<<"$metadata"
    grep -v '^kernel/' <<<"$code" |
        grep -E 'netlink_sys|libc::|\b(nix|rustix)::(sched|thread|net|mount)\b|sys::socket|\b(setns|unshare)\(|Command::new\("(ip|tc|nft)"' |
        sed 's/$/   <- only ferrule-kernel does this/' || true
}

daemons_are_not_linked_into_the_plugins() {
    grep -E '^(tokio|rtnetlink|dhcproto|tonic|kube|ferrule-dhcpd|ferrule-nic|ferrule-node) ' <<<"$ferrule_tree" |
        sed 's/^/operator\/ferrule\/Cargo.toml: depends on /' || true
}

cni_common_knows_no_netlink() {
    grep -Ei '^[^ ]*(netlink|nftables|netfilter)' <<<"$cni_common_tree" |
        sed 's/^/cni-common\/Cargo.toml: depends on /' || true
}

only_host_local_and_installation_write_files() {
    local others
    others=$(grep -vE '^(kit/reservations|operator/install)/' <<<"$code")
    grep -vf <(printf '^%s:\n' "${writers[@]}") <<<"$others" |
        grep -E 'fs::(write|copy|rename|hard_link|set_permissions|remove_|create_dir|open\b)|File::(create|options)|OpenOptions|DirBuilder|\b(symlink|linkat|mkdir)\(|O_CREAT|OFlags|tempfile' |
        sed 's/$/   <- only host-local and the installation write files/' || true
    # Absolute paths lead to /run or to the kernel's file systems. portmap's GC and the operator's commands read the runtime's
    # cache of results, those also the folders of host-local and flannel, the plugins', the networks' and the kubelet's, and tuning reads the
    # administrator's allowlist.
    # The report names the distribution. The log of calls has its configuration and a default file. /org names objects of D-Bus, /v1.PodResourcesLister a method of gRPC, and
    # text() takes a JSON pointer.
    grep -E '"/[a-z]' <<<"$others" |
        grep -vE '"/(run|proc|sys|dev)\b|"/(usr/)?(local/)?s?bin|"/var/lib/cni(/(results|networks|flannel))?"|"/opt/cni/bin"|"/etc/cni/net.d"|"/var/lib/kubelet"|"/var/lib/ferrule(/policy/isolated|/blocks)?"|"/etc/cni/tuning/allowlist.conf"|"/etc/cni/ferrule.conf"|"/etc/os-release"|"/var/log/ferrule.log"|"/org/|"/v1\.PodResourcesLister/|text\("/' |
        sed 's/$/   <- a path outside of \/run and \/proc/' || true
}

only_tun_has_unsafe() {
    grep -E 'allow\(unsafe_code' <<<"$code" | grep -v '^kernel/src/tun.rs:' |
        sed 's/$/   <- only kernel\/src\/tun.rs may be unsafe/' || true
}

# An expression of licences is one of alternatives, or several of them joined by AND.
crates_are_free() {
    jq -r '
        ($ARGS.named.licences | split("\n")) as $all
        | ($ARGS.named.more | split("\n") | map(capture("(?<name>[^ ]*) (?<licence>.*)"))) as $more
        | .packages
        | (.[] | .name as $name | ($all + [$more[] | select(.name == $name).licence]) as $may
            | select((.license // "none") | gsub(" */ *"; " OR ") | split(" AND ")
                | all(gsub("[()]"; "") | split(" OR ") | any(IN($may[]))) | not)
            | "\(.name) \(.version): licence \(.license // "none")"),
          ($more - [.[] | .name as $name | .license // "" | gsub("[()]"; "") | split(" (AND|OR) "; "")[]
                | {name: $name, licence: .}] | .[] | "\(.name): has no licence \(.licence)")
        ' --arg licences "$(printf '%s\n' "${licences[@]}")" --arg more "$(printf '%s\n' "${more_licences[@]}")" <<<"$graph"
}

crates_come_from_crates_io() {
    jq -r '.packages[] | select(.source // "registry+https://github.com/rust-lang/crates.io-index"
        | . != "registry+https://github.com/rust-lang/crates.io-index") | "\(.name) \(.version): from \(.source)"' <<<"$graph"
}

crates_come_in_one_version() {
    jq -r '
        ($ARGS.named.second | split("\n")) as $second
        | [.packages[] | "\(.name)@\(.version)"] as $found
        | ($second - $found | .[] | "\(.): is not used"),
          ($found - $second | group_by(sub("@.*"; "")) | .[] | select(length > 1) | join(" and "))
        ' --arg second "$(printf '%s\n' "${second_versions[@]}")" <<<"$graph"
}

# Every version is named, and everything in the list of the workspace is used.
dependencies_are_precise() {
    jq -r '.packages[] | .name as $name | .dependencies[] | select(.req == "*" and .path == null)
        | "\($name): any version of \(.name)"' <<<"$metadata"
    sed -n '/^\[workspace\.dependencies\]/,/^\[/s/^\([a-z0-9_-]*\) *=.*/\1/p' Cargo.toml |
        grep -vxFf <(jq -r '.packages[].dependencies[] | .rename // .name' <<<"$metadata") |
        sed 's/$/: no crate uses it/' || true
}

# Features of the crates that cargo compiles for tests, as CRATE|FEATURE,... of each variant.
features() {
    cargo tree --locked --target x86_64-unknown-linux-gnu --prefix none --no-dedupe --format '{p}|{f}' "$@" |
        sed -E 's/ \([^)]*\)//g' | sort -u
}

# Otherwise cargo compiles the plugins' tests, or what build scripts use, a second time for the tests of the whole workspace, and
# checks crates for clippy, and again for their documentation.
crates_are_compiled_once() {
    local options plugins all documented
    mapfile -t options < <(./tests/programs.sh --packages --of plugins)
    plugins=$(features "${options[@]}") all=$(features --workspace) documented=$(features --workspace --edges no-dev)
    missing 'conformance/lab/Cargo.toml: no' "$plugins" "$all"
    missing 'conformance/lab/Cargo.toml: there should be no' "$all" "$plugins"
    missing 'conformance/e2e/Cargo.toml: there should be no' "$all" "$documented"
}

# missing WORDS HERE THERE: the variants in THERE that HERE lacks, of crates that it has.
missing() {
    awk -F '|' -v words="$1" 'NR == FNR { known[$1]; has[$0]; next } $1 in known && !($0 in has) { print words " " $1 " with " $2 }' \
        - <(printf '%s\n' "$3") <<<"$2"
}

# They panic if the stream cannot be written, as on a full disk: remark! of cni-common does not.
nothing_panics_because_of_a_stream() {
    { printf '%s\n' "$code"; grep '^daemons/' <<<"$other_code"; } | grep -E '\b(e?print(ln)?|dbg)!' |
        sed 's/$/   <- takes remark!, or writes and ignores the error/' || true
}

modules_have_no_circles() {
    printf '%s\n' "$code" "$other_code" | awk -f tests/circles.awk | sort -u | { tsort 2>&1 >/dev/null || true; } |
        awk '/contains a loop/ { circles++; next } { circle[circles] = circle[circles] " " $2 } END { for (i in circle) print circle[i] }'
}

files_are_short() {
    local file lines
    find_files '*.rs' | while read -r file; do
        lines=$(wc -l <"$file")
        [ "$lines" -le 400 ] || printf '%s: %s lines, more than 400\n' "$file" "$lines"
    done
}

# A map that fits on a few screens. What belongs to one crate goes to the README of that crate.
map_is_short() {
    local bytes
    bytes=$(wc -c <ARCHITECTURE.md)
    [ "$bytes" -le 24576 ] || printf 'ARCHITECTURE.md: %s bytes, more than 24 KB\n' "$bytes"
}

# Headings of a file, as the anchors that GitHub makes.
anchors() { sed -n 's/^##* *//p' "$1" | tr '[:upper:]' '[:lower:]' | sed 's/[^a-z0-9 _-]//g; s/ /-/g'; }

links_resolve() {
    local file line target path
    find_files '*.md' | while read -r file; do
        awk '/^ *```/ { fence = !fence }
            !fence { gsub(/`[^`]*`/, ""); while (match($0, /\]\([^)]+\)/)) {
                print FNR, substr($0, RSTART + 2, RLENGTH - 3); $0 = substr($0, RSTART + RLENGTH) } }' "$file" |
            while read -r line target; do
                [[ $target != *://* && $target != mailto:* ]] || continue
                path=$file
                [ -z "${target%%#*}" ] || path=$(dirname "$file")/${target%%#*}
                if [ ! -e "$path" ]; then
                    printf '%s:%s: no file for the link %s\n' "$file" "$line" "$target"
                elif [[ $target == *'#'* ]] && ! anchors "$path" | grep -qxF -- "${target#*#}"; then
                    printf '%s:%s: no heading for the link %s\n' "$file" "$line" "$target"
                fi
            done
    done
}

# Each test that SECURITY.md names exists.
named_tests_exist() {
    local name
    # shellcheck disable=SC2016 # backquotes of Markdown
    grep -oE '`[a-z0-9]+(_[a-z0-9]+){2,}`' SECURITY.md | tr -d '`' | sort -u | while read -r name; do
        grep -rqE "fn $name\\(" --include='*.rs' cni-common kernel kit plugins daemons operator conformance ||
            printf 'SECURITY.md: there is no test %s\n' "$name"
    done
}

# Every page can be found from the list of pages.
pages_are_listed() {
    local page
    for page in docs/*.md docs/decisions/*.md plugins/*/*/README.md; do
        [ "$page" = docs/SUMMARY.md ] || grep -qF "](${page#docs/})" docs/SUMMARY.md || grep -qF "](../$page)" docs/SUMMARY.md ||
            printf '%s: not in docs/SUMMARY.md\n' "$page"
    done
}

# Read here, so that a failure to read ends the script.
metadata=$(cargo metadata --locked --no-deps --format-version 1)
graph=$(cargo metadata --locked --format-version 1 "${targets[@]/#/--filter-platform=}")
cni_common_tree=$(cargo tree --locked --package cni-common --edges normal,build --prefix none)
ferrule_tree=$(cargo tree --locked --package ferrule --edges normal,build --prefix none)
code=$(code cni-common/src kernel/src kit/src kit/*/src plugins/*/*/src operator/install/src operator/inspect/src operator/ferrule/src)
other_code=$(code daemons/common/src daemons/dhcp/src daemons/nic/src daemons/nic/proto/src daemons/node/src daemons/node/policy/src conformance/*/src)

violations=0
for rule in dependencies_point_downwards daemons_are_not_linked_into_the_plugins \
    only_kernel_opens_sockets_and_enters_namespaces cni_common_knows_no_netlink \
    crates_are_free crates_come_from_crates_io crates_come_in_one_version dependencies_are_precise crates_are_compiled_once \
    only_host_local_and_installation_write_files only_tun_has_unsafe nothing_panics_because_of_a_stream modules_have_no_circles files_are_short map_is_short links_resolve named_tests_exist pages_are_listed; do
    found=$("$rule")
    [ -n "$found" ] || continue
    violations=$((violations + $(wc -l <<<"$found")))
    while read -r line; do printf '%s: %s\n' "$rule" "$line"; done <<<"$found"
done
[ "$violations" -eq 0 ] || { printf 'architecture.sh: violations: %s; ARCHITECTURE.md has the rules\n' "$violations" >&2; exit 1; }
