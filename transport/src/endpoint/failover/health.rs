//! The health of a lane to a PE: a state machine that needs no rail.
//!
//! ```text
//!          overdue                 others are answered, it is not
//!   Up ──────────────▶ Suspect ───────────────────────────────▶ Down
//!   ▲ ◀────────────────┘ acknowledged                            │ ▲
//!   └────────────────────── Probing ◀────────────────────────────┘ │
//!        answered              └───────────────────────────────────┘ not answered; a fault, from any state
//! ```
//!
//! A missing acknowledgement alone is no fault of the lane, since the PE may be starved of CPU time. So a lane whose
//! acknowledgement is overdue becomes suspect, and the endpoint pings the PE over every lane. Each answer triggers the
//! next ping of its chain, so [`ROUNDS`] answers prove that the PE has polled all its rails several times meanwhile. If
//! the acknowledgement is still missing then, the lane has failed or has lost a message. A PE that answers over no lane
//! is late, and its lanes stay in use.

use crate::error::Fault;

/// Polled seconds after which a missing acknowledgement is overdue. The value exceeds 1 because these seconds are
/// counted inexactly.
const STALL: u32 = 2;
/// The same for a lane that has never worked: its connection is yet to be made.
const STALL_UNCONNECTED: u32 = 1;
/// Consecutive pings of a chain that the PE must answer before the lane is at fault.
pub(super) const ROUNDS: u32 = 4;
/// A lane gets one more second for each so many bytes under way on it, since acknowledgements queue behind them.
const BYTES_PER_SECOND: u64 = 4 << 20;
/// The longest pause between two attempts to use a lane again, in seconds.
const LONGEST_PAUSE: u32 = 4;
/// The same for a lane that has never worked. An attempt keeps the endpoint's thread awake for its seconds.
const LONGEST_PAUSE_UNCONNECTED: u32 = 120;

/// How a lane is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// The lane is in use.
    Up,
    /// The lane is in use, and an acknowledgement on it is overdue.
    Suspect,
    /// The lane is out of use.
    Down,
    /// A message was sent to test whether the lane works again.
    Probing,
}

/// An acknowledgement is missing, and the cause is not known yet.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Doubt {
    since: u32,
    /// When the PE last answered a ping, over any lane.
    answered: Option<u32>,
    /// The longest chain of pings that has been answered.
    rounds: u32,
}

/// The endpoint's observation of a lane, made once a second.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Seen {
    /// When the oldest missing acknowledgement was due to make progress, or since when work waits that the rail does not
    /// accept; `None` when nothing is missing.
    pub waits_since: Option<u32>,
    /// The lane has never worked, and its rail accepts nothing.
    pub unconnected: bool,
    /// Bytes of work requests that were posted to the rail and have not completed.
    pub under_way: u64,
    /// Another lane to the PE is in use.
    pub others: bool,
    /// No request was sent that could show whether the lane works.
    pub unused: bool,
}

/// The action that a lane's state calls for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Advice {
    /// Nothing.
    Wait,
    /// Ping the PE over all lanes.
    Ping,
    /// Take the lane down.
    GiveUp(String),
}

/// The health of one lane to one PE. Times are in seconds of the endpoint's clock, which may wrap.
#[derive(Debug)]
pub(in crate::endpoint) struct Health {
    state: State,
    /// The doubt about a lane that is suspect, or is probed without an answer.
    doubt: Option<Doubt>,
    /// The number of doubts so far. It identifies late answers to earlier pings.
    doubts: u32,
    /// When the lane was last tried, when to try it again, and how long to wait after that.
    tried_at: u32,
    retry_at: u32,
    pause: u32,
    /// Why the lane is down.
    fault: Option<Fault>,
}

impl Health {
    pub fn new() -> Self {
        Health { state: State::Up, doubt: None, doubts: 0, tried_at: 0, retry_at: 0, pause: 0, fault: None }
    }

    /// Whether new operations may use the lane.
    #[inline]
    pub fn is_up(&self) -> bool {
        matches!(self.state, State::Up | State::Suspect)
    }

    #[inline]
    pub fn is_down(&self) -> bool {
        self.state == State::Down
    }

    #[inline]
    pub fn is_probing(&self) -> bool {
        self.state == State::Probing
    }

    pub fn is_suspect(&self) -> bool {
        self.state == State::Suspect
    }

    /// Why the lane is down, if it is.
    pub fn fault(&self) -> Option<&Fault> {
        self.fault.as_ref()
    }

    /// The number of the doubt that pings are about.
    pub fn doubt(&self) -> Option<u32> {
        self.doubt.map(|_| self.doubts)
    }

    /// Since when the PE has answered over no lane while an acknowledgement of this lane is overdue.
    pub fn silent_since(&self) -> Option<u32> {
        self.doubt.filter(|_| self.is_up()).map(|d| d.answered.unwrap_or(d.since.wrapping_sub(STALL)))
    }

