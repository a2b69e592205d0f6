#!/usr/bin/env bash
# The manifest of ferrule-node on a real Kubernetes. Run with --help for the rest. The last line counts tests: "N passed, N failed".
#
# shellcheck disable=SC2015 # A && B || C: every C ends the test
# shellcheck disable=SC2016 # commands in single quotes are for shells of nodes and pods
set -uo pipefail
export LC_ALL=C
PATH=$PATH:/usr/sbin:/sbin

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
. "$root/tests/cases.sh"
. "$root/tests/cluster/rig.sh"
. "$root/tests/cluster/judges.sh"
. "$root/tests/cluster/leftovers.sh"
. "$root/tests/cluster/nics.sh"
. "$root/tests/cluster/power.sh"
. "$root/tests/cluster/sig-network.sh"
. "$root/tests/cluster/update.sh"

usage() {
    cat <<END
Usage: KUBERNETES_BIN=DIR tests/cluster.sh [--keep]

Starts a Kubernetes of two nodes in namespaces of this machine, without a network for
pods, applies examples/kubernetes/ferrule.yaml, and tests what the network promises:
traffic in both families, with kube-proxy by nftables and by iptables, on nodes where
Docker and flannel were before; a rolling update; a daemon and an API server that are
away; power losses; and those of examples/dra: pods get their NICs, whatever is killed.
Needs root.

  KUBERNETES_BIN  etcd, kube-apiserver, kube-controller-manager, kube-scheduler, kubelet,
                  kube-proxy and kubectl, of Kubernetes 1.30 or newer
  CONTAINERD_BIN  containerd, its shim and ctr (default: those in PATH)
  FERRULE_BIN_DIR the plugins and daemons (default: what build.sh builds)
  FERRULE_BEFORE  the programs and ferrule.yaml of a release before: a rolling update from
                  it and back
  SIG_NETWORK     a pattern of names of Kubernetes' own tests of networks, if e2e.test and
                  agnhost are in KUBERNETES_BIN (default: those of the conformance of pods,
                  Services and host ports; "none")
  NETPOL          a pattern of names of Kubernetes' own tests of NetworkPolicies, such as
                  Netpol, after those of SIG_NETWORK (default: none)
  CYCLONUS        Cyclonus' program, which tries its 230 cases of NetworkPolicies (default:
                  none); needs agnhost in KUBERNETES_BIN
  POLICY_API      the sources of network-policy-api with conformance.test, which
                  "go test -c ./conformance" makes: tests of ClusterNetworkPolicies
                  (default: none); needs agnhost in KUBERNETES_BIN
  POLICY_API_SKIP a pattern of names of these tests that do not run (default: none, but
                  those with a part of SCTP if the kernel has none)
  FERRULE_KILLS   how often kubelet or driver is killed (default: 50)
  --keep          wait for a key before the cluster ends; its folder has the logs
END
}

die() { echo "tests/cluster.sh: $*" >&2; exit 2; }
fail() { printf '%s\n' "$*"; return 1; }
equal() { [ "$1" = "$2" ] || fail "is '$1' instead of '$2'"; }

# ---------------------------------------------------------------------------------------------------------------
# What the tests ask

# Names and addresses of the pods of web, one on each node: pod, ip4, ip6 [NODE].
declare -A pod=() ip4=() ip6=()
find_pods() {
    local name node v4 v6
    while read -r name node v4 v6; do
        pod[$node]=$name ip4[$node]=$v4 ip6[$node]=$v6
    done < <(kubectl get pods -l app=web -o \
        jsonpath='{range .items[*]}{.metadata.name} {.spec.nodeName} {.status.podIPs[0].ip} {.status.podIPs[1].ip}{"\n"}{end}')
    [ ${#ip6[@]} -eq 2 ] || fail "no two pods with two addresses: ${ip6[*]}"
}

in_pod() { kubectl exec "${pod[$1]}" -- "${@:2}"; }

# ask PLACE ADDRESS PORT: the answer of the web server, "CLIENT'S ADDRESS SERVER'S NAME". PLACE is a pod's node, or on:NODE for
# the node itself.
ask() {
    local host=$2
    [[ $host != *:* ]] || host="[$host]"
    case $1 in
    on:*) on "${1#on:}" curl --silent --show-error --globoff --noproxy '*' --max-time 3 "http://$host:$3/cgi-bin/who" ;;
    *) in_pod "$1" sh -c 'printf "GET /cgi-bin/who HTTP/1.0\r\n\r\n" | timeout 3 nc "$@" | tail -n 1' sh "$2" "$3" ;;
    esac | sed 's/^\[::ffff:\(.*\)\]/\1/; s/^\[\(.*\)\]/\1/'
}

