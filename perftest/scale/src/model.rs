//! A lower bound for the time of a collective, from the costs of its messages alone.

use symrail_transport::mock::timed::{Costs, Link};

use crate::Options;
use crate::work::Work;

/// Costs measured on two cores of an x86-64 virtual machine: between hosts over one rail of `tcp;ofi_rxm` on loopback,
/// within a host by shared memory. docs/scale.md says how.
pub(crate) const MEASURED: Costs = Costs {
    between_hosts: Link { post: 1_700, latency: 2_000, arrival: 1_800, byte_ps: 200, copy_ps: 50 },
    on_host: Link { post: 100, latency: 150, arrival: 100, byte_ps: 0, copy_ps: 60 },
    gap: 300,
    connect: 470_000,
};

/// The least nanoseconds of this work with these algorithms: its longest chain of messages, each of which is posted
/// when the one before has been received. `None` if there is no chain.
///
/// A barrier and a small sum gather on each host in a binary tree, run over the hosts by doubling, and return; a
/// broadcast goes down a binary tree over the hosts, then on each host.
pub(crate) fn bound(options: &Options, work: &Work) -> Option<u64> {
    let rounds = |n: u32| u64::from(n.next_power_of_two().trailing_zeros());
    let (on_host, hosts) = (rounds(options.pes_of_a_host()), rounds(options.hosts));
    let Costs { between_hosts, on_host: mates, .. } = options.costs;
    let chain = |bytes| (on_host * mates.message(bytes), hosts * between_hosts.message(bytes));
    match *work {
        Work::Ring | Work::AllToAll(_) | Work::Team => None,
        Work::Barrier | Work::Sum => {
            let (mates, hosts) = chain(0);
            Some(2 * mates + hosts)
        }
        Work::Broadcast(bytes) => {
            let (mates, hosts) = chain(bytes as u64);
            Some(mates + hosts)
        }
    }
}
