//! Ids of further communicators, which ranks of a communicator pass to one another. Each wait ends within
//! `SYMRAIL_TIMEOUT_S`.
//!
//! An attempt to join may fail on some ranks, or be ended on one before another has come; then each rank tries again
//! when it will, so ranks need not have made equally many attempts. For this the sender numbers its ids, 1, 2 and so
//! on, and puts an id with its number as an offer. When its attempt fails it withdraws the offer, and each receiver
//! keeps the number of the last id that it has taken from the sender. Therefore:
//! - A receiver takes an id of the sender's present attempt only: those of earlier ones are withdrawn, or replaced. If
//!   it took one while the sender's attempt failed, its own attempt fails with that, and takes that id no more.
//! - It takes any later number, so it does not matter how many attempts it has made, or missed. If it comes first it
//!   waits for the next offer; if the sender does, the offer stays until the sender has joined or has given up.

use std::sync::atomic::{Ordering, fence};

use symrail::bootstrap::uid::UniqueId;
use symrail::{Cmp, Error, Runtime, SignalOp, SignalUpdate, SymSlice, with_timeout};

use crate::guard::Failure;

/// Words of an id of a job.
const ID_WORDS: usize = UniqueId::LEN / 8;
/// Where a sender's place has the number of the id that it offers, or 0; behind the id. In a rank's own place: the
/// number of its last offer.
const OFFERED: usize = ID_WORDS;
/// Where it has the number of the last id that this rank has taken from the sender.
const TAKEN: usize = ID_WORDS + 1;
/// Where it has a word that says that the sender leaves.
const LEAVES: usize = ID_WORDS + 2;
const PLACE_WORDS: usize = ID_WORDS + 3;

/// Words of the board of a communicator of so many ranks: a place for each sender. The last word is this rank's own:
/// whether a gather of it has failed.
pub fn board_words(ranks: u32) -> usize {
    ranks as usize * PLACE_WORDS + 1
}

