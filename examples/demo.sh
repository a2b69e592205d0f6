#!/usr/bin/env bash
# Shows the plugins at work on a temporary node. --help has the options.
set -euo pipefail
export LC_ALL=C

here=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")" && pwd -P)

usage() {
    cat <<'TEXT'
Usage: examples/demo.sh [--bin-dir DIR] [--runner FILE]

Makes a node, two pods and an outside client from network namespaces. Attaches
the pods through the conflists in this folder, as a container runtime does. Then
a pod pings its gateway, the other pod and the client. The client, the node and the
pod itself connect to the pod's host port. The script measures a pod with a
bandwidth limit and one without. At the end it detaches the pods, checks that the
host port is closed, and looks for leftovers. This takes less than ten seconds.

Needs root, and the commands ip, ss, nft, ping, iperf3 and unshare. Everything runs
in private namespaces, with a private /run and /var/lib/cni. The machine's network
and files do not change. Only kernel modules stay loaded; if ifb is a module, it
creates two unused links, ifb0 and ifb1.

  --bin-dir DIR  the folder with the plugins (default: build them with ./build.sh)
  --runner FILE  the program that acts as the runtime (default: cnirun in that folder)
  -h, --help     print this

The exit status is 0 if every step succeeded.
TEXT
}

die() { printf 'demo.sh: %s\n' "$*" >&2; exit 1; }
headline() { printf '\n== %s\n' "$*"; }
ok() { printf '  ok    %s\n' "$*"; }
show() { printf '        %s\n' "$*"; }
fail() { printf '  FAIL  %s\n' "$*"; exit 1; }

readonly node_v4=192.0.2.1 client_v4=192.0.2.2
readonly node_v6=2001:db8::1 client_v6=2001:db8::2
readonly pods=(pod1 pod2)
readonly loopback_dir=/run/cni/loopback.d
# The runtime's limits for pod1 in bit/s, to it and from it. containerd sends this burst if none is configured.
readonly to_pod1=10000000 from_pod1=20000000 burst=4294967295
# The port of the node that leads to port 80 of pod1.
readonly host_port=8080
readonly mappings="\"portMappings\": [{\"hostPort\": $host_port, \"containerPort\": 80, \"protocol\": \"tcp\"}]"
readonly -A cap_args=(
    [ferrule/pod1]="{\"bandwidth\": {\"ingressRate\": $to_pod1, \"ingressBurst\": $burst,
        \"egressRate\": $from_pod1, \"egressBurst\": $burst}, $mappings}"
    [ferrule-dual-stack/pod1]="{$mappings}"
)

# --- the node

# Runs this script again in new namespaces, which end with the last process in them.
go_inside() {
    local tool
    [ "$(id -u)" -eq 0 ] || die "needs root, for namespaces"
    for tool in ip:iproute2 ss:iproute2 nft:nftables ping:iputils-ping iperf3:iperf3 unshare:util-linux; do
        command -v "${tool%:*}" >/dev/null || die "needs ${tool%:*} (on Debian: the package ${tool#*:})"
    done
    [ -n "$bin_dir" ] || bin_dir=$("$here/../build.sh") || die "the build failed"
    bin_dir=$(cd "$bin_dir" && pwd -P) || die "no folder $bin_dir"
    runner=$(realpath -e -- "${runner:-$bin_dir/cnirun}") || die "no cnirun in $bin_dir; name it with --runner"
    exec unshare --net --mount --propagation private "$here/demo.sh" --bin-dir "$bin_dir" --runner "$runner" --inside
}

# Whether go_inside has made the present namespaces: they differ from the caller's. The script must change nothing
# in other namespaces, even if it is started with --inside by hand.
is_inside() {
    local kind own
    for kind in net mnt; do
        own=$(readlink "/proc/self/ns/$kind") || return 1
        [ "$own" != "$(readlink "/proc/$PPID/ns/$kind" || echo "$own")" ] || return 1
    done
}

# An empty /run and /var/lib/cni, as on a node after its start.
private_folders() {
    mount -t tmpfs -o mode=0755 tmpfs /run
    mkdir -p /run/netns /run/lock "$loopback_dir"
    # If the machine has no such folder, make it in a private /var/lib, not on the disk.
    [ -d /var/lib/cni ] || { mount -t tmpfs tmpfs /var/lib && mkdir /var/lib/cni; }
    mount -t tmpfs -o mode=0755 tmpfs /var/lib/cni
    # The old /sys would still show the machine's interfaces.
    mount -t sysfs sysfs /sys
    for program in loopback bridge host-local portmap bandwidth; do
        [ -x "$bin_dir/$program" ] || die "no $program in $bin_dir"
    done
}

