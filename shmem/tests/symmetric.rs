//! Typed symmetric slices in a job of one PE: bounds, lifetimes of blocks, overlapping copies.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::time::Duration;

use symrail::bootstrap::single::Single;
use symrail::{Cmp, Elements, Error, Runtime, Settings, SignalUpdate};

fn alone() -> Runtime {
    alone_with(8 << 20)
}

fn alone_with(heap_size: usize) -> Runtime {
    let mut settings = Settings::default();
    settings.heap_size = heap_size;
    Runtime::join(settings, Box::new(Single::default())).unwrap()
}

#[test]
fn elements_outside_are_refused_and_named() {
    let rt = alone();
    let data = rt.alloc_slice::<i16>(5).unwrap();
    data.write_slice(0, &[1, 2, 3, 4, 5]).unwrap();
    for (start, len) in [(5, 1), (4, 2), (0, 6), (usize::MAX, 1), (1, 5)] {
        let error = data.put(start, &vec![0; len], 0).unwrap_err();
        assert!(matches!(error, Error::OutOfBounds { start: s, count, len: 5, .. } if (s, count) == (start, len)));
        assert!(error.to_string().contains("among its 5"), "{error}");
        assert!(data.get(start, &mut vec![0; len], 0).is_err());
        assert!(data.read_slice(start, &mut vec![0; len]).is_err());
        assert!(data.write_slice(start, &vec![0; len]).is_err());
    }
    assert!(data.read(5).is_err() && data.write(5, 0).is_err() && data.g(5, 0).is_err());
    assert!(data.wait_until(5, Cmp::Eq, 0).is_err() && data.test(5, Cmp::Eq, 0).is_err());
    // No elements at the very end exist, and may be copied.
    data.put(5, &[], 0).unwrap();
    assert_eq!(data.to_vec().unwrap(), [1, 2, 3, 4, 5]);
}

#[test]
fn copies_within_a_slice_may_overlap() {
    let rt = alone();
    let data = rt.alloc_slice::<u32>(6).unwrap();
    data.write_slice(0, &[1, 2, 3, 4, 5, 6]).unwrap();
    data.put_nbi(1, &data, 0, 5, 0).unwrap();
    assert_eq!(data.to_vec().unwrap(), [1, 1, 2, 3, 4, 5]);
    data.get_nbi(1, &data, 0, 5, 0).unwrap();
    assert_eq!(data.to_vec().unwrap(), [1, 2, 3, 4, 5, 5]);
    data.put_signal_nbi(1, &data, 0, 3, SignalUpdate::set((&rt.alloc_slice(1).unwrap(), 0), 1), 0).unwrap();
    assert_eq!(data.to_vec().unwrap(), [1, 1, 2, 3, 5, 5]);
}

#[test]
fn slices_of_two_runtimes_do_not_mix() {
    let (one, other) = (alone(), alone());
    let (a, b) = (one.alloc_slice::<u8>(1).unwrap(), other.alloc_slice::<u8>(1).unwrap());
    assert!(matches!(a.put_nbi(0, &b, 0, 1, 0), Err(Error::OtherRuntime { .. })));
    assert!(matches!(a.get_nbi(0, &b, 0, 1, 0), Err(Error::OtherRuntime { .. })));
    let signal = other.alloc_slice::<u64>(1).unwrap();
    assert!(matches!(a.put_signal(0, &[1], SignalUpdate::set((&signal, 0), 1), 0), Err(Error::OtherRuntime { .. })));
}

#[test]
fn blocks_come_back_and_are_zero_again() {
    let rt = alone();
    let first = rt.alloc_slice::<f32>(100).unwrap();
    first.fill(2.5).unwrap();
    let address = first.as_ptr();
    first.free().unwrap();
    let again = rt.alloc_slice::<f32>(100).unwrap();
    assert_eq!((again.as_ptr(), again.to_vec().unwrap()), (address, vec![0.0; 100]));
    let none = rt.alloc_slice::<u64>(0).unwrap();
    assert!(none.is_empty() && none.to_vec().unwrap().is_empty() && none.read(0).is_err());
    none.free().unwrap();
    assert!(rt.alloc_slice::<u64>(usize::MAX / 4).is_err());
}

#[test]
fn sets_of_elements_have_bounds_too() {
    let rt = alone();
    let words = rt.alloc_slice::<u64>(4).unwrap();
    words.write_slice(0, &[0, 5, 0, 9]).unwrap();
    assert_eq!(words.test_some(&Elements::all_of(0, 4, Cmp::Gt, 4)).unwrap(), [1, 3]);
    assert_eq!(words.wait_until_some(&Elements::each_of(1, Cmp::Eq, &[5, 7, 9])).unwrap(), [0, 2]);
    assert_eq!(words.wait_until_any(&Elements::each_of(2, Cmp::Eq, &[7, 9])).unwrap(), Some(1));
    assert_eq!(words.test_any(&Elements::all_of(0, 4, Cmp::Lt, 9).without(&[1, 1, 1])).unwrap(), None);
    assert!(words.test_all(&Elements::all_of(2, 3, Cmp::Eq, 0)).is_err());
    assert!(words.test_all(&Elements::all_of(usize::MAX, 1, Cmp::Eq, 0)).is_err());
}

