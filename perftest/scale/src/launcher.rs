//! The launcher's reports to PEs that have joined: which PEs are gone.

use std::sync::{Arc, Mutex};

use symrail::Pe;
use symrail::bootstrap::{self, Bootstrap, Error, LostPe};
use symrail_core::lock;
use symrail_core::simulation::nanos;

/// PEs that have died, in the order and with the times of the reports to the others.
#[derive(Clone, Default)]
pub(crate) struct Losses(Arc<Mutex<Vec<(u64, Pe)>>>);

impl Losses {
    pub fn add(&self, told_at: u64, pe: Pe) {
        let mut losses = lock(&self.0);
        losses.push((told_at, pe));
        losses.sort_unstable();
    }
}

/// The launcher, in one PE's view.
pub(crate) struct Launcher {
    me: Pe,
    n_pes: u32,
    losses: Losses,
    lost_pes: Vec<LostPe>,
}

impl Launcher {
    pub fn new(me: Pe, n_pes: u32, losses: Losses) -> Launcher {
        Launcher { me, n_pes, losses, lost_pes: Vec::new() }
    }
}

impl Bootstrap for Launcher {
    fn pe(&self) -> Pe {
        self.me
    }

    fn n_pes(&self) -> u32 {
        self.n_pes
    }

    fn allgather(&mut self, _mine: &[u8]) -> bootstrap::Result<Vec<Vec<u8>>> {
        let what = "its PEs have joined already".to_owned();
        Err(Error::Missing { kind: "of a simulation", what, remedy: "simulate joining by itself" })
    }

    fn barrier(&mut self) -> bootstrap::Result<()> {
        self.allgather(&[]).map(drop)
    }

    fn lost_pes(&mut self) -> &[LostPe] {
        let (now, losses) = (nanos(), lock(&self.losses.0));
        for &(_, pe) in losses.iter().take_while(|(at, _)| *at <= now).skip(self.lost_pes.len()) {
            self.lost_pes.push(LostPe { pe, why: "it has died".into() });
        }
        &self.lost_pes
    }

    fn abort(&mut self, _code: i32, _why: &str) {}

    fn describe(&self) -> String {
        "a simulation".into()
    }
}
