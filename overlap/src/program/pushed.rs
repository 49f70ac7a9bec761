//! The programs of GPUs. A rank writes rows from the caller's memory to where others need them, and waits between its
//! products.
//!
//! A kernel that waits while a product runs occupies a multiprocessor that the product needs, or does not begin before
//! the product has ended. So, where copy engines reach the others, only the lane of products has steps that are
//! kernels. The copy engines copy and set words. A rank that has completed a round signals the others, which may then
//! write for the next one.
//!
//! Two ranks sum in the product itself, which begins with what has arrived. More ranks sum as on the host: see
//! [`reduce`](super::reduce).

use super::gather::Gather;
use super::reduce::Reduce;
use super::{Action, MOVES, PRODUCTS, Place, Program, Round, Rows, Word};
use crate::product::Reduced;
use crate::shards::{Piece, Schedule};

/// Whether products add what has arrived: with two ranks.
pub(crate) fn sums_in_products(ranks: usize) -> bool {
    ranks == 2
}

/// All-gather and product of a rank that copies straight to those ranks for which `reaches` holds.
///
/// The rank multiplies its own rows first, while they go to the others, and then each piece that arrives. With
/// [`Schedule::Unfused`] it multiplies once, when all rows have arrived.
pub(crate) fn gather(it: &Gather<'_>, reaches: impl Fn(usize) -> bool) -> Program {
    let (mut program, own) = (Program::default(), it.shards.of(it.me));
    let (unfused, others) = (it.schedule == Schedule::Unfused, || it.others());
    let room = if own.is_empty() { None } else { wait_for_room(&mut program, others(), |rank| it.done(rank)) };
    // The rank puts rows from the heap to the ranks that copy engines do not reach.
    let keeps = !own.is_empty() && (unfused || others().any(|rank| !reaches(rank)));
    for rank in others().filter(|&rank| reaches(rank)) {
        for piece in it.pieces(it.me) {
            let (rows, word) = (it.rows(piece.rows.clone()), it.arrived(&piece));
            program.push(MOVES, Action::Send { to: rank, rows, word }, room.as_slice());
        }
    }
    let mut kept = None;
    if keeps {
        let (lane, after) = if unfused { (PRODUCTS, None) } else { (MOVES, room) };
        kept = Some(program.push(lane, Action::Keep { rows: it.rows(own.clone()) }, after.as_slice()));
    }
    let mut pieces = it.pieces(it.me);
    if !unfused && keeps {
        // The kernels that send run between products: after a first one, when the rows have been copied to the heap.
        pieces.by_ref().take(1).for_each(|piece| {
            program.push(PRODUCTS, Action::MultiplyOwn { rows: piece.rows }, &[]);
        });
    }
    for rank in others().filter(|&rank| !reaches(rank)) {
        for piece in it.pieces(it.me) {
            let (rows, word) = (it.rows(piece.rows.clone()), it.arrived(&piece));
            let at = rows.at;
            program.push(PRODUCTS, Action::Put { to: rank, rows, at, word }, kept.as_slice());
        }
    }
    let left = pieces.next().map_or(own.end, |piece| piece.rows.start)..own.end;
    if !unfused && !left.is_empty() {
        program.push(PRODUCTS, Action::MultiplyOwn { rows: left }, &[]);
    }
    // The rank waits first for the rank before it, which sends to it first.
    for rank in before(it.me, it.shards.ranks()) {
        for piece in it.pieces(rank) {
            program.push(PRODUCTS, it.wait(rank, it.arrived(&piece)), &[]);
            if !unfused {
                program.push(PRODUCTS, Action::Multiply { rows: piece.rows }, &[]);
            }
        }
    }
    if unfused {
        program.push(PRODUCTS, Action::Multiply { rows: 0..it.shards.rows() }, &[]);
    }
    quiet(&mut program);
    for rank in others().filter(|&rank| !it.shards.of(rank).is_empty()) {
        program.push(PRODUCTS, Action::Signal { to: rank, word: it.done(it.me) }, &[]);
    }
    program
}

