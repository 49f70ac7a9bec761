//! Every operation, verified at the other end.
//!
//! | module | operations |
//! |---|---|
//! | [`blocks`] | put, put_nbi, get, get_nbi of bytes, of many sizes and alignments, between kinds of memory |
//! | [`typed`] | p, g, iput, iget, slices of all types |
//! | [`amos`] | every AMO on every type, with and without the old value |
//! | [`signals`] | put_signal, put_signal_nbi, signal_op |
//! | [`waits`] | wait_until and test, of one word and of many |

pub mod amos;
pub mod blocks;
pub mod signals;
pub mod typed;
pub mod waits;

use symrail::{Result, Runtime};

/// The amount of work.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Sizes in bytes.
    pub sizes: Vec<usize>,
    /// All alignments, types and distances; otherwise few.
    pub thorough: bool,
}

impl Plan {
    /// `full`, `small` (for a second test of a path), `brief` (the same for slow machines) or `tiny` (for very slow
    /// providers).
    ///
    /// # Panics
    /// There is no such plan.
    #[must_use]
    pub fn named(name: &str) -> Plan {
        const K: usize = 1 << 10;
        let sizes: &[usize] = match name {
            "full" => {
                let around_64k = [64 * K - 1, 64 * K, 64 * K + 1];
                &[&[0, 1, 7, 8, 63, 64, 65, 4 * K - 1, 4 * K, 4 * K + 1], &around_64k[..], &[1024 * K + 3, 5120 * K]]
                    .concat()
            }
            "small" => &[0, 1, 8, 65, 4 * K + 1, 64 * K + 1, 1024 * K + 3],
            "brief" => &[0, 8, 65, 4 * K + 1, 64 * K + 1],
            "tiny" => &[0, 8, 4 * K + 1],
            _ => panic!("no plan {name}"),
        };
        Plan { sizes: sizes.to_vec(), thorough: name != "tiny" }
    }
}

/// Runs all operations.
///
/// # Errors
/// Those of the operations.
///
/// # Panics
/// Data is wrong.
pub fn all(rt: &Runtime, plan: &Plan) -> Result<()> {
    blocks::all(rt, plan)?;
    typed::all(rt, plan)?;
    amos::all(rt, plan)?;
    signals::all(rt, plan)?;
    waits::all(rt, plan)
}
