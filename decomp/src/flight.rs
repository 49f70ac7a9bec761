//! One round of a plan in flight.

use symrail::{Delivery, Pe};

use crate::copy::copy;
use crate::error::{Error, Refusal, Result};
use crate::exchange::{Landing, Link};
use crate::plan::{LegState, Plan};
use crate::staging::{Memory, Path, Route};
use crate::view::View;

/// One round of a plan in flight: see [`Plan::start`]. Drop waits for its end.
pub struct Flight<'p> {
    plan: &'p mut Plan,
    input: *mut u8,
    output: *mut u8,
    work: *mut u8,
    /// The kinds of memory of the input and of the workspace.
    memory: [Memory; 2],
    /// Whether arriving blocks would overwrite blocks that have not been sent.
    in_place: bool,
    /// A PE with which nothing is exchanged, and the reason.
    refused: Option<(Pe, Refusal)>,
    ended: bool,
}

impl<'p> Flight<'p> {
    /// Signals to the others where their blocks may go, and performs the steps that need no wait. The addresses are
    /// those of input, output and workspace, which were checked.
    pub(crate) fn begin(
        plan: &'p mut Plan,
        input: *mut u8,
        output: *mut u8,
        work: *mut u8,
        [memory, output_memory]: [[Memory; 2]; 2],
        in_place: bool,
    ) -> Result<Flight<'p>> {
        let mut flight = Flight { plan, input, output, work, memory, in_place, refused: None, ended: true };
        for i in 0..flight.plan.blocks.legs.len() {
            flight.offer(i, output_memory)?;
        }
        flight.move_own();
        if !flight.plan.blocks.kind.mode.pipelined {
            for i in 0..flight.plan.blocks.legs.len() {
                flight.pack(i);
            }
        }
        flight.ended = false;
        flight.plan.counters.rounds += 1;
        flight.advance()?;
        Ok(flight)
    }

    /// Performs the steps that need no wait. Returns whether the round has ended.
    ///
    /// # Errors
    /// An error for a peer that does not answer, or for an operation that failed. The plan cannot be used again.
    pub fn advance(&mut self) -> Result<bool> {
        loop {
            match self.step() {
                Ok(true) => {}
                Ok(false) => return Ok(self.is_done()),
                Err(error) => {
                    self.ended = true;
                    return Err(error);
                }
            }
        }
    }

    /// Waits until the blocks of a rank are in the output. Blocks of others may still be in flight.
    ///
    /// # Errors
    /// As for [`Flight::wait`].
    pub fn wait_for(&mut self, rank: usize) -> Result<()> {
        while !self.advance()? && !self.has_received(rank) {
            self.pause()?;
        }
        self.refused_by_others(|pe, leg| leg.0 == rank && leg.1 == pe)
    }

    /// Waits until all blocks are in the output, and the input can be used again.
    ///
    /// # Errors
    /// [`Error::RefusedBy`]; an error for a peer that does not answer, or for an operation that failed. After the
    /// latter two the plan cannot be used again.
    pub fn wait(mut self) -> Result<()> {
        self.end()?;
        self.refused_by_others(|_, _| true)
    }

    fn end(&mut self) -> Result<()> {
        while !self.advance()? {
            self.pause()?;
        }
        self.ended = true;
        if self.in_place {
            self.unpack_own();
        }
        // When this returns, all puts over rails from the input or the workspace have completed.
        self.plan.leaving.iter_mut().filter_map(Option::take).try_for_each(Delivery::wait)?;
        self.plan.poison.end();
        Ok(())
    }

    /// The error of a PE that refused an argument, if it is one of these.
    fn refused_by_others(&self, concerns: impl Fn(Pe, (usize, Pe)) -> bool) -> Result<()> {
        let Some((by, refusal)) = self.refused else { return Ok(()) };
        if !self.plan.blocks.legs.iter().any(|leg| concerns(by, (leg.flow.rank, leg.link.pe))) {
            return Ok(());
        }
        Err(Error::RefusedBy { pe: self.plan.runtime.my_pe(), operation: self.plan.blocks.kind.what, by, refusal })
    }

    fn pause(&mut self) -> Result<()> {
        let waited = self.plan.exchange.wait(&self.plan.done);
        self.ended |= waited.is_err();
        waited
    }

    fn has_received(&self, rank: usize) -> bool {
        let mut legs = self.plan.blocks.legs.iter().zip(&self.plan.states);
        legs.all(|(leg, state)| leg.flow.rank != rank || state.received)
    }

    fn is_done(&self) -> bool {
        self.plan.states.iter().all(|state| state.sent && state.received)
    }

    /// Makes one pass over the remaining steps. Returns whether one was performed.
    fn step(&mut self) -> Result<bool> {
        let mut any = false;
        for i in 0..self.plan.blocks.legs.len() {
            any |= !self.plan.states[i].sent && self.send(i)?;
        }
        for i in 0..self.plan.blocks.legs.len() {
            let link = self.plan.blocks.legs[i].link;
            if !self.plan.states[i].arrived && self.plan.exchange.has_arrived(&link)? {
                self.note(i, |state| state.arrived = true);
                any = true;
            }
        }
        let all = |done: fn(&LegState) -> bool| self.plan.states.iter().all(done);
        let may_unpack = (!self.in_place || all(|state| state.sent))
            && (self.plan.blocks.kind.mode.pipelined || all(|state| state.arrived));
        for i in 0..self.plan.blocks.legs.len() {
            let state = self.plan.states[i];
            if state.arrived && !state.received && (may_unpack || !state.staged) {
                self.unpack(i)?;
                any = true;
            }
        }
        Ok(any)
    }

    /// Changes a leg's state, and the set of words that the round waits for.
    fn note(&mut self, i: usize, change: impl FnOnce(&mut LegState)) {
        change(&mut self.plan.states[i]);
        let (link, state) = (self.plan.blocks.legs[i].link, self.plan.states[i]);
        for (arrived, done) in [(false, state.sent), (true, state.arrived)] {
            self.plan.done[self.plan.exchange.done_index(&link, arrived)] = i32::from(done);
        }
    }

    /// Signals to a peer where its block may go, if the peer does not know yet.
    fn offer(&mut self, i: usize, memory: [Memory; 2]) -> Result<()> {
        let leg = &self.plan.blocks.legs[i];
        if leg.link.small {
            self.note(i, |state| *state = LegState { staged: true, ..LegState::default() });
            return Ok(());
        }
        let direct = self.plan.blocks.receive_route(leg, memory, self.in_place) == Route::Direct;
        let (at, bytes) = (leg.flow.at, leg.flow.at.len() * self.plan.blocks.kind.element);
        let output = self.output.wrapping_add(at.offset * self.plan.blocks.kind.element);
        let in_place = if direct { self.plan.exchange.distance(output, bytes.min(1)) } else { None };
        let landing = in_place.map(Landing::InPlace).or_else(|| {
            let room = self.work.wrapping_add(leg.receive_room);
            self.plan.exchange.distance(room, bytes).map(Landing::Packed)
        });
        // The workspace is symmetric by construction.
        let landing = landing.unwrap_or(Landing::Refused(Refusal::OtherWorkspace));
        let link = leg.link;
        self.note(i, |state| *state = LegState { staged: in_place.is_none(), ..LegState::default() });
        self.plan.exchange.offer(&link, landing)
    }

    /// Sends a block, if its receiver has signalled where to. Returns whether it was sent.
    fn send(&mut self, i: usize) -> Result<bool> {
        if self.plan.blocks.legs[i].link.small {
            self.send_small(i)?;
            return Ok(true);
        }
        let (link, flow) = (self.plan.blocks.legs[i].link, self.plan.blocks.legs[i].flow);
        let Some(landing) = self.plan.exchange.landing(&link)? else { return Ok(false) };
        let (distance, view) = match landing {
            Landing::Packed(distance) => (distance, flow.into.packed()),
            Landing::InPlace(distance) => (distance, View { offset: 0, ..flow.into }),
            Landing::Refused(refusal) => {
                self.refused = Some((link.pe, refusal));
                self.plan.exchange.signal_arrival(&link)?;
                self.note(i, |state| *state = LegState { sent: true, arrived: true, received: true, ..*state });
                return Ok(true);
            }
        };
        if self.plan.blocks.legs[i].path == Path::Mapped {
            self.copy_to(&link, distance, &flow.from, &view)?;
        } else {
            let from = if self.plan.blocks.kind.mode.pipelined { self.pack(i) } else { self.packed(i).1 };
            let (to, bytes) = (self.plan.exchange.at(distance), flow.from.len() * self.plan.blocks.kind.element);
            // SAFETY: the bytes are the input's or the workspace's, which stay unchanged until the flight has ended.
            self.plan.leaving[i] = Some(unsafe { self.plan.exchange.put(&link, to, from, bytes) }?);
            self.plan.counters.put += u64::from(bytes > 0);
        }
        self.note(i, |state| state.sent = true);
        Ok(true)
    }

    /// Sends a small block at once.
    fn send_small(&mut self, i: usize) -> Result<()> {
        let Plan { blocks, exchange, small, counters, .. } = &mut *self.plan;
        let leg = &blocks.legs[i];
        let (link, flow) = (&leg.link, &leg.flow);
        let room = small.outgoing(link, exchange.round())?;
        // SAFETY: the input was checked to have all its elements. The buffer is as large as the largest small block.
        unsafe { copy(blocks.kind.element, (self.input, &flow.from), (room, &flow.into.packed())) };
        small.send(exchange, link, Ok(flow.from.len() * blocks.kind.element))?;
        counters.put += u64::from(flow.from.len() > 0);
        self.note(i, |state| state.sent = true);
        Ok(())
    }

    /// Copies a block to a peer that is mapped.
    fn copy_to(&mut self, link: &Link, distance: i64, from: &View, view: &View) -> Result<()> {
        let to = self.plan.runtime.peer_ptr(self.plan.exchange.at(distance), link.pe);
        if from.len() > 0 && to.is_null() {
            self.refused = Some((link.pe, Refusal::Unreached));
            return self.plan.exchange.signal_nothing(link);
        }
        if from.len() > 0 {
            // SAFETY: the input was checked to have all its elements. The receiver has offered memory for those of the
            // view, which is mapped here.
            unsafe { copy(self.plan.blocks.kind.element, (self.input, from), (to, view)) };
            self.plan.counters.copied += 1;
        }
        self.plan.exchange.signal_arrival(link)
    }

    /// The address of a block's bytes for rails, and whether they still have to be packed there.
    fn packed(&self, i: usize) -> (bool, *mut u8) {
        let leg = &self.plan.blocks.legs[i];
        if self.plan.blocks.send_route(leg, self.memory, self.in_place) == Route::Direct {
            return (false, self.input.wrapping_add(leg.flow.from.offset * self.plan.blocks.kind.element));
        }
        (true, self.work.wrapping_add(leg.send_room))
    }

    /// Packs a block that goes over rails, if that is needed. Returns the address of its bytes.
    fn pack(&self, i: usize) -> *mut u8 {
        let (leg, (needed, room)) = (&self.plan.blocks.legs[i], self.packed(i));
        if needed && leg.path == Path::Rails && !leg.link.small {
            // SAFETY: the input was checked to have all its elements, and the workspace to have space for all blocks.
            unsafe {
                copy(self.plan.blocks.kind.element, (self.input, &leg.flow.from), (room, &leg.flow.into.packed()));
            };
        }
        room
    }

    /// Copies a block that has arrived to the output.
    fn unpack(&mut self, i: usize) -> Result<()> {
        let leg = &self.plan.blocks.legs[i];
        let mut room = Some(self.work.wrapping_add(leg.receive_room)).filter(|_| self.plan.states[i].staged);
        let (pipelined, mut came) = (self.plan.blocks.kind.mode.pipelined, leg.flow.at.len() > 0);
        if self.plan.exchange.is_nothing(&leg.link)? {
            came = false;
            (room, self.refused) = (None, Some((leg.link.pe, Refusal::Unreached)));
        }
        if leg.link.small {
            match self.plan.small.received(&leg.link, self.plan.exchange.round()) {
                Ok(block) => room = Some(block),
                Err(refusal) => (room, came, self.refused) = (None, false, Some((leg.link.pe, refusal))),
            }
        }
        if let Some(room) = room {
            // SAFETY: workspace and buffers have space for all blocks. The output was checked to have its elements.
            unsafe { copy(self.plan.blocks.kind.element, (room, &leg.flow.at.packed()), (self.output, &leg.flow.at)) };
        }
        let counters = &mut self.plan.counters;
        match came {
            true if room.is_some() => {
                counters.staged += 1;
                counters.pipelined += u64::from(pipelined);
            }
            true => counters.direct += 1,
            false => {}
        }
        self.note(i, |state| state.received = true);
        Ok(())
    }

    /// Moves this PE's own blocks to its output, or to the workspace where arriving blocks would overwrite them.
    fn move_own(&self) {
        let mut room = self.work.wrapping_add(self.plan.blocks.own_room);
        for (from, to) in &self.plan.blocks.flows.own {
            let (base, view) = if self.in_place { (room, to.packed()) } else { (self.output, *to) };
            // SAFETY: the buffers were checked to have all their elements, and the workspace to have space for all
            // blocks.
            unsafe { copy(self.plan.blocks.kind.element, (self.input, from), (base, &view)) };
            room = room.wrapping_add(to.len() * self.plan.blocks.kind.element);
        }
    }

    fn unpack_own(&self) {
        let mut room = self.work.wrapping_add(self.plan.blocks.own_room);
        for (_, to) in &self.plan.blocks.flows.own {
            // SAFETY: as for `move_own`.
            unsafe { copy(self.plan.blocks.kind.element, (room, &to.packed()), (self.output, to)) };
            room = room.wrapping_add(to.len() * self.plan.blocks.kind.element);
        }
    }
}

impl Drop for Flight<'_> {
    fn drop(&mut self) {
        if !self.ended {
            // The error is dropped, since no caller remains. The plan's next round fails for the same reason.
            let _ = self.end();
        }
        // After an error, puts may still read the input or the workspace.
        self.plan.leaving.iter_mut().filter_map(Option::take).for_each(|leaving| drop(leaving.wait()));
    }
}
