//! The border of C interfaces: errors become codes, and panics end.

use std::cell::RefCell;
use std::ffi::{CString, c_char, c_int};
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

/// Does what a function has to do. Returns 0, or the code of its failure, whose sentence [`last`] has then; `defect` is
/// the code of a panic.
pub fn guarded<F: Into<(c_int, String)>>(defect: c_int, body: impl FnOnce() -> Result<(), F>) -> c_int {
    // What a panic leaves behind is behind mutexes that go on after it, or is not used again.
    let (code, why) = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => return 0,
        Ok(Err(failure)) => failure.into(),
        Err(_) => (defect, "a defect of the library; standard error has its message".into()),
    };
    // No message of ours has zero bytes; one that did would be left out.
    // A thread that ends may have none any more.
    let _ = LAST.try_with(|last| last.replace(CString::new(why).unwrap_or_default()));
    code
}
