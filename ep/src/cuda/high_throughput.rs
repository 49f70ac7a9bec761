//! High throughput by kernels. See `cu/high_throughput.cu`.
//!
//! Each token goes once to each rank that owns some of its experts, straight to its place among that rank's rows, which
//! are ordered by source and then as at the source. Mapped peers are written to by stores; others get chunks by requests
//! to the proxy, straight from each rank to each other one. Sums have the bits of the host's
//! [`HighThroughput`](crate::HighThroughput).

use std::time::Duration;

use symrail::gpu::GpuDevice;
use symrail::kernels::cuda::compile::Nvrtc;
use symrail::kernels::cuda::{DeviceBuffer, DevicePtr, Kernel, Shape, Stream};
use symrail::{Pe, Runtime};

use super::routes::{Counts, DeviceRoutes};
use super::{PROGRAMS, failed, load, with_words, words_of, zeroed};
use crate::element::Element;
use crate::error::{Error, Result};
use crate::exchange::hold_for_all;
use crate::plan::hosts::Hosts;
use crate::plan::layout::{MOST_TOP_K, share};

/// Blocks of a kernel that copies or adds, each of which takes a multiprocessor.
pub const USUAL_BLOCKS: u32 = 24;
/// As in the kernels: rows of a chunk, ranks, bytes of a header besides its counts, words of `progress`, and an order's
/// mark.
const CHUNK: usize = 32;
const MOST_RANKS: usize = 256;
const HEADER: usize = 40;
const PROGRESS: usize = 6;
const FIRST_OF_HOST: u32 = 1 << 31;
/// What went wrong, as in the kernels: from `DIFFERENT` on what ranks compare.
const NO_EXPERT: u64 = 1;
const DIFFERENT: u64 = 2;
const NO_ROOM: u64 = 8;
const LATE: u64 = 9;
const COMPARED: [&str; 5] =
    ["kinds of calls", "bytes of a row", "scales of a row", "top-k slots of a token", "routes of an earlier dispatch"];

/// What memory is made for; the same on all ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HighThroughputShape {
    /// Tokens of each rank, at most.
    pub most_tokens: usize,
    /// Rows that may come to a rank in a dispatch. `ranks` × `most_tokens` is enough for all routing.
    pub room: usize,
    /// Bytes of a row, at most.
    pub row: usize,
    /// Scales of a row (32-bit floats), at most.
    pub scales: usize,
    /// Experts of all ranks.
    pub experts: usize,
    /// Top-k slots of a token.
    pub k: usize,
}

/// A rank's tokens for a dispatch: addresses for the GPU.
#[derive(Debug, Clone, Copy)]
pub struct DeviceTokens {
    /// A row for each token.
    pub rows: u64,
    /// Bytes of a row: a multiple of 16.
    pub bytes: usize,
    /// Scales of each row, 32 bits each, and how many; both 0 if there are none.
    pub scales: (u64, usize),
    /// 64-bit indices of the experts, and 32-bit weights, if they are to go along.
    pub topk: Option<(u64, u64)>,
}

/// Where what has come is to go: addresses for the GPU, each with room for as many rows as have come.
#[derive(Debug, Clone, Copy, Default)]
pub struct DeviceTokensReceived {
    /// A copy of the rows; 0 if they are to be read where they [are](DeviceHighThroughput::rows).
    pub rows: u64,
    /// Their scales; unused without.
    pub scales: u64,
    /// 64-bit indices among this rank's experts, -1 for those of others, and weights; unused without.
    pub topk: (u64, u64),
    /// The number that each has at its source, 32 bits.
    pub sources: u64,
}

/// What a rank gives to a combine, and where the sums go: addresses for the GPU.
#[derive(Debug, Clone, Copy)]
pub struct DeviceParts {
    /// A row for each token that has come.
    pub rows: u64,
    /// Bytes of a row: a multiple of 16.
    pub bytes: usize,
    /// The type of their elements.
    pub element: Element,
    /// Weights of each token that has come, as many as it has slots, and where their sums go.
    pub weights: Option<(u64, u64)>,
    /// Up to two rows for each of this rank's own tokens, which are added to the sums; 0 for none.
    pub biases: [u64; 2],
    /// Where a row for each of this rank's own tokens goes.
    pub out: u64,
}

