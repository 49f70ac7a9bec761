//! Conversion of errors to codes, and containment of panics.

use std::ffi::c_int;

use symrail_core::ErrorKind;
use symrail_transport::Error;

const ARGUMENT: c_int = -1;
const FABRIC: c_int = -2;
const PEER: c_int = -3;
const FAILED: c_int = -4;
const TIMED_OUT: c_int = -5;
const INTERNAL: c_int = -6;

/// An error code and its sentence.
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
        use ErrorKind as Kind;
        let code = match Kind::from(&error) {
            Kind::Library | Kind::NoRail | Kind::Fabric | Kind::System => FABRIC,
            Kind::Mismatch | Kind::Malformed => PEER,
            Kind::Operation | Kind::PeerLost => FAILED,
            Kind::Timeout | Kind::Full => TIMED_OUT,
            Kind::Setting | Kind::NoSuchPe | Kind::OutOfSegment => ARGUMENT,
            Kind::LocalBuffer | Kind::Misaligned | Kind::Unsupported => ARGUMENT,
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
