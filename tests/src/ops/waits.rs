//! Waiting for words that a peer changes, and testing them.

use symrail::{Cmp, Elements, Result, Runtime, WaitWord};

use super::Plan;
use crate::pattern::Value;
use crate::pe::{before, doing, neighbour};

/// All comparisons on all types; sets of words.
///
/// # Errors
/// Those of the operations.
pub fn all(rt: &Runtime, plan: &Plan) -> Result<()> {
    single::<i32>(rt)?;
    sets::<u64>(rt)?;
    if plan.thorough {
        single::<i8>(rt)?;
        single::<u8>(rt)?;
        single::<i16>(rt)?;
        single::<u16>(rt)?;
        single::<u32>(rt)?;
        single::<i64>(rt)?;
        single::<u64>(rt)?;
        single::<isize>(rt)?;
        single::<usize>(rt)?;
        sets::<i32>(rt)?;
        sets::<u16>(rt)?;
    }
    Ok(())
}

fn single<T: Value + WaitWord>(rt: &Runtime) -> Result<()> {
    let (me, peer) = (rt.my_pe(), neighbour(rt, 1));
    doing(format!("waiting for {}", std::any::type_name::<T>()));
    let words = rt.alloc_slice::<T>(1)?;
    // From `before` to `after`; only the latter compares to `value` as asked.
    let cases = [
        (Cmp::Eq, 10, 20, 20),
        (Cmp::Ne, 20, 21, 20),
        (Cmp::Gt, 30, 31, 30),
        (Cmp::Ge, 29, 30, 30),
        (Cmp::Lt, 30, 29, 30),
        (Cmp::Le, 31, 30, 30),
    ];
    for (cmp, before, after, value) in cases {
        let (before, after, value) = (T::of(before), T::of(after), T::of(value));
        for test in [false, true] {
            words.write(0, before)?;
            assert!(!words.test(0, cmp, value)?, "PE {me}: {before:?} {cmp:?} {value:?}");
            rt.barrier_all()?;
            words.p(0, after, peer)?;
            if test {
                while !words.test(0, cmp, value)? {}
            } else {
                assert_eq!(words.wait_until(0, cmp, value)?, after, "PE {me}: {cmp:?}");
            }
            assert_eq!(words.read(0)?, after);
            rt.barrier_all()?;
        }
    }
    words.free()
}

/// The peer sets the words 1, 3 and 4 of six, each after a request of this PE.
fn sets<T: Value + WaitWord>(rt: &Runtime) -> Result<()> {
    let (me, peer, source) = (rt.my_pe(), neighbour(rt, 1), before(rt, 1));
    doing(format!("sets of {}", std::any::type_name::<T>()));
    let (words, go) = (rt.alloc_slice::<T>(6)?, rt.alloc_slice::<u64>(1)?);
    let one = T::of(1);
    // Word 0 is set beforehand, and left out everywhere.
    let status = [1, 0, 0, 0, 0, 0];
    let ge_one = Elements::all_of(0, 6, Cmp::Ge, one).without(&status);
    words.write(0, one)?;
    rt.barrier_all()?;
    // Requests the next step from the previous PE, which changes this PE's words, and performs the step requested here.
    let exchange = |step: u64, set: usize| -> Result<()> {
        go.p(0, step, source)?;
        go.wait_until(0, Cmp::Eq, step)?;
        words.p(set, T::of(step), peer)
    };

    assert_eq!((words.test_any(&ge_one)?, words.test_some(&ge_one)?), (None, vec![]));
    rt.barrier_all()?;
    exchange(1, 3)?;
    assert_eq!(words.wait_until_any(&ge_one)?, Some(3), "PE {me}");
    assert_eq!((words.test_any(&ge_one)?, words.test_all(&ge_one)?), (Some(3), false));
    exchange(2, 1)?;
    words.wait_until(1, Cmp::Eq, T::of(2))?;
    assert_eq!(words.wait_until_some(&ge_one)?, [1, 3], "PE {me}");
    assert_eq!(words.test_some(&ge_one)?, [1, 3]);
    exchange(3, 4)?;
    let three = Elements::all_of(1, 4, Cmp::Gt, T::of(0)).without(&[0, 1]);
    words.wait_until_all(&three)?;
    assert!(words.test_all(&three)?);

    // Each with its own value: word 1 is 2, word 3 is 1, word 4 is 3.
    let values = [1, 2, 9, 1, 3].map(T::of);
    let each = Elements::each_of(0, Cmp::Eq, &values).without(&[1, 0, 1]);
    words.wait_until_all(&each)?;
    assert_eq!(words.wait_until_some(&each)?, [1, 3, 4]);
    // Several hold: each is found in turn.
    let mut found = Vec::new();
    for _ in 0..2 * values.len() {
        found.extend(words.wait_until_any(&each)?);
    }
    found.sort_unstable();
    found.dedup();
    assert_eq!(found, [1, 3, 4]);
    let not_yet = Elements::each_of(1, Cmp::Ne, &values[1..2]);
    assert_eq!((words.test_all(&not_yet)?, words.test_any(&not_yet)?), (false, None));

    // Nothing to wait for.
    let none = Elements::all_of(0, 6, Cmp::Eq, T::of(77)).without(&[1; 6]);
    words.wait_until_all(&none)?;
    assert_eq!((words.wait_until_any(&none)?, words.wait_until_some(&none)?), (None, vec![]));
    assert!(words.wait_until_any(&Elements::all_of(3, 4, Cmp::Eq, one)).is_err(), "there is no element 6");
    rt.barrier_all()?;
    go.free()?;
    words.free()
}
