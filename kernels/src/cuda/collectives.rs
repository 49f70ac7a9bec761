//! Collectives of a team in the order of a stream. Each PE puts its data to the others between two barriers. So
//! destinations may be written from the first barrier on, and sources and destinations may be reused behind the last
//! one.
//!
//! A small collective is one kernel of one block, which itself waits for the other PEs. Large copies are puts on the
//! stream ([`OnStream::put`]). Large reductions are kernels that read all PEs' memory, each PE a different part, and
//! put the result to all. All PEs make a team's calls in the same order, on one stream or on streams that wait for each
//! other.

use std::sync::Arc;

use symrail_core::DataType::{self, *};
use symrail_cuda::{Compiled, Gpu, Kernel, Module, Shape, Stream};

use super::error::Result;
use super::failures::Enqueued;
use super::heap::Reach;
use super::on_stream::{BLOCK_BYTES, MOST_BLOCKS, NO_CHAIN, ONE_WARP, OnStream, Transfer};
use super::state::DeviceState;
use super::team::DeviceTeam;

/// Threads per block, as `THREADS` of the kernels.
const THREADS: u32 = 512;
const ONE_BLOCK: Shape = Shape { blocks: 1, threads: THREADS };
/// The alignment of a PE's part of a reduction: the widest piece that kernels combine.
const PIECE: u64 = 16;

/// The combination of two elements, with the numbers of `include/symrail/combine.cuh`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)] // as their names say
#[repr(u8)]
pub enum Combine {
    Sum,
    Product,
    Min,
    Max,
    And,
    Or,
    Xor,
}

/// The types of elements that kernels combine. The index is the number of `include/symrail/combine.cuh`.
#[rustfmt::skip]
const ELEMENTS: [DataType; 12] =
    [Int8, Int16, Int32, Int64, Uint8, Uint16, Uint32, Uint64, Float32, Float64, Complex64, Complex128];

/// The operation of a reduction, and the type of the elements. Floats have no bitwise operations, and complex numbers
/// have only sums and products; that is not checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reduction {
    /// The kernel's argument.
    how: u64,
    /// Bytes of an element.
    size: u64,
}

impl Reduction {
    /// Combines elements of a type.
    ///
    /// # Errors
    /// [`Error::Unsupported`](symrail_core::Error::Unsupported): kernels do not combine elements of this type.
    pub fn new(combine: Combine, ty: DataType) -> symrail_core::Result<Reduction> {
        let index = ty.index_in(&ELEMENTS, "kernels of collectives")? as u64;
        Ok(Reduction { how: u64::from(combine as u8) | index << 8, size: ty.size() as u64 })
    }
}

/// A team, from this PE's point of view.
#[derive(Debug, Clone, Copy)]
pub struct Members<'a> {
    /// The team; `None` for all PEs of the job.
    pub team: Option<&'a DeviceTeam>,
    /// This PE's number in it, and the number of its PEs.
    pub me: u32,
    #[allow(missing_docs)] // above
    pub n_pes: u32,
    /// The job's number of its first PE, and the distance between the numbers of consecutive PEs.
    pub start: u32,
    #[allow(missing_docs)] // above
    pub stride: i64,
    /// Symmetric scratch memory that only this team uses: its address and its size in bytes, a multiple of 16 and at
    /// least 32 bytes for each PE.
    pub scratch: (u64, u64),
}

impl Members<'_> {
    fn pe(&self, index: u32) -> u32 {
        (i64::from(self.start) + self.stride * i64::from(index)) as u32
    }

    fn handle(&self) -> u64 {
        self.team.map_or(0, DeviceTeam::handle)
    }

    /// The part of `bytes` that this PE combines for all: its start and its size.
    fn share(&self, bytes: u64) -> (u64, u64) {
        let pieces = bytes.div_ceil(PIECE);
        let from = |pe: u32| (pieces * u64::from(pe) / u64::from(self.n_pes) * PIECE).min(bytes);
        (from(self.me), from(self.me + 1) - from(self.me))
    }
}

/// The loaded kernels, attached to the PE's state.
#[derive(Debug)]
pub struct Collectives {
    on_stream: OnStream,
    reach: Reach,
    spread: Kernel,
    tell_length: Kernel,
    collect: Kernel,
    reduce: Kernel,
}

impl Collectives {
    /// Loads the [kernels](super::Program::COLLECTIVES) for the device with this state.
    ///
    /// # Errors
    /// The driver's error.
    pub fn new(gpu: &Arc<Gpu>, kernels: &Compiled, state: &DeviceState, on_stream: &OnStream) -> Result<Self> {
        let module = Module::load(gpu, kernels)?;
        state.attach_with(&module, None)?;
        let kernel = |name: &str| module.kernel(&format!("{name}_on_stream"));
        Ok(Self {
            on_stream: on_stream.clone(),
            reach: state.reach().clone(),
            spread: kernel("spread")?,
            tell_length: kernel("tell_length")?,
            collect: kernel("collect")?,
            reduce: kernel("reduce")?,
        })
    }

