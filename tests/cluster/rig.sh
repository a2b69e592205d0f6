# A Kubernetes cluster of two nodes in namespaces of this machine: to be sourced. The node "outside" has the control plane and the
# network between the nodes. The caller sets root (the source tree), base (a folder for all of it), version (that of the image), and the
# folders bin_dir, KUBERNETES_BIN and CONTAINERD_BIN.
#
# shellcheck shell=bash disable=SC2154 # the caller sets them
# shellcheck disable=SC2016 # commands in single quotes are for shells of nodes and pods

workers=(node1 node2)
declare -A pids=() address4=([outside]=172.30.0.1 [node1]=172.30.0.11 [node2]=172.30.0.12)
declare -A address6=([outside]=fd00:30::1 [node1]=fd00:30::11 [node2]=fd00:30::12)
pod_image=test.example/pod:1

# until_true SECONDS COMMAND ...
until_true() {
    local end=$((SECONDS + $1))
    shift
    until "$@" >"$base/last" 2>&1; do
        [ "$SECONDS" -lt "$end" ] || { echo "not in time: $*"; cat "$base/last"; return 1; }
        sleep 0.3
    done
}

# ---------------------------------------------------------------------------------------------------------------
# Nodes

# on NODE COMMAND ...: runs it there.
on() {
    local pid=${pids[$1]}
    shift
    nsenter --target "$pid" --mount --net --pid --ipc --uts --root --wd -- "$@"
}

# net NODE COMMAND ...: runs it in the node's network namespace alone, where PIDs are those of the machine.
net() {
    local pid=${pids[$1]}
    shift
    nsenter --target "$pid" --net -- "$@"
}

# start NODE NAME COMMAND ...: a daemon, again whenever it ends. Its log is BASE/NODE-NAME.log, its PID is in /run/NAME.pid.
start() {
    local node=$1 name=$2
    shift 2
    on "$node" bash -c 'name=$1; shift
        while :; do
            while [ -e "/run/$name.stop" ]; do sleep 0.2; done
            "$@" & echo $! >"/run/$name.pid"; wait $! || true
            sleep 0.5
        done' "$name" "$name" "$@" </dev/null >>"$base/$node-$name.log" 2>&1 &
}

# signal NODE NAME: kills a daemon, which starts again. halt: it does not, until resume.
signal() { on "$1" sh -c "kill -KILL \$(cat /run/$2.pid)"; }
halt() { on "$1" touch "/run/$2.stop" && signal "$1" "$2"; }
resume() { on "$1" rm "/run/$2.stop"; }

# The first process reaps those whose parents have ended. The folders of the disk outlive the node, for power_on.
disk=(/var/lib/{containerd,kubelet,cni,ferrule} /var/log /etc/cni /opt/cni/bin)
new_node() {
    mkdir -p "$base/$1" && rm -f "$base/$1/up"
    unshare --mount --net --pid --ipc --uts --fork --kill-child --propagation private "$root/tests/node-root.sh" \
        / "$base/$1/layer" "$base" bash -c 'touch "/mnt/$0/up"; while :; do sleep 3600 & wait $!; done' "$1" </dev/null >>"$base/$1.log" 2>&1 &
    holders+=($!)
    until_true 30 test -e "$base/$1/up" || return 1
    pids[$1]=$(pgrep --parent $!)
    # The daemons would set sysctls of the whole machine, so they see files with the values that they want in their place.
    on "$1" bash -eu -c '
        hostname "$1"
        mount --make-rshared /
        for folder in "${@:3}"; do
            mkdir -p "$folder" "/mnt/$1/disk$folder"
            mount --bind "/mnt/$1/disk$folder" "$folder"
        done
        mkdir -p /run/sysctl
        for pair in vm/overcommit_memory=1 vm/panic_on_oom=0 kernel/panic=10 kernel/panic_on_oops=1 \
            kernel/keys/root_maxkeys=1000000 kernel/keys/root_maxbytes=25000000; do
            file=/run/sysctl/$(echo "${pair%=*}" | tr / .)
            echo "${pair#*=}" >"$file"
            mount --bind "$file" "/proc/sys/${pair%=*}"
        done
        printf "127.0.0.1 localhost\n::1 localhost\n%s %s\n" "$2" "$1" >/etc/hosts
        sysctl -qw net.ipv4.ip_forward=0 net.ipv6.conf.{all,default}.accept_dad=0' node "$1" "${address4[$1]}" "${disk[@]}"
}