    /// Whether it is time to try a lane that is down.
    pub fn is_due(&self, now: u32) -> bool {
        self.is_down() && now.wrapping_sub(self.retry_at).cast_signed() >= 0
    }

    /// Seconds since it was tried.
    pub fn tried_before(&self, now: u32) -> u32 {
        now.wrapping_sub(self.tried_at)
    }

    /// Advances the state by one second.
    pub fn second(&mut self, now: u32, seen: Seen) -> Advice {
        if self.is_down() {
            return Advice::Wait;
        }
        if self.is_probing() && seen.unused {
            return Advice::GiveUp("nothing came of trying it".into());
        }
        let waited = seen.waits_since.map_or(0, |since| now.wrapping_sub(since));
        let stall = if seen.unconnected { STALL_UNCONNECTED } else { STALL };
        if waited < stall {
            self.doubt = None;
            if self.is_suspect() {
                self.state = State::Up;
            }
            return Advice::Wait;
        }
        if self.is_probing() && !seen.others {
            // The next lane is tried. A PE that is slow to answer gets more time with each attempt.
            let over = waited >= stall.max(self.pause.min(LONGEST_PAUSE));
            return if over { Advice::GiveUp(format!("no answer for {waited} s")) } else { Advice::Wait };
        }
        if self.state == State::Up {
            self.state = State::Suspect;
        }
        let Some(doubt) = self.doubt else {
            self.doubts = self.doubts.wrapping_add(1);
            self.doubt = Some(Doubt { since: now, ..Doubt::default() });
            return Advice::Ping;
        };
        let allowed = 1 + seen.under_way / BYTES_PER_SECOND;
        if doubt.rounds >= ROUNDS && u64::from(now.wrapping_sub(doubt.since)) >= allowed {
            let what = if seen.unconnected { "no connection" } else { "no acknowledgement" };
            return Advice::GiveUp(format!("{what} for {waited} s, while the PE answers"));
        }
        Advice::Ping
    }

    /// Notes that the PE has answered ping `round` about doubt `number`. Returns whether to send the next ping of the
    /// chain.
    pub fn answered_ping(&mut self, now: u32, number: u32, round: u32) -> bool {
        let current = number == self.doubts;
        let Some(doubt) = self.doubt.as_mut().filter(|_| current && (1..=ROUNDS).contains(&round)) else {
            return false;
        };
        doubt.answered = Some(now);
        doubt.rounds = doubt.rounds.max(round);
        doubt.rounds < ROUNDS
    }

    /// Notes an answer to a message that was sent over this lane as a probe. Returns whether the lane has come up.
    pub fn answered(&mut self) -> bool {
        let comes_up = self.is_probing();
        if comes_up {
            (self.state, self.doubt, self.pause, self.fault) = (State::Up, None, 0, None);
        }
        comes_up
    }

    /// Notes that the lane has failed, which has `worked` before or not. Returns `None` if it was down already, else
    /// whether it was in use.
    pub fn fail(&mut self, now: u32, fault: &Fault, worked: bool) -> Option<bool> {
        if self.is_down() {
            return None;
        }
        let was_up = self.is_up();
        (self.state, self.doubt, self.fault) = (State::Down, None, Some(fault.clone()));
        self.retry_at = now.wrapping_add(self.pause + 1);
        self.pause = (2 * self.pause + 1).min(if worked { LONGEST_PAUSE } else { LONGEST_PAUSE_UNCONNECTED });
        Some(was_up)
    }

