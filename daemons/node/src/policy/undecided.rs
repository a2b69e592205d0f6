//! The undecided pods that the plugin has announced, as copies of the elements of `inet ferrule_pods`. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::SystemTime;

use ferrule_kernel::ip::from_octets;
use ferrule_kernel::nftables::{Batch, Element, link_of, notice};
use ferrule_node_policy::model::Addresses;
use ferrule_policy_kit::table::{LINKS, SETS};

use super::layout::TABLE;

/// A set and a key.
pub(super) type Place = (&'static str, Vec<u8>);

/// The elements that the daemon's table has, or should have.
#[derive(Debug, Default)]
pub(super) struct Undecided {
    copies: BTreeMap<Place, Copied>,
    /// Announcements so far.
    count: u64,
}

#[derive(Debug)]
struct Copied {
    element: Element,
    since: SystemTime,
    /// A later announcement has a higher one.
    order: u64,
    /// The plugin's table has it, too.
    is_announced: bool,
}

/// What the plugin's table has under a key; `None`: nothing any more.
pub(super) type News = BTreeMap<Place, Option<Element>>;

/// What an element is about.
pub(super) enum Of {
    /// An address, and the comment.
    Address(IpAddr, String),
    /// The node's end of a link.
    Link(String),
}

/// The elements of one attachment of one pod.
#[derive(Clone, Debug)]
pub(super) struct Group {
    pub(super) comment: String,
    pub(super) elements: Vec<(Place, Element)>,
    pub(super) addresses: Addresses,
    /// Whether it has two addresses of one family.
    pub(super) is_odd: bool,
    pub(super) order: u64,
}

/// The name of a set that announces, if it is one.
pub(super) fn known_set(name: &str) -> Option<&'static str> {
    SETS.iter().map(|(known, _)| *known).find(|known| *known == name)
}

/// Adds a message about the plugin's table to the news.
pub(super) fn hear(news: &mut News, elements: notice::Elements) {
    let Some(set) = known_set(&elements.set) else { return };
    for element in elements.elements {
        let place = (set, element.key.clone());
        news.insert(place, elements.are_new.then_some(element));
    }
}

impl Undecided {
    /// Takes the news, and adds to the batch what makes the daemon's table follow them. Returns whether there is something.
    pub(super) fn take(&mut self, news: News, batch: &mut Batch) -> bool {
        let mut is_changed = false;
        for ((set, key), now) in news {
            let place = (set, key.clone());
            let Some(element) = now else {
                if self.copies.remove(&place).is_some() {
                    batch.delete_elements(TABLE, set, &[key]);
                    is_changed = true;
                }
                continue;
            };
            match self.copies.get_mut(&place) {
                Some(copy) if is_same(&copy.element, &element) => {
                    copy.is_announced = true;
                    continue;
                }
                Some(_) => drop(batch.delete_elements(TABLE, set, &[key])),
                None => {}
            }
            batch.add_elements(TABLE, set, std::slice::from_ref(&element));
            self.insert(place, element, true);
            is_changed = true;
        }
        is_changed
    }

    /// Takes what both tables have: the plugin's elements, and those that were copied from it before and are not there any more.
    pub(super) fn restore(&mut self, announced: Vec<(Place, Element)>, copied: Vec<(Place, Element)>) {
        let mut before = std::mem::take(&mut self.copies);
        let lists = [(announced, true), (copied, false)];
        for (place, element, is_announced) in lists
            .into_iter()
            .flat_map(|(list, is)| list.into_iter().map(move |(place, one)| (place, one, is)))
        {
            if self.copies.contains_key(&place) {
                continue;
            }
            match before.remove(&place) {
                Some(copy) if is_same(&copy.element, &element) => {
                    self.copies.insert(place, Copied { is_announced, ..copy });
                }
                _ => self.insert(place, element, is_announced),
            }
        }
        for (place, copy) in before {
            self.copies.entry(place).or_insert(Copied { is_announced: false, ..copy });
        }
    }

