//! Calls between `ncclGroupStart` and `ncclGroupEnd`: they begin at the end, first the new communicators, then the
//! others, all sends and receives of a communicator at once, whatever streams they are on. A refused call keeps the
//! whole group from beginning. If a later call cannot begin, ranks would wait for the rest: so all communicators of the
//! group fail.

use std::cell::RefCell;
use std::ffi::c_int;
use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use symrail_collectives::Transfer;
use symrail_collectives::gpu::Memory;

use crate::collectives::Collective;
use crate::communicator::Communicator;
use crate::config::Structure;
use crate::estimate;
use crate::export::{nccl, there};
use crate::guard::{Failure, guarded};
use crate::library;
use crate::one_sided;
use crate::per_thread::{self, StandIn};
use crate::rank::Joining;
use crate::registry;
use crate::threads::on_each;
use crate::types::{CudaStream, Handle};

/// The work of a call.
pub enum Work {
    Collective(Collective),
    /// Sends and receives, and the streams of those that are on other streams than the first.
    Transfers(Vec<CudaStream>, Vec<Transfer<Memory>>),
    OneSided(one_sided::Call),
}

/// A call that waits for the end of its group.
struct Waiting<C> {
    communicator: Arc<C>,
    stream: CudaStream,
    work: Work,
}

impl<C> Waiting<C> {
    /// The call's streams.
    fn streams(&mut self) -> impl Iterator<Item = (&mut CudaStream, &C)> {
        let others = match &mut self.work {
            Work::Transfers(others, _) => others.as_mut_slice(),
            Work::Collective(_) | Work::OneSided(_) => &mut [],
        };
        std::iter::once(&mut self.stream).chain(others).map(|stream| (stream, &*self.communicator))
    }
}

impl Waiting<Communicator> {
    /// Whether the call only launches kernels: it waits for no other rank, and loads no module. `false` as well if
    /// another thread is in a call.
    fn is_prepared(&self) -> bool {
        let prepared = self.communicator.look(|all, one_sided| match &self.work {
            Work::Collective(collective) => collective.is_prepared(all),
            Work::Transfers(..) => all.is_exchange_prepared(),
            Work::OneSided(_) => one_sided.is_prepared(),
        });
        prepared.unwrap_or(false)
    }
}

/// The calling thread's group.
struct Group<C> {
    depth: usize,
    joining: Vec<Joining>,
    waiting: Vec<Waiting<C>>,
    /// The failure of the first call that was refused.
    refused: Option<Failure>,
}

thread_local! {
    // It has no destructor, because destructors of the program make calls, too, when the thread's other values are gone.
    static GROUP: RefCell<ManuallyDrop<Group<Communicator>>> =
        const { RefCell::new(ManuallyDrop::new(Group::new(0))) };
}

/// Wraps a function whose calls may be in a group: if it is refused, so is the group.
pub fn call(body: impl FnOnce() -> Result<(), Failure>) -> Result<(), Failure> {
    body().inspect_err(|failure| {
        GROUP.with_borrow_mut(|group| {
            if group.depth > 0 {
                group.refused.get_or_insert_with(|| failure.clone());
            }
        });
    })
}

/// Begins a call, or keeps it for the end of the group.
pub fn submit(communicator: Arc<Communicator>, stream: CudaStream, work: Work) -> Result<(), Failure> {
    let waiting = Waiting { communicator, stream, work };
    let kept = GROUP.with_borrow_mut(|group| match group.depth {
        0 => Some(waiting),
        _ => {
            group.add(waiting);
            None
        }
    });
    kept.map_or(Ok(()), |call| begin(&call.communicator, call.stream, call.work))
}

/// Makes a communicator, or keeps it for the end of the group. Returns its handle.
pub fn join(joining: Joining) -> Result<Handle, Failure> {
    let handle = joining.handle();
    let now = GROUP.with_borrow_mut(|group| match group.depth {
        0 => Some(joining),
        _ => {
            group.joining.push(joining);
            None
        }
    });
    now.map_or(Ok(()), Joining::finish).map(|()| handle).inspect_err(|_| {
        // The program does not get the handle.
        registry::take_not_made(handle);
    })
}

impl<C> Group<C> {
    const fn new(depth: usize) -> Group<C> {
        Group { depth, joining: Vec::new(), waiting: Vec::new(), refused: None }
    }

