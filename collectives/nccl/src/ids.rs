//! Ids of further communicators, which ranks of a communicator pass to one another. Each wait ends within
//! `SYMRAIL_TIMEOUT_S`.

use symrail::bootstrap::uid::UniqueId;
use symrail::{Cmp, Error, Runtime, SignalUpdate, SymSlice, with_timeout};

use crate::guard::Failure;

/// Words of an id of a job.
const ID_WORDS: usize = UniqueId::LEN / 8;
/// Words for each sender: an id, a word that marks its arrival, and one that says that the sender leaves.
const PLACE_WORDS: usize = ID_WORDS + 2;

/// Words of the board of a communicator of so many ranks. What a rank sends too late is not taken for another's id. The
/// last word is this rank's own: whether a gather of it has failed.
pub fn board_words(ranks: u32) -> usize {
    ranks as usize * PLACE_WORDS + 1
}

/// All ranks of a communicator, from the view of one of them.
#[derive(Clone, Copy)]
pub struct Ranks<'a> {
    pub runtime: &'a Runtime,
    /// [`board_words`] words, all 0 unless an id is there or a rank leaves.
    pub board: &'a SymSlice<u64>,
}

impl Ranks<'_> {
    /// The words of all ranks, in their order. Collective.
    ///
    /// # Errors
    /// Names the ranks that have not come in time, or one that is lost. After an error all further ones fail: what this
    /// rank has sent may be taken for a part of the next call.
    pub fn gather(&self, own: &[u64]) -> Result<Vec<u64>, Failure> {
        let has_failed = self.board.len() - 1;
        if self.board.read(has_failed)? != 0 {
            let why = "an earlier split or window registration of this rank has ended before all ranks had come, and \
                       others may take its part for that of this call: shrink the communicator instead";
            return Err(Failure::usage(why));
        }
        let gathered = with_timeout(self.runtime.timeout(), || self.runtime.team_world()?.gather(own));
        if gathered.is_err() {
            self.board.write(has_failed, 1)?;
        }
        Ok(gathered?)
    }

    /// An id that the first of these ranks creates for all of them. Collective among them.
    ///
    /// # Errors
    /// As for [`Ranks::receive`], and those of `create`.
    pub fn agree(
        &self,
        members: &[u32],
        create: impl FnOnce() -> Result<UniqueId, Failure>,
    ) -> Result<UniqueId, Failure> {
        if let Some(&first) = members.first().filter(|&&first| first != self.runtime.my_pe()) {
            return self.receive(first);
        }
        let id = create()?;
        self.send(&id, members.iter().skip(1).copied())?;
        Ok(id)
    }

    /// Sends an id to ranks, which receive it.
    pub fn send(&self, id: &UniqueId, to: impl Iterator<Item = u32>) -> Result<(), Failure> {
        let words: Vec<u64> = id.to_bytes().chunks(8).map(word).collect();
        let place = self.runtime.my_pe() as usize * PLACE_WORDS;
        for rank in to {
            self.board.put_signal(place, &words, SignalUpdate::set((self.board, place + ID_WORDS), 1), rank)?;
        }
        Ok(())
    }

    /// Receives the id that rank `from` puts here. Other ranks may be lost.
    ///
    /// # Errors
    /// Names the rank if it is lost, or sends none in time.
    pub fn receive(&self, from: u32) -> Result<UniqueId, Failure> {
        let place = from as usize * PLACE_WORDS;
        with_timeout(self.runtime.timeout(), || {
            self.board.wait_in_from("a wait for the id of a communicator", place + ID_WORDS, Cmp::Ne, 0, from)
        })?;
        let mut bytes = [0; UniqueId::LEN];
        for (i, bytes) in bytes.chunks_mut(8).enumerate() {
            bytes.copy_from_slice(&self.board.read(place + i)?.to_le_bytes());
        }
        self.board.write(place + ID_WORDS, 0)?;
        Ok(UniqueId::from_bytes(&bytes)?)
    }

    /// Leaves with all ranks that have not been lost and have not left: none of their proxies writes here afterwards.
    ///
    /// # Errors
    /// Names a rank that has not come in the caller's time.
    pub fn leave(&self) -> Result<(), Error> {
        let place = |rank: u32| rank as usize * PLACE_WORDS + ID_WORDS + 1;
        let (me, n) = (self.runtime.my_pe(), self.runtime.n_pes());
        let others = || (0..n).filter(move |&rank| rank != me);
        // The words follow this rank's data, and precede the barrier: who leaves it has said so to all. A rank that
        // this one does not reach is lost, or learns that this one has left.
        let _ = self.runtime.quiet();
        others().for_each(|rank| drop(self.board.put(place(me), &[1], rank)));
        match self.runtime.barrier_all() {
            Err(error) if is_lost(&error) => others().try_for_each(|rank| {
                match self.board.wait_in_from("a wait for ranks that leave", place(rank), Cmp::Ne, 0, rank) {
                    // It was revoked or aborted, or died: it writes no more.
                    Err(error) if is_lost(&error) => Ok(()),
                    waited => waited.map(drop),
                }
            }),
            waited => waited,
        }
    }
}

