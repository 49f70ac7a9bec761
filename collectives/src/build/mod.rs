//! Built-in plans, generated for any number of PEs on any hosts.
//!
//! Algorithms are plans, so that one interpreter runs them all and one proof covers them all. PEs of one host use
//! memory channels, PEs of different hosts use port channels.
//!
//! | file | concept |
//! |---|---|
//! | here | building a plan: channels and buffers are registered as operations name them |
//! | [`all_reduce`] | six algorithms for all-reduces |
//! | [`moves`] | all-gather, reduce-scatter, reduce, all-to-all, broadcast |

pub mod all_reduce;
pub mod moves;

use crate::number::ReduceOp;
use crate::plan::schema::{
    BufferRefs, BufferType, ChannelRefs, ChannelType, Channels, Chunks, Document, Gpu, Op, Protocol, RemoteBuffer,
    ThreadBlock,
};

/// The PEs of a plan: their hosts, and the number of blocks that share each one's work.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Shape {
    /// The number of each PE's host.
    pub hosts: Vec<u32>,
    /// Blocks of each PE.
    pub blocks: usize,
}

impl Shape {
    /// PEs of one host.
    #[must_use]
    pub fn one_host(pes: usize, blocks: usize) -> Shape {
        Shape { hosts: vec![0; pes], blocks }
    }

    /// The number of PEs.
    #[must_use]
    pub fn pes(&self) -> usize {
        self.hosts.len()
    }

    fn others(&self, rank: usize) -> impl Iterator<Item = usize> + use<> {
        (0..self.pes()).filter(move |&peer| peer != rank)
    }

    /// The other PEs that channels of this type connect to.
    fn peers(&self, rank: usize, ty: ChannelType) -> Vec<usize> {
        self.others(rank).filter(|&peer| self.channel(rank, peer) == ty).collect()
    }

    fn channel(&self, a: usize, b: usize) -> ChannelType {
        if self.hosts[a] == self.hosts[b] { ChannelType::Memory } else { ChannelType::Port }
    }

    /// The hosts' PEs, if all hosts have the same number of them.
    fn rows(&self) -> Option<Vec<Vec<usize>>> {
        let mut rows: std::collections::BTreeMap<u32, Vec<usize>> = std::collections::BTreeMap::new();
        for (rank, &host) in self.hosts.iter().enumerate() {
            rows.entry(host).or_default().push(rank);
        }
        let rows: Vec<Vec<usize>> = rows.into_values().collect();
        rows.iter().all(|row| row.len() == rows[0].len()).then_some(rows)
    }
}

const BOTH: [ChannelType; 2] = [ChannelType::Memory, ChannelType::Port];

/// A plan under construction.
struct Builder {
    document: Document,
}

/// Chunks of a buffer of this rank or of a peer.
#[derive(Clone, Copy)]
struct At {
    buffer: BufferType,
    index: usize,
}

fn input(index: usize) -> At {
    At { buffer: BufferType::Input, index }
}

fn output(index: usize) -> At {
    At { buffer: BufferType::Output, index }
}

fn scratch(index: usize) -> At {
    At { buffer: BufferType::Scratch, index }
}

impl At {
    fn local(self) -> Chunks {
        Chunks { buffer: Some(self.buffer), index: self.index as u64, size: 1, ..Chunks::default() }
    }
}

impl Builder {
    /// A plan without operations. `chunks`: those of input, output and scratch.
    fn new(name: &str, collective: &str, shape: &Shape, protocol: Protocol, chunks: [usize; 3]) -> Builder {
        let block = |id| ThreadBlock { id, ops: Vec::new(), channels: Vec::new(), remote_buffer_refs: Vec::new() };
        let gpu = |id| Gpu {
            id,
            input_chunks: chunks[0] as u64,
            output_chunks: chunks[1] as u64,
            scratch_chunks: chunks[2] as u64,
            threadblocks: (0..shape.blocks).map(block).collect(),
            channels: Vec::new(),
            remote_buffers: Vec::new(),
            semaphores: Vec::new(),
        };
        let document = Document {
            name: format!("{name}-{}x{}", shape.pes(), shape.blocks),
            collective: collective.into(),
            protocol,
            inplace: false,
            reuse_resources: false,
            gpus: (0..shape.pes()).map(gpu).collect(),
            num_threads_per_block: 1024,
            use_double_scratch_buffer: protocol == Protocol::LL,
            buffer_alignment: 16,
            min_message_size: 0,
            max_message_size: u64::MAX,
        };
        Builder { document }
    }