# Ends the processes that still run in the pods if the script fails.
end_leftovers() {
    for pod in "${pods[@]}" client; do
        ip netns pids "$pod" 2>/dev/null | xargs -r kill 2>/dev/null || true
    done
}

make_node() {
    ip link set lo up
    trap end_leftovers EXIT
    for pod in "${pods[@]}" client; do
        ip netns add "$pod"
    done
    # The client has no route to any pod, so it can answer a pod only if the pod's traffic is masqueraded.
    ip link add out0 type veth peer name eth0 netns client
    ip address add $node_v4/24 dev out0
    ip address add $node_v6/64 dev out0 nodad
    ip link set out0 up
    ip -n client address add $client_v4/24 dev eth0
    ip -n client address add $client_v6/64 dev eth0 nodad
    ip -n client link set lo up
    ip -n client link set eth0 up
    # The client records the source addresses of pings.
    ip netns exec client nft -f - <<'TEXT'
table inet guestbook {
    set pinged4 { type ipv4_addr; flags dynamic; size 64; }
    set pinged6 { type ipv6_addr; flags dynamic; size 64; }
    chain input {
        type filter hook input priority 0
        icmp type echo-request add @pinged4 { ip saddr }
        icmpv6 type echo-request add @pinged6 { ip6 saddr }
    }
}
TEXT
    show "node $node_v4, $node_v6; client $client_v4, $client_v6, which has no route to any pod"
}

# --- the runtime

# cni FOLDER VERB NETWORK POD IFNAME: runs a verb as a container runtime does with libcni, with the same requests for
# every verb.
cni() {
    CAP_ARGS=${cap_args[$3/$4]-} "$runner" --cni-path "$bin_dir" --netconf-path "$1" "$2" "$3" "/run/netns/$4" \
        --ifname "$5" --container-id "demo-$4"
}

# containerd first sets lo up, with a separate network.
loopback() {
    cat >"$loopback_dir/99-loopback.conflist" <<'TEXT'
{ "cniVersion": "0.3.1", "name": "cni-loopback", "plugins": [{ "type": "loopback" }] }
TEXT
    cni "$loopback_dir" "$1" cni-loopback "$2" lo
}

# --- readers

# address POD FAMILY: the pod's address without prefix length
address() { ip -n "$1" "-$2" -o address show dev eth0 scope global 2>/dev/null | awk '{ sub("/.*", "", $4); print $4 }'; }
gateway() { ip -n "$1" "-$2" route show default | awk '{ print $3 }'; }

# reaches POD ADDRESS: pings up to five times, because neighbour discovery of IPv6 takes time
reaches() {
    local try
    for try in 1 2 3 4 5; do
        ip netns exec "$1" ping -n -q -c 1 -W 1 "$2" >/dev/null 2>&1 && return
        sleep "0.$try"
    done
    return 1
}

expect_reach() {
    reaches "$1" "$2" || fail "$1 does not reach $3, $2"
    ok "$1 reaches $3, $2"
}

guests() { ip netns exec client nft list set inet guestbook "pinged$1" | sed -n 's/.*elements = { \(.*\) }.*/\1/p'; }

reservations() {
    local file
    for file in "/var/lib/cni/networks/$1"/*; do
        # Only files that are named after an address are reservations.
        case ${file##*/} in
        *[!0-9a-f.:]*) ;;
        *[.:]*) printf '%s\n' "${file##*/}" ;;
        esac
    done
}

# --- the steps

attach() {
    local network=$1 families=$2 pod family found
    for pod in "${pods[@]}"; do
        loopback add "$pod" >/dev/null || fail "ADD of loopback for $pod"
        cni "$here" add "$network" "$pod" eth0 >/run/result.json || fail "ADD of $network for $pod"
        ip -n "$pod" link show dev lo up | grep -q LOOPBACK || fail "lo is down in $pod"
        for family in $families; do
            found=$(address "$pod" "$family")
            [ -n "$found" ] || fail "$pod has no IPv$family address"
            [ -n "$(gateway "$pod" "$family")" ] || fail "$pod has no IPv$family default route"
            grep -qF "\"$found/" /run/result.json || fail "the result does not name $found"
            show "$pod: $found, default via $(gateway "$pod" "$family")"
        done
    done
    ok "ADD: loopback and $network for ${pods[*]}"
}

try_traffic() {
    local family=$1 outside=$2 node=$3 gate seen
    gate=$(gateway pod1 "$family")
    expect_reach pod1 "$gate" "its gateway"
    expect_reach pod1 "$(address pod2 "$family")" pod2
    ip netns exec client nft flush set inet guestbook "pinged$family"
    expect_reach pod1 "$outside" "the client outside"
    seen=$(guests "$family")
    [ "$seen" = "$node" ] || fail "the client was pinged by '$seen', not by the node, $node: no masquerade"
    ok "to the client it looks like the node, $seen: masqueraded"
}

