//! Namespaces.

use ferrule_node_policy::model;
use serde::Deserialize;

use super::{Metadata, Read, labels};
use crate::policy::objects::{Kind, Told};

/// The label with the namespace's name, which the API server sets.
const NAME: &str = "kubernetes.io/metadata.name";

#[derive(Debug, Deserialize)]
pub(in super::super) struct Namespace {
    metadata: Metadata,
}

impl Read for Namespace {
    const KIND: Kind = Kind::Namespaces;
    const PATH: &'static str = "/api/v1/namespaces";
    const COST: u32 = 1;

    fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    fn told(self, _: &str) -> Result<Told, String> {
        let mode = self.metadata.annotations.and_then(|annotations| annotations.mode);
        let name = self.metadata.name;
        // With too many it keeps its name, so that rules that name it hold.
        let labels =
            labels(self.metadata.labels).unwrap_or_else(|_| [(NAME.to_owned(), name.clone())].into());
        Ok(Told::Namespace(model::Namespace { name, labels, mode }))
    }
}
