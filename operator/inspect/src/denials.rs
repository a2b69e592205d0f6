//! What network policies deny on this node, while it happens: `ferrule policy watch`. The kernel's table has it. The daemon adds names, if it runs.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;

use cni_common::spec::{CniError, Context};
use ferrule_kernel::nftables::table_state;
use ferrule_policy_kit::Direction;
use ferrule_policy_kit::ask::{Ask, MOST};
use ferrule_policy_kit::decided::TABLE;
use ferrule_policy_kit::denials::{Counter, Denial, Flow, News, counters, flows};

use crate::model::Sockets;
use crate::policy::daemon::Daemon;
use crate::policy::places::Places;
use crate::policy::watched::Watched;
use crate::policy::why::Party;
use crate::sight::Sight;

/// Which denials are shown.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// libcni's folder of results.
    pub results: PathBuf,
    /// The node's first process, if it is not 1.
    pub init: Option<u32>,
    /// Only those with one of these at an end; if empty, all.
    pub ends: Vec<Party>,
    /// Only those with a pod of this namespace at an end.
    pub namespace: Option<String>,
    /// Only those of this direction.
    pub direction: Option<Direction>,
}

/// Looks again and again.
pub struct Watch {
    options: Options,
    sockets: Sockets,
    news: News,
    addresses: Vec<IpAddr>,
    pods: Vec<Watched>,
    is_enforced: bool,
}

impl Watch {
    /// From now on.
    ///
    /// # Errors
    /// No policies are enforced here, or the kernel refuses to list them.
    pub fn open(options: Options) -> Result<Watch, CniError> {
        let sockets = Sockets::open()?;
        let (mut addresses, mut pods) = (Vec::new(), Vec::new());
        for end in &options.ends {
            match end {
                Party::Address(address) => addresses.push(*address),
                Party::Pod(pod) => pods.push(Watched::new(pod)),
            }
        }
        let mut watch = Watch { options, sockets, news: News::default(), addresses, pods, is_enforced: true };
        if let Some(why) = watch.not_enforced()? {
            return Err(CniError::internal(why));
        }
        // Those of the last minute.
        watch.denials()?;
        Ok(watch)
    }

    /// Lines about what has happened since the last look.
    ///
    /// # Errors
    /// The kernel refuses a list.
    pub fn look(&mut self) -> Result<Vec<String>, CniError> {
        let mut lines: Vec<String> = self.not_enforced()?.into_iter().collect();
        if !self.pods.is_empty() {
            let Options { results, init, .. } = &self.options;
            let sight = Sight::of_all(*init, [results.as_path()].into_iter());
            let places = Places::read(results, &sight, &mut self.sockets.route)?;
            let mut daemon = Daemon::default();
            for pod in &mut self.pods {
                lines.extend(pod.look(&places, &mut daemon, &mut self.sockets.route)?);
            }
        }
        lines.extend(self.denials()?.iter().map(ToString::to_string));
        Ok(lines)
    }

    /// Why nothing is denied any more, once.
    fn not_enforced(&mut self) -> Result<Option<String>, CniError> {
        let state = table_state(&mut self.sockets.netfilter, TABLE);
        let was = std::mem::replace(
            &mut self.is_enforced,
            state.context(|| "look for the table of policies")?.is_some(),
        );
        Ok((was && !self.is_enforced).then(|| {
            format!(
                "no policies are enforced on this node: there is no table {TABLE}, which ferrule-node --policy makes"
            )
        }))
    }

    fn denials(&mut self) -> Result<Vec<Denial>, CniError> {
        let socket = &mut self.sockets.netfilter;
        let mut new = self.news.of(flows(socket, TABLE).context(|| "list denied flows")?);
        new.retain(|(flow, _)| {
            self.has_end(flow) && self.options.direction.is_none_or(|of| of == flow.direction)
        });
        if new.is_empty() {
            return Ok(Vec::new());
        }
        let pods = counters(&mut self.sockets.netfilter, TABLE).context(|| "list the counters of pods")?;
        let mut denials = named(&new, &pods);
        explain(&mut denials);
        if let Some(namespace) = &self.options.namespace {
            let is_of = |pod: &str| pod.split_once('/').is_some_and(|(of, _)| of == namespace);
            denials.retain(|denial| is_of(&denial.pod) || is_of(&denial.peer));
        }
        Ok(denials)
    }

