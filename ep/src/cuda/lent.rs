//! Pools of memory for launches on streams, with reuse of returned memory.
//!
//! An event follows all launches that use the memory, and each use waits for the previous one, whatever the streams.
//! Memory that is never lent is used in the same way ([`in_turn`]; [`Turns`], for short calls).
//! A graph may use captured memory at any time. So the pool keeps that memory as long as the pool or anything lent from
//! it exists.

use std::cell::Cell;
use std::sync::{Arc, Mutex, PoisonError};

use symrail::kernels::cuda::{DeviceBuffer, Event, Gpu, Stream};
use symrail_core::lock;

use super::failed;
use crate::error::Result;

/// Memory of a GPU, and an event behind its last use.
pub(super) trait Memory {
    type Stream;

    /// Whether a stream is capturing.
    fn is_captured(stream: &Self::Stream) -> Result<bool>;
    /// Makes later launches on the stream wait for the event.
    fn follow(&self, stream: &Self::Stream) -> Result<()>;
    /// Records the event behind the launches so far.
    fn mark(&self, stream: &Self::Stream) -> Result<()>;
    /// A stream's number. Handles are not compared: the driver reuses that of a destroyed stream, and those of default
    /// streams mean a different stream in each thread.
    fn number(stream: &Self::Stream) -> Result<u64>;
    /// Waits on the host until the GPU is idle.
    fn settle(&self) -> Result<()>;
}

/// Memory of the GPU, and an event behind its last use.
pub(super) struct Used {
    pub buffer: DeviceBuffer,
    event: Event,
    gpu: Arc<Gpu>,
}

impl Used {
    pub fn new(gpu: &Arc<Gpu>, buffer: DeviceBuffer) -> Result<Used> {
        Ok(Used { buffer, event: Event::new(gpu).map_err(failed)?, gpu: Arc::clone(gpu) })
    }
}

impl Memory for Used {
    type Stream = Stream;

    fn is_captured(stream: &Stream) -> Result<bool> {
        stream.is_capturing().map_err(failed)
    }

    fn follow(&self, stream: &Stream) -> Result<()> {
        stream.wait_for(&self.event).map_err(failed)
    }

    fn mark(&self, stream: &Stream) -> Result<()> {
        self.event.record(stream).map_err(failed)
    }

    fn number(stream: &Stream) -> Result<u64> {
        stream.number().map_err(failed)
    }

    fn settle(&self) -> Result<()> {
        self.gpu.synchronize().map_err(failed)
    }
}

/// Memory that is not lent: reusable memory, and memory that a graph may use.
struct Shelves<M> {
    spare: Vec<M>,
    kept: Vec<M>,
}

/// A pool of memory.
pub(super) struct Pool<M>(Arc<Mutex<Shelves<M>>>);

/// Memory that returns to its pool on drop.
pub(super) struct Lent<M> {
    /// `None` only during drop.
    memory: Option<M>,
    /// Whether a graph may use the memory, or its last launches have no event behind them.
    is_kept: Cell<bool>,
    shelves: Arc<Mutex<Shelves<M>>>,
}

/// Launches work behind the earlier work that uses the memory. A capturing stream cannot wait for that.
pub(super) fn in_turn<M: Memory>(memory: &M, stream: &M::Stream, launch: impl FnOnce() -> Result<()>) -> Result<()> {
    if M::is_captured(stream)? {
        return launch();
    }
    memory.follow(stream)?;
    let launched = launch();
    // The event is recorded even if a launch has failed, because earlier launches run.
    launched.and(memory.mark(stream))
}

/// Memory that one call after the other uses, most often all on one stream. An event costs as much as a short launch, so
/// there are events only from the first change of streams on, for which the host waits.
pub(super) struct Turns<M> {
    memory: M,
    last: Mutex<Last>,
}

/// The stream of the last use, and whether the event is behind that.
#[derive(Default)]
struct Last {
    stream: Option<u64>,
    is_marked: bool,
}

impl<M: Memory> Turns<M> {
    pub fn new(memory: M) -> Turns<M> {
        Turns { memory, last: Mutex::default() }
    }

    pub fn memory(&self) -> &M {
        &self.memory
    }

    /// Launches work behind the earlier work that uses the memory, captured work excepted.
    pub fn launch(&self, stream: &M::Stream, launch: impl FnOnce() -> Result<()>) -> Result<()> {
        let mut last = lock(&self.last);
        if M::is_captured(stream)? {
            return launch();
        }
        let number = M::number(stream)?;
        let is_same = last.stream == Some(number);
        if is_same && !last.is_marked {
            return launch();
        }
        let has_changed = last.stream.is_some() && !is_same;
        match (has_changed, last.is_marked) {
            (true, true) => self.memory.follow(stream)?,
            (true, false) => self.memory.settle()?,
            (false, _) => {}
        }
        let marks = has_changed || last.is_marked;
        *last = Last { stream: Some(number), is_marked: false };
        let launched = launch();
        if !marks {
            return launched;
        }
        // The event is recorded even if a launch has failed, because earlier launches run.
        let marked = self.memory.mark(stream);
        last.is_marked = marked.is_ok();
        launched.and(marked)
    }
}

