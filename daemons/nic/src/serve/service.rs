//! The gRPC services of one resource.

use std::pin::Pin;
use std::sync::Arc;

use ferrule_nic_proto::v1beta1::device_plugin_server::DevicePlugin;
use ferrule_nic_proto::v1beta1::{
    AllocateRequest, AllocateResponse, Device, DevicePluginOptions, Empty, HEALTHY, ListAndWatchResponse,
    NumaNode, PreStartContainerRequest, PreStartContainerResponse, PreferredAllocationRequest,
    PreferredAllocationResponse, TopologyInfo, UNHEALTHY,
};
use futures_util::{Stream, StreamExt as _, stream};
use tokio::sync::watch;
use tonic::{Request, Response, Status};

use super::Served;
use crate::answer::answer;
use crate::config::Resource;
use crate::plan::Offer;
use crate::preferred::choose;

/// How many ListAndWatch streams are open; `None` before the first one.
pub(super) type Streams = Option<u64>;

/// The services, until `stop` is true.
#[derive(Clone, Debug)]
pub(super) struct Service {
    pub(super) served: Arc<Served>,
    pub(super) streams: watch::Sender<Streams>,
    pub(super) stop: watch::Receiver<bool>,
}

/// The options of the resource, for Register and GetDevicePluginOptions.
pub(super) fn options(resource: &Resource) -> DevicePluginOptions {
    DevicePluginOptions {
        pre_start_required: resource.pre_start_required,
        get_preferred_allocation_available: resource.preferred_allocation,
    }
}

/// Counts a ListAndWatch stream while it is open.
struct Open(watch::Sender<Streams>);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.send_modify(|open| *open = open.map(|count| count - 1));
    }
}

fn device(offer: &Offer) -> Device {
    let health = if offer.problem.is_none() { HEALTHY } else { UNHEALTHY };
    let topology = offer.numa.map(|id| TopologyInfo { nodes: vec![NumaNode { id }] });
    Device { id: offer.id.clone(), health: health.to_owned(), topology }
}

#[tonic::async_trait]
impl DevicePlugin for Service {
    type ListAndWatchStream = Pin<Box<dyn Stream<Item = Result<ListAndWatchResponse, Status>> + Send>>;

    async fn get_device_plugin_options(
        &self,
        _: Request<Empty>,
    ) -> Result<Response<DevicePluginOptions>, Status> {
        Ok(Response::new(options(&self.served.resource)))
    }

    async fn list_and_watch(&self, _: Request<Empty>) -> Result<Response<Self::ListAndWatchStream>, Status> {
        let mut offers = self.served.offers.clone();
        // The first list goes out at once.
        offers.mark_changed();
        let healthy = offers.borrow().iter().filter(|offer| offer.problem.is_none()).count();
        let count = offers.borrow().len();
        log!("{}: the kubelet reads the list: {count} devices, {healthy} healthy", self.served.resource.name);
        self.streams.send_modify(|open| *open = Some(open.unwrap_or(0) + 1));
        let lists = stream::unfold((offers, Open(self.streams.clone())), |(mut offers, open)| async move {
            offers.changed().await.ok()?;
            let devices = offers.borrow_and_update().iter().map(device).collect();
            Some((Ok(ListAndWatchResponse { devices }), (offers, open)))
        });
        let mut stop = self.stop.clone();
        let stopped = async move { drop(stop.wait_for(|stop| *stop).await) };
        Ok(Response::new(Box::pin(lists.take_until(Box::pin(stopped)))))
    }

    async fn get_preferred_allocation(
        &self,
        request: Request<PreferredAllocationRequest>,
    ) -> Result<Response<PreferredAllocationResponse>, Status> {
        let offers = self.served.offers.borrow();
        let requests = request.into_inner().container_requests;
        let container_responses = requests.iter().map(|request| choose(&offers, request)).collect();
        Ok(Response::new(PreferredAllocationResponse { container_responses }))
    }

    async fn allocate(
        &self,
        request: Request<AllocateRequest>,
    ) -> Result<Response<AllocateResponse>, Status> {
        let resource = &self.served.resource;
        let mut container_responses = Vec::new();
        for container in request.into_inner().container_requests {
            let ids = container.device_ids.join(",");
            let given = answer(resource, &self.served.offers.borrow(), &container.device_ids);
            container_responses.push(given.map_err(|why| {
                log!("Allocate refused: {why}");
                Status::invalid_argument(why)
            })?);
            log!("{}: device {ids}: allocated", resource.name);
        }
        self.served.allocated.send_modify(|count| *count += 1);
        Ok(Response::new(AllocateResponse { container_responses }))
    }

    async fn pre_start_container(
        &self,
        request: Request<PreStartContainerRequest>,
    ) -> Result<Response<PreStartContainerResponse>, Status> {
        let ids = request.into_inner().device_ids;
        answer(&self.served.resource, &self.served.offers.borrow(), &ids)
            .map_err(Status::failed_precondition)?;
        log!("{}: device {}: a container starts", self.served.resource.name, ids.join(","));
        Ok(Response::new(PreStartContainerResponse {}))
    }
}
