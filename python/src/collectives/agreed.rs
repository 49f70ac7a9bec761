//! The comparison of what PEs pass, before any data moves.

use pyo3::prelude::*;
use symrail_collectives::plan::Collective;

use super::{Call, Collectives};
use crate::errors::{Kind, raise_of};
use crate::interrupt::waiting;
use crate::view::View;

/// Names of the values that PEs compare, in the order of the words.
const COMPARED: [&str; 9] = [
    "collective",
    "operation",
    "dtype",
    "bytes of the input",
    "root",
    "algorithm",
    "symmetric address of the input",
    "symmetric address of the output",
    "kind of array",
];

impl Collectives {
    /// A call as numbers, in the order of [`COMPARED`].
    pub(super) fn words(&self, call: &Call, algorithm: Option<&str>) -> [u64; COMPARED.len()] {
        // FNV has the same result on all PEs, whatever compiler built them.
        let hash = |text: &str| {
            text.bytes()
                .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
        };
        let place = |view: &View| {
            let (span, rt) = (view.bounds(), self.team.job.runtime());
            let start = std::ptr::with_exposed_provenance(span.address());
            rt.symmetric_offset(start, span.bytes()).unwrap_or(u64::MAX)
        };
        let (mut input, mut output) = (place(&call.input), place(&call.output));
        // In place, the smaller array is each rank's own part of the larger one.
        let own = u64::from(self.team.group().me());
        match call.collective {
            Collective::AllGather if input == output.wrapping_add(own * call.input.bytes() as u64) => input = output,
            Collective::ReduceScatter if output == input.wrapping_add(own * call.output.bytes() as u64) => {
                output = input;
            }
            _ => {}
        }
        [
            hash(&format!("{:?}", call.collective)),
            hash(&format!("{:?}", call.reduction)),
            hash(&format!("{} {:?}", call.input.ty.name(), call.ty)),
            call.input.bytes() as u64,
            call.root.into(),
            hash(algorithm.unwrap_or("")),
            input,
            output,
            u64::from(call.input.gpu.is_some()),
        ]
    }

    /// Compares the parameters of all PEs; this PE's call may have been refused. If so, the caller raises its own
    /// exception.
    pub(super) fn agree(&self, py: Python<'_>, words: Option<[u64; COMPARED.len()]>) -> PyResult<()> {
        let mine = words.unwrap_or_default();
        let all = self.gather(py, words.is_some(), &mine)?;
        let Some(all) = all else { return Ok(()) };
        for (i, what) in COMPARED.iter().enumerate() {
            if let Some(other) = all.iter().position(|theirs| theirs[i] != mine[i]) {
                let pe = self.team.group().pe(other as u32);
                let (mine, theirs) = (mine[i], all[other][i]);
                let why =
                    format!("PE {pe} passes another {what} than this one ({theirs} and {mine}); nothing was sent");
                return Err(raise_of(Kind::Differ, &why, pe));
            }
        }
        Ok(())
    }

    /// The words of all PEs; `None` if this PE's call was refused; an error if another PE's was. Collective over the
    /// team.
    fn gather(&self, py: Python<'_>, good: bool, words: &[u64]) -> PyResult<Option<Vec<Vec<u64>>>> {
        let own = [&[u64::from(good)], words].concat();
        let team = &self.team;
        let all = waiting(py, None, || team.gather(&own))?;
        let refused = all.chunks(own.len()).position(|theirs| theirs[0] == 0);
        match (good, refused) {
            (false, _) => Ok(None),
            (true, None) => Ok(Some(all.chunks(own.len()).map(|theirs| theirs[1..].to_vec()).collect())),
            (true, Some(other)) => {
                let pe = self.team.group().pe(other as u32);
                let why =
                    format!("PE {pe} was refused what it passes, and its own exception says why; nothing was sent");
                Err(raise_of(Kind::Differ, &why, pe))
            }
        }
    }

    /// Compares all sends with all receives.
    pub(super) fn agree_on_parts(&self, py: Python<'_>, counts: Option<(&Vec<u64>, &Vec<u64>)>) -> PyResult<()> {
        let (n, me) = (self.n(), self.team.group().me() as usize);
        let own = counts.map_or_else(|| vec![0; 2 * n], |(from, to)| [&from[..], &to[..]].concat());
        let Some(all) = self.gather(py, counts.is_some(), &own)? else { return Ok(()) };
        // All pairs on all ranks: a rank whose own parts match must not begin either.
        for from in 0..n {
            for (to, theirs) in all.iter().enumerate() {
                let (sent, expected) = (all[from][to], theirs[n + from]);
                if sent != expected {
                    let pe = self.team.group().pe(if from == me { to } else { from } as u32);
                    let why = format!("rank {from} sends {sent} elements to rank {to}, which expects {expected}");
                    return Err(raise_of(Kind::Differ, &format!("{why}; nothing was sent"), pe));
                }
            }
        }
        Ok(())
    }
}
