#!/usr/bin/env bash
# Claims blocks of addresses from a real API server. Run with --help for the rest.
set -euo pipefail
export LC_ALL=C
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. tests/shared/policies.sh

usage() {
    cat <<END
Usage: KUBERNETES_BIN=DIR tests/shared.sh

Starts etcd and kube-apiserver of DIR in namespaces of their own, applies
examples/shared/ferrule-blocks.yaml, and runs the daemons of two nodes with the
tokens of their pods. Asks for what docs/shared.md promises: policies, quota and
what cannot be changed; then for ADDs and DELs at once on both nodes while daemons
and API server are killed, RESTARTS times (12) or more. Needs root, openssl and
kubectl in DIR. FERRULE_NODE is another ferrule-node than that of FERRULE_BIN_DIR.
END
}

case ${1-} in
    "") ;;
    --inside) ;;
    -h | --help) usage; exit ;;
    *) usage >&2; exit 2 ;;
esac
[ -x "${KUBERNETES_BIN-}/kube-apiserver" ] || { echo "KUBERNETES_BIN has no kube-apiserver" >&2; exit 2; }
if [ "${1-}" != --inside ]; then
    FERRULE_BIN_DIR=${FERRULE_BIN_DIR:-$(./build.sh)}
    export RESTARTS=${RESTARTS:-12} FERRULE_BIN_DIR FERRULE_NODE=${FERRULE_NODE:-$FERRULE_BIN_DIR/ferrule-node}
    base=$(mktemp -d) && export base
    trap 'rm -rf "$base"' EXIT
    # When the shell ends, all processes in there end.
    unshare --net --pid --fork --kill-child --mount-proc tests/shared.sh --inside
    exit
fi