# answers PLACE ADDRESS PORT WHO: within 30 seconds. WHO is a pattern of the answer.
answers() {
    local end=$((SECONDS + 30)) answer
    while :; do
        answer=$(ask "$1" "$2" "$3" 2>&1)
        # shellcheck disable=SC2053 # a pattern
        [[ $answer != $4 ]] || return 0
        [ "$SECONDS" -lt "$end" ] || fail "$1 asks $2 port $3: '$answer' instead of '$4'" || return 1
        sleep 0.3
    done
}

daemon_pid() { on "$1" pgrep -x ferrule-node; }
daemons_ready() { until_true 120 kubectl -n kube-system rollout status daemonset ferrule-node --timeout=1s; }

# ---------------------------------------------------------------------------------------------------------------
# The network

# manifest FILE TAG NAME: /mnt/NAME, with the images of this tag.
manifest() { sed "s,\(image: registry.example/ferrule\):.*,\1:$2," "$1" >"$base/$3"; }

test_one_manifest_makes_the_nodes_ready() {
    local node
    for node in "${workers[@]}"; do clock "$node"; done
    kubectl apply --validate=strict -f /mnt/ferrule.yaml || return 1
    until_true 180 kubectl wait --for=condition=Ready node --all --timeout=1s || return 1
    daemons_ready
}

# clock NODE: BASE/NODE-seconds gets the time from the start of the daemon's process to its first "ready".
clock() {
    on "$1" bash -c 'until curl --silent --fail --max-time 2 --noproxy "*" http://127.0.0.1:9477/readyz >/run/readyz; do sleep 0.1; done
        start=$(cut -d " " -f 22 "/proc/$(pgrep -o -x ferrule-node)/stat")
        echo "$(cut -d " " -f 1 /proc/uptime) $start $(getconf CLK_TCK)" | awk "{ print \$1 - \$2 / \$3 }"' </dev/null >"$base/$1-seconds" &
}

test_a_daemon_is_ready_within_20_seconds() {
    local node seconds
    for node in "${workers[@]}"; do
        seconds=$(cat "$base/$node-seconds")
        printf '%s: ready after %s s\n' "$node" "$seconds" >>"$base/measured"
        awk "BEGIN { exit !($seconds > 0 && $seconds < 20) }" || fail "$node: $seconds s" || return 1
    done
}

# The endpoint needs SYS_ADMIN, SYS_CHROOT and SYS_PTRACE.
test_the_rights_are_enough_for_the_health_endpoint() {
    local node
    for node in "${workers[@]}"; do until_true 60 has_proofs "$node" || return 1; done
}
has_proofs() {
    on "$1" jq --exit-status '[.health.local[], .health.peers[]] | length == 4 and all(.proof == "proved")' /run/ferrule/node/status.json
}

test_pods_start_on_both_nodes() {
    cp "$root/tests/cluster/pods.yaml" "$base"
    kubectl apply -f /mnt/pods.yaml && until_true 120 kubectl rollout status daemonset web --timeout=1s && find_pods
}

# The server sees the pod's own address.
test_pods_reach_each_other_without_nat() {
    local from to
    for from in "${workers[@]}"; do
        for to in "${workers[@]}"; do
            answers "$from" "${ip4[$to]}" 80 "${ip4[$from]} ${pod[$to]}" || return 1
            answers "$from" "${ip6[$to]}" 80 "${ip6[$from]} ${pod[$to]}" || return 1
            answers "on:$from" "${ip4[$to]}" 80 "* ${pod[$to]}" || return 1
            answers "on:$from" "${ip6[$to]}" 80 "* ${pod[$to]}" || return 1
        done
    done
}

