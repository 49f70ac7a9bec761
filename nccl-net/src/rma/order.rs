//! Operations under way, in the order in which a context has posted them to a rank.
//!
//! A weak signal follows its own data. A strong one also follows all puts and signals that its context has posted to
//! the rank before. The data of all of them travel at once; only the word of a strong signal waits, until what it
//! follows is known to be complete. Signals on the same word need not wait for each other: they add.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use slab::Slab;
use symrail_proxy::session::Request;
use symrail_transport::amo::AmoOp;
use symrail_transport::endpoint::command::Source;

use super::group::Group;
use super::window::Window;
use crate::report::{Failure, Result};

/// A context of a group, and a rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Key {
    /// The number of the set of contexts, and of the context in it.
    pub set: usize,
    pub context: i32,
    pub rank: usize,
}

/// The bytes of an operation.
pub struct Transfer {
    pub is_get: bool,
    pub local: (Arc<Window>, u64),
    pub remote: (Arc<Window>, u64),
    pub len: u64,
}

/// A value that is added to a word of the rank.
pub struct Signal {
    pub word: (Arc<Window>, u64),
    pub value: u64,
    pub strong: bool,
}

/// What a context posts.
#[derive(Default)]
pub struct Operation {
    pub transfer: Option<Transfer>,
    pub signal: Option<Signal>,
}

impl Operation {
    /// Checks that everything is inside of its memory.
    fn check(&self, rank: usize) -> Result<()> {
        if let Some(Transfer { local, remote, len, .. }) = &self.transfer {
            local.0.local(local.1, *len)?;
            remote.0.check(rank, remote.1, *len, false)?;
        }
        self.signal.as_ref().map_or(Ok(()), |signal| signal.word.0.check(rank, signal.word.1, 8, true))
    }
}

/// A part of an operation: the bytes, or the signal.
enum Part {
    Waits,
    Runs(Request),
    /// It ends with the other part.
    Joined,
    Done,
}

struct Entry {
    operation: Operation,
    data: Part,
    signal: Part,
    /// The number of the request.
    ticket: usize,
}

impl Entry {
    fn is_done(&self) -> bool {
        matches!((&self.data, &self.signal), (Part::Done, Part::Done | Part::Joined))
    }
}

/// All operations of a group that are under way.
#[derive(Default)]
pub struct Orders {
    by_key: HashMap<Key, VecDeque<Entry>>,
    /// For each request, where it is and whether it is done.
    tickets: Slab<(Key, bool)>,
    /// The first failure, which all later calls return.
    failed: Option<Failure>,
}

impl Orders {
    /// The first failure.
    pub fn usable(&self) -> Result<()> {
        self.failed.as_ref().map_or(Ok(()), |failure| Err(failure.told()))
    }

    /// Keeps a failure, unless there is an earlier one.
    pub fn fail(&mut self, failure: Failure) -> Failure {
        self.failed.get_or_insert_with(|| failure.clone());
        failure
    }

    /// Posts an operation; one without bytes and without a signal is done when those before it are. Returns the number
    /// of the request.
    pub fn post(&mut self, group: &Group, key: Key, operation: Operation) -> Result<usize> {
        self.usable()?;
        operation.check(key.rank)?;
        let ticket = self.tickets.insert((key, false));
        let (data, signal) = match &operation {
            Operation { transfer: None, signal: None } => (Part::Waits, Part::Done),
            Operation { transfer, signal } => (
                if transfer.is_some() { Part::Waits } else { Part::Done },
                if signal.is_some() { Part::Waits } else { Part::Done },
            ),
        };
        self.by_key.entry(key).or_default().push_back(Entry { operation, data, signal, ticket });
        self.advance_key(group, key)?;
        Ok(ticket)
    }

    /// Whether a request is done. It is free again then.
    pub fn test(&mut self, group: &Group, ticket: usize) -> Result<bool> {
        let Some(&(key, done)) = self.tickets.get(ticket) else {
            return Err(Failure::argument("a request that is not under way"));
        };
        if !done {
            self.usable()?;
            group.network.session.progress();
            group.look().map_err(|failure| self.fail(failure))?;
            self.advance_key(group, key)?;
        }
        let done = self.tickets.get(ticket).is_some_and(|&(_, done)| done);
        if done {
            self.tickets.remove(ticket);
        }
        Ok(done)
    }

    /// Continues all operations.
    pub fn advance(&mut self, group: &Group) -> Result<()> {
        self.usable()?;
        let keys: Vec<Key> = self.by_key.iter().filter(|(_, all)| !all.is_empty()).map(|(key, _)| *key).collect();
        keys.into_iter().try_for_each(|key| self.advance_key(group, key))
    }

    /// Continues the operations of a context to a rank.
    fn advance_key(&mut self, group: &Group, key: Key) -> Result<()> {
        let Some(entries) = self.by_key.get_mut(&key) else { return Ok(()) };
        if let Err(failure) = advance(group, key.rank, entries) {
            return Err(self.fail(failure.about(&format!("rank {}", key.rank))));
        }
        for entry in entries.iter().filter(|entry| entry.is_done()) {
            if let Some((_, done)) = self.tickets.get_mut(entry.ticket) {
                *done = true;
            }
        }
        entries.retain(|entry| !entry.is_done());
        Ok(())
    }

