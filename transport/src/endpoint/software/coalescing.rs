//! Coalescing: puts and gets that travel in one work request.
//!
//! Where the CPU moves the bytes, a write or read of any size costs a system call at each end, a header and at least
//! one packet. So puts and gets that no caller waits for yet, and that follow closely behind one another, wait in the
//! backlog. They wait until there are enough for one work request, until another work request is posted to the same
//! destination, or until the next poll of a waiting caller or of the proxy thread. The first of them is posted at once,
//! so that its transfer overlaps with computation.
//!
//! A work request has a few *pieces*. Puts or gets that are contiguous both here and at the target form one piece.

use super::{COALESCED_MAX, MAX_PIECES};
use crate::endpoint::operations::key;
use crate::endpoint::queue::{Backlog, SendQueue, Work, WorkRequest};
use crate::endpoint::{Core, Endpoint, Role};
use crate::pe::Pe;
use crate::rail::{Dest, LocalBuf, LocalKey, Piece, Pieces, PostError, RemoteBuf};

/// The most puts or gets in one work request.
const MOST: usize = 64;
/// A put or get that comes later than this behind the one before it does not wait. It is about the time that a message
/// needs.
const CLOSELY_US: u32 = 10;

const NO_PIECE: Piece = Piece {
    local: LocalBuf { ptr: std::ptr::null_mut(), len: 0, key: LocalKey(0) },
    remote: RemoteBuf { address: 0, key: 0 },
};

/// Work requests for one destination that wait to be coalesced.
#[derive(Debug)]
pub(in crate::endpoint) struct Held {
    pub dest: Dest,
    last: u64,
    count: usize,
    pieces: usize,
    bytes: u64,
}

impl Held {
    /// Whether the work request is full enough to be posted, where one has `most` pieces.
    fn is_enough(&self, most: usize) -> bool {
        self.pieces >= most || self.count >= MOST || (self.count >= most && self.bytes >= COALESCED_MAX)
    }
}

impl Backlog {
    /// Adds a work request to those that wait for its destination, and returns these. `continues` answers whether this
    /// one is contiguous with the last of them.
    fn hold(&mut self, id: u64, request: &WorkRequest, continues: impl FnOnce(u64) -> bool) -> &Held {
        let (dest, len) = (request.dest, request.len as u64);
        self.push(dest, id);
        let at = self.held.iter().position(|held| held.dest == dest).unwrap_or_else(|| {
            self.held.push(Held { dest, last: id, count: 0, pieces: 0, bytes: 0 });
            self.held.len() - 1
        });
        let held = &mut self.held[at];
        held.pieces += usize::from(held.count == 0 || !continues(held.last));
        (held.last, held.count, held.bytes) = (id, held.count + 1, held.bytes + len);
        held
    }
}

/// Whether a work request is contiguous with an earlier one.
fn continues(before: &WorkRequest, request: &WorkRequest) -> bool {
    let (Work::Write { offset: from } | Work::Read { offset: from } | Work::TransmittedWrite { offset: from, .. }) =
        before.work
    else {
        return false;
    };
    let (Work::Write { offset } | Work::Read { offset } | Work::TransmittedWrite { offset, .. }) = request.work else {
        return false;
    };
    from + before.len as u64 == offset && before.ptr.wrapping_add(before.len) == request.ptr
}

/// Appends `next` to the pieces of a work request, or extends the last one if `next` is contiguous with it. Returns
/// `false` where there is no room.
fn append(pieces: &mut [Piece], count: &mut usize, next: Piece) -> bool {
    if let Some(Piece { local, remote }) = pieces[..*count].last_mut()
        && local.ptr.wrapping_add(local.len) == next.local.ptr
        && local.key == next.local.key
        && remote.address.wrapping_add(local.len as u64) == next.remote.address
        && remote.key == next.remote.key
    {
        local.len += next.local.len;
        return true;
    }
    let Some(free) = pieces.get_mut(*count) else { return false };
    *free = next;
    *count += 1;
    true
}

impl Core {
    /// Whether a work request that may wait does. All do with an engine, which polls soon.
    #[inline]
    fn waits(&mut self, request: &WorkRequest) -> bool {
        let (dest, lane) = (request.dest, usize::from(request.lane));
        // A destination that the rail has refused will be tried again soon enough.
        let refused = self.queue.backlog[lane].holds(dest) && !self.queue.backlog[lane].is_held(dest);
        !refused
            && !self.lanes.is_down(dest, lane)
            && (self.profile.role() == Role::Proxy || self.follows_closely(dest, lane))
    }

    /// Whether a small put or get went to that peer at once less than [`CLOSELY_US`] ago, with no fence since. If not,
    /// the current one counts as going at once.
    #[inline]
    pub(in crate::endpoint) fn follows_closely(&mut self, pe: Pe, lane: usize) -> bool {
        let (now, epoch) = (self.clock.micros(), self.lanes.epoch());
        let Some(c) = self.lanes.get_mut(pe, lane) else { return false };
        let closely = now.wrapping_sub(c.sent_at) < CLOSELY_US && c.sent_behind == epoch;
        if !closely {
            (c.sent_at, c.sent_behind) = (now, epoch);
        }
        closely
    }

    /// Notes a post that has just ended. It is separate because posting takes time.
    fn has_gone(&mut self, pe: Pe, lane: usize) {
        let (now, epoch) = (self.clock.micros(), self.lanes.epoch());
        if let Some(c) = self.lanes.get_mut(pe, lane) {
            (c.sent_at, c.sent_behind) = (now, epoch);
        }
    }

