//! Requests to the API server, each with a limit of time and of bytes.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, ensure};
use futures_util::io::{AsyncBufRead, AsyncReadExt as _};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::core::Request;
use kube::core::params::{GetParams, ListParams, Patch, PatchParams, PostParams, VersionMatch, WatchParams};
use kube::{Client, Config};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::net::lookup_host;
use tokio::time::timeout;

use crate::arguments::Options;

/// The longest wait for an answer; with a watch, for its headers.
const LIMIT: Duration = Duration::from_secs(30);
/// Objects in a page of a list from etcd.
const PAGE: u32 = 500;
/// The HTTP status for a path or an object that does not exist.
pub(super) const NOT_FOUND: u16 = 404;
/// The longest wait for the addresses of a name.
const RESOLVE: Duration = Duration::from_secs(5);
/// The seconds after which the API server ends a watch.
const WATCH: u32 = 290;

pub(super) const NODES: &str = "/api/v1/nodes";
const CRDS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
/// The most bytes of a CustomResourceDefinition: etcd takes no larger one.
const MAX_CRD: u64 = 8 << 20;

/// Which list an API server may send. All but the newest one come from its watch cache, at once, and cost etcd nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Age {
    /// Any list that it has.
    Any,
    /// A list with this version, or a later one.
    NotBefore(String),
    /// The newest list, which it gets from etcd.
    Newest,
}

/// A client. It reads a token's file again each minute.
pub struct Connection {
    client: Client,
    /// The API server's URL.
    url: String,
}

