//! High throughput by kernels. See `cu/high_throughput.cu`.
//!
//! A rank copies its tokens to its own symmetric memory. Each rank of its host that owns some of their experts reads them
//! there, and stores them in its caller's memory, ordered by source and within a source by token. A token crosses once to
//! each other host, to the rank there that the host's [`HighThroughput`](crate::HighThroughput) chooses. That rank stores
//! it at the ranks of its host. In a job of one host a combine's rows are stored at the tokens' ranks, which add those
//! that have arrived meanwhile. In a job of several hosts they are copied to symmetric memory, and the ranks of the host
//! read them there while they add; each host adds its own rows first, and one sum for each token crosses. Chunks go to
//! ranks whose memory the GPU does not reach by requests to the proxy. Sums have the same bits as the host's.
//!
//! The calls of one object come one after the other, whatever their streams. Captured calls do not wait for earlier
//! ones, nor do replays; the caller orders them.
//!
//! The GPU records errors in host memory. Every later call returns them.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use symrail::Runtime;
use symrail::gpu::GpuDevice;
use symrail::kernels::cuda::compile::Nvrtc;
use symrail::kernels::cuda::{DeviceBuffer, DevicePtr, Failures, Kernel, Shape, Stream, in_turn};
use symrail::rounds::Poison;
use symrail_core::DataType;
use symrail_core::layout::bytes;
use symrail_core::wait::{Backoff, Pause};

use super::calls::{Call, Calls};
use super::hosts::DeviceHosts;
use super::layout::high_throughput::{Parameters, Progress};
use super::lent::Used;
use super::record::{Counts, Meaning, Record, Told};
use super::routes::{DeviceRoutes, Room, Routes};
use super::shape::{HighThroughputShape, Parts};
use super::{PROGRAMS, all_or_free, failed, load_apart, with_bytes, zeroed};
use crate::element::{must_be_summed, types};
use crate::error::{Error, Result};
use crate::exchange::WaitLimit;

/// The usual number of blocks of a kernel that copies or adds. Each block occupies a multiprocessor.
pub const USUAL_BLOCKS: u32 = 24;
/// The most ranks whose rows are added in the order of slots.
pub const MOST_BY_SLOTS: usize = 32;
/// The rounds of polling for counts before the thread sleeps between them: a fraction of a millisecond.
const SPINS: u32 = 20_000;

/// A rank's tokens for a dispatch, as GPU addresses.
#[derive(Debug, Clone, Copy)]
pub struct DeviceTokens {
    /// A row for each token.
    pub rows: u64,
    /// Bytes of a row: a multiple of 16.
    pub bytes: usize,
    /// Scales of each row, 32 bits each, and their number; both are 0 if there are none.
    pub scales: (u64, usize),
    /// 64-bit indices of the experts, and 32-bit weights, if they are to be sent.
    pub topk: Option<(u64, u64)>,
    /// The types of the elements of rows and scales, which ranks compare; `None`: any.
    pub elements: [Option<DataType>; 2],
    /// The rows that the memory for received ones holds; `None`: as many as the buffers.
    pub room: Option<usize>,
}

/// The destinations of received rows, as GPU addresses. Each has memory for all rows that arrive.
#[derive(Debug, Clone, Copy, Default)]
pub struct DeviceTokensReceived {
    /// The rows.
    pub rows: u64,
    /// Their scales; unused if there are none.
    pub scales: u64,
    /// 64-bit indices among this rank's experts, -1 for experts of other ranks, and weights; unused if there are none.
    pub topk: (u64, u64),
    /// The index of each row at its source, 32 bits.
    pub sources: u64,
}

/// The input of a combine, and where the sums go, as GPU addresses.
#[derive(Debug, Clone, Copy)]
pub struct DeviceParts {
    /// A row for each received token. Nothing is copied if they are [in place](DeviceHighThroughput::rows_to_combine).
    pub rows: u64,
    /// The number of rows there; `None`: as many as have arrived.
    pub count: Option<usize>,
    /// Bytes of a row: a multiple of 16.
    pub bytes: usize,
    /// The type of their elements.
    pub element: DataType,
    /// Weights of each received token, as many as it has slots, and where their sums go.
    pub weights: Option<(u64, u64)>,
    /// Up to two rows for each of this rank's own tokens, to be added to the sums; 0 for none.
    pub biases: [u64; 2],
    /// Where a row for each of this rank's own tokens goes.
    pub out: u64,
    /// 64-bit indices of the tokens' experts, and their number for each token: a sum begins with the biases, and the rows
    /// of ranks follow in the order of the last slots that name one of their experts. Without effect for FP32, several
    /// hosts, and more than [`MOST_BY_SLOTS`] ranks.
    pub slots: Option<(u64, usize)>,
}

