//! Waits for words of this PE's memory, and tests of them.

use std::ffi::{c_int, c_long, c_longlong, c_short, c_uint, c_ulong, c_ulonglong, c_ushort};

use symrail::{Cmp, WaitWord, WordSet};

use super::{comparison, must_hold, must_hold_words};
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
    let set = match values {
        Values::One(value) => WordSet::all_of(words, count, cmp, value),
        Values::Each(values) => {
            must_hold_words(function, "cmp_values", values, count);
            // SAFETY: the caller's promise.
            unsafe { WordSet::each_of_shared(words, count, cmp, values) }
        }
    };
    if status.is_null() {
        return Some(set);
    }
    must_hold_words(function, "status", status, count);
    // SAFETY: the caller's promise.
    Some(unsafe { set.without_shared(status) })
}

unsafe fn wait<T: WaitWord>(function: &str, word: *mut T, cmp: Cmp, value: T) {
    must_hold_words(function, "ivar", word, 1);
    // SAFETY: what C promises: an aligned word of this PE's memory.
    check(function, unsafe { job(function).runtime.wait_until(word, cmp, value) });
}

unsafe fn wait_all<T: WaitWord>(function: &str, set: Option<WordSet<'_, T>>) {
    let runtime = &job(function).runtime;
    if let Some(set) = set {
        // SAFETY: what C promises: aligned words of this PE's memory.
        check(function, unsafe { runtime.wait_until_all(&set) });
    }
}

/// Returns SIZE_MAX if there is no word to wait for.
unsafe fn wait_any<T: WaitWord>(function: &str, set: Option<WordSet<'_, T>>) -> usize {
    let runtime = &job(function).runtime;
    let Some(set) = set else { return usize::MAX };
    // SAFETY: as for `wait_all`.
    check(function, unsafe { runtime.wait_until_any(&set) }).unwrap_or(usize::MAX)
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
    // SAFETY: as for `wait_all`.
    check(function, unsafe { runtime.wait_until_some_at(&set, indices, room) })
}

unsafe fn test<T: WaitWord>(function: &str, word: *mut T, cmp: c_int, value: T) -> c_int {
    must_hold_words(function, "ivar", word, 1);
    let cmp = comparison(function, cmp);
    // SAFETY: as for `wait`.
    unsafe { job(function).runtime.test(word, cmp, value) }.into()
}

unsafe fn test_all<T: WaitWord>(function: &str, set: Option<WordSet<'_, T>>) -> c_int {
    let runtime = &job(function).runtime;
    // SAFETY: as for `wait_all`.
    set.is_none_or(|set| unsafe { runtime.test_all(&set) }).into()
}

unsafe fn test_any<T: WaitWord>(function: &str, set: Option<WordSet<'_, T>>) -> usize {
    let runtime = &job(function).runtime;
    // SAFETY: as for `wait_all`.
    set.and_then(|set| unsafe { runtime.test_any(&set) }).unwrap_or(usize::MAX)
}

unsafe fn test_some<T: WaitWord>(
    function: &str,
    set: Option<WordSet<'_, T>>,
    indices: *mut usize,
    room: usize,
) -> usize {
    must_hold(function, "indices", indices, room);
    let runtime = &job(function).runtime;
    // SAFETY: as for `wait_all`.
    set.map_or(0, |set| unsafe { runtime.test_some_at(&set, indices, room) })
}

macro_rules! waits {
    ($($name:literal, $c:literal, $t:ty;)*) => {$(
        export! {
            ["shmem_" $name "_wait_until"] fn(word: *mut $t, cmp: c_int, value: $t) {
                let cmp = comparison(NAME, cmp);
                // SAFETY: what C promises.
                unsafe { wait(NAME, word, cmp, value) }
            }
            ["shmem_" $name "_test"] fn(word: *mut $t, cmp: c_int, value: $t) -> c_int {
                // SAFETY: what C promises.
                unsafe { test(NAME, word, cmp, value) }
            }
        }
        vectors! { $name, $t, "", value: $t, Values::One(value) }
        vectors! { $name, $t, "_vector", values: *const $t, Values::Each(values) }
    )*};
}

macro_rules! vectors {
    ($name:literal, $t:ty, $suffix:literal, $value:ident: $value_type:ty, $values:expr) => {
        export! {
            ["shmem_" $name "_wait_until_all" $suffix]
            fn(ivars: *mut $t, count: usize, status: *const c_int, cmp: c_int, $value: $value_type) {
                // SAFETY: what C promises.
                unsafe { wait_all(NAME, words(NAME, ivars, count, status, cmp, $values)) }
            }
            ["shmem_" $name "_wait_until_any" $suffix]
            fn(ivars: *mut $t, count: usize, status: *const c_int, cmp: c_int, $value: $value_type) -> usize {
                // SAFETY: what C promises.
                unsafe { wait_any(NAME, words(NAME, ivars, count, status, cmp, $values)) }
            }
            ["shmem_" $name "_wait_until_some" $suffix]
            fn(ivars: *mut $t, count: usize, indices: *mut usize, status: *const c_int, cmp: c_int, $value: $value_type) -> usize {
                // SAFETY: what C promises.
                unsafe { wait_some(NAME, words(NAME, ivars, count, status, cmp, $values), indices, count) }
            }
            ["shmem_" $name "_test_all" $suffix]
            fn(ivars: *mut $t, count: usize, status: *const c_int, cmp: c_int, $value: $value_type) -> c_int {
                // SAFETY: what C promises.
                unsafe { test_all(NAME, words(NAME, ivars, count, status, cmp, $values)) }
            }
            ["shmem_" $name "_test_any" $suffix]
            fn(ivars: *mut $t, count: usize, status: *const c_int, cmp: c_int, $value: $value_type) -> usize {
                // SAFETY: what C promises.
                unsafe { test_any(NAME, words(NAME, ivars, count, status, cmp, $values)) }
            }
            ["shmem_" $name "_test_some" $suffix]
            fn(ivars: *mut $t, count: usize, indices: *mut usize, status: *const c_int, cmp: c_int, $value: $value_type) -> usize {
                // SAFETY: what C promises.
                unsafe { test_some(NAME, words(NAME, ivars, count, status, cmp, $values), indices, count) }
            }
        }
    };
}
wait_types! { waits }

// Before 1.4: waits until the word differs from the value.
macro_rules! old_waits {
    ($($name:literal, $c:literal, $t:ty;)*) => {$(
        export! {
            ["shmem_" $name "_wait"] fn(word: *mut $t, value: $t) {
                // SAFETY: what C promises.
                unsafe { wait(NAME, word, Cmp::Ne, value) }
            }
        }
    )*};
}
old_wait_types! { old_waits }

export! {
    ["shmem_wait"] fn(word: *mut c_long, value: c_long) {
        // SAFETY: what C promises.
        unsafe { wait(NAME, word, Cmp::Ne, value) }
    }
    ["shmem_wait_until"] fn(word: *mut c_long, cmp: c_int, value: c_long) {
        let cmp = comparison(NAME, cmp);
        // SAFETY: what C promises.
        unsafe { wait(NAME, word, cmp, value) }
    }
}
