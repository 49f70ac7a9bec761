//! Copies in the form that kernels read.

use super::layout::{LOOPS, NO_LEG, StridedCopy, StridedLoop};
use crate::copy::{Loop, Loops};
use crate::view::View;

/// Bytes of the widest piece that threads copy.
const WIDE: usize = 16;

/// The condition of a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Goes {
    /// The copy always runs.
    Always,
    /// The copy runs if something is exchanged with this leg.
    With(usize),
    /// The copy writes to the landing of this leg's other end.
    To(usize),
}

/// A copy of elements of `size` bytes, by units. An element has one or several units.
pub(super) fn strided(
    (size, unit): (usize, usize),
    (from, from_view): (u64, &View),
    (to, to_view): (u64, &View),
    goes: Goes,
) -> StridedCopy {
    let (first, others) = ordered(&in_units(Loops::new(from_view, to_view).used(), size / unit));
    let tiled = others.first().is_some_and(|other| other.from < first.from);
    let whole = |elements: usize| (elements * unit).is_multiple_of(WIDE);
    let wide = unit < WIDE
        && (first.from, first.to) == (1, 1)
        && whole(first.count)
        && others.iter().all(|it| whole(it.from) && whole(it.to));
    let (leg, at_landing) = match goes {
        Goes::Always => (NO_LEG, false),
        Goes::With(leg) => (leg as u64, false),
        Goes::To(leg) => (leg as u64, true),
    };
    let at = |base: u64, view: &View| base + (view.offset * size) as u64;
    let alone = Loop { count: 1, ..Loop::default() };
    let mut loops = std::iter::once(&first).chain(&others).chain(std::iter::repeat(&alone));
    let mut next = || {
        let Loop { count, from, to } = *loops.next().unwrap_or(&alone);
        StridedLoop { count: count as u64, from: from as u64, to: to as u64 }
    };
    StridedCopy {
        from: at(from, from_view),
        to: at(to, to_view),
        leg,
        at_landing: at_landing.into(),
        tiled: tiled.into(),
        wide: wide.into(),
        loops: [(); LOOPS].map(|()| next()),
    }
}

/// The loops over units, for elements of `units` units each.
fn in_units(loops: &[Loop], units: usize) -> Vec<Loop> {
    let mut loops: Vec<Loop> =
        loops.iter().map(|it| Loop { count: it.count, from: it.from * units, to: it.to * units }).collect();
    match loops.last_mut() {
        _ if units == 1 => {}
        Some(last) if (last.from, last.to) == (units, units) => {
            *last = Loop { count: last.count * units, from: 1, to: 1 };
        }
        _ => loops.push(Loop { count: units, from: 1, to: 1 }),
    }
    loops
}

/// The fastest loop of the destination, and the others. The first of these is the one that is faster in the source, if
/// there is such a loop.
fn ordered(loops: &[Loop]) -> (Loop, Vec<Loop>) {
    let Some((first, others)) = loops.split_last() else { return (Loop { count: 1, from: 1, to: 1 }, Vec::new()) };
    let mut others: Vec<Loop> = others.iter().rev().copied().collect();
    let fastest = (0..others.len()).min_by_key(|&i| others[i].from);
    if let Some(i) = fastest.filter(|&i| others[i].from < first.from) {
        others.swap(0, i);
    }
    (*first, others)
}
