# What a real API server says to requests for AddressBlocks: to be sourced by tests/shared.sh.
# shellcheck shell=bash disable=SC2154 # the caller sets them

# Each request is tried for 30 seconds, as the API server knows a policy or its parameters some milliseconds late. It changes nothing: the
# API server judges all of it, and stores nothing.
#
# judged NODE WHAT ANSWER COMMAND ...: what kubectl says to the daemon of NODE. ANSWER is "allowed", or a part of the message.
judged() {
    local node=$1 what=$2 answer=$3 end=$((SECONDS + 30))
    shift 3
    until answers "$node" "$answer" "$@"; do
        [ "$SECONDS" -lt "$end" ] || die "$node, $what: not '$answer' but: $(cat "$base/last")"
        sleep 0.2
    done
    say "$node, $what: $(if [ "$answer" = allowed ]; then echo allowed; else tail -n 1 "$base/last"; fi)"
}
answers() {
    local node=$1 answer=$2
    shift 2
    if kube "$node" "$@" --dry-run=server <"$base/object" >"$base/last" 2>&1; then
        [ "$answer" = allowed ]
    else
        [ "$answer" != allowed ] && grep -qF "$answer" "$base/last"
    fi
}

# block NAME NODE SLOT [DOMAIN [FIRST SIZE]]: a block as an intruder would claim it, who has a daemon's token.
block() {
    printf '{"apiVersion": "ferrule.dev/v1alpha1", "kind": "AddressBlock", "metadata": {"name": "%s.%s"}, "spec": {"domain": "%s", "first": "%s",
        "size": %s, "node": "%s", "machine": "m", "store": "s", "network": "n", "slot": %s}}\n' "${prefix-judged}" "$1" "${4-judged}" "${5-10.0.0.1}" "${6-1}" "$2" "$3"
}

# creates NODE WHAT ANSWER BLOCK'S WORDS ...
creates() {
    local node=$1 what=$2 answer=$3
    shift 3
    block "$@" >"$base/object"
    judged "$node" "creates $what" "$answer" create --validate=false --filename -
}
# adds SUBNET ADDRESS SIZE ANSWER: a range to the domain whose object is there.
adds() {
    sed "s|\"ranges\": \[|&{\"subnet\": \"$1\", \"rangeStart\": \"$2\", \"rangeEnd\": \"$2\", \"blockSize\": $3},|" "$base/domain" >"$base/object"
    judged node-1 "adds $1 in blocks of $3" "$4" replace --validate=false --filename -
}
changes() { judged "$1" "changes $2" "$3" patch addressblock "judged.$4" --type=merge --patch "$5"; }
deletes() { judged "$1" "deletes $2" "$3" delete addressblock "judged.$4"; }

policies() {
    local only="may claim blocks only for the node that it runs on" fenced="or those of a Node with the taint out-of-service"
    # Of each policy a refusal comes first: then the API server knows it.
    local boot='{"metadata": {"annotations": {"ferrule.dev/boot": "b"}}}'
    : >"$base/object"
    # The Node "gone" has no object. A token that no pod and no Node has names no node.
    kube admin create --validate=false --filename - >"$base/last" <<'END'
{"apiVersion": "v1", "kind": "List", "items": [
  {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "off"}, "spec": {"taints": [{"key": "node.kubernetes.io/out-of-service", "effect": "NoExecute"}]}},
  {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "away"}, "spec": {"taints": [{"key": "node.kubernetes.io/unreachable", "effect": "NoExecute"}]}}]}
END
    { block own node-1 3; block other node-2 5; block off off 0; block away away 0; block gone gone 0; } |
        kube admin create --validate=false --filename - >"$base/last"
    kubeconfig nobody "$(kube admin --namespace kube-system create token ferrule-blocks)"

    creates node-1 "a block of another node" "$only" new node-2 0
    creates node-1 "a block of its own" allowed new node-1 0
    creates nobody "a block" "$only" new node-1 0
    creates node-1 "a block in the slot of another one of its own" "another block of this node has the slot" new node-1 3
    creates node-1 "a block in the slot of another node's block" allowed new node-1 5
    creates node-1 "its last block" allowed new node-1 63
    creates node-1 "one more" "has as many blocks as it may have" new node-1 64
    creates node-1 "a block that is named after another domain" "the name has to begin with the domain" new node-1 3 elsewhere
    creates node-1 "a block of a domain with a dot" "should match" new node-1 3 judged.new
    creates node-1 "a block that exists" "already exists" other node-1 0

    changes node-1 "the boot of another node's block" "$only" other "$boot"
    changes node-1 "the boot of its own block" allowed own "$boot"
    changes nobody "the boot of a block" "$only" own "$boot"
    changes node-1 "the node of another node's block" "a claim cannot be changed" other '{"spec": {"node": "node-1"}}'
    changes node-1 "the slot of its own block" "a claim cannot be changed" own '{"spec": {"slot": 4}}'

    deletes node-1 "another node's block" "$fenced" other
    deletes node-1 "its own block" allowed own
    deletes nobody "a block" "$fenced" own
    deletes node-1 "a block of a Node with the taint out-of-service" allowed off
    deletes node-1 "a block of a Node with another taint" "$fenced" away
    deletes node-1 "a block of a Node without an object" allowed gone
    judged node-1 "deletes all blocks" "cannot deletecollection" delete --raw "/apis/ferrule.dev/v1alpha1/addressblocks?dryRun=All"
    judged node-1 "deletes a domain" "cannot delete" delete addressdomain lan
    # The domain lan has blocks of 16 addresses in 10.20.0.0/24.
    prefix=lan creates node-1 "a block of another size" "no range with blocks of this size there" 10-20-0-0 node-1 40 lan 10.20.0.0 256
    prefix=lan creates node-1 "a block outside of all ranges" "no range with blocks of this size there" 10-21-0-0 node-1 40 lan 10.21.0.0 16
    prefix=lan creates node-1 "a block of the domain's size" allowed 10-20-0-240 node-1 40 lan 10.20.0.240 16
    judged admin "deletes a domain with blocks" "first delete the blocks of the domain" delete addressdomain lan
    kube admin get addressdomain lan --output json >"$base/domain"
    sed 's/"blockSize": [0-9]*/"blockSize": 8/' "$base/domain" >"$base/object"
    judged node-1 "changes a range" "neither changed nor removed" replace --validate=false --filename -
    cp "$base/domain" "$base/object"
    judged node-1 "writes a domain as it is" allowed replace --validate=false --filename -
    adds 10.20.0.0/24 10.20.0.250 32 "has smaller blocks in this subnet"
    adds 10.20.0.0/16 10.20.9.0 32 "has smaller blocks in this subnet"
    adds x x 1 "or it is no subnet"
    adds 10.20.0.0/24 10.20.0.250 1 allowed
    adds fd00:20::/64 fd00:20::1 256 allowed
    judged node-1 "sets the taint" "cannot patch" patch node node-2 --type=merge --patch '{"spec": {"taints": [{"key": "node.kubernetes.io/out-of-service", "effect": "NoExecute"}]}}'
    kube admin delete addressblocks judged.{own,other,off,away,gone} >"$base/last" && kube admin delete nodes off away >"$base/last"
}