/// Product and reduction of one of two ranks. The rank multiplies the other one's rows first, which go there piece by
/// piece. Then it multiplies its own rows, and adds what has arrived for each piece.
pub(crate) fn reduce(it: &Reduce<'_>, reaches: impl Fn(usize) -> bool) -> Program {
    let mut program = Program::default();
    wait_for_room(&mut program, it.others(), |rank| it.ready(rank));
    for rank in it.others() {
        for piece in it.pieces(rank) {
            let made = program.push(PRODUCTS, Action::Multiply { rows: piece.rows.clone() }, &[]);
            if reaches(rank) {
                it.put_summand(&mut program, MOVES, &piece, &[made]);
            } else {
                it.put_summand(&mut program, PRODUCTS, &piece, &[]);
            }
        }
    }
    for from in it.others() {
        for piece in it.pieces(it.me) {
            program.push(PRODUCTS, it.wait(from, it.arrived(1, &piece)), &[]);
            let onto = it.summand_at(1, piece.rows.start - it.shards.of(it.me).start);
            let made = program.push(PRODUCTS, Action::MultiplyOnto { rows: piece.rows.clone(), onto }, &[]);
            if it.reduced == Reduced::Everywhere {
                share(&mut program, it, from, &piece, made, reaches(from));
            }
        }
    }
    if it.reduced == Reduced::Everywhere {
        for rank in it.others() {
            for piece in it.pieces(rank) {
                program.push(PRODUCTS, it.wait(rank, it.summed(&piece)), &[]);
                program.push(PRODUCTS, Action::Take { rows: it.sums(&piece) }, &[]);
            }
        }
    }
    quiet(&mut program);
    for rank in it.others() {
        program.push(PRODUCTS, Action::Signal { to: rank, word: it.ready(it.me) }, &[]);
    }
    program
}

/// Sends sums to where the other rank gets them.
fn share(program: &mut Program, it: &Reduce<'_>, to: usize, piece: &Piece, made: Place, reached: bool) {
    let (rows, word) = (it.sums(piece), it.summed(piece));
    if reached {
        program.push(MOVES, Action::Share { to, rows, word }, &[made]);
        return;
    }
    let at = rows.at;
    program.push(PRODUCTS, Action::KeepSums { rows: rows.clone() }, &[]);
    program.push(PRODUCTS, Action::Put { to, rows, at, word }, &[]);
}

/// Waits until others have completed the round before, so that this rank may write for this round. Returns the last
/// wait.
fn wait_for_room(
    program: &mut Program,
    others: impl Iterator<Item = usize>,
    done: impl Fn(usize) -> Word,
) -> Option<Place> {
    let wait = |rank| Action::Wait { from: rank, word: done(rank), round: Round::Before };
    others.map(|rank| program.push(PRODUCTS, wait(rank), &[])).last()
}

/// Waits until the puts of kernels, which do not wait for them, have completed: before the round ends.
fn quiet(program: &mut Program) {
    if program.entries.iter().any(|entry| entry.lane == PRODUCTS && matches!(entry.action, Action::Put { .. })) {
        program.push(PRODUCTS, Action::Quiet, &[]);
    }
}

/// The other ranks, starting with the one before.
fn before(me: usize, ranks: usize) -> impl Iterator<Item = usize> {
    (1..ranks).map(move |distance| (me + ranks - distance) % ranks)
}

/// The number of the program's first steps that wait for the round before.
pub(crate) fn first_waits(program: &Program) -> usize {
    let waits = |entry: &&super::Entry| {
        entry.lane == PRODUCTS && matches!(entry.action, Action::Wait { round: Round::Before, .. })
    };
    program.entries.iter().take_while(waits).count()
}

/// The rows of a step.
pub(crate) fn rows_of(action: &Action) -> Option<&Rows> {
    match action {
        Action::Keep { rows }
        | Action::Get { rows, .. }
        | Action::Put { rows, .. }
        | Action::Send { rows, .. }
        | Action::Share { rows, .. }
        | Action::KeepSums { rows }
        | Action::Take { rows } => Some(rows),
        _ => None,
    }
}