impl<M: Memory> Pool<M> {
    pub fn new() -> Pool<M> {
        Pool(Arc::new(Mutex::new(Shelves { spare: Vec::new(), kept: Vec::new() })))
    }

    /// Memory for launches on a stream: returned memory, or new memory from `make`. A capturing stream cannot wait for
    /// earlier launches, so it gets memory that was never used.
    pub fn lend(&self, stream: &M::Stream, make: impl FnOnce() -> Result<M>) -> Result<Lent<M>> {
        let captured = M::is_captured(stream)?;
        let spare = if captured { None } else { self.0.lock().unwrap_or_else(PoisonError::into_inner).spare.pop() };
        let memory = match spare {
            Some(memory) => {
                memory.follow(stream)?;
                memory
            }
            None => make()?,
        };
        Ok(Lent { memory: Some(memory), is_kept: Cell::new(false), shelves: Arc::clone(&self.0) })
    }
}

impl<M: Memory> Lent<M> {
    /// The memory, except during drop.
    pub fn memory(&self) -> Option<&M> {
        self.memory.as_ref()
    }

    /// Launches work that uses the memory.
    pub fn while_used(&self, stream: &M::Stream, launch: impl FnOnce() -> Result<()>) -> Result<()> {
        let Some(memory) = &self.memory else { return Ok(()) };
        if M::is_captured(stream)? {
            self.is_kept.set(true);
            return launch();
        }
        memory.follow(stream)?;
        let was_kept = self.is_kept.replace(true);
        let launched = launch();
        // The event is recorded even if a launch has failed, because earlier launches run.
        let marked = memory.mark(stream);
        if marked.is_ok() {
            self.is_kept.set(was_kept);
        }
        launched.and(marked)
    }
}