/// Where a rank's tokens go, as GPU addresses.
#[derive(Debug, Clone, Copy)]
pub enum Destinations {
    /// To the ranks of their experts.
    Experts {
        /// 64-bit indices, -1 for none.
        topk: u64,
        /// Their number for each token.
        k: usize,
    },
    /// To ranks.
    Ranks {
        /// A byte for each token and rank: not 0 if the rank gets the token.
        in_rank: u64,
        /// The number of slots that name each expert, 32 bits each.
        per_expert: u64,
    },
}

/// Memory and kernels for dispatch and combine of many tokens. See the [module](self).
pub struct DeviceHighThroughput {
    shape: HighThroughputShape,
    /// The number of multiprocessors for copies and sums.
    blocks: AtomicU32,
    /// The symmetric memory, kept to be freed.
    block: usize,
    /// The address of a combine's offered rows in it; 0 in a job of one host, and if no host has several ranks.
    offered: u64,
    /// The address and bytes of rows that return directly.
    returned: (u64, u64),
    hosts: usize,
    /// Whether other hosts' tokens pass through this rank.
    forwards: bool,
    routes: Routes,
    parameters: DeviceBuffer,
    record: Record,
    /// The memory to which the parameters point: progress, which each call uses; homes and terms.
    progress: Used,
    _tables: [DeviceBuffer; 2],
    kernels: Vec<Kernel>,
    calls: Calls,
    failures: Failures,
    poison: Poison,
    device: GpuDevice,
}

/// The kernels.
#[derive(Clone, Copy)]
enum Step {
    Layout,
    Begin,
    Send,
    OfferTokens,
    Spread,
    Receive,
    Add,
    Offer,
    ReduceF32,
    ReduceBf16,
    ReduceSlots,
    ReduceHosts,
    End,
}
const KERNELS: [&str; 13] = [
    "ep_layout",
    "ep_begin",
    "ep_send",
    "ep_offer_tokens",
    "ep_spread",
    "ep_receive",
    "ep_add",
    "ep_offer",
    "ep_reduce_f32",
    "ep_reduce_bf16",
    "ep_reduce_slots",
    "ep_reduce_hosts",
    "ep_end_call",
];

impl DeviceHighThroughput {
    /// Makes memory and loads the kernels, whose copies and sums take `blocks` multiprocessors ([`USUAL_BLOCKS`]), and
    /// which wait for other ranks within `limit`. Collective.
    ///
    /// # Errors
    /// An invalid shape; shapes that differ, on every rank; an exhausted heap; errors of the compiler and the driver;
    /// [`PeerRefused`](symrail::rounds::Error::PeerRefused) if only other ranks have these.
    pub fn new(
        device: &GpuDevice,
        nvrtc: &Nvrtc,
        shape: HighThroughputShape,
        blocks: u32,
        limit: WaitLimit,
    ) -> Result<Self> {
        let (rt, what) = (device.runtime(), "high throughput on GPUs");
        let (ranks, team) = (rt.n_pes() as usize, rt.team_world()?);
        shape.check(ranks)?;
        if blocks == 0 {
            return Err(Error::argument("blocks", blocks, "at least 1"));
        }
        let HighThroughputShape { most_tokens, room, row, scales, experts, k } = shape;
        team.compare(
            what,
            &[
                ("tokens of a rank, at most", most_tokens as u64),
                ("rows that may come", room as u64),
                ("bytes of a row", row as u64),
                ("scales of a row", scales as u64),
                ("number of experts", experts as u64),
                ("top-k slots of a token", k as u64),
            ],
        )?;
        let all_mapped = team.all((0..rt.n_pes()).all(|pe| device.is_mapped(pe)))?;
        let hosts = DeviceHosts::new(device)?;
        let parts = shape.parts(ranks, &hosts, all_mapped);
        let block = rt.align(128, parts.heap.bytes())?;
        // The following steps can fail on one GPU alone. No rank may write to another one before all have cleared their
        // words.
        let made = Self::within(device, nvrtc, (shape, blocks, limit), &hosts, &parts, block);
        let free = || Ok(rt.free(block)?);
        all_or_free(rt.my_pe(), what, made, |ok| Ok(team.all(ok)?), free)
    }

