//! The libfabric backend.
