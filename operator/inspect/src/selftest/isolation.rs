//! The plugin `policy`: a new pod of an isolated namespace gets nothing through until it is released.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use cni_common::spec::CniError;
use ferrule_kit::owner;
use ferrule_policy::list::{announced, remove};
use ferrule_policy_kit::isolated::{Isolated, PATH};
use ferrule_policy_kit::{Direction, Directions};

use super::pods::{Attached, ISOLATED};
use super::scene::Scene;
use super::traffic::{Place, connect_within};
use super::{Test, why};
use crate::model::Sockets;

/// The plugin, and the first test's name.
const NAME: &str = "policy";
/// The second test's name.
const RELEASE: &str = "policy, released";
/// The namespace of the pod if the file does not name any: all are isolated then.
const ANY: &str = "ferrule-test";
/// How long a packet may take that must not arrive, and the same one after the release.
const LIMIT: Duration = Duration::from_millis(500);

/// Attaches a third pod, asks what passes before and after its release.
pub(super) fn tests(scene: &Scene<'_>) -> Vec<Test> {
    if !scene.network.has(&[NAME]) {
        return vec![Test::skipped(NAME, "not used: the network has no plugin policy")];
    }
    let (namespace, directions) = match namespace(Path::new(PATH)) {
        Ok(found) => found,
        Err(why) => return vec![Test::skipped(NAME, why)],
    };
    let pod = match scene.site.attach_isolated(scene.network, &namespace) {
        Ok(pod) => pod,
        Err(why) => return vec![Test::failed(NAME, why, why::ATTACH)],
    };
    let passed: Vec<String> =
        ways(scene, &pod, directions).filter(|way| way.passes()).map(|way| way.told()).collect();
    let released = release();
    let mut tests = vec![match &*passed {
        [] => Test::ok(
            NAME,
            format!("nothing passes a new pod of namespace {namespace} ({})", said(directions)),
        ),
        passed => {
            let passed = passed.join(", ");
            let why = format!("{passed}, though namespace {namespace} is isolated ({})", said(directions));
            Test::failed(NAME, why, why::POLICY)
        }
    }];
    tests.push(match released {
        Ok(true) => after(scene, &pod),
        Ok(false) => Test::failed(RELEASE, "the plugin has not announced the pod", why::POLICY),
        Err(error) => Test::failed(RELEASE, error.to_string(), why::POLICY),
    });
    tests
}

/// What passes after the release: all, unless the network keeps its pods apart.
fn after(scene: &Scene<'_>, pod: &Attached) -> Test {
    if scene.keeps_apart() {
        return Test::skipped(RELEASE, "the network has portIsolation: pods do not reach each other");
    }
    let held: Vec<String> =
        ways(scene, pod, Directions::BOTH).filter(|way| !way.passes()).map(|way| way.told()).collect();
    match &*held {
        [] => Test::ok(RELEASE, "packets pass in both directions"),
        held => {
            Test::failed(RELEASE, format!("no longer isolated, but not: {}", held.join(", ")), why::POLICY)
        }
    }
}

/// A namespace of the file, and its directions. Without the file all are isolated.
fn namespace(path: &Path) -> Result<(String, Directions), String> {
    match Isolated::read(path) {
        Ok(isolated) => {
            let found =
                isolated.strictest().map(|(namespace, directions)| (namespace.to_owned(), directions));
            found.ok_or_else(|| format!("{} names no namespace: no pod has a policy", path.display()))
        }
        // Missing or damaged: the plugin isolates every pod.
        Err(_) => Ok((ANY.to_owned(), Directions::BOTH)),
    }
}

fn said(directions: Directions) -> &'static str {
    match (directions.ingress, directions.egress) {
        (true, true) => "both directions",
        (true, false) => "ingress",
        _ => "egress",
    }
}

/// A connection between the first pod and the isolated one.
struct Way<'s> {
    from: Place<'s>,
    to: Place<'s>,
    ends: [SocketAddr; 2],
}

impl Way<'_> {
    fn passes(&self) -> bool {
        connect_within(self.from, self.to, self.ends[1], None, LIMIT).is_ok()
    }

    fn told(&self) -> String {
        let [from, to] = self.ends.map(|end| end.ip());
        format!("{from} reaches {to}")
    }
}

/// The connections of these directions, in the families of both pods.
fn ways<'s>(
    scene: &'s Scene<'_>,
    pod: &'s Attached,
    directions: Directions,
) -> impl Iterator<Item = Way<'s>> {
    let all = [true, false].into_iter().flat_map(|is_v4| Direction::ALL.map(|direction| (is_v4, direction)));
    all.filter(move |(_, direction)| directions.has(*direction)).filter_map(|(is_v4, direction)| {
        let [a, c] = [&scene.pods[0], pod].map(|pod| Some(SocketAddr::new(pod.address(is_v4)?, 0)));
        let (a, c, isolated) = (a?, c?, Place::In(&pod.netns));
        Some(match direction {
            Direction::Ingress => Way { from: scene.a(), to: isolated, ends: [a, c] },
            Direction::Egress => Way { from: isolated, to: scene.a(), ends: [c, a] },
        })
    })
}

/// Releases the pod. Returns whether it was announced.
fn release() -> Result<bool, CniError> {
    let mut sockets = Sockets::open()?;
    let mut own = announced(&mut sockets.netfilter)?;
    own.retain(|one| one.label.as_deref().is_some_and(|label| owner::is_of(label, ISOLATED)));
    let released = remove(&mut sockets.netfilter, &own, &mut || vec![true; own.len()])?;
    Ok(released.contains(&true))
}