/// Memory and kernels for dispatch and combine of many tokens. See the [module](self).
pub struct DeviceHighThroughput<'d> {
    device: &'d GpuDevice<'d>,
    shape: HighThroughputShape,
    blocks: u32,
    /// Symmetric memory, to be given back; where words of headers and rows that come are in it.
    block: *mut u8,
    header_words: u64,
    rows: u64,
    parameters: DeviceBuffer,
    progress: DeviceBuffer,
    _order: DeviceBuffer,
    kernels: [Kernel; 7],
}

/// The kernels, in the order of [`DeviceHighThroughput::kernels`].
#[derive(Clone, Copy)]
enum Step {
    Layout,
    Announce,
    Collect,
    Send,
    Receive,
    Reduce,
    End,
}

/// Kinds of calls, as headers say them.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Call {
    Dispatch = 1,
    Again,
    Combine,
}

fn up16(bytes: usize) -> usize {
    bytes.next_multiple_of(16)
}

impl HighThroughputShape {
    fn check(&self, ranks: usize) -> Result<()> {
        if self.row == 0 || !self.row.is_multiple_of(16) {
            return Err(Error::argument("bytes of a row", self.row, "a multiple of 16"));
        }
        if self.k == 0 || self.k > MOST_TOP_K || self.most_tokens == 0 || self.room == 0 || ranks > MOST_RANKS {
            let found = format!("{} slots, {} tokens, {ranks} ranks", self.k, self.most_tokens);
            let wanted = format!("1 to {MOST_TOP_K} slots, a token at least, at most {MOST_RANKS} ranks");
            return Err(Error::argument("a shape", found, wanted));
        }
        share(self.experts, ranks).map(drop)
    }

    /// Bytes of each part of a rank's memory, in the order of `parameters` in the kernels.
    fn parts(&self, ranks: usize, all_mapped: bool) -> [usize; 10] {
        let header = 2 * ranks * up16(HEADER + 4 * (ranks + self.experts / ranks));
        let back = self.most_tokens * self.k.min(ranks);
        let out = if all_mapped { 0 } else { back.max(self.room) };
        let words = 16 * ranks * self.most_tokens.div_ceil(CHUNK);
        let side = self.side();
        let sizes = [header, header, 8 * ranks, words, self.room * self.row, self.room * side, back * self.row];
        let rest = [back * side, out * self.row, out * side];
        let mut all = [0; 10];
        all.iter_mut().zip(sizes.into_iter().chain(rest)).for_each(|(to, bytes)| *to = bytes.next_multiple_of(128));
        all
    }

    /// Bytes beside a row, at most.
    fn side(&self) -> usize {
        up16(4 * (self.scales + 2 * self.k + 1))
    }

    /// Bytes of each rank's heap that it takes.
    #[must_use]
    pub fn bytes(&self, ranks: usize, all_mapped: bool) -> usize {
        self.parts(ranks, all_mapped).iter().sum()
    }
}

