//! Resolves a plan's file: names become checked indexes.

use std::collections::HashMap;

use super::schema::{BufferRefs, ChannelRefs, ChannelType, Chunks, Document, Gpu, Op, ThreadBlock};
use super::{Action, BufferType, Collective, Link, Plan, Protocol, Rank, Span, Step};
use crate::error::{Error, Place, Result};

/// More blocks than any GPU runs at once.
const MAX_BLOCKS: usize = 1024;
/// More chunks than any plan has, so that sums of them do not overflow.
const MAX_CHUNKS: u64 = 1 << 20;

/// The index of each signal's word at each rank: by the type and number of its sender's channel.
type Words = Vec<HashMap<(ChannelType, usize, usize), usize>>;

pub(super) fn resolve(document: &Document) -> Result<Plan> {
    let refuse = |place: Place, reason: String| Error::Plan { plan: document.name.clone(), place, reason };
    let n = document.gpus.len();
    let of_rank = |rank: usize| Place { rank: Some(rank), ..Place::default() };
    if n == 0 {
        return Err(refuse(Place::default(), "it has no ranks".into()));
    }
    if document.buffer_alignment == 0 || document.buffer_alignment > 1 << 20 {
        return Err(refuse(
            Place::default(),
            format!("buffer_alignment {}: use 1 to 1 MiB", document.buffer_alignment),
        ));
    }
    if document.min_message_size > document.max_message_size {
        return Err(refuse(Place::default(), "min_message_size is above max_message_size".into()));
    }
    for (rank, gpu) in document.gpus.iter().enumerate() {
        check_gpu(gpu, rank, n).map_err(|reason| refuse(of_rank(rank), reason))?;
    }
    let collective = Collective::of(&document.collective);
    check_chunks(&collective, &document.gpus).map_err(|(rank, reason)| refuse(of_rank(rank), reason))?;
    let (words, inbound) = signal_words(&document.gpus);
    let mut ranks = Vec::with_capacity(n);
    for (rank, gpu) in document.gpus.iter().enumerate() {
        let mut blocks = Vec::with_capacity(gpu.threadblocks.len());
        for block in &gpu.threadblocks {
            let scope = Scope { document, words: &words, rank, gpu, block };
            blocks.push(scope.steps(&block.ops)?);
        }
        let barriers = barriers(&blocks).map_err(|(place, reason)| refuse(place, reason))?;
        // Blocks meet the other ranks before and after a call, which a rank without steps does, too.
        if blocks.is_empty() {
            blocks.push(Vec::new());
        }
        ranks.push(Rank {
            input_chunks: gpu.input_chunks,
            output_chunks: gpu.output_chunks,
            scratch_chunks: gpu.scratch_chunks,
            blocks,
            semaphores: gpu.semaphores.iter().map(|semaphore| semaphore.init_value).collect(),
            barriers,
            inbound: inbound[rank].clone(),
        });
    }
    Ok(Plan {
        name: document.name.clone(),
        collective,
        in_place: document.inplace,
        packet_halves: match document.protocol {
            Protocol::Simple => 0,
            Protocol::LL => 1 + u64::from(document.use_double_scratch_buffer),
        },
        scratch_halves: match document.protocol {
            Protocol::Simple => 1 + u64::from(document.use_double_scratch_buffer),
            Protocol::LL => 1,
        },
        alignment: document.buffer_alignment,
        sizes: document.min_message_size..=document.max_message_size,
        threads: document.num_threads_per_block.clamp(32, 1024),
        ranks,
        barriers: Default::default(),
        root: None,
        groups: groups(&document.gpus),
    })
}

