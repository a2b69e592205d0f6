//! Values that many pods have, once in memory.

use std::collections::HashSet;
use std::hash::Hash;
use std::sync::Arc;

/// Shared values. Unused ones are removed when their number has doubled.
#[derive(Debug)]
pub(crate) struct Pool<T: ?Sized> {
    all: HashSet<Arc<T>>,
    limit: usize,
}

impl<T: ?Sized + Eq + Hash> Default for Pool<T> {
    fn default() -> Self {
        Pool { all: HashSet::new(), limit: 0 }
    }
}

impl<T: ?Sized + Eq + Hash> Pool<T> {
    pub(crate) fn get<'a>(&mut self, value: &'a T) -> Arc<T>
    where
        Arc<T>: From<&'a T>,
    {
        if let Some(known) = self.all.get(value) {
            return known.clone();
        }
        if self.all.len() >= self.limit {
            self.all.retain(|value| Arc::strong_count(value) > 1);
            self.limit = 2 * self.all.len() + 1024;
        }
        let new = Arc::from(value);
        self.all.insert(Arc::clone(&new));
        new
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nobody_has_goes() {
        let mut pool = Pool::<str>::default();
        let kept = pool.get("kept");
        for number in 0..10_000 {
            pool.get(number.to_string().as_str());
        }
        assert!(pool.all.len() < 3000, "{}", pool.all.len());
        assert!(Arc::ptr_eq(&kept, &pool.get("kept")));
    }
}
