//! Segmentation: the data of a large transfer in pieces, of which the rails never have many.
//!
//! Large bulk operations are segmented, and where lanes are measured also others
//! ([`Lanes`](super::lanes::Lanes) decides). An operation that is not segmented, on the same lane or from another
//! endpoint over the same rail, waits for the pieces that the rail has. So a lane gets as many bytes as its path holds,
//! and up to two pieces that wait there for others ([`Window`]). The rest waits here, where no such operation waits behind
//! it, and pieces of bulk operations behind all others. Each piece takes a lane that has room when it is posted, so lanes
//! of any speed are used as they deliver, also when that changes.
//!
//! A segmented operation holds a lane to its peer until it ends ([`Lanes::hold`](super::lanes::Lanes::hold)), so
//! operations behind a fence wait for it.

mod post;

use std::collections::{BTreeMap, VecDeque};

use super::command::{OpHandle, Priority};
use crate::pe::Pe;

/// Bytes of a piece of a bulk operation, and the least of another's but for its last one.
pub(super) const PIECE: u64 = 64 << 10;
/// Pieces that a lane has in any case. As many may wait for others on the path.
const LEAST: u64 = 2;
/// The most bulk operations with pieces that wait. The table of operations has room for others then.
const MOST_BULK: usize = 1024;

/// The pieces of an operation that are not posted yet.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pieces {
    pub op: OpHandle,
    pub offset: u64,
    pub ptr: *mut u8,
    pub left: u64,
    pub reads: bool,
    pub priority: Priority,
}

/// How many bytes of pieces a lane to a peer may have. Times are in microseconds.
///
/// The time of a piece that found the lane without any, or the shortest since, is that of the path. What pieces take
/// beyond, they have waited for bytes before them: of `n` under way so many wait as their part of the time says, whatever
/// the lengths of pieces. It is taken of the fastest of `n` bytes' pieces, since others may have waited for a thread.
#[derive(Debug, Clone, Copy)]
struct Window {
    under_way: u64,
    most: u64,
    path: u32,
    /// The time of the fastest of the last pieces.
    fastest: u32,
    /// The bytes of these pieces; less than 0 while pieces end that were posted before the last change.
    measured: i64,
    /// The longest of them, and no less than [`PIECE`].
    longest: u64,
    /// The next piece to end found the lane without any.
    alone: bool,
    /// No piece has waited yet, so the window doubles. Later it grows by one piece at a time.
    doubles: bool,
}

impl Default for Window {
    fn default() -> Window {
        Window {
            under_way: 0,
            most: LEAST * PIECE,
            path: u32::MAX,
            fastest: u32::MAX,
            measured: 0,
            longest: PIECE,
            alone: false,
            doubles: true,
        }
    }
}

impl Window {
    /// Whether the lane may get a piece beside so many bytes, of pieces of up to `longest` bytes. One may wait behind
    /// another, whatever their lengths.
    fn has_room(&self, under_way: u64, longest: u64) -> bool {
        under_way < self.most || under_way <= longest
    }

    fn begin(&mut self, len: u64) {
        self.alone |= self.under_way == 0;
        self.under_way += len;
    }

    /// Notes the time of a piece that ends now and is still counted as under way.
    fn measure(&mut self, len: u64, took: u32) {
        let (took, n) = (took.max(1), self.under_way);
        self.path = if std::mem::take(&mut self.alone) { took } else { self.path.min(took) };
        self.measured += len as i64;
        if self.measured <= 0 {
            return;
        }
        (self.fastest, self.longest) = (self.fastest.min(took), self.longest.max(len));
        if self.measured < n as i64 {
            return;
        }
        let (piece, before) = (self.longest, self.most);
        let fill = n as f32 * self.path as f32 / self.fastest as f32;
        let waiting = n as f32 - fill;
        if waiting > (LEAST * piece) as f32 {
            self.most = ((fill as u64 / piece + 1) * piece).max(LEAST * PIECE);
        } else if waiting < piece as f32 && n >= before {
            self.most += if self.doubles { before } else { piece };
        }
        self.doubles &= waiting < piece as f32;
        (self.fastest, self.longest) = (u32::MAX, PIECE);
        self.measured = if self.most == before { 0 } else { -(n as i64) };
    }

    fn end(&mut self, len: u64) {
        self.under_way = self.under_way.saturating_sub(len);
    }
}

/// The segmented operations on one peer.
struct Peer {
    /// Those with pieces that wait, by priority.
    waiting: [VecDeque<Pieces>; 2],
    /// Their bytes that are not posted yet.
    left: [u64; 2],
    /// By the lane on which a piece was first posted.
    windows: Box<[Window]>,
    /// A piece has ended since the last tick.
    moved: bool,
}

