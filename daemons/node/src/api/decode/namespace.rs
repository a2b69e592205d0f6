//! Namespaces.

use ferrule_node_policy::model;
use serde::Deserialize;

use super::{Metadata, Read, labels};
use crate::policy::objects::{Kind, Told};

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
        let labels = labels(self.metadata.labels)?;
        let mode = self.metadata.annotations.and_then(|annotations| annotations.mode);
        Ok(Told::Namespace(model::Namespace { name: self.metadata.name, labels, mode }))
    }
}