    /// Clears the words of symmetric memory, and loads the kernels for it. Local.
    fn within(
        device: &GpuDevice,
        nvrtc: &Nvrtc,
        (shape, blocks, limit): (HighThroughputShape, u32, WaitLimit),
        hosts: &DeviceHosts,
        parts: &Parts,
        block: *mut u8,
    ) -> Result<Self> {
        let (rt, gpu) = (device.runtime(), device.gpu());
        let (ranks, me) = (rt.n_pes() as usize, rt.my_pe() as usize);
        let HighThroughputShape { most_tokens, room, experts, .. } = shape;
        let heap = parts.heap.from(device.address(block));
        // Words are cleared before the first call.
        for (at, bytes) in [
            (heap.header_words, parts.heap.header_words),
            (heap.words, parts.heap.words),
            (heap.gathered_words, parts.heap.gathered_words),
            (heap.near_words, parts.heap.near_words),
            (heap.returned_words, parts.heap.returned_words),
        ] {
            // SAFETY: parts of the block that was just allocated.
            unsafe { gpu.fill(DevicePtr::new(at), 0, bytes as usize) }.map_err(failed)?;
        }
        let record = Record::new(gpu, rt.my_pe(), rt.n_pes(), experts / ranks, limit)?;
        let terms = hosts.terms(me);
        let progress = Used::new(gpu, zeroed(gpu, size_of::<Progress>())?)?;
        let tables = [with_bytes(gpu, &bytes(&hosts.homes(ranks)))?, with_bytes(gpu, &bytes(&terms))?];
        let members = hosts.most_members();
        let [homes, of_terms] = tables.each_ref().map(|table| table.at().get());
        let parameters = Parameters {
            ranks: ranks as u64,
            me: me as u64,
            share: (experts / ranks) as u64,
            most: most_tokens as u64,
            room: room as u64,
            hosts: hosts.count() as u64,
            members: members as u64,
            staged: parts.staged as u64,
            heap,
            side: parts.side as u64,
            progress: progress.buffer.at().get(),
            record: record.at(),
            homes,
            terms: of_terms,
            n_terms: terms.len() as u64,
        };
        let parameters = with_bytes(gpu, &bytes(&[parameters]))?;
        let (module, failures) = load_apart(device, nvrtc, &PROGRAMS[0], limit)?;
        let kernels = KERNELS.iter().map(|name| module.kernel(name).map_err(failed)).collect::<Result<Vec<_>>>()?;
        let of_routes = Room { ranks, me, hosts: hosts.count(), most_tokens, experts, passed: parts.passed, members };
        Ok(Self {
            device: device.clone(),
            shape,
            blocks: blocks.into(),
            block: block.expose_provenance(),
            offered: if parts.heap.offered_rows > 0 { heap.offered_rows } else { 0 },
            returned: (heap.back_rows, parts.heap.back_rows),
            hosts: hosts.count(),
            forwards: hosts.passed(me) > 0,
            routes: Routes::new(of_routes),
            parameters,
            record,
            progress,
            _tables: tables,
            kernels,
            calls: Calls::default(),
            failures,
            poison: Poison::default(),
        })
    }

    /// Frees the memory when the GPU has ended all calls. Collective.
    ///
    /// # Errors
    /// A peer that does not respond.
    pub fn free(self) -> Result<()> {
        Ok(self.runtime().free(std::ptr::with_exposed_provenance_mut(self.block))?)
    }

    fn runtime(&self) -> &Runtime {
        self.device.runtime()
    }

    fn ranks(&self) -> usize {
        self.runtime().n_pes() as usize
    }

    /// The shape of the buffers.
    #[must_use]
    pub fn shape(&self) -> &HighThroughputShape {
        &self.shape
    }

    /// Sets the number of multiprocessors for copies and sums of later calls.
    ///
    /// # Errors
    /// 0 blocks.
    pub fn set_blocks(&self, blocks: u32) -> Result<()> {
        if blocks == 0 {
            return Err(Error::argument("blocks", blocks, "at least 1"));
        }
        self.blocks.store(blocks, Ordering::Relaxed);
        Ok(())
    }