    /// Forgets the operations of a set of contexts, or all. They are done in the normal case; it waits until those that
    /// run have ended, because their memory is about to be freed. That is bounded: operations end by themselves.
    pub fn forget(&mut self, group: &Group, set: Option<usize>) {
        let begun = Instant::now();
        let meant = |key: &Key| set.is_none_or(|set| key.set == set);
        let entries = self.by_key.iter().filter(|(key, _)| meant(key)).flat_map(|(_, entries)| entries);
        let requests = entries.flat_map(|entry| [&entry.data, &entry.signal]);
        for part in requests {
            let Part::Runs(request) = part else { continue };
            while group.network.session.test(request).is_ok_and(|ended| !ended)
                && begun.elapsed() < 2 * group.network.timeout
            {
                // Operations to a rank that has ended fail soon after a look.
                let _ = group.look();
                std::thread::yield_now();
            }
        }
        self.by_key.retain(|key, _| !meant(key));
        self.tickets.retain(|_, (key, _)| !meant(key));
    }
}

/// Continues operations to a rank, in their order.
fn advance(group: &Group, rank: usize, entries: &mut VecDeque<Entry>) -> Result<()> {
    let session = &group.network.session;
    let ended = |part: &mut Part| -> Result<()> {
        if let Part::Runs(request) = part
            && let Some(outcome) = request.outcome()
        {
            outcome?;
            *part = Part::Done;
        }
        Ok(())
    };
    // What is behind the entry that is looked at: everything is done, all puts are done, and the only words whose
    // signals are not.
    let (mut all_done, mut puts_done) = (true, true);
    let mut pending: Option<(usize, u64)> = None;
    let mut words_clear = true;
    for entry in entries.iter_mut() {
        ended(&mut entry.data)?;
        ended(&mut entry.signal)?;
        let word = entry.operation.signal.as_ref().map(|signal| (Arc::as_ptr(&signal.word.0).addr(), signal.word.1));
        if matches!(entry.data, Part::Waits) {
            match &entry.operation.transfer {
                None if all_done => entry.data = Part::Done,
                None => {}
                Some(transfer) => {
                    let joined = entry.operation.signal.as_ref().filter(|signal| {
                        !signal.strong
                            || (puts_done && words_clear && pending.is_none_or(|before| Some(before) == word))
                    });
                    let Some(request) = start(group, rank, transfer, joined)? else { break };
                    entry.data = Part::Runs(request);
                    if joined.is_some() {
                        entry.signal = Part::Joined;
                    }
                }
            }
        }
        if let (Part::Waits, Some(signal)) = (&entry.signal, &entry.operation.signal) {
            let own = matches!(entry.data, Part::Done);
            let before =
                !signal.strong || (puts_done && words_clear && pending.is_none_or(|before| Some(before) == word));
            if own && before {
                let place = signal.word.0.place(rank, signal.word.1);
                let nothing = (Source::Stable(std::ptr::null()), 0);
                // SAFETY: no bytes are read.
                let started = unsafe { session.start_put_signal(place, nothing, place, (AmoOp::Add, signal.value)) };
                let Some(request) = started? else { break };
                entry.signal = Part::Runs(request);
            }
        }
        all_done &= entry.is_done();
        let is_get = entry.operation.transfer.as_ref().is_some_and(|transfer| transfer.is_get);
        puts_done &= is_get || matches!(entry.data, Part::Done);
        match &entry.signal {
            Part::Done => {}
            // It is under way: one on another word must not overtake it.
            Part::Runs(_) if pending.is_none() || pending == word => pending = word,
            _ if matches!(entry.signal, Part::Joined) && matches!(entry.data, Part::Done) => {}
            _ => words_clear = false,
        }
    }
    Ok(())
}

/// Starts to move the bytes, with the signal behind them if it may follow at once.
fn start(group: &Group, rank: usize, transfer: &Transfer, signal: Option<&Signal>) -> Result<Option<Request>> {
    let session = &group.network.session;
    let Transfer { is_get, local, remote, len } = transfer;
    let (here, there) = (local.0.local(local.1, *len)?, remote.0.place(rank, remote.1));
    let request = match (is_get, signal) {
        // SAFETY: the caller of the table keeps the memory until the request is done, and so does the window.
        (true, _) => unsafe { session.start_get(there, here, *len) },
        // SAFETY: as above.
        (false, None) => unsafe { session.start_put(there, Source::Stable(here), *len) },
        (false, Some(signal)) => {
            let (data, word) = ((Source::Stable(here.cast_const()), *len), signal.word.0.place(rank, signal.word.1));
            // SAFETY: as above.
            unsafe { session.start_put_signal(there, data, word, (AmoOp::Add, signal.value)) }
        }
    };
    Ok(request?)
}
