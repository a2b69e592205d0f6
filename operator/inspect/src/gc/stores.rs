//! Releases addresses of host-local, which may be many.
//!
//! Nothing is asked under the lock of the store, which each ADD needs. The order protects a container that comes to life meanwhile: the
//! files are listed, then the evidence is read, and then only files are removed that are still the listed ones. So a reservation that
//! was made after the evidence is never one of them, and of one that was made before, the evidence is true.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::thread::sleep;
use std::time::{Duration, Instant};

use cni_common::spec::{CniError, Code};
use ferrule_host_local::store::Reserved;
use ferrule_host_local::sweep::Sweep;

use super::Outcome;
use crate::model::{Removal, Reservation, State};
use crate::node::Node;

/// How long a store is locked at once. An ADD takes 1 ms.
const HOLD: Duration = Duration::from_millis(5);
/// How long it is free then, at least.
const PAUSE: Duration = Duration::from_millis(2);
/// The kernel's clock for files stands still for up to that long: a file of the same name and inode number that is made later has
/// another time.
const TICK: Duration = Duration::from_millis(20);
/// After that time the evidence is read again.
const AGE: Duration = Duration::from_secs(1);
/// How many are judged at once by it: about as many as are released in that time.
const SHARE: usize = 10_000;
/// So often in a row the lock may come only after [`AGE`].
const LATE: usize = 5;

/// The reservations of a store, as indexes in [`Node::objects`] and as they were listed.
type Listed = (Vec<usize>, Vec<Reserved>);

/// Releases the leaks of these that are still leaks. `say` gets each with its outcome.
pub(super) fn release(node: &mut Node, leaks: &[usize], say: &mut dyn FnMut(&Node, usize, Outcome)) {
    let mut stores: BTreeMap<(PathBuf, String), Listed> = BTreeMap::new();
    for leak in leaks {
        if let Some(Removal::Reservation(Reservation { data_dir, network, reserved })) =
            &node.objects[*leak].removal
        {
            let (objects, listed) = stores.entry((data_dir.clone(), network.clone())).or_default();
            objects.push(*leak);
            listed.push(reserved.clone());
        }
    }
    for ((data_dir, network), listed) in stores {
        of_store(node, &Sweep::new(&data_dir, &network), listed, say);
    }
}

fn of_store(
    node: &mut Node,
    sweep: &Sweep,
    (mut objects, mut listed): Listed,
    say: &mut dyn FnMut(&Node, usize, Outcome),
) {
    // A call that has the lock now may be an ADD that is in no evidence yet.
    if let Err(error) = sweep.wait() {
        return fail(node, &objects, &error, say);
    }
    sleep(TICK);
    let mut late = 0;
    while !objects.is_empty() {
        let share = objects.len().min(SHARE);
        let (dead, reserved) = still_dead(node, objects.drain(..share), listed.drain(..share), say);
        let until = Instant::now() + AGE;
        let mut at = 0;
        while at < dead.len() && Instant::now() <= until {
            let outcomes = match sweep.release(&reserved[at..], HOLD, until) {
                Ok(outcomes) => outcomes,
                Err(error) => {
                    fail(node, &dead[at..], &error, say);
                    return fail(node, &objects, &error, say);
                }
            };
            for (object, outcome) in dead[at..].iter().zip(&outcomes) {
                say(node, *object, Outcome::from(outcome));
            }
            at += outcomes.len();
            sleep(PAUSE);
        }
        late = if at == 0 && !dead.is_empty() { late + 1 } else { 0 };
        objects.extend(&dead[at..]);
        listed.extend_from_slice(&reserved[at..]);
        if late > LATE {
            let error = CniError::new(Code::TryAgainLater, "other calls have the lock most of the time");
            return fail(node, &objects, &error, say);
        }
    }
}

fn fail(node: &Node, objects: &[usize], error: &CniError, say: &mut dyn FnMut(&Node, usize, Outcome)) {
    objects.iter().for_each(|object| say(node, *object, Outcome::Failed(error.to_string())));
}

/// Reads the evidence again, and returns the reservations whose owners are dead.
fn still_dead(
    node: &mut Node,
    objects: impl Iterator<Item = usize>,
    listed: impl Iterator<Item = Reserved>,
    say: &mut dyn FnMut(&Node, usize, Outcome),
) -> Listed {
    let objects: Vec<usize> = objects.collect();
    node.judge_again(&objects);
    let (mut dead, mut reserved) = Listed::default();
    for (object, file) in objects.into_iter().zip(listed) {
        match &node.objects[object].state {
            State::Dead(_) => {
                dead.push(object);
                reserved.push(file);
            }
            State::Alive(why) | State::Unknown(why) => say(node, object, Outcome::Kept(why.clone())),
        }
    }
    (dead, reserved)
}
