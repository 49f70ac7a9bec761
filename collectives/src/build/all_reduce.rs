//! Algorithms for all-reduces. In all of them input and output may be the same memory.

use super::{Builder, Shape, input, output, scratch};
use crate::plan::schema::{ChannelType, Document, Protocol, Semaphore};

/// Every PE sends all of its input to every other PE as packets, and reduces the packets that it receives: one phase,
/// for the smallest messages. On one host.
#[must_use]
pub fn one_shot(shape: &Shape) -> Document {
    let (n, b) = (shape.pes(), shape.blocks);
    let mut plan = Builder::new("all-reduce-one-shot", "allreduce", shape, Protocol::LL, [b, b, n * b]);
    for rank in 0..n {
        for block in 0..b {
            let from = |peer: usize| scratch(peer * b + block);
            let mut ops = plan.block(rank, block);
            if n == 1 {
                ops.copy(input(block), output(block));
                continue;
            }
            let puts: Vec<_> = shape.others(rank).map(|peer| (input(block), peer, from(rank))).collect();
            ops.put_packets(&puts);
            let packets: Vec<_> = shape.others(rank).map(from).collect();
            ops.reduce_packets(input(block), &packets, output(block), &[]);
        }
    }
    plan.document
}

/// Every PE sends each PE its part as packets, reduces its own part, and sends the result to all as packets: two
/// phases, and twice the input's bytes instead of `n` times. On one host.
#[must_use]
pub fn two_phase(shape: &Shape) -> Document {
    let (n, b) = (shape.pes(), shape.blocks);
    let chunks = [n * b, n * b, 2 * n * b];
    let mut plan = Builder::new("all-reduce-two-phase", "allreduce", shape, Protocol::LL, chunks);
    for rank in 0..n {
        for block in 0..b {
            let of = |peer: usize| peer * b + block;
            let result = |peer: usize| scratch(n * b + of(peer));
            let mut ops = plan.block(rank, block);
            if n == 1 {
                ops.copy(input(of(0)), output(of(0)));
                continue;
            }
            let puts: Vec<_> = shape.others(rank).map(|peer| (input(of(peer)), peer, scratch(of(rank)))).collect();
            ops.put_packets(&puts);
            let packets: Vec<_> = shape.others(rank).map(|peer| scratch(of(peer))).collect();
            let sends: Vec<_> = shape.others(rank).map(|peer| (peer, result(rank))).collect();
            ops.reduce_packets(input(of(rank)), &packets, output(of(rank)), &sends);
            shape.others(rank).for_each(|peer| ops.unpack(result(peer), output(of(peer))));
        }
    }
    plan.document
}

/// Every PE reads its part of all inputs, reduces it and stores the result in all outputs: no intermediate copies. On
/// one host.
#[must_use]
pub fn direct(shape: &Shape) -> Document {
    let (n, b) = (shape.pes(), shape.blocks);
    let mut plan = Builder::new("all-reduce-direct", "allreduce", shape, Protocol::Simple, [n * b, n * b, 0]);
    for rank in 0..n {
        for block in 0..b {
            let own = rank * b + block;
            let mut ops = plan.block(rank, block);
            if n == 1 {
                ops.copy(input(own), output(own));
                continue;
            }
            ops.barrier(shape, rank);
            let peers: Vec<_> = shape.others(rank).map(|peer| (peer, input(own))).collect();
            let sends: Vec<_> = shape.others(rank).map(|peer| (peer, output(own))).collect();
            ops.read_reduce(input(own), &peers, output(own), &sends);
            ops.barrier(shape, rank);
        }
    }
    plan.document
}

/// Every PE puts each PE's part into that PE's scratch chunks, reduces its own, and puts the result into all outputs.
/// On any hosts.
#[must_use]
pub fn by_puts(shape: &Shape) -> Document {
    let (n, b) = (shape.pes(), shape.blocks);
    let mut plan = Builder::new("all-reduce-by-puts", "allreduce", shape, Protocol::Simple, [n * b, n * b, n * b]);
    for rank in 0..n {
        for block in 0..b {
            let of = |peer: usize| peer * b + block;
            let mut ops = plan.block(rank, block);
            ops.barrier(shape, rank);
            for ty in super::BOTH {
                let peers = shape.peers(rank, ty);
                let puts: Vec<_> = peers.iter().map(|&peer| (input(of(peer)), peer, scratch(of(rank)))).collect();
                ops.put_and_signal(ty, &puts);
            }
            super::BOTH.iter().for_each(|&ty| ops.wait(ty, &shape.peers(rank, ty)));
            let mut sources = vec![input(of(rank))];
            sources.extend(shape.others(rank).map(|peer| scratch(of(peer))));
            if n == 1 {
                ops.copy(input(of(0)), output(of(0)));
            } else {
                ops.reduce(&sources, output(of(rank)));
            }
            for ty in super::BOTH {
                let peers = shape.peers(rank, ty);
                let puts: Vec<_> = peers.iter().map(|&peer| (output(of(rank)), peer, output(of(rank)))).collect();
                ops.put_and_signal(ty, &puts);
            }
            super::BOTH.iter().for_each(|&ty| ops.wait(ty, &shape.peers(rank, ty)));
        }
    }
    plan.document
}

