//! Cutting operations into pieces, and sending these on their way.

use symrail_heap::copy::copy;
use symrail_heap::mover::{Between, Copy};
use symrail_transport::Error;
use symrail_transport::endpoint::job::{Issue, Job};

use super::operation::{Part, Piece, Way, message};
use super::source::Source;
use super::window::{EAGER, piece_bytes};
use super::{Ticket, Tools};

/// Bytes that the CPU copies to the window in one round, so that peers and channels need not wait long.
const COPIED_PER_ROUND: usize = 1 << 20;

impl Source {
    /// Cuts operations into pieces while there are chunks.
    pub(super) fn cut_all(&mut self, tools: &mut Tools<'_>) {
        self.more = false;
        let mut copied = 0;
        while let Some(&key) = self.cutting.front() {
            if copied >= COPIED_PER_ROUND {
                self.more = true;
                return;
            }
            let Some(by_cpu) = self.cut(tools, key) else { return };
            copied += by_cpu;
            if self.staged.get(key).is_none_or(|s| s.all_cut) {
                self.cutting.retain(|&k| k != key);
            }
        }
    }

    /// Cuts one piece. `None` when there is no chunk for it; else how many bytes the CPU has copied.
    fn cut(&mut self, tools: &mut Tools<'_>, key: usize) -> Option<usize> {
        let Some(s) = self.staged.get_mut(key) else { return Some(0) };
        let len = match s.job {
            _ if s.all_cut => return Some(0),
            Job::Put { len, .. } | Job::Get { len, .. } | Job::PutSignal { len, .. } if s.near || s.far => len,
            _ => 0,
        };
        if len == 0 {
            // An AMO, a signal, or something that only had to wait.
            let stored_near = s.near && matches!(s.job, Job::Amo { .. });
            let chunk = if stored_near { Some(self.pool.take(8)?) } else { None };
            let part = match s.job {
                Job::PutSignal { .. } if s.far => Part::Signal,
                _ => Part::Whole,
            };
            s.all_cut = true;
            s.pieces += 1;
            let piece = self.pieces.insert(Piece { staged: key, part, at: 0, len: 0, chunk, eager: true, last: false });
            self.send(tools, piece);
            return Some(0);
        }
        let (at, is_get) = (s.cut, matches!(s.job, Job::Get { .. }));
        if s.way != Way::Window {
            // Whoever moves it cuts it.
            (s.cut, s.all_cut) = (len, true);
            s.pieces += 1;
            if let Job::PutSignal { signal, .. } = s.job {
                s.signal = Some(signal);
            }
            let (part, len, way, local) = (Part::Data, len as usize, s.way, s.job.local().addr());
            let last = way != Way::Rails;
            let piece = self.pieces.insert(Piece { staged: key, part, at, len, chunk: None, eager: false, last });
            match way {
                Way::Device(there) if is_get => {
                    self.copy_between(tools, piece, Between { to: local, from: there, len });
                }
                Way::Device(there) => self.copy_between(tools, piece, Between { to: there, from: local, len }),
                _ => self.send(tools, piece),
            }
            return Some(0);
        }
        let eager = s.far && !is_get && len <= (EAGER.min(tools.endpoint.copy_limit())) as u64;
        let bytes = if eager { len } else { piece_bytes(len).min(len - at) } as usize;
        let needed = is_get || s.near || !eager;
        let chunk = if needed { Some(self.pool.take(bytes)?) } else { None };
        s.cut += bytes as u64;
        s.all_cut = s.cut == len;
        s.pieces += 1;
        if let Job::PutSignal { signal, .. } = s.job
            && s.all_cut
            && !(s.far && bytes as u64 == len)
        {
            s.signal = Some(signal);
        }
        let (near, local) = (s.near, s.job.local().wrapping_add(at as usize));
        let piece =
            self.pieces.insert(Piece { staged: key, part: Part::Data, at, len: bytes, chunk, eager, last: false });
        let Some(chunk) = chunk.filter(|_| !is_get) else {
            self.send(tools, piece);
            return Some(0);
        };
        let host = self.pool.ptr(chunk);
        if near {
            self.start_copy(tools, piece, Copy { memory: local.addr(), host, len: bytes, to_memory: false });
            return Some(0);
        }
        // SAFETY: the source is valid until the operation is complete; the chunk is the piece's own and as long.
        unsafe { copy(host, local, bytes) };
        self.send(tools, piece);
        Some(bytes)
    }

    pub(super) fn start_copy(&mut self, tools: &mut Tools<'_>, piece: usize, copy: Copy) {
        // SAFETY: the chunk is the piece's own until the copy ends; the other end was found to be the mover's memory.
        if let Err(why) = unsafe { tools.copies.start(copy, Ticket::Piece(piece), false) } {
            self.copy_failed(piece, why);
        }
    }

    fn copy_between(&mut self, tools: &mut Tools<'_>, piece: usize, copy: Between) {
        // SAFETY: one end was found to be the mover's memory and the other a peer's that its device has mapped; both
        // are the operation's own until it is complete.
        if let Err(why) = unsafe { tools.copies.start_between(copy, Ticket::Piece(piece)) } {
            self.copy_failed(piece, why);
        }
    }

    /// Hands a piece to the endpoint, or keeps it until that has room.
    pub(super) fn send(&mut self, tools: &mut Tools<'_>, key: usize) {
        let Some(piece) = self.pieces.get(key) else { return };
        let Some(s) = self.staged.get(piece.staged) else { return };
        if s.told {
            // It came too late, and its owner may have its buffers back: nothing goes from them any more.
            return self.end(key, Ok(()));
        }
        let (pe, job) = (s.pe, message(s, piece, &self.pool));
        let issue = Issue { issuer: tools.issuer, tag: Some(Ticket::Piece(key).encode()) };
        // SAFETY: chunks and kept sources stay until the piece is done, and so do the operation's own buffers.
        match unsafe { tools.endpoint.submit(pe, job, issue) } {
            Ok(_) => {}
            Err(Error::Full { .. }) => self.unsent.push_back(key),
            Err(error) => self.end(key, Err(error)),
        }
    }
}
