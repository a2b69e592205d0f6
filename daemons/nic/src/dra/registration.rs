//! The service that the kubelet's plugin watcher calls.

use std::path::PathBuf;
use std::sync::Arc;

use ferrule_nic_proto::registration::registration_server::Registration;
use ferrule_nic_proto::registration::{
    InfoRequest, PluginInfo, RegistrationStatus, RegistrationStatusResponse,
};
use tokio::sync::watch;
use tonic::{Request, Response, Status};

/// The services, newest first, by the names that the registration uses; their gRPC names differ.
const SERVICES: [&str; 4] =
    ["v1.DRAPlugin", "v1beta1.DRAPlugin", "v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth"];

#[derive(Clone, Debug)]
pub(super) struct Registrar {
    pub(super) driver: String,
    pub(super) endpoint: PathBuf,
    /// The kubelet's last answer: newer kubelets repeat it, and only a new one is logged.
    pub(super) last: Arc<watch::Sender<Option<RegistrationStatus>>>,
}

#[tonic::async_trait]
impl Registration for Registrar {
    async fn get_info(&self, _: Request<InfoRequest>) -> Result<Response<PluginInfo>, Status> {
        Ok(Response::new(PluginInfo {
            r#type: "DRAPlugin".to_owned(),
            name: self.driver.clone(),
            endpoint: self.endpoint.display().to_string(),
            supported_versions: SERVICES.map(str::to_owned).to_vec(),
        }))
    }

    async fn notify_registration_status(
        &self,
        request: Request<RegistrationStatus>,
    ) -> Result<Response<RegistrationStatusResponse>, Status> {
        let status = request.into_inner();
        if self.last.send_replace(Some(status.clone())).as_ref() != Some(&status) {
            match status.plugin_registered {
                true => log!("{}: registered", self.driver),
                false => log!("{}: the kubelet refuses the registration: {}", self.driver, status.error),
            }
        }
        Ok(Response::new(RegistrationStatusResponse {}))
    }
}
