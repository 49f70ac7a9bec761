//! The programs of GPUs: rows are written from where the caller has them to where others need them, and what a rank
//! waits for it waits for between its products.
//!
//! A kernel that waits while a product is under way takes a multiprocessor from it, or does not begin before the
//! product has ended. So no lane but that of products has steps that are kernels, where copy engines reach the others:
//! these copy, and tell. A rank that has done all of a round tells the others, which then have room for the next one.
//!
//! Two ranks sum in the product itself, which begins with what has arrived. More ranks sum as on the host: see
//! [`reduce`](super::reduce).

use super::gather::Gather;
use super::reduce::Reduce;
use super::{Action, MOVES, PRODUCTS, Place, Program, Round, Rows, Word};
use crate::reduce::Reduced;
use crate::shards::{Piece, Schedule};

/// Whether a rank is one of two.
pub(crate) fn sums_in_products(ranks: usize) -> bool {
    ranks == 2
}

/// All-gather and product of a rank that copies straight to those ranks for which `reaches` holds.
///
/// Its own rows are multiplied first, meanwhile they go to the others; then each piece that comes. [`Schedule::Unfused`]
/// multiplies once, when all are there.
pub(crate) fn gather(it: &Gather<'_>, reaches: impl Fn(usize) -> bool) -> Program {
    let (mut program, own) = (Program::default(), it.shards.of(it.me));
    let (unfused, others) = (it.schedule == Schedule::Unfused, || it.others());
    let room = if own.is_empty() { None } else { wait_for_room(&mut program, others(), |rank| it.done(rank)) };
    // Whom copy engines do not reach is sent rows of the heap.
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
        // The kernels that send begin between products: behind a first one, when the rows have been kept.
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
    // Who sends to the next rank first is this one's first to wait for.
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
    settle(&mut program);
    for rank in others().filter(|&rank| !it.shards.of(rank).is_empty()) {
        program.push(PRODUCTS, Action::Tell { to: rank, word: it.done(it.me) }, &[]);
    }
    program
}

/// Product and reduction of one of two ranks: the other one's rows first, which go to it piece by piece; then its own,
/// each of which is added to what has come for it.
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
                share(&mut program, it, from, &piece, (made, reaches(from)));
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
    settle(&mut program);
    for rank in it.others() {
        program.push(PRODUCTS, Action::Tell { to: rank, word: it.ready(it.me) }, &[]);
    }
    program
}

/// Sends sums to where the other rank gets them.
fn share(program: &mut Program, it: &Reduce<'_>, to: usize, piece: &Piece, (made, reached): (Place, bool)) {
    let (rows, word) = (it.sums(piece), it.summed(piece));
    if reached {
        program.push(MOVES, Action::Share { to, rows, word }, &[made]);
        return;
    }
    let at = rows.at;
    program.push(PRODUCTS, Action::KeepSums { rows: rows.clone() }, &[]);
    program.push(PRODUCTS, Action::Put { to, rows, at, word }, &[]);
}

/// Waits until others have done all of the round before, and so have room for this one's. Returns the last wait.
fn wait_for_room(
    program: &mut Program,
    others: impl Iterator<Item = usize>,
    done: impl Fn(usize) -> Word,
) -> Option<Place> {
    let wait = |rank| Action::Wait { from: rank, word: done(rank), round: Round::Before };
    others.map(|rank| program.push(PRODUCTS, wait(rank), &[])).last()
}

/// What was put by kernels, which do not wait, has left before the round ends.
fn settle(program: &mut Program) {
    if program.entries.iter().any(|entry| entry.lane == PRODUCTS && matches!(entry.action, Action::Put { .. })) {
        program.push(PRODUCTS, Action::Settle, &[]);
    }
}

/// The other ranks, from the one before on.
fn before(me: usize, ranks: usize) -> impl Iterator<Item = usize> {
    (1..ranks).map(move |distance| (me + ranks - distance) % ranks)
}

/// A program's first steps, if they are waits for the round before: how many.
pub(crate) fn first_waits(program: &Program) -> usize {
    let waits = |entry: &&super::Entry| {
        entry.lane == PRODUCTS && matches!(entry.action, Action::Wait { round: Round::Before, .. })
    };
    program.entries.iter().take_while(waits).count()
}

/// Where the rows of a step are.
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