    fn block(&mut self, rank: usize, block: usize) -> BlockBuilder<'_> {
        BlockBuilder { gpu: &mut self.document.gpus[rank], block }
    }
}

/// A block under construction.
struct BlockBuilder<'a> {
    gpu: &'a mut Gpu,
    block: usize,
}

impl BlockBuilder<'_> {
    fn ops(&mut self) -> &mut Vec<Op> {
        &mut self.gpu.threadblocks[self.block].ops
    }

    /// The block's index of its channel to a peer. Each block has its own channels, and the blocks of two peers with
    /// the same number create theirs in the same order.
    fn channel(&mut self, ty: ChannelType, peer: usize) -> usize {
        let all = entry(
            &mut self.gpu.channels,
            |channels| channels.channel_type == ty,
            || Channels { channel_type: ty, connected_to: Vec::new(), buffer_type: None, rank_groups: Vec::new() },
        );
        let all = &mut self.gpu.channels[all].connected_to;
        let of_block = &mut self.gpu.threadblocks[self.block].channels;
        let new = || ChannelRefs { channel_type: ty, channel_ids: Vec::new() };
        let refs = entry(of_block, |refs| refs.channel_type == ty, new);
        let ids = &mut of_block[refs].channel_ids;
        ids.iter().position(|&id| all[id] == peer).unwrap_or_else(|| {
            all.push(peer);
            ids.push(all.len() - 1);
            ids.len() - 1
        })
    }

    /// Chunks of a peer's buffer.
    fn remote(&mut self, ty: ChannelType, peer: usize, at: At) -> Chunks {
        self.channel(ty, peer);
        let buffers = &mut self.gpu.remote_buffers;
        let known = |buffer: &RemoteBuffer| (buffer.rank, buffer.buffer) == (peer, at.buffer);
        let new = || RemoteBuffer { rank: peer, buffer: at.buffer, access_channel_types: vec![ty] };
        let id = entry(buffers, known, new);
        let of_block = &mut self.gpu.threadblocks[self.block].remote_buffer_refs;
        let new = || BufferRefs { access_channel_type: ty, remote_buffer_ids: Vec::new() };
        let refs = entry(of_block, |refs| refs.access_channel_type == ty, new);
        let ids = &mut of_block[refs].remote_buffer_ids;
        let buffer_id = Some(entry(ids, |&known| known == id, || id));
        Chunks { buffer_id, index: at.index as u64, size: 1, ..Chunks::default() }
    }

    fn sync(&mut self, name: &str, ty: ChannelType, peers: &[usize]) {
        if peers.is_empty() {
            return;
        }
        let channel_ids = peers.iter().map(|&peer| self.channel(ty, peer)).collect();
        self.ops().push(Op { name: name.into(), channel_ids, channel_type: Some(ty), ..Op::default() });
    }

    fn signal(&mut self, ty: ChannelType, peers: &[usize]) {
        self.sync("signal", ty, peers);
    }

    fn wait(&mut self, ty: ChannelType, peers: &[usize]) {
        self.sync("wait", ty, peers);
    }

    /// A barrier with all other ranks.
    fn barrier(&mut self, shape: &Shape, rank: usize) {
        for sync in [Self::signal, Self::wait] {
            BOTH.iter().for_each(|&ty| sync(self, ty, &shape.peers(rank, ty)));
        }
    }

    /// A step of this block on a semaphore of its rank: `sem_acquire` or `sem_release`.
    fn semaphore(&mut self, name: &str, id: usize) {
        self.ops().push(Op { semaphore_ids: vec![id], ..named(name) });
    }

    fn copy(&mut self, from: At, to: At) {
        let op = Op { src_buff: vec![from.local()], dst_buff: vec![to.local()], ..named("copy") };
        self.ops().push(op);
    }

    /// Puts each `(from, peer, to)`, through memory channels.
    fn put(&mut self, puts: &[(At, usize, At)]) {
        if puts.is_empty() {
            return;
        }
        let ty = ChannelType::Memory;
        let src_buff = puts.iter().map(|(from, ..)| from.local()).collect();
        let dst_buff = puts.iter().map(|&(_, peer, to)| self.remote(ty, peer, to)).collect();
        self.ops().push(Op { src_buff, dst_buff, channel_type: Some(ty), ..named("put") });
    }

    /// Puts each `(from, peer, to)`, through channels of one type, and signals when the data has arrived.
    fn put_and_signal(&mut self, ty: ChannelType, puts: &[(At, usize, At)]) {
        if puts.is_empty() {
            return;
        }
        if ty == ChannelType::Memory {
            self.put(puts);
            let peers: Vec<usize> = puts.iter().map(|&(_, peer, _)| peer).collect();
            return self.signal(ty, &peers);
        }
        let src_buff = puts.iter().map(|(from, ..)| from.local()).collect();
        let dst_buff = puts.iter().map(|&(_, peer, to)| self.remote(ty, peer, to)).collect();
        let channel_ids = puts.iter().map(|&(_, peer, _)| self.channel(ty, peer)).collect();
        self.ops().push(Op { src_buff, dst_buff, channel_ids, channel_type: Some(ty), ..named("pws") });
    }

    /// Reduces this rank's chunks and peers' into one of this rank, and stores the result at peers, too.
    fn read_reduce(&mut self, own: At, peers: &[(usize, At)], to: At, sends: &[(usize, At)]) {
        let name = if sends.is_empty() { "rre" } else { "rres" };
        self.reduction(name, own.local(), peers, to, sends);
    }

    /// Reduces chunks of this rank.
    fn reduce(&mut self, sources: &[At], to: At) {
        let src_buff = sources.iter().map(|source| source.local()).collect();
        let op = Op { src_buff, dst_buff: vec![to.local()], reduce_op: ANY, ..named("re") };
        self.ops().push(op);
    }

    fn reduction(&mut self, name: &str, own: Chunks, peers: &[(usize, At)], to: At, sends: &[(usize, At)]) {
        let ty = ChannelType::Memory;
        let mut remote = |list: &[(usize, At)]| -> Vec<Chunks> {
            list.iter().map(|&(peer, at)| self.remote(ty, peer, at)).collect()
        };
        let src_buff = [vec![own], remote(peers)].concat();
        let dst_buff = [vec![to.local()], remote(sends)].concat();
        let op = Op { src_buff, dst_buff, channel_type: Some(ty), reduce_op: ANY, ..named(name) };
        self.ops().push(op);
    }

    /// Sends chunks to peers' scratch chunks as packets.
    fn put_packets(&mut self, puts: &[(At, usize, At)]) {
        let ty = ChannelType::Memory;
        let src_buff = puts.iter().map(|(from, ..)| from.local()).collect();
        let dst_buff = puts.iter().map(|&(_, peer, to)| self.remote(ty, peer, to)).collect();
        self.ops().push(Op { src_buff, dst_buff, channel_type: Some(ty), ..named("ppkt") });
    }

    /// Reduces a chunk and packets in scratch chunks, and sends the result as packets to peers' scratch chunks.
    fn reduce_packets(&mut self, own: At, packets: &[At], to: At, sends: &[(usize, At)]) {
        let ty = ChannelType::Memory;
        let mut dst_buff = vec![to.local()];
        dst_buff.extend(sends.iter().map(|&(peer, at)| self.remote(ty, peer, at)));
        let src_buff = [own].iter().chain(packets).map(|at| at.local()).collect();
        let name = if sends.is_empty() { "repkt" } else { "respkt" };
        let channel_type = (!sends.is_empty()).then_some(ty);
        self.ops().push(Op { src_buff, dst_buff, channel_type, reduce_op: ANY, ..named(name) });
    }

    fn unpack(&mut self, from: At, to: At) {
        let op = Op { src_buff: vec![from.local()], dst_buff: vec![to.local()], ..named("upkt") };
        self.ops().push(op);
    }
}

