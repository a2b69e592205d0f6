//! The CNI specification's data: what plugins read and write.

pub mod json;