/// Users cannot free blocks of the runtime and of typed slices, whatever address they guess.
#[test]
fn only_owners_free_their_blocks() {
    let rt = alone_with(32 << 20);
    let world = rt.team_world().unwrap();
    let slice = rt.alloc_slice::<u64>(8).unwrap();
    let block = rt.malloc(64).unwrap();
    let base = slice.as_ptr().addr() & !((1 << 21) - 1);
    let mut freed = Vec::new();
    for at in (base..base + (1 << 20)).step_by(64) {
        let guess = block.with_addr(at);
        if rt.free(guess).is_ok() {
            freed.push(guess);
        }
        assert!(rt.realloc(guess, 128).is_err(), "{guess:p}");
    }
    assert_eq!(freed, [block]);
    assert!(rt.free(slice.as_ptr().cast()).unwrap_err().to_string().contains("belongs to"));
    slice.fill(7).unwrap();
    world.sync().unwrap();
    assert_eq!(slice.to_vec().unwrap(), [7; 8]);
    slice.free().unwrap();
}

#[test]
fn a_wait_ends_when_it_is_told_to() {
    let rt = alone();
    let word = rt.alloc_slice::<u64>(1).unwrap();
    let asked = std::sync::Arc::new(std::sync::atomic::AtomicU32::new(0));
    let count = std::sync::Arc::clone(&asked);
    let pause = std::time::Duration::from_millis(1);
    rt.set_interrupt(move || (count.fetch_add(1, std::sync::atomic::Ordering::Relaxed) < 2).then_some(pause));
    rt.set_interrupt(|| panic!("the first one counts"));
    let Err(Error::Interrupted { waiting: 0, waited, .. }) = word.wait_until(0, Cmp::Eq, 1) else {
        panic!("the word was never written");
    };
    // The first call is after a millisecond, and the next ones after each pause.
    assert!(waited >= 3 * pause);
    assert_eq!(asked.load(std::sync::atomic::Ordering::Relaxed), 3);
    // A wait that ends at once does not call the check.
    word.write(0, 1).unwrap();
    word.wait_until(0, Cmp::Eq, 1).unwrap();
}

#[test]
fn a_wait_ends_when_the_callers_time_is_up() {
    let rt = alone();
    let word = rt.alloc_slice::<u64>(1).unwrap();
    let (short, long) = (Duration::from_millis(20), Duration::from_secs(3600));
    let ends = |limit| {
        let Err(Error::Interrupted { waited, .. }) = symrail::with_timeout(limit, || word.wait_until(0, Cmp::Eq, 1))
        else {
            panic!("the word was never written");
        };
        waited
    };
    assert!(ends(short) >= short);
    // The earlier one of two limits counts, and no call after the limited ones has a limit.
    symrail::with_timeout(long, || assert!(ends(short) >= short));
    symrail::with_timeout(short, || assert!(ends(long) < long));
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| word.wait_until(0, Cmp::Eq, 1));
        word.write(0, 1).unwrap();
        assert_eq!(waits.join().unwrap().unwrap(), 1);
    });
}

#[test]
fn a_wait_for_a_pe_names_it() {
    let rt = alone();
    let word = rt.alloc_slice::<u64>(1).unwrap();
    word.write(0, 7).unwrap();
    assert_eq!(word.wait_in_from("a wait", 0, Cmp::Ge, 7, 0).unwrap(), 7);
    let error = word.wait_in_from("a wait", 0, Cmp::Ge, 7, 1).unwrap_err().to_string();
    assert!(error.contains("PE 1"), "{error}");
}

#[test]
fn a_wait_for_a_word_that_is_not_there_is_refused() {
    let rt = alone_with(256 << 20);
    let behind = rt.malloc(64).unwrap().wrapping_add(200 << 20).cast::<u64>();
    // SAFETY: the word is refused before it is read.
    let refused = unsafe { rt.wait_until(behind, Cmp::Eq, 1) }.unwrap_err();
    assert!(matches!(refused, Error::NotAllocated { pe: 0, bytes: 8, .. }), "{refused}");
    let team = rt.team_world().unwrap();
    // SAFETY: as above.
    let refused = unsafe { team.alltoall(behind.cast(), behind.cast(), 8) }.unwrap_err();
    assert!(matches!(refused, Error::NotAllocated { what: "alltoall", .. }), "{refused}");
}