# link NODE LINK
link() {
    on "$1" ip address add "${address4[$1]}/24" dev "$2"
    on "$1" ip address add "${address6[$1]}/64" dev "$2" nodad
    on "$1" ip link set "$2" up
}

uplink() {
    net outside ip link add "$1" type veth peer name uplink netns "${pids[$1]}"
    net outside ip link set "$1" master lan up
    link "$1" uplink
    on "$1" ip route add default via "${address4[outside]}"
    on "$1" ip -6 route add default via "${address6[outside]}"
}

network() {
    local node
    net outside ip link add lan type bridge
    link outside lan
    for node in "${workers[@]}"; do uplink "$node"; done
}

# A power loss, and the start after it: /run and all of the kernel are lost, the disk is kept.
power_off() {
    kill -KILL "${pids[$1]}" && until_true 30 has_ended "${pids[$1]}" && until_true 30 has_no_link "$1" && remove_groups "$cgroup-$1"
}
has_ended() { ! kill -0 "$1"; }
has_no_link() { ! net outside ip link show "$1"; }
power_on() { new_node "$1" && uplink "$1" && start_containerd "$1" && start_kubelet "$1" && start_proxy "$1"; }

# ---------------------------------------------------------------------------------------------------------------
# Images: nothing can be pulled

# image NAME FOLDER CONFIG: BASE/images/….tar with one layer.
image() {
    local work=$base/images/work
    mkdir -p "$work"
    tar --create --file "$work/layer.tar" --owner 0 --group 0 --numeric-owner --directory "$2" .
    printf '{"os": "linux", "architecture": "%s", "config": %s, "rootfs": {"type": "layers", "diff_ids": ["sha256:%s"]}}' \
        "$(dpkg --print-architecture)" "$3" "$(sha256sum "$work/layer.tar" | cut -d ' ' -f 1)" >"$work/config.json"
    printf '[{"Config": "config.json", "RepoTags": ["%s"], "Layers": ["layer.tar"]}]' "$1" >"$work/manifest.json"
    tar --create --file "$base/images/$(tr / - <<<"$1").tar" --directory "$work" manifest.json config.json layer.tar
}

# The image of the sandboxes and of the pods, and that of Containerfile.
images() {
    local folder=$base/images/pod name
    mkdir -p "$folder"/{bin,tmp,www/cgi-bin}
    cp /bin/busybox "$folder/bin"
    for name in $(/bin/busybox --list); do [ "$name" = busybox ] || ln -s busybox "$folder/bin/$name"; done
    printf '#!/bin/sh\nprintf "Content-Type: text/plain\\r\\n\\r\\n$REMOTE_ADDR $(hostname)\\n"\n' >"$folder/www/cgi-bin/who"
    chmod +x "$folder/www/cgi-bin/who"
    image "$pod_image" "$folder" '{"Env": ["PATH=/bin"], "Cmd": ["sleep", "2147483647"]}'
    ferrule_image "$bin_dir" "$version" || return 1
    [ -z "${FERRULE_BEFORE-}" ] || ferrule_image "$FERRULE_BEFORE" before || return 1
    [ -n "$(no_cyclonus)" ] && [ -n "$(no_policy_api)" ] || judges_images || return 1
    ! has_own_tests || own_images
}