    fn has_end(&self, flow: &Flow) -> bool {
        let is_end = |address: &IpAddr| *address == flow.source || *address == flow.destination;
        self.options.ends.is_empty()
            || self.addresses.iter().any(is_end)
            || self.pods.iter().flat_map(|pod| &pod.addresses).any(is_end)
    }
}

/// Adds what the daemon knows, if it answers.
fn explain(denials: &mut [Denial]) {
    let mut daemon = Daemon::default();
    for some in denials.chunks_mut(MOST) {
        let flows = some.iter().map(|denial| denial.flow).collect();
        let Some(answer) = daemon.ask(Ask::Denied(flows)) else { return };
        some.iter_mut().zip(answer.denials).for_each(|(denial, told)| add(denial, told));
    }
}

/// Adds the policies, and the names of pods that the kernel does not have.
fn add(denial: &mut Denial, told: Denial) {
    for (name, told) in [(&mut denial.pod, told.pod), (&mut denial.peer, told.peer)] {
        if name.is_empty() {
            *name = told;
        }
    }
    denial.policies = told.policies;
}

/// The flows with the names of the isolated pods of this node.
fn named(flows: &[(Flow, u64)], pods: &[Counter]) -> Vec<Denial> {
    let names: BTreeMap<IpAddr, &Counter> = pods.iter().map(|pod| (pod.address, pod)).collect();
    let name = |address: IpAddr| names.get(&address).map(|pod| pod.pod.clone()).unwrap_or_default();
    let denial = |(flow, packets): &(Flow, u64)| Denial {
        flow: *flow,
        packets: *packets,
        pod: name(flow.pod()),
        peer: name(flow.peer()),
        policies: Vec::new(),
        is_dry: names.get(&flow.pod()).is_some_and(|pod| pod.is_dry),
    };
    flows.iter().map(denial).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ends_have_the_names_that_the_kernel_has() {
        let [web, client, other]: [IpAddr; 3] = [1, 2, 3].map(|last| [10, 0, 0, last].into());
        let counter = |address, pod: &str, is_dry| Counter {
            direction: Direction::Egress,
            address,
            pod: pod.to_owned(),
            is_dry,
            packets: Some(1),
        };
        let flow = |source, destination| Flow {
            direction: Direction::Ingress,
            source,
            destination,
            protocol: 17,
            port: 53,
        };
        let pods = [counter(web, "shop/web", false), counter(client, "shop/client", true)];
        let lines: Vec<String> = named(&[(flow(client, web), 1), (flow(other, client), 2)], &pods)
            .iter()
            .map(ToString::to_string)
            .collect();
        assert_eq!(
            lines,
            [
                "denied ingress of shop/web (10.0.0.1) from shop/client (10.0.0.2): UDP 53",
                "would deny ingress of shop/client (10.0.0.2) from 10.0.0.3: UDP 53, 2 packets",
            ]
        );
    }

    #[test]
    fn the_daemon_names_the_other_end_and_the_policies() {
        let [source, destination]: [IpAddr; 2] = [1, 2].map(|last| [10, 0, 0, last].into());
        let flow = Flow { direction: Direction::Ingress, source, destination, protocol: 6, port: 80 };
        let pods = [Counter {
            direction: Direction::Ingress,
            address: destination,
            pod: "shop/web".to_owned(),
            is_dry: false,
            packets: Some(1),
        }];
        let mut denial = named(&[(flow, 2)], &pods).remove(0);
        let policies = ["shop/web", "shop/all"].map(|name| format!("NetworkPolicy {name}")).to_vec();
        let (pod, peer) = ("shop/late".to_owned(), "tools/other".to_owned());
        let told = Denial { pod, peer, policies, ..denial.clone() };
        add(&mut denial, told);
        assert_eq!(
            denial.to_string(),
            "denied ingress of shop/web (10.0.0.2) from tools/other (10.0.0.1): TCP 80, 2 packets; by NetworkPolicy shop/web, NetworkPolicy shop/all"
        );
    }
}
