//! Which rails are near which cores and GPUs.
