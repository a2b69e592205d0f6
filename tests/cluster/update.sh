# The release before, and back: to be sourced by tests/cluster.sh.
# shellcheck shell=bash disable=SC2154 # the caller sets them
# shellcheck disable=SC2016 # commands in single quotes are for shells of nodes and pods

# The release before, without the words of this one, makes the nodes ready.
test_the_release_before_makes_the_nodes_ready() {
    manifest "$FERRULE_BEFORE/ferrule.yaml" before before.yaml
    kubectl apply -f /mnt/before.yaml && until_true 180 kubectl wait --for=condition=Ready node --all --timeout=1s && daemons_ready || return 1
    test_pods_start_on_both_nodes && test_pods_reach_each_other_without_nat && connect && still_connected
}

# watch_words NODE: each answer of /readyz but "ready", until the file /run/watched goes. No answer is no word.
watch_words() {
    on "$1" bash -c 'touch /run/watched; while [ -e /run/watched ]; do
        said=$(curl --silent --max-time 2 --noproxy "*" http://127.0.0.1:9477/readyz | tr "\n" " ")
        [ -z "$said" ] || echo "$(date +%T) $said"
        sleep 0.1
    done' >"$base/$1-words" 2>&1 &
}

# moves_to MANIFEST: a rolling update. The connections go on, and no node is degraded.
moves_to() {
    local node
    for node in "${workers[@]}"; do watch_words "$node"; done
    kubectl apply -f "/mnt/$1" && daemons_ready && still_connected || return 1
    sleep 20 # the proofs of the new daemons
    for node in "${workers[@]}"; do on "$node" rm /run/watched; done
    for node in "${workers[@]}"; do
        cut -d ' ' -f 2- "$base/$node-words" | uniq -c
        ! grep -E 'degraded|not ready' "$base/$node-words" || fail "$node was degraded" || return 1
    done
}

test_an_update_from_the_release_before_degrades_no_node() { moves_to ferrule.yaml && test_pods_reach_each_other_without_nat; }
test_the_release_before_comes_back() { moves_to before.yaml && test_pods_reach_each_other_without_nat; }

# Pods of the release before are on a bridge.
test_a_drained_node_changes_to_ptp() {
    local node
    for node in "${workers[@]}"; do says "$node" "ready bridge-kept" || return 1; done
    kubectl delete daemonset web && until_true 60 has_no_web || return 1
    for node in "${workers[@]}"; do
        says "$node" ready && until_true 30 on "$node" jq --exit-status '[.. | .type? // empty] | index("ptp")' /etc/cni/net.d/10-ferrule.conflist || return 1
        until_true 60 has_no_bridge "$node" || return 1
    done
    test_pods_start_on_both_nodes
}
has_no_bridge() { [ -z "$(on "$1" ip -brief link show type bridge)" ]; }
has_no_web() { [ -z "$(kubectl get pods -l app=web -o name)" ]; }
