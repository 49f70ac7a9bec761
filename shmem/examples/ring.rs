//! A token goes round the ring of PEs by put-signal; every PE adds its number and checks the token.
//!
//! `symrail run -n 4 -- target/release/examples/ring`

use symrail::{Cmp, Result, Runtime, SignalUpdate};

fn main() -> Result<()> {
    let rt = Runtime::init()?;
    let (me, n) = (rt.my_pe(), rt.n_pes());
    let token = rt.calloc(1, 8)?.cast::<u64>();
    let signal = rt.calloc(1, 8)?.cast::<u64>();
    let next = (me + 1) % n;
    let laps = 100u64;
    for lap in 1..=laps {
        let mut value = u64::from(me);
        if me != 0 {
            // SAFETY: the words are this PE's own symmetric memory.
            unsafe {
                rt.wait_until(signal, Cmp::Ge, lap)?;
                value += rt.peek(token)?;
            }
        }
        // SAFETY: the source lives until the call returns.
        unsafe { rt.put_signal(token.cast(), (&raw const value).cast(), 8, SignalUpdate::set(signal, lap), next) }?;
        if me == 0 {
            // SAFETY: as above.
            let sum = unsafe {
                rt.wait_until(signal, Cmp::Ge, lap)?;
                rt.peek(token)?
            };
            assert_eq!(sum, u64::from(n) * u64::from(n - 1) / 2, "lap {lap}");
        }
    }
    rt.barrier_all()?;
    if me == 0 {
        println!("ring: {laps} laps over {n} PEs, every sum right");
    }
    rt.finalize()
}