/// Blocks of [`one_round`] that copy at a time: so many use a bus alone.
const COPYING: usize = 4;

/// Every PE puts all of its input into every other PE's scratch chunks and reduces the inputs that it receives: one
/// phase, and for two PEs as few bytes as any other algorithm. Data is first copied to scratch chunks, so that input
/// and output may be memory that neither peers nor rails can access. Inputs are combined in the PEs' order, so that all
/// PEs get the same bits. Calls alternate between two halves of the scratch chunks, so that no PE waits for another one
/// before its puts, or for their acknowledgement. A few blocks copy at a time: their puts leave while others copy. On any
/// hosts.
#[must_use]
pub fn one_round(shape: &Shape) -> Document {
    let (n, b) = (shape.pes(), shape.blocks);
    let mut plan = Builder::new("all-reduce-one-round", "allreduce", shape, Protocol::Simple, [b, b, n * b]);
    plan.document.use_double_scratch_buffer = true;
    let takes_turns = b > COPYING;
    for rank in 0..n {
        if takes_turns {
            plan.document.gpus[rank].semaphores.push(Semaphore { init_value: COPYING as u64 });
        }
        for block in 0..b {
            let from = |peer: usize| scratch(peer * b + block);
            let mut ops = plan.block(rank, block);
            if n == 1 {
                ops.copy(input(block), output(block));
                continue;
            }
            if takes_turns {
                ops.semaphore("sem_acquire", 0);
            }
            ops.copy(input(block), from(rank));
            if takes_turns {
                ops.semaphore("sem_release", 0);
            }
            for ty in super::BOTH {
                let peers = shape.peers(rank, ty);
                let puts: Vec<_> = peers.iter().map(|&peer| (from(rank), peer, from(rank))).collect();
                ops.put_and_signal(ty, &puts);
            }
            super::BOTH.iter().for_each(|&ty| ops.wait(ty, &shape.peers(rank, ty)));
            let sources: Vec<_> = (0..n).map(|peer| if peer == rank { input(block) } else { from(peer) }).collect();
            ops.reduce(&sources, output(block));
        }
    }
    plan.document
}

/// Within each host every PE reduces a part of its host's inputs; the PEs of several hosts that have the same part
/// exchange and reduce it; within each host all PEs get all parts. Each byte crosses between two hosts once in either
/// direction for each part's PE. For hosts with the same number of PEs.
#[must_use]
pub fn hierarchical(shape: &Shape) -> Option<Document> {
    let rows = shape.rows()?;
    let (hosts, locals, b) = (rows.len(), rows[0].len(), shape.blocks);
    let chunks = hosts * locals * b;
    let mut plan =
        Builder::new("all-reduce-hierarchical", "allreduce", shape, Protocol::Simple, [chunks, chunks, hosts * b]);
    for (host, row) in rows.iter().enumerate() {
        for (local, &rank) in row.iter().enumerate() {
            let near = shape.peers(rank, ChannelType::Memory);
            // The PEs of other hosts with the same part.
            let far: Vec<(usize, usize)> =
                (0..hosts).filter(|&other| other != host).map(|other| (other, rows[other][local])).collect();
            let far_ranks: Vec<usize> = far.iter().map(|&(_, peer)| peer).collect();
            for block in 0..b {
                let of = |host: usize| (local * hosts + host) * b + block;
                let mut ops = plan.block(rank, block);
                for sync in [super::BlockBuilder::signal, super::BlockBuilder::wait] {
                    sync(&mut ops, ChannelType::Memory, &near);
                    sync(&mut ops, ChannelType::Port, &far_ranks);
                }
                for part in (0..hosts).map(of) {
                    let peers: Vec<_> = near.iter().map(|&peer| (peer, input(part))).collect();
                    if near.is_empty() {
                        ops.copy(input(part), output(part));
                    } else {
                        ops.read_reduce(input(part), &peers, output(part), &[]);
                    }
                }
                let puts: Vec<_> =
                    far.iter().map(|&(other, peer)| (output(of(other)), peer, scratch(host * b + block))).collect();
                ops.put_and_signal(ChannelType::Port, &puts);
                ops.wait(ChannelType::Port, &far_ranks);
                if !far.is_empty() {
                    let mut sources = vec![output(of(host))];
                    sources.extend(far.iter().map(|&(other, _)| scratch(other * b + block)));
                    ops.reduce(&sources, output(of(host)));
                }
                let puts: Vec<_> = far_ranks.iter().map(|&peer| (output(of(host)), peer, output(of(host)))).collect();
                ops.put_and_signal(ChannelType::Port, &puts);
                ops.wait(ChannelType::Port, &far_ranks);
                let parts: Vec<usize> = (0..hosts).map(of).collect();
                for (i, &part) in parts.iter().enumerate() {
                    let puts: Vec<_> = near.iter().map(|&peer| (output(part), peer, output(part))).collect();
                    // One signal covers all parts.
                    if i + 1 < parts.len() { ops.put(&puts) } else { ops.put_and_signal(ChannelType::Memory, &puts) }
                }
                ops.wait(ChannelType::Memory, &near);
            }
        }
    }
    Some(plan.document)
}
