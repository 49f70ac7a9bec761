//! Small copies, gathered in a round and made together: a copy by the driver takes microseconds, whatever its size.
//!
//! A copy of up to [`SMALL`] bytes waits for the end of the round ([`Copies::flush`]). Copies to neighbouring addresses
//! become one *run*: their bytes are packed into a part of the staging buffer, or unpacked from it.
//!
//! # Order
//! No waiting copy depends on another one: its source would have waited for the earlier one to complete. Two cases keep
//! their order all the same:
//! - A signal is marked as following data, and is written by a later copy than all earlier data.
//! - Of overlapping writes in one run, the last one wins.

use std::collections::VecDeque;
use std::ops::Range;
use std::ptr::NonNull;

use symrail_heap::CopyEngine;
use symrail_heap::copy::copy;
use symrail_heap::copy_engine::{Between, Copy, CopyCompletion};

use super::context::Ticket;

/// Larger copies are started at once.
const SMALL: usize = 1024;
/// The most bytes of a run.
const RUN_BYTES: usize = 4096;
/// The most runs under way.
const RUNS: usize = 256;
/// Bytes between two reads that are read as well, because two copies would need more time.
const GAP: usize = 64;

/// The size of all runs' parts of the staging buffer.
pub(super) const BATCH_BYTES: usize = RUNS * RUN_BYTES;

/// A copy that waits for the end of the round.
#[derive(Clone, Copy)]
struct Small {
    copy: Copy,
    ticket: Ticket,
    /// Whether it must not become visible before earlier data.
    after_data: bool,
    /// Its position in the sequence of copies.
    number: u64,
}

impl Small {
    fn range(&self) -> Range<usize> {
        self.copy.memory..self.copy.memory + self.copy.len
    }
}

/// A part of the staging buffer, and the copies that are under way in it.
struct Run {
    buffer: *mut u8,
    memory: usize,
    members: Vec<Small>,
}

/// A copy engine, and the small copies that wait for it.
pub(super) struct Copies {
    copy_engine: Box<dyn CopyEngine>,
    writes: VecDeque<Small>,
    reads: VecDeque<Small>,
    runs: Vec<Run>,
    free: Vec<usize>,
    started: u64,
    /// Copies that could not be started, whose failures are to be reported.
    failed: Vec<CopyCompletion>,
    /// Kept for its memory.
    batch: Vec<Small>,
    signals: Vec<Range<usize>>,
}

// SAFETY: the pointers lie in the staging buffer, which is the copy engine's as long as that lives.
unsafe impl Send for Copies {}

impl Copies {
    /// Copies by `copy_engine`, with runs packed in [`BATCH_BYTES`] bytes of its staging buffer at `buffers`.
    pub fn new(copy_engine: Box<dyn CopyEngine>, buffers: NonNull<u8>) -> Self {
        let run = |at| Run { buffer: buffers.as_ptr().wrapping_add(at * RUN_BYTES), memory: 0, members: Vec::new() };
        Copies {
            copy_engine,
            writes: VecDeque::new(),
            reads: VecDeque::new(),
            runs: (0..RUNS).map(run).collect(),
            free: (0..RUNS).collect(),
            started: 0,
            failed: Vec::new(),
            batch: Vec::new(),
            signals: Vec::new(),
        }
    }

    /// The copy engine, for calls other than copies between the staging buffer and memory.
    pub fn copy_engine(&mut self) -> &mut dyn CopyEngine {
        &mut *self.copy_engine
    }

    /// The copy engine's staging buffer.
    pub fn staging_buffer(&self) -> (NonNull<u8>, usize) {
        self.copy_engine.staging_buffer()
    }

    /// Starts a copy. With `after_data` it does not become visible before data whose copy was started earlier.
    ///
    /// # Safety
    /// As for [`CopyEngine::start`].
    ///
    /// # Errors
    /// As for [`CopyEngine::start`].
    pub unsafe fn start(&mut self, copy: Copy, ticket: Ticket, after_data: bool) -> Result<(), String> {
        if copy.len > SMALL {
            // SAFETY: the caller's promise.
            return unsafe { self.copy_engine.start(copy, ticket.encode()) };
        }
        let queue = if copy.to_memory { &mut self.writes } else { &mut self.reads };
        queue.push_back(Small { copy, ticket, after_data, number: self.started });
        self.started += 1;
        Ok(())
    }

    /// Starts a copy between a peer's memory and the copy engine's own.
    ///
    /// # Safety
    /// As for [`CopyEngine::start_between`].
    ///
    /// # Errors
    /// As for [`CopyEngine::start_between`].
    pub unsafe fn start_between(&mut self, copy: Between, ticket: Ticket) -> Result<(), String> {
        // SAFETY: the caller's promise.
        unsafe { self.copy_engine.start_between(copy, ticket.encode()) }
    }