impl<'d> DeviceHighThroughput<'d> {
    /// Makes memory and loads the kernels, whose copies and sums take `blocks` multiprocessors ([`USUAL_BLOCKS`]).
    /// Collective.
    ///
    /// # Errors
    /// A shape that makes no sense; shapes that differ, on every rank; the heap is exhausted; what compiler and driver
    /// say.
    pub fn new(device: &'d GpuDevice<'_>, nvrtc: &Nvrtc, shape: HighThroughputShape, blocks: u32) -> Result<Self> {
        let (rt, gpu) = (device.runtime(), device.gpu());
        let (ranks, me) = (rt.n_pes() as usize, rt.my_pe() as usize);
        shape.check(ranks)?;
        if blocks == 0 {
            return Err(Error::argument("blocks", blocks, "at least 1"));
        }
        let HighThroughputShape { most_tokens, room, row, scales, experts, k } = shape;
        rt.team_world()?.compare(
            "high throughput on GPUs",
            &[
                ("tokens of a rank, at most", most_tokens as u64),
                ("rows that may come", room as u64),
                ("bytes of a row", row as u64),
                ("scales of a row", scales as u64),
                ("number of experts", experts as u64),
                ("top-k slots of a token", k as u64),
            ],
        )?;
        let all_mapped = hold_for_all(rt, (0..rt.n_pes()).all(|pe| device.is_mapped(pe)))?;
        let sizes = shape.parts(ranks, all_mapped);
        let block = rt.align(128, sizes.iter().sum())?;
        let mut next = device.address(block);
        let starts = sizes.map(|bytes| {
            let start = next;
            next += bytes as u64;
            start
        });
        let [_, _, header_words, words, rows, ..] = starts;
        for (at, bytes) in [(header_words, sizes[2]), (words, sizes[3])] {
            // SAFETY: parts of the block that was just allocated.
            unsafe { gpu.fill(DevicePtr::new(at), 0, bytes) }.map_err(failed)?;
        }
        let progress = zeroed(gpu, 8 * PROGRESS)?;
        let order = order_of(&Hosts::of_job(rt));
        let order_buffer = zeroed(gpu, 4 * ranks)?;
        let bytes: Vec<u8> = order.iter().flat_map(|rank| rank.to_ne_bytes()).collect();
        order_buffer.write(0, &bytes).map_err(failed)?;
        let numbers = [ranks, me, experts / ranks, most_tokens, room].map(|number| number as u64);
        let last = [shape.side() as u64, progress.at().get(), order_buffer.at().get()];
        let parameters = with_words(gpu, &[&numbers[..], &starts[..], &last[..]].concat())?;
        let module = load(device, nvrtc, &PROGRAMS[0])?;
        let kernel = |name: &str| module.kernel(name).map_err(failed);
        let kernels = [
            kernel("ep_layout")?,
            kernel("ep_announce")?,
            kernel("ep_collect")?,
            kernel("ep_send")?,
            kernel("ep_receive")?,
            kernel("ep_reduce")?,
            kernel("ep_end_call")?,
        ];
        // Nobody may be written to before all have cleared their words.
        rt.barrier_all()?;
        let _order = order_buffer;
        Ok(Self { device, shape, blocks, block, header_words, rows, parameters, progress, _order, kernels })
    }

    /// Gives the memory back, when the GPU has ended all calls. Collective.
    ///
    /// # Errors
    /// A peer that does not answer.
    pub fn free(self) -> Result<()> {
        Ok(self.runtime().free(self.block)?)
    }

    fn runtime(&self) -> &Runtime {
        self.device.runtime()
    }

    fn ranks(&self) -> usize {
        self.runtime().n_pes() as usize
    }

    /// What it was made for.
    #[must_use]
    pub fn shape(&self) -> &HighThroughputShape {
        &self.shape
    }

    /// Where the rows of the last dispatch are, one behind the other, until this rank begins another one.
    #[must_use]
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// Memory for routes. Local.
    ///
    /// # Errors
    /// What the driver says.
    pub fn routes(&self) -> Result<DeviceRoutes> {
        let place = (self.ranks(), self.runtime().my_pe() as usize);
        DeviceRoutes::new(self.device.gpu(), place, self.shape.most_tokens, self.shape.experts)
    }

    /// Kernels go through routes as far as this object's shape says.
    fn must_have_room(&self, routes: &DeviceRoutes) -> Result<()> {
        let wanted = [self.shape.most_tokens, self.shape.experts];
        if routes.room == wanted {
            return Ok(());
        }
        let text = |[tokens, experts]: [usize; 2]| format!("those of {tokens} tokens and {experts} experts");
        Err(Error::argument("routes", text(routes.room), text(wanted)))
    }

    /// # Safety
    /// The kernel takes the parameters' address and these arguments, and what they point to stays.
    unsafe fn launch(
        &self,
        stream: &Stream,
        step: Step,
        (blocks, threads): (u32, u32),
        arguments: &[u64],
    ) -> Result<()> {
        let words = [&[self.parameters.at().get()], arguments].concat();
        // SAFETY: the caller's promise.
        unsafe { stream.launch(&self.kernels[step as usize], Shape { blocks, threads }, &words) }.map_err(failed)
    }

    /// Computes the routes of tokens from their experts (`topk`: 64-bit indices, -1 for none). Local.
    ///
    /// # Safety
    /// An address for the GPU, valid until the stream has come so far, and of so many tokens. The routes and this object
    /// stay until then, too.
    ///
    /// # Errors
    /// [`Error::TooManyTokens`]; routes of an object with another shape; what the driver says.
    pub unsafe fn layout(&self, stream: &Stream, routes: &mut DeviceRoutes, topk: u64, tokens: usize) -> Result<()> {
        let most = self.shape.most_tokens;
        if tokens > most {
            return Err(Error::TooManyTokens { tokens, most });
        }
        self.must_have_room(routes)?;
        routes.tokens = tokens;
        let arguments = [routes.addresses.at().get(), topk, tokens as u64, self.shape.k as u64];
        // SAFETY: the caller's promise.
        unsafe { self.launch(stream, Step::Layout, (self.ranks() as u32, 1024), &arguments) }
    }

