//! How many bytes of pieces a lane to a peer may have.
//!
//! The time of a piece that found the lane without any, or the shortest since, is that of the path. What pieces take
//! beyond, they have waited for bytes before them: of the bytes under way so many wait as their part of the time says,
//! whatever the lengths of pieces. Times are in microseconds.

use super::PIECE;
use crate::endpoint::command::Priority;

/// Pieces that a lane has in any case. As many may wait for others on the path.
const LEAST: u64 = 2;
/// Evaluations in a row that leave the least window to pieces that wait, after which the lane is let run empty: they
/// may wait for nothing but a path that has become longer, which only a piece without others shows.
const CROWDED: u8 = 64;

/// What a lane to a peer has under way, and the windows of each priority. Long pieces take long without others: they
/// would teach those of bulk operations a path that they could fill with many.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Windows {
    pub under_way: u64,
    windows: [Window; 2],
}

impl Windows {
    pub fn of(&self, priority: Priority) -> &Window {
        &self.windows[priority as usize]
    }

    pub fn begin(&mut self, priority: Priority, len: u64) {
        self.windows[priority as usize].begin(self.under_way, len);
        self.under_way += len;
    }

    /// Notes the time of a piece that has completed, before its end.
    pub fn measure(&mut self, priority: Priority, len: u64, took: u32) {
        self.windows[priority as usize].measure(len, took);
    }

    pub fn end(&mut self, len: u64) {
        self.under_way = self.under_way.saturating_sub(len);
        if self.under_way == 0 {
            // That piece has ended, if without a completion on this lane.
            self.windows.iter_mut().for_each(|window| window.alone = false);
        }
    }
}

/// The window of one priority's pieces. All bytes that the lane has under way count towards it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Window {
    pub most: u64,
    /// By how much it grows next. It doubles while no piece waits.
    step: u64,
    path: u32,
    /// The most bytes under way with a piece that was posted since the last evaluation.
    filled: u64,
    /// The time of the fastest of the last pieces behind others, since some may have waited for a thread.
    fastest: u32,
    /// The bytes of these pieces; less than 0 while pieces end that were posted before the last change.
    measured: i64,
    /// The longest of them, and no less than [`PIECE`].
    longest: u64,
    /// The next piece to end found the lane without any.
    alone: bool,
    /// Evaluations in a row that left the least window to pieces that wait.
    crowded: u8,
}

impl Default for Window {
    fn default() -> Window {
        Window {
            most: LEAST * PIECE,
            step: LEAST * PIECE,
            path: u32::MAX,
            filled: 0,
            fastest: u32::MAX,
            measured: 0,
            longest: PIECE,
            alone: false,
            crowded: 0,
        }
    }
}

impl Window {
    /// Whether the lane may get a piece beside so many bytes, of pieces of up to `longest` bytes. One may wait behind
    /// another, whatever their lengths.
    pub fn has_room(&self, under_way: u64, longest: u64) -> bool {
        under_way == 0 || self.crowded < CROWDED && (under_way < self.most || under_way <= longest)
    }

    fn begin(&mut self, before: u64, len: u64) {
        if before == 0 {
            (self.alone, self.filled, self.crowded) = (true, 0, 0);
        }
        self.filled = self.filled.max(before + len);
    }

