//! A real kubelet without an API server: its pods are files.

use std::fs;
use std::time::Duration;

use cni_lab::{Background, Containerd, Node, Place as _, eventually};
use serde_json::Value;

use crate::lab::{NIC, example};

/// The configuration. Without an API server all requests are allowed; nothing else can reach the node.
const CONFIG: &str = "
kind: KubeletConfiguration
apiVersion: kubelet.config.k8s.io/v1beta1
staticPodPath: /run/manifests
address: 127.0.0.1
readOnlyPort: 10255
authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
enforceNodeAllocatable: []
evictionHard: {nodefs.available: 0%}
failSwapOn: false
fileCheckFrequency: 1s
makeIPTablesUtilChains: false
resolvConf: ''
volumePluginDir: /run/volume-plugins
";

/// Starts a kubelet again whenever it ends, as systemd does. Arguments: the program and its control group, for version 1 of control groups.
/// It would set sysctls of the whole machine; so it sees files with the values that it wants in their place.
const SUPERVISOR: &str = r#"
set -e
mkdir -p /run/manifests /run/sysctl /run/pod-logs
mount -t tmpfs tmpfs /var/log
for pair in vm/overcommit_memory=1 vm/panic_on_oom=0 kernel/panic=10 kernel/panic_on_oops=1 \
    kernel/keys/root_maxkeys=1000000 kernel/keys/root_maxbytes=25000000; do
    file=/run/sysctl/$(echo "${pair%=*}" | tr / .)
    echo "${pair#*=}" >"$file"
    mount --bind "$file" "/proc/sys/${pair%=*}"
done
for hierarchy in /sys/fs/cgroup/*/cgroup.procs; do mkdir "${hierarchy%/*}/$2"; done
for file in cpuset.cpus cpuset.mems; do cat "/sys/fs/cgroup/cpuset/$file" >"/sys/fs/cgroup/cpuset/$2/$file"; done
while :; do
    "$1" --config /run/kubelet.yaml --cgroup-root "/$2" --hostname-override node --v 3 --container-runtime remote \
        --container-runtime-endpoint unix:///run/containerd/socket --pod-infra-container-image ferrule.test/pause:1 \
        >>/run/kubelet.log 2>&1 &
    echo $! >/run/kubelet.pid
    wait $! || true
    sleep 1
done"#;

/// How long the kubelet may take: without DNS it needs 10 seconds for each admission.
const LIMIT: Duration = Duration::from_secs(120);

/// The kubelet. Its processes end with containerd's namespaces.
pub(crate) struct Kubelet<'c> {
    node: &'c Node,
    containerd: &'c Containerd<'c>,
    _supervisor: Background,
}

impl<'c> Kubelet<'c> {
    pub(crate) fn start(node: &'c Node, containerd: &'c Containerd<'c>, program: &str) -> Kubelet<'c> {
        node.write_file("/run/kubelet.yaml", CONFIG).unwrap();
        let arguments = [
            "--mount",
            "--propagation",
            "unchanged",
            "sh",
            "-c",
            SUPERVISOR,
            "sh",
            program,
            containerd.cgroup(),
        ];
        let supervisor = containerd.spawn_beside("unshare", &arguments).unwrap();
        Kubelet { node, containerd, _supervisor: supervisor }
    }

    /// SIGKILL. The supervisor starts the next kubelet.
    pub(crate) fn kill(&self) {
        self.containerd.sh_beside("kill -KILL $(cat /run/kubelet.pid)").unwrap();
    }

    /// Makes a static pod as in `examples/static-pod.yaml` that asks for so many NICs.
    pub(crate) fn run(&self, name: &str, count: usize) {
        let mut pod: Value = yaml_serde::from_str(&example("static-pod.yaml")).unwrap();
        pod["metadata"]["name"] = name.into();
        pod["spec"]["terminationGracePeriodSeconds"] = 0.into();
        let container = &mut pod["spec"]["containers"][0];
        container["image"] = "ferrule.test/pause:1".into();
        container["imagePullPolicy"] = "Never".into();
        container["resources"]["limits"][NIC] = count.into();
        self.node.write_file(format!("/run/manifests/{name}.json"), &pod.to_string()).unwrap();
    }

    /// Removes a static pod and waits until it is gone.
    pub(crate) fn remove(&self, name: &str) {
        self.node.sh(&format!("rm /run/manifests/{name}.json")).unwrap();
        self.until(&format!("{name} is gone"), || self.pod(name).is_none());
    }

    /// What the kubelet's read-only port says of a pod.
    pub(crate) fn pod(&self, name: &str) -> Option<Value> {
        let list = self.node.sh("curl --silent --noproxy '*' http://127.0.0.1:10255/pods").ok()?;
        let list: Value = serde_json::from_str(&list).ok()?;
        let pods = list["items"].as_array()?;
        pods.iter().find(|pod| pod["metadata"]["name"] == format!("{name}-node")).cloned()
    }

    /// Waits until a pod has this phase, and returns it.
    pub(crate) fn phase(&self, name: &str, phase: &str) -> Value {
        self.until(&format!("{name} is {phase}"), || {
            self.pod(name).is_some_and(|pod| {
                let started = &pod["status"]["containerStatuses"][0]["started"];
                pod["status"]["phase"] == phase && (phase != "Running" || *started == true)
            })
        });
        self.pod(name).unwrap()
    }

    /// Waits until the log has this text.
    pub(crate) fn says(&self, text: &str) {
        self.until(text, || self.log().contains(text));
    }

    fn log(&self) -> String {
        self.node.read_file("/run/kubelet.log").unwrap_or_default()
    }

    pub(crate) fn until(&self, what: &str, condition: impl FnMut() -> bool) {
        if !eventually(LIMIT, condition) {
            let folder = std::env::temp_dir().join("kubelet.log");
            fs::write(&folder, self.log()).unwrap();
            panic!("not within {LIMIT:?}: {what}; the kubelet's log: {}", folder.display());
        }
    }
}
