//! Short calls that use the same memory, one after the other on whatever streams.

use std::sync::Mutex;

use symrail::kernels::cuda::{CudaError, InTurn, Stream};
use symrail_core::lock;

use super::lent::Used;
use crate::error::{Error, Result};

/// What the host can wait for.
pub(super) trait Settles: InTurn {
    /// A stream's number. Handles are not compared: the driver reuses that of a destroyed stream, and those of default
    /// streams mean a different stream in each thread.
    fn number(stream: &Self::Stream) -> Result<u64, CudaError>;

    /// Waits on the host until the GPU is idle.
    fn settle(&self) -> Result<(), CudaError>;
}

impl Settles for Used {
    fn number(stream: &Stream) -> Result<u64, CudaError> {
        stream.number()
    }

    fn settle(&self) -> Result<(), CudaError> {
        self.gpu.synchronize()
    }
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

impl<M: Settles> Turns<M> {
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
        launched.and(marked.map_err(Error::from))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::lent::tests::{A, B, Log, Piece, Queue, launch};
    use super::*;

    impl Settles for Piece {
        fn number(on: &Queue) -> Result<u64, CudaError> {
            Ok(on.name.as_bytes()[0].into())
        }

        fn settle(&self) -> Result<(), CudaError> {
            self.1.borrow_mut().push("settle".into());
            Ok(())
        }
    }

    #[test]
    fn short_calls_cost_no_event_before_the_first_change_of_streams() {
        let log = Log::default();
        let turns = Turns::new(Piece(1, std::rc::Rc::clone(&log)));
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
}
