//! Sends and receives of the CPU device. Bytes travel through slots in the receiver's heap: the sender puts into an
//! empty one, with a signal, and the receiver empties it and signals back.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use symrail::kernels::cpu::{Cmp, Grid, SignalOp, Symmetric, Thread};
use symrail_core::{Backoff, lock};

use super::Buffer;
use crate::error::{Error, Result};
use crate::members::{Members, Taken};
use crate::transfer::{Row, Transfer, arrange};

const SLOTS: u64 = 4;
/// Bytes of all slots together, as far as each has this many.
const ALL_SLOTS: u64 = 4 << 20;
const SLOT: std::ops::RangeInclusive<u64> = 1 << 10..=64 << 10;

pub(crate) struct Exchange<'rt> {
    members: Members<'rt>,
    /// For each rank, the slots here that it has filled; and behind these, for each rank, its slots that are empty
    /// again.
    words: Taken<'rt>,
    slots: Taken<'rt>,
    /// For each rank, the slots that were filled there, and emptied here.
    sent: Vec<u64>,
    received: Vec<u64>,
    given_up: bool,
}

/// What is left to do with a PE in one direction, in order.
struct Queue {
    row: Row,
    buffers: std::vec::IntoIter<Buffer>,
    /// What is left of the first one.
    left: Buffer,
    /// Slots that were filled or emptied so far.
    count: u64,
}

impl Queue {
    /// Whether nothing is left.
    fn is_done(&mut self) -> bool {
        while self.left.is_empty() {
            match self.buffers.next() {
                Some(next) => self.left = next,
                None => return true,
            }
        }
        false
    }
}

impl<'rt> Exchange<'rt> {
    /// Takes memory. Collective over the members.
    ///
    /// # Errors
    /// The runtime's.
    pub fn new(members: Members<'rt>) -> Result<Self> {
        let n = members.n() as usize;
        let slots = members.take(n * (SLOTS * slot_bytes(n as u64)) as usize)?;
        let words = members.take(8 * 2 * n)?;
        Ok(Exchange { members, words, slots, sent: vec![0; n], received: vec![0; n], given_up: false })
    }

    /// Where some of its memory begins on this PE.
    pub fn start(&self) -> *const u8 {
        self.words.start()
    }

    /// Gives the memory back. Collective over the members.
    ///
    /// # Errors
    /// As for [`SymSlice::free`].
    pub fn free(self) -> Result<()> {
        self.slots.free()?;
        self.words.free()
    }

    /// Sends and receives; returns when all has been received, and what was sent may be changed.
    ///
    /// # Errors
    /// As for [`arrange`]; or a PE did not do its part within the time-out, after which this cannot be used any more.
    pub fn run(&mut self, transfers: &[Transfer<Buffer>]) -> Result<()> {
        if self.given_up {
            return Err(Error::Call(
                "an earlier send or receive has failed, and what still arrives is that one's".into(),
            ));
        }
        let arranged = arrange(self.members.me(), self.members.n(), transfers, Buffer::len)?;
        let runtime = self.members.runtime();
        let device = runtime.cpu_device()?;
        let name = |buffer: Buffer| device.symmetric_at::<u8>(buffer.offset, buffer.len);
        let (words, slots) = (self.words.words(&device)?, name(self.slots.buffer()?)?);
        let queues = Mutex::new(self.queues(&arranged.others)?);
        let grid = Grid { blocks: 1, threads_per_block: 1 };
        let run = device.launch(grid, |thread| {
            for &(from, to) in &arranged.own {
                thread.put(name(to)?, name(from)?, thread.my_pe())?;
            }
            let members = self.members;
            let ways = Ways { thread, members, words, slots, slot: slot_bytes(members.n().into()), name: &name };
            ways.all(&mut lock(&queues), Duration::from_secs(runtime.settings().timeout_s))
        });
        self.given_up = run.is_err();
        run?;
        for queue in lock(&queues).iter() {
            let counts = if queue.row.receives { &mut self.received } else { &mut self.sent };
            counts[queue.row.peer as usize] = queue.count;
        }
        Ok(())
    }

