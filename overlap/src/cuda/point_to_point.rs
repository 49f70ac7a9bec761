//! Copies between two ranks of a team in stream order. A copy starts after a word of the other rank that it is ready.
//!
//! | the owner of the data calls | the receiver calls | the rank that copies |
//! |---|---|---|
//! | `send` | `receive`, which signals that the buffer is free | the sender puts |
//! | `offer`, which signals that the data are ready | `fetch` | the receiver gets |
//!
//! Both streams continue after the copy. Where GPUs reach each other, a put of few bytes goes as packets to slots of
//! the receiver, whose kernel copies them to their destination: the sender may be a few copies ahead. For more bytes,
//! one kernel waits, copies and sets the word. Behind a wait that has ended without the other rank's word it copies
//! nothing. A copy engine could not be kept from it, so it serves gets alone, of still more bytes, whose destination is
//! this rank's: it copies the data and then the word, after a kernel that waits. Elsewhere the proxy copies.
//!
//! Symmetric addresses name the buffers, so that no rank needs to open buffers of its peers. No copy uses a buffer
//! after its release, since all PEs release memory of the symmetric heap together.
//!
//! The GPU counts copies for each pair of ranks and tag, so that graphs can be replayed.

use symrail::kernels::cuda::{DeviceBuffer, DevicePtr, PinnedBuffer, Stream, Transfer};
use symrail::rounds::{self, Abort, Report};
use symrail::team::heap::{Block, aligned};
use symrail::{Group, Pe, Team, TeamHeap};
use symrail_core::{layout, word_of};

use super::kernels::GpuKernels;
use super::layout::{Pair, Plan, SLOT_BYTES, SLOTS};
use crate::error::{Error, Result};
use crate::exchange::bytes_of_words;
use crate::product::Product;

/// The number of symmetric words of each rank and tag.
const WORDS: usize = 4;
/// The most bytes of data in a slot.
const MOST_BY_PACKETS: u64 = 4 << 10;
/// The most bytes that multiprocessors get: a copy engine copies more in less time.
const MOST_GOT_BY_KERNELS: u64 = 8 << 20;

/// The direction of a copy from the view of the rank that copies.
#[derive(Debug, Clone, Copy)]
enum Copying {
    Put,
    Get,
}

impl Copying {
    /// The index, among the words of a pair, of the word that the copying rank waits for. It sets the word after that.
    fn word(self) -> usize {
        match self {
            Copying::Put => 0,
            Copying::Get => 2,
        }
    }

    /// The indexes in [`Pair`] of these counts: copies of the rank that copies, copies of the other one, blocks
    /// that have copied, and the value that copy engines copy to words.
    fn counts(self) -> [usize; 4] {
        match self {
            Copying::Put => {
                [word_of!(Pair, sent), word_of!(Pair, received), word_of!(Pair, put), word_of!(Pair, counted_put)]
            }
            Copying::Get => {
                [word_of!(Pair, fetched), word_of!(Pair, offered), word_of!(Pair, got), word_of!(Pair, counted_got)]
            }
        }
    }
}

/// Copies between ranks of a team: see the module.
pub struct GpuPointToPoint {
    group: Group,
    tags: usize,
    block: Block,
    words_at: u64,
    gone_at: u64,
    /// The address of the slots of all pairs.
    slots_at: u64,
    own: DeviceBuffer,
    report: PinnedBuffer,
    broken: bool,
    kernels: GpuKernels,
}

impl GpuPointToPoint {
    /// Bytes of the heap that the copies need.
    #[must_use]
    pub fn bytes(ranks: usize, tags: usize) -> usize {
        let pairs = ranks.saturating_mul(tags.max(1));
        let words = bytes_of_words(pairs.saturating_mul(WORDS).saturating_add(1));
        aligned(words.saturating_add(pairs.saturating_mul(SLOTS * SLOT_BYTES)))
    }

    /// Makes `tags` independent sequences of copies for each pair of ranks. Collective over the team; all ranks pass
    /// the same arguments.
    ///
    /// # Errors
    /// [`ParametersDiffer`](symrail::Error::ParametersDiffer) and [`TeamHeapFull`](symrail::Error::TeamHeapFull) on all
    /// ranks; an error that names a peer that does not answer; an error of the driver.
    pub fn new(kernels: &GpuKernels, heap: &TeamHeap, team: &Team, tags: usize) -> Result<GpuPointToPoint> {
        let (gpu, group, tags) = (kernels.device().gpu(), team.group(), tags.max(1));
        let ranks = group.size() as usize;
        team.compare(Product::PointToPoint.name(), &[("tags", tags as u64)])?;
        let made = (|| {
            let own = gpu.alloc(size_of::<Plan>() + 8 * ranks + size_of::<Pair>() * ranks * tags)?;
            Ok::<_, Error>((own, PinnedBuffer::new(gpu, Report::BYTES)?))
        })();
        let (own, report) = team.all_or_none(Product::PointToPoint.name(), made)?;
        let words = WORDS * ranks * tags;
        let block = heap.take_words(team, GpuPointToPoint::bytes(ranks, tags))?;
        let words_at = kernels.device().address(block.base);
        let slots_at = words_at + bytes_of_words(words + 1) as u64;
        let gone_at = words_at + 8 * words as u64;
        let mut image = layout::bytes(&[Plan::new(own.at().get(), words_at, report.device().get(), words, ranks)]);
        image.extend((0..group.size()).flat_map(|rank| u64::from(group.pe(rank)).to_ne_bytes()));
        image.resize(image.len() + size_of::<Pair>() * ranks * tags, 0);
        own.write(0, &image)?;
        Ok(GpuPointToPoint {
            kernels: kernels.clone(),
            group,
            tags,
            block,
            words_at,
            gone_at,
            slots_at,
            own,
            report,
            broken: false,
        })
    }