# transfer POD PORT SECONDS [OPTION...]: sends to the client outside, or receives from it with --reverse. The output of
# iperf3 goes to /run/transfer.PORT.
transfer() {
    local pod=$1 port=$2 seconds=$3 try
    shift 3
    ip netns exec client timeout 10 iperf3 --server --one-off --port "$port" >/dev/null 2>&1 &
    for try in {1..100}; do
        [ -z "$(ip netns exec client ss -Hltn "sport = :$port")" ] || break
        sleep 0.02
    done
    # Small blocks, because iperf3 does not count an incomplete block at the end.
    ip netns exec "$pod" timeout 10 iperf3 --client $client_v4 --port "$port" --time "$seconds" --length 16K \
        --format k "$@" >"/run/transfer.$port" 2>&1 || true
}

# read_rate PORT: sets rate to the received kbit/s of that transfer
read_rate() {
    rate=$(awk '$NF == "receiver" { print int($7) }' "/run/transfer.$1")
    [ -n "$rate" ] || fail "iperf3 has no result: $(tail -n 1 "/run/transfer.$1")"
}

in_mbit() { awk -v kbit="$1" 'BEGIN { printf "%.1f Mbit/s", kbit / 1000 }'; }

# expect_rate WHAT PORT LIMIT: allows a difference of 15 percent. Headers count too, so TCP carries 95.6 percent.
expect_rate() {
    local limit=$(($3 / 1000)) rate
    read_rate "$2"
    [[ $((rate * 100)) -ge $((limit * 85)) && $((rate * 100)) -le $((limit * 115)) ]] ||
        fail "$1: $(in_mbit "$rate"), but the limit is $(in_mbit $limit)"
    ok "$1: $(in_mbit "$rate"); the limit is $(in_mbit $limit)"
}

# calls PLACE ADDRESS [COMMAND...]: connects from PLACE to the host port at that address of the node. Sets seen to the
# source address that the server in pod1 sees. COMMAND runs a program in PLACE.
calls() {
    local place=$1 address=$2 try server
    shift 2
    rm -f /run/calls
    ip netns exec pod1 timeout 10 iperf3 --server --one-off --port 80 --forceflush >/run/calls 2>&1 &
    server=$!
    for try in {1..100}; do
        [ -z "$(ip netns exec pod1 ss -Hltn "sport = :80")" ] || break
        sleep 0.02
    done
    "$@" timeout 5 iperf3 --client "$address" --port $host_port --bytes 1K --length 1K >/run/call 2>&1 ||
        fail "$place does not reach pod1 at $address, port $host_port: $(tail -n 1 /run/call)"
    wait "$server" || fail "pod1 has not been called from $place: $(tail -n 1 /run/calls)"
    seen=$(sed -n 's/^Accepted connection from \(.*\), port .*/\1/p' /run/calls)
}

# expect_call WHO PLACE ADDRESS SEEN [COMMAND...]
expect_call() {
    local who=$1 place=$2 address=$3 want=$4 seen
    shift 4
    calls "$place" "$address" "$@"
    [ "$seen" = "$want" ] || fail "pod1 was called from $place by '$seen', not by $who, $want"
    ok "host port $host_port of $address leads to pod1 from $place; pod1 sees $who, $seen"
}

# The client and pod1 need ip netns exec; the script runs on the node.
try_host_port() {
    local family=$1 outside=$2 node=$3 gate
    gate=$(gateway pod1 "$family")
    expect_call "the client itself" outside "$node" "$outside" ip netns exec client
    expect_call "the node itself" "the node" "$node" "$node"
    # Masqueraded: the answer would otherwise bypass the node.
    expect_call "its gateway" "pod1 itself" "$node" "$gate" ip netns exec pod1
    # The kernel does not route from ::1.
    if [ "$family" = 4 ]; then
        expect_call "its gateway" "the node's loopback" 127.0.0.1 "$gate"
    fi
}

# Fails unless a connection to the host port is refused at once.
expect_closed() {
    local node=$1 outcome
    outcome=$(ip netns exec client timeout 5 iperf3 --client "$node" --port $host_port 2>&1) || true
    [[ $outcome == *"Connection refused"* ]] || fail "host port $host_port of $node is not closed: $outcome"
    ok "host port $host_port of $node is closed"
}

ifbs() { ip -o link show type ifb | awk '{ sub(":$", "", $2); print $2 }'; }

