//! The programs of all ranks at once, with their lanes in random order, as streams of several GPUs may run them. No
//! data move. Each number in memory records its round and its meaning, so that the tests find a row that is overwritten
//! too early, or that is read too late or before it arrived.
#![allow(clippy::unwrap_used)]

use proptest::prelude::*;

use super::gather::{self, Gather};
use super::pushed;
use super::reduce::{self, Reduce};
use super::{Action, Entry, PRODUCTS, Place, Program, Round, Rows};
use crate::exchange::Sizes;
use crate::product::Reduced;
use crate::shards::{Schedule, Shards};

/// The meaning of a number in memory: the round, and what its owner has made of its row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Value {
    round: u64,
    what: What,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum What {
    #[default]
    Nothing,
    /// A row of the matrix.
    Row(usize),
    /// A rank's product of a row.
    Product(usize, usize),
    /// The sum of all ranks' products of a row.
    Sum(usize),
}

struct Rank {
    program: Program,
    round: u64,
    /// The steps of this round that have begun, and those that have ended.
    begun: Vec<bool>,
    ended: Vec<bool>,
    words: Vec<u64>,
    memory: Vec<Value>,
    /// Rows that the caller got in this round.
    output: Vec<bool>,
    /// The sums among them.
    sums: Vec<Value>,
}

/// What carries programs out: the host, or a GPU whose copy engines reach the ranks of these bits.
#[derive(Debug, Clone, Copy)]
enum Device {
    Host,
    Gpu(u32),
}

/// All ranks, and whether they gather.
struct Job {
    ranks: Vec<Rank>,
    gathers: bool,
    rows: usize,
}

impl Job {
    fn gather(shards: &Shards, schedule: Schedule, device: Device) -> Job {
        let make = |me| {
            let gather = Gather { shards, width: 1, schedule, me };
            match device {
                Device::Gpu(reached) if !matches!(schedule, Schedule::Ring { .. }) => {
                    pushed::gather(&gather, |rank| reached >> rank & 1 == 1)
                }
                _ => gather.program(),
            }
        };
        let sizes = Sizes { words: gather::words(shards, schedule), numbers: gather::numbers(shards, 1) };
        Job { ranks: ranks(shards, make, sizes), gathers: true, rows: shards.rows() }
    }

    fn reduce(shards: &Shards, schedule: Schedule, reduced: Reduced, device: Device) -> Job {
        let make = |me| {
            let reduce = Reduce { shards, width: 1, schedule, reduced, me };
            match device {
                Device::Gpu(reached) if pushed::sums_in_products(shards.ranks()) => {
                    pushed::reduce(&reduce, |rank| reached >> rank & 1 == 1)
                }
                _ => reduce.program(),
            }
        };
        let sizes = Sizes { words: reduce::words(shards, schedule), numbers: reduce::numbers(shards, 1, reduced) };
        Job { ranks: ranks(shards, make, sizes), gathers: false, rows: shards.rows() }
    }

    /// Whether a rank can begin a step now.
    fn can_begin(&self, rank: usize, place: Place) -> bool {
        let it = &self.ranks[rank];
        let Entry { lane, action, after } = &it.program.entries[place];
        let has_word = match action {
            &Action::Wait { word, round, .. } => {
                it.words[word] >= if round == Round::This { it.round } else { it.round - 1 }
            }
            _ => true,
        };
        let mut before = it.program.of_lane(*lane).take_while(|&other| other != place);
        !it.begun[place]
            && has_word
            && before.all(|other| it.ended[other])
            && after.iter().all(|&other| it.ended[other])
    }