    fn must_fit(&self, bytes: usize, scales: usize) -> Result<()> {
        let shape = &self.shape;
        if bytes == 0 || !bytes.is_multiple_of(16) || bytes > shape.row || scales > shape.scales {
            let wanted = format!("a multiple of 16, at most {}, at most {} scales", shape.row, shape.scales);
            return Err(Error::argument("a row", format!("{bytes} bytes, {scales} scales"), wanted));
        }
        Ok(())
    }

    /// # Safety
    /// As for [`DeviceHighThroughput::layout`].
    unsafe fn begin(&self, stream: &Stream, routes: u64, call: Call, [bytes, scales, k]: [u64; 3]) -> Result<()> {
        let first = u64::from(call == Call::Dispatch);
        // SAFETY: the caller's promise.
        unsafe {
            let arguments = [routes, first, call as u64, bytes, scales, k];
            self.launch(stream, Step::Announce, (self.ranks() as u32, 512), &arguments)?;
            self.launch(stream, Step::Collect, (1, 512), &[routes, first])
        }
    }

    /// Sends each token to the ranks that own its experts; `again`: on the routes of a dispatch that was made already.
    /// Collective. Next comes [`DeviceHighThroughput::receive`].
    ///
    /// # Safety
    /// As for [`DeviceHighThroughput::layout`]; routes that a layout was computed for.
    ///
    /// # Errors
    /// Rows that do not fit; routes of an object with another shape; what the driver says.
    pub unsafe fn dispatch(
        &self,
        stream: &Stream,
        routes: &DeviceRoutes,
        tokens: &DeviceTokens,
        again: bool,
    ) -> Result<()> {
        let (scales, of_scales) = tokens.scales;
        self.must_fit(tokens.bytes, of_scales)?;
        self.must_have_room(routes)?;
        let (topk, weights) = tokens.topk.unwrap_or_default();
        let k = tokens.topk.map_or(0, |_| self.shape.k as u64);
        let (at, sizes) = (routes.addresses.at().get(), [tokens.bytes as u64, of_scales as u64, k]);
        let call = if again { Call::Again } else { Call::Dispatch };
        let arguments = [at, 0, tokens.rows, sizes[0], scales, sizes[1], topk, weights, k];
        // SAFETY: the caller's promise.
        unsafe {
            self.begin(stream, at, call, sizes)?;
            self.launch(stream, Step::Send, (self.blocks, 512), &arguments)
        }
    }

    /// Waits on the host until the dispatch that was made last was sent, and says what it brings. With an error that
    /// dispatch is over: [`DeviceHighThroughput::receive`] does not follow.
    ///
    /// # Errors
    /// As for [`DeviceHighThroughput::check`].
    pub fn counts(&self, stream: &Stream, routes: &DeviceRoutes, limit: Duration) -> Result<Counts> {
        stream.wait(limit).map_err(failed)?;
        if let Err(error) = self.check() {
            // SAFETY: it takes nothing but this object's memory.
            unsafe { self.launch(stream, Step::End, (1, 1), &[]) }?;
            return Err(error);
        }
        routes.counts(self.shape.experts / self.ranks())
    }

    /// Takes what a dispatch of these tokens (sizes, and whether there are slots) brings. Ends the call.
    ///
    /// # Safety
    /// As for [`DeviceHighThroughput::layout`]; room for as many rows as come.
    ///
    /// # Errors
    /// Rows that do not fit; routes of an object with another shape; what the driver says.
    pub unsafe fn receive(
        &self,
        stream: &Stream,
        routes: &DeviceRoutes,
        tokens: &DeviceTokens,
        to: &DeviceTokensReceived,
    ) -> Result<()> {
        self.must_fit(tokens.bytes, tokens.scales.1)?;
        self.must_have_room(routes)?;
        let k = tokens.topk.map_or(0, |_| self.shape.k as u64);
        let sizes = [routes.addresses.at().get(), tokens.bytes as u64, tokens.scales.1 as u64, k];
        let arguments = [&sizes[..], &[to.rows, to.scales, to.topk.0, to.topk.1, to.sources]].concat();
        // SAFETY: the caller's promise.
        unsafe {
            self.launch(stream, Step::Receive, (self.blocks, 512), &arguments)?;
            self.launch(stream, Step::End, (1, 1), &[])
        }
    }

