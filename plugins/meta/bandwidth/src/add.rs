//! ADD: reads the state, plans, and executes the plan in two batches. Undoes them if a request fails.
//!
//! The second batch contains the requests that need the IFB's index, which the kernel chooses. It starts with
//! the IFB's alias, which tells DEL that the ingress qdisc is ours, even if ADD is killed right after. It
//! ends with the filter, so packets of the container are redirected only when the IFB is ready.

use cni_common::plugin::{AddRequest, Attachment};
use cni_common::spec::{AddResult, CniError, Context as _, Interface};
use ferrule_kernel::netlink::link::{self, IFF_UP, LinkId};
use ferrule_kernel::netlink::qdisc::{self, INGRESS, ROOT};
use ferrule_kernel::netlink::{Link, Socket, filter, ifb};
use ferrule_kernel::retry::{Limit, retry};
use ferrule_kit::socket;
use ferrule_kit::steps::{Failed, Step, UndoStack};

use crate::config::Conf;
use crate::plan::{Egress, Plan, Root};
use crate::rates::Rates;
use crate::state::{self, Filters};

/// The attempts of ADD and repair. Another process may create an IFB or an ingress qdisc after the state was read.
pub const ATTEMPTS: Limit = Limit { attempts: 3, changes: "changes of IFBs and qdiscs" };

/// Limits the container's traffic.
pub fn add(call: &AddRequest<'_>) -> Result<AddResult, CniError> {
    let conf = Conf::read(call.config)?;
    let mut result = call
        .prev_result
        .clone()
        .ok_or_else(|| CniError::invalid_config("must be called as chained plugin"))?;
    if conf.is_empty() {
        return Ok(result);
    }
    let owner = Attachment::from(call);
    let netns = call.sandbox.netns()?;
    let container = state::container(netns, call.ifname)?;
    let mut socket = socket::route()?;
    let filters = if conf.egress.is_some() { Filters::IfPresent } else { Filters::Omit };
    let created = retry(
        ATTEMPTS,
        |failed: &Failed| failed.is_race,
        || {
            let (host, ifbs) = state::read(&mut socket, netns, &container, &owner, filters)?;
            let plan = Plan::new(&conf, &owner, &container, &host, &ifbs)?;
            if Rates::parse(&host.link.alias).is_some() {
                let reset = socket.request(ifb::set_alias(host.link.index, ""));
                reset.context(|| format!("remove the alias of {:?}", host.link.name))?;
            }
            execute(&mut socket, &plan)
        },
    );
    let created = created.map_err(|failed| failed.error)?;
    result.interfaces.extend(created.map(|link| Interface {
        name: link.name,
        mac: link.mac.to_string(),
        ..Interface::default()
    }));
    Ok(result)
}

/// Executes a plan. Returns the IFB, if the plan has one.
///
/// # Errors
/// The first step that failed, after all steps have been undone.
pub fn execute(socket: &mut Socket, plan: &Plan) -> Result<Option<Link>, Failed> {
    let mut done = UndoStack::default();
    let mut first: Vec<Step> = plan.ingress.iter().map(|root| shape_host(plan.host, root)).collect();
    let Some(egress) = &plan.egress else {
        done.run(socket, first)?;
        return Ok(None);
    };
    first.extend(prepare_ifb(egress));
    let ifb = link::read(Ok(done.run(socket, first)?));
    let disappeared = || CniError::internal(format!("ifb device {:?} disappeared", egress.name));
    let ifb = ifb.context(|| "find the ifb device").and_then(|ifb| ifb.ok_or_else(disappeared));
    let ifb = ifb.inspect_err(|_| done.undo(socket))?;
    done.run(socket, connect(plan.host, egress, ifb.index))?;
    Ok(Some(ifb))
}

fn shape_host(host: u32, root: &Root) -> Step {
    match root {
        Root::Create(tbf) => {
            Step::new("create qdisc", qdisc::create_tbf(host, tbf)).undone_by(qdisc::delete(host, ROOT))
        }
        Root::Change { to, from } => {
            Step::new("change qdisc", qdisc::replace_tbf(host, to)).undone_by(qdisc::replace_tbf(host, from))
        }
    }
}

/// Creates the IFB, or sets up an existing one, and finds it.
fn prepare_ifb(egress: &Egress) -> [Step; 2] {
    let name = LinkId::Name(&egress.name);
    let ifb = match egress.existing {
        Some(index) => Step::new("set up the ifb device", ifb::set_up(index, egress.mtu)),
        None => Step::new("adding link", ifb::create(&egress.name, egress.mtu, egress.mac))
            .undone_by(link::delete(name)),
    };
    [ifb, Step::new("find the ifb device", link::get(name))]
}

/// Sets the IFB's alias, creates the ingress qdisc and the IFB's qdisc, sets the IFB up, then adds the filter. For a
/// link that is up, the kernel would wait for an RCU grace period before it replaces the qdisc.
fn connect(host: u32, egress: &Egress, ifb: u32) -> Vec<Step> {
    let Egress { parent, .. } = egress;
    let alias = Step::new("set the ifb device's alias", ifb::set_alias(ifb, &egress.alias.to_string()));
    let mut steps = vec![alias.undone_by(ifb::set_alias(ifb, &egress.former_alias))];
    if egress.creates_ingress_qdisc {
        let create = Step::new("create ingress qdisc", qdisc::create_ingress(host));
        steps.push(create.undone_by(qdisc::delete(host, INGRESS)));
    }
    if let Some(tbf) = &egress.tbf {
        steps.push(Step::new("create ifb qdisc: create qdisc", qdisc::replace_tbf(ifb, tbf)));
    }
    steps.push(Step::new("set up the ifb device", link::set_flags(ifb, IFF_UP, IFF_UP)));
    for (preference, handle) in &egress.stale {
        steps.push(Step::new(
            "remove a filter that redirects to a deleted link",
            filter::delete(host, *parent, *preference, *handle),
        ));
    }
    if let Some(preference) = egress.preference {
        steps.push(Step::new("add filter", filter::redirect_all(host, *parent, preference, ifb)));
    }
    steps
}