    /// Notes that a probe is sent over a lane that is down.
    pub fn probe(&mut self, now: u32) {
        if self.is_down() {
            (self.state, self.tried_at) = (State::Probing, now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn fault() -> Fault {
        Fault { code: 1, text: "cut".into(), retryable: true }
    }

    /// Seconds until a lane is given up: its last acknowledgement arrived in second 0, and the PE answers so many pings
    /// in each second.
    fn given_up_after(answers_a_second: u32, under_way: u64, unconnected: bool) -> Option<u32> {
        let mut lane = Health::new();
        let mut round = 0;
        for now in 1..100 {
            let seen = Seen { waits_since: Some(0), under_way, others: true, unconnected, ..Seen::default() };
            match lane.second(now, seen) {
                Advice::GiveUp(_) => return Some(now),
                Advice::Ping => {
                    for _ in 0..answers_a_second {
                        round = (round + 1).min(ROUNDS);
                        lane.answered_ping(now, lane.doubts, round);
                    }
                }
                Advice::Wait => {}
            }
        }
        None
    }

    #[test]
    fn a_lane_is_at_fault_only_when_the_pe_answers_meanwhile() {
        assert_eq!(given_up_after(0, 0, false), None, "a PE that answers over no lane is late");
        assert_eq!(given_up_after(0, 0, true), None);
        assert_eq!(given_up_after(100, 0, false), Some(3), "a lane that is dead is found within four seconds");
        assert_eq!(given_up_after(100, 0, true), Some(2), "one that never worked within three");
        assert_eq!(given_up_after(1, 0, false), Some(6), "a slow PE has to answer as often");
        assert_eq!(given_up_after(100, 10 * BYTES_PER_SECOND, false), Some(13), "what is under way comes first");
    }

    #[test]
    fn each_event_leads_from_each_state_where_it_should() {
        let overdue = Seen { waits_since: Some(0), others: true, ..Seen::default() };
        let fine = Seen::default();
        let up = Health::new;
        let suspect = || {
            let mut lane = up();
            lane.second(STALL, overdue);
            lane
        };
        let down = || {
            let mut lane = up();
            lane.fail(0, &fault(), true);
            lane
        };
        let probing = || {
            let mut lane = down();
            lane.probe(1);
            lane
        };
        type Event = fn(&mut Health, Seen);
        let in_time: Event = |lane, seen| _ = lane.second(STALL + 1, seen);
        let answered: Event = |lane, _| _ = lane.answered();
        let fails: Event = |lane, _| _ = lane.fail(5, &fault(), true);
        let probes: Event = |lane, _| lane.probe(5);
        use State::{Down, Probing, Suspect, Up};
        // Columns: in time, overdue, answered, fault, tried. The first field is the state before them.
        type Row<'a> = (State, &'a dyn Fn() -> Health, [State; 5]);
        let table: [Row<'_>; 4] = [
            (Up, &up, [Up, Suspect, Up, Down, Up]),
            (Suspect, &suspect, [Up, Suspect, Suspect, Down, Suspect]),
            (Down, &down, [Down, Down, Down, Down, Probing]),
            (Probing, &probing, [Probing, Probing, Up, Down, Probing]),
        ];
        for (state, from, to) in table {
            let events = [(in_time, fine), (in_time, overdue), (answered, fine), (fails, fine), (probes, fine)];
            for (i, ((event, seen), to)) in events.into_iter().zip(to).enumerate() {
                let mut lane = from();
                assert_eq!(lane.state, state);
                event(&mut lane, seen);
                assert_eq!(lane.state, to, "event {i} in {state:?}");
                assert_eq!(lane.fault().is_some(), matches!(to, Down | Probing), "event {i} in {state:?}");
            }
        }
    }

    #[test]
    fn answers_to_pings_of_an_earlier_doubt_prove_nothing() {
        let overdue = Seen { waits_since: Some(0), others: true, ..Seen::default() };
        let mut lane = Health::new();
        assert_eq!(lane.second(2, overdue), Advice::Ping);
        let first = lane.doubts;
        assert_eq!(lane.second(3, Seen::default()), Advice::Wait);
        assert_eq!(lane.second(4, overdue), Advice::Ping);
        assert!(!lane.answered_ping(4, first, ROUNDS));
        assert_eq!(lane.second(5, overdue), Advice::Ping);
        assert!(!lane.answered_ping(5, lane.doubts, ROUNDS + 1), "a round that was never asked for");
        assert_eq!(lane.second(6, overdue), Advice::Ping);
    }

    #[test]
    fn lanes_that_are_all_down_are_tried_for_longer_each_time() {
        for worked in [true, false] {
            let (mut lane, mut now, mut waits) = (Health::new(), 0, Vec::new());
            for _ in 0..5 {
                lane.fail(now, &fault(), worked);
                lane.probe(now);
                let tried = now;
                let seen = Seen { waits_since: Some(tried), ..Seen::default() };
                while lane.second(now, seen) == Advice::Wait {
                    now += 1;
                }
                waits.push(now - tried);
            }
            assert_eq!(waits, [2, 3, 4, 4, 4]);
        }
    }

    proptest! {
        /// For any sequence of events: silence takes a lane down only if the PE answered a chain of pings about this
        /// very silence.
        #[test]
        fn silence_takes_a_lane_down_only_with_proof(events in proptest::collection::vec((0u8..8, 0u32..6), 1..200)) {
            let (mut lane, mut now, mut since, mut proof) = (Health::new(), u32::MAX - 50, None, 0);
            for (event, what) in events {
                match event {
                    0..3 => {
                        now = now.wrapping_add(1);
                        let seen = Seen { waits_since: since, others: true, ..Seen::default() };
                        if let Advice::GiveUp(_) = lane.second(now, seen) {
                            prop_assert!(proof >= ROUNDS);
                            prop_assert!(since.is_some_and(|s| now.wrapping_sub(s) > STALL));
                            lane.fail(now, &fault(), true);
                        }
                    }
                    3 => since = since.or(Some(now)),
                    4 => (since, proof) = (Some(now), 0),
                    5 => (since, proof) = (None, 0),
                    6 => {
                        lane.answered_ping(now, lane.doubts, what);
                        if lane.doubt.is_some() && what <= ROUNDS {
                            proof = proof.max(what);
                        }
                    }
                    _ => {
                        lane.probe(now);
                        if lane.answered() {
                            proof = 0;
                        }
                    }
                }
                prop_assert_eq!(lane.is_suspect(), lane.is_up() && lane.doubt.is_some());
            }
        }
    }
}
