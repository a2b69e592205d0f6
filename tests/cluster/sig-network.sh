# Kubernetes' own tests of networks, e2e.test: to be sourced by tests/cluster.sh. They need the image agnhost, which cannot be pulled: its
# program is in KUBERNETES_BIN, and the rest of it is this machine's, with OpenBSD's nc. They also need a DNS server for the names of
# Services, which KUBERNETES_BIN may have: "cluster-dns KUBECONFIG".
# shellcheck shell=bash disable=SC2154 # the caller sets them
# shellcheck disable=SC2016 # commands in single quotes are for shells of nodes and pods

has_sig_network() { [ -x "$KUBERNETES_BIN/e2e.test" ] && [ -x "$KUBERNETES_BIN/agnhost" ] && [ "${SIG_NETWORK-}" != none ]; }

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

# Its images, named as e2e.test names them.
sig_network_images() {
    local folder=$base/images/agnhost name images
    mkdir -p "$folder"/{tmp,uploads,root,etc,usr}
    cp -a "$base/images/pod/bin" "$folder" && rm -f "$folder"/bin/{bash,curl,ss,ip} || return 1
    for name in bash curl ss ip nc.openbsd; do
        ! command -v "$name" >"$base/last" || with_libraries "$folder" "$(command -v "$name")" || return 1
    done
    [ ! -e "$folder/bin/nc.openbsd" ] || mv "$folder/bin/nc.openbsd" "$folder/bin/nc"
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
    images=$("$KUBERNETES_BIN/e2e.test" --list-images 2>"$base/last") || return 1
    grep '/e2e-test-images/agnhost:' <<<"$images" | while read -r name; do
        image "$name" "$folder" '{"Env": ["PATH=/bin"], "Entrypoint": ["/agnhost"], "Cmd": ["pause"]}' || return 1
    done
    grep -aE '/(busybox|pause):' <<<"$images" | while read -r name; do
        image "$name" "$base/images/pod" '{"Env": ["PATH=/bin"], "Cmd": ["sleep", "2147483647"]}' || return 1
    done
}

# Two at a time, if ginkgo is there.
test_sig_network() {
    local status=0 node network run=("$KUBERNETES_BIN/e2e.test")
    local focus=${SIG_NETWORK:-\\[sig-network\\]}
    if [ -x "$KUBERNETES_BIN/ginkgo" ]; then
        run=("$KUBERNETES_BIN/ginkgo" --procs=2 --no-color --timeout=90m --focus="$focus" --skip="$left_out" "$KUBERNETES_BIN/e2e.test" --)
    else
        run+=(--ginkgo.no-color --ginkgo.timeout=90m --ginkgo.focus="$focus" --ginkgo.skip="$left_out")
    fi
    # The API server is a proxy to pods.
    for node in "${workers[@]}"; do
        for network in $(kubectl get node "$node" -o jsonpath='{.spec.podCIDRs[*]}'); do
            case $network in *:*) on outside ip route replace "$network" via "${address6[$node]}" ;; *) on outside ip route replace "$network" via "${address4[$node]}" ;; esac || return 1
        done
    done
    [ ! -x "$KUBERNETES_BIN/cluster-dns" ] || start outside dns "$KUBERNETES_BIN/cluster-dns" /run/admin
    on outside env KUBECONFIG=/run/admin "${run[@]}" --provider=local --num-nodes=2 --kubectl-path="$KUBERNETES_BIN/kubectl" --disable-log-dump \
        >"$base/sig-network.log" 2>&1 || status=1
    grep -aE '^Ran [0-9]+ of' "$base/sig-network.log" | tee -a "$base/measured"
    grep -aE '^(FAIL|SUCCESS)!|-- [0-9]+ Passed' "$base/sig-network.log" | tee -a "$base/measured"
    [ "$status" = 0 ] || grep -aE '^ *\[(FAIL|PANICKED|TIMEDOUT)\]' "$base/sig-network.log" | sort -u
    return "$status"
}