    /// Copies bytes to a symmetric address of a rank, after that rank has called [`receive`](Self::receive).
    ///
    /// # Safety
    /// The source is memory that the GPU reaches, or memory of the symmetric heap where GPUs do not reach each other.
    /// The source and `self` stay valid until the stream has completed the copy. The destination is inside of the heap.
    ///
    /// # Errors
    /// [`Error::Argument`]; errors that kernels have reported; an error of the driver.
    pub unsafe fn send(&mut self, stream: &Stream, rank: usize, tag: usize, what: Transfer) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.copy(stream, rank, tag, Copying::Put, &what) }
    }

    /// Lets a rank send, and makes the stream wait until it has sent.
    ///
    /// # Safety
    /// `self` stays valid until the stream has completed the wait. Nothing else uses the destination until then.
    ///
    /// # Errors
    /// As for [`send`](Self::send).
    pub unsafe fn receive(&mut self, stream: &Stream, rank: usize, tag: usize) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.await_other(stream, rank, tag, Copying::Put) }
    }

    /// Lets a rank fetch, and makes the stream wait until it has fetched.
    ///
    /// # Safety
    /// As for [`receive`](Self::receive). The source does not change until then.
    ///
    /// # Errors
    /// As for [`send`](Self::send).
    pub unsafe fn offer(&mut self, stream: &Stream, rank: usize, tag: usize) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.await_other(stream, rank, tag, Copying::Get) }
    }

    /// Copies bytes from a symmetric address of a rank, after that rank has called [`offer`](Self::offer).
    ///
    /// # Safety
    /// As for [`send`](Self::send), with source and destination exchanged.
    ///
    /// # Errors
    /// As for [`send`](Self::send).
    pub unsafe fn fetch(&mut self, stream: &Stream, rank: usize, tag: usize, what: Transfer) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.copy(stream, rank, tag, Copying::Get, &what) }
    }

    /// Returns an error if a copy has failed so far: as
    /// [`GpuAllGatherMatmul::check`](super::GpuAllGatherMatmul::check).
    ///
    /// # Errors
    /// [`Error::Round`], after which `self` cannot be used again; an error of the device.
    pub fn check(&mut self) -> Result<()> {
        self.reported()?;
        let device = self.kernels.device();
        let mut gone = [0; 8];
        // SAFETY: a word of this block.
        unsafe { device.gpu().read(DevicePtr::new(self.gone_at), &mut gone) }?;
        let (pe, what) = (device.runtime().my_pe(), Product::PointToPoint.name());
        Abort::check(u64::from_ne_bytes(gone), pe, what).inspect_err(|_| self.broken = true)?;
        Ok(device.state().check()?)
    }

    /// Waits until the GPU has ended all copies, and proxies have delivered their data.
    ///
    /// # Errors
    /// An error of the driver.
    pub fn finish(&self) -> Result<()> {
        self.kernels.finish()
    }

    /// Returns the memory to the heap when the GPU has completed all its work. Collective over the team.
    ///
    /// # Errors
    /// An error of the driver; an error that names a peer that does not answer.
    pub fn free(self, team: &Team) -> Result<()> {
        self.kernels.finish()?;
        Ok(self.block.free(team)?)
    }

    fn reported(&mut self) -> Result<()> {
        let (runtime, what) = (self.kernels.device().runtime(), Product::PointToPoint.name());
        match Report::of(&self.report) {
            Some(report) => {
                self.broken = true;
                Err(report.error(runtime.my_pe(), what, "a copy".into(), None, runtime.settings().timeout_s).into())
            }
            None if self.broken => Err(rounds::Error::Poisoned { pe: runtime.my_pe(), what, why: None }.into()),
            None => Ok(()),
        }
    }

    /// The PE of a rank, and the index of its pair with this one for a tag.
    fn pair(&mut self, rank: usize, tag: usize) -> Result<(Pe, usize)> {
        self.reported()?;
        let (pe, ranks) = (self.kernels.device().runtime().my_pe(), self.group.size() as usize);
        let product = Product::PointToPoint.name();
        if rank >= ranks {
            return Err(Error::Argument { pe, product, what: "the rank", given: rank, most: ranks - 1 });
        }
        if tag >= self.tags {
            return Err(Error::Argument { pe, product, what: "the tag", given: tag, most: self.tags - 1 });
        }
        Ok((self.group.pe(rank as u32), rank * self.tags + tag))
    }

    /// The address of a count of a pair.
    fn count(&self, pair: usize, which: usize) -> u64 {
        let pairs = size_of::<Plan>() + 8 * self.group.size() as usize;
        self.own.at().get() + (pairs + size_of::<Pair>() * pair + 8 * which) as u64
    }

    /// The index of the first word of a pair on this rank. `word_there` is that of the same pair on the other rank.
    fn word(&self, pair: usize) -> usize {
        WORDS * pair
    }

    fn word_there(&self, tag: usize) -> usize {
        WORDS * (self.group.me() as usize * self.tags + tag)
    }

    /// The address of the slots of a pair; the other rank has another index for the same pair.
    fn slots(&self, pair: usize) -> u64 {
        self.slots_at + (SLOTS * SLOT_BYTES * pair) as u64
    }

    /// # Safety
    /// As for [`GpuPointToPoint::receive`].
    unsafe fn await_other(&mut self, stream: &Stream, rank: usize, tag: usize, how: Copying) -> Result<()> {
        let (pe, pair) = self.pair(rank, tag)?;
        let (kernels, plan) = (&self.kernels, self.own.at().get());
        let [_, count, ..] = how.counts().map(|which| self.count(pair, which));
        let set = (self.word_there(tag) + how.word()) as u64;
        let there = kernels.device().state().reach().find(self.words_at + 8 * set, 8, pe).unwrap_or_default();
        let wait = (self.word(pair) + how.word() + 1) as u64;
        // SAFETY: the arguments are those of the kernels, with memory of `self`.
        unsafe {
            match how {
                Copying::Put => kernels.receive(stream, &[plan, count, there, set, wait, self.slots(pair), pe.into()]),
                Copying::Get => kernels.offer(stream, &[plan, count, there, set, wait, pe.into()]),
            }
        }
    }

    /// # Safety
    /// As for [`GpuPointToPoint::send`] or [`GpuPointToPoint::fetch`].
    unsafe fn copy(&mut self, stream: &Stream, rank: usize, tag: usize, how: Copying, moved: &Transfer) -> Result<()> {
        let (pe, pair) = self.pair(rank, tag)?;
        let (kernels, plan) = (&self.kernels, self.own.at().get());
        let [count, _, copied, counted] = how.counts().map(|which| self.count(pair, which));
        let (wait, set) = ((self.word(pair) + how.word()) as u64, self.word_there(tag) + how.word() + 1);
        let reach = kernels.device().state().reach();
        let set_at = reach.find(self.words_at + 8 * set as u64, 8, pe);
        let there = match how {
            Copying::Put => reach.find(moved.dest, moved.bytes, pe).map(|to| (to, moved.source)),
            Copying::Get => reach.find(moved.source, moved.bytes, pe).map(|from| (moved.dest, from)),
        };
        let slots = self.slots(self.group.me() as usize * self.tags + tag);
        let slots = reach.find(slots, (SLOTS * SLOT_BYTES) as u64, pe);
        let puts = matches!(how, Copying::Put);
        // SAFETY: the arguments are those of the kernels, with memory of `self`; the bytes are the caller's promise.
        unsafe {
            if let (Copying::Put, Some(slots), Some(_), true) = (how, slots, there, reach.in_gpus())
                && moved.bytes <= MOST_BY_PACKETS
            {
                let offset = moved.dest.wrapping_sub(self.words_at);
                return kernels.packets(
                    stream,
                    moved.bytes,
                    &[plan, count, wait, slots, moved.source, moved.bytes, offset, pe.into()],
                );
            }
            match (there, set_at) {
                (Some((to, from)), Some(set)) if reach.in_gpus() && (puts || moved.bytes <= MOST_GOT_BY_KERNELS) => {
                    let arguments = [plan, count, copied, wait, to, from, moved.bytes, set, pe.into()];
                    kernels.copy(stream, moved.bytes, &arguments)
                }
                (Some((to, from)), Some(set)) if reach.in_gpus() => {
                    kernels.ready(stream, &[plan, count, counted, wait, pe.into()])?;
                    stream.copy(DevicePtr::new(to), DevicePtr::new(from), moved.bytes)?;
                    Ok(stream.copy(DevicePtr::new(set), DevicePtr::new(counted), 8)?)
                }
                _ => {
                    kernels.ready(stream, &[plan, count, counted, wait, pe.into()])?;
                    if moved.bytes > 0 {
                        match how {
                            Copying::Put => kernels.put(stream, plan, moved, pe)?,
                            Copying::Get => kernels.moves().get(stream, *moved, pe)?,
                        }
                    }
                    kernels.signal_count(stream, &[plan, counted, set as u64, pe.into()])
                }
            }
        }
    }
}