    /// Copies `bytes` at `source` on the team's PE `root` to `dest` on all. Collective over the team, as all below.
    ///
    /// # Safety
    /// Both are symmetric memory, which stays until the stream has reached this point.
    ///
    /// # Errors
    /// The error of the driver. [`DeviceState::check`] returns errors that the device detects.
    pub unsafe fn broadcast(&self, stream: &Stream, team: &Members<'_>, what: Transfer, root: u32) -> Result<()> {
        let bytes = if team.me == root { what.bytes } else { 0 };
        // SAFETY: the caller's promise.
        unsafe { self.spread(stream, team, Transfer { bytes, ..what }, 0) }
    }

    /// Copies `bytes` at `source` of each PE to `dest` on all PEs, in the order of the PEs.
    ///
    /// # Safety
    /// As for [`Collectives::broadcast`]; `dest` has so many bytes for each PE.
    ///
    /// # Errors
    /// As for [`Collectives::broadcast`].
    pub unsafe fn fcollect(&self, stream: &Stream, team: &Members<'_>, what: Transfer) -> Result<()> {
        let dest = what.dest + u64::from(team.me) * what.bytes;
        // SAFETY: the caller's promise.
        unsafe { self.spread(stream, team, Transfer { dest, ..what }, 0) }
    }

    /// Copies block `i` of `source` to the team's PE `i`, as block `me` of its `dest`. `bytes` is the size of blocks.
    ///
    /// # Safety
    /// As for [`Collectives::broadcast`]; both have a block for each PE, and do not overlap.
    ///
    /// # Errors
    /// As for [`Collectives::broadcast`].
    pub unsafe fn alltoall(&self, stream: &Stream, team: &Members<'_>, what: Transfer) -> Result<()> {
        let dest = what.dest + u64::from(team.me) * what.bytes;
        // SAFETY: the caller's promise.
        unsafe { self.spread(stream, team, Transfer { dest, ..what }, what.bytes) }
    }

    /// As [`Collectives::fcollect`], for PEs with sources of different lengths. `dest` has `room` bytes, the same on
    /// all PEs. The kernels compute the place of each PE's bytes, so the host waits for no PE.
    ///
    /// # Safety
    /// As for [`Collectives::broadcast`], for `room` bytes at `dest`.
    ///
    /// # Errors
    /// As for [`Collectives::broadcast`]. If there is not enough room, nothing is copied and [`DeviceState::check`]
    /// returns the error.
    pub unsafe fn collect(&self, stream: &Stream, team: &Members<'_>, what: Transfer, room: u64) -> Result<()> {
        let (Transfer { dest, source, bytes }, which, lengths) = (what, team.handle(), team.scratch.0);
        let now @ Enqueued { era, told } = self.on_stream.now();
        let arguments = [which, dest, room, source, bytes, lengths, era, told];
        // SAFETY: the kernels' arguments; the scratch memory has a word for each PE.
        unsafe {
            stream.launch(&self.tell_length, ONE_WARP, &[which, lengths, bytes, era, told])?;
            stream.launch(&self.collect, self.shape(team, bytes), &arguments)?;
        }
        self.on_stream.meet(now, stream, true, team.team)
    }

    /// Combines `bytes` of all PEs' `source` into `dest` on all, which may be the source. All PEs get the same bits.
    ///
    /// # Safety
    /// As for [`Collectives::broadcast`]; elements are aligned, those of 16 bytes to 8.
    ///
    /// # Errors
    /// As for [`Collectives::broadcast`].
    pub unsafe fn reduce(&self, stream: &Stream, team: &Members<'_>, what: Transfer, how: Reduction) -> Result<()> {
        let (from, bytes) = team.share(what.bytes);
        let share = Transfer { dest: what.dest + from, source: what.source + from, bytes };
        // SAFETY: the caller's promise.
        unsafe { self.combine(stream, team, share, how, true) }
    }

    /// Combines the blocks of all PEs' `source`, one for each PE, and stores on each PE its own block in `dest`.
    ///
    /// # Safety
    /// As for [`Collectives::reduce`]; the source has a block of so many bytes for each PE.
    ///
    /// # Errors
    /// As for [`Collectives::broadcast`].
    pub unsafe fn reduce_scatter(
        &self,
        stream: &Stream,
        team: &Members<'_>,
        what: Transfer,
        how: Reduction,
    ) -> Result<()> {
        let source = what.source + u64::from(team.me) * what.bytes;
        // SAFETY: the caller's promise.
        unsafe { self.combine(stream, team, Transfer { source, ..what }, how, false) }
    }

