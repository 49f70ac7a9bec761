//! The links of a session: how many each peer has, and the connections of those that were closed here.
//!
//! A connection stays until both ends have closed the link, so a peer that has seen the goodbye can tell when the
//! session itself has ended: that is when the connection ends. One connection to each peer, its *watch*, stays until
//! then in any case. So both ends notice, whichever closes first, and remove the peer. The dialer's card names it, so
//! that both keep the same one.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use symrail_core::lock;
use symrail_transport::Pe;

/// The other end of a link that was closed here.
pub(super) enum Other {
    /// It is open, or was closed before.
    Open,
    /// It has closed.
    Closed,
    /// Its connection has ended.
    Ended,
    /// Its connection has failed.
    Unknown,
}

/// A look at the other end. Dropping it ends the connection.
type Look = Box<dyn FnMut() -> Other + Send>;

struct Closed {
    pe: Pe,
    watches: bool,
    /// The other end knows that the link was made: it keeps the connection, too.
    established: bool,
    /// The other end has closed the link.
    by_both: bool,
    look: Look,
}

/// What concerns a peer.
#[derive(Default)]
struct Of {
    open: u32,
    /// Watches, and those that dialers have announced.
    watches: u32,
    /// Its session has ended.
    ended: bool,
}

#[derive(Default)]
struct All {
    peers: HashMap<Pe, Of>,
    closed: Vec<Closed>,
}

#[derive(Default)]
pub(super) struct Links(Mutex<All>);

impl Links {
    /// Whether a dialer's next link has to be the watch.
    pub fn claim(&self, pe: Pe) -> bool {
        let mut all = lock(&self.0);
        let of = all.peers.entry(pe).or_default();
        let claimed = of.watches == 0;
        of.watches += u32::from(claimed);
        claimed
    }

    /// Notes a watch that the peer has announced.
    pub fn watch(&self, pe: Pe) {
        lock(&self.0).peers.entry(pe).or_default().watches += 1;
    }

    /// Undoes [`Links::claim`] for a link that was not made.
    pub fn release(&self, pe: Pe) {
        lock(&self.0).release(pe);
    }

    pub fn open(&self, pe: Pe) {
        lock(&self.0).peers.entry(pe).or_default().open += 1;
    }

    /// Takes a link that is being closed here.
    pub fn close(&self, pe: Pe, [watches, established, by_both]: [bool; 3], look: Look) {
        let mut all = lock(&self.0);
        let mut known = false;
        if let Some(of) = all.peers.get_mut(&pe) {
            (of.open, known) = (of.open.saturating_sub(1), true);
        }
        all.closed.push(Closed { pe, watches: watches && known, established, by_both, look });
        all.look();
    }

    /// The peers whose sessions have ended, and to which no link is left. They are forgotten.
    pub fn take_ended(&self) -> Vec<Pe> {
        let mut all = lock(&self.0);
        all.look();
        let All { peers, closed } = &mut *all;
        let is_over = |pe: &Pe, of: &mut Of| of.ended && of.open == 0 && !closed.iter().any(|one| one.pe == *pe);
        peers.extract_if(is_over).map(|(pe, _)| pe).collect()
    }

    /// Forgets a peer that is removed for another reason.
    pub fn forget(&self, pe: Pe) {
        let mut all = lock(&self.0);
        all.peers.remove(&pe);
        all.closed.iter_mut().filter(|one| one.pe == pe).for_each(|one| one.watches = false);
    }

    /// Waits until all other ends have closed theirs, at most for `limit`.
    pub fn wait(&self, limit: Duration, mut progress: impl FnMut()) {
        let begun = Instant::now();
        let are_over = || {
            let mut all = lock(&self.0);
            all.look();
            all.closed.iter().all(|one| one.by_both)
        };
        while !are_over() && begun.elapsed() < limit {
            progress();
            std::thread::yield_now();
        }
    }
}

impl All {
    fn release(&mut self, pe: Pe) {
        if let Some(of) = self.peers.get_mut(&pe) {
            of.watches = of.watches.saturating_sub(1);
        }
    }

    /// Ends connections that are not needed any more.
    fn look(&mut self) {
        let mut watches = Vec::new();
        self.closed.retain_mut(|one| {
            let other = (one.look)();
            one.by_both |= matches!(other, Other::Closed);
            let stays = matches!(other, Other::Open | Other::Closed) && (one.watches || !one.by_both);
            if !stays && one.watches {
                watches.push((one.pe, matches!(other, Other::Ended).then_some(one.established)));
            }
            stays
        });
        for (pe, ended) in watches {
            self.release(pe);
            let is_last = !self.closed.iter().any(|one| one.pe == pe);
            if let (Some(of), Some(established)) = (self.peers.get_mut(&pe), ended) {
                // A dialer may also have given this link up alone, before it was made.
                of.ended |= established || of.open == 0 && is_last;
            }
        }
    }
}
