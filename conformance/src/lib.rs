//! Runner and fixtures.
