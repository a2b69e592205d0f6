//! The recorded bytes that callers wrote to plugins' standard input.

/// The container ID in the recordings.
pub(super) const CID: &str = "11906f9e015749184955de4cde4f7926200778490596ebf9748c37f8573e46ee";
/// The pod's UID in the recordings.
pub(super) const UID: &str = "28ce45bc-63f8-48a3-a99b-cfb9e63c856c";

/// containerd: loopback, ADD and DEL.
pub(super) const CONTAINERD_LOOPBACK: &str =
    r#"{"cniVersion":"0.3.1","name":"cni-loopback","type":"loopback"}"#;
/// containerd: bridge, ADD.
pub(super) const CONTAINERD_BRIDGE: &str = concat!(
    r#"{"bridge":"cni0","capabilities":{"cgroupPath":true,"dns":true,"#,
    r#""io.kubernetes.cri.pod-annotations":true},"cniVersion":"1.0.0","ipMasq":true,"ipam":{"ranges":[["#,
    r#"{"subnet":"10.88.0.0/16"}]],"routes":[{"dst":"0.0.0.0/0"}],"type":"host-local"},"#,
    r#""isGateway":true,"name":"containerd-net","promiscMode":true,"runtimeConfig":{"#,
    r#""cgroupPath":"/kubepods/burstable/pod28ce45bc-63f8-48a3-a99b-cfb9e63c856c","dns":{"Servers":["#,
    r#""10.96.0.10"],"Searches":["default.svc.cluster.local","svc.cluster.local","cluster.local"],"#,
    r#""Options":["ndots:5"]},"io.kubernetes.cri.pod-annotations":{"kubernetes.io/config.source":"api","#,
    r#""kubernetes.io/ingress-bandwidth":"10M"}},"type":"bridge"}"#
);
/// containerd: portmap, ADD.
pub(super) const CONTAINERD_PORTMAP: &str = concat!(
    r#"{"capabilities":{"portMappings":true},"cniVersion":"1.0.0","name":"containerd-net","#,
    r#""prevResult":{"cniVersion":"1.0.0","interfaces":[{"mac":"4a:34:15:fd:b3:12","name":"cni0"},{"#,
    r#""mac":"16:98:69:c9:b0:7f","name":"veth7882bc69"},{"mac":"aa:57:39:a2:5a:10","name":"eth0","#,
    r#""sandbox":"/run/netns/cni-1"}],"ips":[{"address":"10.88.0.2/16","gateway":"10.88.0.1","#,
    r#""interface":2}],"routes":[{"dst":"0.0.0.0/0"}]},"runtimeConfig":{"portMappings":[{"#,
    r#""HostPort":8080,"ContainerPort":80,"Protocol":"tcp","HostIP":""}]},"type":"portmap"}"#
);
/// containerd: portmap, the second DEL.
pub(super) const CONTAINERD_PORTMAP_AGAIN: &str = concat!(
    r#"{"capabilities":{"portMappings":true},"cniVersion":"1.0.0","name":"containerd-net","#,
    r#""runtimeConfig":{"portMappings":[{"HostPort":8080,"ContainerPort":80,"Protocol":"tcp","#,
    r#""HostIP":""}]},"type":"portmap"}"#
);
/// CRI-O: portmap, STATUS.
pub(super) const CRIO_STATUS: &str =
    r#"{"capabilities":{"portMappings":true},"cniVersion":"1.1.0","name":"crio","type":"portmap"}"#;
/// CRI-O: bandwidth, ADD.
pub(super) const CRIO_BANDWIDTH: &str = concat!(
    r#"{"capabilities":{"bandwidth":true},"cniVersion":"1.1.0","name":"crio","prevResult":{"#,
    r#""cniVersion":"1.1.0","interfaces":[{"mac":"0e:5d:28:a0:65:c5","name":"cni0"},{"#,
    r#""mac":"ca:f9:95:fb:76:35","name":"veth0a384591"},{"mac":"32:04:69:e5:2b:66","name":"eth0","#,
    r#""sandbox":"/run/netns/cni-1"}],"ips":[{"address":"10.88.0.2/16","gateway":"10.88.0.1","#,
    r#""interface":2}],"routes":[{"dst":"0.0.0.0/0"}]},"runtimeConfig":{"bandwidth":{"egressBurst":0,"#,
    r#""egressRate":0,"ingressBurst":34359738359,"ingressRate":10000000}},"type":"bandwidth"}"#
);
/// CRI-O: bridge, CHECK. ADD has no `prevResult`.
pub(super) const CRIO_BRIDGE_CHECK: &str = concat!(
    r#"{"bridge":"cni0","capabilities":{"cgroupPath":true,"dns":true,"#,
    r#""io.kubernetes.cri.pod-annotations":true},"cniVersion":"1.1.0","ipMasq":true,"ipam":{"ranges":[["#,
    r#"{"subnet":"10.88.0.0/16"}]],"routes":[{"dst":"0.0.0.0/0"}],"type":"host-local"},"#,
    r#""isGateway":true,"name":"crio","prevResult":{"cniVersion":"1.1.0","interfaces":[{"#,
    r#""mac":"0e:5d:28:a0:65:c5","name":"cni0"},{"mac":"ca:f9:95:fb:76:35","name":"veth0a384591"},{"#,
    r#""mac":"32:04:69:e5:2b:66","name":"eth0","sandbox":"/run/netns/cni-1"}],"ips":[{"#,
    r#""address":"10.88.0.2/16","gateway":"10.88.0.1","interface":2}],"routes":[{"dst":"0.0.0.0/0"}]},"#,
    r#""promiscMode":true,"runtimeConfig":{"cgroupPath":"/kubepods/burstable/pod28ce45bc","#,
    r#""io.kubernetes.cri.pod-annotations":{"kubernetes.io/config.source":"api"}},"type":"bridge"}"#
);
/// CRI-O: portmap, GC with one pod.
pub(super) const CRIO_GC: &str = concat!(
    r#"{"capabilities":{"portMappings":true},"cni.dev/attachments":[{"containerID":"<CID>","#,
    r#""ifname":"eth0"}],"cni.dev/valid-attachments":[{"containerID":"<CID>","ifname":"eth0"}],"#,
    r#""cniVersion":"1.1.0","name":"crio","type":"portmap"}"#
);
/// CRI-O: portmap, GC with none.
pub(super) const CRIO_GC_NONE: &str = concat!(
    r#"{"capabilities":{"portMappings":true},"cni.dev/attachments":null,"#,
    r#""cni.dev/valid-attachments":null,"cniVersion":"1.1.0","name":"crio","type":"portmap"}"#
);
/// cnitool: portmap, GC.
pub(super) const CNITOOL_GC: &str =
    r#"{"capabilities":{"portMappings":true},"cniVersion":"1.1.0","name":"dbnet","type":"portmap"}"#;