say() { printf 'shared.sh: %s\n' "$*"; }
die() { say "$*" >&2; tail -n 5 "$base"/*.log >&2; exit 1; }

until_true() {
    local end=$((SECONDS + $1))
    shift
    until "$@" >"$base/last" 2>&1; do
        [ "$SECONDS" -lt "$end" ] || die "not in time: $*: $(tail -n 3 "$base/last")"
        sleep 0.3
    done
}

# refused TEXT COMMAND ...: the command fails with this text. Its standard input goes to the command.
refused() {
    local text=$1
    shift
    ! "$@" >"$base/last" 2>&1 || die "not refused: $*"
    grep -qF "$text" "$base/last" || die "$*: $(cat "$base/last")"
}

kube() { "$KUBERNETES_BIN/kubectl" --kubeconfig "$base/$1.kubeconfig" "${@:2}"; }

kubeconfig() {
    printf '{"apiVersion":"v1","kind":"Config","current-context":"t","clusters":[{"name":"t","cluster":{"server":"https://127.0.0.1:6443",
        "insecure-skip-tls-verify":true}}],"users":[{"name":"t","user":{"token":"%s"}}],
        "contexts":[{"name":"t","context":{"cluster":"t","user":"t"}}]}' "$2" >"$base/$1.kubeconfig"
}

api_server() {
    "$KUBERNETES_BIN/kube-apiserver" --etcd-servers=http://127.0.0.1:2379 --service-account-issuer=https://test \
        --service-account-key-file="$base/key" --service-account-signing-key-file="$base/key" --cert-dir="$base/certs" \
        --token-auth-file="$base/tokens" --authorization-mode=RBAC --service-cluster-ip-range=10.96.0.0/16 \
        --bind-address=127.0.0.1 --advertise-address=192.0.2.1 --secure-port=6443 >>"$base/api.log" 2>&1 &
    api=$!
}

# daemon NODE KUBECONFIG: its PID goes to the array.
declare -A daemons=()
daemon() {
    "$FERRULE_NODE" --kubeconfig "$base/$2.kubeconfig" --node-name "$1" blocks --ledgers "$base/$1/ledgers" \
        --socket "$base/$1/sock" --compare-every 5 --keep-empty 5 --keep-scarce 1 >>"$base/$1.log" 2>&1 &
    daemons[$1]=$!
}

# call NODE VERB CONTAINER DOMAIN SIZE SUBNET
call() {
    printf '{"cniVersion":"1.1.0","name":"%s","type":"macvlan","ipam":{"type":"shared","domain":"%s","blockSize":%s,"subnet":"%s",
        "dataDir":"%s","ledgers":"%s","socket":"%s"}}' "$4" "$4" "$5" "$6" "$base/$1/stores" "$base/$1/ledgers" "$base/$1/sock" |
        env -i CNI_COMMAND="$2" CNI_CONTAINERID="$3" CNI_NETNS=/none CNI_IFNAME=eth0 CNI_PATH=/none "$FERRULE_BIN_DIR/shared"
}

ip link set lo up
ip link add link0 type veth peer name link1 && ip addr add 192.0.2.1/24 dev link0 && ip link set link0 up && ip link set link1 up
openssl genrsa -out "$base/key" 2048 2>/dev/null
echo 'admin-token,admin,1,"system:masters"' >"$base/tokens"
kubeconfig admin admin-token
"$KUBERNETES_BIN/etcd" --data-dir "$base/etcd" --listen-client-urls http://127.0.0.1:2379 --advertise-client-urls http://127.0.0.1:2379 \
    --listen-peer-urls http://127.0.0.1:2380 >"$base/etcd.log" 2>&1 &
api_server
until_true 300 kube admin get --raw /readyz
until_true 60 kube admin apply --validate=false -f examples/shared/ferrule-blocks.yaml
until_true 60 kube admin get addressblocks
for node in node-1 node-2; do
    until_true 30 kube admin get --raw /api
    kube admin apply --validate=false -f - >/dev/null <<END
{"apiVersion": "v1", "kind": "List", "items": [
  {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "$node"}},
  {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "$node", "namespace": "kube-system"}, "spec": {"nodeName": "$node",
    "serviceAccountName": "ferrule-blocks", "automountServiceAccountToken": false, "containers": [{"name": "x", "image": "x"}]}}]}
END
    kubeconfig "$node" "$(kube admin --namespace kube-system create token ferrule-blocks --bound-object-kind Pod --bound-object-name "$node")"
    mkdir "$base/$node"
    daemon "$node" "$node"
    until_true 30 test -S "$base/$node/sock"
done
say "the API server and two daemons run"

until_true 30 call node-1 ADD first lan 16 10.20.0.0/24
until_true 30 call node-2 ADD first lan 16 10.20.0.0/24
refused 'the domain lan has other ranges' call node-2 ADD other lan 8 10.20.0.0/24
policies
say "nobody changes what is fixed; an intruder with the token of one node has a quota, and deletes no block of a machine that may run"

# Containers come and go while everything restarts; in the end each has an address.
adds() {
    local pod
    for pod in $(seq 24); do
        while :; do
            until call "$1" ADD "pod$pod" pool 4 10.21.0.0/26 >"$base/$1/answer.$pod" 2>&1; do sleep 0.3; done
            [ ! -e "$base/enough" ] || break
            sleep "0.$RANDOM"
            # Without an answer the container does not count, so DEL may not fail.
            rm "$base/$1/answer.$pod" && call "$1" DEL "pod$pod" pool 4 10.21.0.0/26
            echo >>"$base/$1/dels"
        done &
    done
    wait
}
adds node-1 & adders=($!)
adds node-2 & adders+=($!)
restarts=0
while kill -0 "${adders[@]}" 2>/dev/null; do
    sleep 0.5
    restarts=$((restarts + 1))
    [ "$restarts" -lt "$RESTARTS" ] || touch "$base/enough"
    case $((restarts % 4)) in
        0) kill -KILL "$api"; wait "$api" || true; api_server ;;
        *) node=node-$((1 + restarts % 2)); kill -KILL "${daemons[$node]}"; wait "${daemons[$node]}" || true; daemon "$node" "$node" ;;
    esac
    [ "$SECONDS" -lt 3600 ] || die "not all containers have an address"
    # The API server needs some seconds to start.
    until_true 300 kube admin get --raw /readyz
done 2>/dev/null
given=$(grep -ho '"address": "[0-9.]*' "$base"/node-?/answer.* | sort)
[ "$(wc -l <<<"$given")" -eq 48 ] || die "$(wc -l <<<"$given") addresses, not 48"
[ -z "$(uniq -d <<<"$given")" ] || die "given twice: $(uniq -d <<<"$given")"
say "48 containers have 48 addresses after $restarts restarts; meanwhile $(cat "$base"/node-?/dels | wc -l) ended"