    /// Merges the sends and receives of a communicator into one call: they wait for one another's peers. Its
    /// collectives come before, since ranks may make a group's calls in different orders. One-sided calls, and calls of
    /// different communicators, keep their order: other ranks may make them without a group.
    fn add(&mut self, new: Waiting<C>) {
        let same = |old: &Waiting<C>| Arc::ptr_eq(&old.communicator, &new.communicator);
        if matches!(new.work, Work::OneSided(_)) {
            return self.waiting.push(new);
        }
        let Work::Transfers(_, more) = &new.work else {
            let transfers = self.waiting.iter().position(|old| same(old) && matches!(old.work, Work::Transfers(..)));
            return self.waiting.insert(transfers.unwrap_or(self.waiting.len()), new);
        };
        let call = self.waiting.iter_mut().filter(|old| same(old)).find_map(|old| match &mut old.work {
            Work::Transfers(streams, transfers) => Some((old.stream, streams, transfers)),
            Work::Collective(_) | Work::OneSided(_) => None,
        });
        let Some((first, streams, transfers)) = call else { return self.waiting.push(new) };
        transfers.extend(more);
        if new.stream != first && !streams.contains(&new.stream) {
            streams.push(new.stream);
        }
    }
}

/// The communicators of calls, each once.
fn communicators<C>(waiting: &[Waiting<C>]) -> Vec<Arc<C>> {
    let mut all: Vec<Arc<C>> = Vec::new();
    for call in waiting {
        if !all.iter().any(|known| Arc::ptr_eq(known, &call.communicator)) {
            all.push(Arc::clone(&call.communicator));
        }
    }
    all
}

/// If this rank could not join, or prepare its streams, its calls do not begin: passes their communicators to `fail`,
/// since the other ranks may have joined, and wait for them.
fn check_joined<T, C>(
    joined: Result<T, Failure>,
    waiting: &[Waiting<C>],
    fail: impl Fn(&C, &Failure),
) -> Result<T, Failure> {
    joined.inspect_err(|why| communicators(waiting).iter().for_each(|one| fail(one, why)))
}

/// Begins a group's calls, in their order. If one does not begin, passes every communicator to `fail`, unless that call
/// was refused and no other has begun.
fn begin_all<C>(
    waiting: Vec<Waiting<C>>,
    mut begin: impl FnMut(&C, CudaStream, Work) -> Result<(), Failure>,
    fail: impl Fn(&C, &Failure),
) -> Result<(), Failure> {
    let all = communicators(&waiting);
    for (place, Waiting { communicator, stream, work }) in waiting.into_iter().enumerate() {
        if let Err(failure) = begin(&communicator, stream, work) {
            if place > 0 || failure.lasts() {
                all.iter().for_each(|one| fail(one, &failure));
            }
            return Err(failure);
        }
    }
    Ok(())
}

/// As [`begin_all`], for the calls of each GPU on a thread of its own.
fn begin_on_all_gpus<C: Send + Sync>(
    of_gpus: Vec<Vec<Waiting<C>>>,
    begin: impl Fn(&C, CudaStream, Work) -> Result<(), Failure> + Sync,
    fail: impl Fn(&C, &Failure) + Sync,
) -> Result<(), Failure> {
    let all: Vec<_> = of_gpus.iter().flatten().map(|call| Arc::clone(&call.communicator)).collect();
    let begun = AtomicBool::new(false);
    let begin_one = |communicator: &C, stream, work| {
        let ended = begin(communicator, stream, work);
        if ended.as_ref().err().is_none_or(Failure::lasts) {
            begun.store(true, Ordering::Release);
        }
        ended
    };
    on_each(of_gpus, |calls| begin_all(calls, begin_one, &fail)).inspect_err(|why| {
        if begun.load(Ordering::Acquire) {
            all.iter().for_each(|one| fail(one, why));
        }
    })
}

fn begin(communicator: &Communicator, stream: CudaStream, work: Work) -> Result<(), Failure> {
    communicator.check_failed()?;
    communicator.with(|inside| {
        let stream = inside.stream(stream);
        match work {
            Work::Collective(collective) => collective.begin(inside, &stream),
            Work::Transfers(others, transfers) => inside.exchange(&stream, &others, &transfers),
            // SAFETY: C's caller vouches for its memory.
            Work::OneSided(call) => unsafe { inside.one_sided.begin(&stream, &call) },
        }
    })
}