# ferrule_image PROGRAMS TAG
ferrule_image() {
    local folder=$base/images/ferrule-$2 names
    mkdir -p "$folder"
    read -ra names < <(sed -n 's,^COPY \(.*\) /$,\1,p' "$root/Containerfile")
    (cd "$1" && cp "${names[@]}" "$folder") && image "registry.example/ferrule:$2" "$folder" '{"Entrypoint": ["/ferrule"], "Cmd": ["--help"]}'
}

# ---------------------------------------------------------------------------------------------------------------
# Kubernetes

# config USER: a kubeconfig, whose token is the user's name.
config() {
    cat <<END
{"apiVersion": "v1", "kind": "Config", "current-context": "test",
 "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
 "clusters": [{"name": "test", "cluster": {"server": "https://${address4[outside]}:6443", "insecure-skip-tls-verify": true}}],
 "users": [{"name": "test", "user": {"token": "$1"}}]}
END
}

kubectl() { on outside "$KUBERNETES_BIN/kubectl" --kubeconfig /run/admin "$@"; }

control_plane() {
    local user
    on outside bash -eu -c 'openssl genrsa -out /run/accounts.key 2048; cat >/run/tokens' 2>/dev/null <<'END'
admin,admin,1,system:masters
manager,system:kube-controller-manager,2
scheduler,system:kube-scheduler,3
proxy,system:kube-proxy,4
node1,system:node:node1,5,system:nodes
node2,system:node:node2,6,system:nodes
END
    for user in admin manager scheduler; do config "$user" | on outside tee "/run/$user" >"$base/last"; done
    start outside etcd "$KUBERNETES_BIN/etcd" --data-dir /run/etcd --unsafe-no-fsync --log-level warn
    start outside apiserver "$KUBERNETES_BIN/kube-apiserver" --etcd-servers=http://127.0.0.1:2379 --cert-dir=/run/pki --bind-address=:: \
        --advertise-address="${address4[outside]}" --kubelet-preferred-address-types=InternalIP --token-auth-file=/run/tokens --authorization-mode=Node,RBAC \
        --enable-admission-plugins=NodeRestriction --service-cluster-ip-range=10.96.0.0/16,fd00:96::/112 --allow-privileged \
        --service-account-issuer=https://kubernetes.default.svc --service-account-key-file=/run/accounts.key \
        --service-account-signing-key-file=/run/accounts.key
    until_true 120 kubectl get --raw=/readyz || return 1
    start outside manager "$KUBERNETES_BIN/kube-controller-manager" --kubeconfig=/run/manager --leader-elect=false --allocate-node-cidrs \
        --cluster-cidr=10.244.0.0/16,fd00:244::/48 --node-cidr-mask-size-ipv6=64 --service-cluster-ip-range=10.96.0.0/16,fd00:96::/112 \
        --use-service-account-credentials --service-account-private-key-file=/run/accounts.key --root-ca-file=/run/pki/apiserver.crt
    start outside scheduler "$KUBERNETES_BIN/kube-scheduler" --kubeconfig=/run/scheduler --leader-elect=false
}

ctr() { on "$1" "$CONTAINERD_BIN/ctr" --address /run/containerd/containerd.sock --namespace k8s.io "${@:2}"; }

start_containerd() {
    local node=$1 tar
    on "$node" tee /run/containerd.toml >"$base/last" <<END
version = 2
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "$pod_image"
# Many virtual machines for tests have no CAP_SYS_RESOURCE.
restrict_oom_score_adj = true
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "/opt/cni/bin"
conf_dir = "/etc/cni/net.d"
END
    start "$node" containerd env PATH="$CONTAINERD_BIN:$PATH" "$CONTAINERD_BIN/containerd" --config /run/containerd.toml
    until_true 60 ctr "$node" version || return 1
    [ ! -e "$base/$node/images" ] || return 0
    for tar in "$base"/images/*.tar; do ctr "$node" images import "/mnt/images/${tar##*/}" >"$base/last" || return 1; done
    touch "$base/$node/images"
}

