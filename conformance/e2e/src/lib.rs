//! Only tests and a benchmark: see `tests/` and `benches/`.
