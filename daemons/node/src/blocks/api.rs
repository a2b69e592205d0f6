//! Requests to the API server, each with a limit of time.

mod fence;

use std::time::Duration;

use anyhow::{Result, anyhow, bail};
use ferrule_blocks::block::Block;
use ferrule_blocks::ledger::Claim;
use ferrule_blocks::range::{Fixed, joined};
use kube::Client;
use kube::core::Request;
use kube::core::params::{DeleteParams, GetParams, ListParams, PostParams, Preconditions};
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::sync::Mutex;
use tokio::time::{sleep, timeout};

use super::object::{self, Claimant, Domain, Object, Page};
use super::whereabouts;
use crate::api::{About, Connection, Event};
use crate::arguments::Options;

/// The longest wait for an answer: an ADD waits too.
const LIMIT: Duration = Duration::from_secs(5);
/// Objects in a page of a list.
const PAGE: u32 = 500;
/// The most pages: more blocks than a network can use.
const PAGES: usize = 200;
/// Policies know a new range some milliseconds late, and refuse its blocks until then.
const LATE: Duration = Duration::from_millis(300);
/// How often another node may change the domain's object meanwhile.
const ATTEMPTS: usize = 5;

const BLOCKS: &str = "/apis/ferrule.dev/v1alpha1/addressblocks";
const DOMAINS: &str = "/apis/ferrule.dev/v1alpha1/addressdomains";

/// The answer to a request that may be refused.
enum Answer<T> {
    Done(T),
    /// 404.
    Absent,
    /// 409.
    Conflict,
}

/// The answer to a creation.
pub(super) enum Created {
    /// The block is ours.
    Done(Claim),
    /// An object has the name.
    Taken,
}

/// Why a domain cannot be used.
pub(super) enum Unusable {
    /// Another node has other ranges.
    Contradiction(String),
    /// Nothing is known.
    Failed(anyhow::Error),
}

/// The API server. After a failure the next request opens another connection, to the next server if there are several.
pub(super) struct Api {
    options: Options,
    claimant: Claimant,
    connection: Mutex<(usize, Option<Client>)>,
}

impl Api {
    pub(super) fn new(options: Options, claimant: Claimant) -> Api {
        Api { options, claimant, connection: Mutex::new((0, None)) }
    }

    pub(super) fn store(&self) -> &str {
        &self.claimant.store
    }

    pub(super) fn node(&self) -> &str {
        &self.claimant.node
    }

    async fn client(&self) -> Result<Client> {
        let mut connection = self.connection.lock().await;
        if let Some(client) = &connection.1 {
            return Ok(client.clone());
        }
        let servers = &self.options.api_server;
        let server = servers.get(connection.0 % servers.len().max(1)).map(String::as_str);
        let client = Connection::open(&self.options, server).await?.client();
        connection.1 = Some(client.clone());
        Ok(client)
    }

    async fn send<T: DeserializeOwned>(&self, request: http::Request<Vec<u8>>) -> Result<Answer<T>> {
        let sent = async {
            match self.client().await?.request::<T>(request).await {
                Ok(object) => Ok(Answer::Done(object)),
                Err(kube::Error::Api(status)) if status.code == 404 && status.reason == "NotFound" => {
                    Ok(Answer::Absent)
                }
                Err(kube::Error::Api(status)) if status.code == 409 => Ok(Answer::Conflict),
                Err(kube::Error::Api(status)) => {
                    bail!("the API server answers {}: {}", status.code, status.message)
                }
                Err(error) => Err(error.into()),
            }
        };
        let outcome =
            timeout(LIMIT, sent).await.unwrap_or_else(|_| Err(anyhow!("no answer within {LIMIT:?}")));
        if outcome.is_err() {
            let mut connection = self.connection.lock().await;
            *connection = (connection.0.wrapping_add(1), None);
        }
        outcome
    }

    /// All claims of a domain, as of now.
    pub(super) async fn list(&self, domain: &str) -> Result<Vec<Claim>> {
        self.list_with(domain, &format!("spec.domain={domain}")).await
    }

    /// This node's claims of a domain, as of now.
    pub(super) async fn list_own(&self, domain: &str) -> Result<Vec<Claim>> {
        self.list_with(domain, &format!("spec.domain={domain},spec.node={}", self.claimant.node)).await
    }

    /// By fields: everybody who may change a claim can change its labels.
    async fn list_with(&self, domain: &str, fields: &str) -> Result<Vec<Claim>> {
        let found = self.pages::<Object>(BLOCKS, ListParams::default().fields(fields)).await?;
        Ok(found
            .ok_or_else(no_kind)?
            .into_iter()
            .filter_map(|object| object.claim(domain, &self.claimant))
            .collect())
    }

    /// The objects of a kind; `None` if the API server does not know the kind.
    async fn pages<T: DeserializeOwned>(&self, path: &str, params: ListParams) -> Result<Option<Vec<T>>> {
        let (mut objects, mut token) = (Vec::new(), None);
        for _ in 0..PAGES {
            let params = ListParams { limit: Some(PAGE), continue_token: token, ..params.clone() };
            let request = Request::new(path).list(&params)?;
            let Answer::Done(page) = self.send::<Page<T>>(request).await? else { return Ok(None) };
            objects.extend(page.items);
            token = page.metadata.r#continue.filter(|token| !token.is_empty());
            if token.is_none() {
                return Ok(Some(objects));
            }
        }
        bail!("{path} has too many objects")
    }

