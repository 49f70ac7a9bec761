//! Posting the pieces of bulk operations as lanes have room.

use super::Pieces;
use crate::endpoint::command::PIECE;
use crate::endpoint::queue::{Work, WorkRequest};
use crate::endpoint::{Core, Endpoint};
use crate::pe::Pe;

impl Endpoint {
    /// Enters the data of a bulk operation, and posts as much of it as there is room for.
    pub(in crate::endpoint) fn launch_bulk(&mut self, pe: Pe, lane: usize, pieces: Pieces) {
        // Held until its last piece is posted.
        self.core.ops.expect(pieces.op, 1);
        if !pieces.reads {
            self.core.hold_lane(pieces.op, lane);
        }
        self.core.bulk.add(pe, pieces);
        self.post_pieces_to(pe);
    }

    /// Posts the pieces for which there is room.
    pub(in crate::endpoint) fn post_pieces(&mut self) {
        let mut from = 0;
        while let Some(pe) = self.core.bulk.next_peer(from) {
            self.post_pieces_to(pe);
            from = pe + 1;
        }
    }

    fn post_pieces_to(&mut self, pe: Pe) {
        while let Some(&mut Pieces { op, offset, ptr, left, reads }) = self.core.bulk.first(pe) {
            if self.core.ops.has_failed(op) {
                self.core.bulk.drop_first(pe);
                self.core.release(op);
                continue;
            }
            let Some(lane) = self.core.lane_with_room(pe) else { return };
            let len = self.core.piece(pe, lane, offset, ptr, left.min(PIECE));
            let last = len == left;
            if let Some(first) = self.core.bulk.first(pe) {
                (first.offset, first.ptr, first.left) = (offset + len, ptr.wrapping_add(len as usize), left - len);
            }
            self.core.ops.expect(op, 1);
            self.core.bulk.begin(pe, lane);
            let work = if reads { Work::Read { offset } } else { Work::Write { offset } };
            let request = WorkRequest::new(work, pe, lane, op, (ptr, len as usize), None);
            self.post(WorkRequest { bulk: true, ..request });
            if last {
                self.core.bulk.drop_first(pe);
                self.core.release(op);
            }
        }
    }
}

impl Core {
    /// Notes that operations that wait behind pieces, in line or because of a fence, are not late while these move.
    pub(in crate::endpoint) fn note_moved_bulk(&mut self) {
        let now = self.clock.now();
        for pe in self.bulk.take_moved() {
            let behind = self.bulk.waiting_for(pe).chain(self.lanes.deferred(pe));
            behind.for_each(|op| self.ops.restart(op, now));
        }
    }

    /// The lane of the next piece to a peer: of those that work, the one with the most room.
    fn lane_with_room(&self, pe: Pe) -> Option<usize> {
        let only = if self.lanes.in_use() == 1 { self.lanes.only(pe) } else { None };
        let lanes = self.lanes.each(pe).filter(|&lane| only.is_none_or(|only| lane == only));
        let ready = lanes.filter(|&lane| self.lanes.is_up(pe, lane) && !self.queue.holds(lane, pe));
        let room = ready.filter_map(|lane| Some((lane, self.bulk.room(pe, lane)?)));
        room.min_by(|(_, a), (_, b)| a.total_cmp(b)).map(|(lane, _)| lane)
    }
}
