//! The objects of the cluster. A pod of another node has only its namespace, labels, addresses and named ports.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use crate::model::{
    Addresses, ClusterNetworkPolicy, MODE_ANNOTATION, NamedPort, Namespace, NetworkPolicy, Pod,
};
use crate::pool::Pool;

pub(crate) type Labels = Arc<[(Arc<str>, Arc<str>)]>;

/// The value of a label.
pub(crate) fn label<'a>(labels: &'a [(Arc<str>, Arc<str>)], key: &str) -> Option<&'a str> {
    let at = labels.binary_search_by(|(other, _)| (**other).cmp(key)).ok()?;
    labels.get(at).map(|(_, value)| &**value)
}

/// Namespaces, pods and policies.
#[derive(Debug, Default)]
pub struct Cluster {
    strings: Pool<str>,
    label_lists: Pool<[(Arc<str>, Arc<str>)]>,
    port_lists: Pool<[NamedPort]>,
    pods: Vec<Option<KnownPod>>,
    free: Vec<u32>,
    spaces: BTreeMap<Arc<str>, Space>,
    cluster_policies: BTreeMap<Box<str>, Arc<ClusterNetworkPolicy>>,
    /// The addresses of pods that have a part in policies.
    claims: BTreeSet<(IpAddr, u32)>,
    locals: BTreeSet<u32>,
    /// Nothing is denied in any namespace.
    is_dry: bool,
}

#[derive(Debug, Default)]
struct Space {
    /// `None` until the Namespace is known.
    labels: Option<Labels>,
    mode: Mode,
    pods: HashMap<Box<str>, u32>,
    policies: BTreeMap<Box<str>, Arc<NetworkPolicy>>,
}

/// Whether the pods of a namespace are denied something.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
enum Mode {
    #[default]
    Enforce,
    Dry,
    /// Its annotation is not understood: policies hold. The text says why.
    Strange(Box<str>),
}

impl Mode {
    fn read(annotation: Option<&str>) -> Mode {
        match annotation {
            None | Some("enforce") => Mode::Enforce,
            Some("dry") => Mode::Dry,
            Some(other) => {
                // It may be long.
                let other: String = other.chars().take(40).collect();
                Mode::Strange(
                    format!(
                        "annotation {MODE_ANNOTATION} is {other:?}, neither dry nor enforce: policies hold"
                    )
                    .into(),
                )
            }
        }
    }
}

/// A pod, as it is kept.
#[derive(Clone, Debug, PartialEq)]
pub struct KnownPod {
    pub(crate) namespace: Arc<str>,
    pub(crate) labels: Labels,
    pub(crate) addresses: Addresses,
    pub(crate) ports: Arc<[NamedPort]>,
    /// Has an address of its own that it uses: policies are for it, and it is a peer.
    pub(crate) has_part: bool,
    /// Its labels and ports are unknown.
    pub(crate) is_closed: bool,
    local: Option<Arc<Local>>,
}

/// What only this node's pods need.
#[derive(Debug, PartialEq)]
struct Local {
    uid: String,
    mirror_of: Option<String>,
}

impl KnownPod {
    pub fn addresses(&self) -> Addresses {
        self.addresses
    }

    /// Whether policies are for it: it has not ended, and is not in the node's network.
    pub fn has_part(&self) -> bool {
        self.has_part
    }

    /// Whether its labels are unknown.
    pub fn is_closed(&self) -> bool {
        self.is_closed
    }

    pub fn is_local(&self) -> bool {
        self.local.is_some()
    }

    /// Whether a runtime's UID is that of this pod of this node: its own, or that of the static pod whose mirror it is.
    pub fn is_uid(&self, uid: &str) -> bool {
        self.local.as_ref().is_some_and(|local| match &local.mirror_of {
            Some(of) => of == uid || local.uid == uid,
            None => local.uid == uid,
        })
    }
}

impl Cluster {
    pub(crate) fn new(is_dry: bool) -> Cluster {
        Cluster { is_dry, ..Cluster::default() }
    }

    pub fn is_dry_cluster(&self) -> bool {
        self.is_dry
    }

    /// Whether the pods of the namespace are denied nothing. A namespace that is not known is enforced.
    pub fn is_dry_namespace(&self, namespace: &str) -> bool {
        self.is_dry || self.spaces.get(namespace).is_some_and(|space| space.mode == Mode::Dry)
    }

    /// The namespaces whose annotation says so.
    pub fn dry_namespaces(&self) -> impl Iterator<Item = &str> {
        self.spaces.iter().filter(|(_, space)| space.mode == Mode::Dry).map(|(name, _)| &**name)
    }

    /// Whether the pod of this node that has the address is denied nothing: all pods that claim it are in such namespaces.
    pub fn is_dry(&self, address: IpAddr) -> bool {
        self.at(address).filter(|pod| pod.is_local()).all(|pod| self.is_dry_namespace(&pod.namespace))
    }

    /// The namespaces whose annotation is not understood, and why.
    pub(crate) fn strange_modes(&self) -> impl Iterator<Item = (&str, &str)> {
        self.spaces.iter().filter_map(|(name, space)| match &space.mode {
            Mode::Strange(why) => Some((&**name, &**why)),
            _ => None,
        })
    }

