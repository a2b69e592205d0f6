//! ADD: find the device, addresses from IPAM, state file, move, configure. A failed ADD gives the device back as it was.

use cni_common::plugin::{AddRequest, Delegate};
use cni_common::spec::{AddResult, CniError, Context as _};
use ferrule_kernel::netlink::{Link, Socket, rule};
use ferrule_kit::container::Container;
use ferrule_kit::plan::Plan;
use ferrule_kit::steps::{Step, report_undo, run_all};
use ferrule_kit::sysfs::Key;
use ferrule_kit::{ipam, router_wait, socket};
use nix::errno::Errno;

use crate::config::{Conf, Selector};
use crate::find::{self, Device};
use crate::state::State;
use crate::transfer::OUR_RULES;
use crate::vf::{Former, Vf};
use crate::{own_network, transfer, vf};

/// Moves the device into the container, or only reports it if it belongs to a program.
pub fn add(call: &AddRequest<'_>) -> Result<AddResult, CniError> {
    let conf = Conf::read(call.config)?;
    let mut selector = conf.selector()?.clone();
    let is_given = matches!(selector, Selector::Resource(_));
    let ipam = ipam::of_add(call)?;
    let netns = call.sandbox.netns()?;
    let mut host = socket::route()?;
    if let Selector::Resource(resource) = &selector {
        let Some(id) = resource.device(&call.env.args)? else { return Ok(ferrule_kubelet::skipped(call)) };
        selector = Selector::bus(id, Key::DeviceId)?;
    }
    match find::device(&mut host, &selector, call.container_id, is_given)? {
        Device { link: None, pci_id } => report(call, &conf, &mut host, ipam.as_ref(), pci_id),
        Device { link: Some(link), pci_id } => {
            let mut container = Container::open(netns, call.ifname)?;
            container.dad = conf.dad;
            if container.interface()?.is_some() {
                let (ifname, name) = (call.ifname, &link.name);
                // The reference's text.
                return Err(CniError::internal(format!(
                    "failed to move link failed to move {ifname:?} (host: {name:?}) to container NS: file exists"
                )));
            }
            let device_id = if let Selector::Bus { id, .. } = selector { id } else { String::new() };
            let mut attach =
                Attach { call, conf: &conf, device_id, host: &mut host, container: &mut container };
            let plan = |assigned| Plan::new(&conf.link, assigned);
            if ipam::needs_link(call.config) {
                return attach.run(&link, pci_id, |configure| {
                    ipam::add(ipam.as_ref(), call, |assigned| configure(plan(assigned)?))
                });
            }
            ipam::add(ipam.as_ref(), call, |assigned| {
                let plan = plan(assigned)?;
                attach.run(&link, pci_id, |configure| configure(plan))
            })
        }
    }
}

/// The result for a device without a link: the program configures the addresses. A virtual function gets its settings.
fn report(
    call: &AddRequest<'_>,
    conf: &Conf,
    host: &mut Socket,
    ipam: Option<&Delegate<'_>>,
    pci_id: String,
) -> Result<AddResult, CniError> {
    if conf.use_interface_network {
        let msg = format!("useInterfaceNetwork: device {pci_id} belongs to a program and has no network");
        return Err(CniError::invalid_config(msg));
    }
    router_wait::refuse(conf.link.wait_for_ra, "a device that belongs to a program")?;
    let link = Link { name: call.ifname.to_owned(), ..Link::default() };
    let attach = |assigned| Ok(result(call, Plan::new(&conf.link, assigned)?, &link, pci_id.clone()));
    if conf.vf.is_empty() {
        return ipam::add(ipam, call, attach);
    }
    let vf = Vf::find(host, &pci_id)?;
    let mut state = State { is_userspace: true, ..State::of_attachment(call, &pci_id) };
    state.vf = vf.former(&conf.vf);
    state.device_id.clone_from(&pci_id);
    set_resource(&mut state, call, conf);
    let applied = state.save().and_then(|()| vf.apply(host, &conf.vf));
    let added = applied.and_then(|()| ipam::add(ipam, call, attach));
    added.inspect_err(|_| {
        vf::restore(host, &state.vf);
        report_undo(state.file().remove());
    })
}