    fn copying(&self) -> Shape {
        Shape { blocks: self.blocks.load(Ordering::Relaxed), threads: 512 }
    }

    /// The address of memory for a combine's rows, as many as may arrive. The ranks of this host read a combine's rows
    /// there. So a combine need not copy rows that a caller has written there. There is one such memory, whatever the
    /// number of routes. `None` in a job of one host, which copies none, and if no host has several ranks.
    ///
    /// # Errors
    /// [`Error::Order`] unless the last call was a dispatch: other ranks may read the rows of an earlier combine.
    pub fn rows_to_combine(&self) -> Result<Option<u64>> {
        self.calls.must_have_dispatched()?;
        Ok((self.offered != 0).then_some(self.offered))
    }

    /// The address, and bytes, of the rows that return here directly: 0 bytes in some jobs of several hosts. Other ranks
    /// write only rows there, and only when this rank has announced a combine. So from the end of a combine to the next one
    /// the caller may use it.
    #[must_use]
    pub fn returned_rows(&self) -> (u64, u64) {
        self.returned
    }

    /// Memory for the routes of a dispatch that is launched on a stream. It reuses the memory of earlier routes that
    /// were dropped, ordered behind their last use, if there is some. The stream may be capturing. Local.
    ///
    /// # Errors
    /// An error of the driver.
    pub fn routes(&self, stream: &Stream) -> Result<DeviceRoutes> {
        self.routes.lend(self.device.gpu(), stream)
    }

    /// Refuses routes of another shape: kernels access routes according to this object's shape.
    fn must_have_room(&self, routes: &DeviceRoutes) -> Result<()> {
        if routes.room == self.routes.room {
            return Ok(());
        }
        Err(Error::argument("routes", format!("{:?}", routes.room), format!("{:?}", self.routes.room)))
    }

    /// Refuses a combine's rows that begin within the memory to which they would be copied, and rows in place that an
    /// earlier combine may have overwritten.
    fn must_be_in_place_or_apart(&self, rows: u64) -> Result<()> {
        let end = self.offered + (self.shape.room * self.shape.row) as u64;
        if self.offered == 0 || rows < self.offered || rows >= end {
            return Ok(());
        }
        if rows == self.offered {
            return self.calls.must_have_dispatched();
        }
        let found = format!("{} bytes behind the first", rows - self.offered);
        Err(Error::argument("rows in the memory for rows to combine", found, "all, from the first on"))
    }

    /// # Safety
    /// The kernel receives the parameters' address and these arguments. All memory that they point to stays valid.
    unsafe fn launch(&self, stream: &Stream, step: Step, shape: Shape, arguments: &[u64]) -> Result<()> {
        self.runtime().check_joined()?;
        let words = [&[self.parameters.at().get()], arguments].concat();
        // SAFETY: the caller's promise.
        let launched = unsafe { stream.launch(&self.kernels[step as usize], shape, &words) };
        let launched = launched.map_err(failed);
        // Once a call is announced, the other ranks wait for data that a failed launch does not send.
        let is_announced = !matches!(step, Step::Layout | Step::Begin);
        if is_announced { self.poison.poison_on_err(launched) } else { launched }
    }

    /// Computes the routes of tokens from their experts (`topk`: 64-bit indices, -1 for none). Local.
    ///
    /// # Safety
    /// Addresses are GPU addresses of memory for the given number of tokens, valid until the stream has executed the
    /// launch. This object must live until then, too; routes may be dropped earlier. A captured launch has been
    /// executed when its last replay has ended.
    ///
    /// # Errors
    /// [`Error::TooManyTokens`]; routes of an object with another shape; an error of the driver.
    pub unsafe fn layout(&self, stream: &Stream, routes: &mut DeviceRoutes, topk: u64, tokens: usize) -> Result<()> {
        let given = Destinations::Experts { topk, k: self.shape.k };
        // SAFETY: the caller's promise.
        unsafe { self.layout_of(stream, routes, given, tokens) }
    }

