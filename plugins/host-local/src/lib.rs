//! The `host-local` CNI plugin.
