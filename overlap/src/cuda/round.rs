//! A round on a GPU: the steps of a program on streams, and their errors.

use std::mem::offset_of;
use std::ops::Range;

use symrail::Pe;
use symrail::kernels::cuda::{DevicePtr, Stream, Transfer};
use symrail::rounds::{self, Abort, Report};
use symrail_cuda::cublaslt::{Places, Product as Multiplication};

use super::layout::Plan;
use super::plan::{GpuPlan, SCALE_ALIGN};
use super::shape::Operands;
use crate::error::{Error, Result};
use crate::product::Product;
use crate::program::pushed::rows_of;
use crate::program::{Action, PRODUCTS, Round, Rows, Word};

/// The alignment of the driver's memory, which is the most that cuBLASLt asks for.
const MOST_ALIGNED: u64 = 256;
/// The alignment of addresses and the factor of widths for which the kernels sum several numbers together:
/// `cu/overlap.cu`.
pub(super) const SUMMED_ALIGN: u64 = 16;
const SUMMED_TOGETHER: u64 = 8;
/// The most bytes that multiprocessors send. A copy engine moves more bytes sooner, and leaves the multiprocessors to
/// products.
const MOST_SENT_BY_KERNELS: u64 = 1 << 20;

impl GpuPlan {
    /// # Safety
    /// As for [`GpuAllGatherMatmul::post`].
    pub unsafe fn post(&mut self, stream: &Stream, operands: &Operands) -> Result<()> {
        if self.broken {
            let (pe, what) = (self.kernels.device().runtime().my_pe(), self.product.name());
            return Err(rounds::Error::Poisoned { pe, what, why: None }.into());
        }
        self.kernels.device().runtime().check_joined()?;
        // The kernel that has reported an error has signalled the others.
        self.reported()?;
        // SAFETY: the caller's promise.
        unsafe { self.enqueue(stream, operands) }.inspect_err(|error| self.give_up(error))
    }

    /// Enqueues the steps of a round. After an error some may have been enqueued.
    ///
    /// # Safety
    /// As for [`GpuAllGatherMatmul::post`].
    unsafe fn enqueue(&mut self, stream: &Stream, operands: &Operands) -> Result<()> {
        self.choose(operands)?;
        let plan = self.own.at().get();
        if let Some(delay) = self.next_delay() {
            self.kernels.delay(stream, delay)?;
        }
        if let Some(at_once) = &self.at_once {
            // SAFETY: the caller's promise.
            unsafe {
                let operands = Operands { scales: self.scales(stream, operands.scales)?, ..*operands };
                self.post_at_once(at_once, stream, &operands)
            }?;
            return Ok(());
        }
        // SAFETY: the plan exists; the caller keeps it and the operands valid.
        let operands = unsafe {
            self.kernels.begin(stream, plan, self.waits_at, self.first_waits)?;
            &Operands { scales: self.scales(stream, operands.scales)?, ..*operands }
        };
        self.begun.record(stream)?;
        for lane in &self.streams {
            lane.wait_for(&self.begun)?;
        }
        for place in 0..self.program.entries.len() {
            let delay = self.next_delay();
            let entry = &self.program.entries[place];
            let on = match entry.lane {
                PRODUCTS => stream,
                lane => &self.streams[(lane - 1) % self.streams.len()],
            };
            for event in entry.after.iter().filter_map(|&needed| self.steps[needed].as_ref()) {
                on.wait_for(event)?;
            }
            if let (Some(delay), true) = (delay, communicates(&entry.action)) {
                self.kernels.delay(on, delay)?;
            }
            // The begin of the round has performed the first waits.
            if place >= self.first_waits {
                // SAFETY: the caller's promise.
                unsafe { self.act(on, place, operands) }?;
            }
            if let Some(event) = &self.steps[place] {
                event.record(on)?;
            }
        }
        for (lane, event) in self.streams.iter().zip(&self.ended) {
            event.record(lane)?;
            stream.wait_for(event)?;
        }
        Ok(())
    }

    /// The scales at addresses that cuBLASLt accepts: copies a scale with another address, on this stream.
    ///
    /// # Safety
    /// As for [`GpuAllGatherMatmul::post`].
    unsafe fn scales(&self, stream: &Stream, scales: [u64; 2]) -> Result<[u64; 2]> {
        let mut places = scales;
        for (at, place) in (self.scales.at().get()..).step_by(SCALE_ALIGN as usize).zip(&mut places) {
            if !place.is_multiple_of(SCALE_ALIGN) {
                let bytes = size_of::<f32>() as u64;
                // SAFETY: the plan's memory, and the caller's promise for the operands.
                unsafe { stream.copy(DevicePtr::new(at), DevicePtr::new(*place), bytes) }?;
                *place = at;
            }
        }
        Ok(places)
    }