test_a_service_reaches_the_pods_of_both_nodes() {
    local address to
    for address in $(kubectl get service web -o jsonpath='{.spec.clusterIPs[*]}'); do
        for to in "${workers[@]}"; do
            answers node1 "$address" 80 "* ${pod[$to]}" && answers on:node2 "$address" 80 "* ${pod[$to]}" || return 1
        done
    done
}

test_node_ports_and_host_ports_answer_from_outside() {
    local node address to
    for node in "${workers[@]}"; do
        for address in "${address4[$node]}" "${address6[$node]}"; do
            # Also a node whose FORWARD drops packets leads to pods of others.
            for to in "${workers[@]}"; do answers on:outside "$address" 30080 "* ${pod[$to]}" || return 1; done
            [ "$address" = "${address6[$node]}" ] || answers on:outside "$address" 8080 "${address4[outside]} ${pod[$node]}" || return 1
        done
    done
}

test_what_leaves_the_cluster_has_the_nodes_address() {
    local node
    for node in "${workers[@]}"; do
        answers "$node" "${address4[outside]}" 8000 "${address4[$node]} *" || return 1
        answers "$node" "${address6[outside]}" 8000 "${address6[$node]} *" || return 1
    done
}

test_status_knows_the_other_node() {
    local said
    said=$(on node1 /opt/cni/bin/ferrule-node status) || return 1
    echo "$said"
    [[ $said == *node2* && $said == *10.244.* ]]
}

# ---------------------------------------------------------------------------------------------------------------
# Nothing of it is in the way of traffic

# Connections that send a number ten times a second, from the pod on node1 to the echo servers on node2, which send it back.
connect() {
    in_pod node1 sh -c 'for address in "$@"; do
        (n=0; while :; do echo $((n = n + 1)); sleep 0.1; done | nc "$address" 9000 >"/tmp/$address" 2>&1; echo ended >>"/tmp/$address") </dev/null >/dev/null 2>&1 &
    done' sh "${ip4[node2]}" "${ip6[node2]}"
}

received() { in_pod node1 tail -n 1 "/tmp/$1"; }

# Each number has come back, and they go on coming.
still_connected() {
    local address before
    for address in "${ip4[node2]}" "${ip6[node2]}"; do
        before=$(received "$address")
        until_true 30 goes_on "$address" "$before" || return 1
        in_pod node1 awk '$1 != NR { print NR ": " $0; exit 1 }' "/tmp/$address" || return 1
    done
}
goes_on() { [ "$(received "$1")" -gt "$2" ]; }

test_a_rolling_update_loses_no_connection() {
    local before after
    connect && still_connected || return 1
    before=$(daemon_pid node1)
    kubectl -n kube-system rollout restart daemonset ferrule-node && daemons_ready && still_connected || return 1
    after=$(daemon_pid node1)
    [ "$before" != "$after" ] || fail "the daemon is still $before"
}

# The next daemon has the same route.
test_a_killed_daemon_loses_no_connection() {
    local route
    route=$(on node1 ip -4 route show via "${address4[node2]}")
    [ -n "$route" ] || fail "no route by ${address4[node2]}" || return 1
    on node1 sh -c 'kill -KILL $(pgrep -x ferrule-node)' && still_connected || return 1
    until_true 120 daemon_pid node1 && daemons_ready && still_connected || return 1
    equal "$(on node1 ip -4 route show via "${address4[node2]}")" "$route"
}

test_a_deleted_route_comes_back() {
    # shellcheck disable=SC2046 # the route's words
    on node1 ip route delete $(on node1 ip -4 route show via "${address4[node2]}") || return 1
    until_true 30 has_route && still_connected
}
has_route() { [ -n "$(on node1 ip -4 route show via "${address4[node2]}")" ]; }

# A static pod needs no API server, nor does the daemon's next start.
test_pods_start_while_the_api_server_is_away() {
    local status=0
    halt outside apiserver && without_api_server || status=1
    resume outside apiserver && until_true 60 kubectl get --raw=/readyz || return 1
    until_true 120 kubectl wait --for=condition=Ready pod static-node1 --timeout=1s && daemons_ready && still_connected || return 1
    on node1 rm /run/manifests/static.yaml
    return "$status"
}
without_api_server() {
    ! kubectl get --raw=/readyz --request-timeout=3s >/dev/null 2>&1 || fail "the API server answers" || return 1
    on node1 sh -c 'kill -KILL $(pgrep -x ferrule-node)' && until_true 90 goes_by_the_file node1 && says node1 "waiting policy-unknown" || return 1
    static_pod node1 && until_true 60 static_address node1 4 || return 1
    answers on:node2 "$(static_address node1 4)" 80 "* static-node1" && until_true 60 daemon_pid node1
}