    /// The objects of this kind of whereabouts, in all namespaces.
    pub(super) async fn whereabouts<T: DeserializeOwned>(&self, kind: &str) -> Result<Vec<T>> {
        let found = self.pages(&format!("{}/{kind}", whereabouts::API), ListParams::default()).await?;
        found.ok_or_else(|| anyhow!("the API server does not know the kind {kind} of whereabouts"))
    }

    /// The ranges of a domain; none if there is no such object.
    pub(super) async fn ranges(&self, domain: &str) -> Result<Vec<Fixed>> {
        let request = Request::new(DOMAINS).get(domain, &GetParams::default())?;
        match self.send::<Domain>(request).await? {
            Answer::Done(found) => Ok(found.ranges()),
            _ => Ok(Vec::new()),
        }
    }

    /// The claim of this block; `None` if there is none, or if the object is no claim.
    pub(super) async fn get(&self, block: Block, domain: &str) -> Result<Option<Claim>> {
        let request = Request::new(BLOCKS).get(&block.name(domain), &GetParams::default())?;
        match self.send::<Object>(request).await? {
            Answer::Done(object) => Ok(object.claim(domain, &self.claimant)),
            _ => Ok(None),
        }
    }

    /// The step *create*.
    pub(super) async fn create(
        &self,
        block: Block,
        domain: &str,
        network: &str,
        slot: u32,
    ) -> Result<Created> {
        let object = object::block(block, domain, network, slot, &self.claimant);
        let request = Request::new(BLOCKS).create(&PostParams::default(), serde_json::to_vec(&object)?)?;
        match self.send::<Object>(request).await? {
            Answer::Done(object) => match object.claim(domain, &self.claimant) {
                Some(claim) if claim.block == block && claim.store == self.claimant.store => {
                    Ok(Created::Done(claim))
                }
                _ => bail!("the API server has made another object than was sent"),
            },
            Answer::Conflict => Ok(Created::Taken),
            Answer::Absent => Err(no_kind()),
        }
    }

    /// Deletes this object, if it has not changed. Returns whether it is gone.
    pub(super) async fn delete(&self, claim: &Claim, domain: &str) -> Result<bool> {
        let (uid, resource_version) = (Some(claim.uid.clone()), Some(claim.version.clone()));
        let preconditions = Some(Preconditions { uid, resource_version });
        let params = DeleteParams { preconditions, ..DeleteParams::default() };
        let request = Request::new(BLOCKS).delete(&claim.block.name(domain), &params)?;
        match self.send::<Value>(request).await? {
            Answer::Done(object) if object["kind"] == "Status" || object["metadata"].is_object() => Ok(true),
            Answer::Done(_) => bail!("the answer has no object"),
            Answer::Absent => Ok(true),
            // It has changed, or it is another object by now: the next comparison tells.
            Answer::Conflict => Ok(false),
        }
    }

    /// Creates an event that says that the domain is nearly full. All nodes make the same one.
    pub(super) async fn tell_scarcity(&self, domain: &str, unclaimed: usize) -> Result<()> {
        let request = Request::new(DOMAINS).get(domain, &GetParams::default())?;
        let Answer::Done(found) = self.send::<Domain>(request).await? else { return Ok(()) };
        let event = Event {
            about: About::Domain { name: domain.to_owned(), uid: found.uid().to_owned() },
            reason: "AddressesScarce",
            fault: String::new(),
            message: format!(
                "{unclaimed} blocks of a range are free: fewer than nodes that have blocks. Add a range, or end pods"
            ),
        };
        self.make(&event).await
    }

    /// Makes the object of a domain, or adds the ranges to it.
    pub(super) async fn join(&self, domain: &str, wanted: &[Fixed]) -> Result<(), Unusable> {
        for _ in 0..ATTEMPTS {
            if self.try_join(domain, wanted).await? {
                return Ok(());
            }
        }
        Err(Unusable::Failed(anyhow!("other nodes change the domain {domain} all the time")))
    }

    async fn try_join(&self, domain: &str, wanted: &[Fixed]) -> Result<bool, Unusable> {
        let request = Request::new(DOMAINS).get(domain, &GetParams::default()).map_err(failed)?;
        let found = match self.send::<Domain>(request).await.map_err(Unusable::Failed)? {
            Answer::Done(found) => Some(found),
            _ => None,
        };
        let known = found.as_ref().map_or_else(Vec::new, Domain::ranges);
        let all = joined(&known, wanted)
            .map_err(|why| Unusable::Contradiction(format!("the domain {domain} has other ranges: {why}")))?;
        let Some(all) = all else { return Ok(true) };
        let object = object::domain(domain, found.as_ref(), &all[known.len()..]);
        let (body, params) = (serde_json::to_vec(&object).map_err(failed)?, PostParams::default());
        let request = match found {
            Some(_) => Request::new(DOMAINS).replace(domain, &params, body),
            None => Request::new(DOMAINS).create(&params, body),
        };
        match self.send::<Domain>(request.map_err(failed)?).await.map_err(Unusable::Failed)? {
            Answer::Done(_) => {
                sleep(LATE).await;
                Ok(true)
            }
            Answer::Conflict => Ok(false),
            Answer::Absent if known.is_empty() => Err(Unusable::Failed(no_kind())),
            Answer::Absent => Ok(false),
        }
    }
}

fn failed(error: impl Into<anyhow::Error>) -> Unusable {
    Unusable::Failed(error.into())
}

fn no_kind() -> anyhow::Error {
    anyhow!(
        "the API server does not know the kinds of ferrule.dev: apply examples/shared/ferrule-blocks.yaml"
    )
}
