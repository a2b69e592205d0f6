# Power losses while the API server is away: to be sourced by tests/cluster.sh.
# shellcheck shell=bash disable=SC2154 # the caller sets them
# shellcheck disable=SC2016 # commands in single quotes are for shells of nodes and pods

# static_pod NODE: a pod that needs no API server.
static_pod() {
    on "$1" sh -c 'mkdir -p /run/manifests && cat >/run/manifests/static.yaml' <<END
apiVersion: v1
kind: Pod
metadata: {name: static}
spec:
  terminationGracePeriodSeconds: 0
  containers: [{name: web, image: "$pod_image", command: [httpd, -f, -p, "80", -h, /www]}]
END
}

# static_pid NODE: the process of its sandbox. The kubelet keeps that from before a power loss for a while.
static_pid() {
    local id tasks
    tasks=$(ctr "$1" tasks list) || return 1
    for id in $(ctr "$1" containers list -q "labels.\"io.kubernetes.pod.name\"==static-$1,labels.\"io.cri-containerd.kind\"==sandbox"); do
        awk -v id="$id" '$1 == id && $3 == "RUNNING" { print $2 }' <<<"$tasks"
    done | grep .
}

# static_address NODE FAMILY
static_address() {
    local pid
    pid=$(static_pid "$1") && on "$1" nsenter --target "$pid" --net ip -"$2" -o address show dev eth0 scope global | sed -n 's/.* inet6* \([^/]*\).*/\1/p' | grep .
}

# static_answers FROM TO: the pod of TO answers to the network of the pod of FROM, in both families.
static_answers() {
    local pid family address
    pid=$(static_pid "$1") || return 1
    for family in 4 6; do
        address=$(static_address "$2" "$family") || return 1
        [ "$family" = 4 ] || address="[$address]"
        on "$1" nsenter --target "$pid" --net curl --silent --show-error --globoff --noproxy '*' --max-time 3 "http://$address/cgi-bin/who" |
            grep -q " static-$2\$" || fail "static-$1 does not reach $address of $2" || return 1
    done
}

lose_power_of_both() {
    local node
    halt outside apiserver || return 1
    ! kubectl get --raw=/readyz --request-timeout=3s >/dev/null 2>&1 || fail "the API server answers" || return 1
    for node in "${workers[@]}"; do power_off "$node" || return 1; done
    for node in "${workers[@]}"; do power_on "$node" && static_pod "$node" || return 1; done
}

# The kubelet starts pods of a DaemonSet only when the API server answers. Until then pods have the conflist and the plugins of the disk.
test_both_nodes_lose_power_while_the_api_server_is_away() {
    local status=0 node
    lose_power_of_both || return 1
    for node in "${workers[@]}"; do until_true 120 static_answers "$node" "$node" || status=1; done
    resume outside apiserver && until_true 60 kubectl get --raw=/readyz || return 1
    until_true 180 daemons_ready_again && for node in "${workers[@]}"; do says "$node" ready || return 1; done || return 1
    until_true 60 static_answers node1 node2 && until_true 60 static_answers node2 node1 || return 1
    until_true 180 kubectl rollout status daemonset web --timeout=1s && find_pods && test_pods_reach_each_other_without_nat || return 1
    for node in "${workers[@]}"; do on "$node" rm /run/manifests/static.yaml; done
    return "$status"
}
# The API server still has the conditions from before.
daemons_ready_again() {
    local node
    for node in "${workers[@]}"; do on "$node" curl --silent --fail --max-time 3 --noproxy '*' http://127.0.0.1:9477/readyz || return 1; done
    kubectl -n kube-system rollout status daemonset ferrule-node --timeout=1s
}

# unit NODE: the daemon as ferrule-node.service runs it.
unit() {
    start "$1" ferrule-node env NODE_NAME="$1" /opt/cni/bin/ferrule-node --kubeconfig=/var/lib/ferrule/node.kubeconfig --root=/proc/1/root \
        --no-repair --gc-every=0 --source-guard=on
}

# As a service of the node the daemon starts without the API server, and knows the nodes from its disk.
test_a_daemon_of_the_node_knows_the_others_from_its_disk() {
    local status=0 node token
    kubectl -n kube-system delete daemonset ferrule-node && until_true 60 no_daemons || return 1
    for node in "${workers[@]}"; do
        token=$(kubectl -n kube-system create token ferrule-node --bound-object-kind=Node --bound-object-name="$node") || return 1
        config "$token" | on "$node" tee /var/lib/ferrule/node.kubeconfig >"$base/last"
        unit "$node"
    done
    for node in "${workers[@]}"; do says "$node" ready || return 1; done
    # It writes the plan at most every 10 seconds.
    for node in "${workers[@]}"; do until_true 30 on "$node" test -s /var/lib/ferrule/node/plan || return 1; done
    lose_power_of_both || return 1
    for node in "${workers[@]}"; do unit "$node"; done
    for node in "${workers[@]}"; do
        until_true 60 goes_by_the_file "$node" && says "$node" ready || status=1
    done
    until_true 120 static_answers node1 node2 && until_true 120 static_answers node2 node1 || status=1
    resume outside apiserver && until_true 60 kubectl get --raw=/readyz || return 1
    for node in "${workers[@]}"; do
        until_true 60 follows "$node" && says "$node" ready || status=1
        halt "$node" ferrule-node && on "$node" rm /run/manifests/static.yaml || return 1
    done
    kubectl apply -f /mnt/ferrule.yaml && until_true 180 daemons_ready_again || return 1
    until_true 180 kubectl rollout status daemonset web --timeout=1s && find_pods && test_pods_reach_each_other_without_nat || return 1
    return "$status"
}
no_daemons() { [ -z "$(kubectl -n kube-system get pods -l app.kubernetes.io/name=ferrule-node -o name)" ]; }
# The status fails while policies are not known, so its text counts.
goes_by_the_file() { said_by_status "$1" 'by the file of'; }
follows() { said_by_status "$1" 'followed since'; }
said_by_status() { [[ $(on "$1" /opt/cni/bin/ferrule-node status --no-probe) == *"$2"* ]]; }