/// The reduction of the call.
const ANY: Option<ReduceOp> = None;

fn named(name: &str) -> Op {
    Op { name: name.into(), ..Op::default() }
}

/// The index of an entry, which is added if it is missing.
fn entry<T>(list: &mut Vec<T>, is_it: impl FnMut(&T) -> bool, new: impl FnOnce() -> T) -> usize {
    list.iter().position(is_it).unwrap_or_else(|| {
        list.push(new());
        list.len() - 1
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic)]
mod tests {
    use super::*;
    use crate::plan::{Check, Plan};

    /// All plans for a shape, proved by loading.
    fn all(shape: &Shape) -> Vec<Document> {
        let mut plans = vec![
            all_reduce::one_round(shape),
            all_reduce::by_puts(shape),
            moves::all_gather(shape),
            moves::reduce_scatter(shape),
            moves::all_to_all(shape),
            moves::all_to_all_in_place(shape),
            moves::broadcast(shape, 0),
            moves::broadcast(shape, shape.pes() - 1),
            moves::reduce(shape, 0),
            moves::reduce(shape, shape.pes() - 1),
        ];
        if shape.hosts.iter().all(|&host| host == shape.hosts[0]) {
            plans.extend([all_reduce::one_shot(shape), all_reduce::two_phase(shape), all_reduce::direct(shape)]);
        }
        plans.extend(all_reduce::hierarchical(shape));
        plans
    }

    #[test]
    fn every_plan_is_proved_for_every_shape() {
        let shapes: [&[u32]; 8] =
            [&[0], &[0, 0], &[0, 0, 0], &[0, 1], &[0, 0, 1, 1], &[0, 1, 0, 1], &[0, 0, 1], &[0, 1, 2, 0, 1, 2, 0, 1]];
        for hosts in shapes {
            for blocks in [1, 3] {
                let shape = Shape { hosts: hosts.to_vec(), blocks };
                // All but the all-to-alls work both ways.
                let in_place = |plan: &Document| Document {
                    inplace: plan.inplace || plan.collective != "alltoall",
                    ..plan.clone()
                };
                let plans = all(&shape);
                for document in plans.iter().cloned().chain(plans.iter().map(in_place)) {
                    let plan = Plan::new(&document, Check::Result);
                    let plan = plan.unwrap_or_else(|error| panic!("{shape:?}: {error}"));
                    let barriers = plan.barriers;
                    assert!(!barriers.before && !barriers.after, "{} of {shape:?}: {barriers:?}", document.name);
                }
            }
        }
    }

    /// Two ranks on two hosts put from `source` to the other one's scratch chunk, or only the first one does.
    fn puts_between_two(source: fn(usize) -> At, both: bool) -> Document {
        let shape = Shape { hosts: vec![0, 1], blocks: 1 };
        let mut plan = Builder::new("puts", "broadcast", &shape, Protocol::Simple, [1, 1, 2]);
        plan.document.use_double_scratch_buffer = true;
        for rank in 0..2 {
            let (peer, mut ops) = (1 - rank, plan.block(rank, 0));
            ops.copy(input(0), scratch(0));
            if rank == 0 || both {
                ops.put_and_signal(ChannelType::Port, &[(source(0), peer, scratch(1))]);
            }
            if rank == 1 || both {
                ops.wait(ChannelType::Port, &[peer]);
            }
            ops.copy(if rank == 0 { input(0) } else { scratch(1) }, output(0));
        }
        plan.document
    }

    #[test]
    fn two_halves_replace_a_wait_only_among_ranks_that_hear_of_one_another() {
        let one_round = all_reduce::one_round(&Shape { hosts: vec![0, 1], blocks: 2 });
        let one_half = Document { use_double_scratch_buffer: false, ..one_round.clone() };
        let cases = [
            ("one round", one_round, (false, true)),
            ("one half of scratch chunks", one_half, (true, false)),
            ("both put", puts_between_two(scratch, true), (false, true)),
            ("the first never hears of the second", puts_between_two(scratch, false), (true, false)),
            ("inputs must have left when the call ends", puts_between_two(input, true), (false, false)),
        ];
        for (what, document, expected) in cases {
            let barriers = Plan::new(&document, Check::Result).unwrap().barriers;
            assert_eq!((barriers.before, barriers.leaves_puts), expected, "{what}");
        }
    }

    /// The plans for GPUs.
    #[test]
    fn plans_of_many_blocks_are_proved_in_time() {
        for document in all(&Shape::one_host(8, 32)) {
            Plan::new(&document, Check::Result).unwrap_or_else(|error| panic!("{error}"));
        }
    }

    #[test]
    fn plans_survive_json() {
        let document = all_reduce::two_phase(&Shape::one_host(4, 2));
        let text = serde_json::to_string(&document).unwrap();
        assert_eq!(serde_json::from_str::<Document>(&text).unwrap(), document);
    }
}