    /// Begins or ends a step. Copies read when they begin and again when they end: the source must stay unchanged so
    /// long.
    fn go_on(&mut self, rank: usize, place: Place) {
        let begins = !self.ranks[rank].begun[place];
        let round = self.ranks[rank].round;
        let action = self.ranks[rank].program.entries[place].action.clone();
        match &action {
            Action::Get { from, rows } => self.copy((*from, rows.at), (rank, rows.at), rows, round, begins),
            Action::Put { to, rows, at, .. } => self.copy((rank, rows.at), (*to, *at), rows, round, begins),
            Action::Multiply { rows } => {
                for row in rows.clone() {
                    if self.gathers {
                        self.ranks[rank].expect(row, Value { round, what: What::Row(row) });
                        self.ranks[rank].output[row] |= !begins;
                    } else {
                        self.ranks[rank].memory[row] = Value { round, what: What::Product(rank, row) };
                    }
                }
            }
            Action::MultiplyOwn { rows } => {
                rows.clone().for_each(|row| self.ranks[rank].output[row] |= !begins);
            }
            Action::MultiplyOnto { rows, onto } => {
                let of = (rank + 1) % self.ranks.len();
                for (i, row) in rows.clone().enumerate() {
                    self.ranks[rank].expect(onto + i, Value { round, what: What::Product(of, row) });
                    self.ranks[rank].output[row] |= !begins;
                    self.ranks[rank].sums[row] = Value { round, what: What::Sum(row) };
                }
            }
            Action::Send { to, rows, .. } => {
                let value = |row| Value { round, what: What::Row(row) };
                self.write(*to, rows, rows.rows.clone().map(value).collect(), begins);
            }
            Action::Share { to, rows, .. } => {
                let values = self.ranks[rank].sums[rows.rows.clone()].to_vec();
                assert!(values.iter().all(|value| value.round == round), "{rows:?} of rank {rank}");
                self.write(*to, rows, values, begins);
            }
            Action::KeepSums { rows } => {
                let values = self.ranks[rank].sums[rows.rows.clone()].to_vec();
                self.write(rank, rows, values, begins);
            }
            Action::Keep { rows } => {
                for (i, row) in rows.rows.clone().enumerate() {
                    self.ranks[rank].memory[rows.at + i] = Value { round, what: What::Row(row) };
                }
            }
            Action::Sum { rows, summands, .. } => {
                let ranks = self.ranks.len();
                for (i, row) in rows.rows.clone().enumerate() {
                    for (n, at) in summands.iter().enumerate() {
                        let of = (rank + ranks - 1 - n) % ranks;
                        self.ranks[rank].expect(at + i, Value { round, what: What::Product(of, row) });
                    }
                    self.ranks[rank].output[row] |= !begins;
                    if let Some(sum) = self.ranks[rank].memory.get_mut(rows.at + i) {
                        *sum = Value { round, what: What::Sum(row) };
                    }
                }
            }
            Action::Take { rows } => {
                for (i, row) in rows.rows.clone().enumerate() {
                    self.ranks[rank].expect(rows.at + i, Value { round, what: What::Sum(row) });
                    self.ranks[rank].output[row] |= !begins;
                }
            }
            Action::Wait { .. } | Action::Signal { .. } | Action::Quiet => {}
        }
        if begins {
            self.ranks[rank].begun[place] = true;
            return;
        }
        self.ranks[rank].ended[place] = true;
        if let Action::Signal { to, word }
        | Action::Put { to, word, .. }
        | Action::Send { to, word, .. }
        | Action::Share { to, word, .. } = action
        {
            self.ranks[to].words[word] = round;
        }
    }

    /// The first or second half of a copy. The source must hold numbers of the round. The destination loses its old
    /// numbers when the copy begins.
    fn copy(&mut self, from: (usize, usize), to: (usize, usize), rows: &Rows, round: u64, begins: bool) {
        let values = self.ranks[from.0].memory[from.1..from.1 + rows.len()].to_vec();
        for value in &values {
            assert_eq!(value.round, round, "{rows:?} of {from:?} to {to:?}");
        }
        self.write(to.0, &Rows { at: to.1, ..rows.clone() }, values, begins);
    }

    /// The first or second half of a write. After the first half the numbers are neither the old nor the new ones.
    fn write(&mut self, to: usize, rows: &Rows, values: Vec<Value>, begins: bool) {
        for (at, value) in (rows.at..).zip(values) {
            self.ranks[to].memory[at] = if begins { Value { round: 0, what: What::Nothing } } else { value };
        }
    }

    /// Advances random steps of all ranks until all ranks have completed `rounds` rounds.
    fn run(&mut self, rounds: u64, mut random: impl FnMut(usize) -> usize) {
        loop {
            let (mut can, mut advanced) = (Vec::new(), false);
            for rank in 0..self.ranks.len() {
                if self.ranks[rank].ended.iter().all(|&ended| ended) && self.ranks[rank].round < rounds {
                    self.ranks[rank].next_round();
                    advanced = true;
                }
                for place in 0..self.ranks[rank].program.entries.len() {
                    let under_way = self.ranks[rank].begun[place] && !self.ranks[rank].ended[place];
                    if under_way || self.can_begin(rank, place) {
                        can.push((rank, place));
                    }
                }
            }
            if can.is_empty() && !advanced {
                break;
            }
            if can.is_empty() {
                continue;
            }
            let (rank, place) = can[random(can.len())];
            self.go_on(rank, place);
        }
        for rank in &self.ranks {
            assert!(rank.round == rounds && rank.ended.iter().all(|&ended| ended), "a rank waits for ever");
        }
    }
}

