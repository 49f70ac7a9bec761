//! Checks when all blocks have ended: signals, results, and what ranks know of one another.

use super::memory::Clock;
use super::{Barriers, BufferType, Collective, Place, RankState, Result, World, number};

impl World<'_> {
    pub(super) fn check_signals(&self) -> Result<()> {
        for (number, (rank, state)) in self.plan.ranks.iter().zip(&self.ranks).enumerate() {
            for word in &state.words {
                if let Some((_, place)) = word.signals.get(word.waits) {
                    let (sent, waits) = (word.signals.len(), word.waits);
                    let reason = format!("rank {number} does not wait for it: {sent} signals, {waits} waits");
                    return Err(self.plan.refuse(*place, reason));
                }
            }
            let place = Place { rank: Some(number), ..Place::default() };
            for (id, ((now, _), before)) in state.semaphores.iter().zip(&rank.semaphores).enumerate() {
                if now != before {
                    let reason = format!("semaphore {id} begins with {before} and ends with {now}");
                    return Err(self.plan.refuse(place, reason));
                }
            }
        }
        Ok(())
    }

    /// Returns the root of a broadcast or of a reduction to one rank.
    pub(super) fn check_result(&self) -> Result<Option<u32>> {
        let n = self.ranks.len();
        let sum = |unit: u64| (0..n).fold(0u128, |sum, rank| sum.wrapping_add(number(rank, unit)));
        // The target of a reduction is the first rank that has the result. The outputs of other ranks are not checked.
        let reduced_at = (0..n).find(|&rank| self.output(rank, 0) == sum(0)).unwrap_or(0);
        // The root of a broadcast is the rank whose input rank 0 got.
        let root = (0..n).find(|&root| self.output(0, 0) == number(root, 0)).unwrap_or(0);
        for rank in 0..n {
            let outputs = self.plan.ranks[rank].output_chunks * self.units;
            for unit in 0..outputs {
                let (from, within) = ((unit / self.part) as usize, unit % self.part);
                let own = rank as u64 * self.part;
                let expected = match &self.plan.collective {
                    Collective::AllReduce => sum(unit),
                    Collective::AllGather => number(from, within),
                    Collective::ReduceScatter => sum(own + unit),
                    Collective::AllToAll => number(from, own + within),
                    Collective::Broadcast => number(root, unit),
                    Collective::Reduce if rank != reduced_at => continue,
                    Collective::Reduce => sum(unit),
                    Collective::Other(_) => return Ok(None),
                };
                if self.output(rank, unit) != expected {
                    let place = Place { rank: Some(rank), ..Place::default() };
                    let (chunk, collective) = (unit / self.units, &self.plan.collective);
                    let reason = format!("chunk {chunk} of its output is not what {collective} gives");
                    return Err(self.plan.refuse(place, reason));
                }
            }
        }
        Ok(match &self.plan.collective {
            Collective::Broadcast => Some(root as u32),
            Collective::Reduce => Some(reduced_at as u32),
            _ => None,
        })
    }

    fn output(&self, rank: usize, unit: u64) -> u128 {
        let (array, at) = self.cell(rank, BufferType::Output, unit);
        self.ranks[rank].user[array].value(at).unwrap_or_default()
    }

    pub(super) fn barriers(&self) -> Barriers {
        let mut ends = vec![Clock::new(self.blocks.len()); self.ranks.len()];
        self.blocks.iter().for_each(|block| ends[block.rank].learn(&block.clock));
        let of_all = |holds: &dyn Fn(&RankState, &Clock) -> bool| {
            self.ranks.iter().zip(&ends).all(|(state, end)| holds(state, end))
        };
        // A rank may end a call knowing that the ranks to which it writes packets have begun it. Then it knows that
        // they have finished the call before, which used the other half of the scratch buffer.
        let begun = |state: &RankState, end: &Clock| {
            state.writes_to.iter().all(|&rank| end.knows_any(self.blocks_of[rank].clone()))
        };
        let packets_alternate = self.plan.packet_halves == 2 && of_all(&begun);
        let has_packets = self.ranks.iter().any(|state| !state.writes_to.is_empty());
        // A rank that has begun a call has finished the call before; then no rank uses its scratch buffer of that call
        // any more.
        let scratch_is_left = of_all(&|state, end| state.scratch.is_known(end));
        let user_is_left = of_all(&|state, end| state.user.iter().all(|memory| memory.is_known(end)));
        // A rank that ends a call knows of the ranks whose scratch chunks it accesses that they have begun it, and so
        // have finished the call before. The next call uses that call's half.
        let known = self.scratch_of.iter().all(|&(rank, other)| ends[rank].knows_any(self.blocks_of[other].clone()));
        let scratch_alternates = self.plan.scratch_halves == 2 && scratch_is_left && known;
        let [early, early_scratch] = self.early;
        let before =
            early || early_scratch && !scratch_alternates || !scratch_is_left || has_packets && !packets_alternate;
        Barriers { before, after: !user_is_left, leaves_puts: scratch_alternates && self.plan.puts_scratch_only() }
    }
}
