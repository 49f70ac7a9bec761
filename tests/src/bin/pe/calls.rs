//! Random collectives of random teams, of random sizes, back to back, among puts that no call waits for. A source is
//! overwritten as soon as the call has returned, and destinations are checked much later. All PEs draw the same calls
//! from a seed. The arguments are the first seed and the number of seeds; and `hidden`, to make heaps unmappable,
//! wherever they are.
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use symrail::collective::Reduction;
use symrail::{Group, Result, Runtime, SymSlice, Team};
use symrail_tests::pattern::mix;
use symrail_tests::pe;

/// Words of everything that calls use between two barriers.
const ARENA: usize = 1 << 19;
const CALLS: u64 = 60;
/// The most words that a PE contributes for each PE; and sizes near whose multiples an algorithm changes.
const MOST: usize = 12_000;
const TURNING_POINTS: [usize; 6] = [2, 512, 1023, 1024, 2048, 3072];
/// Overwrites sources.
const USED: u64 = u64::MAX;

pub fn main() -> std::process::ExitCode {
    let (first, seeds) = (pe::arg(0, 0), pe::arg(1, 10));
    let hidden = pe::arg(2, String::new()) == "hidden";
    if hidden {
        hide();
    }
    pe::run(|rt| {
        assert!(!hidden || (0..rt.n_pes()).all(|pe| pe == rt.my_pe() || !rt.is_mapped(pe)), "it can be mapped");
        let arena = rt.alloc_slice::<u64>(ARENA)?;
        for seed in first..first + seeds {
            pe::doing(format!("seed {seed}"));
            Session::new(rt, &arena, seed)?.run()?;
        }
        arena.free()
    })
}

/// Hides this process from unprivileged ones, and drops its own right to inspect others.
fn hide() {
    /// See capset(2): version 3, for this thread, with no capability of three kinds, in two halves.
    const HEADER: [u32; 2] = [0x2008_0522, 0];
    const NONE: [u32; 6] = [0; 6];
    // SAFETY: both calls only read their arguments, and change rights of this process alone.
    let done = unsafe {
        [
            libc::prctl(libc::PR_SET_DUMPABLE, 0, 0, 0, 0).into(),
            libc::syscall(libc::SYS_capset, HEADER.as_ptr(), NONE.as_ptr()),
        ]
    };
    assert_eq!(done, [0, 0], "{}", std::io::Error::last_os_error());
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Sum,
    SumInPlace,
    SumOfBlocks,
    Broadcast,
    Fcollect,
    Collect,
    Alltoall,
    Sync,
}

/// A call as all PEs know it, including PEs outside its team.
#[derive(Debug, Clone)]
struct Call {
    number: u64,
    kind: Kind,
    /// The PEs, by index in the team.
    members: Vec<u32>,
    words: usize,
    root: u32,
    /// Before the call each member puts `mail` words to the PE at this distance behind it.
    mail: usize,
    shift: u32,
}

/// The offsets of a call's words in the arena.
#[derive(Debug, Clone, Copy)]
struct Places {
    source: usize,
    dest: usize,
    outbox: usize,
    inbox: usize,
    end: usize,
}

impl Call {
    /// The number of words that a member contributes for `to`.
    fn words_of(&self, index: usize) -> usize {
        let some = || mix(self.number, index as u64) as usize % (self.words + 1);
        if self.kind == Kind::Collect { some() } else { self.words }
    }

    fn word(&self, from: usize, to: usize, i: usize) -> u64 {
        mix(self.number << 16 | (from as u64) << 8 | to as u64, i as u64)
    }

    /// A member's contribution.
    fn source(&self, index: usize) -> Vec<u64> {
        let of = |to: usize| (0..self.words_of(index)).map(move |i| self.word(index, to, i));
        match self.kind {
            Kind::Alltoall | Kind::SumOfBlocks => (0..self.members.len()).flat_map(of).collect(),
            Kind::Sync => Vec::new(),
            _ => of(0).collect(),
        }
    }

