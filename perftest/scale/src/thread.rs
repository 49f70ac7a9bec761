//! A simulated PE's thread: its own stack, on which the PE runs until it has nothing to do.

use std::cell::Cell;

use corosensei::stack::DefaultStack;
use corosensei::{Coroutine, CoroutineResult, Yielder};
use symrail_core::simulation::set_idle;

/// Bytes of a PE's stack. Only pages that are touched take memory.
const STACK: usize = 256 << 10;

thread_local! {
    /// The running PE's means to let others run.
    static RUNNING: Cell<*const Yielder<(), ()>> = const { Cell::new(std::ptr::null()) };
}

/// Lets the other PEs run.
pub fn pause() {
    let running = RUNNING.get();
    // SAFETY: the calling PE has set it; the yielder is on its stack, and the PE has not ended.
    if let Some(yielder) = unsafe { running.as_ref() } {
        yielder.suspend(());
        RUNNING.set(running);
    }
}

/// One PE.
pub struct PeThread(Coroutine<(), (), (), DefaultStack>);

impl PeThread {
    /// A PE that will run this body.
    ///
    /// # Errors
    /// The system has no memory for a stack.
    pub fn new(body: impl FnOnce() + 'static) -> std::io::Result<PeThread> {
        let stack = DefaultStack::new(STACK)?;
        // A coroutine accepts only small values.
        let body = Box::new(body);
        Ok(PeThread(Coroutine::with_stack(stack, move |yielder, ()| {
            RUNNING.set(yielder);
            body();
        })))
    }

    /// Runs the PE until it pauses. Returns whether it has ended.
    pub fn run(&mut self) -> bool {
        set_idle(Some(pause));
        let ended = matches!(self.0.resume(()), CoroutineResult::Return(()));
        set_idle(None);
        RUNNING.set(std::ptr::null());
        ended
    }
}
