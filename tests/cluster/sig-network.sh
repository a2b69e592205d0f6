# Kubernetes' own tests of networks, e2e.test: to be sourced by tests/cluster.sh. They need the image agnhost, which cannot be pulled: its
# program is in KUBERNETES_BIN, and the rest of it is this machine's, with OpenBSD's nc. They also need a DNS server for the names of
# Services, which KUBERNETES_BIN may have: "cluster-dns KUBECONFIG".
# shellcheck shell=bash disable=SC2154 # the caller sets them
# shellcheck disable=SC2016 # commands in single quotes are for shells of nodes and pods

# Why tests cannot run; nothing if they can. Without the last programs some specs fail, or wait for hours.
no_own_tests() {
    local name
    for name in e2e.test agnhost; do
        [ -x "$KUBERNETES_BIN/$name" ] || { echo "no $name in KUBERNETES_BIN"; return; }
    done
    for name in bash curl ss ip nc.openbsd openssl; do
        command -v "$name" >"$base/last" || { echo "this machine has no $name"; return; }
    done
}
no_sig_network() { if [ "${SIG_NETWORK-}" = none ]; then echo "SIG_NETWORK=none"; else no_own_tests; fi; }
no_network_policies() {
    [ -n "${NETPOL-}" ] || { echo "NETPOL is empty"; return; }
    [ -z "$(no_own_tests)" ] || { no_own_tests; return; }
    grep -q -- --policy <<<"$("$bin_dir/ferrule-node" --help)" || echo "ferrule-node has no option --policy"
}
has_own_tests() { [ -z "$(no_sig_network)" ] || [ -z "$(no_network_policies)" ]; }

# What they are about is not in the cluster (DNS, load balancers, SCTP, network policies), or they end what other tests need.
left_out='DNS|LoadBalancer|Load.?balancer|SCTP|NetworkPolic|Ingress|\[Disruptive\]|\[Feature:|\[Alpha\]|FeatureGate:|\[Slow\]|\[Serial\]|IPerf|kube-dns|invalid conntrack state'

# with_libraries FOLDER PROGRAM ...: copies programs and their libraries.
with_libraries() {
    local folder=$1 file
    shift
    mkdir -p "$folder/bin"
    for file in "$@"; do
        cp "$file" "$folder/bin/" || return 1
        ldd "$file" | grep -o '/[^ ]*' | while read -r library; do
            mkdir -p "$folder${library%/*}" && cp -L "$library" "$folder$library"
        done
    done
}

# Their images, named as e2e.test names them.
own_images() {
    local folder=$base/images/agnhost name images
    mkdir -p "$folder"/{tmp,uploads,root,etc,usr}
    cp -a "$base/images/pod/bin" "$folder" && rm -f "$folder"/bin/{bash,curl,ss,ip} || return 1
    for name in bash curl ss ip nc.openbsd; do with_libraries "$folder" "$(command -v "$name")" || return 1; done
    mv "$folder/bin/nc.openbsd" "$folder/bin/nc"
    # The applets of busybox come first in its own shell.
    ln -sf bash "$folder/bin/sh"
    # Beside glibc, wget of the static busybox breaks.
    rm "$folder/bin/wget" && cat >"$folder/bin/wget" <<'END'
#!/bin/bash
while [ $# -gt 0 ]; do
    case $1 in -T) seconds=$2; shift ;; -O) shift ;; -*) ;; *) url=$1 ;; esac
    shift
done
exec curl --disable --silent --globoff --connect-timeout "${seconds:-5}" "$url"
END
    chmod +x "$folder/bin/wget"
    ln -s bin "$folder/sbin" && ln -s ../bin "$folder/usr/bin"
    cp "$KUBERNETES_BIN/agnhost" "$folder" && ln -s agnhost "$folder/agnhost-2"
    echo root:x:0:0:root:/root:/bin/sh >"$folder/etc/passwd"
    # "agnhost porter" serves TLS with them.
    openssl req -x509 -newkey rsa:2048 -nodes -days 365 -subj /CN=localhost -keyout "$folder/localhost.key" -out "$folder/localhost.crt" \
        2>"$base/last" || return 1
    images=$("$KUBERNETES_BIN/e2e.test" --list-images 2>"$base/last") || return 1
    grep '/e2e-test-images/agnhost:' <<<"$images" | while read -r name; do
        image "$name" "$folder" '{"Env": ["PATH=/bin"], "Entrypoint": ["/agnhost"], "Cmd": ["pause"]}' || return 1
    done
    # Its shell reads /proc/net/nf_conntrack.
    grep -aE '/(busybox|distroless-iptables|pause):' <<<"$images" | while read -r name; do
        image "$name" "$base/images/pod" '{"Env": ["PATH=/bin"], "Cmd": ["sleep", "2147483647"]}' || return 1
    done
}

# own_tests LOG FOCUS SKIP: Kubernetes' own tests with such names. Two at a time, if ginkgo is there.
own_tests() {
    local status=0 node network log=$base/$1.log run=("$KUBERNETES_BIN/e2e.test")
    if [ -x "$KUBERNETES_BIN/ginkgo" ]; then
        run=("$KUBERNETES_BIN/ginkgo" --procs=2 --no-color --timeout=90m --focus="$2" --skip="$3" "$KUBERNETES_BIN/e2e.test" --)
    else
        run+=(--ginkgo.no-color --ginkgo.timeout=90m --ginkgo.focus="$2" --ginkgo.skip="$3")
    fi
    # The API server is a proxy to pods.
    for node in "${workers[@]}"; do
        for network in $(kubectl get node "$node" -o jsonpath='{.spec.podCIDRs[*]}'); do
            case $network in *:*) on outside ip route replace "$network" via "${address6[$node]}" ;; *) on outside ip route replace "$network" via "${address4[$node]}" ;; esac || return 1
        done
    done
    [ ! -x "$KUBERNETES_BIN/cluster-dns" ] || on outside test -e /run/dns.pid || start outside dns "$KUBERNETES_BIN/cluster-dns" /run/admin
    on outside env KUBECONFIG=/run/admin "${run[@]}" --provider=local --num-nodes=2 --kubectl-path="$KUBERNETES_BIN/kubectl" --disable-log-dump \
        >"$log" 2>&1 || status=1
    grep -aE '^Ran [0-9]+ of' "$log" | tee -a "$base/measured"
    grep -aE '^(FAIL|SUCCESS)!|-- [0-9]+ Passed' "$log" | tee -a "$base/measured"
    [ "$status" = 0 ] || grep -aE '^ *\[(FAIL|PANICKED|TIMEDOUT)\]' "$log" | sort -u
    return "$status"
}

# With the kube-proxy that runs, which is that by iptables.
test_sig_network() { own_tests sig-network "${SIG_NETWORK:-\\[sig-network\\]}" "$left_out"; }

test_network_policies() {
    own_tests network-policies "$NETPOL" 'SCTPConnectivity|\[Disruptive\]'
}
