//! The tests of this crate, in one program: `cargo test --workspace --test it MODULE`. Those that look at the proxy
//! threads of their process are programs of their own, as are those that take longest.

mod counting;

mod adaptive;
mod agent;
mod batches;
mod bulk;
mod channel;
mod codec;
mod direct;
mod failover;
mod hostile_peer;
mod idle_work;
mod mapped;
mod membership;
mod on_demand;
mod protocols;
mod rendezvous;
mod session;