    /// Enqueues a step on its lane's stream.
    ///
    /// # Safety
    /// As for [`GpuAllGatherMatmul::post`].
    pub(super) unsafe fn act(&self, on: &Stream, place: usize, operands: &Operands) -> Result<()> {
        let (kernels, plan, size) = (&self.kernels, self.own.at().get(), self.moved.size());
        let number = |at: usize| self.numbers_at + (at * size) as u64;
        let of_output = |rows: &Rows| operands.output + ((rows.rows.start - self.first) * rows.width * size) as u64;
        let bytes = |rows: &Rows| (rows.len() * size) as u64;
        let pe = |rank: usize| self.group.pe(rank as u32);
        let action = &self.program.entries[place].action;
        let empty = rows_of(action).is_some_and(|rows| rows.len() == 0);
        // SAFETY: the addresses are those of the plan's memory at the places of its program; the operands are the
        // caller's promise. That holds for all calls below.
        unsafe {
            match action {
                &Action::Wait { from, word, round } => {
                    kernels.wait(on, plan, word, u64::from(round == Round::Before), pe(from))
                }
                &Action::Put { to, word, .. } | &Action::Send { to, word, .. } | &Action::Share { to, word, .. }
                    if empty =>
                {
                    kernels.signal(on, plan, word, pe(to))
                }
                &Action::Signal { to, word } => kernels.signal(on, plan, word, pe(to)),
                Action::Keep { .. } | Action::KeepSums { .. } | Action::Take { .. } | Action::Get { .. } if empty => {
                    Ok(())
                }
                Action::Keep { rows } => {
                    Ok(on.copy(DevicePtr::new(number(rows.at)), DevicePtr::new(operands.rows), bytes(rows))?)
                }
                Action::KeepSums { rows } => {
                    Ok(on.copy(DevicePtr::new(number(rows.at)), DevicePtr::new(of_output(rows)), bytes(rows))?)
                }
                Action::Take { rows } => {
                    Ok(on.copy(DevicePtr::new(of_output(rows)), DevicePtr::new(number(rows.at)), bytes(rows))?)
                }
                Action::Get { from, rows } => {
                    let at = number(rows.at);
                    let same = Transfer { dest: at, source: at, bytes: bytes(rows) };
                    Ok(kernels.moves().get(on, same, pe(*from))?)
                }
                Action::Put { to, rows, at, word } => {
                    let moved = Transfer { dest: number(*at), source: number(rows.at), bytes: bytes(rows) };
                    self.transfer(on, &moved, *word, pe(*to))
                }
                Action::Send { to, rows, word } => {
                    let skipped = (rows.rows.start - self.own_from) * rows.width * size;
                    let source = operands.rows + skipped as u64;
                    self.transfer(on, &Transfer { dest: number(rows.at), source, bytes: bytes(rows) }, *word, pe(*to))
                }
                Action::Share { to, rows, word } => {
                    let moved = Transfer { dest: number(rows.at), source: of_output(rows), bytes: bytes(rows) };
                    self.transfer(on, &moved, *word, pe(*to))
                }
                Action::Quiet => kernels.quiet(on),
                Action::Multiply { rows } => {
                    let mut from = operands.rows;
                    if let Product::AllGatherMatmul = self.product {
                        from = self.here(on, rows)?;
                    } else {
                        from += (rows.start * self.pitches()[0]) as u64;
                    }
                    let to = match self.product {
                        Product::AllGatherMatmul => operands.output,
                        _ => self.numbers_at,
                    };
                    self.multiply(on, rows, from, to + (rows.start * self.pitches()[1]) as u64, 0, operands)
                }
                Action::MultiplyOwn { rows } => {
                    let from = operands.rows + ((rows.start - self.own_from) * self.pitches()[0]) as u64;
                    let to = operands.output + (rows.start * self.pitches()[1]) as u64;
                    self.multiply(on, rows, from, to, 0, operands)
                }
                Action::MultiplyOnto { rows, onto } => {
                    let from = operands.rows + (rows.start * self.pitches()[0]) as u64;
                    let to = operands.output + ((rows.start - self.first) * self.pitches()[1]) as u64;
                    self.multiply(on, rows, from, to, number(*onto), operands)
                }
                Action::Sum { rows, .. } if rows.len() == 0 => Ok(()),
                Action::Sum { rows, summands, shared } => {
                    let (out, shared) = (of_output(rows), if *shared { number(rows.at) } else { 0 });
                    let (count, width) = (rows.rows.len() as u64, rows.width as u64);
                    let n = summands.len() as u64;
                    let places = summands.iter().map(|&at| number(at));
                    let all = places.chain([operands.bias, out, shared]).fold(0, |all, at| all | at);
                    let together = together(all, width).into();
                    let list = self.summands[place];
                    let arguments = [self.numbers_at, list, n, operands.bias, count, width, out, shared, together];
                    kernels.sum(on, self.moved, &arguments)
                }
            }
        }
    }

