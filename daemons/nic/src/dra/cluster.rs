//! The API server's client. It is made anew after the API server refuses its credentials: the files may have new ones.

use std::path::PathBuf;
use std::time::Duration;

use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config, Error};
use tokio::sync::Mutex;
use tokio::time::timeout;

/// How long one request may take; the kubelet gives a call 45 s.
const LIMIT: Duration = Duration::from_secs(20);
/// How long a connection may take.
const CONNECT: Duration = Duration::from_secs(5);
/// The HTTP status for refused credentials.
const UNAUTHORIZED: u16 = 401;

pub(crate) struct Cluster {
    kubeconfig: Option<PathBuf>,
    client: Mutex<Option<Client>>,
}

impl Cluster {
    /// The cluster of the kubeconfig, or that of the pod's ServiceAccount.
    pub(crate) fn new(kubeconfig: Option<PathBuf>) -> Cluster {
        Cluster { kubeconfig, client: Mutex::default() }
    }

    pub(crate) async fn client(&self) -> Result<Client, String> {
        let mut client = self.client.lock().await;
        if let Some(client) = &*client {
            return Ok(client.clone());
        }
        let config = match &self.kubeconfig {
            None => Config::incluster()
                .map_err(|error| format!("no --kubeconfig, and no ServiceAccount: {error}")),
            Some(path) => {
                let failed = |error| format!("{}: {error}", path.display());
                let file = Kubeconfig::read_from(path).map_err(failed)?;
                Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await.map_err(failed)
            }
        };
        let mut config = config?;
        config.connect_timeout = Some(CONNECT);
        let new = Client::try_from(config).map_err(|error| describe(&error))?;
        Ok(client.insert(new).clone())
    }

    /// Waits for the answer to a request, but not for ever. The error is one line.
    pub(crate) async fn ask<T>(&self, request: impl Future<Output = Result<T, Error>>) -> Result<T, Refusal> {
        let error = match timeout(LIMIT, request).await {
            Ok(Ok(answer)) => return Ok(answer),
            Ok(Err(error)) => error,
            Err(_) => {
                let text = format!("the API server has not answered for {} s", LIMIT.as_secs());
                return Err(Refusal { code: 0, text });
            }
        };
        let code = if let Error::Api(status) = &error { status.code } else { 0 };
        if code == UNAUTHORIZED {
            *self.client.lock().await = None;
        }
        Err(Refusal { code, text: describe(&error) })
    }
}

/// Why there is no answer.
#[derive(Debug)]
pub(crate) struct Refusal {
    /// The HTTP status; 0 without an answer.
    pub(crate) code: u16,
    pub(crate) text: String,
}

impl From<Refusal> for String {
    fn from(refusal: Refusal) -> String {
        refusal.text
    }
}

/// The error with its causes in one line.
fn describe(error: &Error) -> String {
    if let Error::Api(status) = error {
        return format!("the API server refuses it: {} ({})", status.message, status.code);
    }
    let (mut text, mut next) = (format!("the API server: {error}"), std::error::Error::source(error));
    while let Some(cause) = next {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        next = cause.source();
    }
    text
}