    /// Computes the routes of tokens. Local.
    ///
    /// # Safety
    /// As for [`DeviceHighThroughput::layout`].
    ///
    /// # Errors
    /// As for [`DeviceHighThroughput::layout`]; more slots than the buffers have.
    pub unsafe fn layout_of(
        &self,
        stream: &Stream,
        routes: &mut DeviceRoutes,
        given: Destinations,
        tokens: usize,
    ) -> Result<()> {
        let (topk, k, in_rank, per_expert) = match given {
            Destinations::Experts { topk, k } => (topk, k, 0, 0),
            Destinations::Ranks { in_rank, per_expert } => (0, 0, in_rank, per_expert),
        };
        // Without indices a token may go to all ranks, and as many of its rows return.
        let of_token = if matches!(given, Destinations::Ranks { .. }) { self.ranks() } else { k };
        if of_token > self.shape.k {
            return Err(Error::argument(
                "top-k slots, or ranks, of a token",
                of_token,
                format!("at most {}", self.shape.k),
            ));
        }
        let most = self.shape.most_tokens;
        if tokens > most {
            return Err(Error::TooManyTokens { tokens, most });
        }
        self.must_have_room(routes)?;
        self.must_go_on()?;
        (routes.tokens, routes.k) = (tokens, k);
        let arguments = [routes.at(), topk, tokens as u64, k as u64, in_rank, per_expert];
        let shape = Shape { blocks: (self.ranks() + self.hosts) as u32, threads: 512 };
        // SAFETY: the caller's promise.
        routes.while_used(stream, || unsafe { self.launch(stream, Step::Layout, shape, &arguments) })
    }

    /// Ends an open call, if there is one, in the order of the stream.
    fn close(&self, stream: &Stream) -> Result<()> {
        if !self.calls.end() {
            return Ok(());
        }
        // SAFETY: the kernel accesses only this object's memory.
        unsafe { self.launch(stream, Step::End, Shape { blocks: 1, threads: 1 }, &[]) }
    }

    /// # Safety
    /// As for [`DeviceHighThroughput::layout`].
    unsafe fn begin(
        &self,
        stream: &Stream,
        routes: &DeviceRoutes,
        call: Call,
        [bytes, scales, k, types]: [u64; 4],
        room: Option<usize>,
    ) -> Result<()> {
        let first = u64::from(call.has_new_routes());
        self.close(stream)?;
        // The host does not wait for the counts of a captured call.
        let tells = call != Call::Combine && !stream.is_capturing().map_err(failed)?;
        let ticket = if tells { self.calls.next_ticket() } else { 0 };
        // SAFETY: the caller's promise.
        unsafe {
            let room = room.map_or(self.shape.room, |room| room.min(self.shape.room)) as u64;
            let tokens = routes.tokens as u64;
            let arguments = [routes.at(), first, call as u64, bytes, scales, k, types, tokens, room, ticket];
            let shape = Shape { blocks: self.ranks() as u32, threads: 512 };
            self.launch(stream, Step::Begin, shape, &arguments)?;
        }
        self.calls.begin(call, ticket);
        Ok(())
    }

    /// Launches a call with routes, in its turn.
    fn call(&self, stream: &Stream, routes: &DeviceRoutes, launch: impl FnOnce() -> Result<()>) -> Result<()> {
        in_turn(&self.progress, stream, |_| routes.while_used(stream, launch))
    }

    /// The arguments of kernels for a rank's tokens.
    fn content(routes: &DeviceRoutes, tokens: &DeviceTokens) -> [u64; 7] {
        let (scales, of_scales) = tokens.scales;
        let (topk, weights) = tokens.topk.unwrap_or_default();
        let k = tokens.topk.map_or(0, |_| routes.k as u64);
        [tokens.rows, tokens.bytes as u64, scales, of_scales as u64, topk, weights, k]
    }

