//! Numbers of all PEs of a team: their maximum, all of them, whether they are equal.

use super::Team;
use crate::collective::reduction::Reduction;
use crate::error::{Error, Result};

/// A reduction of up to 8 KiB accepts numbers in any memory.
const AT_ONCE: usize = 1024;

impl Team {
    /// Replaces each number by the largest one at its index on any PE. Collective over the team; all PEs pass as many.
    ///
    /// # Errors
    /// A peer that does not answer.
    pub fn max_of_all(&self, numbers: &mut [u64]) -> Result<()> {
        self.combine(numbers, Reduction::max::<u64>())
    }

    /// The numbers of all PEs, in the order of the PEs' indexes. Collective over the team; all PEs pass as many.
    ///
    /// # Errors
    /// A peer that does not answer.
    pub fn gather(&self, own: &[u64]) -> Result<Vec<u64>> {
        let mut all = vec![0; own.len() * self.group().size() as usize];
        all[own.len() * self.group().me() as usize..][..own.len()].copy_from_slice(own);
        self.combine(&mut all, Reduction::or::<u64>())?;
        Ok(all)
    }

    /// Compares named parameters of a call among all PEs. Collective over the team.
    ///
    /// # Errors
    /// [`Error::ParametersDiffer`] on all PEs, with the first parameter that differs on another PE; two PEs with equal
    /// values report a third one. Or a peer that does not answer.
    pub fn compare(&self, call: &'static str, parameters: &[(&'static str, u64)]) -> Result<()> {
        self.compare_as_many(call, &[("the number of parameters", parameters.len() as u64)])?;
        self.compare_as_many(call, parameters)
    }

    /// As [`Team::compare`], if all PEs pass as many parameters.
    fn compare_as_many(&self, call: &'static str, parameters: &[(&'static str, u64)]) -> Result<()> {
        let own: Vec<u64> = parameters.iter().map(|(_, value)| *value).collect();
        let all = self.gather(&own)?;
        for (i, &(what, mine)) in parameters.iter().enumerate() {
            let of_all = all.iter().skip(i).step_by(own.len());
            if let Some((other, &theirs)) = (0..).zip(of_all).find(|(_, theirs)| **theirs != mine) {
                let (pe, other) = (self.group().pe(self.group().me()), self.group().pe(other));
                return Err(Error::ParametersDiffer { call, what, pe, mine, other, theirs });
            }
        }
        Ok(())
    }

    /// Combines numbers of all PEs, index by index.
    pub(super) fn combine(&self, numbers: &mut [u64], reduction: Reduction) -> Result<()> {
        debug_assert_eq!(reduction.size(), size_of::<u64>());
        for part in numbers.chunks_mut(AT_ONCE) {
            let words = part.as_mut_ptr().cast::<u8>();
            // SAFETY: the words are this call's own, both in and out; so few may be in any memory.
            unsafe { self.reduce(words, words, part.len(), reduction) }?;
        }
        Ok(())
    }
}
