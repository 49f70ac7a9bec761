//! Posting the pieces of segmented operations as lanes have room.

use super::{PIECE, Pieces};
use crate::endpoint::command::Priority;
use crate::endpoint::queue::{Work, WorkRequest};
use crate::endpoint::{Core, Endpoint};
use crate::pe::Pe;

impl Endpoint {
    /// Enters the data of a segmented operation, and posts as much of it as there is room for.
    pub(in crate::endpoint) fn launch_segmented(&mut self, pe: Pe, lane: usize, pieces: Pieces) {
        // Held until its last piece is posted.
        self.core.ops.expect(pieces.op, 1);
        if !pieces.reads {
            self.core.hold_lane(pieces.op, lane);
        }
        self.core.segmentation.add(pe, pieces);
        self.post_pieces_to(pe);
    }

    /// Posts the pieces for which there is room.
    pub(in crate::endpoint) fn post_pieces(&mut self) {
        let mut from = 0;
        while let Some(pe) = self.core.segmentation.next_peer(from) {
            self.post_pieces_to(pe);
            from = pe + 1;
        }
    }

    fn post_pieces_to(&mut self, pe: Pe) {
        while let Some(Pieces { op, offset, ptr, left, reads, priority }) = self.core.segmentation.first(pe) {
            if self.core.ops.has_failed(op) {
                self.core.segmentation.take(pe, left);
                self.core.release(op);
                continue;
            }
            let Some((lane, most)) = self.core.lane_with_room(pe, priority) else { return };
            let len = self.core.piece(pe, lane, offset, ptr, left.min(most));
            let last = self.core.segmentation.take(pe, len);
            self.core.ops.expect(op, 1);
            self.core.segmentation.begin(pe, lane, priority, len);
            let work = if reads { Work::Read { offset } } else { Work::Write { offset } };
            let request = WorkRequest::new(work, pe, lane, op, (ptr, len as usize), None);
            self.post(WorkRequest { segmented: Some(priority), ..request });
            if last {
                self.core.release(op);
            }
        }
    }
}

impl Core {
    /// Notes that operations that wait behind pieces, in line or because of a fence, are not late while these move.
    pub(in crate::endpoint) fn note_moved_pieces(&mut self) {
        let now = self.clock.now();
        for pe in self.segmentation.take_moved() {
            let behind = self.segmentation.waiting_for(pe).chain(self.lanes.deferred(pe));
            behind.for_each(|op| self.ops.restart(op, now));
        }
    }

    /// Notes the time of a piece, of such a priority and so many bytes, that a lane has completed, before its end.
    pub(in crate::endpoint) fn measure_piece(&mut self, pe: Pe, lane: usize, piece: (Priority, u64), posted: u32) {
        let took = self.clock.micros().wrapping_sub(posted);
        self.segmentation.measure(pe, lane, piece, took);
    }

    /// The lane of the next piece to a peer, and the most bytes of the piece: of those that work and have room, the
    /// lane with the most. Where lanes are measured, it is the one that should complete its piece first, and none while
    /// the others should complete their parts of all that is left before it.
    fn lane_with_room(&self, pe: Pe, priority: Priority) -> Option<(usize, u64)> {
        let only = if self.lanes.in_use() == 1 { self.lanes.only(pe) } else { None };
        let lanes = self.lanes.each(pe).filter(|&lane| only.is_none_or(|only| lane == only));
        let mut up = lanes.filter(|&lane| self.lanes.is_up(pe, lane));
        let ready = up.clone().filter(|&lane| !self.queue.holds(lane, pe));
        let longest = |lane| match priority {
            Priority::Bulk => PIECE,
            Priority::Urgent => self.lanes.piece_max(pe, lane),
        };
        let room = ready.filter_map(|lane| Some((lane, self.segmentation.room(pe, lane, priority, longest(lane))?)));
        if !self.lanes.measures() {
            return room.min_by(|(_, a), (_, b)| a.total_cmp(b)).map(|(lane, _)| (lane, PIECE));
        }
        let unknown = self.lanes.fastest(pe);
        let time = |lane, len| self.lanes.expected(pe, lane, len, unknown);
        let all: f32 = up.clone().map(|lane| self.lanes.bandwidth(pe, lane)).sum();
        let part = |bytes: u64, lane| (bytes as f32 * self.lanes.bandwidth(pe, lane) / all) as u64;
        let left = self.segmentation.left(pe);
        // Lanes with enough to do need no short pieces to end together.
        let incomplete = left + up.clone().map(|lane| self.lanes.under_way(pe, lane)).sum::<u64>();
        // No more than its part of what is left: idle lanes would wait for each other to be faster.
        let most = |lane| part(incomplete, lane).clamp(PIECE, longest(lane)).min(PIECE + part(left, lane));
        let timed = room.map(|(lane, _)| (lane, time(lane, most(lane))));
        let (lane, soonest) = timed.min_by(|(_, a), (_, b)| a.total_cmp(b))?;
        let others_first = up.any(|other| other != lane && time(other, PIECE + part(left, other)) < soonest);
        (!others_first).then(|| (lane, most(lane)))
    }
}