    /// Sends each token to the ranks that own its experts; `again`: on the routes of an earlier dispatch. Collective.
    /// [`DeviceHighThroughput::receive`] of the same tokens must follow.
    ///
    /// # Safety
    /// As for [`DeviceHighThroughput::layout`]; a layout must have filled the routes.
    ///
    /// # Errors
    /// Rows that do not fit; routes of an object with another shape; an error of the driver.
    pub unsafe fn dispatch(
        &self,
        stream: &Stream,
        routes: &DeviceRoutes,
        tokens: &DeviceTokens,
        again: bool,
    ) -> Result<()> {
        self.shape.must_fit(tokens.bytes, tokens.scales.1)?;
        self.must_have_room(routes)?;
        self.must_go_on()?;
        let content = Self::content(routes, tokens);
        let (at, sizes) = (routes.at(), [content[1], content[3], content[6]]);
        let [of_rows, of_scales] = tokens.elements;
        let types = types(of_rows, of_scales.filter(|_| tokens.scales.1 > 0));
        let [bytes, scales, k] = sizes;
        let call = if again { Call::Again } else { Call::Dispatch };
        let first = u64::from(call.has_new_routes());
        // SAFETY: the caller's promise.
        self.call(stream, routes, || unsafe {
            self.begin(stream, routes, call, [bytes, scales, k, types.into()], tokens.room)?;
            if self.hosts > 1 {
                self.launch(stream, Step::Send, self.copying(), &[&[at, 0], &content[..]].concat())?;
            }
            let offered = [&[routes.tokens as u64], &content[..]].concat();
            self.launch(stream, Step::OfferTokens, self.copying(), &offered)?;
            if self.forwards {
                self.launch(stream, Step::Spread, self.copying(), &[&[at, first], &sizes[..]].concat())?;
            }
            Ok(())
        })
    }

    /// Waits on the host until all ranks have announced the last dispatch, and returns its counts. The GPU may
    /// be sending meanwhile. An error ends that dispatch: [`DeviceHighThroughput::receive`] must not follow.
    ///
    /// # Errors
    /// As for [`DeviceHighThroughput::check`]; [`TimedOut`](symrail::rounds::Error::TimedOut) with the ranks that have
    /// not announced it within `limit`; [`Error::Order`] if the last call was no such dispatch, or was captured, or if
    /// another call has returned the dispatch's error.
    pub fn counts(&self, stream: &Stream, limit: Duration) -> Result<Counts> {
        let told = self.told(stream, limit);
        let counts = told.and_then(|told| {
            self.check()?;
            match told {
                Told::Counts(counts) => Ok(counts),
                Told::Refused => Err(Error::Order { what: "another call has returned why this dispatch was refused" }),
            }
        });
        if counts.is_err() {
            self.calls.refused();
            in_turn(&self.progress, stream, |_| self.close(stream))?;
        }
        counts
    }

    /// Polls for what the last call tells, and now and then for the end of the stream.
    fn told(&self, stream: &Stream, limit: Duration) -> Result<Told> {
        let (ticket, began) = (self.calls.ticket(), Instant::now());
        let none = Error::Order { what: "counts follow a dispatch, on its stream, outside of graphs" };
        if ticket == 0 {
            return Err(none);
        }
        let mut backoff = Backoff::new(SPINS, 0, Duration::from_micros(50));
        loop {
            // The stream and the clock are read first: what the GPU wrote before is then seen below.
            let is_slow = backoff.next() != Pause::Spin;
            let (is_idle, is_over) = (is_slow && stream.is_idle().map_err(failed)?, is_slow && began.elapsed() > limit);
            if let Some(told) = self.record.told(ticket) {
                return Ok(told);
            }
            if is_idle {
                self.check()?;
                return Err(none);
            }
            if is_over {
                let why = || format!("a dispatch has not begun after {limit:?}: the stream is busy with earlier work");
                return Err(self.record.not_announced().unwrap_or_else(|| failed(why())));
            }
            backoff.pause();
        }
    }

    /// Receives a dispatch of these tokens, those for this rank itself included. Ends the call.
    ///
    /// # Safety
    /// As for [`DeviceHighThroughput::layout`]; the destinations must have memory for all rows that arrive, or for as many
    /// as the dispatch had `room`.
    ///
    /// # Errors
    /// Rows that do not fit; routes of an object with another shape; [`Error::Order`] without an open dispatch; an
    /// error of the driver.
    pub unsafe fn receive(
        &self,
        stream: &Stream,
        routes: &DeviceRoutes,
        tokens: &DeviceTokens,
        to: &DeviceTokensReceived,
    ) -> Result<()> {
        self.shape.must_fit(tokens.bytes, tokens.scales.1)?;
        self.must_have_room(routes)?;
        self.poison.check(self.runtime().my_pe(), "high throughput on GPUs")?;
        self.calls.must_be_open()?;
        let to = [to.rows, to.scales, to.topk.0, to.topk.1, to.sources];
        let arguments = [&[routes.at(), routes.tokens as u64], &Self::content(routes, tokens)[..], &to[..]].concat();
        self.call(stream, routes, || {
            // SAFETY: the caller's promise.
            unsafe { self.launch(stream, Step::Receive, self.copying(), &arguments) }?;
            self.calls.end();
            Ok(())
        })
    }