try_limits() {
    local rate ifb
    ifb=$(ifbs)
    [ -n "$ifb" ] || fail "there is no IFB for the traffic from pod1"
    # One direction after the other, because acknowledgements would wait in the other direction's queue.
    transfer pod2 5203 1 &
    transfer pod1 5201 2 --reverse
    transfer pod1 5202 2
    wait
    expect_rate "TCP towards pod1" 5201 $to_pod1
    expect_rate "TCP from pod1, through $ifb" 5202 $from_pod1
    read_rate 5203
    [ "$rate" -gt 200000 ] || fail "pod2, which has no limit, sends no more than $(in_mbit "$rate") meanwhile"
    ok "TCP from pod2 meanwhile, which has no limit: $(in_mbit "$rate")"
}

check() {
    local network=$1 pod gate
    for pod in "${pods[@]}"; do
        cni "$here" check "$network" "$pod" eth0 || fail "CHECK of $pod"
    done
    ok "CHECK: ${pods[*]} are as ADD left them"
    gate=$(gateway pod1 4)
    ip -n pod1 -4 route del default
    ! cni "$here" check "$network" pod1 eth0 2>/run/complaint || fail "CHECK does not see that the default route is gone"
    ip -n pod1 -4 route add default via "$gate"
    cni "$here" check "$network" pod1 eth0 || fail "CHECK of the repaired pod1"
    ok "CHECK fails without the default route, and succeeds when it is back"
}

detach() {
    local network=$1 pod
    for pod in "${pods[@]}"; do
        cni "$here" del "$network" "$pod" eth0 || fail "DEL of $network for $pod"
        loopback del "$pod" || fail "DEL of loopback for $pod"
    done
    cni "$here" del "$network" pod1 eth0 || fail "a second DEL of pod1, which must do no harm"
    ok "DEL: ${pods[*]}, one of them twice"
}

# expect_none WHAT FOUND: fails if FOUND is not empty
expect_none() {
    [ -z "$2" ] || fail "left behind: $1: $2"
    ok "no $1"
}

expect_clean() {
    local network=$1 gone=$2 pod links='' rules='' address
    for pod in "${pods[@]}"; do
        links+=$(ip -n "$pod" -o link show | awk '$2 != "lo:" { print $2 }')
    done
    links+=$(ip -o link show type veth | awk '$2 !~ /^out0/ { print $2 }')
    expect_none "links" "$links"
    expect_none "IFBs" "$(ifbs)"
    for address in $gone; do
        rules+=$(nft list ruleset | grep -wF "$address" || true)
    done
    expect_none "nft rules of a pod" "$rules"
    expect_none "reservations" "$(reservations "$network")"
    expect_none "remembered results" "$(ls -A /var/lib/cni/results)"
}

# act NETWORK FAMILIES: a network from ADD to DEL
act() {
    local network=$1 families=$2 gone='' pod family
    headline "network $network"
    attach "$network" "$families"
    for family in $families; do
        for pod in "${pods[@]}"; do
            gone+=" $(address "$pod" "$family")"
        done
    done
    for family in $families; do
        case $family in
        4)
            try_traffic 4 $client_v4 $node_v4
            try_host_port 4 $client_v4 $node_v4
            ;;
        6)
            try_traffic 6 $client_v6 $node_v6
            try_host_port 6 $client_v6 $node_v6
            ;;
        esac
    done
    if [[ ${cap_args[$network/pod1]} == *Rate* ]]; then
        try_limits
    fi
    check "$network"
    detach "$network"
    for family in $families; do
        case $family in
        4) expect_closed $node_v4 ;;
        6) expect_closed $node_v6 ;;
        esac
    done
    expect_clean "$network" "$gone"
}

bin_dir='' runner='' inside=''
while [ $# -gt 0 ]; do
    case $1 in
    --bin-dir)
        [ $# -ge 2 ] || die "--bin-dir needs a folder"
        bin_dir=$2
        shift
        ;;
    --bin-dir=*) bin_dir=${1#*=} ;;
    --runner)
        [ $# -ge 2 ] || die "--runner needs a file"
        runner=$2
        shift
        ;;
    --runner=*) runner=${1#*=} ;;
    --inside) inside=yes ;;
    -h | --help)
        usage
        exit
        ;;
    *) die "unknown option '$1'; see --help" ;;
    esac
    shift
done

[ -n "$inside" ] || go_inside
is_inside || die "not in namespaces of its own; start it without --inside"

headline "a node, ${#pods[@]} pods and a client outside"
private_folders
make_node
act ferrule "4"
act ferrule-dual-stack "4 6"
headline "all steps succeeded"