    /// A pod of this node, or one of another node that has an address of its own.
    pub fn pod(&self, namespace: &str, name: &str) -> Option<&KnownPod> {
        self.by_id(*self.spaces.get(namespace)?.pods.get(name)?)
    }

    /// Whether a pod of this node that policies are for has this address.
    pub fn has_local(&self, address: IpAddr) -> bool {
        self.at(address).any(KnownPod::is_local)
    }

    /// Whether a pod of any node has this address.
    pub fn has_pod(&self, address: IpAddr) -> bool {
        self.at(address).next().is_some()
    }

    /// The pods of this node whose objects cannot be read, by namespace and name, as far as they have addresses.
    pub fn closed_pods(&self) -> impl Iterator<Item = (&str, &str)> {
        let closed = self.locals().filter(|pod| pod.is_closed);
        closed.filter_map(|pod| pod.addresses.all().next()).flat_map(|address| self.names_at(address))
    }

    /// The pods that have this address: one, but for moments.
    pub(crate) fn at(&self, address: IpAddr) -> impl Iterator<Item = &KnownPod> {
        self.claims.range((address, 0)..=(address, u32::MAX)).filter_map(|(_, id)| self.by_id(*id))
    }

    /// The pod with this address as NAMESPACE/NAME, in its first 128 bytes; the first one if there are several.
    pub fn name_at(&self, address: IpAddr) -> Option<String> {
        let (namespace, name) = self.names_at(address).next()?;
        Some(format!("{namespace}/{name}"))
    }

    /// Their namespaces and names.
    pub fn names_at(&self, address: IpAddr) -> impl Iterator<Item = (&str, &str)> {
        let ids = self.claims.range((address, 0)..=(address, u32::MAX)).map(|(_, id)| *id);
        ids.filter_map(|id| {
            let (namespace, space) = self.spaces.get_key_value(&self.by_id(id)?.namespace)?;
            let (name, _) = space.pods.iter().find(|(_, other)| **other == id)?;
            Some((&**namespace, &**name))
        })
    }

    /// The ports with a name of the pods that have this address.
    pub fn ports_at(&self, address: IpAddr) -> impl Iterator<Item = &NamedPort> {
        self.at(address).flat_map(|pod| pod.ports.iter())
    }

    pub(crate) fn namespace_labels(&self, namespace: &str) -> Option<&Labels> {
        self.spaces.get(namespace)?.labels.as_ref()
    }

    /// Whether it is known which policies are for the pod: a ClusterNetworkPolicy may ask for the labels of its namespace.
    pub fn is_placed(&self, pod: &KnownPod) -> bool {
        self.cluster_policies.is_empty() || self.namespace_labels(&pod.namespace).is_some()
    }

    /// Those that are known, with their labels.
    pub(crate) fn namespaces(&self) -> impl Iterator<Item = (&str, &Labels)> {
        self.spaces.iter().filter_map(|(name, space)| Some((&**name, space.labels.as_ref()?)))
    }

    pub(crate) fn pods_in(&self, namespace: &str) -> impl Iterator<Item = &KnownPod> {
        self.spaces
            .get(namespace)
            .into_iter()
            .flat_map(|space| space.pods.values())
            .filter_map(|id| self.by_id(*id))
    }

    pub(crate) fn pods(&self) -> impl Iterator<Item = &KnownPod> {
        self.pods.iter().flatten()
    }

    /// The pods of this node that policies are for.
    pub(crate) fn locals(&self) -> impl Iterator<Item = &KnownPod> {
        self.locals.iter().filter_map(|id| self.by_id(*id))
    }

    /// The pods of this node, with namespaces and names.
    pub(crate) fn local_names(&self) -> impl Iterator<Item = (&str, &str, &KnownPod)> {
        self.spaces.iter().flat_map(|(namespace, space)| {
            space.pods.iter().filter_map(|(name, id)| {
                let pod = self.by_id(*id).filter(|pod| pod.is_local())?;
                Some((&**namespace, &**name, pod))
            })
        })
    }

    /// In the order of their names.
    pub(crate) fn policies_in(&self, namespace: &str) -> impl Iterator<Item = &Arc<NetworkPolicy>> {
        self.spaces.get(namespace).into_iter().flat_map(|space| space.policies.values())
    }

    pub(crate) fn pod_keys(&self) -> Vec<(Arc<str>, Box<str>)> {
        self.spaces
            .iter()
            .flat_map(|(space, of)| of.pods.keys().map(|name| (space.clone(), name.clone())))
            .collect()
    }

    pub(crate) fn policy_keys(&self) -> Vec<(Arc<str>, Box<str>)> {
        self.spaces
            .iter()
            .flat_map(|(space, of)| of.policies.keys().map(|name| (space.clone(), name.clone())))
            .collect()
    }

    pub(crate) fn namespace_keys(&self) -> Vec<Arc<str>> {
        self.spaces.iter().filter(|(_, space)| space.labels.is_some()).map(|(name, _)| name.clone()).collect()
    }