    fn measure(&mut self, len: u64, took: u32) {
        let took = took.max(1);
        if std::mem::take(&mut self.alone) {
            // Times from before the lane was idle may be those of another path.
            (self.path, self.fastest, self.measured) = (took, u32::MAX, self.measured.max(0));
            return;
        }
        self.path = self.path.min(took);
        self.measured += len as i64;
        if self.measured <= 0 {
            return;
        }
        (self.fastest, self.longest) = (self.fastest.min(took), self.longest.max(len));
        if self.filled == 0 || self.measured < self.filled as i64 {
            return;
        }
        let (filled, piece, before) = (std::mem::take(&mut self.filled), self.longest, self.most);
        let on_path = filled as f32 * self.path as f32 / self.fastest as f32;
        let waiting = filled as f32 - on_path;
        let waits = waiting >= piece as f32;
        if waiting > (LEAST * piece) as f32 {
            self.most = ((on_path as u64 / piece + 1) * piece).max(LEAST * PIECE);
        } else if !waits && filled >= before {
            self.step = self.step.max(piece);
            self.most += self.step;
            self.step *= 2;
        }
        if waits {
            self.step = 0;
        }
        self.crowded = if waits && self.most <= LEAST * piece { self.crowded + 1 } else { 0 };
        (self.fastest, self.longest) = (u32::MAX, PIECE);
        self.measured = if self.most == before { 0 } else { -(filled as i64) };
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::collections::VecDeque;

    use super::*;

    /// A path that moves 64 KiB in `each` microseconds and adds `latency`. Completions are seen every `poll`
    /// microseconds, or at once if that is 0.
    #[derive(Default)]
    struct Path {
        each: f64,
        latency: f64,
        poll: f64,
        now: f64,
        free: f64,
        /// When each piece was posted and will have completed, its bytes and its priority.
        flights: VecDeque<(f64, f64, u64, Priority)>,
    }

    impl Path {
        fn new(each: f64, latency: f64) -> Path {
            Path { each, latency, ..Path::default() }
        }

        /// Posts pieces of these lengths in turn, as many as the window allows, for so many microseconds. Returns the
        /// part of the time in which the path moved something, and the most bytes that a new piece had to wait for.
        fn run(&mut self, windows: &mut Windows, priority: Priority, lengths: &[u64], time: f64) -> (f64, f64) {
            let (rate, longest) = (PIECE as f64 / self.each, lengths.iter().copied().fold(PIECE, u64::max));
            let (mut idle, mut most, end) = (0.0, 0.0, self.now + time);
            let mut lengths = lengths.iter().copied().cycle();
            while self.now < end {
                while windows.of(priority).has_room(windows.under_way, longest) {
                    let len = lengths.next().unwrap();
                    most = f64::max(most, (self.free - self.now) * rate);
                    idle += f64::max(self.now - self.free, 0.0);
                    self.free = self.free.max(self.now) + len as f64 / rate;
                    windows.begin(priority, len);
                    let before = self.flights.back().map_or(0.0, |&(_, end, ..)| end);
                    self.flights.push_back((self.now, before.max(self.free + self.latency), len, priority));
                }
                self.now = if self.poll > 0.0 { self.now + self.poll } else { self.flights[0].1 };
                while let Some(&(posted, end, len, priority)) = self.flights.front().filter(|first| first.1 <= self.now)
                {
                    self.flights.pop_front();
                    windows.measure(priority, len, self.now.max(end) as u32 - posted as u32);
                    windows.end(len);
                }
            }
            (1.0 - idle / time, most)
        }
    }

    /// What [`Path::run`] returns once the window is known.
    fn settled(windows: &mut Windows, lengths: &[u64], (each, latency): (u64, u64)) -> (f64, f64) {
        let mut path = Path::new(each as f64, latency as f64);
        let half = f64::max(4000.0 * path.each, 100.0 * path.latency);
        windows.under_way = 0;
        path.run(windows, Priority::Bulk, lengths, half);
        path.run(windows, Priority::Bulk, lengths, half)
    }

    fn pieces(windows: &Windows) -> u64 {
        windows.of(Priority::Bulk).most / PIECE
    }

    #[test]
    fn two_pieces_wait_on_the_path_at_most_and_it_is_used() {
        for (each, latency) in [(2600, 0), (2600, 4_000), (500, 20_000), (500, 100), (50, 10_000), (5, 20_000)] {
            let (used, most) = settled(&mut Windows::default(), &[PIECE], (each, latency));
            assert!(most <= (LEAST * PIECE) as f64, "{each} us a piece, {latency} us latency: {most} bytes wait");
            assert!(used > 0.9, "{each} us a piece, {latency} us latency: {used} of the time used");
        }
    }

    /// Whatever the lengths of pieces, a path gets what it holds in bytes.
    #[test]
    fn long_pieces_leave_a_path_used_and_wait_for_few_bytes() {
        for (each, latency) in [(500, 20_000), (500, 100), (50, 10_000), (26, 50), (5, 20_000)] {
            let long = 2_000 / each * PIECE;
            for lengths in [&[long][..], &[long, PIECE], &[long, PIECE, PIECE, PIECE, PIECE]] {
                let (used, most) = settled(&mut Windows::default(), lengths, (each, latency));
                let case = format!("{each} us for 64 KiB, {latency} us latency, pieces of {lengths:?}");
                assert!(most <= ((LEAST + 1) * long) as f64, "{case}: {most} bytes wait");
                assert!(used > 0.95, "{case}: {used} of the time used");
            }
        }
    }

    #[test]
    fn two_long_pieces_have_room_in_a_window_of_short_ones() {
        let (mut windows, long) = (Windows::default(), 60 * PIECE);
        settled(&mut windows, &[PIECE], (50, 2_000));
        windows.under_way = 0;
        let mut posted = 0;
        while windows.of(Priority::Bulk).has_room(windows.under_way, long) {
            windows.begin(Priority::Bulk, long);
            posted += 1;
        }
        assert!((40..45).contains(&pieces(&windows)) && posted == 2, "{posted} of {long} bytes in {windows:?}");
    }

    #[test]
    fn a_path_that_becomes_slower_has_fewer_pieces() {
        let mut windows = Windows::default();
        settled(&mut windows, &[PIECE], (500, 20_000));
        let before = pieces(&windows);
        settled(&mut windows, &[PIECE], (5_000, 20_000));
        assert!(before > 30 && pieces(&windows) < 12, "{before}, then {windows:?}");
    }

    /// The time of a long piece without others is mostly its own, which teaches nothing about short ones.
    #[test]
    fn few_pieces_of_bulk_operations_wait_after_long_ones_of_others() {
        for latency in [5.0, 50.0, 2_000.0] {
            let (mut windows, mut path) = (Windows::default(), Path::new(10.0, latency));
            path.run(&mut windows, Priority::Urgent, &[200 * PIECE], 100_000.0);
            path.run(&mut windows, Priority::Bulk, &[PIECE], 50_000.0);
            let (used, most) = path.run(&mut windows, Priority::Bulk, &[PIECE], 50_000.0);
            assert!(most <= (3 * PIECE) as f64 && used > 0.95, "latency {latency} us: {most} bytes wait, {used} used");
        }
    }

    #[test]
    fn pieces_whose_completions_are_seen_together_use_the_path() {
        for (each, latency, poll) in [(10.0, 20.0, 100.0), (5.0, 5.0, 50.0), (10.0, 10_000.0, 100.0)] {
            let (mut windows, mut path) = (Windows::default(), Path { poll, ..Path::new(each, latency) });
            path.run(&mut windows, Priority::Bulk, &[PIECE], 2e6);
            let (used, _) = path.run(&mut windows, Priority::Bulk, &[PIECE], 2e6);
            assert!(
                used > 0.9,
                "{each} us a piece, {latency} us latency, a poll in {poll} us: {used} of the time used"
            );
        }
    }

    #[test]
    fn a_path_that_was_slower_for_a_while_is_soon_used_again() {
        let (mut windows, mut path) = (Windows::default(), Path::new(10.0, 20_000.0));
        for each in [10.0, 40.0, 10.0] {
            path.each = each;
            path.run(&mut windows, Priority::Bulk, &[PIECE], 1e6);
        }
        let (used, _) = path.run(&mut windows, Priority::Bulk, &[PIECE], 1e6);
        assert!(used > 0.9, "{used} of the time used, {windows:?}");
    }

    #[test]
    fn a_latency_that_rises_under_load_is_found() {
        let (mut windows, mut path) = (Windows::default(), Path::new(10.0, 20.0));
        path.run(&mut windows, Priority::Bulk, &[PIECE], 1e6);
        path.latency = 20_000.0;
        path.run(&mut windows, Priority::Bulk, &[PIECE], 4e6);
        let (used, _) = path.run(&mut windows, Priority::Bulk, &[PIECE], 1e6);
        assert!(used > 0.9, "{used} of the time used, {windows:?}");
    }

    #[test]
    fn short_bursts_of_pieces_do_not_widen_the_window() {
        let (mut windows, mut flights) = (Windows::default(), VecDeque::new());
        for burst in 0..300 {
            let (mut now, mut free, mut left) = (1000 * burst, 1000 * burst, 8);
            while left + flights.len() > 0 {
                while left > 0 && windows.of(Priority::Bulk).has_room(windows.under_way, PIECE) {
                    windows.begin(Priority::Bulk, PIECE);
                    (free, left) = (free.max(now) + 10, left - 1);
                    flights.push_back((now, free + 5));
                }
                let (posted, end) = flights.pop_front().unwrap();
                now = end;
                windows.measure(Priority::Bulk, PIECE, end - posted);
                windows.end(PIECE);
            }
        }
        assert!(pieces(&windows) <= 4, "{windows:?}");
    }

    /// Such as one that has failed or arrived over another lane.
    #[test]
    fn a_piece_behind_others_is_not_taken_for_one_that_was_not_measured() {
        let mut windows = Windows::default();
        windows.begin(Priority::Bulk, PIECE);
        windows.measure(Priority::Bulk, PIECE, 30);
        windows.end(PIECE);
        windows.begin(Priority::Bulk, PIECE);
        windows.end(PIECE);
        windows.begin(Priority::Urgent, 200 * PIECE);
        windows.begin(Priority::Bulk, PIECE);
        windows.measure(Priority::Bulk, PIECE, 2_000);
        assert_eq!(windows.of(Priority::Bulk).path, 30);
    }

    #[test]
    fn times_before_the_lane_was_idle_do_not_count_after_it() {
        let mut windows = Windows::default();
        settled(&mut windows, &[PIECE], (10, 5));
        let before = pieces(&windows);
        windows.under_way = 0;
        // A path that is now a thousand times as slow, with pieces that wait.
        for _ in 0..100 {
            (0..before).for_each(|_| windows.begin(Priority::Bulk, PIECE));
            for at in 1..=before {
                windows.measure(Priority::Bulk, PIECE, 10_000 * at as u32);
                windows.end(PIECE);
            }
            assert!(pieces(&windows) <= before, "{windows:?}");
        }
    }
}
