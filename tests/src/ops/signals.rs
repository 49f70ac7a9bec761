//! Put-signals: a PE that observes the signal observes the bytes.

use symrail::{Cmp, Result, Runtime, SignalOp, SignalUpdate};

use super::Plan;
use crate::pattern;
use crate::pe::{before, doing, neighbour};

/// One way to put with a signal.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Call {
    Blocking,
    Nbi,
    Slice,
    SliceNbi,
}

/// Every way, size and kind of update.
///
/// # Errors
/// Those of the operations.
pub fn all(rt: &Runtime, plan: &Plan) -> Result<()> {
    let largest = plan.sizes.iter().max().copied().unwrap_or(0);
    let (me, peer, source) = (rt.my_pe(), neighbour(rt, 1), before(rt, 1));
    let (data, own) = (rt.alloc_slice::<u8>(largest)?, rt.alloc_slice::<u8>(largest)?);
    let signals = rt.alloc_slice::<u64>(3)?;
    let mut sum = 0;
    let mut round = 0;
    for &size in &plan.sizes {
        for call in [Call::Blocking, Call::Nbi, Call::Slice, Call::SliceNbi] {
            for op in [SignalOp::Set, SignalOp::Add] {
                round += 1;
                doing(format!("{call:?} {op:?} of {size} bytes"));
                // A value other than the present one, and other than any that the last operation could give.
                let value = if op == SignalOp::Set { 1_000_000 * round } else { 3 + round };
                sum = if op == SignalOp::Set { value } else { sum + value };
                let bytes = pattern::bytes(u64::from(me) << 32 | round, size);
                own.write_slice(0, &bytes)?;
                let (word, typed) =
                    (signals.as_ptr().wrapping_add(1), SignalUpdate { word: (&*signals, 1), value, op });
                let signal = SignalUpdate { word, value, op };
                // SAFETY: the sources have `size` bytes and do not change until the barrier.
                unsafe {
                    match call {
                        Call::Blocking => {
                            let mut private = bytes.clone();
                            rt.put_signal(data.as_ptr(), private.as_ptr(), size, signal, peer)?;
                            // The source may be re-used at once.
                            private.fill(0);
                            std::hint::black_box(&private);
                        }
                        Call::Nbi => rt.put_signal_nbi(data.as_ptr(), own.as_ptr(), size, signal, peer)?,
                        Call::Slice => data.put_signal(0, &bytes, typed, peer)?,
                        Call::SliceNbi => {
                            data.put_signal_nbi(0, &own, 0, size, typed, peer)?;
                        }
                    }
                }
                signals.wait_until(1, Cmp::Eq, sum)?;
                let mut found = vec![0; size];
                data.read_slice(0, &mut found)?;
                let what = || format!("PE {me}: {call:?} {op:?} of {size} bytes from PE {source}");
                pattern::check(&found, u64::from(source) << 32 | round, 0, &what);
                // Also keeps the peer from overwriting data that is being read, and completes non-blocking operations.
                rt.barrier_all()?;
            }
        }
    }
    for (value, op, expected) in [(7, SignalOp::Set, 7), (5, SignalOp::Add, 12), (1, SignalOp::Set, 1)] {
        signals.signal_op(1, value, op, peer)?;
        signals.wait_until(1, Cmp::Eq, expected)?;
        rt.barrier_all()?;
    }
    assert_eq!((signals.read(0)?, signals.read(2)?), (0, 0), "PE {me}: words beside the signal were touched");
    rt.barrier_all()?;
    signals.free()?;
    own.free()?;
    data.free()
}
