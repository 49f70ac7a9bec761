//! Blocks of several sizes go from all to all, or are summed, repeatedly, and the sources change as soon as a call has
//! returned. The argument is the number of calls of each kind. Each PE prints the number of posted writes and messages:
//! `KIND BYTES: WRITES writes, MESSAGES messages`.
use symrail::collective::Reduction;
use symrail::{Result, Runtime, SymSlice, Team};
use symrail_tests::pe;

/// Bytes of a block; odd numbers of words end in the middle of any unit.
const SIZES: [usize; 5] = [8, 4096, 4104, 16384, 65536];

pub fn main() -> std::process::ExitCode {
    let rounds = pe::arg(0, 100);
    pe::run(|rt| {
        let most = SIZES[SIZES.len() - 1] / 8 * rt.n_pes() as usize;
        let (source, dest) = (rt.alloc_slice::<u64>(most)?, rt.alloc_slice::<u64>(most)?);
        let blocks = Blocks { rt, team: rt.team_world()?, source, dest };
        for bytes in SIZES {
            for kind in ["alltoall", "sum", "fcollect", "broadcast"] {
                // The first call connects.
                blocks.call(kind, bytes, 0)?;
                rt.barrier_all()?;
                let before = blocks.posted();
                (1..=rounds).try_for_each(|round| blocks.call(kind, bytes, round))?;
                rt.quiet()?;
                let after = blocks.posted();
                println!("{kind} {bytes}: {} writes, {} messages", after.0 - before.0, after.1 - before.1);
                rt.barrier_all()?;
            }
        }
        Ok(())
    })
}

struct Blocks<'rt> {
    rt: &'rt Runtime,
    team: Team,
    source: SymSlice<u64>,
    dest: SymSlice<u64>,
}

/// Word `i` of PE `from`'s block for PE `to`.
fn word(from: u32, to: u32, round: u64, i: usize) -> u64 {
    u64::from(from) << 48 | u64::from(to) << 40 | round << 24 | i as u64
}

impl Blocks<'_> {
    /// One call: the same block to all except in an alltoall, and from all except in a broadcast.
    fn call(&self, kind: &str, bytes: usize, round: u64) -> Result<()> {
        let (me, n, words) = (self.rt.my_pe(), self.rt.n_pes(), bytes / 8);
        let to = |pe: u32| if kind == "alltoall" { pe } else { 0 };
        let root = (round % u64::from(n)) as u32;
        let of = |from: u32, to: u32| (0..words).map(move |i| word(from, to, round, i));
        let own: Vec<u64> = (0..n).flat_map(|pe| of(me, to(pe))).collect();
        self.source.write_slice(0, &own)?;
        let (dest, source) = (self.dest.as_ptr().cast(), self.source.as_ptr().cast());
        // SAFETY: both have space for a block of each PE; only these calls read and write them here.
        unsafe {
            match kind {
                "alltoall" => self.team.alltoall(dest, source, bytes),
                "fcollect" => self.team.fcollect(dest, source, bytes),
                "sum" => self.team.reduce(dest, source, words, Reduction::sum::<u64>()),
                _ => self.team.broadcast(dest, source, bytes, root),
            }
        }?;
        // Data that has not been sent yet would now belong to another round.
        self.source.fill(u64::MAX)?;
        let expected: Vec<u64> = match kind {
            "broadcast" => of(root, 0).collect(),
            "sum" => (0..words).map(|i| (0..n).map(|pe| word(pe, 0, round, i)).sum()).collect(),
            _ => (0..n).flat_map(|pe| of(pe, to(me))).collect(),
        };
        let mut found = vec![0; expected.len()];
        self.dest.read_slice(0, &mut found)?;
        assert!(found == expected, "{kind} of {bytes} bytes, round {round}: PE {me} has something else");
        // The next call may overwrite it.
        self.rt.sync_all()
    }

    fn posted(&self) -> (u64, u64) {
        let counters = self.rt.counters();
        (counters.iter().map(|lane| lane.writes).sum(), counters.iter().map(|lane| lane.messages).sum())
    }
}
