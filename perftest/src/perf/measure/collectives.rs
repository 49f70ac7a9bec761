//! Collectives of devices, with nccl-tests' bus bandwidth: the least that a link of a PE must carry, so that figures of
//! different numbers of PEs compare.

use symrail::Runtime;
use symrail_collectives::{Buffer, Communicator, DataType, ReduceOp};

use super::Bench;
use crate::perf::backend::Backend;
use crate::perf::catalog::Collective;
use crate::perf::error::{Error, Result};
use crate::perf::sample::Figures;

/// Bytes of an element.
const ELEMENT: usize = size_of::<f32>();

/// Elements of a part: of the whole data, or of a PE's data for each other PE.
fn part(what: Collective, size: usize, n_pes: usize) -> usize {
    let whole = matches!(what, Collective::AllReduce | Collective::Broadcast | Collective::Reduce);
    let parts = if whole { 1 } else { n_pes };
    (size / ELEMENT / parts).max(1)
}

impl<C: Backend> Bench<'_, C> {
    /// Measures one size: bytes of the larger of input and output. PE 0 returns the figures. Collective.
    pub fn collective(&mut self, rt: &Runtime, what: Collective, size: usize) -> Result<Option<Figures>> {
        let (me, n) = (rt.my_pe() as usize, rt.n_pes() as usize);
        let part = part(what, size, n);
        let (inputs, outputs) = match what {
            Collective::AllReduce | Collective::Broadcast | Collective::Reduce => (1, 1),
            Collective::AllGather => (1, n),
            Collective::ReduceScatter => (n, 1),
            Collective::AllToAll => (n, n),
        };
        let source = rt.alloc_slice::<f32>(inputs * part)?;
        let dest = rt.alloc_slice::<f32>(outputs * part)?;
        source.fill(me as f32 + 1.0)?;
        rt.barrier_all()?;
        let mut all = Communicator::new(rt)?;
        let (input, output) = (Buffer::of(&source)?, Buffer::of(&dest)?);
        let (ty, op) = (DataType::Float32, ReduceOp::Sum);
        let mut call = || match what {
            Collective::AllReduce => all.all_reduce(input, output, ty, op),
            Collective::AllGather => all.all_gather(input, output),
            Collective::ReduceScatter => all.reduce_scatter(input, output, ty, op),
            Collective::AllToAll => all.all_to_all(input, output),
            Collective::Broadcast => all.broadcast(input, output, 0),
            Collective::Reduce => all.reduce(input, output, ty, op, 0),
        };
        call()?;
        let sum = (n * (n + 1) / 2) as f32;
        for (i, found) in dest.to_vec()?.into_iter().enumerate() {
            let expected = match what {
                Collective::Reduce if me != 0 => 0.0,
                Collective::AllReduce | Collective::ReduceScatter | Collective::Reduce => sum,
                Collective::Broadcast => 1.0,
                Collective::AllGather | Collective::AllToAll => (i / part + 1) as f32,
            };
            if found != expected {
                let (test, at) = (self.test.name, i * ELEMENT);
                let (found, expected) = (found.to_ne_bytes()[3], expected.to_ne_bytes()[3]);
                return Err(Error::WrongData { test, size, pe: rt.my_pe(), at, found, expected });
            }
        }
        let (samples, warmup) = self.timed_together(size, |_| Ok(call()?))?;
        all.free()?;
        dest.free()?;
        source.free()?;
        let factor = match what {
            Collective::AllReduce => 2.0 * (n - 1) as f64 / n as f64,
            Collective::Broadcast | Collective::Reduce => 1.0,
            _ => (n - 1) as f64 / n as f64,
        };
        let bytes = (inputs.max(outputs) * part * ELEMENT) as f64;
        Ok(self.is_first().then(|| samples.rate(bytes * factor, 1, warmup)))
    }
}
