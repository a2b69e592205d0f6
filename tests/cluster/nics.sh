# NICs of ResourceClaims on the node node1 of the cluster, which has two for pods: to be sourced by tests/cluster.sh.
# shellcheck shell=bash disable=SC2154 # the caller sets them

# Pairs of links to a network of their own.
make_nics() {
    local nic
    for nic in nic0 nic1; do
        net outside ip link add "$nic" type veth peer name "$nic" netns "${pids[node1]}" && net outside ip link set "$nic" up || return 1
    done
}

# nics: those that the node itself has.
nics() { on node1 sh -c 'cd /sys/class/net && echo nic*'; }
has_nics() { [ "$(nics)" = "$1" ]; }

# nic_pod NAME: it fails if its container starts without the NIC.
nic_pod() {
    kubectl create -f - <<END
apiVersion: v1
kind: Pod
metadata: {name: "$1", labels: {app: nic}}
spec:
  nodeSelector: {kubernetes.io/hostname: node1}
  restartPolicy: Never
  terminationGracePeriodSeconds: 0
  resourceClaims: [{name: nic, resourceClaimTemplateName: nic}]
  containers:
    - name: pod
      image: "$pod_image"
      command: [sh, -c, "[ -e /sys/class/net/net1 ] && exec sleep 2147483647"]
      resources: {claims: [{name: nic}]}
END
}
# The kubelet may just be away.
nic_pod_runs() { until_true 180 kubectl wait --for=condition=Ready pod "$1" --timeout=1s && until_true 60 kubectl exec "$1" -- ip link show net1; }
end_pods() { kubectl delete pod "$@" --ignore-not-found && until_true 120 has_no_pods "$@"; }
has_no_pods() { [ -z "$(kubectl get pod "$@" --ignore-not-found -o name)" ]; }

published() { [ "$(kubectl get resourceslices -o jsonpath='{.items[*].spec.devices[*].name}' | wc -w)" -eq 2 ]; }
driver_ready() { until_true 120 kubectl -n kube-system rollout status daemonset ferrule-nic-dra --timeout=1s && until_true 120 published; }

# The conflist of the nodes gets claims as its last plugin.
test_the_driver_publishes_the_nics() {
    local node
    make_nics || return 1
    for node in "${workers[@]}"; do
        on "$node" sh -c 'jq ".plugins += [{\"type\": \"claims\"}]" /etc/cni/net.d/10-ferrule.conflist >/run/ferrule/template' ||
            return 1
    done
    kubectl -n kube-system patch daemonset ferrule-node --type=json \
        --patch '[{"op": "add", "path": "/spec/template/spec/containers/0/args/-", "value": "--template=/run/ferrule/template"}]' || return 1
    daemons_ready && on node1 grep -q '"claims"' /etc/cni/net.d/10-ferrule.conflist || return 1
    sed "s/\(ferrule\):[^ ]*$/\1:$version/; s/'eth\*', 'ens\*'/'nic*'/; s/\[physical\]/[veth]/" \
        "$root/examples/dra/ferrule-nic.yaml" >"$base/nic.yaml"
    sed 's/"physical"/"veth"/' "$root/examples/dra/device-class.yaml" >"$base/class.yaml"
    kubectl apply --validate=strict -f /mnt/nic.yaml -f /mnt/class.yaml && kubectl label node node1 ferrule.dev/nic= || return 1
    kubectl create -f - <<END || return 1
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: nic}
spec: {spec: {devices: {requests: [{name: nic, exactly: {deviceClassName: nic.ferrule.dev}}]}}}
END
    driver_ready
}

# The policies of ferrule-nic.yaml. tests/cluster.sh has the requests of a daemon. An API server of 1.36 refuses what the second policy refuses,
# unless the driver has two rights more.
test_a_driver_writes_what_is_of_its_node() {
    local slice claim device
    slice='{"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": "x"}, "spec": {"driver": "nic.ferrule.dev",
        "nodeName": "NODE", "pool": {"name": "POOL", "generation": 9, "resourceSliceCount": 1}, "devices": [{"name": "x"}]}}'
    until_true 60 slice_says "${slice//NODE/node2}" "may change only the slices of that node" && slice_says "${slice//NODE/node1}" "has the name of the node" ||
        return 1
    kubectl create -f - <<END || return 1
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: more}
rules:
  - {apiGroups: [resource.k8s.io], resources: [resourceclaims/binding], verbs: [patch, update]}
  - {apiGroups: [resource.k8s.io], resources: [resourceclaims/driver], verbs: ["arbitrary-node:patch", "arbitrary-node:update"]}