    /// The work requests that wait for `lane` and can travel with `first`: itself, and those right behind it.
    fn together(&self, lane: usize, first: &WorkRequest) -> ([u64; MOST], usize) {
        let (mut ids, mut count, mut bytes) = ([0; MOST], 0, 0);
        let kind = std::mem::discriminant(&first.work);
        let most = self.profile.max_rma().min(MAX_PIECES as u64 * COALESCED_MAX);
        for id in self.queue.backlog[lane].waiting_first().take(MOST) {
            let Some(request) = self.queue.get(id) else { break };
            bytes += request.len as u64;
            let fits = request.coalesce && std::mem::discriminant(&request.work) == kind && bytes <= most;
            if !fits || self.is_void(request) {
                break;
            }
            ids[count] = id;
            count += 1;
        }
        (ids, count)
    }
}

impl Endpoint {
    /// Posts a work request that may wait for others, now or together with them.
    pub(in crate::endpoint) fn post_or_wait(&mut self, id: u64, request: &WorkRequest) {
        let (dest, lane) = (request.dest, usize::from(request.lane));
        if !self.core.waits(request) {
            self.post_or_keep(id, request);
            return self.core.has_gone(dest, lane);
        }
        let most = self.core.profile.caps(lane).pieces.min(MAX_PIECES);
        let SendQueue { table, backlog, .. } = &mut self.core.queue;
        let held =
            backlog[lane].hold(id, request, |last| table.get(key(last)).is_some_and(|last| continues(last, request)));
        if held.is_enough(most) {
            self.post_backlog(lane);
            self.core.has_gone(dest, lane);
        }
    }

    /// Posts the first work request that waits for `lane`, which is `id`, with those that can travel with it. Returns
    /// their number.
    pub(in crate::endpoint) fn post_first(
        &mut self,
        lane: usize,
        id: u64,
        request: &WorkRequest,
    ) -> (usize, Result<(), PostError>) {
        let (ids, count) = if request.coalesce { self.core.together(lane, request) } else { ([0; MOST], 0) };
        let most = self.core.profile.caps(lane).pieces.min(MAX_PIECES);
        let (mut pieces, mut used, mut ready) = ([NO_PIECE; MAX_PIECES], 0, 0);
        let mut immediate = None;
        for &id in &ids[..count] {
            // Work requests without room now wait for the next post.
            let Some((piece, counted)) = self.core.piece_of(lane, id) else { break };
            if !append(&mut pieces[..most], &mut used, piece) {
                break;
            }
            ready += 1;
            immediate = counted;
            // It tells the target that everything up to here has arrived.
            if immediate.is_some() {
                break;
            }
        }
        if ready < 2 {
            return (1, self.try_post(id, request));
        }
        let transfer = match request.work {
            Work::Read { .. } => Pieces::Read,
            work => Pieces::Written(self.core.notify(request.dest, lane, work), immediate),
        };
        let windowed = match self.core.enter_window(request) {
            Ok(windowed) => windowed,
            Err(full) => return (ready, Err(full)),
        };
        // SAFETY: each piece is as for a single write or read (`try_post`).
        let result = unsafe { self.rails[lane].move_pieces(request.dest, &pieces[..used], transfer, id) };
        if result.is_ok() {
            self.core.note_together(&ids[..ready], windowed);
        }
        (ready, result)
    }
}

impl Core {
    /// The piece of a work request that may be coalesced, and its immediate, if it has one.
    fn piece_of(&mut self, lane: usize, id: u64) -> Option<(Piece, Option<u64>)> {
        let request = *self.queue.get(id)?;
        let (offset, immediate) = match request.work {
            Work::Read { offset } | Work::Write { offset } => (offset, None),
            Work::TransmittedWrite { offset, immediate } => (offset, immediate),
            _ => return None,
        };
        let remote = self.regions.remote(request.dest, self.lanes.theirs(request.dest, lane), offset)?.0;
        let local = self.local_buffer(id, &request).ok()?;
        Some((Piece { local, remote }, immediate))
    }

    /// Records that several work requests were posted as one. The completion of the first stands for all.
    fn note_together(&mut self, ids: &[u64], windowed: bool) {
        for (at, &id) in ids.iter().enumerate() {
            let Some(request) = self.queue.table.get_mut(key(id)) else { continue };
            request.next = ids.get(at + 1).copied();
            let request = *request;
            self.note_posted(id, &request, windowed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_grow_where_both_ends_go_on() {
        let piece = |at: usize, address, key, len| Piece {
            local: LocalBuf { ptr: std::ptr::without_provenance_mut(at), len, key: LocalKey(0) },
            remote: RemoteBuf { address, key },
        };
        let (mut pieces, mut count) = ([NO_PIECE; 3], 0);
        let mut added = |next| append(&mut pieces, &mut count, next);
        assert!(added(piece(100, 1000, 1, 10)));
        assert!(added(piece(110, 1010, 1, 20)), "it goes on at both ends");
        assert!(added(piece(130, 1031, 1, 5)), "not there");
        assert!(added(piece(136, 1036, 1, 5)), "not here");
        assert!(!added(piece(141, 1041, 2, 5)), "in other memory, and there is no room");
        assert!(added(piece(141, 1041, 1, 7)));
        let lengths = pieces.map(|piece| piece.local.len);
        assert_eq!((count, lengths), (3, [30, 5, 12]));
    }
}