    /// Puts `what` to all PEs. The source for each PE is `step` bytes behind that for the one before it.
    ///
    /// # Safety
    /// As for [`Collectives::broadcast`].
    unsafe fn spread(&self, stream: &Stream, team: &Members<'_>, what: Transfer, step: u64) -> Result<()> {
        let Transfer { dest, source, bytes } = what;
        let now @ Enqueued { era, told } = self.on_stream.now();
        if bytes * u64::from(team.n_pes) <= BLOCK_BYTES {
            let arguments = [team.handle(), dest, source, step, bytes, era, told];
            // SAFETY: the kernel's arguments; the caller's promise.
            return Ok(unsafe { stream.launch(&self.spread, ONE_BLOCK, &arguments) }?);
        }
        self.on_stream.meet(now, stream, false, team.team)?;
        // Each PE starts with the PE after itself, so that they do not all put to the same one.
        for index in (1..=team.n_pes).map(|i| (team.me + i) % team.n_pes) {
            let source = source + u64::from(index) * step;
            if index != team.me || source != dest {
                // SAFETY: the caller's promise.
                unsafe {
                    self.on_stream.put_of(now, NO_CHAIN, stream, Transfer { dest, source, bytes }, team.pe(index))
                }?;
            }
        }
        self.on_stream.meet(now, stream, true, team.team)
    }

    /// Combines `bytes` of all PEs' `source` into this PE's `dest`, and with `share` puts the result to the others'
    /// `dest`.
    ///
    /// # Safety
    /// As for [`Collectives::reduce`].
    unsafe fn combine(
        &self,
        stream: &Stream,
        team: &Members<'_>,
        Transfer { dest, source, bytes }: Transfer,
        Reduction { how, size }: Reduction,
        share: bool,
    ) -> Result<()> {
        let waits = bytes <= BLOCK_BYTES;
        let (scratch, scratch_bytes) = if self.reaches_all(team) { (0, 0) } else { team.scratch };
        let now @ Enqueued { era, told } = self.on_stream.now();
        let what = [team.handle(), dest, source, bytes, how, size, share.into(), scratch, scratch_bytes];
        let arguments = [&what[..], &[waits.into(), era, told]].concat();
        if !waits {
            self.on_stream.meet(now, stream, false, team.team)?;
        }
        // SAFETY: the kernel's arguments; the caller's promise.
        unsafe { stream.launch(&self.reduce, self.shape(team, bytes), &arguments) }?;
        if waits { Ok(()) } else { self.on_stream.meet(now, stream, true, team.team) }
    }

    fn reaches_all(&self, team: &Members<'_>) -> bool {
        (0..team.n_pes).all(|index| self.reach.has(team.pe(index)))
    }

    /// The shape of a kernel for so many bytes. The work of a proxy is one request for each PE.
    fn shape(&self, team: &Members<'_>, bytes: u64) -> Shape {
        let blocks = if self.reaches_all(team) { bytes.div_ceil(BLOCK_BYTES).clamp(1, MOST_BLOCKS) } else { 1 };
        Shape { blocks: blocks as u32, ..ONE_BLOCK }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_as_the_header_has_them() {
        let header = include_str!("../../include/symrail/combine.cuh");
        use Combine::{And, Max, Min, Or, Product, Sum, Xor};
        let ops = [Sum, Product, Min, Max, And, Or, Xor].map(|op| (format!("{op:?}"), op as usize)).into_iter();
        let types = ELEMENTS.iter().enumerate().map(|(number, ty)| {
            (format!("{}{}", &ty.name()[..1], ty.name().trim_start_matches(char::is_alphabetic)), number)
        });
        for (name, number) in ops.chain(types) {
            let line = format!("#define SYMRAIL_{} {number}u\n", name.to_uppercase());
            assert!(header.contains(&line), "{line}");
        }
        let of_doubles = Reduction::new(Combine::Max, Float64).ok();
        assert_eq!(of_doubles, Some(Reduction { how: 3 | 9 << 8, size: 8 }));
        let refused = Reduction::new(Combine::Sum, Bfloat16).map_err(|error| error.to_string());
        assert!(refused.is_err_and(|text| text.contains("bfloat16") && text.contains("float64")));
        let threads = format!("#define THREADS {THREADS}\n");
        assert!(include_str!("../../cu/collectives.cu").contains(&threads), "{threads}");
    }

    #[test]
    fn parts_are_the_whole_and_start_at_pieces() {
        for n_pes in 1..9 {
            for bytes in [0, 1, 16, 17, 100, 4096, 5555] {
                let members = |me| Members { team: None, me, n_pes, start: 0, stride: 1, scratch: (0, 0) };
                let mut end = 0;
                for (from, share) in (0..n_pes).map(|me| members(me).share(bytes)) {
                    assert!(from == end && (from % PIECE == 0 || share == 0), "{n_pes} PEs, {bytes} bytes");
                    end += share;
                }
                assert_eq!(end, bytes);
            }
        }
    }
}