    fn queues(&self, transfers: &[(Row, Buffer)]) -> Result<Vec<Queue>> {
        let mut rows: Vec<(Row, Vec<Buffer>)> = Vec::new();
        for &(row, buffer) in transfers {
            match rows.iter_mut().find(|(known, _)| *known == row) {
                Some((_, buffers)) => buffers.push(buffer),
                None => rows.push((row, vec![buffer])),
            }
        }
        let nothing = self.slots.buffer()?.part(0, 0)?;
        let queue = |(row, buffers): (Row, Vec<Buffer>)| {
            let counts = if row.receives { &self.received } else { &self.sent };
            Queue { row, buffers: buffers.into_iter(), left: nothing, count: counts[row.peer as usize] }
        };
        Ok(rows.into_iter().map(queue).collect())
    }
}

/// Bytes of a slot among so many ranks.
fn slot_bytes(n: u64) -> u64 {
    (ALL_SLOTS / (n * SLOTS)).clamp(*SLOT.start(), *SLOT.end())
}

/// How the calling thread reaches slots.
struct Ways<'a, 't, F> {
    thread: &'a Thread<'t>,
    members: Members<'a>,
    words: Symmetric<u64>,
    slots: Symmetric<u8>,
    slot: u64,
    name: &'a F,
}

impl<F> Ways<'_, '_, F>
where
    F: Fn(Buffer) -> std::result::Result<Symmetric<u8>, symrail::kernels::cpu::DeviceError>,
{
    /// Works on all queues until they are done. The time-out is that of a time in which nothing happens.
    fn all(&self, queues: &mut [Queue], timeout: Duration) -> Result<()> {
        let (mut begun, mut backoff) = (Instant::now(), Backoff::new(16, 256, Duration::from_micros(50)));
        loop {
            let (mut done, mut moved) = (true, false);
            for queue in queues.iter_mut() {
                while !queue.is_done() && self.slot(queue)? {
                    moved = true;
                }
                done &= queue.is_done();
            }
            if done {
                return Ok(self.thread.quiet()?);
            }
            if moved {
                begun = Instant::now();
                continue;
            }
            if begun.elapsed() > timeout {
                return Err(self.late(queues, timeout));
            }
            // Lends the thread to the engine, too.
            self.thread.test(self.words.at(0)?, Cmp::Eq, u64::MAX)?;
            backoff.pause();
        }
    }

    /// Fills or empties the next slot, if the peer is so far.
    fn slot(&self, queue: &mut Queue) -> Result<bool> {
        let (me, n, peer) = (u64::from(self.members.me()), u64::from(self.members.n()), queue.row.peer);
        let pe = self.members.pe(peer as usize);
        let len = queue.left.len().min(self.slot);
        let memory = (self.name)(queue.left.part(0, len)?)?;
        let slot_of = |pe: u64| self.slots.part((pe * SLOTS + queue.count % SLOTS) * self.slot, len);
        if queue.row.receives {
            if self.thread.signal_fetch(self.words.at(peer.into())?)? <= queue.count {
                return Ok(false);
            }
            self.thread.put(memory, slot_of(peer.into())?, self.thread.my_pe())?;
            self.thread.signal_op(self.words.at(n + me)?, 1, SignalOp::Add, pe)?;
        } else {
            if queue.count >= self.thread.signal_fetch(self.words.at(n + u64::from(peer))?)? + SLOTS {
                return Ok(false);
            }
            self.thread.put_signal_nbi(slot_of(me)?, memory, self.words.at(me)?, 1, SignalOp::Add, pe)?;
        }
        queue.count += 1;
        queue.left = queue.left.part(len, queue.left.len() - len)?;
        Ok(true)
    }

    fn late(&self, queues: &mut [Queue], timeout: Duration) -> Error {
        let (rank, waiting) = match queues.iter_mut().find_map(|queue| (!queue.is_done()).then_some(&*queue)) {
            Some(Queue { row: Row { peer, receives: true }, left, .. }) => {
                (*peer, format!("a receive from rank {peer} that lacks {} bytes", left.len()))
            }
            Some(Queue { row: Row { peer, .. }, left, .. }) => {
                (*peer, format!("a send to rank {peer} of which {} bytes are left", left.len()))
            }
            None => (0, "sends and receives".into()),
        };
        Error::Late { waiting, pe: self.members.pe(rank as usize), seconds: timeout.as_secs() }
    }
}
