//! What walks through both tables mean. Pure.

use ferrule_kernel::ip::IpFamily;
use serde::Serialize;

use crate::walk::{End, Packet, Place, Walk};
use crate::{Direction, decided, denials, table as announced};

/// What the kernel's rules do with a packet.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Ruled {
    /// `None`: the rules do not say it.
    pub allowed: Option<bool>,
    /// Why.
    pub cause: Cause,
    /// In which direction it is denied.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub direction: Option<Direction>,
    /// The rule that denies it, or that is not understood.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at: Option<At>,
    /// The rules that allow it, for each direction in which the pod is isolated.
    pub passed: Vec<Passed>,
    /// What the chain that denies it allows: its first rules.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub allows: Vec<String>,
    /// What depends on more than is known of the packet.
    pub notes: Vec<String>,
}

/// Why the rules do so.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Cause {
    /// There is no table of decided pods, or it is dormant: nothing is denied but to undecided pods.
    #[default]
    NotEnforced,
    /// No rule drops it.
    Passes,
    /// A pod always reaches itself.
    Itself,
    /// The chain of a pod drops it.
    Policy,
    /// The pod is not decided yet: the plugin has announced it, and `ferrule-node` does not know it or its policies.
    Undecided,
    /// The pod of the address has ended.
    EndedPod,
    /// A change of policies has ended the flow.
    EndedFlow,
    /// A rule that does not belong to a pod.
    Other,
    /// A rule is not understood.
    Unknown,
}

/// A rule of a table.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct At {
    /// The table, such as `inet ferrule_policy`.
    pub table: String,
    /// The chain.
    pub chain: String,
    /// The rule's number in the chain, from 1.
    pub rule: usize,
    /// How many rules the chain has.
    pub rules: usize,
    /// The sets of the rule in which the packet is.
    pub sets: Vec<String>,
}

/// A rule that allows a packet in one direction.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Passed {
    /// The direction.
    pub direction: Direction,
    /// The rule.
    #[serde(flatten)]
    pub at: At,
    /// It denies, and the mode dry lets the packet pass.
    pub is_dry: bool,
}

impl At {
    fn new(table: impl ToString, place: &Place) -> At {
        let Place { chain, rule, rules, sets } = place.clone();
        At { table: table.to_string(), chain, rule: rule + 1, rules, sets }
    }
}

/// The walks through both tables.
pub fn judge(announced: &Walk, decided: &Walk, packet: &Packet) -> Ruled {
    let of = packet.family();
    match announced.end {
        End::Drop | End::Unknown(_) => of_walk(announced, announced::TABLE, of),
        _ => of_walk(decided, decided::TABLE, of),
    }
}

/// Without the table of decided pods.
pub fn not_enforced(announced: &Walk, packet: &Packet) -> Ruled {
    let ruled = of_walk(announced, announced::TABLE, packet.family());
    match ruled.allowed {
        Some(true) => Ruled { cause: Cause::NotEnforced, ..ruled },
        _ => ruled,
    }
}

fn of_walk(walk: &Walk, table: impl ToString, of: IpFamily) -> Ruled {
    // The chain that counts denials says nothing of the policies that have led there.
    let decides = |place: &&Place| !denials::counts(&place.chain);
    let last = || walk.path.iter().rfind(decides).map(|place| At::new(table.to_string(), place));
    let has = |set: &str| walk.path.iter().any(|place| place.sets.iter().any(|one| one == set));
    let mut ruled = Ruled { notes: notes(walk, of), ..Ruled::default() };
    match &walk.end {
        End::Drop => {
            ruled.allowed = Some(false);
            ruled.at = last();
            (ruled.cause, ruled.direction) = why(walk, of);
        }
        End::Unknown(what) => {
            ruled.cause = Cause::Unknown;
            ruled.at = last();
            ruled.notes.push(format!("a rule has something that is not understood: {what}"));
        }
        _ => {
            ruled.allowed = Some(true);
            ruled.cause = if has(decided::to_itself(of)) { Cause::Itself } else { Cause::Passes };
            ruled.passed = passed(walk, of)
                .map(|(direction, at, is_dry)| Passed {
                    direction,
                    at: At::new(table.to_string(), at),
                    is_dry,
                })
                .collect();
        }
    }
    ruled
}

/// The direction of a rule that leads to the chain of a pod.
fn leads(place: &Place, of: IpFamily) -> Option<Direction> {
    let is_map = |direction: &Direction| place.sets.iter().any(|set| set == decided::map(*direction, of));
    Direction::ALL.into_iter().find(is_map)
}

/// The last rule of the chains of each pod, and whether it leads to the chain that counts what the mode dry lets pass.
fn passed(walk: &Walk, of: IpFamily) -> impl Iterator<Item = (Direction, &Place, bool)> {
    let starts = walk.path.iter().enumerate().filter_map(move |(at, place)| Some((at, leads(place, of)?)));
    starts.filter_map(move |(at, direction)| {
        let own = || walk.path.iter().skip(at + 1).take_while(|place| leads(place, of).is_none());
        let last = own().filter(|place| !denials::counts(&place.chain)).last()?;
        Some((direction, last, own().any(|place| denials::counts(&place.chain))))
    })
}

