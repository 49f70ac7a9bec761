//! One-sided operations for NCCL: its proxy reads the requests of kernels (GIN) and of streams, and calls these tables.
//!
//! NCCL 2.28 and 2.29 look for `ncclGinPlugin_v11` in the network library, later ones for `ncclRmaPlugin_v13` to `_v16`.
//!
//! | module | concept |
//! |---|---|
//! | `abi` | the tables' layouts, by version |
//! | `table` | the tables, and their functions for groups, contexts and memory |
//! | `post` | the functions that post operations, and those that test them |
//! | `group` | the ranks, how they come together, and how they exchange handles |
//! | `window` | memory that all ranks have registered together |
//! | `order` | operations under way: weak and strong signals, flushes, requests |
//!
//! A put or get is one operation of the session between two registered memories. Memory of a GPU is accessed by rails
//! where they can, and staged through host memory by the GPU's copy engines where not.

mod abi;
mod group;
mod order;
mod post;
mod table;
mod window;
