//! Waits for words of this PE's memory, and tests of them.

use std::ffi::{c_int, c_long, c_longlong, c_short, c_uint, c_ulong, c_ulonglong, c_ushort};

use symrail::{Cmp, WaitWord, WordSet};

use super::{Word, comparison, must_hold, must_hold_words};
use crate::fail::check;
use crate::job::job;

/// The value to compare all words with, or one value for each word.
#[derive(Clone, Copy)]
enum Values<T> {
    One(T),
    Each(*const T),
}

/// The words of a call; `None` if there are none.
///
/// # Safety
/// The arrays are as long as C says and stay where they are while the result is used. Peers may write to them.
#[allow(clippy::needless_pass_by_value)] // made for the call
unsafe fn words<'a, T: WaitWord + 'a>(
    function: &str,
    words: *mut T,
    count: usize,
    status: *const c_int,
    cmp: c_int,
    values: Values<T>,
) -> Option<WordSet<'a, T>> {
    let cmp = comparison(function, cmp);
    if count == 0 {
        return None;
    }
    must_hold_words(function, "ivars", words, count);
    if let Values::Each(values) = values {
        must_hold_words(function, "cmp_values", values, count);
    }
    if !status.is_null() {
        must_hold_words(function, "status", status, count);
    }
    // SAFETY: the caller's promise.
    unsafe {
        let set = match values {
            Values::One(value) => WordSet::all_of(words, count, cmp, value),
            Values::Each(values) => WordSet::each_of_shared(words, count, cmp, values),
        };
        Some(if status.is_null() { set } else { set.without_shared(status) })
    }
}

fn wait_all<T: WaitWord>(function: &str, set: Option<WordSet<'_, T>>) {
    let runtime = &job(function).runtime;
    if let Some(set) = set {
        check(function, runtime.wait_until_all(&set));
    }
}

/// Returns SIZE_MAX if there is no word to wait for.
fn wait_any<T: WaitWord>(function: &str, set: Option<WordSet<'_, T>>) -> usize {
    let runtime = &job(function).runtime;
    let Some(set) = set else { return usize::MAX };
    check(function, runtime.wait_until_any(&set)).unwrap_or(usize::MAX)
}

unsafe fn wait_some<T: WaitWord>(
    function: &str,
    set: Option<WordSet<'_, T>>,
    indices: *mut usize,
    room: usize,
) -> usize {
    must_hold(function, "indices", indices, room);
    let runtime = &job(function).runtime;
    let Some(set) = set else { return 0 };
    // SAFETY: what C promises: room for as many indices as there are words.
    check(function, unsafe { runtime.wait_until_some_at(&set, indices, room) })
}

fn test<T: WaitWord>(function: &str, word: Word<T>, cmp: c_int, value: T) -> c_int {
    let word = word.held(function, "ivar");
    let cmp = comparison(function, cmp);
    // SAFETY: what C promises.
    unsafe { job(function).runtime.test(word, cmp, value) }.into()
}

fn test_all<T: WaitWord>(function: &str, set: Option<WordSet<'_, T>>) -> c_int {
    let runtime = &job(function).runtime;
    set.is_none_or(|set| runtime.test_all(&set)).into()
}

fn test_any<T: WaitWord>(function: &str, set: Option<WordSet<'_, T>>) -> usize {
    let runtime = &job(function).runtime;
    set.and_then(|set| runtime.test_any(&set)).unwrap_or(usize::MAX)
}

unsafe fn test_some<T: WaitWord>(
    function: &str,
    set: Option<WordSet<'_, T>>,
    indices: *mut usize,
    room: usize,
) -> usize {
    must_hold(function, "indices", indices, room);
    let runtime = &job(function).runtime;
    // SAFETY: as for `wait_some`.
    set.map_or(0, |set| unsafe { runtime.test_some_at(&set, indices, room) })
}

macro_rules! waits {
    ($($name:literal, $c:literal, $t:ty;)*) => {$(
        export! {
            ["shmem_" $name "_wait_until"] fn(word: Word<$t>, cmp: c_int, value: $t) {
                let cmp = comparison(NAME, cmp);
                word.wait(NAME, "ivar", cmp, value);
            }
            ["shmem_" $name "_test"] fn(word: Word<$t>, cmp: c_int, value: $t) -> c_int {
                test(NAME, word, cmp, value)
            }
        }
        vectors! { $name, $t, "", value: $t, Values::One(value) }
        vectors! { $name, $t, "_vector", values: *const $t, Values::Each(values) }
    )*};
}

macro_rules! vectors {
    ($name:literal, $t:ty, $suffix:literal, $value:ident: $value_type:ty, $values:expr) => {
        each_vector! {
            $name, $t, $suffix, $value: $value_type, $values;
            "_wait_until_all": wait_all();
            "_wait_until_any": wait_any() -> usize;
            "_wait_until_some": wait_some(indices) -> usize;
            "_test_all": test_all() -> c_int;
            "_test_any": test_any() -> usize;
            "_test_some": test_some(indices) -> usize;
        }
    };
}

macro_rules! each_vector {
    (
        $name:literal, $t:ty, $suffix:literal, $value:ident: $value_type:ty, $values:expr;
        $($call:literal: $function:ident($($indices:ident)?) $(-> $ret:ty)?;)*
    ) => {
        export! {$(
            ["shmem_" $name $call $suffix]
            fn(
                ivars: *mut $t, count: usize, $($indices: *mut usize,)?
                status: *const c_int, cmp: c_int, $value: $value_type,
            ) $(-> $ret)? {
                // SAFETY: what C promises.
                unsafe { $function(NAME, words(NAME, ivars, count, status, cmp, $values) $(, $indices, count)?) }
            }
        )*}
    };
}
wait_types! { waits }

// Before 1.4: waits until the word differs from the value.
macro_rules! old_waits {
    ($($name:literal, $c:literal, $t:ty;)*) => {$(
        export! {
            ["shmem_" $name "_wait"] fn(word: Word<$t>, value: $t) {
                word.wait(NAME, "ivar", Cmp::Ne, value);
            }
        }
    )*};
}
old_wait_types! { old_waits }

export! {
    ["shmem_wait"] fn(word: Word<c_long>, value: c_long) {
        word.wait(NAME, "ivar", Cmp::Ne, value);
    }
    ["shmem_wait_until"] fn(word: Word<c_long>, cmp: c_int, value: c_long) {
        let cmp = comparison(NAME, cmp);
        word.wait(NAME, "ivar", cmp, value);
    }
}
