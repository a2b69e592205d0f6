//! A list whose items have names.

use std::collections::BTreeMap;

/// Items in the order of their insertion, found by name. Unlike one map for each type of item, this is compiled once.
#[derive(Debug)]
pub struct Named<T> {
    items: Vec<T>,
    positions: BTreeMap<String, usize>,
}

impl<T> Default for Named<T> {
    fn default() -> Self {
        Named { items: Vec::new(), positions: BTreeMap::new() }
    }
}

impl<T> Named<T> {
    /// The items of an iterator. Of several with one name the first stays.
    pub fn of(items: impl Iterator<Item = (String, T)>) -> Self {
        let mut named = Named::default();
        items.for_each(|(name, item)| named.add(name, item));
        named
    }

    /// The item with this name.
    pub fn get(&self, name: &str) -> Option<&T> {
        self.positions.get(name).and_then(|position| self.items.get(*position))
    }

    /// Adds an item, unless there is one of this name.
    pub fn add(&mut self, name: String, item: T) {
        if self.get(&name).is_none() {
            self.insert(name, item);
        }
    }

    /// The item with this name, which `make` makes if it is missing.
    pub fn entry(&mut self, name: &str, make: impl FnOnce() -> T) -> &mut T {
        let position = match self.positions.get(name) {
            Some(position) => *position,
            None => self.insert(name.to_owned(), make()),
        };
        &mut self.items[position]
    }

    /// Adds an item with a new name.
    fn insert(&mut self, name: String, item: T) -> usize {
        let position = self.items.len();
        self.positions.insert(name, position);
        self.items.push(item);
        position
    }

    /// All items.
    pub fn iter(&self) -> std::slice::Iter<'_, T> {
        self.items.iter()
    }

    /// All names in order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.positions.keys().map(String::as_str)
    }

    /// All items in the order of their names.
    pub fn by_name(&self) -> impl Iterator<Item = &T> {
        self.positions.values().filter_map(|position| self.items.get(*position))
    }

    /// All items, without their names.
    pub fn into_items(self) -> Vec<T> {
        self.items
    }
}

/// Adds what the list does not have yet.
pub fn add_new<T: PartialEq>(list: &mut Vec<T>, items: impl IntoIterator<Item = T>) {
    for item in items {
        if !list.contains(&item) {
            list.push(item);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_item_of_a_name_stays() {
        let mut named = Named::of([("b", 1), ("a", 2), ("b", 3)].map(|(n, i)| (n.to_owned(), i)).into_iter());
        assert_eq!((named.get("b"), named.get("a"), named.get("c")), (Some(&1), Some(&2), None));
        assert!(named.by_name().eq(&[2, 1]));
        *named.entry("c", || 4) += 1;
        assert_eq!(named.into_items(), [1, 2, 5]);
        let mut list = vec![1];
        add_new(&mut list, [2, 1, 2]);
        assert_eq!(list, [1, 2]);
    }
}
