//! Pure functions: what a call will do, computed from its arguments alone.
//!
//! | file | concept |
//! |---|---|
//! | [`layout`] | which ranks and experts get which tokens |
//! | [`hosts`] | which ranks share a host, and through whom tokens come there |
//! | [`groups`] | received tokens by expert |
//! | [`rows`] | what a row is made of on its way |
//! | [`sizes`] | how large buffers have to be |
//! | [`pairs`] | low latency: the order of rows by expert |

pub mod groups;
pub mod hosts;
pub mod layout;
pub mod pairs;
pub mod rows;
pub mod sizes;