/// Checks of a rank alone.
fn check_gpu(gpu: &Gpu, rank: usize, n: usize) -> Result<(), String> {
    if gpu.id != rank {
        return Err(format!("it has id {}: ranks are listed in their order", gpu.id));
    }
    if gpu.threadblocks.len() > MAX_BLOCKS {
        return Err(format!("{} blocks: at most {MAX_BLOCKS} can run at once", gpu.threadblocks.len()));
    }
    for chunks in [gpu.input_chunks, gpu.output_chunks, gpu.scratch_chunks] {
        if chunks > MAX_CHUNKS {
            return Err(format!("{chunks} chunks of a buffer: at most {MAX_CHUNKS}"));
        }
    }
    for (index, block) in gpu.threadblocks.iter().enumerate() {
        if block.id != index {
            return Err(format!("block {index} has id {}: blocks are listed in their order", block.id));
        }
    }
    for channels in &gpu.channels {
        if let Some(peer) = channels.connected_to.iter().find(|&&peer| peer >= n) {
            return Err(format!("a channel is connected to rank {peer} of {n}"));
        }
    }
    match gpu.remote_buffers.iter().find(|buffer| buffer.rank >= n) {
        Some(buffer) => Err(format!("a remote buffer is that of rank {} of {n}", buffer.rank)),
        None => Ok(()),
    }
}

/// Checks that the ranks' numbers of chunks suit the collective.
fn check_chunks(collective: &Collective, gpus: &[Gpu]) -> Result<(), (usize, String)> {
    let n = gpus.len() as u64;
    for (rank, gpu) in gpus.iter().enumerate() {
        let (input, output) = (gpu.input_chunks, gpu.output_chunks);
        let fits = match collective {
            Collective::AllGather => input > 0 && output == n * input,
            Collective::ReduceScatter => output > 0 && input == n * output,
            Collective::AllToAll => input > 0 && input == output && input.is_multiple_of(n),
            Collective::AllReduce | Collective::Broadcast | Collective::Reduce => input > 0 && input == output,
            Collective::Other(_) => true,
        };
        if !fits {
            return Err((rank, format!("{input} chunks of input and {output} of output do not suit {collective}")));
        }
        if (input, output) != (gpus[0].input_chunks, gpus[0].output_chunks) {
            return Err((rank, "it has other numbers of chunks than rank 0".into()));
        }
    }
    Ok(())
}

/// The ranks at the other ends of a rank's channels of a type, in the order of their indexes.
fn peers(gpu: &Gpu, ty: ChannelType) -> impl Iterator<Item = usize> {
    let of_type = gpu.channels.iter().filter(move |channels| channels.channel_type == ty);
    of_type.flat_map(|channels| channels.connected_to.iter().copied())
}

/// Gives each channel between two ranks a word at either end. The `k`th channel of a rank to a peer connects to the
/// peer's `k`th channel to that rank.
fn signal_words(gpus: &[Gpu]) -> (Words, Vec<Vec<usize>>) {
    let mut words: Words = vec![HashMap::new(); gpus.len()];
    let mut inbound = vec![Vec::new(); gpus.len()];
    for ty in [ChannelType::Memory, ChannelType::Port] {
        for (rank, gpu) in gpus.iter().enumerate() {
            let mut counts = HashMap::new();
            for peer in peers(gpu, ty) {
                let k = counts.entry(peer).or_insert(0);
                for (at, from) in [(peer, rank), (rank, peer)] {
                    words[at].entry((ty, from, *k)).or_insert_with(|| {
                        inbound[at].push(from);
                        inbound[at].len() - 1
                    });
                }
                *k += 1;
            }
        }
    }
    (words, inbound)
}

/// For each rank, the lowest one that memory channels connect it with.
fn groups(gpus: &[Gpu]) -> Vec<usize> {
    let mut groups: Vec<usize> = (0..gpus.len()).collect();
    for (rank, gpu) in gpus.iter().enumerate() {
        for peer in peers(gpu, ChannelType::Memory) {
            let (a, b) = (groups[rank], groups[peer]);
            groups.iter_mut().filter(|group| **group == a.max(b)).for_each(|group| *group = a.min(b));
        }
    }
    groups
}