nccl! {
    fn ncclGroupStart() as {
        let theirs = library::too(there!(ncclGroupStart() -> c_int));
        // A group that could not be started is not ended.
        GROUP.with_borrow_mut(|group| group.depth += usize::from(theirs == 0));
        theirs
    }
}

/// The calls of a group.
type Calls = (Vec<Joining>, Vec<Waiting<Communicator>>);

/// Ends the innermost group. At the end of the outermost group returns its calls, unless one of them was refused.
fn end() -> Result<Calls, Failure> {
    GROUP.with_borrow_mut(|group| {
        group.depth = group.depth.checked_sub(1).ok_or_else(|| Failure::usage("the end of a group without a start"))?;
        if group.depth > 0 {
            return Ok(Calls::default());
        }
        let calls = (std::mem::take(&mut group.joining), std::mem::take(&mut group.waiting));
        match group.refused.take() {
            None => Ok(calls),
            Some(why) => {
                let others = calls.0.len() + calls.1.len();
                Err(why.within(&format!("nothing of the group was begun, also not {others} other calls")))
            }
        }
    })
}

/// Sorts work by a key. The work of each key keeps its order.
fn sorted<T, K: PartialEq>(work: Vec<T>, key: impl Fn(&T) -> K) -> Vec<Vec<T>> {
    let mut sorted: Vec<(K, Vec<T>)> = Vec::new();
    for one in work {
        let key = key(&one);
        match sorted.iter_mut().find(|(known, _)| *known == key) {
            Some((_, list)) => list.push(one),
            None => sorted.push((key, vec![one])),
        }
    }
    sorted.into_iter().map(|(_, list)| list).collect()
}

/// Merges the lists of GPUs: the first of each, the second of each, and so on. A GPU that accepts no more launches until
/// another GPU has begun its own would block the calling thread.
fn in_turns<T>(of_gpus: Vec<Vec<T>>) -> Vec<T> {
    let mut lists: Vec<_> = of_gpus.into_iter().map(Vec::into_iter).collect();
    let longest = lists.iter().map(ExactSizeIterator::len).max().unwrap_or(0);
    (0..longest).flat_map(|_| lists.iter_mut().filter_map(Iterator::next).collect::<Vec<_>>()).collect()
}

/// Makes a group's communicators, and begins its calls. Ranks may name communicators in different orders, so they are
/// made at the same time, except for those of the same communicator's ranks, which pass ids in the order of its calls.
fn finish((joining, mut waiting): Calls) -> Result<(), Failure> {
    let joined = on_each(sorted(joining, Joining::among), |all| all.into_iter().try_for_each(Joining::finish));
    check_joined(joined, &waiting, Communicator::fail)?;
    let first = waiting.first().map(|call| call.communicator.gpu);
    if waiting.iter().all(|call| Some(call.communicator.gpu) == first) {
        return begin_all(waiting, begin, Communicator::fail);
    }
    let of_gpus = |waiting: Vec<Waiting<Communicator>>| sorted(waiting, |call| call.communicator.gpu);
    if waiting.iter().all(Waiting::is_prepared) {
        return begin_all(in_turns(of_gpus(waiting)), begin, Communicator::fail);
    }
    let streams = waiting.iter_mut().flat_map(Waiting::streams);
    let replaced = per_thread::replace(streams, |communicator| communicator.gpu, StandIn::begin);
    let stand_ins = check_joined(replaced, &waiting, Communicator::fail)?;
    let begun = begin_on_all_gpus(of_gpus(waiting), begin, Communicator::fail);
    // Also if only a part has begun.
    let followed = stand_ins.iter().try_for_each(StandIn::end);
    begun.and(followed)
}

/// Calls `body` in a group of its own, which ends with it.
pub fn all(body: impl FnOnce() -> Result<(), Failure>) -> Result<(), Failure> {
    GROUP.with_borrow_mut(|group| group.depth += 1);
    let _ = call(body);
    finish(end()?)
}

nccl! {
    fn ncclGroupEnd() as {
        let ours = guarded(|| {
            finish(end()?)
        });
        // The other library's group ends in any case.
        let theirs = library::too(there!(ncclGroupEnd() -> c_int));
        if ours == 0 { theirs } else { ours }
    }
}

