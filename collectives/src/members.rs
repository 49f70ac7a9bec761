//! The PEs of a communicator, which are its ranks: all of the job, or a team's. They wait for one another, exchange
//! numbers, and allocate memory together. Each of these waits ends within `SYMRAIL_TIMEOUT_S`.

use symrail::device::CpuDevice;
use symrail::kernels::cpu::{Grid, Symmetric};
use symrail::team::heap::Block;
use symrail::{Pe, Runtime, SymSlice, Team, TeamHeap, with_timeout};

use crate::error::{Error, Result};
use crate::plan::Plan;
use crate::run::Buffer;

/// The members of a communicator.
#[derive(Clone)]
pub(crate) struct Members {
    team: Team,
    /// The heap in which they allocate without other PEs. Without one they are all PEs, which allocate in the symmetric
    /// heap itself.
    heap: Option<TeamHeap>,
}

impl Members {
    /// All PEs of the job. Collective.
    ///
    /// # Errors
    /// As for [`Runtime::team_world`].
    pub fn all(runtime: &Runtime) -> Result<Self> {
        let team = with_timeout(runtime.timeout(), || runtime.team_world())?;
        Ok(Members { team, heap: None })
    }

    /// A team's PEs.
    ///
    /// # Errors
    /// Team and heap do not both belong to this runtime.
    pub fn of_team(runtime: &Runtime, team: &Team, heap: &TeamHeap) -> Result<Self> {
        let others = [("team", !team.is_of(runtime)), ("team's heap", !heap.runtime().is_same(runtime))];
        match others.iter().find(|(_, is_other)| *is_other) {
            None => Ok(Members { team: team.clone(), heap: Some(heap.clone()) }),
            Some((what, _)) => Err(Error::OtherRuntime { what, pe: runtime.my_pe() }),
        }
    }

    pub fn runtime(&self) -> &Runtime {
        self.team.runtime()
    }

    /// The members as a team.
    pub fn team(&self) -> &Team {
        &self.team
    }

    /// This PE's rank.
    pub fn me(&self) -> u32 {
        self.team.group().me()
    }

    /// The number of members.
    pub fn n(&self) -> u32 {
        self.team.group().size()
    }

    /// The PE of rank `rank`.
    pub fn pe(&self, rank: usize) -> Pe {
        self.team.group().pe(rank as u32)
    }

    /// Waits for all members.
    pub fn sync(&self) -> Result<()> {
        Ok(self.with_timeout(|| self.team.sync())?)
    }

    /// Completes this PE's puts, and waits for all members.
    pub fn barrier(&self) -> Result<()> {
        Ok(self.with_timeout(|| self.team.barrier())?)
    }

    /// The numbers of all members, in the order of ranks.
    pub fn gather(&self, own: &[u64]) -> Result<Vec<u64>> {
        Ok(self.with_timeout(|| self.team.gather(own))?)
    }

    fn with_timeout<R>(&self, wait: impl FnOnce() -> R) -> R {
        with_timeout(self.runtime().timeout(), wait)
    }

    /// Refuses a plan for another number of ranks.
    pub fn suit(&self, plan: &Plan) -> Result<()> {
        let (ranks, pes) = (plan.ranks(), self.n() as usize);
        if ranks == pes {
            return Ok(());
        }
        Err(Error::Call(format!("plan {} is for {ranks} PEs, and the communicator has {pes}", plan.name())))
    }

    /// Allocates `bytes` zeros, at the same offset of all their heaps, aligned for words. Collective.
    pub fn take(&self, bytes: usize) -> Result<Taken> {
        let memory = self.with_timeout(|| match &self.heap {
            Some(heap) => heap.take_words(&self.team, bytes).map(Memory::OfTeam),
            None => self.runtime().alloc_slice(bytes.div_ceil(8)).map(Memory::OfAll),
        })?;
        Ok(Taken { memory, bytes, members: self.clone() })
    }
}

/// Bytes at the same offset of all members' heaps.
pub(crate) struct Taken {
    memory: Memory,
    bytes: usize,
    members: Members,
}

enum Memory {
    OfAll(SymSlice<u64>),
    OfTeam(Block),
}

impl Taken {
    /// Their address on this PE.
    pub fn start(&self) -> *const u8 {
        match &self.memory {
            Memory::OfAll(slice) => slice.as_ptr().cast(),
            Memory::OfTeam(block) => block.base.cast_const(),
        }
    }

    /// The bytes as a call's buffer.
    pub fn buffer(&self) -> Result<Buffer> {
        Buffer::at(self.members.runtime(), self.start(), self.bytes)
    }

    /// The bytes as words, for kernels of the CPU device.
    pub fn words(&self, device: &CpuDevice) -> Result<Symmetric<u64>> {
        let offset = self.members.runtime().symmetric_offset(self.start(), self.bytes)?;
        Ok(device.symmetric_at(offset, self.bytes as u64 / 8)?)
    }

    /// Sets all of this PE's bytes to 0 again, if the CPU can access them.
    pub fn wipe(&self) -> Result<()> {
        const ZEROS: [u8; 8 << 10] = [0; 8 << 10];
        let device = self.members.runtime().cpu_device()?;
        let offset = self.members.runtime().symmetric_offset(self.start(), self.bytes)?;
        let memory = device.symmetric_at::<u8>(offset, self.bytes as u64)?;
        device.launch(Grid { blocks: 1, threads_per_block: 1 }, |thread| {
            for start in (0..self.bytes).step_by(ZEROS.len()) {
                let zeros = &ZEROS[..(self.bytes - start).min(ZEROS.len())];
                thread.store_local(memory.part(start as u64, zeros.len() as u64)?, zeros)?;
            }
            Ok::<_, Error>(())
        })?;
        Ok(())
    }

    /// Frees them. Collective.
    pub fn free(self) -> Result<()> {
        let Taken { memory, members, .. } = self;
        Ok(members.with_timeout(|| match memory {
            Memory::OfAll(slice) => slice.free(),
            Memory::OfTeam(block) => block.free(&members.team),
        })?)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic)]
mod tests {
    use super::*;
    use symrail::Settings;
    use symrail::bootstrap::single::Single;

    #[test]
    fn members_are_of_one_runtime() {
        let alone = || {
            let mut settings = Settings::default();
            settings.heap_size = 32 << 20;
            Runtime::join(settings, Box::new(Single::default())).unwrap()
        };
        let (one, other) = (alone(), alone());
        let teams = [&one, &other].map(|runtime| runtime.team_world().unwrap());
        let heaps = [&one, &other].map(|runtime| TeamHeap::new(runtime, 1 << 20).unwrap());
        assert!(Members::of_team(&one, &teams[0], &heaps[0]).is_ok());
        for (team, heap, expected) in [(1, 0, "the team of a"), (0, 1, "the team's heap of a"), (1, 1, "the team of a")]
        {
            match Members::of_team(&one, &teams[team], &heaps[heap]) {
                Err(error) => assert!(error.to_string().contains(expected), "{error}"),
                Ok(_) => panic!("team {team} and heap {heap} were taken"),
            }
        }
    }
}
