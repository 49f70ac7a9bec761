//! Puts and gets that travel together.
//!
//! Where the CPU carries the bytes, a write or read costs a system call at each end, a header and at least one packet,
//! however small it is. So those that nobody waits for yet, and that come closely one after the other, wait in the
//! backlog until there are as many as one work request takes, until something else is posted to that destination, or
//! until the next poll: of whoever waits for anything, or of the proxy thread. The first of them goes at once, so that
//! what is to overlap with computing does.

use super::{Work, WorkRequest};
use crate::endpoint::profile::MOST_TOGETHER as MOST;
use crate::endpoint::{Core, Endpoint, Role};
use crate::pe::Pe;
use crate::rail::{LocalBuf, LocalKey, Piece, Pieces, PostError, RemoteBuf};

/// The most bytes of one that waits. Beyond, the bytes cost so much more than the rest that there is nothing to gain.
const LARGEST: u64 = 64 << 10;
/// What comes later behind the one before it does not wait. About the time that a message takes.
const CLOSELY_US: u32 = 10;

const NO_PIECE: Piece = Piece {
    local: LocalBuf { ptr: std::ptr::null_mut(), len: 0, key: LocalKey(0) },
    remote: RemoteBuf { address: 0, key: 0 },
};

impl Core {
    /// Whether a put or get of `len` bytes may wait for others, if nobody waits for it alone.
    pub(in crate::endpoint) fn may_wait(&self, lane: usize, len: u64) -> bool {
        self.profile.caps(lane).pieces > 1 && len <= LARGEST
    }

    /// Whether one that may wait does. With an engine that polls soon all do.
    #[inline]
    fn waits(&mut self, request: &WorkRequest) -> bool {
        let (dest, lane) = (request.dest, usize::from(request.lane));
        // What the rail has refused is tried again soon enough.
        let refused = self.queue.backlog[lane].holds(dest) && !self.queue.backlog[lane].is_held(dest);
        !refused
            && !self.lanes.is_down(dest, lane)
            && (self.profile.role() == Role::Proxy || self.follows_closely(dest, lane))
    }

    /// Whether something small has gone to that peer at once less than [`CLOSELY_US`] ago, with no fence since; if not,
    /// this one is to.
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

    /// Something has gone just now: posting takes its time.
    fn has_gone(&mut self, pe: Pe, lane: usize) {
        let (now, epoch) = (self.clock.micros(), self.lanes.epoch());
        if let Some(c) = self.lanes.get_mut(pe, lane) {
            (c.sent_at, c.sent_behind) = (now, epoch);
        }
    }

    /// Those that wait for `lane` right behind `first`, which is one of them, and that can travel with it.
    fn together(&self, lane: usize, first: &WorkRequest) -> ([u64; MOST], usize) {
        let (mut ids, mut count, mut bytes) = ([0; MOST], 0, 0);
        let kind = std::mem::discriminant(&first.work);
        for id in self.queue.backlog[lane].waiting_first().take(self.profile.caps(lane).pieces.min(MOST)) {
            let Some(request) = self.queue.get(id) else { break };
            bytes += request.len as u64;
            let fits =
                request.may_wait && std::mem::discriminant(&request.work) == kind && bytes <= self.profile.max_rma();
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
    /// Posts one that may wait for others, now or together with them.
    pub(super) fn post_or_wait(&mut self, id: u64, request: &WorkRequest) {
        let (dest, lane) = (request.dest, usize::from(request.lane));
        if !self.core.waits(request) {
            self.post_or_keep(id, request);
            return self.core.has_gone(dest, lane);
        }
        let most = self.core.profile.caps(lane).pieces.min(MOST);
        if self.core.queue.backlog[lane].hold(dest, id) >= most {
            self.post_backlog(lane);
            self.core.has_gone(dest, lane);
        }
    }

    /// Posts the first of what waits for `lane`, which is `id`, with those that can travel with it. Tells how many they
    /// were.
    pub(super) fn post_first(&mut self, lane: usize, id: u64, request: &WorkRequest) -> (usize, Result<(), PostError>) {
        let (ids, count) = if request.may_wait { self.core.together(lane, request) } else { ([0; MOST], 0) };
        let (mut pieces, mut ready) = ([NO_PIECE; MOST], 0);
        for &id in &ids[..count] {
            // Those for which there is no room now wait for the next time.
            let Some(piece) = self.core.piece_of(lane, id) else { break };
            pieces[ready] = piece;
            ready += 1;
        }
        if ready < 2 {
            return (1, self.try_post(id, request));
        }
        let way = match request.work {
            Work::Read { .. } => Pieces::Read,
            work => Pieces::Written(self.core.notify(request.dest, lane, work)),
        };
        let windowed = match self.core.enter_window(request) {
            Ok(windowed) => windowed,
            Err(full) => return (ready, Err(full)),
        };
        // SAFETY: as for a single write or read (`try_post`), for each.
        let result = unsafe { self.rails[lane].move_pieces(request.dest, &pieces[..ready], way, id) };
        if result.is_ok() {
            self.core.note_together(&ids[..ready], windowed);
        }
        (ready, result)
    }
}

impl Core {
    fn piece_of(&mut self, lane: usize, id: u64) -> Option<Piece> {
        let request = *self.queue.get(id)?;
        let (Work::Read { offset } | Work::Write { offset } | Work::Flag { offset, immediate: None }) = request.work
        else {
            return None;
        };
        let remote = self.regions.remote(request.dest, lane, offset)?.0;
        let local = self.local_buffer(id, &request).ok()?;
        Some(Piece { local, remote })
    }

    /// Writes down that so many have been posted as one: the first tells of all.
    fn note_together(&mut self, ids: &[u64], windowed: bool) {
        for (at, &id) in ids.iter().enumerate() {
            let Some(request) = self.queue.table.get_mut(id) else { continue };
            request.next = ids.get(at + 1).copied();
            let request = *request;
            self.note_posted(id, &request, windowed);
        }
    }
}