/// The number of a rank's barriers; each is always used by the same number of blocks.
fn barriers(blocks: &[Vec<Step>]) -> Result<usize, (Place, String)> {
    let mut sizes: HashMap<usize, usize> = HashMap::new();
    let mut waiting: Vec<&Step> = blocks.iter().flatten().collect();
    while let Some(step) = waiting.pop() {
        match &step.action {
            Action::Pipeline { steps, .. } => waiting.extend(steps),
            Action::Barrier { id, blocks: size } => {
                if *size == 0 || *size > blocks.len() || *id >= MAX_BLOCKS {
                    return Err((step.place, format!("barrier {id} is for {size} of {} blocks", blocks.len())));
                }
                if *sizes.entry(*id).or_insert(*size) != *size {
                    return Err((
                        step.place,
                        format!("barrier {id} is for {size} blocks here and for others elsewhere"),
                    ));
                }
            }
            _ => {}
        }
    }
    Ok(sizes.keys().max().map_or(0, |id| id + 1))
}

/// The entities that an operation's numbers refer to.
struct Scope<'a> {
    document: &'a Document,
    words: &'a Words,
    rank: usize,
    gpu: &'a Gpu,
    block: &'a ThreadBlock,
}

/// The words of an operation's channel.
struct Channel {
    peer: usize,
    /// The word here that the peer signals.
    here: usize,
    /// The peer's word that this rank signals.
    there: Link,
}

