//! All-gather, reduce-scatter, reduce, all-to-all and broadcast, on any hosts.

use super::{BOTH, Builder, Shape, input, output, scratch};
use crate::plan::schema::{ChannelType, Document, Protocol};

/// Every PE puts its input into all outputs. The input may be its own part of the output.
#[must_use]
pub fn all_gather(shape: &Shape) -> Document {
    let (n, b) = (shape.pes(), shape.blocks);
    let mut plan = Builder::new("all-gather", "allgather", shape, Protocol::Simple, [b, n * b, 0]);
    for rank in 0..n {
        for block in 0..b {
            let place = output(rank * b + block);
            let mut ops = plan.block(rank, block);
            ops.barrier(shape, rank);
            ops.copy(input(block), place);
            for ty in BOTH {
                let peers = shape.peers(rank, ty);
                let puts: Vec<_> = peers.iter().map(|&peer| (input(block), peer, place)).collect();
                ops.put_and_signal(ty, &puts);
            }
            BOTH.iter().for_each(|&ty| ops.wait(ty, &shape.peers(rank, ty)));
        }
    }
    plan.document
}

/// Every PE reads its part from the PEs of its host and reduces it; PEs of other hosts put theirs into its scratch
/// chunks. The output may be its own part of the input.
#[must_use]
pub fn reduce_scatter(shape: &Shape) -> Document {
    let (n, b) = (shape.pes(), shape.blocks);
    let received = if (0..n).any(|rank| !shape.peers(rank, ChannelType::Port).is_empty()) { n * b } else { 0 };
    let mut plan = Builder::new("reduce-scatter", "reducescatter", shape, Protocol::Simple, [n * b, b, received]);
    for rank in 0..n {
        let (near, far) = (shape.peers(rank, ChannelType::Memory), shape.peers(rank, ChannelType::Port));
        for block in 0..b {
            let of = |peer: usize| peer * b + block;
            let mut ops = plan.block(rank, block);
            ops.barrier(shape, rank);
            let puts: Vec<_> = far.iter().map(|&peer| (input(of(peer)), peer, scratch(of(rank)))).collect();
            ops.put_and_signal(ChannelType::Port, &puts);
            if near.is_empty() {
                ops.copy(input(of(rank)), output(block));
            } else {
                let peers: Vec<_> = near.iter().map(|&peer| (peer, input(of(rank)))).collect();
                ops.read_reduce(input(of(rank)), &peers, output(block), &[]);
            }
            ops.wait(ChannelType::Port, &far);
            if !far.is_empty() {
                let mut sources = vec![output(block)];
                sources.extend(far.iter().map(|&peer| scratch(of(peer))));
                ops.reduce(&sources, output(block));
            }
            // No input is read any more.
            ops.signal(ChannelType::Memory, &near);
            ops.wait(ChannelType::Memory, &near);
        }
    }
    plan.document
}

/// Every PE reduces its part as in a reduce-scatter, into a scratch chunk, and puts the result into the output of one
/// PE, which may be its input.
#[must_use]
pub fn reduce(shape: &Shape, root: usize) -> Document {
    let (n, b) = (shape.pes(), shape.blocks);
    let name = format!("reduce-to-{root}");
    let mut plan = Builder::new(&name, "reduce", shape, Protocol::Simple, [n * b, n * b, (n + 1) * b]);
    for rank in 0..n {
        let (near, far) = (shape.peers(rank, ChannelType::Memory), shape.peers(rank, ChannelType::Port));
        for block in 0..b {
            let of = |peer: usize| peer * b + block;
            let result = if rank == root { output(of(rank)) } else { scratch(n * b + block) };
            let mut ops = plan.block(rank, block);
            ops.barrier(shape, rank);
            let puts: Vec<_> = far.iter().map(|&peer| (input(of(peer)), peer, scratch(of(rank)))).collect();
            ops.put_and_signal(ChannelType::Port, &puts);
            if near.is_empty() {
                ops.copy(input(of(rank)), result);
            } else {
                let peers: Vec<_> = near.iter().map(|&peer| (peer, input(of(rank)))).collect();
                ops.read_reduce(input(of(rank)), &peers, result, &[]);
            }
            ops.wait(ChannelType::Port, &far);
            if !far.is_empty() {
                let mut sources = vec![result];
                sources.extend(far.iter().map(|&peer| scratch(of(peer))));
                ops.reduce(&sources, result);
            }
            if rank == root {
                BOTH.iter().for_each(|&ty| ops.wait(ty, &shape.peers(rank, ty)));
            } else {
                ops.put_and_signal(shape.channel(rank, root), &[(result, root, output(of(rank)))]);
            }
            // No input is read any more.
            ops.signal(ChannelType::Memory, &near);
            ops.wait(ChannelType::Memory, &near);
        }
    }
    plan.document
}