    /// Copies bytes to the same heap of a PE, and sets its word after them. A copy engine does both. Multiprocessors do
    /// it where a copy engine would begin too late, and the proxy does it for PEs that the GPU does not reach.
    ///
    /// Behind a failed wait no word is set. A copy engine copies all the same, to this plan's memory at the PE, which the
    /// kernel of the wait has told before that the plan is void.
    ///
    /// # Safety
    /// As for [`GpuAllGatherMatmul::post`].
    unsafe fn transfer(&self, on: &Stream, moved: &Transfer, word: Word, pe: Pe) -> Result<()> {
        let (kernels, plan) = (&self.kernels, self.own.at().get());
        let reach = kernels.device().state().reach();
        let words = self.words_at + 8 * word as u64;
        // SAFETY: the caller's promise; both addresses are in the plan's block, at a PE that is mapped.
        unsafe {
            match (reach.find(moved.dest, moved.bytes, pe), reach.find(words, 8, pe)) {
                (Some(to), Some(word)) if reach.in_gpus() => {
                    let moved = Transfer { dest: to, ..*moved };
                    if moved.bytes <= MOST_SENT_BY_KERNELS {
                        return kernels.send(on, plan, &moved, word);
                    }
                    let signalled = plan + offset_of!(Plan, signalled) as u64;
                    on.copy(DevicePtr::new(to), DevicePtr::new(moved.source), moved.bytes)?;
                    Ok(on.copy(DevicePtr::new(word), DevicePtr::new(signalled), 8)?)
                }
                (None, None) if self.quiets => kernels.put_nbi(on, plan, moved, word, pe, self.in_order),
                _ => {
                    kernels.put(on, plan, moved, pe)?;
                    kernels.signal(on, plan, word, pe)
                }
            }
        }
    }

    /// The address of gathered rows for a product. Those of a heap in host memory are first copied to this GPU's
    /// memory.
    ///
    /// # Safety
    /// As for [`GpuAllGatherMatmul::post`].
    unsafe fn here(&self, on: &Stream, rows: &Range<usize>) -> Result<u64> {
        let skipped = (rows.start * self.pitches()[0]) as u64;
        let from = self.numbers_at + skipped;
        let Some(here) = &self.rows_here else { return Ok(from) };
        let to = here.at().get() + skipped;
        let bytes = (rows.len() * self.pitches()[0]) as u64;
        if bytes > 0 {
            // SAFETY: both have space for all rows.
            unsafe { on.copy(DevicePtr::new(to), DevicePtr::new(from), bytes) }?;
        }
        Ok(to)
    }

    /// Multiplies rows at one address to another, and adds the numbers at a third, if there is one.
    ///
    /// # Safety
    /// As for [`GpuAllGatherMatmul::post`].
    unsafe fn multiply(
        &self,
        on: &Stream,
        rows: &Range<usize>,
        from: u64,
        to: u64,
        onto: u64,
        operands: &Operands,
    ) -> Result<()> {
        let it = self.kind(operands, rows.len(), onto != 0);
        if it.rows == 0 || it.outputs == 0 {
            return Ok(());
        }
        let chosen = self.chosen.get(&self.key(&it)).copied().unwrap_or_default();
        let Operands { weight, bias, scales, .. } = *operands;
        let places = Places { rows: from, weight, product: to, onto, bias, scales };
        // SAFETY: the caller's promise.
        Ok(unsafe { self.lt.multiply(on, &it, &chosen, &places) }?)
    }