// Nothing of the group begins.
nccl! {
    fn ncclGroupSimulateEnd(info: Structure) {
        let place = estimate::Place::of(info);
        let ended = end();
        let _ = library::too(there!(ncclGroupEnd() -> c_int));
        let (joining, waiting) = ended?;
        let place = place?;
        if !joining.is_empty() {
            return Err(Failure::usage("a group that makes communicators cannot be simulated"));
        }
        let time = |call: &Waiting<Communicator>| {
            let Communicator { rank, size, .. } = *call.communicator;
            estimate::microseconds(&call.work, rank, size, call.communicator.is_direct())
        };
        // GPUs work at the same time.
        let of_gpus = sorted(waiting, |call| call.communicator.gpu);
        let longest = of_gpus.iter().map(|calls| calls.iter().map(time).sum()).fold(0.0, f64::max);
        if let Some(place) = place {
            place.write(longest);
        }
        Ok(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::sync::Mutex;
    use std::time::Duration;

    use symrail::bootstrap::{Bootstrap, uid};
    use symrail_core::lock;

    use super::*;
    use crate::ending::{ncclCommAbort, ncclCommDestroy};
    use crate::ids::tests::{job, text};
    use crate::one_sided::{Call, Signal};

    #[test]
    fn transfers_of_a_communicator_are_one_call_behind_collectives_on_whatever_streams() {
        let memory = Memory { at: 0, len: 8 << 20 };
        let send = || Work::Transfers(Vec::new(), vec![Transfer::Send { to: 1, memory }]);
        let receive = || Work::Transfers(Vec::new(), vec![Transfer::Receive { from: 1, memory }]);
        let (one, other) = (Arc::new(1), Arc::new(2));
        let mut group = Group::new(1);
        let broadcast = || Work::Collective(Collective::Broadcast(memory, memory, 0));
        for (communicator, at, work) in [
            (&one, 7, send()),
            (&one, 8, broadcast()),
            (&one, 8, receive()),
            (&other, 8, receive()),
            (&one, 8, send()),
            (&one, 7, receive()),
        ] {
            group.add(Waiting { communicator: Arc::clone(communicator), stream: at, work });
        }
        let calls: Vec<_> = group
            .waiting
            .iter()
            .map(|call| match &call.work {
                Work::Transfers(others, transfers) => (call.stream, others.clone(), transfers.len()),
                Work::Collective(_) | Work::OneSided(_) => (call.stream, Vec::new(), 0),
            })
            .collect();
        let expected = [(8, vec![], 0), (7, vec![8], 4), (8, vec![], 1)];
        assert_eq!(calls, expected);
    }

    #[test]
    fn streams_of_a_call_are_all_named() {
        let work = Work::Transfers(vec![3, 4], Vec::new());
        let mut call = Waiting { communicator: Arc::new(9), stream: 7, work };
        assert_eq!(call.streams().map(|(stream, of)| (*stream, *of)).collect::<Vec<_>>(), [(7, 9), (3, 9), (4, 9)]);
    }

    #[test]
    fn calls_of_different_communicators_keep_their_order() {
        let memory = Memory { at: 0, len: 8 };
        let send = || Work::Transfers(Vec::new(), vec![Transfer::Send { to: 1, memory }]);
        let broadcast = || Work::Collective(Collective::Broadcast(memory, memory, 0));
        let (one, other) = (Arc::new(1), Arc::new(2));
        let mut group = Group::new(1);
        for (communicator, work) in [(&one, send()), (&other, broadcast()), (&other, send()), (&one, broadcast())] {
            group.add(Waiting { communicator: Arc::clone(communicator), stream: 7, work });
        }
        let order = group.waiting.iter().map(|call| (*call.communicator, matches!(call.work, Work::Collective(_))));
        assert_eq!(order.collect::<Vec<_>>(), [(1, true), (1, false), (2, true), (2, false)]);
    }

    #[test]
    fn one_sided_calls_keep_their_order() {
        let memory = Memory { at: 0, len: 8 };
        let signal = Signal { peer: 1, context: 0, index: 0 };
        let one = Arc::new(1);
        let mut group = Group::new(1);
        for work in [
            Work::OneSided(Call::Wait(vec![(signal, 1)])),
            Work::Transfers(Vec::new(), vec![Transfer::Send { to: 1, memory }]),
            Work::OneSided(Call::Signal(signal)),
            Work::Transfers(Vec::new(), vec![Transfer::Receive { from: 1, memory }]),
            Work::Collective(Collective::Broadcast(memory, memory, 0)),
            Work::OneSided(Call::Wait(vec![(signal, 2)])),
        ] {
            group.add(Waiting { communicator: Arc::clone(&one), stream: 7, work });
        }
        let of = |call: &Waiting<i32>| match &call.work {
            Work::OneSided(Call::Wait(waits)) => waits[0].1,
            Work::OneSided(_) => 10,
            Work::Collective(_) => 20,
            Work::Transfers(_, transfers) => 30 + transfers.len() as u64,
        };
        assert_eq!(group.waiting.iter().map(of).collect::<Vec<_>>(), [1, 20, 32, 10, 2]);
    }

    #[test]
    fn ranks_of_a_thread_wait_for_one_another_at_the_end_of_their_group() {
        let made = Arc::new(Mutex::new(Vec::new()));
        let ended = all(|| {
            for (place, rank) in (0..).zip(job(2, 30)) {
                let made = Arc::clone(&made);
                join(Joining::new(None, move || {
                    let of_all = rank.ranks().gather(&[place])?;
                    let id = rank.ranks().agree(&[1, 0], || Ok(uid::create(None)?))?.id;
                    lock(&made).push((of_all, id));
                    Ok(None)
                }))?;
            }
            assert!(lock(&made).is_empty(), "the group has not ended");
            Ok(())
        });
        ended.unwrap();
        let made = lock(&made);
        assert_eq!((made.len(), &made[0].0), (2, &vec![0, 1]));
        assert!(made[0] == made[1]);
    }

    #[test]
    fn communicators_of_a_group_do_not_wait_for_one_another() {
        // Pairs in a ring, and each rank begins with the one before it.
        const RANKS: usize = 3;
        let ids: Vec<_> = (0..RANKS).map(|_| uid::create(None).unwrap()).collect();
        let pairs = |rank: usize| [((rank + RANKS - 1) % RANKS, 1), (rank, 0)].map(|(pair, place)| (ids[pair], place));
        std::thread::scope(|scope| {
            for rank in 0..RANKS {
                let pairs = pairs(rank);
                scope.spawn(move || {
                    let ended = all(|| {
                        for (id, place) in pairs {
                            join(Joining::new(None, move || {
                                uid::open_within(id, place, 2, Duration::from_secs(20))?.barrier()?;
                                Ok(None)
                            }))?;
                        }
                        Ok(())
                    });
                    ended.unwrap();
                });
            }
        });
    }

    #[test]
    fn communicators_of_the_same_ranks_are_made_in_their_order() {
        let made = Arc::new(Mutex::new(Vec::new()));
        let ended = all(|| {
            for (number, of) in (0..).zip([Some(7), Some(8), None, Some(7), None, Some(7)]) {
                let made = Arc::clone(&made);
                join(Joining::new(of, move || {
                    lock(&made).push((number, std::thread::current().id()));
                    Ok(None)
                }))?;
            }
            Ok(())
        });
        ended.unwrap();
        let made = lock(&made);
        let by_same = |number: usize| {
            let by = made.iter().find_map(|(one, by)| (*one == number).then_some(by));
            made.iter().filter(|made| Some(&made.1) == by).map(|(number, _)| *number).collect::<Vec<_>>()
        };
        assert_eq!([0, 1, 2, 4].map(by_same), [vec![0, 3, 5], vec![1], vec![2], vec![4]]);
    }

    #[test]
    fn a_communicator_that_was_not_made_is_ended_once() {
        let failing = || Joining::new(None, || Err(Failure::usage("another rank has failed")));
        let (alone, mut grouped) = (failing(), Vec::new());
        let not_given = alone.handle();
        assert!(join(alone).is_err() && !registry::take_not_made(not_given));
        let ended = all(|| {
            for made in [failing(), Joining::new(None, || Ok(None)), failing()] {
                grouped.push(join(made)?);
            }
            Ok(())
        });
        assert!(ended.is_err());
        assert!(text(registry::find(grouped[0])).contains("its group has failed"));
        assert_eq!([ncclCommAbort(grouped[0]), ncclCommDestroy(grouped[2])], [0; 2]);
        assert!(grouped.iter().all(|&gone| ncclCommDestroy(gone) != 0), "they are none any more");
    }

    #[test]
    fn gpus_take_turns_and_keep_their_order() {
        assert_eq!(in_turns(vec![vec![1, 2, 3], vec![10], vec![20, 21]]), [1, 10, 20, 2, 21, 3]);
        assert_eq!(in_turns(Vec::<Vec<u32>>::new()), Vec::<u32>::new());
    }

    /// Three calls on two communicators; the one at `place` fails. Returns the calls that were tried, and the
    /// communicators that have failed.
    fn begun(place: usize, failure: &Failure) -> (Vec<u32>, Vec<u32>) {
        let (one, other) = (Arc::new(1), Arc::new(2));
        let call = |communicator: &Arc<u32>| {
            let work = Work::Transfers(Vec::new(), Vec::new());
            Waiting { communicator: Arc::clone(communicator), stream: 7, work }
        };
        let (mut tried, failed) = (Vec::new(), RefCell::new(Vec::new()));
        let begin = |communicator: &u32, _, _| {
            tried.push(*communicator);
            if tried.len() == place + 1 { Err(failure.clone()) } else { Ok(()) }
        };
        let ended =
            begin_all(vec![call(&one), call(&other), call(&one)], begin, |one, _| failed.borrow_mut().push(*one));
        assert_eq!(ended.is_err(), place < 3);
        (tried, failed.into_inner())
    }

    #[test]
    fn no_group_is_left_half_begun() {
        let aborted = symrail::rounds::Error::Aborted { pe: 0, what: "a group", by: 1, lost: None };
        let lasting = Failure::from(symrail_collectives::Error::Round(aborted));
        let refused = Failure::argument("refused");
        assert_eq!(begun(3, &refused), (vec![1, 2, 1], vec![]));
        assert_eq!(begun(0, &refused), (vec![1], vec![]), "nothing is under way");
        assert_eq!(begun(0, &lasting), (vec![1], vec![1, 2]));
        assert_eq!(begun(1, &refused), (vec![1, 2], vec![1, 2]));
        assert_eq!(begun(2, &refused), (vec![1, 2, 1], vec![1, 2]));
    }

    #[test]
    fn communicators_fail_whose_calls_are_behind_a_rank_that_could_not_join() {
        let (one, other) = (Arc::new(1), Arc::new(2));
        let call = |communicator: &Arc<u32>| {
            let work = Work::Transfers(Vec::new(), Vec::new());
            Waiting { communicator: Arc::clone(communicator), stream: 7, work }
        };
        let failed = RefCell::new(Vec::new());
        let fail = |one: &u32, _: &Failure| failed.borrow_mut().push(*one);
        let waiting = [call(&one), call(&other), call(&one)];
        assert!(check_joined(Ok(()), &waiting, fail).is_ok() && failed.borrow().is_empty());
        assert!(check_joined(Err::<(), _>(Failure::argument("refused")), &waiting, fail).is_err());
        assert_eq!(*failed.borrow(), [1, 2]);
    }

    /// Calls of two GPUs, with a communicator each, that end with these failures. Returns the communicators that have
    /// failed.
    fn failed_of_two(failures: [Option<&Failure>; 2]) -> Vec<usize> {
        let call = |gpu| {
            let work = Work::Transfers(Vec::new(), Vec::new());
            vec![Waiting { communicator: Arc::new(gpu), stream: 7, work }]
        };
        let failed = Mutex::new(Vec::new());
        let begin = |&gpu: &usize, _, _| failures[gpu].map_or(Ok(()), |failure| Err(failure.clone()));
        let ended = begin_on_all_gpus(vec![call(0), call(1)], begin, |&gpu, _| lock(&failed).push(gpu));
        assert_eq!(ended.is_err(), failures.iter().any(Option::is_some));
        let mut failed = failed.into_inner().unwrap();
        failed.sort_unstable();
        failed.dedup();
        failed
    }

    #[test]
    fn communicators_of_several_gpus_fail_only_if_a_call_has_begun() {
        let (refused, lasting) = (Failure::argument("refused"), Failure::from(symrail::Error::Finalized { pe: 0 }));
        assert!(failed_of_two([None, None]).is_empty());
        assert!(failed_of_two([Some(&refused), Some(&refused)]).is_empty(), "nothing is under way");
        assert_eq!(failed_of_two([Some(&refused), None]), [0, 1]);
        assert_eq!(failed_of_two([None, Some(&refused)]), [0, 1]);
        assert_eq!(failed_of_two([Some(&refused), Some(&lasting)]), [0, 1]);
    }
}