fn why(walk: &Walk, of: IpFamily) -> (Cause, Option<Direction>) {
    let sets: Vec<&str> = walk.path.iter().flat_map(|place| &place.sets).map(String::as_str).collect();
    let undecided =
        Direction::ALL.into_iter().find(|direction| sets.contains(&announced::set(*direction, of)));
    let direction = walk.path.iter().rev().find_map(|place| leads(place, of));
    if sets.contains(&decided::former(of)) {
        (Cause::EndedPod, None)
    } else if sets.contains(&decided::cut(of)) {
        (Cause::EndedFlow, None)
    } else if let Some(direction) = undecided {
        (Cause::Undecided, Some(direction))
    } else if sets.contains(&announced::LINKS) {
        (Cause::Undecided, Some(Direction::Egress))
    } else if direction.is_some() {
        (Cause::Policy, direction)
    } else {
        (Cause::Other, None)
    }
}

fn notes(walk: &Walk, of: IpFamily) -> Vec<String> {
    let maybe = |set: &str| walk.maybe.iter().any(|place| place.sets.iter().any(|one| one == set));
    let mut notes = Vec::new();
    if maybe(decided::cut(of)) {
        notes.push("a change of policies has ended a flow between these ends: the packets of that flow are dropped, those of a new one are not".to_owned());
    }
    if maybe(announced::LINKS) {
        notes.push("it is not known on which link the packet comes: nothing passes from the links of pods that are not decided".to_owned());
    }
    notes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(chain: &str, sets: &[&str]) -> Place {
        let sets = sets.iter().map(|set| set.to_string()).collect();
        Place { chain: chain.to_owned(), rule: 1, rules: 3, sets }
    }

    fn walk(end: End, path: &[(&str, &[&str])]) -> Walk {
        let path = path.iter().map(|(chain, sets)| place(chain, sets)).collect();
        Walk { end, path, maybe: Vec::new() }
    }

    fn packet() -> Packet {
        let (source, destination) = ([10, 1, 0, 2].into(), [10, 1, 0, 3].into());
        Packet { source, destination, protocol: 6, port: 80, input: None }
    }

    #[test]
    fn each_cause_has_its_place() {
        let through = walk(End::Through, &[]);
        let of = |decided: &Walk| judge(&through, decided, &packet());
        for (path, cause, direction) in [
            (&[("forward4", &["former4"][..])][..], Cause::EndedPod, None),
            (&[("forward4", &["ingress4"])], Cause::Undecided, Some(Direction::Ingress)),
            (&[("input4", &["egress4"]), ("answers", &[])], Cause::Undecided, Some(Direction::Egress)),
            (&[("forward4", &["links"])], Cause::Undecided, Some(Direction::Egress)),
            (&[("forward4", &["cut4"])], Cause::EndedFlow, None),
            (&[("forward4", &["from4"]), ("c1", &[])], Cause::Policy, Some(Direction::Egress)),
            (
                &[
                    ("forward4", &["from4"]),
                    ("c1", &["s1"]),
                    ("forward4", &["to4"]),
                    ("c2", &[]),
                    ("c3", &[]),
                ],
                Cause::Policy,
                Some(Direction::Ingress),
            ),
            (&[("stray4", &["isolated4"])], Cause::Other, None),
        ] {
            let ruled = of(&walk(End::Drop, path));
            assert_eq!(
                (ruled.allowed, ruled.cause, ruled.direction),
                (Some(false), cause, direction),
                "{path:?}"
            );
            assert_eq!(ruled.at.map(|at| at.chain), path.last().map(|(chain, _)| chain.to_string()));
        }
        let passes = of(&walk(
            End::Through,
            &[
                ("forward4", &["from4"]),
                ("c1", &["s1"]),
                ("c2", &[]),
                ("forward4", &["to4"]),
                ("c3", &["s2"]),
            ],
        ));
        let chains = |ruled: &Ruled| -> Vec<_> {
            ruled.passed.iter().map(|one| (one.direction, one.at.chain.clone())).collect()
        };
        assert_eq!((passes.allowed, passes.cause), (Some(true), Cause::Passes));
        assert_eq!(
            chains(&passes),
            [(Direction::Egress, "c2".to_owned()), (Direction::Ingress, "c3".to_owned())]
        );
        assert_eq!(of(&walk(End::Accept, &[("forward4", &["self4"])])).cause, Cause::Itself);
        let unknown = of(&walk(End::Unknown("osf".into()), &[("forward4", &[])]));
        assert_eq!((unknown.allowed, unknown.cause), (None, Cause::Unknown));
        assert!(unknown.notes[0].contains("osf"));
    }

    #[test]
    fn the_table_of_undecided_pods_comes_first() {
        let announced = walk(End::Drop, &[("forward", &["ingress4"])]);
        let decided = walk(End::Through, &[]);
        assert_eq!(judge(&announced, &decided, &packet()).cause, Cause::Undecided);
        assert_eq!(not_enforced(&announced, &packet()).cause, Cause::Undecided);
        let none = not_enforced(&decided, &packet());
        assert_eq!((none.allowed, none.cause), (Some(true), Cause::NotEnforced));
    }

    #[test]
    fn what_depends_on_more_is_said() {
        let maybe = vec![place("forward4", &["cut4"]), place("forward4", &["links"])];
        let ruled = judge(&Walk::default(), &Walk { maybe, ..Walk::default() }, &packet());
        assert!(ruled.notes[0].contains("ended a flow") && ruled.notes[1].contains("link"), "{ruled:?}");
    }
}
