//! Bulk operations: the data of a large transfer in pieces, of which the rails never have many.
//!
//! An operation that is not bulk, on the same lane or from another endpoint over the same rail, waits for the pieces
//! that the rail has. So a lane gets as many pieces as its path holds, and up to two that wait there for others
//! ([`Window`]). The rest waits here, where no other operation waits behind it. Each piece takes the lane with the most
//! room, so lanes of any speed are used as they deliver.
//!
//! A bulk operation holds a lane to its peer until it ends ([`Lanes::hold`](super::lanes::Lanes::hold)), so operations
//! behind a fence wait for it.

mod post;

use std::collections::{BTreeMap, VecDeque};

use super::command::OpHandle;
use crate::pe::Pe;

/// Pieces that a lane has in any case. As many may wait for others on the path.
const LEAST: u32 = 2;
/// The most operations with pieces that wait. The table of operations has room for others then.
const MOST: usize = 1024;

/// The pieces of an operation that are not posted yet.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pieces {
    pub op: OpHandle,
    pub offset: u64,
    pub ptr: *mut u8,
    pub left: u64,
    pub reads: bool,
}

/// How many pieces a lane to a peer may have. Times are in microseconds.
///
/// The time of a piece that found the lane without any, or the shortest since, is that of the path. What pieces take
/// beyond, they have waited for pieces before them: of `n` under way so many wait as their part of the time says. It is
/// taken of the fastest of `n` pieces, since others may have waited for a thread.
#[derive(Debug, Clone, Copy)]
struct Window {
    under_way: u32,
    most: u32,
    path: u32,
    /// The fastest of the last pieces, and how many they are; less than 0 while pieces end that were posted before the
    /// last change.
    fastest: u32,
    measured: i32,
    /// The next piece to end found the lane without any.
    alone: bool,
    /// No piece has waited yet, so the window doubles. Later it grows by one at a time.
    doubles: bool,
}

impl Default for Window {
    fn default() -> Window {
        Window {
            under_way: 0,
            most: LEAST,
            path: u32::MAX,
            fastest: u32::MAX,
            measured: 0,
            alone: false,
            doubles: true,
        }
    }
}

impl Window {
    fn has_room(&self) -> bool {
        self.under_way < self.most
    }

    fn begin(&mut self) {
        self.alone |= self.under_way == 0;
        self.under_way += 1;
    }

    /// Notes the time of a piece that ends now and is still counted as under way.
    fn measure(&mut self, took: u32) {
        let (took, n) = (took.max(1), self.under_way);
        self.path = if std::mem::take(&mut self.alone) { took } else { self.path.min(took) };
        self.measured += 1;
        if self.measured <= 0 {
            return;
        }
        self.fastest = self.fastest.min(took);
        if self.measured < n as i32 {
            return;
        }
        let fill = n as f32 * self.path as f32 / self.fastest as f32;
        let (waiting, before) = (n as f32 - fill, self.most);
        if waiting > LEAST as f32 {
            self.most = (fill as u32 + 1).max(LEAST);
        } else if waiting < 1.0 && n >= self.most {
            self.most += if self.doubles { self.most } else { 1 };
        }
        self.doubles &= waiting < 1.0;
        (self.fastest, self.measured) = (u32::MAX, if self.most == before { 0 } else { -(n as i32) });
    }
}

/// The bulk operations on one peer.
struct Peer {
    waiting: VecDeque<Pieces>,
    /// By the lane on which a piece was first posted.
    windows: Box<[Window]>,
    /// A piece has ended since the last tick.
    moved: bool,
}

/// The bulk operations of an endpoint.
#[derive(Default)]
pub(super) struct Bulk {
    peers: BTreeMap<Pe, Peer>,
    /// Operations that wait, to all peers.
    waiting: usize,
    /// Pieces under way on each rail, to all peers.
    on_rails: Vec<u32>,
}

impl Bulk {
    pub fn new(rails: usize) -> Bulk {
        Bulk { on_rails: vec![0; rails], ..Bulk::default() }
    }

    /// Whether any piece waits.
    #[inline]
    pub fn waits(&self) -> bool {
        self.waiting > 0
    }

    /// Whether there is room for another operation.
    pub fn has_room(&self) -> bool {
        self.waiting < MOST
    }

    /// Whether the end of a piece will be the time to post those that wait.
    pub fn may_sleep(&self) -> bool {
        self.peers.values().all(|peer| peer.waiting.is_empty() || peer.windows.iter().any(|w| w.under_way > 0))
    }

