//! A round on one thread of the host, which multiplies and moves rows in turn.
//!
//! The thread first performs the steps that need no wait, and products last, so that rows are in flight before it
//! multiplies. When no step can be performed, the thread waits for the first step that remains: see
//! [`program`](crate::program).

use crate::error::Result;
use crate::exchange::Exchange;
use crate::program::{Action, PRODUCTS, Place, Program};
use crate::step::Step;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Open,
    /// Rows are in flight to this rank.
    UnderWay,
    Done,
}

/// The progress of a round.
struct Course<'a> {
    program: &'a Program,
    states: Vec<State>,
    /// The steps of each lane, and how many of them have ended.
    lanes: Vec<(Vec<Place>, usize)>,
}

/// Carries out a round. `local` performs the steps that concern this rank alone.
pub(crate) fn carry_out(
    exchange: &mut Exchange,
    program: &Program,
    mut local: impl FnMut(&mut Exchange, &Action),
) -> Result<()> {
    exchange.begin()?;
    steps(exchange, program, &mut local).and_then(|()| exchange.end()).inspect_err(|error| exchange.give_up(error))
}

/// Performs all steps.
fn steps(exchange: &mut Exchange, program: &Program, local: &mut impl FnMut(&mut Exchange, &Action)) -> Result<()> {
    let lanes = (0..program.lanes).map(|lane| (program.of_lane(lane).collect(), 0)).collect();
    let mut course = Course { program, states: vec![State::Open; program.entries.len()], lanes };
    // The steps before the first one that remains have ended.
    let mut first = 0;
    loop {
        while course.states.get(first) == Some(&State::Done) {
            first += 1;
        }
        if first == program.entries.len() {
            return Ok(());
        }
        while course.go_on(exchange, 1..program.lanes, local)? {}
        let multiplied = course.go_on(exchange, PRODUCTS..PRODUCTS + 1, local)?;
        if !multiplied && course.states[first] != State::Done {
            course.wait(exchange, first)?;
        }
    }
}

impl Course<'_> {
    /// Performs one step of each of these lanes that can be performed now. Returns whether there was one.
    fn go_on(
        &mut self,
        exchange: &mut Exchange,
        lanes: std::ops::Range<usize>,
        local: &mut impl FnMut(&mut Exchange, &Action),
    ) -> Result<bool> {
        let mut any = false;
        for lane in lanes {
            let Some(place) = self.next(lane) else { continue };
            if self.states[place] != State::Open || !self.has_all(place) {
                continue;
            }
            let program = self.program;
            match &program.entries[place].action {
                &Action::Wait { word, round, .. } if !exchange.is_set(word, round)? => continue,
                Action::Wait { .. } => {}
                &Action::Signal { to, word } => exchange.signal(to, word)?,
                Action::Get { from, rows } => {
                    exchange.get(rows, *from)?;
                    self.states[place] = State::UnderWay;
                    any = true;
                    continue;
                }
                Action::Put { to, rows, at, word } => exchange.put(rows, *to, *at, *word)?,
                action => {
                    match action {
                        Action::Multiply { rows } => exchange.step(&Step::Multiply { rows: rows.clone() }),
                        Action::Sum { rows, .. } => exchange.step(&Step::Sum { rows: rows.rows.clone() }),
                        _ => {}
                    }
                    local(exchange, action);
                }
            }
            self.end(place);
            any = true;
        }
        Ok(any)
    }

    /// Waits for the first step that remains, or for what it needs.
    fn wait(&mut self, exchange: &mut Exchange, first: Place) -> Result<()> {
        if let &Action::Wait { from, word, round } = &self.program.entries[first].action {
            exchange.wait(from, word, round)?;
            self.end(first);
            return Ok(());
        }
        exchange.quiet()?;
        let under_way: Vec<Place> = (0..self.states.len()).filter(|&i| self.states[i] == State::UnderWay).collect();
        under_way.into_iter().for_each(|place| self.end(place));
        Ok(())
    }

    /// The next step of a lane.
    fn next(&self, lane: usize) -> Option<Place> {
        let (places, ended) = &self.lanes[lane];
        places.get(*ended).copied()
    }

    fn has_all(&self, place: Place) -> bool {
        self.program.entries[place].after.iter().all(|&before| self.states[before] == State::Done)
    }

    fn end(&mut self, place: Place) {
        self.states[place] = State::Done;
        self.lanes[self.program.entries[place].lane].1 += 1;
    }
}