    /// In the order of their names.
    pub(crate) fn cluster_policies(&self) -> impl Iterator<Item = &Arc<ClusterNetworkPolicy>> {
        self.cluster_policies.values()
    }

    /// The ClusterNetworkPolicy with this name.
    pub fn cluster_policy(&self, name: &str) -> Option<&Arc<ClusterNetworkPolicy>> {
        self.cluster_policies.get(name)
    }

    pub(crate) fn put_cluster_policy(&mut self, policy: Arc<ClusterNetworkPolicy>) {
        self.cluster_policies.insert(policy.name.as_str().into(), policy);
    }

    pub(crate) fn take_cluster_policy(&mut self, name: &str) {
        self.cluster_policies.remove(name);
    }

    fn by_id(&self, id: u32) -> Option<&KnownPod> {
        self.pods.get(id as usize)?.as_ref()
    }

    fn labels(&mut self, labels: &BTreeMap<String, String>) -> Labels {
        let list: Vec<_> = labels
            .iter()
            .map(|(key, value)| (self.strings.get(key.as_str()), self.strings.get(value.as_str())))
            .collect();
        self.label_lists.get(list.as_slice())
    }

    /// The part of a pod that is kept; `None` for a pod of another node that cannot be a peer.
    pub(crate) fn known(&mut self, pod: &Pod) -> Option<KnownPod> {
        let has_part = !pod.ended && !pod.host_network;
        let has_address = pod.addresses != Addresses::default();
        let is_closed = pod.unread.is_some();
        (pod.local || has_part && has_address).then(|| KnownPod {
            namespace: self.strings.get(pod.namespace.as_str()),
            labels: self.labels(&pod.labels),
            addresses: pod.addresses,
            ports: self.port_lists.get(pod.ports.as_slice()),
            has_part,
            is_closed,
            local: pod
                .local
                .then(|| Arc::new(Local { uid: pod.uid.clone(), mirror_of: pod.mirror_of.clone() })),
        })
    }

    /// A pod of this node as it is kept when its object cannot be read.
    pub(crate) fn closed(&self, namespace: &str, name: &str) -> Option<KnownPod> {
        let pod = self.pod(namespace, name).filter(|pod| pod.is_local())?.clone();
        Some(KnownPod { labels: Arc::default(), ports: Arc::default(), is_closed: true, ..pod })
    }

    pub(crate) fn put_pod(&mut self, name: &str, pod: KnownPod) {
        let id = self.free.pop().unwrap_or_else(|| {
            self.pods.push(None);
            (self.pods.len() - 1) as u32
        });
        if pod.has_part {
            self.claims.extend(pod.addresses.all().map(|address| (address, id)));
            if pod.is_local() {
                self.locals.insert(id);
            }
        }
        self.spaces.entry(pod.namespace.clone()).or_default().pods.insert(name.into(), id);
        if let Some(place) = self.pods.get_mut(id as usize) {
            *place = Some(pod);
        }
    }

    pub(crate) fn take_pod(&mut self, namespace: &str, name: &str) -> Option<KnownPod> {
        let id = self.spaces.get_mut(namespace)?.pods.remove(name)?;
        let pod = self.pods.get_mut(id as usize)?.take()?;
        self.free.push(id);
        self.locals.remove(&id);
        for address in pod.addresses.all() {
            self.claims.remove(&(address, id));
        }
        self.forget_if_empty(namespace);
        Some(pod)
    }

    /// The labels before.
    pub(crate) fn put_namespace(&mut self, namespace: &Namespace) -> Option<Labels> {
        let labels = self.labels(&namespace.labels);
        let name = self.strings.get(namespace.name.as_str());
        let space = self.spaces.entry(name).or_default();
        space.mode = Mode::read(namespace.mode.as_deref());
        space.labels.replace(labels)
    }

    pub(crate) fn take_namespace(&mut self, name: &str) -> Option<Labels> {
        let space = self.spaces.get_mut(name)?;
        space.mode = Mode::Enforce;
        let labels = space.labels.take();
        self.forget_if_empty(name);
        labels
    }

    pub(crate) fn put_policy(&mut self, policy: Arc<NetworkPolicy>) {
        let namespace = self.strings.get(policy.namespace.as_str());
        self.spaces.entry(namespace).or_default().policies.insert(policy.name.as_str().into(), policy);
    }

    pub(crate) fn policy(&self, namespace: &str, name: &str) -> Option<&Arc<NetworkPolicy>> {
        self.spaces.get(namespace)?.policies.get(name)
    }

    pub(crate) fn take_policy(&mut self, namespace: &str, name: &str) {
        if let Some(space) = self.spaces.get_mut(namespace) {
            space.policies.remove(name);
            self.forget_if_empty(namespace);
        }
    }

    fn forget_if_empty(&mut self, namespace: &str) {
        let is_empty =
            |space: &Space| space.labels.is_none() && space.pods.is_empty() && space.policies.is_empty();
        if self.spaces.get(namespace).is_some_and(is_empty) {
            self.spaces.remove(namespace);
        }
    }
}