/// All ranks of a communicator, from the view of one of them.
#[derive(Clone, Copy)]
pub struct Ranks<'a> {
    pub runtime: &'a Runtime,
    /// [`board_words`] words, all 0 at first.
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
    ) -> Result<Passed, Failure> {
        if let Some(&first) = members.first().filter(|&&first| first != self.runtime.my_pe()) {
            return self.receive(first);
        }
        self.send(create()?, members.iter().skip(1).copied().collect())
    }

    /// Offers an id to ranks, which receive it.
    pub fn send(&self, id: UniqueId, to: Vec<u32>) -> Result<Passed, Failure> {
        let words: Vec<u64> = id.to_bytes().chunks(8).map(word).collect();
        let place = self.place(self.runtime.my_pe());
        let number = self.board.read(place + OFFERED)? + 1;
        self.board.write(place + OFFERED, number)?;
        let offer = SignalUpdate::set((&**self.board, place + OFFERED), number);
        // The words of an offer follow the end of the one before. A failure is that of an earlier operation; if it was
        // with a receiver, an id of two ids' words is refused there.
        let _ = self.runtime.operations().fence();
        let offered = to.iter().try_for_each(|&rank| self.board.put_signal(place, &words, offer, rank));
        match offered {
            Ok(()) => Ok(Passed { id, to }),
            Err(error) => {
                self.withdraw(&to);
                Err(error.into())
            }
        }
    }

    /// Withdraws this rank's offer. Ranks that it does not reach are lost, or learn that this one is.
    fn withdraw(&self, to: &[u32]) {
        let offered = self.place(self.runtime.my_pe()) + OFFERED;
        to.iter().for_each(|&rank| drop(self.board.signal_op(offered, 0, SignalOp::Set, rank)));
        let _ = with_timeout(self.runtime.timeout(), || self.runtime.quiet());
    }

    /// Receives the id that rank `from` offers. Other ranks may be lost.
    ///
    /// # Errors
    /// Names the rank if it is lost, or offers none in time.
    pub fn receive(&self, from: u32) -> Result<Passed, Failure> {
        let place = self.place(from);
        let taken = self.board.read(place + TAKEN)?;
        let (number, words) = with_timeout(self.runtime.timeout(), || {
            loop {
                let what = "a wait for the id of a communicator";
                let number = self.board.wait_in_from(what, place + OFFERED, Cmp::Gt, taken, from)?;
                let words: Vec<u64> = (0..ID_WORDS).map(|i| self.board.read(place + i)).collect::<Result<_, _>>()?;
                fence(Ordering::Acquire);
                // Otherwise it was withdrawn meanwhile, and the words may be those of two ids.
                if self.board.read(place + OFFERED)? == number {
                    return Ok::<_, Error>((number, words));
                }
            }
        })?;
        self.board.write(place + TAKEN, number)?;
        let bytes: Vec<u8> = words.into_iter().flat_map(u64::to_le_bytes).collect();
        Ok(Passed { id: UniqueId::from_bytes(&bytes)?, to: Vec::new() })
    }

    /// Where the place of a sender begins.
    fn place(&self, sender: u32) -> usize {
        sender as usize * PLACE_WORDS
    }

    /// Leaves with all ranks that have not been lost and have not left: none of their proxies writes here afterwards.
    ///
    /// # Errors
    /// Names a rank that has not come in the caller's time.
    pub fn leave(&self) -> Result<(), Error> {
        let place = |rank| self.place(rank) + LEAVES;
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

/// An id that was passed on.
pub struct Passed {
    pub id: UniqueId,
    /// The ranks to which this one offers it.
    to: Vec<u32>,
}

/// What passes ids among its ranks.
pub trait Parent {
    /// Calls `body` with the ranks, unless they are gone.
    fn with_ranks<R>(&self, body: impl FnOnce(Ranks<'_>) -> Result<R, Failure>) -> Result<R, Failure>;
}

/// Joins a communicator by an id that ranks of `parent` pass to one another by `pass`. Collective among them.
///
/// # Errors
/// Those of `pass` and `join`; the ranks can then try again.
pub fn join_by<M>(
    parent: &impl Parent,
    pass: impl FnOnce(Ranks<'_>) -> Result<Passed, Failure>,
    join: impl FnOnce(UniqueId) -> Result<M, Failure>,
) -> Result<M, Failure> {
    let Passed { id, to } = parent.with_ranks(pass)?;
    join(id).inspect_err(|_| {
        let _ = parent.with_ranks(|ranks| {
            ranks.withdraw(&to);
            Ok(())
        });
    })
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

    impl Parent for Rank {
        fn with_ranks<R>(&self, body: impl FnOnce(Ranks<'_>) -> Result<R, Failure>) -> Result<R, Failure> {
            body(self.ranks())
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
        let id = ranks[0].ranks().agree(&[0, 1], || Ok(uid::create(None)?)).unwrap().id;
        assert_eq!(ranks[1].ranks().agree(&[0, 1], none).unwrap().id, id);
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

    #[test]
    fn ranks_that_try_again_come_to_the_same_attempt() {
        let ranks = job(2, 2);
        let [sender, receiver] = [0, 1].map(|rank: usize| {
            let rank = &ranks[rank];
            move |join: &mut dyn FnMut(UniqueId) -> Result<UniqueId, Failure>| {
                join_by(rank, |ranks| ranks.agree(&[0, 1], || Ok(uid::create(None)?)), join)
            }
        });
        let mut alone = |_| Err(Failure::usage("the others have not come"));
        let mut joined = Ok;
        // Each is alone, the receiver first.
        for _ in 0..2 {
            assert!(text(receiver(&mut joined)).contains("missing there: PE 0"));
            assert!(text(sender(&mut alone)).contains("have not come"));
        }
        // The receiver does not come to the sender's earlier attempts, but to the present one, whoever is first.
        assert!(text(receiver(&mut joined)).contains("missing there: PE 0"));
        sender(&mut |id| {
            assert_eq!(receiver(&mut joined).unwrap(), id);
            Ok(id)
        })
        .unwrap();
        let (one, other) = std::thread::scope(|scope| {
            let waiting = scope.spawn(|| receiver(&mut Ok).unwrap());
            (sender(&mut joined).unwrap(), waiting.join().unwrap())
        });
        assert_eq!(one, other);
        // An attempt that fails on both is over, also while its id is still offered.
        sender(&mut |_| {
            assert!(text(receiver(&mut |_| Err(Failure::usage("it left")))).contains("it left"));
            assert!(text(receiver(&mut Ok)).contains("missing there: PE 0"));
            Err(Failure::usage("the others have not come"))
        })
        .unwrap_err();
    }
}