    /// A member's result.
    fn result(&self, index: usize) -> Vec<u64> {
        let n = self.members.len();
        let of = |from: usize, to: usize| (0..self.words_of(from)).map(move |i| self.word(from, to, i));
        match self.kind {
            Kind::Sum | Kind::SumInPlace | Kind::SumOfBlocks => {
                let to = if self.kind == Kind::SumOfBlocks { index } else { 0 };
                let sum = |i: usize| (0..n).fold(0u64, |sum, from| sum.wrapping_add(self.word(from, to, i)));
                (0..self.words).map(sum).collect()
            }
            Kind::Broadcast => of(self.root as usize, 0).collect(),
            Kind::Fcollect | Kind::Collect => (0..n).flat_map(|from| of(from, 0)).collect(),
            Kind::Alltoall => (0..n).flat_map(|from| of(from, index)).collect(),
            Kind::Sync => Vec::new(),
        }
    }

    fn letter(&self, pe: u32) -> Vec<u64> {
        (0..self.mail).map(|i| mix(!self.number, u64::from(pe) << 32 | i as u64)).collect()
    }

    fn places(&self, at: usize) -> Places {
        let most = |of: &dyn Fn(usize) -> usize| (0..self.members.len()).map(of).max().unwrap_or(0);
        let dest = at + most(&|index| self.source(index).len());
        let outbox = dest + most(&|index| self.result(index).len());
        let dest = if self.kind == Kind::SumInPlace { at } else { dest };
        Places { source: at, dest, outbox, inbox: outbox + self.mail, end: outbox + 2 * self.mail }
    }
}

struct Session<'a> {
    rt: &'a Runtime,
    arena: &'a SymSlice<u64>,
    random: StdRng,
    /// Each PE draws its own numbers from it.
    own: StdRng,
    world: Team,
    /// Teams in order, with their PEs; a PE has the teams that it is in.
    teams: Vec<(Vec<u32>, Option<Team>)>,
    /// The calls since the last barrier.
    calls: Vec<(Call, Places)>,
    at: usize,
}

impl<'a> Session<'a> {
    fn new(rt: &'a Runtime, arena: &'a SymSlice<u64>, seed: u64) -> Result<Self> {
        let random = StdRng::seed_from_u64(seed);
        let own = StdRng::seed_from_u64(seed << 16 | u64::from(rt.my_pe()));
        let teams = Vec::new();
        Ok(Session { rt, arena, random, own, world: rt.team_world()?, teams, calls: Vec::new(), at: 0 })
    }

    fn run(mut self) -> Result<()> {
        for number in 0..CALLS {
            if number % 20 == 0 {
                self.change_teams()?;
            }
            let call = self.draw(number);
            self.make(&call)?;
        }
        self.look_again()?;
        self.leave_teams()
    }

    fn leave_teams(&mut self) -> Result<()> {
        self.teams.drain(..).filter_map(|(_, team)| team).try_for_each(Team::destroy)
    }

    fn change_teams(&mut self) -> Result<()> {
        self.leave_teams()?;
        let n = self.rt.n_pes();
        for _ in 0..self.random.random_range(1..=3) {
            let start = self.random.random_range(0..n);
            let stride: i64 = self.random.random_range(-2..=3);
            let most = (1..=n).take_while(|&size| Group::new(start.into(), stride, size.into(), start, n).is_some());
            let size = self.random.random_range(1..=most.last().unwrap());
            let all = |pe| Group::new(start.into(), stride, size.into(), pe, n);
            let Some(group) = all(start) else { continue };
            let members = (0..group.size()).map(|index| group.pe(index)).collect();
            self.teams.push((members, self.world.split(all(self.rt.my_pe()))?));
        }
        Ok(())
    }

    fn draw(&mut self, number: u64) -> Call {
        let kinds = [
            Kind::Sum,
            Kind::Sum,
            Kind::SumInPlace,
            Kind::SumOfBlocks,
            Kind::Broadcast,
            Kind::Broadcast,
            Kind::Fcollect,
            Kind::Collect,
            Kind::Alltoall,
            Kind::Alltoall,
            Kind::Sync,
        ];
        let everybody: Vec<u32> = (0..self.rt.n_pes()).collect();
        let of = self.random.random_range(0..self.teams.len() + 1);
        let members = self.teams.get(of).map_or(everybody, |(members, _)| members.clone());
        let kind = kinds[self.random.random_range(0..kinds.len())];
        let words = match self.random.random_range(0..3) {
            0 => {
                let point = TURNING_POINTS[self.random.random_range(0..TURNING_POINTS.len())];
                point * self.random.random_range(1..=4) + self.random.random_range(0..3) - 1
            }
            1 => self.random.random_range(1..40),
            _ => self.random.random_range(1..MOST),
        };
        let root = self.random.random_range(0..members.len() as u32);
        let mail = if self.random.random_bool(0.3) { self.random.random_range(1..700) } else { 0 };
        let shift = self.random.random_range(1..self.rt.n_pes().max(2));
        Call { number, kind, members, words, root, mail, shift }
    }

