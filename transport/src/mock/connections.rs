//! Connections between mock rails: cut, half open or renewed.

use std::collections::{BTreeSet, HashMap, VecDeque};

use super::fabric::{Fate, Flight, Report, State};

/// One end of a connection that has been cut.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Link {
    Cut,
    /// Renewed, with this number.
    Renewed(u64),
    /// Connected: this end's number, and the number that the other end's offer had.
    Connected(u64, u64),
}

impl State {
    /// Ends everything that is under way from or to a rail. The first flights of each connection may have arrived, and
    /// the first of those may have been acknowledged.
    pub fn cut(&mut self, rail: usize) {
        let flights = std::mem::take(&mut self.flights);
        let (cut, rest): (VecDeque<_>, _) = flights.into_iter().partition(|f| f.from == rail || f.to == rail);
        self.flights = rest;
        if self.config.half_open {
            self.break_connections(rail, &cut);
        }
        for other in 0..if self.config.renews { self.reports.len() } else { 0 } {
            self.links.extend([((rail, other), Link::Cut), ((other, rail), Link::Cut)]);
        }
        self.end_flights(cut);
    }

    /// Ends everything that is under way from one end to another.
    pub fn cut_connection(&mut self, end: usize, other: usize) {
        if self.is_connected(end, other) {
            self.links.insert((end, other), Link::Cut);
            self.drop_flights(end, other);
        }
    }

    /// Ends everything that is under way from one end to another, and nothing else.
    pub fn drop_flights(&mut self, end: usize, other: usize) {
        let flights = std::mem::take(&mut self.flights);
        let (cut, rest): (VecDeque<_>, _) = flights.into_iter().partition(|f| f.from == end && f.to == other);
        self.flights = rest;
        self.end_flights(cut);
    }

    /// Whether nothing passes between two rails, because a port is down or a network drops everything.
    pub fn is_pulled_out(&self, from: usize, to: usize) -> bool {
        [from, to].iter().any(|&rail| self.pulled_out[rail] || self.muted[rail])
    }

    /// Whether an end accepts posts to another.
    pub fn is_connected(&self, end: usize, other: usize) -> bool {
        matches!(self.links.get(&(end, other)), None | Some(Link::Connected(..)))
    }

    pub fn renew(&mut self, end: usize, other: usize) -> Option<u64> {
        if self.is_connected(end, other)
            || self.down[end]
            || self.pulled_out[end]
            || self.reports[end].iter().any(|r| matches!(r, Report::Failed(..)))
        {
            return None;
        }
        let number = self.next();
        self.links.insert((end, other), Link::Renewed(number));
        Some(number)
    }

    pub fn reconnect(&mut self, end: usize, other: usize, offer: u64) {
        if let Some(Link::Renewed(ours)) = self.links.get(&(end, other)) {
            self.links.insert((end, other), Link::Connected(*ours, offer));
        }
    }

    /// Whether one end accepts what the other sends.
    pub fn is_joined(&self, from: usize, to: usize) -> bool {
        match (self.links.get(&(from, to)), self.links.get(&(to, from))) {
            (None, None) => true,
            (Some(Link::Connected(ours, theirs)), Some(Link::Connected(their_own, of_us))) => {
                (ours, theirs) == (of_us, their_own)
            }
            _ => false,
        }
    }

    /// Decides the fate of flights on connections that have been cut.
    fn end_flights(&mut self, cut: VecDeque<Flight>) {
        let mut fates = HashMap::new();
        let (first, then) = (self.next() as u8, self.next() as u8);
        for flight in cut {
            // Flights that arrived before the port went down may not have been acknowledged.
            let first_fate =
                if self.is_pulled_out(flight.from, flight.to) { Fate::Unacknowledged } else { Fate::Delivered };
            let fate = fates.entry((flight.from, flight.to)).or_insert(first_fate);
            if *fate == Fate::Delivered && self.chance(first) {
                *fate = Fate::Unacknowledged;
            }
            if *fate == Fate::Unacknowledged && self.chance(then) {
                *fate = Fate::Lost;
            }
            self.deliver(flight, *fate);
        }
    }

    /// Breaks the connections of a rail. An end that has lost no work with a completion may still believe in a
    /// connection if it has ever received a message over it. An end without a message gets no such belief, because no
    /// peer could correct it.
    fn break_connections(&mut self, rail: usize, cut: &VecDeque<Flight>) {
        let (broken, rest): (BTreeSet<_>, _) = self.connections.iter().partition(|c| c.0 == rail || c.1 == rail);
        self.connections = rest;
        for (a, b) in broken {
            for (end, other) in [(a, b), (b, a)] {
                let noticed = cut.iter().any(|f| f.from == end && f.to == other && f.id.is_some());
                if !noticed && self.greeted.contains(&(end, other)) && self.chance(128) {
                    self.half_open.insert((end, other));
                }
            }
        }
    }

    /// Whether a connection cannot be made: an end is unreachable, or the other end believes in one that this end knows to
    /// be broken.
    pub fn is_refused(&self, from: usize, to: usize) -> bool {
        let unreachable = self.unreachable[from] || self.unreachable[to];
        unreachable || (self.half_open.contains(&(to, from)) && !self.half_open.contains(&(from, to)))
    }
}