    /// What the plugin has deleted since.
    pub(super) fn drop_gone(&mut self, news: &News) {
        for place in news.iter().filter(|(_, now)| now.is_none()).map(|(place, _)| place) {
            if self.copies.get(place).is_some_and(|copy| !copy.is_announced) {
                self.copies.remove(place);
            }
        }
    }

    fn insert(&mut self, place: Place, element: Element, is_announced: bool) {
        self.count += 1;
        let (since, order) = (SystemTime::now(), self.count);
        self.copies.insert(place, Copied { element, since, order, is_announced });
    }

    /// The plugin's table has these, and no others.
    pub(super) fn compare(&mut self, announced: Vec<(Place, Element)>, news: &mut News) {
        self.copies.values_mut().for_each(|copy| copy.is_announced = false);
        news.extend(announced.into_iter().map(|(place, element)| (place, Some(element))));
    }

    /// Adds all elements to a batch; those that are there stay.
    pub(super) fn push(&self, batch: &mut Batch) {
        for (set, _) in SETS {
            let own = self.copies.iter().filter(|((of, _), _)| *of == set);
            let elements: Vec<Element> = own.map(|(_, copy)| copy.element.clone()).collect();
            batch.put_elements(TABLE, set, &elements);
        }
    }

    /// What only the copies have, and what each is about.
    pub(super) fn only_copied(&self) -> Vec<(Place, Of)> {
        let copied = self.copies.iter().filter(|(_, copy)| !copy.is_announced);
        let of = |(place, copy): (&Place, &Copied)| match address(place) {
            Some(address) => Of::Address(address, copy.element.comment.clone().unwrap_or_default()),
            None => Of::Link(link_of(&place.1)),
        };
        copied.map(|one| (one.0.clone(), of(one))).collect()
    }

    /// Forgets elements that are released.
    pub(super) fn forget(&mut self, places: &BTreeSet<Place>) {
        self.copies.retain(|place, _| !places.contains(place));
    }

    /// The elements by attachment.
    pub(super) fn groups(&self) -> Vec<Group> {
        let mut groups: BTreeMap<(Option<&[u8]>, &str), Group> = BTreeMap::new();
        for (place, copy) in &self.copies {
            let comment = copy.element.comment.as_deref().unwrap_or_default();
            let group = groups.entry((copy.element.metadata.as_deref(), comment)).or_insert_with(|| Group {
                comment: comment.to_owned(),
                elements: Vec::new(),
                addresses: Addresses::default(),
                is_odd: false,
                order: 0,
            });
            group.elements.push((place.clone(), copy.element.clone()));
            group.order = group.order.max(copy.order);
            match address(place) {
                Some(IpAddr::V4(v4)) => {
                    group.is_odd |= group.addresses.v4.replace(v4).is_some_and(|other| other != v4);
                }
                Some(IpAddr::V6(v6)) => {
                    group.is_odd |= group.addresses.v6.replace(v6).is_some_and(|other| other != v6);
                }
                None => {}
            }
        }
        groups.into_values().collect()
    }

    /// Whether one of them has the address.
    pub(super) fn has(&self, of: IpAddr) -> bool {
        self.copies.keys().any(|place| address(place) == Some(of))
    }

    /// When the oldest one was announced.
    pub(super) fn oldest(&self) -> Option<SystemTime> {
        self.copies.values().map(|copy| copy.since).min()
    }

    /// The comments: one for each pod.
    pub(super) fn pods(&self) -> BTreeSet<&str> {
        self.copies.values().map(|copy| copy.element.comment.as_deref().unwrap_or_default()).collect()
    }
}

/// Whether both are of the same attachment.
pub(super) fn is_same(one: &Element, other: &Element) -> bool {
    (&one.comment, &one.metadata) == (&other.comment, &other.metadata)
}

fn address((set, key): &Place) -> Option<IpAddr> {
    from_octets(key).filter(|_| *set != LINKS)
}
