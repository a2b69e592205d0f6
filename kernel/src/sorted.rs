//! Sorted lists without duplicates.

/// The values, sorted and without duplicates. For lists with few distinct values: each new one moves those behind it. The
/// sort of the standard library adds 3 to 8 kB to the program for each type of values.
pub fn sorted<T: Ord>(values: impl IntoIterator<Item = T>) -> Vec<T> {
    let mut sorted = Vec::new();
    for value in values {
        if let Err(place) = sorted.binary_search(&value) {
            sorted.insert(place, value);
        }
    }
    sorted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_sorted_once_each() {
        assert_eq!(sorted([3, 1, 2, 3, 1]), [1, 2, 3]);
        assert!(sorted::<u8>([]).is_empty());
    }
}