# The kubelet without certificates: nothing else can reach the node.
start_kubelet() {
    local node=$1
    on "$node" bash -eu -c '
        config=$(cat) && cat >/run/kubelet.yaml <<<"$config"
        mkdir -p /run/manifests
        for hierarchy in /sys/fs/cgroup/*/cgroup.procs; do mkdir -p "${hierarchy%/*}/$1"; done
        cd /sys/fs/cgroup/cpuset 2>/dev/null || exit 0
        for file in cpuset.cpus cpuset.mems; do cat "$file" >"$1/$file"; done' kubelet "$cgroup-$node" <<END
kind: KubeletConfiguration
apiVersion: kubelet.config.k8s.io/v1beta1
authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
cgroupDriver: cgroupfs
cgroupRoot: /$cgroup-$node
clusterDNS: ["${address4[outside]}"]
clusterDomain: cluster.local
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
enforceNodeAllocatable: []
evictionHard: {memory.available: 1Mi, nodefs.available: 0%, imagefs.available: 0%}
failCgroupV1: false
failSwapOn: false
fileCheckFrequency: 1s
imageGCHighThresholdPercent: 100
makeIPTablesUtilChains: false
nodeStatusUpdateFrequency: 5s
oomScoreAdj: 0
resolvConf: ""
staticPodPath: /run/manifests
volumePluginDir: /run/volume-plugins
END
    config "$node" | on "$node" tee /run/kubeconfig >"$base/last"
    start "$node" kubelet "$KUBERNETES_BIN/kubelet" --config=/run/kubelet.yaml --kubeconfig=/run/kubeconfig --hostname-override="$node" \
        --node-ip="${address4[$node]},${address6[$node]}" --v=2
}

proxy_mode=nftables
start_proxy() {
    local node=$1
    proxy_config "$node" && config proxy | on "$node" tee /run/proxy >"$base/last" || return 1
    start "$node" proxy "$KUBERNETES_BIN/kube-proxy" --config=/run/proxy.yaml
}

# change_proxy MODE: kube-proxy of all nodes.
change_proxy() {
    local node
    for node in "${workers[@]}"; do
        halt "$node" proxy && on "$node" "$KUBERNETES_BIN/kube-proxy" --config=/run/proxy.yaml --cleanup || return 1
        proxy_mode=$1 && proxy_config "$node" && resume "$node" proxy || return 1
    done
}

proxy_config() {
    local node=$1
    on "$node" tee /run/proxy.yaml >"$base/last" <<END
kind: KubeProxyConfiguration
apiVersion: kubeproxy.config.k8s.io/v1alpha1
clientConnection: {kubeconfig: /run/proxy}
conntrack: {maxPerCore: 0, min: 0}
hostnameOverride: $node
mode: $proxy_mode
oomScoreAdj: 0
END
}

# Starts all of it, but no pod network.
cgroup=ferrule-cluster-$$
start_cluster() {
    local node
    images || return 1
    for node in outside "${workers[@]}"; do new_node "$node" || return 1; done
    network && control_plane || return 1
    for node in "${workers[@]}"; do
        start_containerd "$node" && start_kubelet "$node" && start_proxy "$node" || return 1
    done
    until_true 120 kubectl get node "${workers[@]}"
}

holders=()
stop_cluster() {
    local holder
    for holder in "${holders[@]}"; do kill -KILL "$holder" 2>/dev/null; done
    wait 2>/dev/null
    remove_groups "$cgroup-"
}

# remove_groups PREFIX: control groups outlive the namespaces. From the innermost outwards.
remove_groups() {
    local group groups
    mapfile -t groups < <(find /sys/fs/cgroup -depth -type d -path "*/$1*" 2>/dev/null)
    for group in "${groups[@]}"; do
        for _ in {1..50}; do ! rmdir "$group" 2>/dev/null || break; sleep 0.1; done
    done
}
