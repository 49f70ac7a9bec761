//! Segmentation: the data of a large transfer in pieces, of which the rails never have many.
//!
//! Large bulk operations are segmented, and where lanes are measured also others ([`Lanes`](super::lanes::Lanes)
//! decides). An operation that is not segmented, on the same lane or from another endpoint over the same rail, waits
//! for the pieces that the rail has. So a lane gets as many bytes as its path holds, and up to two pieces that wait
//! there for others ([`window`], one for each priority). The rest waits here, where no such operation waits behind it,
//! and pieces of bulk operations behind all others. Each piece takes a lane that has room when it is posted, so lanes
//! of any speed are used as they deliver, also when that changes.
//!
//! A segmented operation holds a lane to its peer until it ends ([`Lanes::hold`](super::lanes::Lanes::hold)), so
//! operations behind a fence wait for it.

mod post;
mod window;

use std::collections::{BTreeMap, VecDeque};

use super::command::{OpHandle, Priority};
use crate::pe::Pe;
use window::Windows;

/// Bytes of a piece of a bulk operation, and the least of another's but for its last one.
pub(super) const PIECE: u64 = 64 << 10;
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

/// The segmented operations on one peer.
struct Peer {
    /// Those with pieces that wait, by priority.
    waiting: [VecDeque<Pieces>; 2],
    /// Their bytes that are not posted yet.
    left: [u64; 2],
    /// By the lane on which a piece was first posted.
    windows: Box<[Windows]>,
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
    on_rails: Vec<Rail>,
}

/// What a rail has under way.
#[derive(Debug, Clone, Copy, Default)]
struct Rail {
    /// Bytes of pieces, to all peers.
    bytes: u64,
    /// Peers with such pieces.
    peers: u64,
}

impl Segmentation {
    pub fn new(rails: usize) -> Segmentation {
        Segmentation { on_rails: vec![Rail::default(); rails], ..Segmentation::default() }
    }

    /// Forgets a peer of which no operation is under way.
    pub fn forget(&mut self, pe: Pe) {
        self.peers.remove(&pe);
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
        let windows = || vec![Windows::default(); rails].into();
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

    /// Whether a lane to a peer may get a piece, of pieces of up to `longest` bytes, and if so its pieces as a part of
    /// its window. Other peers' pieces on the rail count, but not beyond an equal share: what no peer takes must not
    /// stop others, nor must the longer pieces of one.
    fn room(&self, pe: Pe, lane: usize, priority: Priority, longest: u64) -> Option<f32> {
        let (windows, rail) = (self.peers.get(&pe)?.windows.get(lane)?, self.on_rails.get(lane)?);
        let (window, own) = (windows.of(priority), windows.under_way);
        let of_rail = || own == 0 || (own + longest) * rail.peers <= rail.bytes || window.has_room(rail.bytes, longest);
        (window.has_room(own, longest) && of_rail()).then(|| own as f32 / window.most as f32)
    }

    fn begin(&mut self, pe: Pe, lane: usize, priority: Priority, len: u64) {
        let Some(peer) = self.peers.get_mut(&pe) else { return };
        let (windows, rail) = (&mut peer.windows[lane], &mut self.on_rails[lane]);
        rail.peers += u64::from(windows.under_way == 0);
        rail.bytes += len;
        windows.begin(priority, len);
    }

    /// Notes the time of a piece that a lane has completed, before its end.
    pub fn measure(&mut self, pe: Pe, lane: usize, (priority, len): (Priority, u64), took: u32) {
        if let Some(windows) = self.peers.get_mut(&pe).and_then(|peer| peer.windows.get_mut(lane)) {
            windows.measure(priority, len, took);
        }
    }

    /// Notes the end of a piece that was first posted on a lane.
    pub fn end(&mut self, pe: Pe, lane: usize, len: u64) {
        let Some(peer) = self.peers.get_mut(&pe) else { return };
        peer.moved = true;
        let (windows, rail) = (&mut peer.windows[lane], &mut self.on_rails[lane]);
        windows.end(len);
        rail.bytes = rail.bytes.saturating_sub(len);
        rail.peers = rail.peers.saturating_sub(u64::from(windows.under_way == 0));
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

    /// Two peers over a rail that moves 64 KiB in 10 us, with latencies in microseconds and pieces of these lengths.
    /// Returns the part of the bytes that the second one gets.
    fn second_of_two(latencies: [f64; 2], lengths: [u64; 2]) -> f64 {
        let rate = PIECE as f64 / 10.0;
        let mut segmentation = Segmentation::new(1);
        let priorities = lengths.map(|len| if len > PIECE { Priority::Urgent } else { Priority::Bulk });
        for (pe, priority) in (0..).zip(priorities) {
            let pieces = Pieces { op: 0, offset: 0, ptr: std::ptr::null_mut(), left: 1, reads: false, priority };
            segmentation.add(pe, pieces);
        }
        let (mut now, mut free, mut bytes) = (0.0, 0.0, [0, 0]);
        // When each piece was posted and has completed.
        let mut flights = [VecDeque::new(), VecDeque::new()];
        while now < 4e6 {
            // The first peer has none until the window of the second one is known.
            for (at, pe) in [(0, 0), (1, 1)].into_iter().skip(usize::from(now < 2e6)) {
                while segmentation.room(pe, 0, priorities[at], lengths[at]).is_some() {
                    free = f64::max(free, now) + lengths[at] as f64 / rate;
                    segmentation.begin(pe, 0, priorities[at], lengths[at]);
                    flights[at].push_back((now, free + latencies[at]));
                }
            }
            let end = |at: usize| flights[at].front().map_or(f64::MAX, |&(_, end)| end);
            let (at, pe) = if end(0) < end(1) { (0, 0) } else { (1, 1) };
            let (posted, end) = flights[at].pop_front().unwrap();
            now = end;
            segmentation.measure(pe, 0, (priorities[at], lengths[at]), now as u32 - posted as u32);
            segmentation.end(pe, 0, lengths[at]);
            bytes[at] += if now > 2e6 { lengths[at] } else { 0 };
        }
        bytes[1] as f64 / (bytes[0] + bytes[1]) as f64
    }

    #[test]
    fn a_peer_with_short_pieces_has_its_share_of_a_rail_beside_one_with_long_ones() {
        for (latency, least) in [(20.0, 0.05), (2_000.0, 0.07), (20_000.0, 0.05)] {
            let part = second_of_two([20.0, latency], [200 * PIECE, PIECE]);
            assert!(part > least, "latency {latency} us: {part} of the bytes");
        }
        let equal = second_of_two([20.0, 20.0], [PIECE, PIECE]);
        assert!((0.3..0.7).contains(&equal), "equal peers: {equal}");
    }
}
