//! One thread of a grid: its identity, the paths of its operations, and their order and completion.

use std::cell::{Cell, RefCell};
use std::sync::atomic::{Ordering, fence};

use symrail_proxy::channel::{Local, Producer, ReplySlot, ReplyTo, Request};
use symrail_transport::{Operation, Pe};

use super::answers::AnswerWait;
use super::block::Block;
use super::element::Element;
use super::error::DeviceError;
use super::grid::Grid;
use super::symmetric::{LocalMemory, Place, Symmetric};
use super::view::{DeviceParts, DeviceView};
use super::waiter::Waiter;

/// A thread of a running grid. The files of this folder implement its operations.
#[derive(Debug)]
pub struct Thread<'a> {
    pub(super) view: &'a DeviceView,
    grid: Grid,
    block: &'a Block,
    id: usize,
    /// This thread's channel, if there are any.
    producer: Option<&'a Producer>,
    reply: RefCell<Option<ReplySlot>>,
    /// For each channel, the number of failures that this thread has seen.
    known_errors: Box<[Cell<u64>]>,
    /// The position behind this thread's last fence in its channel.
    fenced: Cell<u64>,
}

/// The path of an operation to a PE.
pub(super) enum Route<'a> {
    /// The PE's memory is mapped, and this is the address.
    Mapped(*mut u8),
    /// Through this thread's channel.
    Channel(&'a Producer),
}

/// The description of an operation, for its errors.
#[derive(Clone, Copy)]
pub(super) struct What {
    pub(super) operation: Operation,
    pub(super) pe: Pe,
    pub(super) bytes: u64,
}

impl<'a> Thread<'a> {
    pub(super) fn new(view: &'a DeviceView, grid: Grid, block: &'a Block, id: usize) -> Self {
        let producers = &view.parts().producers;
        let known_errors = producers.iter().map(|producer| Cell::new(producer.errors())).collect();
        let producer = producers.get(channel_of(id, view));
        Self { view, grid, block, id, producer, reply: RefCell::new(None), known_errors, fenced: Cell::new(0) }
    }

    /// This PE.
    #[must_use]
    pub fn my_pe(&self) -> Pe {
        self.parts().me
    }

    /// The number of PEs.
    #[must_use]
    pub fn n_pes(&self) -> u32 {
        self.parts().n_pes
    }

    /// The thread's number in the grid.
    #[must_use]
    pub fn thread_id(&self) -> usize {
        self.id
    }

    /// The thread's number in its block (`threadIdx.x`).
    #[must_use]
    pub fn thread_in_block(&self) -> usize {
        self.id % self.grid.threads_per_block
    }

    /// The block's number (`blockIdx.x`).
    #[must_use]
    pub fn block_id(&self) -> usize {
        self.block.id()
    }

    /// The grid's shape (`gridDim.x`, `blockDim.x`).
    #[must_use]
    pub fn grid(&self) -> Grid {
        self.grid
    }

    /// Waits for all running threads of the block (`__syncthreads`). Their earlier effects are visible afterwards.
    ///
    /// # Errors
    /// A thread of the block ended with an error, or did not arrive in time.
    pub fn sync_block(&self) -> Result<(), DeviceError> {
        self.block.sync(self.view)
    }

