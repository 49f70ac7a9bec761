//! Numbers of all PEs of a team: their maximum, all of them, whether they are equal.

use super::Team;
use crate::collective::reduction::Reduction;
use crate::error::{Error, Result};
use crate::rounds;

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
    pub(super) fn compare_as_many(&self, call: &'static str, parameters: &[(&'static str, u64)]) -> Result<()> {
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

    /// Whether a condition holds on all PEs. Collective over the team.
    ///
    /// # Errors
    /// A peer that does not answer.
    pub fn all(&self, here: bool) -> Result<bool> {
        let mut fails = [u64::from(!here)];
        self.max_of_all(&mut fails)?;
        Ok(fails == [0])
    }

    /// Whether a condition holds on any PE. Collective over the team.
    ///
    /// # Errors
    /// A peer that does not answer.
    pub fn any(&self, here: bool) -> Result<bool> {
        Ok(!self.all(!here)?)
    }

    /// Passes the result of this PE's part of a call on, if all PEs could do theirs. Collective over the team: a part
    /// that can fail on one PE alone is done before the PEs do what needs all of them.
    ///
    /// # Errors
    /// This PE's own; [`PeerRefused`](rounds::Error::PeerRefused) if only other PEs have failed; a peer that does not
    /// answer.
    pub fn all_or_none<T, E>(&self, what: &'static str, part: Result<T, E>) -> Result<T, E>
    where
        E: From<Error> + From<rounds::Error>,
    {
        let all = self.all(part.is_ok())?;
        let part = part?;
        if all { Ok(part) } else { Err(rounds::Error::PeerRefused { pe: self.runtime().my_pe(), what }.into()) }
    }

    /// [`Team::compare`] and [`Team::gather`] in one collective, with more only to find what differs. Collective over
    /// the team.
    ///
    /// # Errors
    /// This PE's own, if its arguments are not `valid`. Those of [`Team::compare`].
    /// [`PeerRefused`](rounds::Error::PeerRefused) if the arguments of another PE are not valid.
    pub fn compare_and_gather<E>(
        &self,
        call: &'static str,
        valid: Result<(), E>,
        parameters: &[(&'static str, u64)],
        own: &[u64],
    ) -> Result<Vec<u64>, E>
    where
        E: From<Error> + From<rounds::Error>,
    {
        let mut all = vec![("whether the arguments go together", u64::from(valid.is_ok()))];
        all.extend(parameters);
        let digest = all.iter().fold(all.len() as u64, |digest, (_, value)| {
            (digest.rotate_left(23) ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15)
        });
        let gathered = self.gather(&[&[digest], own].concat())?;
        let of_pes = gathered.chunks_exact(1 + own.len());
        // All PEs read the same numbers, so that either all of them compare their arguments, or none does.
        if of_pes.clone().any(|numbers| numbers[0] != digest) {
            let compared = self.compare(call, &all);
            valid?;
            compared?;
            return Err(rounds::Error::PeerRefused { pe: self.runtime().my_pe(), what: call }.into());
        }
        valid?;
        Ok(of_pes.flat_map(|numbers| &numbers[1..]).copied().collect())
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