/// Whether a wait, or an operation of it, ended because a PE is lost or has left.
fn is_lost(error: &Error) -> bool {
    matches!(error, Error::PeerLost { .. } | Error::Transport(symrail_core::Error::PeerLost { .. }))
}

fn word(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
pub mod tests {
    use std::ffi::c_int;
    use std::sync::Arc;
    use std::time::{Duration, Instant};

    use symrail::Settings;
    use symrail::bootstrap::uid;

    use super::*;

    /// How long ranks wait for one another until they have joined.
    const JOINING: Duration = Duration::from_secs(60);

    /// A rank, with a heap in host memory.
    pub struct Rank {
        pub runtime: Runtime,
        pub board: Arc<SymSlice<u64>>,
    }

    impl Rank {
        pub fn ranks(&self) -> Ranks<'_> {
            Ranks { runtime: &self.runtime, board: &self.board }
        }
    }

    /// All ranks of a job in this process. They map one another's memory, and wait so many seconds.
    pub fn job(ranks: u32, timeout_s: u64) -> Vec<Rank> {
        let id = uid::create(None).unwrap();
        let join = |rank| {
            let mut settings = Settings::default();
            (settings.heap_size, settings.timeout_s) = (32 << 20, timeout_s);
            settings.libfabric_so = Some("/nowhere/libfabric.so".into());
            settings.ibv_so = Some("/nowhere/libibverbs.so".into());
            let bootstrap = uid::open_within(id, rank, ranks, JOINING).unwrap();
            let runtime = Runtime::join(settings, Box::new(bootstrap)).unwrap();
            let board = Arc::new(runtime.alloc_slice(board_words(ranks)).unwrap());
            runtime.team_world().unwrap();
            Rank { runtime, board }
        };
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..ranks).map(|rank| scope.spawn(move || join(rank))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        })
    }

    pub fn text<T>(refused: Result<T, Failure>) -> String {
        <(c_int, String)>::from(refused.map(drop).unwrap_err()).1
    }

    #[test]
    fn a_rank_that_does_not_come_is_named_when_the_others_time_is_over() {
        let ranks = job(2, 2);
        let begun = Instant::now();
        with_timeout(JOINING, || {
            let error = text(ranks[0].ranks().gather(&[1]));
            assert!(error.contains("missing there: PE 1"), "{error}");
            let error = text(ranks[1].ranks().agree(&[0, 1], || Err(Failure::usage("another one creates it"))));
            assert!(error.contains("missing there: PE 0"), "{error}");
        });
        assert!(begun.elapsed() < JOINING, "each had a limit of its own");
    }

    #[test]
    fn an_operation_with_a_lost_rank_says_that_it_is_lost() {
        let why = || String::from("it has left");
        let operation = symrail_core::Operation::Put;
        assert!(is_lost(&symrail_core::Error::PeerLost { operation, pe: 1, why: why() }.into()));
        assert!(is_lost(&Error::PeerLost { waiting: 0, what: "a barrier", pe: 1, reason: why() }));
        assert!(!is_lost(&Error::Finalized { pe: 1 }));
    }

    #[test]
    fn a_rank_that_takes_no_part_may_be_gone() {
        // Longer than a wait for a word that any PE may write goes on.
        let mut ranks = job(3, 7);
        drop(ranks.pop());
        let none = || Err(Failure::usage("another one creates it"));
        let error = text(ranks[1].ranks().agree(&[0, 1], none));
        assert!(error.contains("missing there: PE 0"), "{error}");
        let id = ranks[0].ranks().agree(&[0, 1], || Ok(uid::create(None)?)).unwrap();
        assert_eq!(ranks[1].ranks().agree(&[0, 1], none).unwrap(), id);
    }

    #[test]
    fn an_id_that_comes_too_late_is_not_taken_for_another_rank_s() {
        let ranks = job(3, 2);
        let none = || Err(Failure::usage("another one creates it"));
        assert!(text(ranks[2].ranks().agree(&[1, 2], none)).contains("missing there: PE 1"));
        ranks[1].ranks().agree(&[1, 2], || Ok(uid::create(None)?)).unwrap();
        let error = text(ranks[2].ranks().agree(&[0, 2], none));
        assert!(error.contains("missing there: PE 0"), "{error}");
    }

    #[test]
    fn a_rank_that_was_to_create_the_id_and_is_gone_is_named() {
        let mut ranks = job(3, 60);
        drop(ranks.remove(0));
        let error = text(ranks[0].ranks().agree(&[0, 1], || Err(Failure::usage("another one creates it"))));
        assert!(error.contains("PE 0 does not answer"), "{error}");
    }
}
