//! Posting the pieces of cut operations as lanes have room.

use super::{PIECE, Pieces};
use crate::endpoint::queue::{Work, WorkRequest};
use crate::endpoint::{Core, Endpoint};
use crate::pe::Pe;

impl Endpoint {
    /// Enters the data of a cut operation, and posts as much of it as there is room for.
    pub(in crate::endpoint) fn launch_cut(&mut self, pe: Pe, lane: usize, pieces: Pieces) {
        // Held until its last piece is posted.
        self.core.ops.expect(pieces.op, 1);
        if !pieces.reads {
            self.core.hold_lane(pieces.op, lane);
        }
        self.core.cut.add(pe, pieces);
        self.post_pieces_to(pe);
    }

    /// Posts the pieces for which there is room.
    pub(in crate::endpoint) fn post_pieces(&mut self) {
        let mut from = 0;
        while let Some(pe) = self.core.cut.next_peer(from) {
            self.post_pieces_to(pe);
            from = pe + 1;
        }
    }

    fn post_pieces_to(&mut self, pe: Pe) {
        while let Some(Pieces { op, offset, ptr, left, reads, .. }) = self.core.cut.first(pe) {
            if self.core.ops.has_failed(op) {
                self.core.cut.take(pe, left);
                self.core.release(op);
                continue;
            }
            let Some(lane) = self.core.lane_with_room(pe) else { return };
            let len = self.core.piece(pe, lane, offset, ptr, left.min(PIECE));
            let last = self.core.cut.take(pe, len);
            self.core.ops.expect(op, 1);
            self.core.cut.begin(pe, lane);
            let work = if reads { Work::Read { offset } } else { Work::Write { offset } };
            let request = WorkRequest::new(work, pe, lane, op, (ptr, len as usize), None);
            self.post(WorkRequest { cut: true, ..request });
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
        for pe in self.cut.take_moved() {
            let behind = self.cut.waiting_for(pe).chain(self.lanes.deferred(pe));
            behind.for_each(|op| self.ops.restart(op, now));
        }
    }

    /// The lane of the next piece to a peer: of those that work and have room, the one with the most. Where lanes are
    /// measured, it is the one that should complete the piece first, and none while the others should complete their
    /// parts of all that is left before it.
    fn lane_with_room(&self, pe: Pe) -> Option<usize> {
        let only = if self.lanes.in_use() == 1 { self.lanes.only(pe) } else { None };
        let lanes = self.lanes.each(pe).filter(|&lane| only.is_none_or(|only| lane == only));
        let mut up = lanes.filter(|&lane| self.lanes.is_up(pe, lane));
        let ready = up.clone().filter(|&lane| !self.queue.holds(lane, pe));
        let room = ready.filter_map(|lane| Some((lane, self.cut.room(pe, lane)?)));
        let least = |(_, a): &(usize, f32), (_, b): &(usize, f32)| a.total_cmp(b);
        if !self.lanes.measures() {
            return room.min_by(least).map(|(lane, _)| lane);
        }
        let unknown = self.lanes.fastest(pe);
        let time = |lane, len| self.lanes.expected(pe, lane, len, unknown);
        let (lane, soonest) = room.map(|(lane, _)| (lane, time(lane, PIECE))).min_by(least)?;
        let part = PIECE + self.cut.left(pe) / up.clone().count() as u64;
        (!up.any(|other| other != lane && time(other, part) < soonest)).then_some(lane)
    }
}