fn ranks(shards: &Shards, make: impl Fn(usize) -> Program, Sizes { words, numbers }: Sizes) -> Vec<Rank> {
    let rank = |me| {
        let program: Program = make(me);
        let steps = program.entries.len();
        let (words, memory) = (vec![0; words], vec![Value::default(); numbers]);
        let (output, sums) = (vec![false; shards.rows()], vec![Value::default(); shards.rows()]);
        Rank { program, round: 0, begun: vec![true; steps], ended: vec![true; steps], words, memory, output, sums }
    };
    (0..shards.ranks()).map(rank).collect()
}

impl Rank {
    fn expect(&self, at: usize, wanted: Value) {
        assert_eq!(self.memory[at], wanted, "round {} at {at}", self.round);
    }

    fn next_round(&mut self) {
        self.round += 1;
        for ended in [&mut self.begun, &mut self.ended] {
            ended.fill(false);
        }
        self.output.fill(false);
    }
}

fn schedules() -> impl Strategy<Value = Schedule> {
    (0..3, 1usize..6).prop_map(|(kind, rows)| match kind {
        0 => Schedule::Unfused,
        1 => Schedule::Direct { rows },
        _ => Schedule::Ring { rows },
    })
}

fn devices() -> impl Strategy<Value = Device> {
    (any::<bool>(), 0u32..32).prop_map(|(host, reached)| if host { Device::Host } else { Device::Gpu(reached) })
}

fn random(mut seed: u64) -> impl FnMut(usize) -> usize {
    move |below| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) as usize % below
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn gathered_rows_are_those_of_the_round_whatever_lane_is_late(
        rows in prop::collection::vec(0usize..8, 1..5), schedule in schedules(), device in devices(), seed: u64
    ) {
        let mut job = Job::gather(&Shards::new(&rows), schedule, device);
        job.run(3, random(seed));
        for rank in &job.ranks {
            prop_assert!(rank.output.iter().all(|&made| made));
        }
    }

    #[test]
    fn sums_are_of_all_products_of_the_round_whatever_lane_is_late(
        rows in prop::collection::vec(0usize..8, 1..5), schedule in schedules(), everywhere: bool, device in devices(),
        seed: u64
    ) {
        let (shards, reduced) = (Shards::new(&rows), if everywhere { Reduced::Everywhere } else { Reduced::ToShards });
        let mut job = Job::reduce(&shards, schedule, reduced, device);
        job.run(3, random(seed));
        for (me, rank) in job.ranks.iter().enumerate() {
            let wanted = if everywhere { 0..job.rows } else { shards.of(me) };
            prop_assert!(rank.output[wanted].iter().all(|&made| made));
        }
    }

    #[test]
    fn steps_can_be_done_one_by_one_in_their_order(
        rows in prop::collection::vec(0usize..8, 1..5), schedule in schedules(), gathers: bool, device in devices()
    ) {
        let shards = Shards::new(&rows);
        let mut job = match gathers {
            true => Job::gather(&shards, schedule, device),
            false => Job::reduce(&shards, schedule, Reduced::Everywhere, device),
        };
        // Each rank performs its first remaining step, or waits for it.
        for rank in &mut job.ranks {
            rank.next_round();
        }
        let mut moved = true;
        while moved {
            moved = false;
            for rank in 0..job.ranks.len() {
                let left = job.ranks[rank].ended.iter().position(|&ended| !ended);
                if let Some(place) = left.filter(|&place| job.can_begin(rank, place)) {
                    job.go_on(rank, place);
                    job.go_on(rank, place);
                    moved = true;
                }
            }
        }
        for rank in &job.ranks {
            prop_assert!(rank.ended.iter().all(|&ended| ended));
        }
    }
}

#[test]
fn pieces_move_in_other_lanes_than_products() {
    let shards = Shards::split(12, 3);
    for schedule in [Schedule::Unfused, Schedule::Direct { rows: 2 }, Schedule::Ring { rows: 2 }] {
        let programs = [
            Gather { shards: &shards, width: 4, schedule, me: 1 }.program(),
            Reduce { shards: &shards, width: 4, schedule, reduced: Reduced::Everywhere, me: 1 }.program(),
        ];
        for Entry { lane, action, .. } in programs.iter().flat_map(|program| &program.entries) {
            match action {
                Action::Multiply { .. } | Action::Keep { .. } => assert_eq!(*lane, PRODUCTS, "{action:?}"),
                Action::Get { .. } | Action::Put { .. } => assert_ne!(*lane, PRODUCTS, "{action:?}"),
                _ => {}
            }
        }
    }
}
