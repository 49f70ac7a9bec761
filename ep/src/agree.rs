//! What all ranks must have in common, compared when buffers are made.

use symrail::Runtime;

use crate::error::{Error, Result};

/// Compares named numbers of all ranks. Collective.
///
/// # Errors
/// [`Error::Differ`], on every rank.
pub fn agree(rt: &Runtime, numbers: &[(&'static str, u64)]) -> Result<()> {
    let (me, n) = (rt.my_pe() as usize, numbers.len());
    let mine: Vec<u64> = numbers.iter().map(|(_, number)| *number).collect();
    let all = rt.alloc_slice::<u64>(n * rt.n_pes() as usize)?;
    for pe in 0..rt.n_pes() {
        all.put(me * n, &mine, pe)?;
    }
    rt.barrier_all()?;
    let told = all.to_vec();
    all.free()?;
    for (other, theirs) in told.chunks(n).enumerate() {
        for (&(what, here), &there) in numbers.iter().zip(theirs) {
            if here != there {
                return Err(Error::Differ { what, me: me as u32, here, other: other as u32, there });
            }
        }
    }
    Ok(())
}
