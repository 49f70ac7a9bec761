//! The boundary of C interfaces: converts errors to codes, and contains panics.

use std::cell::RefCell;
use std::ffi::{CString, c_char, c_int};
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};

thread_local! {
    static LAST: RefCell<CString> = RefCell::default();
}

/// The sentence of the last failure in this thread.
#[must_use]
pub fn last() -> *const c_char {
    let text = LAST.try_with(|last| last.try_borrow().map_or(c"".as_ptr(), |text| text.as_ptr()));
    text.unwrap_or(c"".as_ptr())
}

/// Writes a line to standard error, for interfaces that have no other place for the reason of a failure.
pub fn write_line(line: &str) {
    // In one piece, since lines of other processes may come between. `eprintln!` would panic if standard error has no
    // reader any more.
    let _ = std::io::stderr().write_all(format!("{line}\n").as_bytes());
}

/// Runs the body of a function of the interface. Returns 0, or the code of its failure, whose sentence [`last`]
/// returns; `defect` is the code of a panic.
pub fn guarded<F: Into<(c_int, String)>>(defect: c_int, body: impl FnOnce() -> Result<(), F>) -> c_int {
    // State that a panic leaves behind is guarded by mutexes that stay usable, or is not used again.
    let (code, why) = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => return 0,
        Ok(Err(failure)) => failure.into(),
        Err(_) => (defect, "a defect of the library; standard error has its message".into()),
    };
    // No message of ours has zero bytes; one that had would be left out. A thread that ends may have no message any
    // more.
    let _ = LAST.try_with(|last| last.replace(CString::new(why).unwrap_or_default()));
    code
}