/// Every PE puts each PE's part into that PE's output. Input and output are different memory.
#[must_use]
pub fn all_to_all(shape: &Shape) -> Document {
    let (n, b) = (shape.pes(), shape.blocks);
    let mut plan = Builder::new("all-to-all", "alltoall", shape, Protocol::Simple, [n * b, n * b, 0]);
    for rank in 0..n {
        for block in 0..b {
            let of = |peer: usize| peer * b + block;
            let mut ops = plan.block(rank, block);
            ops.barrier(shape, rank);
            ops.copy(input(of(rank)), output(of(rank)));
            for ty in BOTH {
                let peers = shape.peers(rank, ty);
                let puts: Vec<_> = peers.iter().map(|&peer| (input(of(peer)), peer, output(of(rank)))).collect();
                ops.put_and_signal(ty, &puts);
            }
            BOTH.iter().for_each(|&ty| ops.wait(ty, &shape.peers(rank, ty)));
        }
    }
    plan.document
}

/// Every PE puts each PE's part into that PE's scratch chunks, and copies what has come over its own parts. Input and
/// output are the same memory.
#[must_use]
pub fn all_to_all_in_place(shape: &Shape) -> Document {
    let (n, b) = (shape.pes(), shape.blocks);
    let mut plan = Builder::new("all-to-all-in-place", "alltoall", shape, Protocol::Simple, [n * b; 3]);
    plan.document.inplace = true;
    for rank in 0..n {
        for block in 0..b {
            let of = |peer: usize| peer * b + block;
            let mut ops = plan.block(rank, block);
            // No scratch chunk is read any more.
            ops.barrier(shape, rank);
            for ty in BOTH {
                let peers = shape.peers(rank, ty);
                let puts: Vec<_> = peers.iter().map(|&peer| (input(of(peer)), peer, scratch(of(rank)))).collect();
                ops.put_and_signal(ty, &puts);
            }
            // What is still on its way must not be overwritten.
            ops.sync("flush", ChannelType::Port, &shape.peers(rank, ChannelType::Port));
            BOTH.iter().for_each(|&ty| ops.wait(ty, &shape.peers(rank, ty)));
            shape.others(rank).for_each(|peer| ops.copy(scratch(of(peer)), output(of(peer))));
        }
    }
    plan.document
}

/// One PE puts its input into all outputs. The input may be the output.
#[must_use]
pub fn broadcast(shape: &Shape, root: usize) -> Document {
    let (n, b) = (shape.pes(), shape.blocks);
    let name = format!("broadcast-from-{root}");
    let mut plan = Builder::new(&name, "broadcast", shape, Protocol::Simple, [b, b, 0]);
    for rank in 0..n {
        for block in 0..b {
            let mut ops = plan.block(rank, block);
            if rank != root {
                let ty = shape.channel(rank, root);
                ops.signal(ty, &[root]);
                ops.wait(ty, &[root]);
                continue;
            }
            BOTH.iter().for_each(|&ty| ops.wait(ty, &shape.peers(rank, ty)));
            ops.copy(input(block), output(block));
            for ty in BOTH {
                let peers = shape.peers(rank, ty);
                let puts: Vec<_> = peers.iter().map(|&peer| (input(block), peer, output(block))).collect();
                ops.put_and_signal(ty, &puts);
            }
        }
    }
    plan.document
}