# ---------------------------------------------------------------------------------------------------------------
# Rights

# as_daemon ACCOUNT NODE METHOD PATH OBJECT: a request by the daemon of NODE, and what the API server says to it. PATCH is a merge patch.
as_daemon() {
    local type=application/json
    [ "$3" != PATCH ] || type=application/merge-patch+json
    on outside curl --silent --insecure --request "$3" --header "Authorization: Bearer admin" \
        --header "Impersonate-User: system:serviceaccount:kube-system:$1" \
        --header "Impersonate-Group: system:serviceaccounts" --header "Impersonate-Group: system:authenticated" \
        --header "Impersonate-Extra-authentication.kubernetes.io%2fnode-name: $2" \
        --header "Content-Type: $type" --data "$5" "https://127.0.0.1:6443$4"
}
patch_node1() { as_daemon ferrule-node "$1" PATCH /api/v1/nodes/node1 "$2"; }

test_a_daemon_writes_its_own_annotations_and_nothing_else() {
    local key='{"metadata": {"annotations": {"ferrule.dev/wireguard-key": "x"}}}' said row
    until_true 60 own_key_only "$key" || return 1
    for row in '{"spec": {"unschedulable": true}}' '{"metadata": {"labels": {"x": "y"}}}' '{"metadata": {"annotations": {"x": "y"}}}' \
        '{"metadata": {"annotations": {"volumes.kubernetes.io/controller-managed-attach-detach": null}}}'; do
        said=$(patch_node1 node1 "$row")
        [[ $said == *"may change only its annotations"* ]] || fail "$row: $said" || return 1
    done
}
# The API server takes some seconds to know a policy.
own_key_only() {
    [[ $(patch_node1 node2 "$1") == *"only the Node that it runs on"* ]] && [[ $(patch_node1 node1 "$1") == *'"ferrule.dev/wireguard-key": "x"'* ]]
}

# ---------------------------------------------------------------------------------------------------------------
# The end

test_cleanup_leaves_the_nodes_as_they_were() {
    local node
    kubectl -n kube-system delete daemonset ferrule-node ferrule-nic-dra --ignore-not-found && kubectl delete daemonset web &&
        kubectl delete pods --all && until_true 120 no_pods || return 1
    for node in "${workers[@]}"; do
        # The runtime needs the conflist for the last DEL.
        until_true 60 has_no_pods_netns "$node" && on "$node" /opt/cni/bin/ferrule-node cleanup || return 1
        equal "$(on "$node" ip route show proto 79; on "$node" ip -6 route show proto 79; on "$node" ls /run/netns | grep ferrule)" "" || return 1
        equal "$(on "$node" grep -l ferruleNode -r /etc/cni/net.d)" "" || return 1
        equal "$(on "$node" nft list ruleset | grep -E 'ferrule_(node|guard|policy|pods)|FERRULE-NODE')" "" || return 1
    done
}
has_no_pods_netns() { ! on "$1" ls /run/netns | grep -qv ferrule; }
no_pods() { [ -z "$(kubectl get pods -A -o name)" ]; }

# ---------------------------------------------------------------------------------------------------------------