/// The resource of the device and its pod.
fn set_resource(state: &mut State, call: &AddRequest<'_>, conf: &Conf) {
    if let Some(resource) = &conf.resource {
        state.resource.clone_from(&resource.name);
        let pod = ferrule_kubelet::Pod::of(&call.env.args);
        state.pod = pod.ok().flatten().map_or_else(String::new, |pod| pod.to_string());
    }
}

struct Attach<'a, 'c> {
    call: &'a AddRequest<'a>,
    conf: &'a Conf,
    device_id: String,
    host: &'a mut Socket,
    container: &'a mut Container<'c>,
}

/// Gives the device in the container its addresses and routes.
type Configure<'a> = &'a mut dyn FnMut(Plan) -> Result<(Plan, Link), CniError>;

impl Attach<'_, '_> {
    /// Moves the device. `with_plan` has the plan, or gets it from an IPAM plugin that needs the link.
    fn run(
        &mut self,
        link: &Link,
        pci_id: String,
        with_plan: impl FnOnce(Configure<'_>) -> Result<(Plan, Link), CniError>,
    ) -> Result<AddResult, CniError> {
        let wants_vf = !self.conf.vf.is_empty();
        let vf = if wants_vf { Some(Vf::find(self.host, &pci_id)?) } else { None };
        let mut state = State::take(self.call, self.host, link)?;
        state.vf = vf.as_ref().map_or_else(Former::default, |vf| vf.former(&self.conf.vf));
        state.device_id.clone_from(&self.device_id);
        set_resource(&mut state, self.call, self.conf);
        if self.conf.use_interface_network {
            let rules = self.host.request(rule::list()).context(|| "list the rules of the host")?;
            state.rules = own_network::rules(&state, rules);
        }
        let set = state.save().and_then(|()| match &vf {
            Some(vf) => vf.apply(self.host, &self.conf.vf),
            None => Ok(()),
        });
        let moved = set.and_then(|()| {
            transfer::to_container(self.host, link, self.call.sandbox.netns()?, self.call.ifname)
        });
        let attached = moved.and_then(|()| self.moved(&mut state)).and_then(|index| {
            with_plan(&mut |mut plan| {
                if self.conf.use_interface_network {
                    own_network::merge(&mut plan, &state);
                }
                let inside = self.configure(index, &plan, &state)?;
                self.container.wait_for_router(&inside, &mut plan)?;
                Ok((plan, inside))
            })
        });
        let (plan, inside) = attached.inspect_err(|_| self.undo(&state))?;
        Ok(result(self.call, plan, &inside, pci_id))
    }

    /// The device's index in the container. The kernel changes it if the container has another link with it.
    fn moved(&mut self, state: &mut State) -> Result<u32, CniError> {
        let moved = self.container.created()?;
        if moved.index != state.identity.index {
            state.identity.index = moved.index;
            state.save()?;
        }
        Ok(moved.index)
    }

    fn configure(&mut self, index: u32, plan: &Plan, state: &State) -> Result<Link, CniError> {
        let inside = self.container.configure(index, plan)?;
        let socket = &mut self.container.socket;
        let add = |rule: &Vec<u8>| {
            Step::new("failed to add copied rule", rule::add_again(rule, OUR_RULES)).unless(&[Errno::EEXIST])
        };
        run_all(socket, state.rules.iter().map(add).collect())?;
        self.container.wait(&inside, &plan.addresses())?;
        Ok(inside)
    }

    fn undo(&mut self, state: &State) {
        let given_back = transfer::give_back(self.host, Some(&mut self.container.socket), state);
        let remove = |is_back| if is_back || state.is_virtual() { state.file().remove() } else { Ok(()) };
        report_undo(given_back.and_then(remove));
    }
}

fn result(call: &AddRequest<'_>, plan: Plan, link: &Link, pci_id: String) -> AddResult {
    let mut result = plan.result(call, &[], link);
    if let Some(interface) = result.interfaces.last_mut() {
        interface.pci_id = pci_id;
        if link.mac.is_zero() {
            interface.mac = String::new();
        }
    }
    result
}
