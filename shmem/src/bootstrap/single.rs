//! A job of one PE, for programs without a launcher.

use symrail_transport::Pe;

use super::Bootstrap;
use super::error::{Error, Result, Step};
use super::rendezvous::MAX_CONTRIBUTION;

/// The only PE. It never waits.
#[derive(Debug, Default)]
pub struct Single {
    steps: u64,
    aborted: Option<Error>,
}

impl Single {
    fn step(&mut self) -> Result<u64> {
        match &self.aborted {
            Some(error) => Err(error.clone()),
            None => {
                self.steps += 1;
                Ok(self.steps)
            }
        }
    }
}

impl Bootstrap for Single {
    fn pe(&self) -> Pe {
        0
    }

    fn n_pes(&self) -> u32 {
        1
    }

    fn allgather(&mut self, mine: &[u8]) -> Result<Vec<Vec<u8>>> {
        let step = Step::Allgather(self.step()?);
        // The limit holds here too, so that a program that works alone also works with other PEs.
        if mine.len() > MAX_CONTRIBUTION {
            return Err(Error::TooLarge { pe: 0, step, bytes: mine.len(), limit: MAX_CONTRIBUTION });
        }
        Ok(vec![mine.to_vec()])
    }

    fn barrier(&mut self) -> Result<()> {
        self.step().map(drop)
    }

    fn abort(&mut self, code: i32, why: &str) {
        self.aborted = Some(Error::Aborted { pe: 0, peer: 0, code, why: why.to_owned() });
    }

    fn describe(&self) -> String {
        "single: PE 0 of 1, started by nobody (use symrail run, mpirun or a unique id for more)".into()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn it_gathers_from_itself_until_it_aborts() {
        let mut single = Single::default();
        assert_eq!(single.allgather(b"me").unwrap(), [b"me".to_vec()]);
        single.barrier().unwrap();
        assert!(matches!(single.allgather(&vec![0; MAX_CONTRIBUTION + 1]), Err(Error::TooLarge { .. })));
        single.abort(3, "enough");
        assert!(matches!(single.barrier(), Err(Error::Aborted { code: 3, .. })));
    }
}