    /// Ends a round: hands the gathered copies to the copy engine.
    pub fn flush(&mut self) {
        if self.writes.len() <= self.copy_engine.room_for_words() {
            // A waiting kernel is faster than any copy.
            while let Some(write) = self.writes.pop_front() {
                self.start_alone(write);
            }
        }
        while self.start_batch(true) {}
        while self.start_batch(false) {}
        self.copy_engine.flush();
    }

    /// Starts the oldest copies of one direction. Returns `false` if there are none, or if no buffer is free.
    fn start_batch(&mut self, to_memory: bool) -> bool {
        let queue = if to_memory { &mut self.writes } else { &mut self.reads };
        let mut batch = std::mem::take(&mut self.batch);
        self.signals.clear();
        // Each run has at least two members.
        while batch.len() < 2 * self.free.len()
            && let Some(small) = queue.front()
        {
            let range = small.range();
            if small.after_data {
                self.signals.push(range);
            } else if self.signals.iter().any(|signal| range.start < signal.end && signal.start < range.end) {
                break; // it overwrites a signal, which is written after the batch's data
            }
            batch.extend(queue.pop_front());
        }
        batch.sort_unstable_by_key(|small| (small.after_data, small.copy.memory, small.number));
        let gap = if to_memory { 0 } else { GAP };
        let mut rest = &batch[..];
        while let Some(first) = rest.first() {
            let mut range = first.range();
            let members = rest.iter().take_while(|small| {
                let end = range.end.max(small.range().end);
                let near = small.copy.memory <= range.end + gap && small.after_data == first.after_data;
                let joins = near && end - range.start <= RUN_BYTES;
                range.end = if joins { end } else { range.end };
                joins
            });
            let members = members.count();
            let (run, after) = rest.split_at(members);
            self.start_run(run, range);
            rest = after;
        }
        let any = !batch.is_empty();
        batch.clear();
        self.batch = batch;
        any
    }

    /// Starts one copy for these members, which together cover the range.
    fn start_run(&mut self, members: &[Small], range: Range<usize>) {
        let key = if members.len() > 1 { self.free.pop() } else { None };
        let Some(key) = key else { return members.iter().for_each(|&small| self.start_alone(small)) };
        let Run { buffer, memory, members: kept } = &mut self.runs[key];
        *memory = range.start;
        kept.extend_from_slice(members);
        let to_memory = members[0].copy.to_memory;
        if to_memory {
            // The last write wins.
            kept.sort_unstable_by_key(|small| small.number);
            for Small { copy: part, .. } in &*kept {
                // SAFETY: inside of the run's buffer; the caller of `start` keeps the other end valid.
                unsafe { copy(buffer.wrapping_add(part.memory - range.start), part.host, part.len) };
            }
        }
        let run = Copy { memory: range.start, host: *buffer, len: range.len(), to_memory };
        // SAFETY: the buffer is the run's own until it is reported. The memory is that of the members, as their callers
        // promised, and, for reads, up to `GAP` bytes between two of them. If both members are in one segment, so are
        // those bytes, as it is one mapping. If they are not, the driver refuses a copy across two allocations.
        if unsafe { self.copy_engine.start(run, Ticket::Run(key).encode()) }.is_err() {
            // Neighbours need not be in one allocation.
            let mut kept = std::mem::take(&mut self.runs[key].members);
            kept.drain(..).for_each(|small| self.start_alone(small));
            self.runs[key].members = kept;
            self.free.push(key);
        }
    }

    fn start_alone(&mut self, Small { copy, ticket, .. }: Small) {
        // SAFETY: the promise of the callers of `start`.
        if let Err(why) = unsafe { self.copy_engine.start(copy, ticket.encode()) } {
            self.failed.push(CopyCompletion { ticket: ticket.encode(), result: Err(why) });
        }
    }

    /// Reports completed copies. Returns the number of copy engine copies among them.
    pub fn poll(&mut self, ended: &mut Vec<CopyCompletion>) -> usize {
        ended.append(&mut self.failed);
        let Copies { copy_engine, runs, free, .. } = self;
        copy_engine.poll(&mut |moved| {
            let Ticket::Run(key) = Ticket::decode(moved.ticket) else { return ended.push(moved) };
            let Run { buffer, memory, members } = &mut runs[key];
            for Small { copy: part, ticket, .. } in members.drain(..) {
                if !part.to_memory && moved.result.is_ok() {
                    // SAFETY: inside of the run's buffer, which no copy uses now; the caller of `start` keeps the other
                    // end valid.
                    unsafe { copy(part.host, buffer.wrapping_add(part.memory - *memory), part.len) };
                }
                ended.push(CopyCompletion { ticket: ticket.encode(), result: moved.result.clone() });
            }
            free.push(key);
        })
    }

