//! A round on a GPU: the steps of a program on streams, and what has gone wrong with them.

use symrail::kernels::cuda::{DevicePtr, Stream};
use symrail_cuda::cublaslt::{Chosen, Number, Places, Product as Multiplication};

use super::plan::{GpuPlan, SCALE_ALIGN};
use super::shape::Operands;
use crate::error::{Error, Result};
use crate::exchange::Product;
use crate::program::{Action, PRODUCTS, Round};

/// Words of the report, and the reason of a wait that has lasted too long: `symrail/semaphore.cuh`.
const REASON: usize = 0;
const PE: usize = 1;
const LATE: u64 = 1;
/// What addresses of the driver's memory are multiples of, and what cuBLASLt asks for at most.
const MOST_ALIGNED: u64 = 256;

impl GpuPlan<'_> {
    /// # Safety
    /// As for [`GpuAllGatherMatmul::post`].
    pub unsafe fn post(&mut self, stream: &Stream, operands: &Operands) -> Result<()> {
        if self.broken {
            let pe = self.kernels.device.runtime().my_pe();
            return Err(Error::Broken { pe, product: self.product.name() });
        }
        self.reported()?;
        let chosen = self.choose(operands)?;
        self.broken = true;
        let plan = self.own.at().get();
        // SAFETY: the plan is there; the caller keeps it, and the operands.
        let operands = unsafe {
            self.kernels.begin(stream, plan)?;
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
            if let (Some(delay), Action::Wait { .. } | Action::Tell { .. } | Action::Put { .. }) =
                (delay, &entry.action)
            {
                self.kernels.delay(on, delay)?;
            }
            // SAFETY: the caller's promise.
            unsafe { self.act(on, place, operands, &chosen) }?;
            if let Some(event) = &self.steps[place] {
                event.record(on)?;
            }
        }
        for (lane, event) in self.streams.iter().zip(&self.ended) {
            event.record(lane)?;
            stream.wait_for(event)?;
        }
        self.broken = false;
        Ok(())
    }

    /// Where cuBLASLt takes the scales, on this stream: a scale that lies elsewhere is copied.
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

    /// Puts a step on its lane's stream.
    ///
    /// # Safety
    /// As for [`GpuAllGatherMatmul::post`].
    unsafe fn act(
        &self,
        on: &Stream,
        place: usize,
        operands: &Operands,
        (multiplication, chosen): &(Multiplication, Chosen),
    ) -> Result<()> {
        let (kernels, plan, size) = (self.kernels, self.own.at().get(), self.moved.bytes());
        let number = |at: usize| self.numbers_at + (at * size) as u64;
        let pe = |rank: usize| self.group.pe(rank as u32);
        // SAFETY: the plan's memory, at the places of its program, and the caller's promise for the operands: of all
        // below.
        unsafe {
            match &self.program.entries[place].action {
                &Action::Wait { from, word, round } => {
                    kernels.wait(on, plan, word, u64::from(round == Round::Before), pe(from))
                }
                &Action::Tell { to, word } => kernels.tell(on, plan, word, pe(to)),
                Action::Keep { rows } | Action::Take { rows } if rows.len() == 0 => Ok(()),
                Action::Keep { rows } => {
                    let bytes = (rows.len() * size) as u64;
                    Ok(on.copy(DevicePtr::new(number(rows.at)), DevicePtr::new(operands.rows), bytes)?)
                }
                Action::Get { from, rows } => {
                    let (at, bytes) = (number(rows.at), (rows.len() * size) as u64);
                    Ok(kernels.moves.get(on, at, at, bytes, pe(*from))?)
                }
                Action::Put { to, rows, at, word } => {
                    let bytes = (rows.len() * size) as u64;
                    if bytes > 0 {
                        kernels.moves.put(on, number(*at), number(rows.at), bytes, pe(*to))?;
                    }
                    kernels.tell(on, plan, *word, pe(*to))
                }
                Action::Multiply { rows } => {
                    let it = Multiplication { rows: rows.len(), ..*multiplication };
                    if it.rows == 0 || it.outputs == 0 {
                        return Ok(());
                    }
                    let gathers = matches!(self.product, Product::AllGatherMatmul);
                    let [from, to] =
                        if gathers { [self.numbers_at, operands.output] } else { [operands.rows, self.numbers_at] };
                    let places = Places {
                        rows: from + (rows.start * it.inputs * it.numbers[0].bytes()) as u64,
                        weight: operands.weight,
                        product: to + (rows.start * it.outputs * it.numbers[2].bytes()) as u64,
                        bias: operands.bias,
                        scales: operands.scales,
                    };
                    Ok(self.lt.multiply(on, &it, chosen, &places)?)
                }
                Action::Sum { rows, summands, shared } => {
                    if rows.len() == 0 {
                        return Ok(());
                    }
                    let out = operands.output + ((rows.rows.start - self.first) * rows.width * size) as u64;
                    let shared = if *shared { number(rows.at) } else { 0 };
                    let list = self.summands[place];
                    let (count, width) = (rows.rows.len() as u64, rows.width as u64);
                    let n = summands.len() as u64;
                    let arguments = [self.numbers_at, list, n, operands.bias, count, width, out, shared];
                    kernels.sum(on, self.moved, &arguments)
                }
                Action::Take { rows } => {
                    let out = operands.output + (rows.rows.start * rows.width * size) as u64;
                    let bytes = (rows.len() * size) as u64;
                    Ok(on.copy(DevicePtr::new(out), DevicePtr::new(number(rows.at)), bytes)?)
                }
            }
        }
    }

    /// How numbers are summed, for operands that lie as these do.
    pub fn choose(&mut self, operands: &Operands) -> Result<(Multiplication, Chosen)> {
        let gathers = matches!(self.product, Product::AllGatherMatmul);
        let it = &self.multiplication;
        let pitch = |columns: usize, number: Number| (columns * number.bytes()) as u64;
        let (of_rows, of_product) = (pitch(it.inputs, it.numbers[0]), pitch(it.outputs, it.numbers[2]));
        let (rows, product) =
            if gathers { (self.numbers_at, operands.output) } else { (operands.rows, self.numbers_at) };
        let aligned = [alignment(rows | of_rows), alignment(operands.weight), alignment(product | of_product)];
        let wanted = Multiplication { aligned, has_bias: gathers && operands.bias != 0, ..*it };
        if wanted.outputs == 0 {
            return Ok((wanted, Chosen::default()));
        }
        if let Some(&known) = self.chosen.get(&wanted) {
            return Ok((wanted, known));
        }
        let known = self.lt.choose(&wanted)?;
        self.chosen.insert(wanted, known);
        Ok((wanted, known))
    }

    fn next_delay(&mut self) -> Option<u64> {
        let (most, seed) = self.delays.as_mut()?;
        *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        Some((*seed >> 33) % *most)
    }

    /// What a kernel of this PE has reported: no call of the driver is needed for it.
    fn reported(&mut self) -> Result<()> {
        let device = self.kernels.device;
        let (pe, product) = (device.runtime().my_pe(), self.product);
        let (reason, of) = (self.report.word(REASON), self.report.word(PE));
        self.broken |= reason != 0;
        match reason {
            0 => Ok(()),
            LATE => {
                let (product, late, seconds) = (product.name(), of as u32, device.runtime().settings().timeout_s);
                Err(Error::Late { pe, product, late, seconds })
            }
            // One less than the word that the other PE has told.
            _ => Error::told(pe, product, of + 1),
        }
    }

    pub fn check(&mut self) -> Result<()> {
        self.reported()?;
        let device = self.kernels.device;
        let mut gone = [0; 8];
        // SAFETY: a word of this plan.
        unsafe { device.gpu().read(DevicePtr::new(self.gone_at), &mut gone) }?;
        let pe = device.runtime().my_pe();
        Error::told(pe, self.product, u64::from_ne_bytes(gone)).inspect_err(|_| self.broken = true)?;
        Ok(device.state().check()?)
    }
}

/// What an address is a multiple of, as far as that matters.
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