impl Peer {
    /// The priority of the operations whose pieces are posted next.
    fn next(&self) -> Option<usize> {
        self.waiting.iter().position(|waiting| !waiting.is_empty())
    }
}

/// The segmented operations of an endpoint.
#[derive(Default)]
pub(super) struct Segmentation {
    peers: BTreeMap<Pe, Peer>,
    /// Operations with pieces that wait, to all peers, by priority.
    waiting: [usize; 2],
    /// Bytes of pieces under way on each rail, to all peers.
    on_rails: Vec<u64>,
}

impl Segmentation {
    pub fn new(rails: usize) -> Segmentation {
        Segmentation { on_rails: vec![0; rails], ..Segmentation::default() }
    }

    /// Whether any piece waits.
    #[inline]
    pub fn waits(&self) -> bool {
        self.waiting != [0; 2]
    }

    /// Whether there is room for another operation of a priority, if the table of operations has some.
    pub fn has_room(&self, priority: Priority) -> bool {
        priority == Priority::Urgent || self.waiting[priority as usize] < MOST_BULK
    }

    /// Whether the end of a piece will be the time to post those that wait.
    pub fn may_sleep(&self) -> bool {
        self.peers.values().all(|peer| peer.next().is_none() || peer.windows.iter().any(|w| w.under_way > 0))
    }

    fn add(&mut self, pe: Pe, pieces: Pieces) {
        let rails = self.on_rails.len();
        let windows = || vec![Window::default(); rails].into();
        let new = || Peer { waiting: Default::default(), left: [0; 2], windows: windows(), moved: false };
        let (peer, at) = (self.peers.entry(pe).or_insert_with(new), pieces.priority as usize);
        peer.left[at] += pieces.left;
        peer.waiting[at].push_back(pieces);
        self.waiting[at] += 1;
    }

    /// The first peer from a number on with waiting pieces.
    fn next_peer(&self, from: Pe) -> Option<Pe> {
        self.peers.range(from..).find(|(_, peer)| peer.next().is_some()).map(|(&pe, _)| pe)
    }

    /// The operation to a peer whose piece is posted next.
    fn first(&self, pe: Pe) -> Option<Pieces> {
        let peer = self.peers.get(&pe)?;
        peer.waiting[peer.next()?].front().copied()
    }

    /// Bytes that operations of the same priority as the first one to a peer have left.
    fn left(&self, pe: Pe) -> u64 {
        self.peers.get(&pe).and_then(|peer| Some(peer.left[peer.next()?])).unwrap_or(0)
    }

    /// Takes so many bytes of the first operation to a peer. Returns whether it has none left.
    fn take(&mut self, pe: Pe, len: u64) -> bool {
        let Some((peer, at)) = self.peers.get_mut(&pe).and_then(|peer| peer.next().map(|at| (peer, at))) else {
            return true;
        };
        let Some(first) = peer.waiting[at].front_mut() else { return true };
        (first.offset, first.ptr, first.left) =
            (first.offset + len, first.ptr.wrapping_add(len as usize), first.left - len);
        let last = first.left == 0;
        peer.left[at] -= len;
        if last {
            peer.waiting[at].pop_front();
            self.waiting[at] -= 1;
        }
        last
    }

    /// Whether a lane to a peer may get a piece, of pieces of up to `longest` bytes, and if so its pieces as a part of its
    /// window. Other peers' pieces on the rail count, but for a peer without any: what no peer takes must not stop others.
    fn room(&self, pe: Pe, lane: usize, longest: u64) -> Option<f32> {
        let window = self.peers.get(&pe)?.windows.get(lane)?;
        let free = |under_way| window.has_room(under_way, longest);
        let under_way = window.under_way;
        let free = free(under_way) && (under_way == 0 || free(self.on_rails[lane]));
        free.then(|| under_way as f32 / window.most as f32)
    }

    fn begin(&mut self, pe: Pe, lane: usize, len: u64) {
        self.on_rails[lane] += len;
        if let Some(window) = self.window(pe, lane) {
            window.begin(len);
        }
    }

    /// Notes the time of a piece that a lane has completed, before its end.
    pub fn measure(&mut self, pe: Pe, lane: usize, len: u64, took: u32) {
        if let Some(window) = self.window(pe, lane) {
            window.measure(len, took);
        }
    }