impl Scope<'_> {
    fn steps(&self, ops: &[Op]) -> Result<Vec<Step>> {
        ops.iter().enumerate().map(|(i, op)| self.step(op, (i, None))).collect()
    }

    fn step(&self, op: &Op, at: (usize, Option<usize>)) -> Result<Step> {
        let place = Place { rank: Some(self.rank), block: Some(self.block.id), op: Some(at) };
        let refuse = |reason: String| Error::Plan {
            plan: self.document.name.clone(),
            place,
            reason: format!("{}: {reason}", op.name),
        };
        let share = op.tbg_info.map_or((0, 1), |group| (group.tb_id, group.tbg_size));
        if share.0 >= share.1 || share.1 > MAX_BLOCKS as u64 {
            return Err(refuse(format!("block {} of a group of {}", share.0, share.1)));
        }
        let action = if op.name == "pipeline" {
            let Some(iterations) = op.iter_context else { return Err(refuse("it has no iter_context".into())) };
            if at.1.is_some() {
                return Err(refuse("it is in a pipeline itself".into()));
            }
            if iterations.unit_size == 0 || iterations.num_chunks > MAX_CHUNKS {
                return Err(refuse(format!("{} chunks by {} bytes", iterations.num_chunks, iterations.unit_size)));
            }
            let steps = op.ops.iter().enumerate().map(|(i, inner)| self.step(inner, (at.0, Some(i))));
            let steps = steps.collect::<Result<Vec<Step>>>()?;
            Action::Pipeline { unit: iterations.unit_size, chunks: iterations.num_chunks, steps }
        } else {
            self.action(op, at.1.is_some()).map_err(refuse)?
        };
        Ok(Step { place, name: op.name.clone(), share, action })
    }

    fn action(&self, op: &Op, in_pipeline: bool) -> Result<Action, String> {
        let packets = op.name.ends_with("pkt");
        if packets && in_pipeline {
            return Err("packets do not go in pipelines: what an iteration works on has no packets of its own".into());
        }
        if packets && self.document.protocol != Protocol::LL {
            return Err("packets need the protocol LL".into());
        }
        let links = || -> Result<Vec<Channel>, String> {
            let channels = self.channels(op)?;
            if channels.is_empty() { Err("it names no channels".into()) } else { Ok(channels) }
        };
        let reduce_op = op.reduce_op;
        Ok(match op.name.as_str() {
            "nop" => Action::Nop,
            "barrier" => match (op.barrier_id, op.num_threadblocks) {
                (Some(id), Some(blocks)) => Action::Barrier { id, blocks },
                _ => return Err("it needs barrier_id and num_threadblocks".into()),
            },
            "sem_acquire" => Action::Acquire(self.semaphores(op)?),
            "sem_release" => Action::Release(self.semaphores(op)?),
            "signal" | "rlxsignal" => Action::Signal {
                to: links()?.iter().map(|channel| channel.there).collect(),
                relaxed: op.name == "rlxsignal",
            },
            "wait" | "rlxwait" => Action::Wait { on: links()?.iter().map(|channel| channel.here).collect() },
            "flush" => {
                links()?;
                Action::Flush
            }
            "put" | "pws" | "pwsf" => self.put(op)?,
            "get" => {
                let pairs = self.pairs(op, Side::Remote, Side::Local)?;
                Action::Copy { pairs, by: ChannelType::Memory, then: Vec::new(), flush: false }
            }
            "copy" => {
                let pairs = self.pairs(op, Side::Local, Side::Local)?;
                Action::Copy { pairs, by: ChannelType::Memory, then: Vec::new(), flush: false }
            }
            "re" | "res" | "rre" | "rres" => {
                let others = if op.name.starts_with("rr") { Side::Remote } else { Side::Local };
                let sources = self.spans(&op.src_buff, op, |i| if i == 0 { Side::Local } else { others })?;
                let mut dests = self.spans(&op.dst_buff, op, |i| if i == 0 { Side::Local } else { Side::Remote })?;
                let sends = op.name.ends_with('s');
                expect(sources.len() >= 2, "it needs two sources or more")?;
                expect(
                    if sends { dests.len() > 1 } else { dests.len() == 1 },
                    "it has another number of destinations",
                )?;
                let dest = dests.remove(0);
                same_size(sources.iter().chain(&dests), &dest)?;
                Action::Reduce { sources, dest, sends: dests, op: reduce_op }
            }
            "ppkt" if op.channel_type == Some(ChannelType::Port) => {
                // Data that a port channel sends as packets is stored as packets in the scratch buffer already.
                let pairs = self.pairs(op, Side::Scratch, Side::RemoteScratch)?;
                expect(pairs.len() == 1 || pairs.iter().all(|p| p.0 == pairs[0].0), "one source only")?;
                self.channels_to(op, pairs.iter().map(|(_, dest)| dest))?;
                Action::Forward { source: pairs[0].0, dests: pairs.iter().map(|pair| pair.1).collect() }
            }
            "ppkt" => Action::Pack { pairs: self.pairs(op, Side::Local, Side::RemoteScratch)? },
            "cpkt" => Action::Pack { pairs: self.pairs(op, Side::Local, Side::Scratch)? },
            "rppkt" => {
                self.channels(op)?;
                let [source] = self.spans(&op.src_buff, op, |_| Side::Scratch)?[..] else {
                    return Err("it has one source".into());
                };
                let dests = self.spans(&op.dst_buff, op, |_| Side::RemoteScratch)?;
                expect(!dests.is_empty(), "it has no destination")?;
                same_size(&dests, &source)?;
                self.channels_to(op, &dests)?;
                Action::Forward { source, dests }
            }
            "upkt" => {
                let [(source, dest)] = self.pairs(op, Side::Scratch, Side::Local)?[..] else {
                    return Err("it has one source and one destination".into());
                };
                Action::Unpack { source, dest }
            }
            "repkt" | "respkt" | "recpkt" | "recspkt" => self.reduce_packets(op)?,
            "glre" | "glres" | "gstore" | "gstorepkt" => {
                return Err("it needs switch channels (multicast), which there are none of".into());
            }
            _ => return Err("there is no such operation".into()),
        })
    }

    fn put(&self, op: &Op) -> Result<Action, String> {
        let Some(by @ (ChannelType::Memory | ChannelType::Port)) = op.channel_type else {
            return Err("it needs a memory or a port channel".into());
        };
        let pairs = self.pairs(op, Side::Local, Side::Remote)?;
        let channels = self.channels_to(op, pairs.iter().map(|(_, dest)| dest))?;
        if op.name != "put" {
            expect(by == ChannelType::Port, "only port channels put with a signal")?;
            expect(channels.len() == pairs.len(), "it needs a channel for each destination")?;
        }
        let then = if op.name == "put" { Vec::new() } else { channels.iter().map(|channel| channel.there).collect() };
        Ok(Action::Copy { pairs, by, then, flush: op.name == "pwsf" })
    }

    fn reduce_packets(&self, op: &Op) -> Result<Action, String> {
        let copies = op.name.starts_with("rec");
        let mut sources = self.spans(&op.src_buff, op, |i| if i == 0 { Side::Local } else { Side::Scratch })?;
        let mut dests = self.spans(&op.dst_buff, op, |i| match i {
            0 => Side::Local,
            1 if copies => Side::Scratch,
            _ => Side::RemoteScratch,
        })?;
        expect(sources.len() >= 2, "it needs data and packets to reduce")?;
        let own = if copies { 2 } else { 1 };
        let sends = matches!(op.name.as_str(), "respkt" | "recspkt");
        expect(if sends { dests.len() > own } else { dests.len() == own }, "it has another number of destinations")?;
        let (plain, dest) = (sources.remove(0), dests.remove(0));
        same_size(sources.iter().chain(&dests).chain([&plain]), &dest)?;
        Ok(Action::ReducePackets { plain, packets: sources, dest, sends: dests, op: op.reduce_op })
    }

    fn semaphores(&self, op: &Op) -> Result<Vec<usize>, String> {
        expect(!op.semaphore_ids.is_empty(), "it names no semaphores")?;
        match op.semaphore_ids.iter().find(|&&id| id >= self.gpu.semaphores.len()) {
            Some(id) => Err(format!("semaphore {id} of {}", self.gpu.semaphores.len())),
            None => Ok(op.semaphore_ids.clone()),
        }
    }

    /// The channels to these destinations. Without a signal they add no information to the buffers.
    fn channels_to<'a>(&self, op: &Op, dests: impl IntoIterator<Item = &'a Span>) -> Result<Vec<Channel>, String> {
        let channels = self.channels(op)?;
        for (channel, dest) in channels.iter().zip(dests) {
            expect(channel.peer == dest.rank, "a destination is not at the other end of its channel")?;
        }
        Ok(channels)
    }

    fn channels(&self, op: &Op) -> Result<Vec<Channel>, String> {
        let ty = match op.channel_type {
            _ if op.channel_ids.is_empty() => return Ok(Vec::new()),
            Some(ty @ (ChannelType::Memory | ChannelType::Port)) => ty,
            Some(ty) => return Err(format!("its channel_type is {ty}, and channels are of memory or port")),
            None => return Err("it has channel_ids, and no channel_type".into()),
        };
        let of_block = self.block.channels.iter().filter(|refs| refs.channel_type == ty);
        let of_block: Vec<usize> = of_block.flat_map(|ChannelRefs { channel_ids, .. }| channel_ids).copied().collect();
        let peers: Vec<usize> = peers(self.gpu, ty).collect();
        let channel = |&id: &usize| {
            let index = *of_block.get(id).ok_or(format!("channel {id} of the block's {}", of_block.len()))?;
            let peer = *peers.get(index).ok_or(format!("channel {index} of the rank's {}", peers.len()))?;
            let k = peers[..index].iter().filter(|&&other| other == peer).count();
            let there = Link { rank: peer, word: self.words[peer][&(ty, self.rank, k)] };
            Ok(Channel { peer, here: self.words[self.rank][&(ty, peer, k)], there })
        };
        op.channel_ids.iter().map(channel).collect()
    }

    /// Pairs of sources and destinations, each of the same size.
    fn pairs(&self, op: &Op, source: Side, dest: Side) -> Result<Vec<(Span, Span)>, String> {
        let sources = self.spans(&op.src_buff, op, |_| source)?;
        let dests = self.spans(&op.dst_buff, op, |_| dest)?;
        expect(!sources.is_empty() && sources.len() == dests.len(), "it needs a destination for each source")?;
        let pairs: Vec<_> = sources.into_iter().zip(dests).collect();
        pairs.iter().try_for_each(|(source, dest)| same_size([dest], source))?;
        Ok(pairs)
    }

    fn spans(&self, chunks: &[Chunks], op: &Op, side: impl Fn(usize) -> Side) -> Result<Vec<Span>, String> {
        chunks.iter().enumerate().map(|(i, chunks)| self.span(chunks, op, side(i))).collect()
    }

    fn span(&self, chunks: &Chunks, op: &Op, side: Side) -> Result<Span, String> {
        let (rank, buffer) = match (chunks.buffer, chunks.buffer_id, side) {
            (Some(buffer), None, Side::Local | Side::Scratch) => (self.rank, buffer),
            (None, Some(id), Side::Remote | Side::RemoteScratch) => self.remote_buffer(id, op)?,
            _ => return Err(format!("{side} is expected, and the buffer is another one")),
        };
        if matches!(side, Side::Scratch | Side::RemoteScratch) && buffer != BufferType::Scratch {
            return Err("packets lie in scratch buffers only".into());
        }
        let gpu = &self.document.gpus[rank];
        let there = match buffer {
            BufferType::Input => gpu.input_chunks,
            BufferType::Output => gpu.output_chunks,
            BufferType::Scratch => gpu.scratch_chunks,
        };
        let (index, size) = (chunks.index, chunks.size);
        if size == 0 || index.checked_add(size).is_none_or(|end| end > there) {
            return Err(format!("chunks {index}..{index}+{size} of the {buffer} of rank {rank}, which has {there}"));
        }
        Ok(Span { rank, buffer, index, size })
    }

    fn remote_buffer(&self, id: usize, op: &Op) -> Result<(usize, BufferType), String> {
        let Some(ty) = op.channel_type else { return Err("it has no channel_type".into()) };
        let of_block = self.block.remote_buffer_refs.iter().filter(|refs| refs.access_channel_type == ty);
        let of_block: Vec<usize> =
            of_block.flat_map(|BufferRefs { remote_buffer_ids, .. }| remote_buffer_ids).copied().collect();
        let index = *of_block.get(id).ok_or(format!("remote buffer {id} of the block's {}", of_block.len()))?;
        let buffers = &self.gpu.remote_buffers;
        let buffer = buffers.get(index).ok_or(format!("remote buffer {index} of the rank's {}", buffers.len()))?;
        expect(buffer.access_channel_types.contains(&ty), "a remote buffer is not for channels of this type")?;
        let connected = peers(self.gpu, ty).any(|peer| peer == buffer.rank);
        expect(connected, "a remote buffer is that of a rank to which no channel goes")?;
        Ok((buffer.rank, buffer.buffer))
    }
}

/// The buffers that an operation may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, strum::Display)]
enum Side {
    #[strum(serialize = "a buffer of this rank")]
    Local,
    #[strum(serialize = "this rank's scratch buffer")]
    Scratch,
    #[strum(serialize = "a buffer of another rank")]
    Remote,
    #[strum(serialize = "another rank's scratch buffer")]
    RemoteScratch,
}

fn expect(holds: bool, otherwise: &str) -> Result<(), String> {
    if holds { Ok(()) } else { Err(otherwise.into()) }
}

fn same_size<'a>(spans: impl IntoIterator<Item = &'a Span>, as_this: &Span) -> Result<(), String> {
    match spans.into_iter().find(|span| span.size != as_this.size) {
        Some(span) => Err(format!("{} chunks and {} chunks", span.size, as_this.size)),
        None => Ok(()),
    }
}