    fn add(&mut self, pe: Pe, pieces: Pieces) {
        let rails = self.on_rails.len();
        let new = || Peer { waiting: VecDeque::new(), windows: vec![Window::default(); rails].into(), moved: false };
        self.peers.entry(pe).or_insert_with(new).waiting.push_back(pieces);
        self.waiting += 1;
    }

    /// The first peer from a number on with waiting pieces.
    fn next_peer(&self, from: Pe) -> Option<Pe> {
        self.peers.range(from..).find(|(_, peer)| !peer.waiting.is_empty()).map(|(&pe, _)| pe)
    }

    fn first(&mut self, pe: Pe) -> Option<&mut Pieces> {
        self.peers.get_mut(&pe)?.waiting.front_mut()
    }

    fn drop_first(&mut self, pe: Pe) {
        let dropped = self.peers.get_mut(&pe).and_then(|peer| peer.waiting.pop_front());
        self.waiting -= usize::from(dropped.is_some());
    }

    /// Whether a lane to a peer may get a piece, and if so its pieces as a part of its window. Other peers' pieces on
    /// the rail count, but for a peer without any: what no peer takes must not stop others.
    fn room(&self, pe: Pe, lane: usize) -> Option<f32> {
        let window = self.peers.get(&pe)?.windows.get(lane)?;
        let free = window.has_room() && (window.under_way == 0 || self.on_rails[lane] < window.most);
        free.then(|| window.under_way as f32 / window.most as f32)
    }

    fn begin(&mut self, pe: Pe, lane: usize) {
        self.on_rails[lane] += 1;
        if let Some(window) = self.peers.get_mut(&pe).and_then(|peer| peer.windows.get_mut(lane)) {
            window.begin();
        }
    }

    /// Notes the time of a piece that a lane has completed, before its end.
    pub fn measure(&mut self, pe: Pe, lane: usize, took: u32) {
        if let Some(window) = self.peers.get_mut(&pe).and_then(|peer| peer.windows.get_mut(lane)) {
            window.measure(took);
        }
    }

    /// Notes the end of a piece that was first posted on a lane.
    pub fn end(&mut self, pe: Pe, lane: usize) {
        self.on_rails[lane] = self.on_rails[lane].saturating_sub(1);
        let Some(peer) = self.peers.get_mut(&pe) else { return };
        peer.moved = true;
        peer.windows[lane].under_way = peer.windows[lane].under_way.saturating_sub(1);
    }

    /// The peers to which a piece has ended since the last call.
    pub fn take_moved(&mut self) -> Vec<Pe> {
        self.peers.iter_mut().filter_map(|(&pe, peer)| std::mem::take(&mut peer.moved).then_some(pe)).collect()
    }

    /// The operations on a peer that have pieces to be posted.
    pub fn waiting_for(&self, pe: Pe) -> impl Iterator<Item = OpHandle> {
        self.peers.get(&pe).into_iter().flat_map(|peer| peer.waiting.iter().map(|pieces| pieces.op))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// A path that moves a piece in `each` microseconds and adds `latency`, with as many pieces as the window allows.
    /// Returns the part of the time in which it moved something, and the most that a new piece had to wait for, in
    /// pieces, both over the second half.
    fn run(window: &mut Window, each: u32, latency: u32) -> (f32, f32) {
        let (mut now, mut free, mut busy, mut most) = (0u32, 0u32, 0u32, 0f32);
        let mut flights = VecDeque::new();
        let half = 4000 * each;
        window.under_way = 0;
        while now < 2 * half {
            while window.has_room() {
                if now > half {
                    most = most.max(free.saturating_sub(now) as f32 / each as f32);
                    busy += each;
                }
                free = free.max(now) + each;
                flights.push_back((now, free + latency));
                window.begin();
            }
            let (posted, end) = flights.pop_front().unwrap();
            now = end;
            window.measure(now - posted);
            window.under_way -= 1;
        }
        (busy as f32 / (now - half) as f32, most)
    }

    #[test]
    fn two_pieces_wait_on_the_path_at_most_and_it_is_used() {
        for (each, latency) in [(2600, 0), (2600, 4_000), (500, 20_000), (500, 100), (50, 10_000)] {
            let (used, most) = run(&mut Window::default(), each, latency);
            assert!(most <= LEAST as f32, "{each} us a piece, {latency} us latency: {most} wait");
            assert!(used > 0.9, "{each} us a piece, {latency} us latency: {used} of the time used");
        }
    }

    #[test]
    fn a_path_that_becomes_slower_has_fewer_pieces() {
        let mut window = Window::default();
        run(&mut window, 500, 20_000);
        let before = window.most;
        run(&mut window, 5_000, 20_000);
        assert!(before > 30 && window.most < 12, "{before}, then {window:?}");
    }
}
