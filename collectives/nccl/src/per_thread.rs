//! The calling thread's own stream, in calls that begin on other threads: there its handle is that of another stream.

use symrail::kernels::cuda::{Event, Stream};

use crate::communicator::Communicator;
use crate::guard::Failure;
use crate::types::CudaStream;

/// `cudaStreamPerThread`
const PER_THREAD: CudaStream = 2;

/// A stream in the place of the calling thread's own one.
pub struct StandIn {
    own: Stream,
    stream: Stream,
    event: Event,
}

impl StandIn {
    /// A stream of the communicator's GPU, whose work follows the work so far on the calling thread's own one there.
    pub fn begin(communicator: &Communicator) -> Result<(CudaStream, StandIn), Failure> {
        communicator.with(|inside| {
            let gpu = inside.collectives.gpu();
            let (own, stream, event) = (inside.stream(PER_THREAD), Stream::new(gpu)?, Event::new(gpu)?);
            event.record(&own)?;
            stream.wait_for(&event)?;
            Ok((stream.raw().expose_provenance(), StandIn { own, stream, event }))
        })
    }

    /// Makes later work on the calling thread's own stream wait for the work so far on this one.
    pub fn end(&self) -> Result<(), Failure> {
        self.event.record(&self.stream)?;
        Ok(self.own.wait_for(&self.event)?)
    }
}

/// Puts a stream that `begin` returns, one for each GPU, in the place of the calling thread's own one. Returns what
/// `begin` returns beside.
pub fn replace<'a, C: 'a, S>(
    streams: impl Iterator<Item = (&'a mut CudaStream, &'a C)>,
    gpu: impl Fn(&C) -> i32,
    begin: impl Fn(&C) -> Result<(CudaStream, S), Failure>,
) -> Result<Vec<S>, Failure> {
    let (mut gpus, mut begun): (Vec<(i32, CudaStream)>, _) = (Vec::new(), Vec::new());
    for (stream, communicator) in streams.filter(|(stream, _)| **stream == PER_THREAD) {
        let gpu = gpu(communicator);
        if let Some((_, other)) = gpus.iter().find(|(known, _)| *known == gpu) {
            *stream = *other;
            continue;
        }
        let (other, stand_in) = begin(communicator)?;
        gpus.push((gpu, other));
        begun.push(stand_in);
        *stream = other;
    }
    Ok(begun)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn the_thread_s_own_stream_has_one_in_its_place_on_each_gpu() {
        let (gpus, mut streams) = ([0, 1, 0, 1, 0], [2, 2, 7, 0, 2]);
        let begin = |gpu: &i32| Ok((100 + *gpu as usize, *gpu));
        assert_eq!(replace(streams.iter_mut().zip(&gpus), |gpu| *gpu, begin).unwrap(), [0, 1]);
        assert_eq!(streams, [100, 101, 7, 0, 100]);
    }
}
