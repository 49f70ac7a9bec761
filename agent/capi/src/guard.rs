//! Conversion of errors to codes, and containment of panics.

use std::ffi::c_int;

use symrail_agent::Error;
use symrail_core::ErrorKind;

const ARGUMENT: c_int = -1;
const FABRIC: c_int = -2;
const UNKNOWN: c_int = -3;
const METADATA: c_int = -4;
const BUSY: c_int = -5;
const LOST: c_int = -6;
const FAILED: c_int = -7;
const INTERNAL: c_int = -8;

/// An error code and its sentence.
pub struct Failure {
    code: c_int,
    why: String,
}

impl Failure {
    pub fn argument(why: impl Into<String>) -> Failure {
        Failure { code: ARGUMENT, why: why.into() }
    }

    pub fn null(what: &str) -> Failure {
        Failure::argument(format!("{what} is a null pointer"))
    }
}

fn of_transport(error: &symrail_transport::Error) -> c_int {
    use ErrorKind as Kind;
    match Kind::from(error) {
        Kind::Library | Kind::NoRail | Kind::Fabric | Kind::System => FABRIC,
        Kind::PeerLost | Kind::Timeout => LOST,
        Kind::Operation | Kind::Mismatch | Kind::Malformed | Kind::Full => FAILED,
        Kind::Setting | Kind::NoSuchPe | Kind::OutOfSegment => ARGUMENT,
        Kind::LocalBuffer | Kind::Misaligned | Kind::Unsupported => ARGUMENT,
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        let code = match &error {
            Error::Argument { .. } => ARGUMENT,
            Error::Unknown { .. } | Error::NotRegistered { .. } => UNKNOWN,
            Error::Metadata { .. } => METADATA,
            Error::Busy { .. } => BUSY,
            Error::Lost { .. } => LOST,
            Error::Failed { error, .. } | Error::Transport(error) => of_transport(error),
            _ => INTERNAL,
        };
        Failure { code, why: error.to_string() }
    }
}

impl From<Failure> for (c_int, String) {
    fn from(Failure { code, why }: Failure) -> (c_int, String) {
        (code, why)
    }
}

/// Runs the body of a function of the interface, and returns its code.
pub fn guarded(body: impl FnOnce() -> Result<(), Failure>) -> c_int {
    symrail_core::guard::guarded(INTERNAL, body)
}