    fn make(&mut self, call: &Call) -> Result<()> {
        let mut places = call.places(self.at);
        if places.end > ARENA {
            self.look_again()?;
            places = call.places(0);
        }
        self.at = places.end;
        self.calls.push((call.clone(), places));
        let me = self.rt.my_pe();
        let Some(index) = call.members.iter().position(|&pe| pe == me) else { return Ok(()) };
        if self.own.random_bool(0.1) {
            let spin = self.own.random_range(0..100_000);
            (0..spin).for_each(|_| std::hint::spin_loop());
        }
        let source = call.source(index);
        self.arena.write_slice(places.source, &source)?;
        self.arena.write_slice(places.outbox, &call.letter(me))?;
        if call.mail > 0 {
            let to = (me + call.shift) % self.rt.n_pes();
            self.arena.put_nbi(places.inbox, self.arena, places.outbox, call.mail, to)?;
        }
        let world = &self.world;
        let team = self.teams.iter().find(|(members, _)| *members == call.members);
        let team = team.and_then(|(_, team)| team.as_ref()).unwrap_or(world);
        let at = |word: usize| self.arena.as_ptr().wrapping_add(word).cast::<u8>();
        let (to, from, bytes) = (at(places.dest), at(places.source), 8 * call.words_of(index));
        // SAFETY: the offsets have space for the contributions and results of all members, and only this call uses them
        // until all have arrived.
        // have arrived.
        unsafe {
            match call.kind {
                Kind::Sum | Kind::SumInPlace => team.reduce(to, from, call.words, Reduction::sum::<u64>()),
                Kind::SumOfBlocks => team.reduce_scatter(to, from, call.words, Reduction::sum::<u64>()),
                Kind::Broadcast => team.broadcast(to, from, bytes, call.root),
                Kind::Fcollect => team.fcollect(to, from, bytes),
                Kind::Collect => team.collect(to, from, bytes),
                Kind::Alltoall => team.alltoall(to, from, bytes),
                Kind::Sync => team.sync(),
            }
        }?;
        if call.kind != Kind::SumInPlace {
            self.arena.write_slice(places.source, &vec![USED; source.len()])?;
        }
        self.check(places.dest, &call.result(index), "at once", call);
        Ok(())
    }

    fn check(&self, at: usize, expected: &[u64], when: &str, call: &Call) {
        let mut found = vec![0; expected.len()];
        self.arena.read_slice(at, &mut found).unwrap();
        if found != expected {
            let wrong: Vec<usize> = (0..found.len()).filter(|&i| found[i] != expected[i]).collect();
            let (first, last) = (wrong[0], wrong[wrong.len() - 1]);
            let me = self.rt.my_pe();
            panic!("PE {me}, {when}: {} words are wrong, from {first} to {last}: {call:?}", wrong.len());
        }
    }

    /// Checks that nothing has arrived too late, and that all mail has arrived. Then everything may be reused.
    fn look_again(&mut self) -> Result<()> {
        self.world.barrier()?;
        let (me, n) = (self.rt.my_pe(), self.rt.n_pes());
        for (call, places) in self.calls.drain(..).collect::<Vec<_>>() {
            if let Some(index) = call.members.iter().position(|&pe| pe == me) {
                self.check(places.dest, &call.result(index), "later", &call);
            }
            let from = (me + n - call.shift % n) % n;
            if call.mail > 0 && call.members.contains(&from) {
                self.check(places.inbox, &call.letter(from), "its mail", &call);
            }
        }
        self.at = 0;
        self.world.barrier()
    }
}