    /// Returns a row for each received token to its source, and forms the sums of this rank's own tokens. Collective.
    ///
    /// # Safety
    /// As for [`DeviceHighThroughput::dispatch`]. Rows in [place](DeviceHighThroughput::rows_to_combine) were written
    /// behind a dispatch that was not refused, on the GPU too; in replays of graphs, behind one for each combine.
    ///
    /// # Errors
    /// Rows that do not fit; rows in place where the last call was no dispatch; routes of an object with another shape;
    /// an error of the driver.
    pub unsafe fn combine(&self, stream: &Stream, routes: &DeviceRoutes, parts: &DeviceParts) -> Result<()> {
        must_be_summed(parts.element)?;
        self.shape.must_fit(parts.bytes, 0)?;
        self.must_have_room(routes)?;
        self.must_be_in_place_or_apart(parts.rows)?;
        self.must_go_on()?;
        let k = parts.weights.map_or(0, |_| routes.k as u64);
        let (weights, sums) = parts.weights.unwrap_or_default();
        let (at, bytes) = (routes.at(), parts.bytes as u64);
        let send = [at, 1, parts.rows, bytes, 0, 0, 0, weights, k];
        let f32 = u64::from(parts.element == DataType::Float32);
        let [bias, second] = parts.biases;
        let tokens = routes.tokens as u64;
        let offer = [at, parts.rows, bytes, weights, k];
        let reduce = [at, parts.rows, tokens, bytes, k, weights, bias, second, parts.out, sums];
        // SAFETY: the caller's promise.
        self.call(stream, routes, || unsafe {
            let types = types(Some(parts.element), None).into();
            self.begin(stream, routes, Call::Combine, [bytes, 0, k, types], parts.count)?;
            if self.hosts > 1 {
                self.launch(stream, Step::Send, self.copying(), &send)?;
                self.launch(stream, Step::Offer, self.copying(), &offer)?;
            }
            if self.forwards {
                self.launch(stream, Step::Add, self.copying(), &[at, bytes, k, f32])?;
            }
            let blocks = self.copying();
            match parts.element {
                _ if self.hosts > 1 => self.launch(stream, Step::ReduceHosts, blocks, &[&reduce[..], &[f32]].concat()),
                DataType::Float32 => self.launch(stream, Step::ReduceF32, blocks, &reduce),
                _ => match parts.slots.filter(|_| self.ranks() <= MOST_BY_SLOTS) {
                    Some((slots, k)) => {
                        self.launch(stream, Step::ReduceSlots, blocks, &[&reduce[..], &[slots, k as u64]].concat())
                    }
                    None => self.launch(stream, Step::ReduceBf16, blocks, &reduce),
                },
            }?;
            self.calls.end();
            Ok(())
        })
    }

    /// Returns the first error since the last check, when the GPU is idle. A refused call has sent nothing, and the
    /// next one may succeed. After [`Error::Round`] and [`Error::Device`] the buffers are unusable. Every
    /// call but [`DeviceHighThroughput::receive`] begins with the same check, as far as the GPU has progressed, and
    /// does nothing if it fails.
    ///
    /// # Errors
    /// [`Error::NoSuchExpert`], on this rank alone: it has not made the call. On all ranks:
    /// [`ParametersDiffer`](symrail::Error::ParametersDiffer), [`Error::TypesDiffer`], and [`Error::NoRoom`] where more
    /// rows would arrive at a rank than its memory or its caller's holds. [`Error::Round`]: a rank is late, or one of those errors or of the driver's, or a
    /// failed launch of an announced call, came before.
    pub fn check(&self) -> Result<()> {
        self.must_go_on()?;
        self.poison.poison_on_err(self.failures.check().map_err(failed))
    }

    /// Refuses a call after an error of an earlier one, which the GPU may still be executing.
    fn must_go_on(&self) -> Result<()> {
        self.poison.check(self.runtime().my_pe(), "high throughput on GPUs")?;
        let HighThroughputShape { k, experts, .. } = self.shape;
        let taken = self.record.take(&Meaning { k, experts });
        if matches!(taken, Err(Error::Round(_))) {
            // The wait is among the failures, too, but not the ranks that it waited for.
            let _ = self.failures.check();
            return self.poison.poison_on_err(taken);
        }
        taken
    }
}
