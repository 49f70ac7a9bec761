//! Pools of memory for launches on streams, with reuse of returned memory.
//!
//! Each use waits for the previous one, whatever the streams ([`InTurn`]). A graph may use captured memory at any time.
//! So the pool keeps that memory as long as the pool or anything lent from it exists.

use std::cell::Cell;
use std::sync::{Arc, Mutex, PoisonError};

use symrail::kernels::cuda::{CudaError, DeviceBuffer, Gpu, InTurn, LastUse, Stream};

use crate::error::{Error, Result};

/// Memory of the GPU.
pub(super) struct Used {
    pub buffer: DeviceBuffer,
    last: LastUse,
    pub gpu: Arc<Gpu>,
}

impl Used {
    pub fn new(gpu: &Arc<Gpu>, buffer: DeviceBuffer) -> Result<Used> {
        Ok(Used { buffer, last: LastUse::new(gpu)?, gpu: Arc::clone(gpu) })
    }
}

impl InTurn for Used {
    type Stream = Stream;

    fn is_captured(stream: &Stream) -> Result<bool, CudaError> {
        LastUse::is_captured(stream)
    }

    fn follow(&self, stream: &Stream) -> Result<(), CudaError> {
        self.last.follow(stream)
    }

    fn mark(&self, stream: &Stream) -> Result<(), CudaError> {
        self.last.mark(stream)
    }

    fn follow_in_graph(&self, stream: &Stream) -> Result<(), CudaError> {
        self.last.follow_in_graph(stream)
    }

    fn mark_in_graph(&self, stream: &Stream) -> Result<(), CudaError> {
        self.last.mark_in_graph(stream)
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

impl<M: InTurn> Pool<M> {
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

impl<M: InTurn> Lent<M> {
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
        launched.and(marked.map_err(Error::from))
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
pub(super) mod tests {
    use std::cell::RefCell;
    use std::rc::Rc;

    use super::*;

    /// The events of a test, in order.
    pub type Log = Rc<RefCell<Vec<String>>>;

    pub struct Piece(pub u32, pub Log);

    pub struct Queue {
        pub name: &'static str,
        pub captures: bool,
        pub marks: bool,
    }

    pub const A: Queue = Queue { name: "a", captures: false, marks: true };
    pub const B: Queue = Queue { name: "b", captures: false, marks: true };

    impl Piece {
        fn note(&self, what: &str, on: &Queue) {
            self.1.borrow_mut().push(format!("{what} {} on {}", self.0, on.name));
        }
    }

    impl InTurn for Piece {
        type Stream = Queue;

        fn is_captured(on: &Queue) -> Result<bool, CudaError> {
            Ok(on.captures)
        }

        fn follow(&self, on: &Queue) -> Result<(), CudaError> {
            self.note("follow", on);
            Ok(())
        }

        fn mark(&self, on: &Queue) -> Result<(), CudaError> {
            self.note("mark", on);
            if on.marks { Ok(()) } else { Err(CudaError::Lacks { gpu: 0, what: "no mark", remedy: "" }) }
        }

        fn follow_in_graph(&self, on: &Queue) -> Result<(), CudaError> {
            self.note("follow in graph", on);
            Ok(())
        }

        fn mark_in_graph(&self, on: &Queue) -> Result<(), CudaError> {
            self.note("mark in graph", on);
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

    pub fn launch(log: &Log) -> Result<()> {
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
