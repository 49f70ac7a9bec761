//! The work of a round with certain buffers, in the form that kernels read.

use std::ops::Range;

use symrail_core::layout;

use super::layout::{Fetched, Leg, StridedCopy};
use super::table::{Goes, strided};
use crate::blocks::{self, Blocks, Extent};
use crate::counters::Counters;
use crate::error::Refusal;
use crate::exchange::Landing;
use crate::staging::{Memory, Path, Route};
use crate::view::View;

/// Copies that run at once.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Copies {
    /// The address of the list of copies, and their number.
    pub at: u64,
    pub count: u64,
    /// The units of the largest copy.
    pub units: usize,
}

/// A round with certain buffers, in GPU memory.
pub(super) struct Binding {
    /// The address of the legs.
    pub legs: u64,
    /// The copies before the PEs have met.
    pub pack: Copies,
    /// What is exchanged after that, one group after the other.
    pub groups: Vec<Group>,
    /// Whether no kernel of the round reads what copy engines write.
    pub apart: bool,
    /// Whether one launch for each group can signal the others and copy: each leg has one copy, and nothing else.
    pub in_one: bool,
    /// Whether a group can be unpacked while the next ones are exchanged.
    pub in_turn: bool,
    /// What a round adds to the plan's counters.
    pub counters: Counters,
}

/// The legs of a group, the first of them and their number, and their copies, which count legs from the first one.
#[derive(Debug, Clone)]
pub(super) struct Group {
    pub first: usize,
    pub legs: usize,
    /// The copies after the PEs have met.
    pub send: Copies,
    /// The copies of copy engines after the PEs have met, and those that unpack these as soon as they have ended.
    pub fetches: Vec<Fetched>,
    pub unpack_fetched: Copies,
    /// The copies after blocks have arrived.
    pub unpack: Copies,
}

/// The copies of a group that are to be written to the GPU.
#[derive(Default)]
struct Lists {
    legs: Range<usize>,
    send: List,
    fetches: Vec<Fetched>,
    unpack_fetched: List,
    unpack: List,
}

/// Copies to be written to the GPU. Each is there twice, for both kinds of landings.
#[derive(Default)]
struct List {
    copies: Vec<StridedCopy>,
    units: usize,
}

/// The buffers of a round.
pub(super) struct Buffers {
    pub input: Extent,
    pub output: Extent,
    /// The kinds of memory of the buffers and of the workspace.
    pub memories: [[Memory; 2]; 2],
    /// The addresses of the workspace, and of the plan's words.
    pub work: u64,
    pub words: u64,
}

/// The work of a round.
pub(super) struct Round {
    legs: Vec<Leg>,
    pack: List,
    groups: Vec<Lists>,
    apart: bool,
    in_one: bool,
    in_turn: bool,
    counters: Counters,
}

impl Round {
    /// A round without an exchange: the PE signals the reason to all others.
    pub fn refusal(blocks: &Blocks, refusal: Refusal) -> Round {
        let legs = blocks.legs.iter().map(|leg| leg_of(leg, Landing::Refused(refusal), 0, 0)).collect();
        let groups = vec![Lists { legs: 0..blocks.legs.len(), ..Lists::default() }];
        let counters = Counters::default();
        Round { legs, pack: List::default(), groups, apart: true, in_one: false, in_turn: false, counters }
    }

