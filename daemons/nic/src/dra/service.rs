//! The services of the driver, each in two versions with the same messages.

use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ferrule_nic_proto::dra::v1::{
    NodePrepareResourceResponse, NodePrepareResourcesRequest, NodePrepareResourcesResponse,
    NodeUnprepareResourceResponse, NodeUnprepareResourcesRequest, NodeUnprepareResourcesResponse,
};
use ferrule_nic_proto::dra::{v1, v1beta1};
use ferrule_nic_proto::health::v1::{
    DeviceHealth, DeviceIdentifier, HealthStatus, NodeWatchResourcesRequest, NodeWatchResourcesResponse,
};
use ferrule_nic_proto::health::{v1 as health_v1, v1alpha1};
use futures_util::{Stream, StreamExt as _, stream};
use tokio::sync::watch;
use tokio::time::timeout;
use tonic::transport::Server;
use tonic::transport::server::Router;
use tonic::{Request, Response, Status};

use super::prepare::Preparer;
use crate::plan::Nic;

/// How often the health is sent without a change: kubelets before 1.36 take it for unknown after 30 s.
const REPEAT: Duration = Duration::from_secs(20);
/// The seconds without news after which newer kubelets take it for unknown.
const UNKNOWN_AFTER: i64 = 60;

#[derive(Clone)]
pub(super) struct Service {
    pub(super) preparer: Arc<Preparer>,
    /// Ends the streams.
    pub(super) stop: watch::Receiver<bool>,
}

type Health = Pin<Box<dyn Stream<Item = Result<NodeWatchResourcesResponse, Status>> + Send>>;

impl Service {
    /// All services on one socket.
    pub(super) fn router(self) -> Router {
        Server::builder()
            .add_service(v1::dra_plugin_server::DraPluginServer::new(self.clone()))
            .add_service(v1beta1::dra_plugin_server::DraPluginServer::new(self.clone()))
            .add_service(health_v1::dra_resource_health_server::DraResourceHealthServer::new(self.clone()))
            .add_service(v1alpha1::dra_resource_health_server::DraResourceHealthServer::new(self))
    }

    async fn prepare(&self, request: NodePrepareResourcesRequest) -> NodePrepareResourcesResponse {
        let outcomes = self.preparer.prepare(request.claims).await;
        let answer = |(uid, outcome)| match outcome {
            Ok(devices) => (uid, NodePrepareResourceResponse { devices, error: String::new() }),
            Err(error) => (uid, NodePrepareResourceResponse { devices: Vec::new(), error }),
        };
        NodePrepareResourcesResponse { claims: outcomes.into_iter().map(answer).collect() }
    }

    async fn unprepare(&self, request: NodeUnprepareResourcesRequest) -> NodeUnprepareResourcesResponse {
        let outcomes = self.preparer.unprepare(request.claims).await;
        let answer = |(uid, outcome): (String, Result<(), String>)| {
            (uid, NodeUnprepareResourceResponse { error: outcome.err().unwrap_or_default() })
        };
        NodeUnprepareResourcesResponse { claims: outcomes.into_iter().map(answer).collect() }
    }

    /// The health of all devices, after each change and from time to time.
    fn health(&self) -> Health {
        let mut nics = self.preparer.nics.clone();
        nics.mark_changed();
        let pool = self.preparer.node.clone();
        let lists = stream::unfold((nics, pool), |(mut nics, pool)| async move {
            // Sends the same list with a new time after `REPEAT`.
            if let Ok(Err(_)) = timeout(REPEAT, nics.changed()).await {
                return None;
            }
            let devices = nics.borrow_and_update().iter().map(|nic| health(nic, &pool)).collect();
            Some((Ok(NodeWatchResourcesResponse { devices }), (nics, pool)))
        });
        let mut stop = self.stop.clone();
        let stopped = async move { drop(stop.wait_for(|stop| *stop).await) };
        Box::pin(lists.take_until(Box::pin(stopped)))
    }
}

fn health(nic: &Nic, pool: &str) -> DeviceHealth {
    let state = if nic.problem.is_none() { HealthStatus::Healthy } else { HealthStatus::Unhealthy };
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    DeviceHealth {
        device: Some(DeviceIdentifier { pool_name: pool.to_owned(), device_name: nic.name.clone() }),
        health: state.into(),
        last_updated_time: i64::try_from(now.as_secs()).unwrap_or(i64::MAX),
        health_check_timeout_seconds: UNKNOWN_AFTER,
        message: nic.problem.clone().unwrap_or_default(),
    }
}

macro_rules! versions {
    ($($dra:ident, $health:ident;)*) => {$(
        #[tonic::async_trait]
        impl $dra::dra_plugin_server::DraPlugin for Service {
            async fn node_prepare_resources(
                &self,
                request: Request<NodePrepareResourcesRequest>,
            ) -> Result<Response<NodePrepareResourcesResponse>, Status> {
                Ok(Response::new(self.prepare(request.into_inner()).await))
            }

            async fn node_unprepare_resources(
                &self,
                request: Request<NodeUnprepareResourcesRequest>,
            ) -> Result<Response<NodeUnprepareResourcesResponse>, Status> {
                Ok(Response::new(self.unprepare(request.into_inner()).await))
            }
        }

        #[tonic::async_trait]
        impl $health::dra_resource_health_server::DraResourceHealth for Service {
            type NodeWatchResourcesStream = Health;

            async fn node_watch_resources(
                &self,
                _: Request<NodeWatchResourcesRequest>,
            ) -> Result<Response<Health>, Status> {
                Ok(Response::new(self.health()))
            }
        }
    )*};
}

versions! {
    v1, health_v1;
    v1beta1, v1alpha1;
}