impl<M> Drop for Lent<M> {
    fn drop(&mut self) {
        let Some(memory) = self.memory.take() else { return };
        let mut shelves = self.shelves.lock().unwrap_or_else(PoisonError::into_inner);
        if self.is_kept.get() { shelves.kept.push(memory) } else { shelves.spare.push(memory) }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::cell::RefCell;
    use std::rc::Rc;

    use super::*;
    use crate::error::Error;

    /// The events of a test, in order.
    type Log = Rc<RefCell<Vec<String>>>;

    struct Piece(u32, Log);

    struct Queue {
        name: &'static str,
        captures: bool,
        marks: bool,
    }

    const A: Queue = Queue { name: "a", captures: false, marks: true };
    const B: Queue = Queue { name: "b", captures: false, marks: true };

    impl Piece {
        fn note(&self, what: &str, on: &Queue) {
            self.1.borrow_mut().push(format!("{what} {} on {}", self.0, on.name));
        }
    }

    impl Memory for Piece {
        type Stream = Queue;

        fn is_captured(on: &Queue) -> Result<bool> {
            Ok(on.captures)
        }

        fn follow(&self, on: &Queue) -> Result<()> {
            self.note("follow", on);
            Ok(())
        }

        fn mark(&self, on: &Queue) -> Result<()> {
            self.note("mark", on);
            if on.marks { Ok(()) } else { Err(Error::Order { what: "no mark" }) }
        }

        fn number(on: &Queue) -> Result<u64> {
            Ok(on.name.as_bytes()[0].into())
        }

        fn settle(&self) -> Result<()> {
            self.1.borrow_mut().push("settle".into());
            Ok(())
        }
    }

    impl Drop for Piece {
        fn drop(&mut self) {
            self.1.borrow_mut().push(format!("free {}", self.0));
        }
    }

    fn lend(pool: &Pool<Piece>, log: &Log, number: u32, on: &Queue) -> Lent<Piece> {
        pool.lend(on, || Ok(Piece(number, Rc::clone(log)))).unwrap()
    }

    fn launch(log: &Log) -> Result<()> {
        log.borrow_mut().push("launch".into());
        Ok(())
    }

    #[test]
    fn each_use_is_behind_the_one_before_on_whatever_stream() {
        let (pool, log) = (Pool::new(), Log::default());
        let first = lend(&pool, &log, 1, &A);
        first.while_used(&A, || launch(&log)).unwrap();
        first.while_used(&B, || launch(&log)).unwrap();
        drop(first);
        // The next user's launches wait for both.
        let second = lend(&pool, &log, 2, &A);
        second.while_used(&A, || launch(&log)).unwrap();
        let wanted = "follow 1 on a, launch, mark 1 on a, follow 1 on b, launch, mark 1 on b, follow 1 on a, \
                      follow 1 on a, launch, mark 1 on a";
        assert_eq!(log.borrow().join(", "), wanted);
    }

    #[test]
    fn what_a_graph_may_use_is_lent_to_nobody_and_not_given_back_before_the_pool() {
        let (pool, log) = (Pool::new(), Log::default());
        let captures = Queue { captures: true, ..A };
        drop(lend(&pool, &log, 1, &A));
        // A capturing stream gets its own memory, and waits for no event.
        let captured = lend(&pool, &log, 2, &captures);
        captured.while_used(&captures, || launch(&log)).unwrap();
        captured.while_used(&A, || launch(&log)).unwrap();
        drop(captured);
        drop([lend(&pool, &log, 3, &A), lend(&pool, &log, 4, &A)]);
        let wanted = "launch, follow 2 on a, launch, mark 2 on a, follow 1 on a";
        assert_eq!(log.borrow().join(", "), wanted);
        drop(pool);
        assert!(log.borrow().contains(&"free 2".into()));
    }

    #[test]
    fn what_is_never_lent_is_used_by_one_stream_after_the_other() {
        let log = Log::default();
        let piece = Piece(1, Rc::clone(&log));
        in_turn(&piece, &A, || launch(&log)).unwrap();
        let fails = || launch(&log).and(Err(Error::Order { what: "no launch" }));
        assert!(matches!(in_turn(&piece, &B, fails), Err(Error::Order { what: "no launch" })));
        in_turn(&piece, &Queue { captures: true, ..A }, || launch(&log)).unwrap();
        let wanted = "follow 1 on a, launch, mark 1 on a, follow 1 on b, launch, mark 1 on b, launch";
        assert_eq!(log.borrow().join(", "), wanted);
    }

    #[test]
    fn short_calls_cost_no_event_before_the_first_change_of_streams() {
        let log = Log::default();
        let turns = Turns::new(Piece(1, Rc::clone(&log)));
        let captures = Queue { captures: true, ..B };
        let told = |on: &Queue| {
            log.borrow_mut().clear();
            let launched = turns.launch(on, || launch(&log));
            (launched.is_ok(), log.borrow().join(", "))
        };
        let well = |what: &str| (true, what.to_owned());
        assert_eq!(told(&captures), well("launch"));
        assert_eq!(told(&A), well("launch"));
        assert_eq!(told(&A), well("launch"));
        // A capturing stream waits for nothing, and nothing waits for it.
        assert_eq!(told(&captures), well("launch"));
        assert_eq!(told(&A), well("launch"));
        assert_eq!(told(&B), well("settle, launch, mark 1 on b"));
        assert_eq!(told(&B), well("launch, mark 1 on b"));
        assert_eq!(told(&Queue { captures: true, ..A }), well("launch"));
        assert_eq!(told(&A), well("follow 1 on a, launch, mark 1 on a"));
        // Without an event behind the last call the host waits for it.
        let fails = Queue { marks: false, ..B };
        assert_eq!(told(&fails), (false, "follow 1 on b, launch, mark 1 on b".to_owned()));
        assert_eq!(told(&A), well("settle, launch, mark 1 on a"));
        let fails = turns.launch(&B, || Err(Error::Order { what: "no launch" }));
        assert!(matches!(fails, Err(Error::Order { what: "no launch" })));
        assert_eq!(told(&A), well("follow 1 on a, launch, mark 1 on a"));
    }

    #[test]
    fn what_was_launched_before_a_launch_that_failed_is_waited_for() {
        let (pool, log) = (Pool::new(), Log::default());
        let lent = lend(&pool, &log, 1, &A);
        let fails = || launch(&log).and(Err(Error::Order { what: "no launch" }));
        assert!(matches!(lent.while_used(&A, fails), Err(Error::Order { what: "no launch" })));
        assert_eq!(log.borrow().join(", "), "follow 1 on a, launch, mark 1 on a");
        drop(lent);
        assert_eq!(lend(&pool, &log, 2, &A).memory().unwrap().0, 1);
        // Memory without an event behind its use is not lent again.
        let lent = lend(&pool, &log, 3, &A);
        assert!(lent.while_used(&Queue { marks: false, ..A }, || launch(&log)).is_err());
        drop(lent);
        assert_eq!(lend(&pool, &log, 4, &A).memory().unwrap().0, 4);
    }
}
