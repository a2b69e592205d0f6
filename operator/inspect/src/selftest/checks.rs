//! The tests. Each is a function of the scene; what failed is explained by [`why`](super::why).

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use super::pods::{BURST, PORT, RATE};
use super::scene::Scene;
use super::traffic::{Pair, Place, connect, has_route, resolve, told, transfer};
use super::{Test, isolation, nodes, why};

const NO_ROUTE: &str =
    "the network gives its pods no route to the outside (routes of ipam, or isDefaultGateway)";
const POD_TO_POD: &str = "pod to pod";
const NODE_TO_POD: &str = "node to pod";
/// How many bytes the test of a limit sends.
const AMOUNT: usize = 1 << 20;
/// How long one datagram may take there and back.
const ECHO: Duration = Duration::from_secs(2);
/// The same for the first ones, which may wait for the addresses of neighbours.
const WARM: Duration = Duration::from_secs(1);
/// The same while the largest one that passes is looked for.
const QUICK: Duration = Duration::from_millis(200);

/// A test, or several that share their packets.
type Check = Box<dyn Fn(&Scene<'_>) -> Vec<Test>>;

impl Scene<'_> {
    /// All tests for the families of the pods' addresses.
    pub(super) fn checks(&self, dns: Option<IpAddr>) -> Vec<Check> {
        let mut checks: Vec<Check> = vec![Box::new(|scene| vec![scene.of_plugins()])];
        for is_v4 in [true, false] {
            if self.pods.iter().any(|pod| pod.address(is_v4).is_none()) {
                let family = family(is_v4);
                let test = Test::skipped(family, format!("the network gives no {family} addresses"));
                checks.push(Box::new(move |_| vec![test.clone()]));
                continue;
            }
            checks.push(Box::new(move |scene| scene.near(is_v4)));
            checks.push(Box::new(move |scene| scene.far(is_v4)));
            checks.push(Box::new(move |scene| scene.sizes(is_v4)));
        }
        checks.push(Box::new(|scene| vec![scene.host_port()]));
        checks.push(Box::new(|scene| vec![scene.limit()]));
        checks.push(Box::new(move |scene| vec![scene.resolver(dns)]));
        checks.push(Box::new(isolation::tests));
        checks.push(Box::new(|scene| nodes::tests(&scene.pods[0])));
        checks
    }

    fn of_plugins(&self) -> Test {
        match self.check() {
            Ok(()) => Test::ok("CHECK", "the plugins find all that they have made"),
            Err(why) => Test::failed("CHECK", why, why::REMOVED),
        }
    }

    /// A failure with its reason.
    fn failed(&self, test: String, seen: String, is_v4: bool) -> Test {
        let (reason, remedy) = why::of(self.check(), seen, is_v4);
        Test::failed(test, reason, remedy)
    }

    fn addresses(&self, is_v4: bool) -> Option<[IpAddr; 2]> {
        let [a, b] = self.pods;
        Some([a.address(is_v4)?, b.address(is_v4)?])
    }

    /// Between the pods, and from the node.
    fn near(&self, is_v4: bool) -> Vec<Test> {
        let Some([a, b]) = self.addresses(is_v4) else { return Vec::new() };
        let at = SocketAddr::new(b, 0);
        let pods = match connect(self.a(), self.b(), at, None) {
            Ok(_) => Test::ok(named(POD_TO_POD, is_v4), format!("{a} reaches {b}")),
            Err(_) if self.keeps_apart() => Test::skipped(
                named(POD_TO_POD, is_v4),
                "the network has portIsolation: pods do not reach each other",
            ),
            Err(error) => match why::isolated(self.pods) {
                Some(why) => Test::failed(
                    named(POD_TO_POD, is_v4),
                    format!("{b}: {}{why}", told(&error)),
                    why::ISOLATED,
                ),
                None => self.failed(named(POD_TO_POD, is_v4), format!("{b}: {}", told(&error)), is_v4),
            },
        };
        let node = match connect(Place::Node, self.b(), at, None) {
            Ok(_) => Test::ok(named(NODE_TO_POD, is_v4), format!("the node reaches {b}")),
            Err(error) => self.failed(named(NODE_TO_POD, is_v4), format!("{b}: {}", told(&error)), is_v4),
        };
        vec![pods, node]
    }

    /// Through the node: forwarding, and whose address the other side sees.
    fn far(&self, is_v4: bool) -> Vec<Test> {
        let (name, masquerade) = (named("pod to outside", is_v4), named("masquerade", is_v4));
        let Some([a, _]) = self.addresses(is_v4) else { return Vec::new() };
        let (outside, to) = match self.outside(is_v4) {
            Ok(found) => found,
            Err(why) => return vec![Test::skipped(name, why)],
        };
        let seen = match connect(self.a(), outside, SocketAddr::new(to, 0), None) {
            Ok(seen) => seen,
            Err(error) => {
                let untested = Test::skipped(masquerade, "no packet gets out");
                return vec![self.failed(name, format!("{to}: {}", told(&error)), is_v4), untested];
            }
        };
        let is_wanted = self.network.plugins.iter().any(|plugin| plugin["ipMasq"] == true);
        let masqueraded = match (seen == a, is_wanted) {
            (false, _) => Test::ok(masquerade, format!("the other side sees the node's address {seen}")),
            (true, true) => {
                self.failed(masquerade, format!("the other side sees the pod's address {seen}"), is_v4)
            }
            (true, false) => {
                let why = format!("ipMasq is not on; the other side sees the pod's address {seen}");
                Test::skipped(masquerade, why)
            }
        };
        let ok = format!(
            "{a} reaches {to} in a namespace behind the node; a real network behind it is not tested"
        );
        vec![Test::ok(name, ok), masqueraded]
    }

    fn outside(&self, is_v4: bool) -> Result<(Place<'_>, IpAddr), String> {
        let outside = self.outside.map_err(|why| format!("there is no namespace outside: {why}"))?;
        let address = outside.address(is_v4).ok_or_else(|| format!("the node has no {}", family(is_v4)))?;
        match has_route(self.b(), address) {
            true => Ok((Place::In(&outside.netns), address)),
            false => Err(NO_ROUTE.to_owned()),
        }
    }

    /// The largest packets, with "don't fragment".
    fn sizes(&self, is_v4: bool) -> Vec<Test> {
        let Some([a, b]) = self.addresses(is_v4) else { return Vec::new() };
        let [mtu_a, mtu_b] = [&self.pods[0], &self.pods[1]].map(|pod| pod.link.mtu);
        let mut tests = vec![self.size(named("MTU pod to pod", is_v4), (a, b), self.b(), mtu_a.min(mtu_b))];
        if let Ok((outside, to)) = self.outside(is_v4) {
            tests.push(self.size(named("MTU pod to outside", is_v4), (a, to), outside, mtu_a));
        }
        tests
    }

    fn size(&self, name: String, (from, to): (IpAddr, IpAddr), place: Place<'_>, mtu: u32) -> Test {
        // The headers of IP and UDP.
        let headers = if from.is_ipv4() { 28 } else { 48 };
        let size = (mtu as usize).saturating_sub(headers).min(65_507);
        let pair = match Pair::open((self.a(), from), (place, to)) {
            Ok(pair) => pair,
            Err(error) => return self.failed(name, told(&error), from.is_ipv4()),
        };
        if (0..2).all(|_| pair.echo(8, WARM).is_err()) {
            return Test::skipped(name, "small datagrams do not pass either");
        }
        let Err(error) = pair.echo(size, ECHO) else {
            return Test::ok(name, format!("packets of {mtu} bytes pass in both directions, unfragmented"));
        };
        let (mut passes, mut fails) = (8, size);
        while passes + 1 < fails {
            let middle = passes.midpoint(fails);
            match pair.echo(middle, QUICK) {
                Ok(()) => passes = middle,
                Err(_) => fails = middle,
            }
        }
        let narrow = why::narrow_links(self.pods, mtu);
        let seen = format!(
            "a packet of {mtu} bytes, the MTU of the pod, does not pass: {}; one of {} bytes does{narrow}",
            told(&error),
            passes + headers
        );
        Test::failed(name, seen, why::MTU)
    }

    /// A host port on an address of the node that only the test knows.
    fn host_port(&self) -> Test {
        let name = "host port";
        let Some((host, port)) = self.rights.host_port else {
            return Test::skipped(
                name,
                match self.outside {
                    Ok(_) => "no plugin of the network has the capability portMappings".to_owned(),
                    Err(why) => format!("there is no namespace outside: {why}"),
                },
            );
        };
        let Some(b) = self.pods[1].address(true) else {
            return Test::skipped(name, "the pod has no IPv4 address");
        };
        let outside = match self.outside(true) {
            Ok((outside, _)) => outside,
            Err(why) => return Test::skipped(name, why),
        };
        let to = SocketAddr::new(host, port);
        match connect(outside, self.b(), SocketAddr::new(b, PORT), Some(to)) {
            Ok(_) => Test::ok(name, format!("{to} leads to {b}:{PORT}")),
            Err(error) => self.failed(name.to_owned(), format!("{to}: {}", told(&error)), true),
        }
    }

    fn limit(&self) -> Test {
        let name = "limit";
        if !self.rights.is_limited {
            return Test::skipped(name, "no plugin of the network has the capability bandwidth");
        }
        let is_v4 = self.pods[1].address(true).is_some();
        let Some(b) = self.pods[1].address(is_v4) else {
            return Test::skipped(name, "the pod has no address");
        };
        let took = match transfer(Place::Node, self.b(), SocketAddr::new(b, 0), AMOUNT) {
            Ok(took) => took,
            Err(error) => return self.failed(name.to_owned(), told(&error), is_v4),
        };
        let bits = AMOUNT as f64 * 8.0;
        let least = (bits - BURST as f64) / RATE as f64;
        let (rate, wanted) = (bits / took.as_secs_f64() / 1e6, RATE / 1_000_000);
        match took.as_secs_f64() < least / 2.0 {
            true => self.failed(name.to_owned(), format!("{rate:.0} Mbit/s instead of {wanted}"), is_v4),
            false => Test::ok(name, format!("{rate:.0} Mbit/s come through a limit of {wanted}")),
        }
    }

    fn resolver(&self, dns: Option<IpAddr>) -> Test {
        let name = "DNS";
        let Some(resolver) = dns else {
            return Test::skipped(name, "--dns ADDRESS names the resolver to ask");
        };
        match resolve(self.a(), resolver) {
            Ok(()) => Test::ok(name, format!("{resolver} answers the pod")),
            Err(error) => {
                self.failed(name.to_owned(), format!("{resolver}: {}", told(&error)), resolver.is_ipv4())
            }
        }
    }
}

fn family(is_v4: bool) -> &'static str {
    if is_v4 { "IPv4" } else { "IPv6" }
}

fn named(test: &str, is_v4: bool) -> String {
    format!("{test} ({})", family(is_v4))
}