    /// Notes the end of a piece that was first posted on a lane.
    pub fn end(&mut self, pe: Pe, lane: usize, len: u64) {
        self.on_rails[lane] = self.on_rails[lane].saturating_sub(len);
        let Some(peer) = self.peers.get_mut(&pe) else { return };
        peer.moved = true;
        peer.windows[lane].end(len);
    }

    fn window(&mut self, pe: Pe, lane: usize) -> Option<&mut Window> {
        self.peers.get_mut(&pe)?.windows.get_mut(lane)
    }

    /// The peers to which a piece has ended since the last call.
    pub fn take_moved(&mut self) -> Vec<Pe> {
        self.peers.iter_mut().filter_map(|(&pe, peer)| std::mem::take(&mut peer.moved).then_some(pe)).collect()
    }

    /// The operations on a peer that have pieces to be posted.
    pub fn waiting_for(&self, pe: Pe) -> impl Iterator<Item = OpHandle> {
        self.peers.get(&pe).into_iter().flat_map(|peer| peer.waiting.iter().flatten().map(|pieces| pieces.op))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// A path that moves 64 KiB in `each` microseconds and adds `latency`, with pieces of these lengths in turn and as
    /// many as the window allows. Returns the part of the time in which it moved something, and the most bytes that a new
    /// piece had to wait for, both over the second half.
    fn run(window: &mut Window, lengths: &[u64], each: f64, latency: f64) -> (f64, f64) {
        let (rate, longest) = (PIECE as f64 / each, lengths.iter().copied().fold(PIECE, u64::max));
        let (mut now, mut free, mut busy, mut most) = (0.0, 0.0, 0.0, 0.0);
        let (mut lengths, mut flights) = (lengths.iter().copied().cycle(), VecDeque::new());
        let half = f64::max(4000.0 * each, 100.0 * latency);
        window.under_way = 0;
        while now < 2.0 * half {
            while window.has_room(window.under_way, longest) {
                let len = lengths.next().unwrap();
                if now > half {
                    most = f64::max(most, (free - now) * rate);
                    busy += len as f64 / rate;
                }
                free = f64::max(free, now) + len as f64 / rate;
                window.begin(len);
                flights.push_back((now, free + latency, len));
            }
            let (posted, end, len) = flights.pop_front().unwrap();
            now = end;
            window.measure(len, now as u32 - posted as u32);
            window.end(len);
        }
        (busy / (now - half), most)
    }

    #[test]
    fn two_pieces_wait_on_the_path_at_most_and_it_is_used() {
        for (each, latency) in [(2600, 0), (2600, 4_000), (500, 20_000), (500, 100), (50, 10_000), (5, 20_000)] {
            let (used, most) = run(&mut Window::default(), &[PIECE], each.into(), latency.into());
            assert!(most <= (LEAST * PIECE) as f64, "{each} us a piece, {latency} us latency: {most} bytes wait");
            assert!(used > 0.9, "{each} us a piece, {latency} us latency: {used} of the time used");
        }
    }

    /// Whatever the lengths of pieces, a path gets what it holds in bytes.
    #[test]
    fn long_pieces_leave_a_path_used_and_wait_for_few_bytes() {
        for (each, latency) in [(500, 20_000), (500, 100), (50, 10_000), (26, 50), (5, 20_000)] {
            let long = 2_000 / each * PIECE;
            for lengths in [&[long][..], &[long, PIECE], &[long, PIECE, PIECE, PIECE, PIECE]] {
                let (used, most) = run(&mut Window::default(), lengths, each as f64, latency.into());
                let case = format!("{each} us for 64 KiB, {latency} us latency, pieces of {lengths:?}");
                assert!(most <= ((LEAST + 1) * long) as f64, "{case}: {most} bytes wait");
                assert!(used > 0.95, "{case}: {used} of the time used");
            }
        }
    }

    #[test]
    fn two_long_pieces_have_room_in_a_window_of_short_ones() {
        let (mut window, long) = (Window::default(), 60 * PIECE);
        run(&mut window, &[PIECE], 50.0, 2_000.0);
        window.under_way = 0;
        let mut posted = 0;
        while window.has_room(window.under_way, long) {
            window.begin(long);
            posted += 1;
        }
        assert!((40..45).contains(&(window.most / PIECE)) && posted == 2, "{posted} of {long} bytes in {window:?}");
    }

    #[test]
    fn a_path_that_becomes_slower_has_fewer_pieces() {
        let mut window = Window::default();
        run(&mut window, &[PIECE], 500.0, 20_000.0);
        let before = window.most / PIECE;
        run(&mut window, &[PIECE], 5_000.0, 20_000.0);
        assert!(before > 30 && window.most / PIECE < 12, "{before}, then {window:?}");
    }
}
