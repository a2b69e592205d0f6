//! What an API server sends, as a function of any bytes.

use std::sync::Arc;

use futures_util::FutureExt as _;
use kube::core::WatchEvent;
use tokio::sync::watch;

use super::decode::{ClusterPolicy, Namespace, Pod, Policy};
use super::items::Items;
use super::kind::{Kind, read};
use super::line::Line;
use super::nodes::Nodes;
use super::objects::Objects;
use super::session::event;
use crate::policy::{self, objects::Told};

/// Reads them as a list of nodes, and as the lines of a watch.
pub(crate) fn nodes(bytes: &[u8]) {
    read_all(Nodes::new("n1".to_owned(), watch::Sender::new(None), Arc::default()), bytes, &mut drop);
}

/// Reads the bytes as a list of this kind, and as the lines of a watch. Each decoded message goes to `told`.
pub(crate) fn objects(of: policy::objects::Kind, bytes: &[u8], told: &mut impl FnMut(Told)) {
    let node = "n1".to_owned();
    match of {
        policy::objects::Kind::Policies => read_all(Objects::<Policy>::new(node), bytes, told),
        policy::objects::Kind::ClusterPolicies => read_all(Objects::<ClusterPolicy>::new(node), bytes, told),
        policy::objects::Kind::Namespaces => read_all(Objects::<Namespace>::new(node), bytes, told),
        policy::objects::Kind::Pods => read_all(Objects::<Pod>::new(node), bytes, told),
    }
}

fn read_all<K: Kind>(mut kind: K, bytes: &[u8], told: &mut impl FnMut(K::Message)) {
    let mut items = Items::default();
    let taken = items.take(bytes, |item, is_cut| {
        kind.listed(read::<K>(item, is_cut)?).into_iter().for_each(&mut *told);
        Ok(())
    });
    if taken.is_ok() && items.finish().is_ok() {
        told(kind.complete());
    }
    let (mut watch, mut line) = (std::pin::pin!(bytes), Line::default());
    while let Some(Ok(true)) = line.read(&mut watch).now_or_never() {
        let message = match event::<K>(&line) {
            Ok(WatchEvent::Added(object) | WatchEvent::Modified(object)) => kind.changed(object),
            Ok(WatchEvent::Deleted(object)) => kind.gone(object),
            _ => None,
        };
        message.into_iter().for_each(&mut *told);
        line.clear();
    }
}