    /// Bytes of a row of the first factor, and of the product.
    fn pitches(&self) -> [usize; 2] {
        let Multiplication { inputs, outputs, numbers: [of_rows, _, of_product], .. } = self.multiplication;
        [inputs * of_rows.size(), outputs * of_product.size()]
    }

    /// The description of a product of `rows` rows, for operands with these alignments.
    fn kind(&self, operands: &Operands, rows: usize, onto: bool) -> Multiplication {
        let gathers = matches!(self.product, Product::AllGatherMatmul);
        let [of_rows, of_product] = self.pitches().map(|bytes| bytes as u64);
        let here = self.rows_here.as_ref().map_or(self.numbers_at, |here| here.at().get());
        // All products of a round use the worst alignment among them.
        let from = if gathers { operands.rows | here } else { operands.rows };
        let to = if gathers { operands.output } else { operands.output | self.numbers_at };
        let aligned = [alignment(from | of_rows), alignment(operands.weight), alignment(to | of_product)];
        Multiplication { rows, aligned, has_bias: (gathers || onto) && operands.bias != 0, ..self.multiplication }
    }

    /// The key under which the algorithm for a product is stored.
    fn key(&self, it: &Multiplication) -> Multiplication {
        Multiplication { rows: self.chosen_for.unwrap_or(it.rows).max(1), ..*it }
    }

    /// Makes cuBLASLt choose the algorithms, for operands with these alignments.
    pub fn choose(&mut self, operands: &Operands) -> Result<()> {
        for place in 0..self.program.entries.len() {
            let (rows, onto) = match &self.program.entries[place].action {
                Action::Multiply { rows } | Action::MultiplyOwn { rows } => (rows.len(), false),
                Action::MultiplyOnto { rows, .. } => (rows.len(), true),
                _ => continue,
            };
            let it = self.kind(operands, rows, onto);
            let key = self.key(&it);
            if it.rows > 0 && it.outputs > 0 && !self.chosen.contains_key(&key) {
                let chosen = self.lt.choose(&key)?;
                self.chosen.insert(key, chosen);
            }
        }
        Ok(())
    }

    fn next_delay(&mut self) -> Option<u64> {
        let (most, seed) = self.delays.as_mut()?;
        *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        Some((*seed >> 33) % *most)
    }

    /// Returns the error that a kernel of this PE has reported. It needs no call of the driver.
    fn reported(&mut self) -> Result<()> {
        let Some(report) = Report::of(&self.report) else { return Ok(()) };
        self.broken = true;
        let (runtime, what) = (self.kernels.device().runtime(), self.product.name());
        Err(report.error(runtime.my_pe(), what, "a rank's word".into(), None, runtime.settings().timeout_s).into())
    }

    /// Signals all others that this rank gives up, and why, if it is known. Their waits end.
    pub fn give_up(&mut self, error: &Error) {
        self.broken = true;
        let word = self.block.base.wrapping_add((self.gone_at - self.words_at) as usize).cast::<u64>();
        Abort::send(self.kernels.device().runtime(), self.group, word, error.lost());
    }

    pub fn check(&mut self) -> Result<()> {
        self.reported()?;
        let device = self.kernels.device();
        let mut gone = [0; 8];
        // SAFETY: the word is this plan's.
        unsafe { device.gpu().read(DevicePtr::new(self.gone_at), &mut gone) }?;
        let (pe, what) = (device.runtime().my_pe(), self.product.name());
        Abort::check(u64::from_ne_bytes(gone), pe, what).inspect_err(|_| self.broken = true)?;
        Ok(device.state().check()?)
    }
}

/// Whether several numbers are summed at a time, in rows of `width` numbers, at addresses with these bits.
pub(super) fn together(addresses: u64, width: u64) -> bool {
    addresses.is_multiple_of(SUMMED_ALIGN) && width.is_multiple_of(SUMMED_TOGETHER)
}

/// Whether a step communicates with other ranks.
fn communicates(action: &Action) -> bool {
    matches!(
        action,
        Action::Wait { .. } | Action::Signal { .. } | Action::Put { .. } | Action::Send { .. } | Action::Share { .. }
    )
}

/// The alignment of an address, up to the largest that matters.
fn alignment(address: u64) -> u32 {
    1 << (address | MOST_ALIGNED).trailing_zeros()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alignments_are_of_addresses_and_rows_at_once() {
        assert_eq!(alignment(0), 256);
        assert_eq!(alignment(0x1000 | 6), 2);
        assert_eq!(alignment(0x1000 | 4096), 256);
        assert_eq!(alignment(1), 1);
    }
}
