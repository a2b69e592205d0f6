# What other programs leave on nodes: to be sourced by tests/cluster.sh.
# shellcheck shell=bash disable=SC2154 # the caller sets them
# shellcheck disable=SC2016 # commands in single quotes are for shells of nodes and pods

# word NODE: what the daemon says of its node, and the codes of its reasons.
word() { on "$1" jq -r '[.word] + [.reasons[].code] | join(" ")' /run/ferrule/node/status.json; }
# says NODE WORDS: within a minute.
says() { until_true 60 says_now "$@" || fail "$(on "$1" /opt/cni/bin/ferrule-node status --no-probe)"; }
says_now() { equal "$(word "$1")" "$2"; }

# docker NODE: what Docker does when it starts.
docker() {
    on "$1" bash -eu -c 'for program in iptables ip6tables; do
        $program -P FORWARD DROP
        for chain in DOCKER DOCKER-USER; do $program -N "$chain"; done
        $program -A FORWARD -j DOCKER-USER
        $program -A FORWARD -o docker0 -j DOCKER
        $program -A DOCKER-USER -j RETURN
    done'
}

# flannel NODE OTHER: flannel was there before, with the podCIDRs that both nodes still have.
flannel() {
    local own other
    read -ra own < <(kubectl get node "$1" -o jsonpath='{.spec.podCIDRs[*]}')
    read -ra other < <(kubectl get node "$2" -o jsonpath='{.spec.podCIDRs[*]}')
    [ ${#own[@]} -eq 2 ] && [ ${#other[@]} -eq 2 ] || fail "no podCIDRs" || return 1
    on "$1" bash -eu -c 'own4=${1%.0/24} own6=${2%/64} other4=${3%.0/24} other6=${4%/64}
        ip link add cni0 type bridge
        ip address add "$own4.1/24" dev cni0
        ip address add "${own6}1/64" dev cni0 nodad
        ip link set cni0 up
        ip link add flannel.1 type vxlan id 1 dstport 8472 local "$5" nolearning
        ip link set flannel.1 up
        ip address add "$own4.0/32" dev flannel.1
        ip route add "$3" via "$other4.0" dev flannel.1 onlink
        ip -6 address add "$own6/128" dev flannel.1 nodad
        ip -6 route add "$4" via "$other6" dev flannel.1 onlink
        iptables -N FLANNEL-FWD
        iptables -A FLANNEL-FWD -s 10.244.0.0/16 -j ACCEPT
        iptables -A FORWARD -j FLANNEL-FWD
        iptables -t nat -N FLANNEL-POSTRTG
        iptables -t nat -A FLANNEL-POSTRTG -s "$1" -d 10.244.0.0/16 -j RETURN
        iptables -t nat -A FLANNEL-POSTRTG -s 10.244.0.0/16 -d "$1" -j RETURN
        iptables -t nat -A FLANNEL-POSTRTG ! -s 10.244.0.0/16 -d "$1" -j RETURN
        iptables -t nat -A FLANNEL-POSTRTG -s 10.244.0.0/16 ! -d 224.0.0.0/4 -j MASQUERADE
        iptables -t nat -A FLANNEL-POSTRTG ! -s 10.244.0.0/16 -d 10.244.0.0/16 -j MASQUERADE
        iptables -t nat -A POSTROUTING -j FLANNEL-POSTRTG
        mkdir -p /run/flannel /var/lib/cni/networks/cbr0 /etc/cni/net.d
        echo "FLANNEL_SUBNET=$own4.1/24" >/run/flannel/subnet.env
        echo gone >"/var/lib/cni/networks/cbr0/$own4.7"
        echo "{\"cniVersion\": \"1.0.0\", \"name\": \"cbr0\", \"plugins\": [{\"type\": \"flannel\", \"delegate\": {\"isDefaultGateway\": true}}]}" \
            >/etc/cni/net.d/10-flannel.conflist' flannel "${own[@]}" "${other[@]}" "${address4[$1]}"
}

# Before the daemon starts for the first time.
test_docker_and_flannel_were_there_before() { docker node1 && flannel node2 node1; }

# Like on, with the processes of the machine in /proc: the kernel's threads show that no process of the node is hidden.
on_machine() {
    local pid=${pids[$1]}
    shift
    nsenter --target "$pid" --mount --net --root --wd -- unshare --mount sh -c 'mount -t proc proc /proc && exec "$@"' sh "$@"
}

# The address of flannel's bridge goes, as nothing is on it. Routes and device are another program's: the command that each reason names removes them.
test_the_node_names_what_flannel_left() {
    says node1 ready && says node2 "degraded refused refused leftover leftover" || return 1
    equal "$(on node2 ip -o address show dev cni0 scope global)" "" || return 1
    equal "$(on node2 jq -r '.reasons[].text' /run/ferrule/node/status.json | sed 's/.*; //' | sort | uniq -c | tr -s ' ')" \
        " 4 ferrule-node cleanup --left-overs flannel removes it" || return 1
    on_machine node2 /opt/cni/bin/ferrule-node cleanup --left-overs flannel && says node2 ready || return 1
    equal "$(on node2 ip -o link show | grep -E 'cni0|flannel'; on node2 nft list ruleset | grep -i flannel)" ""
}

test_docker_forwards_nothing_by_itself() {
    on node1 iptables -S FORWARD | grep -qx -- '-P FORWARD DROP' && on node1 iptables -S FERRULE-NODE
}
