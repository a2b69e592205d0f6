//! Requests to the API server, each with a limit of time and of bytes.

use std::time::Duration;

use anyhow::{Context as _, Result, anyhow};
use futures_util::io::{AsyncBufRead, AsyncReadExt as _};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::core::Request;
use kube::core::params::{ListParams, Patch, PatchParams, PostParams, WatchParams};
use kube::{Client, Config};
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::arguments::Options;
use crate::cluster::NodeList;

/// The longest wait for an answer; with a watch, for its headers.
const LIMIT: Duration = Duration::from_secs(30);
/// Nodes in a page of the list: at 20 kB each, a page takes 2 MB for a moment.
const PAGE: u32 = 100;
/// The most bytes of a page.
const MAX_PAGE: u64 = 64 << 20;
/// The seconds after which the API server ends a watch.
const WATCH: u32 = 290;

const NODES: &str = "/api/v1/nodes";
const EVENTS: &str = "/api/v1/namespaces/default/events";

/// A client. It reads a token's file again each minute.
pub struct Connection(Client);

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
        Ok(Connection(Client::try_from(config)?))
    }

    /// The page of the list of nodes with this token; `None` for the first one.
    pub(super) async fn list(&self, token: Option<String>) -> Result<NodeList> {
        let params = ListParams { limit: Some(PAGE), continue_token: token, ..ListParams::default() };
        let request = Request::new(NODES).list(&params)?;
        let page = async {
            let mut bytes = Vec::new();
            self.0
                .request_stream(request)
                .await
                .map_err(plain)?
                .take(MAX_PAGE)
                .read_to_end(&mut bytes)
                .await?;
            Ok(serde_json::from_slice(&bytes)?)
        };
        within(page).await.context("list the nodes")
    }

    /// The lines of a watch from this version on.
    pub(super) async fn watch(&self, version: &str) -> Result<impl AsyncBufRead + use<>> {
        let params = WatchParams { timeout: Some(WATCH), bookmarks: true, ..WatchParams::default() };
        let mut request = Request::new(NODES).watch(&params, version)?;
        // kube is built without decompression.
        request.headers_mut().insert("accept-encoding", "identity".parse()?);
        within(async { self.0.request_stream(request).await.map_err(plain) }).await.context("watch the nodes")
    }

    /// Creates an event. It is no error if the event exists already.
    pub(super) async fn create_event(&self, event: &Value) -> Result<()> {
        let request = Request::new(EVENTS).create(&PostParams::default(), serde_json::to_vec(event)?)?;
        match within(async { Ok(self.0.request_text(request).await) }).await? {
            Err(kube::Error::Api(status)) if status.code == 409 => Ok(()),
            outcome => outcome.map(drop).map_err(plain),
        }
    }

    pub(super) async fn annotate(&self, node: &str, key: &str, value: &str) -> Result<()> {
        let patch = Patch::Merge(json!({ "metadata": { "annotations": { key: value } } }));
        let request = Request::new(NODES).patch(node, &PatchParams::default(), &patch)?;
        within(async { self.0.request_text(request).await.map(drop).map_err(plain) }).await
    }
}

/// kube's error text has the API server's answer twice, the second time as a debug structure.
fn plain(error: kube::Error) -> anyhow::Error {
    match error {
        kube::Error::Api(status) => Refused { code: status.code, message: status.message.clone() }.into(),
        error => error.into(),
    }
}

/// An error status from the API server.
#[derive(Debug)]
pub(super) struct Refused {
    /// The HTTP status.
    pub(super) code: u16,
    message: String,
}

impl std::fmt::Display for Refused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "the API server answers {}: {}", self.code, self.message)
    }
}

impl std::error::Error for Refused {}

async fn within<T>(request: impl Future<Output = Result<T>>) -> Result<T> {
    timeout(LIMIT, request).await.map_err(|_| anyhow!("no answer within {LIMIT:?}"))?
}