    /// A round that exchanges the blocks from the input to the output.
    pub fn new(blocks: &Blocks, buffers: &Buffers) -> Round {
        let in_place = blocks.overwrites(buffers.input.at, buffers.output.at);
        let (input, output, [from, to]) = (buffers.input.at, buffers.output.at, buffers.memories);
        let distance = |at: u64| at.cast_signed() - buffers.words.cast_signed();
        let sizes = (blocks.kind.element, blocks.unit(16));
        let (mut pack, mut legs) = (List::default(), Vec::new());
        let mut counters = Counters { rounds: 1, ..Counters::default() };
        let mut groups: Vec<Lists> =
            blocks.groups().into_iter().map(|legs| Lists { legs, ..Lists::default() }).collect();
        let (pipelined, fetching) = (groups.len() > 1, blocks.legs.iter().any(|leg| leg.fetch.is_some()));
        // Unpacking in place would overwrite what is still to be sent. Where copy engines fetch, kernels signal only
        // at the end.
        let in_turn = pipelined && !in_place && !fetching;
        let mut group = 0;
        for (number, leg) in blocks.legs.iter().enumerate() {
            let flow = &leg.flow;
            group += usize::from(number == groups[group].legs.end);
            let Lists { legs: numbers, send, fetches, unpack_fetched, unpack } = &mut groups[group];
            let i = number - numbers.start;
            let room = buffers.work + leg.receive_room as u64;
            // A block counts once, with its first part.
            let counted = |view: &View| u64::from(view.len() > 0 && flow.part == 0);
            let (leaves, comes) = (counted(&flow.from), counted(&flow.at));
            if let Some(fetch) = leg.fetch {
                pack.add(sizes, (input, &flow.from), (fetch.here, &flow.into.packed()), Goes::Always);
                // No other PE writes there, so any kind of memory is right. That holds in place, too, since all of the
                // input has been read when copy engines begin.
                let straight = blocks.kind.mode.direct && flow.at.is_contiguous();
                let early = pipelined && !straight;
                if early {
                    unpack_fetched.add(sizes, (room, &flow.at.packed()), (output, &flow.at), Goes::Always);
                } else if !straight {
                    unpack.add(sizes, (room, &flow.at.packed()), (output, &flow.at), Goes::With(i));
                }
                let to = if straight { output + (flow.at.offset * blocks.kind.element) as u64 } else { room };
                let bytes = (flow.at.len() * blocks.kind.element) as u64;
                fetches.extend((bytes > 0).then_some(Fetched { to, from: fetch.there, bytes }));
                counters.fetched += comes;
                *if straight { &mut counters.direct } else { &mut counters.staged } += comes;
                counters.pipelined += if early { comes } else { 0 };
                // The leg puts nothing.
                legs.push(leg_of(leg, Landing::Packed(0), 0, 0));
                continue;
            }
            let direct = blocks.receive_route(leg, to, in_place) == Route::Direct && flow.at.len() > 0;
            let landing = if direct {
                Landing::InPlace(distance(output + (flow.at.offset * blocks.kind.element) as u64))
            } else {
                unpack.add(sizes, (room, &flow.at.packed()), (output, &flow.at), Goes::With(i));
                Landing::Packed(distance(room))
            };
            *if direct { &mut counters.direct } else { &mut counters.staged } += comes;
            counters.pipelined += if in_turn && !direct { comes } else { 0 };
            *if leg.path == Path::Mapped { &mut counters.copied } else { &mut counters.put } += leaves;
            let mut source = 0;
            if leg.path == Path::Mapped {
                let views = [flow.into.packed(), View { offset: 0, ..flow.into }];
                send.push(sizes, (input, &flow.from), [(0, &views[0]), (0, &views[1])], Goes::To(i));
            } else if blocks.send_route(leg, from, in_place) == Route::Direct {
                source = input + (flow.from.offset * blocks.kind.element) as u64;
            } else {
                source = buffers.work + leg.send_room as u64;
                pack.add(sizes, (input, &flow.from), (source, &flow.into.packed()), Goes::Always);
            }
            legs.push(leg_of(leg, landing, source, (flow.from.len() * blocks.kind.element) as u64));
        }
        let (mut room, first) = (buffers.work + blocks.own_room as u64, &mut groups[0]);
        for (from, to) in &blocks.flows.own {
            if in_place && from.offset == to.offset && from.lies_as(to) {
                // The elements are in their places.
            } else if in_place {
                // Kernels that send read the input, too, but copy engines may write to it.
                let pack = if fetching { &mut pack } else { &mut first.send };
                pack.add(sizes, (input, from), (room, &to.packed()), Goes::Always);
                first.unpack.add(sizes, (room, &to.packed()), (output, to), Goes::Always);
            } else {
                first.send.add(sizes, (input, from), (output, to), Goes::Always);
            }
            room += (to.len() * blocks.kind.element) as u64;
        }
        let alone = |leg: &blocks::Leg| leg.path == Path::Mapped && leg.fetch.is_none() && leg.flow.from.len() > 0;
        let in_one = !blocks.legs.is_empty() && blocks.legs.iter().all(alone);
        let apart = !in_place || groups.iter().all(|group| group.send.copies.is_empty());
        Round { legs, pack, groups, apart, in_one, in_turn, counters }
    }

    /// The words of an image at an address, and the binding to that image.
    pub fn image(self, base: u64) -> (Vec<u64>, Binding) {
        let mut words = layout::words(&self.legs);
        let Round { pack, groups, apart, in_one, in_turn, counters, .. } = self;
        let mut write = |list: List| {
            let at = base + (size_of::<u64>() * words.len()) as u64;
            words.extend(layout::words(&list.copies));
            // Each is there twice.
            Copies { at, count: list.copies.len() as u64 / 2, units: list.units }
        };
        let pack = write(pack);
        let group = |lists: Lists| Group {
            first: lists.legs.start,
            legs: lists.legs.len(),
            send: write(lists.send),
            fetches: lists.fetches,
            unpack_fetched: write(lists.unpack_fetched),
            unpack: write(lists.unpack),
        };
        let groups = groups.into_iter().map(group).collect();
        (words, Binding { legs: base, pack, groups, apart, in_one, in_turn, counters })
    }
}

fn leg_of(leg: &blocks::Leg, landing: Landing, source: u64, bytes: u64) -> Leg {
    let link = &leg.link;
    let (here, there) = (link.here as u64, link.there as u64);
    Leg { pe: link.pe.into(), here, there, offer: landing.to_number(), source, bytes }
}

impl List {
    fn add(&mut self, sizes: (usize, usize), from: (u64, &View), to: (u64, &View), goes: Goes) {
        self.push(sizes, from, [to, to], goes);
    }

    fn push(&mut self, (size, unit): (usize, usize), from: (u64, &View), to: [(u64, &View); 2], goes: Goes) {
        if from.1.len() == 0 {
            return;
        }
        self.copies.extend(to.map(|to| strided((size, unit), from, to, goes)));
        self.units = self.units.max(from.1.len() * (size / unit));
    }
}