keep=''
case ${1-} in
-h | --help) usage; exit ;;
--keep) keep=1 ;;
?*) die "unknown option '$1'; see --help" ;;
esac
[ "$(id -u)" -eq 0 ] || die "run this as root: it makes namespaces"
[ -n "${KUBERNETES_BIN-}" ] || die "KUBERNETES_BIN names no folder; see --help"
CONTAINERD_BIN=${CONTAINERD_BIN-$(dirname "$(command -v containerd)")} || die "no containerd"
for program in "$KUBERNETES_BIN"/{etcd,kube-apiserver,kube-controller-manager,kube-scheduler,kubelet,kube-proxy,kubectl} \
    "$CONTAINERD_BIN"/{containerd,containerd-shim-runc-v2,ctr} /bin/busybox; do
    [ -x "$program" ] || die "no program $program"
    [[ $program != /tmp/* && $program != /run/* ]] || die "$program: the nodes have a /tmp and a /run of their own"
done
bin_dir=${FERRULE_BIN_DIR:-$("$root/build.sh")} || exit 1
version=$("$bin_dir/ferrule" version | sed 's/^ferrule v\([^ ]*\).*/\1/;q')

base=$(mktemp -d)
ended() {
    local node
    for node in "${workers[@]}"; do [ -z "${pids[$node]-}" ] || on "$node" cp -r /var/log/pods "/mnt/$node-pods"; done
    stop_cluster
    [ "$failed" -eq 0 ] && [ -z "$keep" ] && rm -rf -- "$base" || echo "logs: $base"
}
trap ended EXIT
"$KUBERNETES_BIN/kubectl" version --client | head -n 1
for program in kubelet kube-proxy; do "$KUBERNETES_BIN/$program" --version; done
"$KUBERNETES_BIN/etcd" --version | head -n 1
"$CONTAINERD_BIN/containerd" --version
"$bin_dir/ferrule" version | head -n 1
uname -sr

# cases NAME ...
cases() {
    local name
    for name in "$@"; do run_case "${name//_/ }" "test_$name"; done
}
# The rest cannot do without them.
needed() {
    local name before=$failed
    for name in "$@"; do
        cases "$name"
        [ "$failed" -eq "$before" ] || { end_cases; exit 1; }
    done
}
skip() { echo "skip  $*"; }
# unless REASON TITLE NAME: a test, or why it is skipped.
unless() { if [ -z "$1" ]; then cases "$3"; else skip "$2: $1"; fi; }

run_case "the cluster starts" start_cluster
start outside web busybox httpd -f -p 8000 -h /mnt/images/pod/www
manifest "$root/examples/kubernetes/ferrule.yaml" "$version" ferrule.yaml
if [ -n "${FERRULE_BEFORE-}" ]; then
    needed the_release_before_makes_the_nodes_ready
    cases an_update_from_the_release_before_degrades_no_node the_release_before_comes_back
    needed an_update_from_the_release_before_degrades_no_node a_drained_node_changes_to_ptp cleanup_leaves_the_nodes_as_they_were
else
    skip "an update from the release before: FERRULE_BEFORE names no folder"
fi
needed docker_and_flannel_were_there_before one_manifest_makes_the_nodes_ready
cases a_daemon_is_ready_within_20_seconds the_node_names_what_flannel_left
needed pods_start_on_both_nodes
cases the_rights_are_enough_for_the_health_endpoint docker_forwards_nothing_by_itself pods_reach_each_other_without_nat
for mode in nftables iptables; do
    [ "$mode" = "$proxy_mode" ] || run_case "kube-proxy changes to $mode" change_proxy "$mode"
    for test in a_service_reaches_the_pods_of_both_nodes node_ports_and_host_ports_answer_from_outside; do
        run_case "${test//_/ }, by $mode" "test_$test"
    done
done
cases what_leaves_the_cluster_has_the_nodes_address status_knows_the_other_node a_rolling_update_loses_no_connection \
    a_killed_daemon_loses_no_connection a_deleted_route_comes_back pods_start_while_the_api_server_is_away \
    a_daemon_writes_its_own_annotations_and_nothing_else both_nodes_lose_power_while_the_api_server_is_away \
    a_daemon_of_the_node_knows_the_others_from_its_disk
unless "$(no_sig_network)" "Kubernetes' own tests of networks" sig_network
unless "$(no_network_policies)" "Kubernetes' own tests of NetworkPolicies" network_policies
unless "$(no_cyclonus)" "Cyclonus' cases" cyclonus
unless "$(no_policy_api)" "the conformance suite of network-policy-api" policy_api
if [ "${FERRULE_KILLS-}" = 0 ]; then
    skip "the NICs: FERRULE_KILLS is 0"
else
    cases the_driver_publishes_the_nics a_driver_writes_what_is_of_its_node two_pods_get_their_nics_and_a_third_waits no_kill_loses_a_nic
fi
cases cleanup_leaves_the_nodes_as_they_were
[ ! -e "$base/measured" ] || cat "$base/measured"
[ -z "$keep" ] || read -rp "the cluster is in the namespaces of ${pids[*]}: "
end_cases