    /// Sends a row for each token that has come back to where it came from, and forms the sums of this rank's own
    /// tokens. Collective.
    ///
    /// # Safety
    /// As for [`DeviceHighThroughput::dispatch`].
    ///
    /// # Errors
    /// Rows that do not fit; routes of an object with another shape; what the driver says.
    pub unsafe fn combine(&self, stream: &Stream, routes: &DeviceRoutes, parts: &DeviceParts) -> Result<()> {
        self.must_fit(parts.bytes, 0)?;
        self.must_have_room(routes)?;
        let k = parts.weights.map_or(0, |_| self.shape.k as u64);
        let (weights, sums) = parts.weights.unwrap_or_default();
        let (at, bytes) = (routes.addresses.at().get(), parts.bytes as u64);
        let send = [at, 1, parts.rows, bytes, 0, 0, 0, weights, k];
        let f32 = u64::from(parts.element == Element::F32);
        let [bias, second] = parts.biases;
        let reduce = [at, routes.tokens as u64, bytes, k, f32, bias, second, parts.out, sums];
        // SAFETY: the caller's promise.
        unsafe {
            self.begin(stream, at, Call::Combine, [bytes, 0, k])?;
            self.launch(stream, Step::Send, (self.blocks, 512), &send)?;
            self.launch(stream, Step::Reduce, (self.blocks, 512), &reduce)?;
            self.launch(stream, Step::End, (1, 1), &[])
        }
    }

    /// What went wrong first since the last check, when the GPU is idle. Calls that were refused have sent nothing, and
    /// the next one may go well; after [`Error::Late`] and what the device's state says it cannot.
    ///
    /// # Errors
    /// [`Error::NoSuchExpert`], of this rank alone: it has not made the call. On all ranks: [`Error::Differ`], and
    /// [`Error::NoMemory`] where more rows were to come to a rank than there is room for. [`Error::Late`]; what the
    /// driver says.
    pub fn check(&self) -> Result<()> {
        let words = words_of(&self.progress, PROGRESS)?;
        let [calls, _, wrong, other, here, there] = words[..] else { return Ok(()) };
        if wrong != 0 {
            self.progress.write(16, &[0; 8]).map_err(failed)?;
        }
        let (k, me) = (self.shape.k, self.runtime().my_pe());
        match wrong {
            0 => self.device.state().check().map_err(failed),
            NO_EXPERT => {
                let (token, slot) = (here as usize / k, here as usize % k);
                Err(Error::NoSuchExpert { token, slot, expert: there as i64, last: self.shape.experts - 1 })
            }
            NO_ROOM => Err(Error::NoMemory { rows: there as usize, bytes: self.shape.row }),
            LATE => Err(self.late(calls + 1)?),
            _ => {
                let what = COMPARED.get((wrong - DIFFERENT) as usize).copied().unwrap_or("headers");
                Err(Error::Differ { what, me, here, other: other as u32, there })
            }
        }
    }

    /// Who has not announced a call.
    fn late(&self, call: u64) -> Result<Error> {
        let mut bytes = vec![0; 8 * self.ranks()];
        // SAFETY: symmetric memory of this object.
        unsafe { self.device.gpu().read(DevicePtr::new(self.header_words), &mut bytes) }.map_err(failed)?;
        let words = bytes.as_chunks::<8>().0.iter().map(|word| u64::from_ne_bytes(*word));
        let ranks: Vec<Pe> = (0..).zip(words).filter(|(_, word)| *word < call).map(|(rank, _)| rank).collect();
        let (me, seconds) = (self.runtime().my_pe(), self.runtime().settings().timeout_s as f64);
        Ok(Error::Late { what: "high throughput on GPUs", me, ranks, seconds })
    }
}

/// All ranks in the order in which their rows are added, with marks where hosts begin.
fn order_of(hosts: &Hosts) -> Vec<u32> {
    let of_host = |host: usize| {
        let members = hosts.members(host).iter().enumerate();
        members.map(|(i, &rank)| rank as u32 | if i == 0 { FIRST_OF_HOST } else { 0 })
    };
    (0..hosts.count()).flat_map(of_host).collect()
}