    pub(super) fn parts(&self) -> &'a DeviceParts {
        self.view.parts()
    }

    /// The number of this thread's channel.
    pub(super) fn channel(&self) -> usize {
        channel_of(self.id, self.view)
    }

    /// Checks an operation on `len` elements of `memory` at `pe`, and finds its path.
    #[inline]
    pub(super) fn route<T: Element>(
        &self,
        what: What,
        memory: Symmetric<T>,
        direct: bool,
    ) -> Result<Route<'a>, DeviceError> {
        // The check is repeated, since the name may come from a view of a larger heap.
        self.view.check(what.operation, what.pe, memory.offset(), memory.bytes().max(what.bytes))?;
        let parts = self.parts();
        match (parts.peer_bases[what.pe as usize], self.producer) {
            (base, _) if base != 0 && direct => Ok(Route::Mapped(at(base, memory.offset()))),
            (_, Some(producer)) => Ok(Route::Channel(producer)),
            (_, None) => Err(DeviceError::NoChannel { pe: what.pe }),
        }
    }

    /// The address of an element of this PE's heap.
    #[inline]
    pub(super) fn heap<T: Element>(&self, operation: Operation, memory: Symmetric<T>) -> Result<*mut u8, DeviceError> {
        self.view.check(operation, self.my_pe(), memory.offset(), memory.bytes())?;
        Ok(at(self.parts().heap_base, memory.offset()))
    }

    /// The address of local memory, in the heap or not.
    #[inline]
    pub(super) fn local<T: Element>(
        &self,
        operation: Operation,
        memory: LocalMemory<T>,
    ) -> Result<*mut u8, DeviceError> {
        match memory.place {
            Place::Heap(offset) => self.heap(operation, Symmetric::<T>::new(offset, memory.len)),
            Place::Address(address) => Ok(at(address, 0)),
        }
    }

    /// Pushes a request and returns its position.
    #[inline]
    pub(super) fn issue(&self, what: What, to: &Producer, request: &Request) -> Result<u64, DeviceError> {
        let mut waiter = Waiter::new(self.view);
        to.push(request, || if waiter.pause() { Ok(()) } else { Err(self.timed_out(what)) })
    }

    /// Pushes the request that `with_reply` makes for a reply entry, and returns the value of its answer.
    pub(super) fn ask(
        &self,
        what: What,
        to: &Producer,
        with_reply: impl FnOnce(ReplyTo) -> Request,
    ) -> Result<u64, DeviceError> {
        let mut owned = self.reply.borrow_mut();
        let slot = match &mut *owned {
            Some(slot) => slot,
            none => {
                let replies = to.memory().replies();
                let slot = to.reply_slot().ok_or(DeviceError::NoReply { channel: self.channel(), replies })?;
                none.insert(slot)
            }
        };
        let reply = slot.begin().ok_or(DeviceError::Unanswered)?;
        if let Err(error) = self.issue(what, to, &with_reply(reply)) {
            slot.cancel();
            return Err(error);
        }
        let mut waiting = AnswerWait::new(self.view);
        loop {
            match slot.poll() {
                Some(reply) if reply.failed => {
                    return Err(DeviceError::Failed { operation: what.operation, pe: what.pe, bytes: what.bytes });
                }
                Some(reply) => return Ok(reply.value),
                None if waiting.pause(slot) => {}
                None => return Err(self.timed_out(what)),
            }
        }
    }

    /// Orders this thread's earlier puts, AMOs and signals before its later ones, at each PE. It does not wait for
    /// them.
    ///
    /// # Errors
    /// The channel had no room in time.
    pub fn fence(&self) -> Result<(), DeviceError> {
        // The fence orders stores to mapped peers, also before later requests.
        fence(Ordering::SeqCst);
        let Some(producer) = self.producer else { return Ok(()) };
        // There is nothing to order if nothing was pushed since the last fence, or if all of it is delivered.
        let pushed = producer.pushed();
        if pushed != self.fenced.get() && producer.completed() < pushed {
            let what = What { operation: Operation::Quiet, pe: self.my_pe(), bytes: 0 };
            self.fenced.set(self.issue(what, producer, &Request::Fence)? + 1);
        }
        Ok(())
    }

    /// Waits until all operations that were pushed to any of the device's channels before the call are delivered, and
    /// all stores of this thread to mapped peers are visible there. A repeated call costs nothing.
    ///
    /// # Errors
    /// Operations failed since this thread's last quiet (nevertheless all are complete), or the time is over.
    pub fn quiet(&self) -> Result<(), DeviceError> {
        fence(Ordering::SeqCst);
        let mut failed = None;
        for (channel, producer) in self.parts().producers.iter().enumerate() {
            let pushed = producer.pushed();
            let mut waiter = Waiter::new(self.view);
            while producer.completed() < pushed {
                if !waiter.pause() {
                    let left = pushed.saturating_sub(producer.completed());
                    return Err(
                        waiter.timed_out(format!("quiet, with {left} requests of channel {channel} undelivered,"))
                    );
                }
            }
            let errors = producer.errors();
            let count = errors - self.known_errors[channel].replace(errors);
            if count > 0 {
                failed.get_or_insert(DeviceError::FailedBeforeQuiet { count, channel });
            }
        }
        failed.map_or(Ok(()), Err)
    }

    fn timed_out(&self, What { operation, pe, bytes }: What) -> DeviceError {
        DeviceError::Timeout { operation, pe, bytes, seconds: self.parts().timeout.as_secs() }
    }
}

/// The number of the channel of the thread with this number.
fn channel_of(thread: usize, view: &DeviceView) -> usize {
    thread % view.parts().producers.len().max(1)
}

/// An address of exposed memory.
fn at(base: usize, offset: u64) -> *mut u8 {
    std::ptr::with_exposed_provenance_mut(base + offset as usize)
}

/// A local address in the form for requests.
pub(super) fn named(address: *mut u8) -> Local {
    Local::Address(address.expose_provenance() as u64)
}
