//! The gRPC services of one resource.

use std::pin::Pin;
use std::sync::Arc;

use ferrule_nic_proto::pluginregistration::registration_server::Registration;
use ferrule_nic_proto::pluginregistration::{
    InfoRequest, PluginInfo, RegistrationStatus, RegistrationStatusResponse,
};
use ferrule_nic_proto::v1beta1::device_plugin_server::DevicePlugin;
use ferrule_nic_proto::v1beta1::{
    AllocateRequest, AllocateResponse, ContainerPreferredAllocationResponse, Device, DevicePluginOptions,
    Empty, HEALTHY, ListAndWatchResponse, NumaNode, PreStartContainerRequest, PreStartContainerResponse,
    PreferredAllocationRequest, PreferredAllocationResponse, TopologyInfo, UNHEALTHY, VERSION,
};
use futures_util::{Stream, stream};
use tokio::sync::watch;
use tonic::{Request, Response, Status};

use super::Served;
use crate::answer::answer;
use crate::config::Resource;
use crate::plan::Offer;
use crate::preferred;

/// How many ListAndWatch streams there are, and have been.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Streams {
    pub(super) opened: u64,
    pub(super) open: u64,
    /// What the plugin watcher says about the registration.
    pub(super) refused: bool,
}

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

/// One ListAndWatch stream. Counts itself while it is open.
struct Listing {
    offers: watch::Receiver<Vec<Offer>>,
    stop: watch::Receiver<bool>,
    streams: watch::Sender<Streams>,
}

impl Drop for Listing {
    fn drop(&mut self) {
        self.streams.send_modify(|streams| streams.open -= 1);
    }
}

impl Listing {
    async fn next(mut self) -> Option<(Result<ListAndWatchResponse, Status>, Listing)> {
        tokio::select! {
            biased;
            _ = self.stop.wait_for(|stop| *stop) => return None,
            changed = self.offers.changed() => changed.ok()?,
        }
        let devices: Vec<Device> = self.offers.borrow_and_update().iter().map(device).collect();
        Some((Ok(ListAndWatchResponse { devices }), self))
    }
}

fn device(offer: &Offer) -> Device {
    let health = if offer.fault.is_none() { HEALTHY } else { UNHEALTHY };
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
        let healthy = offers.borrow().iter().filter(|offer| offer.fault.is_none()).count();
        let count = offers.borrow().len();
        log!("{}: the kubelet reads the list: {count} devices, {healthy} healthy", self.served.resource.name);
        self.streams.send_modify(|streams| {
            streams.opened += 1;
            streams.open += 1;
        });
        let listing = Listing { offers, stop: self.stop.clone(), streams: self.streams.clone() };
        Ok(Response::new(Box::pin(stream::unfold(listing, Listing::next))))
    }

    async fn get_preferred_allocation(
        &self,
        request: Request<PreferredAllocationRequest>,
    ) -> Result<Response<PreferredAllocationResponse>, Status> {
        let offers = self.served.offers.borrow();
        let choose = |request: ferrule_nic_proto::v1beta1::ContainerPreferredAllocationRequest| {
            let size = usize::try_from(request.allocation_size).unwrap_or(0);
            let device_ids = preferred::choose(
                &offers,
                &request.available_device_ids,
                &request.must_include_device_ids,
                size,
            );
            ContainerPreferredAllocationResponse { device_ids }
        };
        let container_responses = request.into_inner().container_requests.into_iter().map(choose).collect();
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

#[tonic::async_trait]
impl Registration for Service {
    async fn get_info(&self, _: Request<InfoRequest>) -> Result<Response<PluginInfo>, Status> {
        Ok(Response::new(PluginInfo {
            r#type: "DevicePlugin".to_owned(),
            name: self.served.resource.name.clone(),
            endpoint: String::new(),
            supported_versions: vec![VERSION.to_owned()],
        }))
    }

    async fn notify_registration_status(
        &self,
        request: Request<RegistrationStatus>,
    ) -> Result<Response<RegistrationStatusResponse>, Status> {
        let status = request.into_inner();
        let name = &self.served.resource.name;
        if status.plugin_registered {
            log!("{name}: registered by the plugin watcher");
        } else {
            log!("{name}: the plugin watcher refuses it: {}", status.error);
        }
        self.streams.send_modify(|streams| streams.refused = !status.plugin_registered);
        Ok(Response::new(RegistrationStatusResponse {}))
    }
}
