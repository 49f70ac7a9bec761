//! One-sided calls on streams: puts with a signal, signals, and waits for them.

use std::ffi::{c_int, c_uint, c_void};
use std::sync::Arc;

use symrail::kernels::cuda::DevicePtr;
use symrail_core::{CCount, CList};

use crate::communicator::Communicator;
use crate::export::nccl;
use crate::group::{self, Work, submit};
use crate::guard::Failure;
use crate::one_sided::{CONTEXTS, Call, SIGNALS, Signal};
use crate::types::{CudaStream, Handle, data_type};
use crate::{registry, window};

/// `ncclWaitSignalDesc_t`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wait {
    count: c_int,
    peer: c_int,
    signal: c_int,
    context: c_int,
}

/// A signal to or from a rank of `size`.
fn signal(size: u32, peer: c_int, index: c_int, context: c_int) -> Result<Signal, Failure> {
    let below = |what: &str, value: c_int, limit: u32| {
        let known = u32::try_from(value).ok().filter(|&value| value < limit);
        known.ok_or_else(|| Failure::argument(format!("{what} is {value}, and has to be below {limit}")))
    };
    Ok(Signal {
        peer: below("the peer", peer, size)?,
        context: below("ctx", context, CONTEXTS)?,
        index: below("sigIdx", index, SIGNALS)?,
    })
}

/// The signals and numbers of a list of waits.
fn waits(size: u32, list: &[Wait]) -> Result<Vec<(Signal, u64)>, Failure> {
    let one = |(place, wait): (usize, &Wait)| {
        let signal = signal(size, wait.peer, wait.signal, wait.context)?;
        let count = u64::try_from(wait.count).ok().filter(|&count| count > 0);
        let count = count.ok_or_else(|| Failure::argument(format!("opCnt is {}, and has to be above 0", wait.count)));
        count.map(|count| (signal, count)).map_err(|failure| failure.within(&format!("descriptor {place}")))
    };
    list.iter().enumerate().map(one).collect()
}

fn none(flags: c_uint) -> Result<(), Failure> {
    if flags == 0 { Ok(()) } else { Err(Failure::argument(format!("flags is {flags}, and has to be 0"))) }
}

/// The communicator, if calls on it can succeed.
fn usable(comm: Handle) -> Result<Arc<Communicator>, Failure> {
    let communicator = registry::find(comm)?;
    communicator.check_failed()?;
    Ok(communicator)
}

/// The communicator, and the signal that a call with these flags sends there.
fn to_peer(
    comm: Handle,
    peer: c_int,
    index: c_int,
    context: c_int,
    flags: c_uint,
) -> Result<(Arc<Communicator>, Signal), Failure> {
    let communicator = usable(comm)?;
    let signal = signal(communicator.size, peer, index, context)?;
    none(flags)?;
    Ok((communicator, signal))
}

nccl! {
    fn ncclPutSignal(
        from: *const c_void,
        count: usize,
        ty: c_int,
        peer: c_int,
        window: Handle,
        offset: usize,
        index: c_int,
        context: c_int,
        flags: c_uint,
        comm: Handle,
        stream: CudaStream,
    ) of comm {
        group::call(|| {
            let (communicator, signal) = to_peer(comm, peer, index, context, flags)?;
            let window = window::find_of(comm, window)?;
            let bytes = (count as u64).checked_mul(data_type(ty)?.size() as u64);
            let bytes = bytes.ok_or_else(|| Failure::argument(format!("{count} elements are too many")))?;
            if from.is_null() {
                return Err(Failure::argument("localbuff is a null pointer"));
            }
            let to = window.find(signal.peer, offset, bytes)??;
            let put = Call::Put { to, _window: window, from: DevicePtr::new(from.addr() as u64), bytes, signal };
            submit(communicator, stream, Work::OneSided(put))
        })
    }
}

nccl! {
    fn ncclSignal(
        peer: c_int,
        index: c_int,
        context: c_int,
        flags: c_uint,
        comm: Handle,
        stream: CudaStream,
    ) of comm {
        group::call(|| {
            let (communicator, signal) = to_peer(comm, peer, index, context, flags)?;
            submit(communicator, stream, Work::OneSided(Call::Signal(signal)))
        })
    }
}

nccl! {
    fn ncclWaitSignal(count: CCount, list: CList<Wait>, comm: Handle, stream: CudaStream) of comm {
        group::call(|| {
            let communicator = usable(comm)?;
            let refused = || Failure::argument(format!("{} descriptors at {list:?}", count.get()));
            let waits = waits(communicator.size, &list.get(count).ok_or_else(refused)?)?;
            submit(communicator, stream, Work::OneSided(Call::Wait(waits)))
        })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::guard::INVALID_ARGUMENT;

    #[test]
    fn what_no_rank_has_is_refused() {
        assert_eq!(signal(4, 3, 15, 3).unwrap(), Signal { peer: 3, context: 3, index: 15 });
        for (peer, index, context, words) in [
            (4, 0, 0, "the peer is 4, and has to be below 4"),
            (-1, 0, 0, "the peer is -1"),
            (0, 16, 0, "sigIdx is 16, and has to be below 16"),
            (0, -1, 0, "sigIdx is -1"),
            (0, 0, 4, "ctx is 4, and has to be below 4"),
        ] {
            let (code, text) = signal(4, peer, index, context).unwrap_err().into();
            assert!(code == INVALID_ARGUMENT && text.contains(words), "{text}");
        }
        assert!(none(0).is_ok() && none(1).is_err());
    }

    #[test]
    fn waits_are_for_one_signal_at_least() {
        let wait = |count| Wait { count, peer: 1, signal: 2, context: 0 };
        let signal = Signal { peer: 1, context: 0, index: 2 };
        assert_eq!(waits(2, &[wait(5), wait(1)]).unwrap(), [(signal, 5), (signal, 1)]);
        for count in [0, -3] {
            let (code, text) = waits(2, &[wait(1), wait(count)]).unwrap_err().into();
            assert!(code == INVALID_ARGUMENT && text.contains(&format!("descriptor 1: opCnt is {count}")), "{text}");
        }
    }
}