END
    kubectl create clusterrolebinding more --clusterrole=more --serviceaccount=kube-system:ferrule-nic || return 1
    nic_pod own && nic_pod_runs own && claim=$(kubectl get resourceclaims -o jsonpath='{.items[0].metadata.name}') || return 1
    until_true 60 has_network_data "$claim" || fail "the driver has not reported the interface" || return 1
    device=$(kubectl get resourceclaims "$claim" -o jsonpath='{.status.allocation.devices.results[0].device}')
    claim_says node1 '{"allocation": null, "reservedFor": null, "devices": null}' "may change only the devices in the status" &&
        claim_says node1 '{"reservedFor": [{"resource": "pods", "name": "x", "uid": "x"}]}' "may change only the devices in the status" &&
        claim_says node2 '{"devices": [{"driver": "nic.ferrule.dev", "pool": "node1", "device": "'"$device"'"}]}' "may report only the devices of that node" &&
        kubectl delete clusterrole,clusterrolebinding more || return 1
    # The plugins read the kubelet's own file of claims: a record that is lost is missed.
    doctor_says "1 claims of pods, each with its record" && on node1 mv /var/lib/ferrule/dra /run/dra && doctor_says "has no record in" &&
        on node1 mv /run/dra /var/lib/ferrule/dra && end_pods own
}
doctor_says() {
    local said
    said=$(on node1 /opt/cni/bin/ferrule doctor 2>&1)
    [[ $said == *"$1"* ]] || fail "not '$1': $said"
}
slice_says() { [[ $(as_daemon ferrule-nic node1 POST /apis/resource.k8s.io/v1/resourceslices "${1//POOL/other}") == *"$2"* ]]; }
claim_says() {
    local said
    said=$(as_daemon ferrule-nic "$1" PATCH "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims/$claim/status" "{\"status\": $2}")
    [[ $said == *"$3"* ]] || fail "$1 $2: $said"
}
has_network_data() { kubectl get resourceclaims "$1" -o jsonpath='{.status.devices[0].networkData.interfaceName}' | grep -qx net1; }

test_two_pods_get_their_nics_and_a_third_waits() {
    local name
    for name in first second; do nic_pod "$name" && nic_pod_runs "$name" || return 1; done
    has_nics 'nic*' || fail "the node still has $(nics)" || return 1
    nic_pod third && until_true 60 kubectl wait --for=condition=PodScheduled=false pod third --timeout=1s || return 1
    end_pods first && nic_pod_runs third && end_pods second third && until_true 60 has_nics "nic0 nic1"
}

# FERRULE_KILLS times: a pod starts and ends while kubelet or driver is killed at a random moment of either.
test_no_kill_loses_a_nic() {
    local i kills=${FERRULE_KILLS:-50} failed_pods
    echo "seed ${FERRULE_SEED:=$RANDOM}"
    RANDOM=$FERRULE_SEED
    for ((i = 0; i < kills; i += 2)); do
        echo "kill $i"
        nic_pod "pod$i" && kill_one && nic_pod_runs "pod$i" || return 1
        kubectl delete pod "pod$i" --wait=false && kill_one || return 1
        failed_pods=$(kubectl get pods -l app=nic --field-selector status.phase=Failed -o name)
        [ -z "$failed_pods" ] || fail "without its NIC: $failed_pods" || return 1
    done
    until_true 180 has_nics "nic0 nic1" && driver_ready || fail "the node has $(nics)" || return 1
    for i in a b; do nic_pod "$i" && nic_pod_runs "$i" || return 1; done
    end_pods a b && until_true 60 has_nics "nic0 nic1"
}
# A kubelet starts again after half a second, and a driver's process too, unless it was killed before in the same pod: then the kubelet waits for
# seconds. A driver whose pod is deleted starts as a new pod.
kill_one() {
    sleep "$((RANDOM % 3)).$((RANDOM % 10))"
    case $((RANDOM % 3)) in
    0) until_true 60 signal node1 kubelet ;;
    1) until_true 60 on node1 pkill -KILL -x ferrule-nic ;;
    2) kubectl -n kube-system delete pod -l app.kubernetes.io/name=ferrule-nic-dra --force --wait=false --ignore-not-found ;;
    esac
}
