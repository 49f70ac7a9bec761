//! Pure functions that compute a call's work from its arguments alone.
//!
//! | file | concept |
//! |---|---|
//! | [`layout`] | the tokens for each rank and each expert |
//! | [`hosts`] | which ranks share a host, and through which rank tokens reach it |
//! | [`groups`] | received tokens by expert |
//! | [`rows`] | the parts of a row in transfer |
//! | [`sizes`] | the sizes of buffers |
//! | [`pairs`] | low latency: the order of rows by expert |

pub mod groups;
pub mod hosts;
pub mod layout;
pub mod pairs;
pub mod rows;
pub mod sizes;
