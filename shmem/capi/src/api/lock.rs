//! Locks: a queue of PEs, each of which waits on its own memory (Mellor-Crummey and Scott).
//!
//! A lock is a symmetric `long`. Its first half is the tail of the queue; only the copy on one PE, the lock's home,
//! counts. Its second half is each PE's entry in the queue: whether the PE is in it, whether it waits, and which PE is
//! next; zero outside of the queue. Only AMOs change the halves, so a release on one PE and an arrival on another are
//! never lost. A lock has one entry for each PE, so threads of one PE exclude each other by `shmem_test_lock` only.

use std::ffi::{c_int, c_long};

use symrail::{AmoOp, AmoType, Cmp, Pe, Runtime};

use crate::fail::{check, fail};
use crate::job::job;

/// This bit of an entry is set while its PE waits.
const WAITS: u32 = 1 << 31;

/// This bit of an entry is set while its PE is in the queue: it waits for the lock or holds it.
const QUEUED: u32 = 1 << 30;

/// The number of the next PE plus one, in an entry.
const NEXT: u32 = QUEUED - 1;

/// A lock as this PE uses it.
struct Lock {
    function: &'static str,
    runtime: &'static Runtime,
    end: *mut u32,
    place: *mut u32,
}

impl Lock {
    fn of(function: &'static str, lock: *mut c_long) -> Lock {
        let runtime = &job(function).runtime;
        super::not_null(function, "lock", lock, 8);
        let end = lock.cast::<u32>();
        Lock { function, runtime, end, place: end.wrapping_add(1) }
    }

    /// The PE whose copy holds the tail. Locks at different addresses, in units of a cache line, have different homes,
    /// so that no single PE serves all locks.
    fn home(&self) -> Pe {
        let line = check(self.function, self.runtime.symmetric_offset(self.end.cast(), 8)) / 64;
        (line % u64::from(self.runtime.n_pes())) as Pe
    }

    fn amo(&self, word: *mut u32, op: AmoOp, value: u32, compare: u32, pe: Pe) -> u32 {
        let (value, compare) = (u64::from(value), u64::from(compare));
        check(self.function, self.runtime.fetch_amo(word.cast(), AmoType::U32, op, value, compare, pe)) as u32
    }

    fn me(&self) -> Pe {
        self.runtime.my_pe()
    }

    fn wait(&self, cmp: Cmp, value: u32) -> u32 {
        // SAFETY: the entry is an aligned word of this PE's symmetric memory: an AMO on it succeeded.
        check(self.function, unsafe { self.runtime.wait_in(self.function, self.place, cmp, value) })
    }

    /// Replaces this PE's entry if it is not in the queue, and returns whether it was not.
    fn enter(&self, entry: u32) -> bool {
        let before = self.amo(self.place, AmoOp::CompareSwap, entry, 0, self.me());
        if before != 0 && before & QUEUED == 0 {
            self.fail_uninitialized(before);
        }
        before == 0
    }

    /// Makes this PE the tail, with `CompareSwap` only of an empty queue, and returns the one before.
    fn replace_tail(&self, op: AmoOp) -> u32 {
        let before = self.amo(self.end, op, self.me() + 1, 0, self.home());
        if before > self.runtime.n_pes() {
            self.fail_uninitialized(before);
        }
        before
    }

    fn fail_uninitialized(&self, found: u32) -> ! {
        fail(self.function, &format_args!("the lock holds {found:#x}, so it was not set to 0 before its first use"))
    }

    fn leave(&self) {
        self.amo(self.place, AmoOp::Set, 0, 0, self.me());
    }

    fn acquire(&self) {
        if !self.enter(QUEUED | WAITS) {
            fail(self.function, &"this PE holds the lock already, or waits for it in another thread");
        }
        let before = self.replace_tail(AmoOp::Set);
        if before != 0 {
            self.amo(self.place, AmoOp::Or, self.me() + 1, 0, before - 1);
            // A PE that waits has its entry's highest bit set.
            self.wait(Cmp::Lt, WAITS);
        }
    }

    fn try_acquire(&self) -> bool {
        if !self.enter(QUEUED) {
            return false;
        }
        let acquired = self.replace_tail(AmoOp::CompareSwap) == 0;
        if !acquired {
            self.leave();
        }
        acquired
    }

    fn release(&self) {
        check(self.function, self.runtime.quiet());
        let ticket = self.me() + 1;
        let mut entry = self.amo(self.place, AmoOp::Fetch, 0, 0, self.me());
        if entry & QUEUED == 0 {
            fail(self.function, &"the lock is not held by this PE");
        }
        if entry & NEXT == 0 && self.amo(self.end, AmoOp::CompareSwap, 0, ticket, self.home()) == ticket {
            return self.leave();
        }
        // Another PE has joined the queue, and has written its number here or is about to.
        while entry & NEXT == 0 {
            entry = self.wait(Cmp::Ne, entry);
        }
        self.leave();
        self.amo(self.place, AmoOp::And, !WAITS, 0, (entry & NEXT) - 1);
    }
}

export! {
    ["shmem_set_lock"] fn(lock: *mut c_long) {
        Lock::of(NAME, lock).acquire();
    }
    ["shmem_clear_lock"] fn(lock: *mut c_long) {
        Lock::of(NAME, lock).release();
    }
    // 0: this PE holds the lock now.
    ["shmem_test_lock"] fn(lock: *mut c_long) -> c_int {
        (!Lock::of(NAME, lock).try_acquire()).into()
    }
}