    /// Copies that have not been reported.
    pub fn pending(&self) -> usize {
        self.writes.len() + self.reads.len() + self.failed.len() + self.copy_engine.pending()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::{Arc, Mutex};

    use super::*;

    /// A copy engine that copies at once.
    struct Recorder {
        staging_buffer: Box<[u64]>,
        state: Arc<Mutex<State>>,
    }

    /// The recorded copies, and the configured behaviour.
    #[derive(Default)]
    struct State {
        started: Vec<Copy>,
        ended: Vec<CopyCompletion>,
        refuses: bool,
        words: usize,
    }

    // SAFETY: the pointers of copies are used in one thread.
    unsafe impl Send for Recorder {}

    // SAFETY: the staging buffer is its own, and each copy is reported once.
    unsafe impl CopyEngine for Recorder {
        fn staging_buffer(&self) -> (NonNull<u8>, usize) {
            (NonNull::from(&*self.staging_buffer).cast(), 8 * self.staging_buffer.len())
        }

        unsafe fn start(&mut self, c: Copy, ticket: u64) -> Result<(), String> {
            let mut state = self.state.lock().unwrap();
            if state.refuses && matches!(Ticket::decode(ticket), Ticket::Run(_)) {
                return Err("two allocations".into());
            }
            let memory = std::ptr::with_exposed_provenance_mut::<u8>(c.memory);
            let (to, from) = if c.to_memory { (memory, c.host) } else { (c.host, memory) };
            // SAFETY: the caller's promise.
            unsafe { copy(to, from, c.len) };
            state.started.push(c);
            state.ended.push(CopyCompletion { ticket, result: Ok(()) });
            Ok(())
        }

        fn prepare_peer(&mut self, _: usize) -> Result<(), String> {
            Ok(())
        }

        unsafe fn start_between(&mut self, _: Between, _: u64) -> Result<(), String> {
            Err("no peers".into())
        }

        fn room_for_words(&mut self) -> usize {
            self.state.lock().unwrap().words
        }

        fn poll(&mut self, ended: &mut dyn FnMut(CopyCompletion)) -> usize {
            self.state.lock().unwrap().ended.drain(..).map(ended).count()
        }

        fn pending(&self) -> usize {
            self.state.lock().unwrap().ended.len()
        }

        fn writing(&self) -> usize {
            0
        }
    }

    /// Memory, a place in the staging buffer for each copy, and the last started copies.
    struct World {
        copies: Copies,
        state: Arc<Mutex<State>>,
        memory: Box<[u64]>,
        at: usize,
        places: usize,
    }

    impl World {
        fn new() -> World {
            let staging_buffer = vec![0u64; (BATCH_BYTES + 1024 * SMALL) / 8].into_boxed_slice();
            let state = Arc::<Mutex<State>>::default();
            let copy_engine = Box::new(Recorder { staging_buffer, state: Arc::clone(&state) });
            let base = copy_engine.staging_buffer().0;
            let mut memory = vec![0u64; 2048].into_boxed_slice();
            let at = memory.as_mut_ptr().expose_provenance();
            World { copies: Copies::new(copy_engine, base), state, memory, at, places: 0 }
        }

        fn place(&mut self) -> *mut u8 {
            self.places += 1;
            let at = BATCH_BYTES + (self.places - 1) % 1024 * SMALL;
            self.copies.staging_buffer().0.as_ptr().wrapping_add(at)
        }

        fn write(&mut self, at: usize, bytes: &[u8], after_data: bool) {
            let host = self.place();
            let (memory, ticket) = (self.at + at, Ticket::Fragment(self.places));
            // SAFETY: a place in the staging buffer, which is reused after a thousand copies; the memory is long
            // enough.
            unsafe {
                copy(host, bytes.as_ptr(), bytes.len());
                self.copies
                    .start(Copy { memory, host, len: bytes.len(), to_memory: true }, ticket, after_data)
                    .unwrap();
            }
        }

        /// Ends a round: returns addresses and lengths of the copies, and the number of reported copies.
        fn round(&mut self) -> (Vec<(usize, usize)>, usize) {
            self.copies.flush();
            let mut ended = Vec::new();
            self.copies.poll(&mut ended);
            assert!(ended.iter().all(|moved| moved.result.is_ok()));
            assert_eq!((self.copies.pending(), self.copies.free.len()), (0, RUNS));
            let at = self.at;
            let copies = self.state.lock().unwrap().started.drain(..).map(|c| (c.memory - at, c.len)).collect();
            (copies, ended.len())
        }

        fn bytes(&self, at: usize, len: usize) -> Vec<u8> {
            self.memory.iter().flat_map(|word| word.to_ne_bytes()).skip(at).take(len).collect()
        }
    }

    #[test]
    fn neighbours_are_one_copy_and_a_lone_one_is_itself() {
        let mut world = World::new();
        // The order of the copies does not matter.
        for i in 0..256usize {
            let at = i * 149 % 256;
            world.write(4 * at, &(at as u32).to_ne_bytes(), false);
        }
        world.write(4096, &[7; 8], false);
        assert_eq!(world.round(), (vec![(0, 1024), (4096, 8)], 257));
        let expected: Vec<u8> = (0..256u32).flat_map(u32::to_ne_bytes).collect();
        assert_eq!((world.bytes(0, 1024), world.bytes(4096, 8)), (expected, vec![7; 8]));
        assert_eq!(world.round(), (vec![], 0));
        // Where the driver refuses a run, each copy is made alone.
        world.state.lock().unwrap().refuses = true;
        (0..3).for_each(|i| world.write(8 * i, &[i as u8; 8], false));
        assert_eq!(world.round(), (vec![(0, 8), (8, 8), (16, 8)], 3));
        // A few words are left to a waiting kernel, one by one; many are not.
        world.state.lock().unwrap().refuses = false;
        world.state.lock().unwrap().words = 3;
        (0..3).for_each(|i| world.write(8 * i, &[i as u8; 8], i == 2));
        assert_eq!(world.round().0, [(0, 8), (8, 8), (16, 8)]);
        (0..4).for_each(|i| world.write(8 * i, &[i as u8; 8], false));
        assert_eq!(world.round().0, [(0, 32)]);
    }

    #[test]
    fn reads_of_one_neighbourhood_are_one_copy() {
        let mut world = World::new();
        world.memory.iter_mut().zip(0..).for_each(|(word, i)| *word = i);
        let at = world.at;
        let places: Vec<_> = (0..128usize).map(|i| (16 * i, world.place())).collect();
        for (i, &(from, host)) in places.iter().enumerate() {
            let copy = Copy { memory: at + from, host, len: 8, to_memory: false };
            // SAFETY: a place of the staging buffer for each; the memory is long enough.
            unsafe { world.copies.start(copy, Ticket::Task(i), false) }.unwrap();
        }
        assert_eq!(world.round(), (vec![(0, 127 * 16 + 8)], 128));
        for (from, host) in places {
            // SAFETY: as above.
            assert_eq!(unsafe { host.cast::<u64>().read() }, from as u64 / 8);
        }
    }

    /// Random puts and signals, often on the same memory: in the end the last write wins, and no signal becomes visible
    /// before earlier data.
    /// before data that came before it.
    #[test]
    fn signals_stay_behind_data_and_the_last_write_wins() {
        let mut world = World::new();
        let (mut random, mut expected, mut calls, mut writes) = (88_172_645_463_325_252u64, vec![0u8; 1024], 0, 0);
        for _ in 0..2000 {
            let mut signals = Vec::new();
            for number in 0..1 + random % 40 {
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                let after_data = random & 7 == 0;
                let len = if after_data { 8 } else { 1 << (random >> 8 & 3) };
                let at = (random >> 16) as usize % 1000 / len * len;
                let bytes = [random.to_ne_bytes()[3]; 8];
                world.write(at, &bytes[..len], after_data);
                expected[at..at + len].copy_from_slice(&bytes[..len]);
                signals.push((at, len, after_data, number));
                writes += 1;
            }
            let (copies, ended) = world.round();
            assert_eq!(ended, signals.len());
            let position = |at: usize| {
                let holds = |&(from, len): &(usize, usize)| (from..from + len).contains(&at);
                (copies.iter().position(holds).unwrap(), copies.iter().rposition(holds).unwrap())
            };
            for &(at, .., number) in signals.iter().filter(|(_, _, after_data, _)| *after_data) {
                let before = signals.iter().filter(|(.., earlier)| *earlier < number);
                for &(data, ..) in before.filter(|(_, _, after_data, _)| !after_data) {
                    assert!(position(data).0 < position(at).1, "{data} before {at}");
                }
            }
            assert!(world.bytes(0, 1024) == expected, "what came last is not there");
            calls += copies.len();
        }
        assert!(calls < writes, "{calls} calls for {writes} writes");
    }
}
