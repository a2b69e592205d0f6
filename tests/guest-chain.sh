#!/bin/busybox sh
# Tests a chain of plugins in a guest: ADD, traffic, CHECK and DEL. Needs busybox and nft. test.sh calls this through
# guest.sh, with the plugins' folder as argument. The last line counts tests.
#
# shellcheck shell=dash
set -u
cd "$(dirname "$0")/.." || exit
. tests/cases.sh
bin=$1
network=ferrule-dual-stack node_v4=192.0.2.1 node_v6=2001:db8::1
size=3000000 rate=6000000 burst=4294967295
# Port 80 of the pod receives data and answers with their checksum, port 81 sends data.
export CAP_ARGS="{\"bandwidth\": {\"ingressRate\": $rate, \"ingressBurst\": $burst, \"egressRate\": $rate, \"egressBurst\": $burst},
    \"portMappings\": [{\"hostPort\": 8080, \"containerPort\": 80, \"protocol\": \"tcp\"},
        {\"hostPort\": 8081, \"containerPort\": 81, \"protocol\": \"tcp\"}]}"

inside() { local name=$1; shift; nsenter --net="/run/netns/$name" "$@"; }

# A client outside, with a link to the node and no route to the pod.
make_node() {
    local name
    mkdir -p /run/netns /run/loopback
    for name in client pod; do
        : >"/run/netns/$name"
        unshare --net="/run/netns/$name" true || return
    done
    inside client ip link add eth0 type veth && inside client ip link set veth0 netns $$ &&
        inside client sysctl -w net.ipv6.conf.eth0.accept_dad=0 && sysctl -w net.ipv6.conf.veth0.accept_dad=0 &&
        inside client ip address add 192.0.2.2/24 dev eth0 && inside client ip address add 2001:db8::2/64 dev eth0 &&
        inside client ip link set eth0 up && ip address add $node_v4/24 dev veth0 &&
        ip address add $node_v6/64 dev veth0 && ip link set veth0 up || return
    echo '{ "cniVersion": "1.0.0", "name": "loopback", "plugins": [{ "type": "loopback" }] }' >/run/loopback/10.conflist
    head -c $size /dev/urandom >/run/data
}

# cni VERB: for both networks of the pod
cni() {
    "$bin/cnirun" --cni-path "$bin" --netconf-path /run/loopback "$1" loopback /run/netns/pod --ifname lo --container-id pod &&
        "$bin/cnirun" --cni-path "$bin" --netconf-path examples "$1" $network /run/netns/pod --ifname eth0 --container-id pod
}

every_name_answers_version() {
    local plugin
    for plugin in plugins/*/; do
        plugin=$(basename "$plugin")
        CNI_COMMAND=VERSION "$bin/$plugin" </dev/null | tr -d ' \n' | grep '"supportedVersions":\[.*"1.1.0"\]' || return
    done
}

add_attaches_the_pod() {
    cni add && inside pod ip link show lo | grep 'LOOPBACK,UP' &&
        inside pod ip -4 route | grep '^default via 10.89.0.1 dev eth0' && inside pod ip -6 route | grep '^default via fd66:'
}

serve() {
    local port
    inside pod nc -ll -p 80 -e sha256sum &
    inside pod nc -ll -p 81 -e cat /run/data &
    for port in 80 81; do
        timeout 10 nsenter --net=/run/netns/pod sh -c "until netstat -ltn | grep -q ':$port '; do sleep 0.1; done" || return
    done
}

# transfer_takes_time ADDRESS PORT DATA COMMAND: the command turns what the pod sends into the checksum. The emulator may
# be slower than the limit allows, but the transfer must take nine tenths of the time or more.
transfer_takes_time() {
    local began took least=$((size * 8 * 90 / rate))
    began=$(tr -d . </proc/uptime | cut -d ' ' -f 1)
    inside client timeout 60 nc "$1" "$2" <"$3" | "$4" >/run/answer
    took=$(($(tr -d . </proc/uptime | cut -d ' ' -f 1) - began))
    echo "took ${took}0 ms, expected at least ${least}0 ms"
    [ "$(cat /run/answer)" = "$(sha256sum </run/data)" ] && [ $took -ge $least ]
}

receives_v4() { transfer_takes_time $node_v4 8080 /run/data cat; }
receives_v6() { transfer_takes_time $node_v6 8080 /run/data cat; }
sends_v4() { transfer_takes_time $node_v4 8081 /dev/null sha256sum; }
sends_v6() { transfer_takes_time $node_v6 8081 /dev/null sha256sum; }

check_passes() { cni check; }

check_notices_a_missing_route() {
    inside pod ip -4 route del default && ! cni check && inside pod ip -4 route add default via 10.89.0.1 && cni check
}

# What DEL must remove. The bridge stays. The kernel's module ifb makes ifb0 and ifb1.
links() {
    { ip -o link && inside pod ip -o link; } | grep -vE '^[0-9]+: (lo|veth0|ferrule2|ifb[01])[@:]'
}
rules() { nft list ruleset | grep -E 'elements|10\.89\.|fd66:|pod'; }
files() { find /var/lib/cni/networks/$network /var/lib/cni/results -type f | grep -E '/(10\.89|fd66)|results/'; }

everything_is_there() { links && rules && files; }
nothing_is_left() { ! links && ! rules && ! files; }

del_succeeds_twice() { cni del && cni del; }

host_ports_are_closed() {
    local address
    for address in $node_v4 $node_v6; do
        inside client timeout 10 nc "$address" 8080 </dev/null 2>&1 | grep 'Connection refused' || return
    done
}

for test in make_node every_name_answers_version add_attaches_the_pod serve receives_v4 receives_v6 sends_v4 sends_v6 \
    check_passes check_notices_a_missing_route everything_is_there del_succeeds_twice nothing_is_left host_ports_are_closed; do
    run_case "$test" "$test"
    # Each test needs the ones before it.
    [ "$failed" -eq 0 ] || break
done
end_cases
