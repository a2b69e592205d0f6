//! What network policies deny on this node, while it happens: `ferrule policy watch`. The kernel's table has it. The daemon adds names, if it runs.

use std::collections::BTreeMap;
use std::net::IpAddr;

use cni_common::spec::{CniError, Context};
use ferrule_kernel::netlink::Socket;
use ferrule_kernel::nftables::table_state;
use ferrule_policy_kit::Direction;
use ferrule_policy_kit::ask::{self, Ask, MOST, Question};
use ferrule_policy_kit::decided::TABLE;
use ferrule_policy_kit::denials::{Counter, Denial, Flow, News, counters, flows};

use crate::policy::daemon::Daemon;

/// Looks again and again.
pub struct Watch {
    socket: Socket,
    news: News,
}

impl Watch {
    /// From now on.
    ///
    /// # Errors
    /// No policies are enforced here, or the kernel refuses to list them.
    pub fn open() -> Result<Watch, CniError> {
        let mut socket = Socket::netfilter().context(|| "open a netlink socket")?.with_whole_dumps();
        if table_state(&mut socket, TABLE).context(|| "look for the table of policies")?.is_none() {
            let why = format!(
                "no policies are enforced on this node: there is no table {TABLE}, which ferrule-node --policy makes"
            );
            return Err(CniError::internal(why));
        }
        let mut watch = Watch { socket, news: News::default() };
        // Those of the last minute.
        watch.look()?;
        Ok(watch)
    }

    /// The denials since the last look.
    ///
    /// # Errors
    /// The kernel refuses a list.
    pub fn look(&mut self) -> Result<Vec<Denial>, CniError> {
        let found = flows(&mut self.socket, TABLE).context(|| "list denied flows")?;
        let new = self.news.of(found);
        if new.is_empty() {
            return Ok(Vec::new());
        }
        let pods = counters(&mut self.socket, TABLE).context(|| "list the counters of pods")?;
        let mut denials = named(&new, &pods);
        explain(&mut denials);
        Ok(denials)
    }
}

/// Adds what the daemon knows, if it answers.
fn explain(denials: &mut [Denial]) {
    let mut daemon = Daemon::default();
    for some in denials.chunks_mut(MOST) {
        let question = |Denial { flow, .. }: &Denial| Question {
            from: flow.source,
            to: flow.destination,
            protocol: flow.protocol,
            port: flow.port,
        };
        let Some(answer) = daemon.ask(Ask::Why(some.iter().map(question).collect())) else { return };
        some.iter_mut().zip(&answer.flows).for_each(|(denial, flow)| add(denial, flow));
    }
}

/// Adds the names of pods that the kernel does not have, and the policies, if these still deny it.
fn add(denial: &mut Denial, flow: &ask::Flow) {
    let (own, other) = match denial.flow.direction {
        Direction::Ingress => (&flow.ingress, &flow.egress),
        Direction::Egress => (&flow.egress, &flow.ingress),
    };
    for (name, side) in [(&mut denial.pod, own), (&mut denial.peer, other)] {
        if let (true, Some(pod)) = (name.is_empty(), side.pods.first()) {
            name.clone_from(pod);
        }
    }
    if own.reason.allows() == Some(false) {
        denial.policies = own.by.iter().map(|by| by.policy.clone()).collect();
        denial.policies.dedup();
    }
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
    use ferrule_policy_kit::ask::{By, Reason, Side};

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
        let side = |pod: &str, reason, policies: &[&str]| Side {
            pods: vec![pod.to_owned()],
            reason,
            by: policies.iter().map(|policy| By { policy: policy.to_string(), ..By::default() }).collect(),
            passed: Vec::new(),
            unreached: Vec::new(),
            is_dry: false,
        };
        let said = |reason, policies: &[&str]| {
            let mut denials = named(&[(flow, 1)], &pods);
            let api = ask::Flow {
                egress: side("tools/other", Reason::NotHere, &[]),
                ingress: side("shop/late", reason, policies),
            };
            denials.iter_mut().for_each(|denial| add(denial, &api));
            denials[0].to_string()
        };
        let line = "denied ingress of shop/web (10.0.0.2) from tools/other (10.0.0.1): TCP 80";
        let policies = ["NetworkPolicy shop/web", "NetworkPolicy shop/web", "NetworkPolicy shop/all"];
        assert_eq!(
            said(Reason::NothingAllows, &policies),
            format!("{line}; by NetworkPolicy shop/web, NetworkPolicy shop/all")
        );
        // A change allows it by now.
        assert_eq!(said(Reason::Allowed, &policies[..1]), line);
    }
}