/// podman: bridge, ADD.
pub(super) const PODMAN_BRIDGE: &str = concat!(
    r#"{"bridge":"cni-podman0","cniVersion":"0.4.0","hairpinMode":true,"ipMasq":true,"ipam":{"ranges":["#,
    r#"[{"gateway":"10.88.0.1","subnet":"10.88.0.0/16"}]],"routes":[{"dst":"0.0.0.0/0"}],"#,
    r#""type":"host-local"},"isGateway":true,"name":"podman","type":"bridge"}"#
);
/// podman: portmap, ADD.
pub(super) const PODMAN_PORTMAP: &str = concat!(
    r#"{"capabilities":{"portMappings":true},"cniVersion":"0.4.0","name":"podman","prevResult":{"#,
    r#""cniVersion":"0.4.0","dns":{},"interfaces":[{"mac":"9a:a5:e6:8d:dc:a1","name":"cni-podman0"},{"#,
    r#""mac":"82:ab:36:56:65:d8","name":"veth62292218"},{"mac":"92:d0:c6:0a:29:33","name":"eth0","#,
    r#""sandbox":"/run/netns/cni-1"}],"ips":[{"address":"10.88.0.77/16","gateway":"10.88.0.1","#,
    r#""interface":2,"version":"4"}],"routes":[{"dst":"0.0.0.0/0"}]},"runtimeConfig":{"portMappings":[{"#,
    r#""containerPort":80,"hostPort":8080,"protocol":"tcp"}]},"type":"portmap"}"#
);
/// nerdctl: firewall, the DEL before every ADD.
pub(super) const NERDCTL_FIREWALL: &str =
    r#"{"cniVersion":"1.0.0","ingressPolicy":"same-bridge","name":"bridge","type":"firewall"}"#;
/// nerdctl: portmap, ADD.
pub(super) const NERDCTL_PORTMAP: &str = concat!(
    r#"{"capabilities":{"portMappings":true},"cniVersion":"1.0.0","name":"bridge","prevResult":{"#,
    r#""cniVersion":"1.0.0","interfaces":[{"mac":"5a:31:31:86:62:db","name":"nerdctl0"},{"#,
    r#""mac":"2a:c0:e5:76:94:c2","name":"vethd109e9b2"},{"mac":"92:d0:c6:0a:29:33","name":"eth0","#,
    r#""sandbox":"/proc/4711/ns/net"}],"ips":[{"address":"10.4.0.77/24","gateway":"10.4.0.1","#,
    r#""interface":2}],"routes":[{"dst":"0.0.0.0/0"}]},"runtimeConfig":{"portMappings":[{"#,
    r#""HostPort":8080,"ContainerPort":80,"Protocol":"tcp","HostIP":"0.0.0.0"}]},"type":"portmap"}"#
);
/// libcni: bridge, ADD, after libcni has decoded and encoded the configuration.
pub(super) const CNITOOL_BRIDGE: &str = concat!(
    r#"{"big":9007199254740992,"bridge":"cni0","cniVersion":"1.1.0","dns":{"nameservers":["10.1.0.1"]},"#,
    r#""f":1,"html":"a\u003cb\u003e\u0026c","ipam":{"gateway":"10.1.0.1","routes":[{"#,
    r#""dst":"0.0.0.0/0"}],"subnet":"10.1.0.0/16","type":"host-local"},"keyA":["some more","#,
    r#""plugin specific","configuration"],"name":"dbnet","nul":null,"type":"bridge"}"#
);
