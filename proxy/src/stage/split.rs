//! Splits operations into fragments and sends them.

use symrail_heap::copy::copy;
use symrail_heap::copy_engine::{Between, Copy};
use symrail_transport::Error;
use symrail_transport::endpoint::command::{Command, Owner};

use super::context::{StageContext, Ticket};
use super::operation::{Fragment, Part, Route, message};
use super::source::Source;
use super::staging_buffer::{EAGER, fragment_bytes};

/// Bytes that the CPU copies to the staging buffer in one round, so that peers and channels need not wait long.
const COPIED_PER_ROUND: usize = 1 << 20;

impl Source {
    /// Splits operations into fragments while there are chunks.
    pub(super) fn split_all(&mut self, ctx: &mut StageContext<'_>) {
        self.more = false;
        let mut copied = 0;
        while let Some(&key) = self.to_split.front() {
            if copied >= COPIED_PER_ROUND {
                self.more = true;
                return;
            }
            let Some(by_cpu) = self.split(ctx, key) else { return };
            copied += by_cpu;
            // An operation that has ended meanwhile is not queued any more.
            if let Some(s) = self.staged.get_mut(key).filter(|s| s.all_split) {
                s.queued = false;
                self.to_split.pop_front();
            }
        }
    }

    /// Splits off one fragment. Returns how many bytes the CPU has copied, or `None` if no chunk is free.
    fn split(&mut self, ctx: &mut StageContext<'_>, key: usize) -> Option<usize> {
        let Some(s) = self.staged.get_mut(key) else { return Some(0) };
        let len = match s.command {
            _ if s.all_split => return Some(0),
            Command::Put { len, .. } | Command::Get { len, .. } | Command::PutSignal { len, .. }
                if s.local_is_device || s.remote_is_device =>
            {
                len
            }
            _ => 0,
        };
        if len == 0 {
            // An AMO, a signal, or an operation that a fence held back.
            let local_device = s.local_is_device && matches!(s.command, Command::Amo { .. });
            let chunk = if local_device { Some(self.pool.take(8)?) } else { None };
            let part = match s.command {
                Command::PutSignal { .. } if s.remote_is_device => Part::Signal,
                _ => Part::Whole,
            };
            s.all_split = true;
            s.fragments += 1;
            let fragment =
                self.fragments.insert(Fragment { staged: key, part, at: 0, len: 0, chunk, eager: true, last: false });
            self.send(ctx, fragment);
            return Some(0);
        }
        let (at, is_get) = (s.split, matches!(s.command, Command::Get { .. }));
        if s.route != Route::Staged {
            // Rails and the device split it themselves.
            (s.split, s.all_split) = (len, true);
            s.fragments += 1;
            if let Command::PutSignal { signal, .. } = s.command {
                s.signal = Some(signal);
            }
            let (part, len, route, local) = (Part::Data, len as usize, s.route, s.command.local().addr());
            let last = route != Route::Rails;
            let fragment =
                self.fragments.insert(Fragment { staged: key, part, at, len, chunk: None, eager: false, last });
            match route {
                Route::Device(there) if is_get => {
                    self.copy_between(ctx, fragment, Between { to: local, from: there, len });
                }
                Route::Device(there) => self.copy_between(ctx, fragment, Between { to: there, from: local, len }),
                _ => self.send(ctx, fragment),
            }
            return Some(0);
        }
        let eager = s.remote_is_device && !is_get && len <= (EAGER.min(ctx.endpoint.copy_limit())) as u64;
        let bytes = if eager { len } else { fragment_bytes(len).min(len - at) } as usize;
        let needed = is_get || s.local_is_device || !eager;
        let chunk = if needed { Some(self.pool.take(bytes)?) } else { None };
        s.split += bytes as u64;
        s.all_split = s.split == len;
        s.fragments += 1;
        if let Command::PutSignal { signal, .. } = s.command
            && s.all_split
            && !(s.remote_is_device && bytes as u64 == len)
        {
            s.signal = Some(signal);
        }
        let (local_is_device, local) = (s.local_is_device, s.command.local().wrapping_add(at as usize));
        let fragment = self.fragments.insert(Fragment {
            staged: key,
            part: Part::Data,
            at,
            len: bytes,
            chunk,
            eager,
            last: false,
        });
        let Some(chunk) = chunk.filter(|_| !is_get) else {
            self.send(ctx, fragment);
            return Some(0);
        };
        let host = self.pool.ptr(chunk);
        if local_is_device {
            self.start_copy(ctx, fragment, Copy { memory: local.addr(), host, len: bytes, to_memory: false });
            return Some(0);
        }
        // SAFETY: the source is valid until the operation is complete; the chunk is the fragment's own and as long.
        unsafe { copy(host, local, bytes) };
        self.send(ctx, fragment);
        Some(bytes)
    }

    pub(super) fn start_copy(&mut self, ctx: &mut StageContext<'_>, fragment: usize, copy: Copy) {
        // SAFETY: the chunk is the fragment's own until the copy ends; the other end was checked to be the copy
        // engine's memory.
        if let Err(why) = unsafe { ctx.copies.start(copy, Ticket::Fragment(fragment), false) } {
            self.copy_failed(fragment, why);
        }
    }

    fn copy_between(&mut self, ctx: &mut StageContext<'_>, fragment: usize, copy: Between) {
        // SAFETY: one end was checked to be the copy engine's memory, and the other to be a peer's memory that its
        // device has mapped. Both are the operation's own until it is complete.
        if let Err(why) = unsafe { ctx.copies.start_between(copy, Ticket::Fragment(fragment)) } {
            self.copy_failed(fragment, why);
        }
    }

    /// Submits a fragment to the endpoint, or queues it until there is room.
    pub(super) fn send(&mut self, ctx: &mut StageContext<'_>, key: usize) {
        let Some(fragment) = self.fragments.get(key) else { return };
        let Some(s) = self.staged.get(fragment.staged) else { return };
        if s.reported {
            // The operation has timed out, and its owner may reuse the buffers.
            return self.end(key, Ok(()));
        }
        let (pe, command) = (s.pe, message(s, fragment, &self.pool));
        let owner = Owner { issuer: ctx.issuer, tag: Some(Ticket::Fragment(key).encode()) };
        // SAFETY: chunks and kept sources stay until the fragment is done, and so do the operation's own buffers.
        match unsafe { ctx.endpoint.submit(pe, command, owner) } {
            Ok(_) => {}
            Err(Error::Full { .. }) => self.unsent.push_back(key),
            Err(error) => self.end(key, Err(error)),
        }
    }
}
