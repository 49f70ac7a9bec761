//! Launches that use the same memory, one after the other on whatever streams.
//!
//! An event follows each of them, and the next one waits for it. So it is with each replay of captured launches: the
//! graph begins with a wait for the event, and records it behind the last of them.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use symrail_core::lock;

use crate::capture::{Capture, Node};
use crate::driver::Gpu;
use crate::error::{CudaError, Result};
use crate::event::Event;
use crate::stream::Stream;

/// What has a last use.
pub trait InTurn {
    /// What its launches are put on.
    type Stream;

    /// Whether a stream is capturing.
    ///
    /// # Errors
    /// The driver's error.
    fn is_captured(stream: &Self::Stream) -> Result<bool>;

    /// Makes later launches on the stream wait for the last use.
    ///
    /// # Errors
    /// The driver's error.
    fn follow(&self, stream: &Self::Stream) -> Result<()>;

    /// Makes the launches so far on the stream the last use.
    ///
    /// # Errors
    /// The driver's error.
    fn mark(&self, stream: &Self::Stream) -> Result<()>;

    /// Makes later launches on the stream, which is capturing, wait for the last use: for that at the time of a replay,
    /// and for the last one in the same graph.
    ///
    /// # Errors
    /// The driver's error.
    fn follow_in_graph(&self, stream: &Self::Stream) -> Result<()>;

    /// Makes the launches so far on the stream, which is capturing, the last use of each replay.
    ///
    /// # Errors
    /// The driver's error.
    fn mark_in_graph(&self, stream: &Self::Stream) -> Result<()>;
}

/// Launches work behind the last use, as the new last use. `launch` learns whether the stream is capturing.
///
/// # Errors
/// That of `launch`, or the driver's.
pub fn in_turn<M: InTurn, E: From<CudaError>>(
    used: &M,
    stream: &M::Stream,
    launch: impl FnOnce(bool) -> Result<(), E>,
) -> Result<(), E> {
    let captured = M::is_captured(stream)?;
    if captured { used.follow_in_graph(stream) } else { used.follow(stream) }?;
    let launched = launch(captured);
    // The event is recorded even if a launch has failed, because earlier launches run.
    let marked = if captured { used.mark_in_graph(stream) } else { used.mark(stream) };
    launched?;
    Ok(marked?)
}

/// An event behind the last use of some memory.
#[derive(Debug)]
pub struct LastUse {
    event: Event,
    /// The number of the stream on which it was recorded. Not the handle, since the driver reuses that of a destroyed
    /// stream, and since a default stream's is that of another stream in each thread.
    stream: AtomicU64,
    /// Whether graphs record the event: then no stream orders all uses.
    is_in_graphs: AtomicBool,
    graph: Mutex<Option<InGraph>>,
}

/// The last use in the graph that was captured last. Handles are valid while it is being captured.
#[derive(Debug)]
struct InGraph {
    capture: u64,
    /// The node that records the event, and those that it follows.
    record: Node,
    before: Vec<Node>,
}

/// The number of no stream.
const NONE: u64 = u64::MAX;

impl LastUse {
    /// Nothing was launched yet.
    ///
    /// # Errors
    /// The driver's error.
    pub fn new(gpu: &Arc<Gpu>) -> Result<Self> {
        let (stream, is_in_graphs) = (AtomicU64::new(NONE), AtomicBool::new(false));
        Ok(Self { event: Event::new(gpu)?, stream, is_in_graphs, graph: Mutex::default() })
    }

    /// Waits until the last use has ended.
    ///
    /// # Errors
    /// The driver's error.
    pub fn wait(&self) -> Result<()> {
        self.event.wait()
    }
}

impl InTurn for LastUse {
    type Stream = Stream;

    fn is_captured(stream: &Stream) -> Result<bool> {
        stream.is_capturing()
    }

    fn follow(&self, stream: &Stream) -> Result<()> {
        // What is on the same stream is in order in any case.
        if self.stream.load(Ordering::Relaxed) == stream.number()? { Ok(()) } else { stream.wait_for(&self.event) }
    }

    fn mark(&self, stream: &Stream) -> Result<()> {
        self.stream.store(NONE, Ordering::Relaxed);
        self.event.record(stream)?;
        if !self.is_in_graphs.load(Ordering::Relaxed) {
            self.stream.store(stream.number()?, Ordering::Relaxed);
        }
        Ok(())
    }

    fn follow_in_graph(&self, stream: &Stream) -> Result<()> {
        let capture = Capture::of(stream)?;
        match &*lock(&self.graph) {
            Some(last) if last.capture == capture.id => capture.follow(stream, &last.before),
            _ => stream.wait_for_outside(&self.event),
        }
    }

    fn mark_in_graph(&self, stream: &Stream) -> Result<()> {
        self.is_in_graphs.store(true, Ordering::Relaxed);
        self.stream.store(NONE, Ordering::Relaxed);
        let capture = Capture::of(stream)?;
        let mut graph = lock(&self.graph);
        let record = match &*graph {
            Some(last) if last.capture == capture.id => {
                if last.before != capture.nodes {
                    capture.move_behind(last.record, &last.before)?;
                }
                last.record
            }
            _ => capture.record(&self.event)?,
        };
        *graph = Some(InGraph { capture: capture.id, record, before: capture.nodes });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    /// What happened, in order.
    #[derive(Default)]
    struct Log(RefCell<Vec<String>>);

    struct Queue(&'static str, bool);

    impl Log {
        fn note(&self, what: &str, on: &Queue) {
            self.0.borrow_mut().push(format!("{what} {}", on.0));
        }
    }

    impl InTurn for Log {
        type Stream = Queue;

        fn is_captured(on: &Queue) -> Result<bool> {
            Ok(on.1)
        }

        fn follow(&self, on: &Queue) -> Result<()> {
            self.note("follow on", on);
            Ok(())
        }

        fn mark(&self, on: &Queue) -> Result<()> {
            self.note("mark on", on);
            Ok(())
        }

        fn follow_in_graph(&self, on: &Queue) -> Result<()> {
            self.note("follow in graph on", on);
            Ok(())
        }

        fn mark_in_graph(&self, on: &Queue) -> Result<()> {
            self.note("mark in graph on", on);
            Ok(())
        }
    }

    #[test]
    fn each_launch_follows_the_one_before_even_if_that_one_failed() {
        let (log, a, b) = (Log::default(), Queue("a", false), Queue("b", false));
        let launch = |on: &Queue, outcome: Result<()>| {
            in_turn(&log, on, |captured| {
                log.note(if captured { "capture on" } else { "launch on" }, on);
                outcome
            })
        };
        assert!(launch(&a, Ok(())).is_ok());
        let failed = CudaError::Lacks { gpu: 0, what: "fails", remedy: "none" };
        assert!(matches!(launch(&b, Err(failed)), Err(CudaError::Lacks { what: "fails", .. })));
        assert!(launch(&Queue("c", true), Ok(())).is_ok());
        let wanted = "follow on a, launch on a, mark on a, follow on b, launch on b, mark on b, \
                      follow in graph on c, capture on c, mark in graph on c";
        assert_eq!(log.0.borrow().join(", "), wanted);
    }
}
