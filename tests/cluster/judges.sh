# Judges of policies from elsewhere, Cyclonus and the conformance suite of network-policy-api: to be sourced by tests/cluster.sh. Their pods are
# of agnhost, whose program is in KUBERNETES_BIN.
# shellcheck shell=bash disable=SC2154 # the caller sets them

# no_judge VARIABLE PROGRAM: why it cannot run; nothing if it can.
no_judge() {
    [ -n "$2" ] || { echo "$1 is empty"; return; }
    [ -x "$2" ] || { echo "$1: no program $2"; return; }
    [[ $2 != /tmp/* && $2 != /run/* ]] || { echo "$1: the nodes have a /tmp and a /run of their own"; return; }
    [ -x "$KUBERNETES_BIN/agnhost" ] || echo "no agnhost in KUBERNETES_BIN"
}
no_cyclonus() { no_judge CYCLONUS "${CYCLONUS-}"; }
policy_api_suite() { echo "${POLICY_API:+$POLICY_API/conformance.test}"; }
no_policy_api() { no_judge POLICY_API "$(policy_api_suite)"; }

# Whether this kernel has SCTP.
has_sctp() { [[ $("$KUBERNETES_BIN/agnhost" connect --protocol=sctp --timeout=1s 127.0.0.1:1 2>&1) != *"not supported"* ]]; }

# The images that both name.
judges_images() {
    local folder=$base/images/judges
    mkdir -p "$folder"/{tmp,etc}
    cp -a "$base/images/pod/bin" "$folder" && rm -f "$folder/bin/bash" && with_libraries "$folder" "$(command -v bash)" || return 1
    cp "$KUBERNETES_BIN/agnhost" "$folder" || return 1
    # Without SCTP its server ends, and the pod would never be ready.
    has_sctp || { mv "$folder/agnhost" "$folder/agnhost-all" && cat >"$folder/agnhost" <<'END' && chmod +x "$folder/agnhost"; } || return 1
#!/bin/bash
[ "$1" != porter ] || exec sleep 2147483647
exec /agnhost-all "$@"
END
    image registry.k8s.io/e2e-test-images/agnhost:2.43 "$folder" '{"Env": ["PATH=/bin"], "Entrypoint": ["/agnhost"], "Cmd": ["pause"]}' &&
        image registry.k8s.io/e2e-test-images/agnhost:2.45 "$folder" '{"Env": ["PATH=/bin"], "Entrypoint": ["/agnhost"], "Cmd": ["pause"]}'
}

# All of its cases, through Services; but it forgets the Service of a pod that comes, or whose labels change. It would also judge what a pod
# sends to itself, which Kubernetes always allows.
test_cyclonus() {
    local log=$base/cyclonus.log protocols=TCP,UDP,SCTP status=0 numbers
    has_sctp || protocols=TCP,UDP
    { run_cyclonus service-ip --exclude=action,upstream-e2e && run_cyclonus pod-ip --exclude= --include=action,upstream-e2e; } >"$log" 2>&1 || status=$?
    kubectl delete namespace x y z --ignore-not-found
    [ "$status" = 0 ] || fail "it ends with $status: $(tail -n 3 "$log")" || return 1
    # In its tables of results each case has a number.
    numbers="$(grep -cE '^\| [0-9]+: .*\| passed ' "$log") passed, $(grep -cE '^\| [0-9]+: .*\| failed ' "$log") failed, $protocols"
    echo "Cyclonus: $numbers" | tee -a "$base/measured"
    grep -E '^\| [0-9]+: .*\| failed ' "$log"
    [[ $numbers != 0\ * && $numbers == *" passed, 0 failed"* ]]
}
run_cyclonus() {
    on outside env KUBECONFIG=/run/admin "$CYCLONUS" generate --destination-type="$1" "${@:2}" --server-protocol="$protocols" --ignore-loopback \
        --perturbation-wait-seconds=1 --job-timeout-seconds=2 --retries=2 --pod-creation-timeout-seconds=300
}

# The standard channel, which has names of ports. The tests of inline CIDRs and of "gress" rules have a part of SCTP each.
test_policy_api() {
    local log=$base/policy-api.log crd=$POLICY_API/config/crd/standard/policy.networking.k8s.io_clusternetworkpolicies.yaml skip=${POLICY_API_SKIP-} status=0
    [ -n "$skip" ] || has_sctp || skip='SCTP|Gress|InlineCIDR'
    kubectl apply --filename - <"$crd" || return 1
    until_true 330 knows_cluster_policies || return 1
    on outside env KUBECONFIG=/run/admin "$(policy_api_suite)" -test.v -test.run='^TestConformance$' ${skip:+-test.skip="^TestConformance$/($skip)"} \
        -test.timeout=90m -supported-features=ClusterNetworkPolicyNamedPorts >"$log" 2>&1 || status=1
    echo "network-policy-api: $(grep -c '^ \{8\}--- PASS' "$log") passed, $(grep -c '^ \{8\}--- FAIL' "$log") failed${skip:+, without $skip}" | tee -a "$base/measured"
    grep -E '^ +--- FAIL' "$log"
    [ "$status" = 1 ] || grep -q '^ \{8\}--- PASS' "$log" || fail "no test ran: $(tail -n 3 "$log")" || return 1
    kubectl delete --filename - <"$crd" || return 1
    return "$status"
}
# Both daemons ask at least every five minutes whether the cluster has them.
knows_cluster_policies() {
    local daemon
    for daemon in $(kubectl -n kube-system get pods -l app.kubernetes.io/name=ferrule-node -o name); do
        kubectl -n kube-system logs "$daemon" -c node | grep 'the cluster has ClusterNetworkPolicies now' || return 1
    done
}
