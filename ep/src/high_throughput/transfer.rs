//! Rows in blocks: a block holds as many rows as fit. A rank alternates between sending and reading blocks until it is
//! done.

use symrail::Pe;

use crate::error::Result;
use crate::exchange::{Exchange, Wait, WaitLimit};
use crate::plan::rows::RowFormat;
use crate::statistics::Statistics;

/// The parameters of one call's transfer of rows.
pub struct Transfer<'a> {
    exchange: &'a mut Exchange,
    statistics: &'a mut Statistics,
    format: RowFormat,
    limit: WaitLimit,
    /// The name of the call, for errors.
    what: &'static str,
}

/// Writes bytes of a row at an offset.
type Write<'a> = &'a mut dyn FnMut(usize, &[u8]) -> Result<()>;
/// Reads bytes of a row at an offset.
pub type Read<'a> = &'a mut dyn FnMut(usize, &mut [u8]) -> Result<()>;

impl<'a> Transfer<'a> {
    pub fn new(
        exchange: &'a mut Exchange,
        statistics: &'a mut Statistics,
        format: RowFormat,
        limit: WaitLimit,
        what: &'static str,
    ) -> Transfer<'a> {
        Transfer { exchange, statistics, format, limit, what }
    }

    /// Sends the given numbers of rows to each rank and receives the given numbers from each. `pack` writes a row to be
    /// sent, from its rank and index, and `unpack` reads one that has arrived. Rows of this rank for itself are copied.
    ///
    /// # Errors
    /// [`TimedOut`](symrail::rounds::Error::TimedOut) if no block has arrived or left for the whole time limit; errors
    /// of the runtime.
    pub fn run(
        self,
        out: &[u32],
        into: &[u32],
        mut pack: impl FnMut(usize, usize, Write<'_>) -> Result<()>,
        mut unpack: impl FnMut(usize, usize, Read<'_>) -> Result<()>,
    ) -> Result<()> {
        let Transfer { exchange, format, limit, what, statistics } = self;
        let (rt, row, ranks) = (&exchange.runtime().clone(), format.bytes(), out.len());
        let (me, fit) = (rt.my_pe() as usize, exchange.block() / row);
        copy_own(me, out[me] as usize, row, &mut pack, &mut unpack)?;
        statistics.sent(rt, me as Pe, out[me] as usize, out[me] as usize * row);
        let (mut sent, mut read) = (vec![0; ranks], vec![0; ranks]);
        (sent[me], read[me]) = (out[me] as usize, into[me] as usize);
        let mut wait = Wait::new(rt, limit);
        loop {
            let mut moved = false;
            for rank in (1..ranks).map(|distance| (me + distance) % ranks) {
                let (pe, left) = (rank as Pe, out[rank] as usize - sent[rank]);
                if left > 0 && exchange.has_room(pe)? {
                    let rows = left.min(fit);
                    for i in 0..rows {
                        pack(rank, sent[rank] + i, &mut |at, bytes| exchange.write(pe, i * row + at, bytes))?;
                    }
                    exchange.send(pe, rows * row)?;
                    statistics.sent(rt, pe, rows, rows * row);
                    sent[rank] += rows;
                    moved = true;
                }
                let left = into[rank] as usize - read[rank];
                if left > 0 && exchange.has_arrived(pe)? {
                    let rows = left.min(fit);
                    for i in 0..rows {
                        unpack(rank, read[rank] + i, &mut |at, bytes| exchange.read(pe, i * row + at, bytes))?;
                    }
                    exchange.give_back(pe)?;
                    read[rank] += rows;
                    moved = true;
                }
            }
            let missing = |rank: &usize| sent[*rank] < out[*rank] as usize || read[*rank] < into[*rank] as usize;
            if moved {
                wait.restart();
            } else if !(0..ranks).any(|rank| missing(&rank)) {
                return Ok(());
            } else if let Some(ended) = wait.pause() {
                return Err(wait.error(ended, what, (0..ranks).filter(missing).map(|rank| rank as Pe).collect()));
            }
        }
    }
}

fn copy_own(
    me: usize,
    rows: usize,
    row_bytes: usize,
    pack: &mut impl FnMut(usize, usize, Write<'_>) -> Result<()>,
    unpack: &mut impl FnMut(usize, usize, Read<'_>) -> Result<()>,
) -> Result<()> {
    let mut bytes = vec![0; row_bytes];
    for row in 0..rows {
        pack(me, row, &mut |at, part| {
            bytes[at..][..part.len()].copy_from_slice(part);
            Ok(())
        })?;
        unpack(me, row, &mut |at, part| {
            part.copy_from_slice(&bytes[at..][..part.len()]);
            Ok(())
        })?;
    }
    Ok(())
}
