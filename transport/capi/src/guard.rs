//! Where errors become codes, and panics end.

use std::cell::RefCell;
use std::ffi::{CString, c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};

use symrail_transport::Error;

const ARGUMENT: c_int = -1;
const FABRIC: c_int = -2;
const PEER: c_int = -3;
const FAILED: c_int = -4;
const TIMED_OUT: c_int = -5;
const INTERNAL: c_int = -6;

/// A code and its sentence.
pub struct Failure {
    code: c_int,
    why: String,
}

impl Failure {
    pub fn argument(why: String) -> Failure {
        Failure { code: ARGUMENT, why }
    }

    pub fn null(what: &str) -> Failure {
        Failure::argument(format!("{what} is a null pointer"))
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        let code = match &error {
            Error::Library { .. } | Error::NoRail { .. } | Error::Fabric { .. } | Error::System { .. } => FABRIC,
            Error::Mismatch { .. } | Error::Malformed { .. } => PEER,
            Error::Operation { .. } | Error::Gone { .. } => FAILED,
            Error::Timeout { .. } | Error::Full { .. } => TIMED_OUT,
            _ => ARGUMENT,
        };
        Failure { code, why: error.to_string() }
    }
}

thread_local! {
    static LAST: RefCell<CString> = RefCell::default();
}

/// The last failure's sentence in this thread.
pub fn last() -> *const c_char {
    LAST.with(|last| last.try_borrow().map_or(c"".as_ptr(), |text| text.as_ptr()))
}

/// Does what a function has to do, and gives its code.
pub fn guarded(body: impl FnOnce() -> Result<(), Failure>) -> c_int {
    // What a panic leaves behind is behind mutexes that go on after it.
    let Failure { code, why } = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => return 0,
        Ok(Err(failure)) => failure,
        Err(_) => Failure { code: INTERNAL, why: "a defect of the library; standard error has its message".into() },
    };
    // No message of ours has zero bytes; one that did would be left out.
    LAST.with(|last| last.replace(CString::new(why).unwrap_or_default()));
    code
}