impl Connection {
    /// Reads the kubeconfig, or the pod's token and certificates. `server` replaces the configured API server.
    ///
    /// # Errors
    /// A part of the configuration is missing or invalid.
    pub async fn open(options: &Options, server: Option<&str>) -> Result<Connection> {
        let mut config = match (&options.kubeconfig, server) {
            (Some(path), _) => {
                let kubeconfig = Kubeconfig::read_from(path).with_context(|| path.display().to_string())?;
                Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default())
                    .await
                    .with_context(|| path.display().to_string())?
            }
            // Needs no address of the API server in the environment.
            (None, Some(_)) => Config::incluster_dns()?,
            (None, None) => Config::incluster_env()?,
        };
        if let Some(server) = server {
            config.cluster_url = server.parse().with_context(|| format!("--api-server {server}"))?;
        }
        // The caller logs each failure, and may try another API server next.
        config.default_retry = false;
        let url = config.cluster_url.to_string();
        Ok(Connection { client: Client::try_from(config)?, url })
    }

    /// For requests about other objects than nodes.
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// The addresses of this API server and of those that the options name. Those whose name cannot be resolved are missing.
    pub async fn servers(&self, options: &Options) -> BTreeSet<IpAddr> {
        let mut found = BTreeSet::new();
        for (host, port) in options.api_server.iter().chain([&self.url]).filter_map(|url| place(url)) {
            if let Ok(Ok(addresses)) = timeout(RESOLVE, lookup_host((host, port))).await {
                found.extend(addresses.map(|address| address.ip().to_canonical()));
            }
        }
        found
    }

    /// The answer to a request for a page of a list, with this token; `None` for the first one.
    pub(super) async fn list(
        &self,
        path: &str,
        age: &Age,
        token: Option<String>,
    ) -> Result<impl AsyncBufRead + use<>> {
        let (version, limit) = match age {
            // API servers ignore a limit with version 0, and ask etcd if there is one with another version.
            Age::Any => (Some("0".to_owned()), None),
            Age::NotBefore(version) => (Some(version.clone()), None),
            Age::Newest => (None, Some(PAGE)),
        };
        let params = ListParams {
            limit,
            continue_token: token,
            version_match: version.is_some().then_some(VersionMatch::NotOlderThan),
            resource_version: version,
            ..ListParams::default()
        };
        let request = Request::new(path).list(&params)?;
        within(async { self.client.request_stream(request).await.map_err(plain) }).await
    }

    /// The lines of a watch from this version on.
    pub(super) async fn watch(&self, path: &str, version: &str) -> Result<impl AsyncBufRead + use<>> {
        let params = WatchParams { timeout: Some(WATCH), bookmarks: true, ..WatchParams::default() };
        let mut request = Request::new(path).watch(&params, version)?;
        // kube is built without decompression.
        request.headers_mut().insert("accept-encoding", "identity".parse()?);
        within(async { self.client.request_stream(request).await.map_err(plain) }).await
    }

    /// The versions that the CustomResourceDefinition with this name serves; `None` if the API server says that it does not exist.
    pub(super) async fn served(&self, name: &str) -> Result<Option<Vec<String>>> {
        let request = Request::new(CRDS).get(name, &GetParams::default())?;
        let read = async {
            let (answer, mut text) = (self.client.request_stream(request).await.map_err(plain)?, Vec::new());
            std::pin::pin!(answer.take(MAX_CRD)).read_to_end(&mut text).await?;
            Ok(text)
        };
        match within(read).await {
            Ok(text) => {
                let Definition { spec } = serde_json::from_slice(&text)?;
                Ok(Some(spec.versions.into_iter().filter(|one| one.served).map(|one| one.name).collect()))
            }
            Err(error) if error.downcast_ref().is_some_and(|refused: &Refused| refused.lacks(name)) => {
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Creates an event. It is no error if the event exists already.
    pub(super) async fn create_event(&self, namespace: &str, event: &Value) -> Result<()> {
        let path = format!("/api/v1/namespaces/{namespace}/events");
        let request = Request::new(path).create(&PostParams::default(), serde_json::to_vec(event)?)?;
        match changed(self.client.request_text(request)).await {
            Err(error) if error.downcast_ref().is_some_and(|refused: &Refused| refused.code == 409) => Ok(()),
            outcome => outcome,
        }
    }

    pub(super) async fn annotate(&self, node: &str, key: &str, value: &str) -> Result<()> {
        let patch = Patch::Merge(json!({ "metadata": { "annotations": { key: value } } }));
        let request = Request::new(NODES).patch(node, &PatchParams::default(), &patch)?;
        changed(self.client.request_text(request)).await
    }
}

/// What counts of a CustomResourceDefinition.
#[derive(Deserialize)]
struct Definition {
    spec: DefinitionSpec,
}

#[derive(Deserialize)]
struct DefinitionSpec {
    versions: Vec<DefinitionVersion>,
}

#[derive(Deserialize)]
struct DefinitionVersion {
    name: String,
    served: bool,
}

/// The answer to a change is the object. kube takes a redirect for success.
async fn changed(answer: impl Future<Output = kube::Result<String>>) -> Result<()> {
    let text = within(async { answer.await.map_err(plain) }).await?;
    let object: Option<Value> = serde_json::from_str(&text).ok();
    ensure!(object.is_some_and(|object| object["metadata"].is_object()), "the answer has no object");
    Ok(())
}

/// The host and the port of a URL.
fn place(url: &str) -> Option<(&str, u16)> {
    let (scheme, rest) = url.split_once("://")?;
    let authority = rest.split(['/', '?']).next()?;
    let authority = authority.rsplit_once('@').map_or(authority, |(_, place)| place);
    let usual = if scheme == "http" { 80 } else { 443 };
    let (host, port) = match authority.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => (host, port.parse().ok()?),
        _ => (authority, usual),
    };
    Some((host.trim_start_matches('[').trim_end_matches(']'), port))
}

/// kube's error text has the API server's answer twice, the second time as a debug structure.
fn plain(error: kube::Error) -> anyhow::Error {
    match error {
        kube::Error::Api(status) => {
            let about = status.details.as_ref().map(|details| details.name.clone()).unwrap_or_default();
            Refused { code: status.code, message: status.message.clone(), about }.into()
        }
        error => error.into(),
    }
}

/// An error status from the API server.
#[derive(Debug)]
pub(super) struct Refused {
    /// The HTTP status.
    pub(super) code: u16,
    message: String,
    /// The name of the object that it is about; empty if it has none.
    about: String,
}

impl Refused {
    /// Whether it says that there is no object of this name. A proxy's 404 does not.
    fn lacks(&self, name: &str) -> bool {
        self.code == NOT_FOUND && self.about == name
    }

    /// Whether it says that this version cannot be had.
    pub(super) fn is_about_version(&self) -> bool {
        self.code == 410 || self.message.to_lowercase().contains("resource version")
    }
}

impl std::fmt::Display for Refused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "the API server answers {}: {}", self.code, self.message)
    }
}

impl std::error::Error for Refused {}

pub(super) async fn within<T>(request: impl Future<Output = Result<T>>) -> Result<T> {
    timeout(LIMIT, request).await.map_err(|_| anyhow!("no answer within {LIMIT:?}"))?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_place_of_a_url() {
        for (url, expected) in [
            ("https://10.96.0.1:443/", Some(("10.96.0.1", 443))),
            ("https://api.example", Some(("api.example", 443))),
            ("http://[fd00::1]:6443/x", Some(("fd00::1", 6443))),
            ("https://[fd00::1]", Some(("fd00::1", 443))),
            ("10.0.0.1", None),
        ] {
            assert_eq!(place(url), expected, "{url}");
        }
    }
}
