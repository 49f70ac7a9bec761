//! Exceptions. Their classes are Python's, in `symrail/errors.py`; this file maps each error to its exception and
//! attributes.

use pyo3::IntoPyObjectExt;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyType};
use symrail::bootstrap::Error as Bootstrap;
use symrail::kernels::cuda::{CudaError, Error as OfKernels};
use symrail::rounds::Error as Round;
use symrail::{Error, Pe};
use symrail_core::{Error as Transport, ErrorKind};
use symrail_heap::HeapError;

use crate::interrupt;

/// A class of exceptions.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Other,
    Setting,
    Library,
    Fabric,
    Operation,
    Timeout,
    PeerLost,
    NoSuchPe,
    Argument,
    HeapExhausted,
    Freed,
    Forked,
    Differ,
    Requirement,
    Bootstrap,
    State,
    Unsupported,
}

impl Kind {
    fn class(self) -> &'static str {
        match self {
            Kind::Other => "SymrailError",
            Kind::Setting => "SettingError",
            Kind::Library => "LibraryError",
            Kind::Fabric => "FabricError",
            Kind::Operation => "OperationError",
            Kind::Timeout => "TimeoutError",
            Kind::PeerLost => "PeerLostError",
            Kind::NoSuchPe => "NoSuchPeError",
            Kind::Argument => "ArgumentError",
            Kind::HeapExhausted => "HeapExhaustedError",
            Kind::Freed => "FreedError",
            Kind::Forked => "ForkedError",
            Kind::Differ => "DifferError",
            Kind::Requirement => "RequirementError",
            Kind::Bootstrap => "BootstrapError",
            Kind::State => "StateError",
            Kind::Unsupported => "UnsupportedError",
        }
    }
}

/// The attributes of an exception besides its text.
#[derive(Default)]
struct Details {
    pe: Option<Pe>,
    pes: Vec<Pe>,
    rail: Option<String>,
    operation: Option<String>,
    bytes: Option<u64>,
}

/// An exception of this class.
pub fn raise(kind: Kind, message: &str) -> PyErr {
    exception(kind, message, Details::default())
}

/// An exception of this class that names a PE.
pub fn raise_of(kind: Kind, message: &str, pe: Pe) -> PyErr {
    exception(kind, message, Details { pe: Some(pe), ..Details::default() })
}

/// An exception of this class that names several PEs.
pub fn raise_of_all(kind: Kind, message: &str, pes: Vec<Pe>) -> PyErr {
    exception(kind, message, Details { pe: pes.first().copied(), pes, ..Details::default() })
}

/// Data for Python.
pub fn json(data: &impl serde::Serialize) -> PyResult<String> {
    serde_json::to_string(data).map_err(|error| raise(Kind::Other, &error.to_string()))
}

/// Whether an operation was refused for its arguments, before it began.
pub fn is_of_arguments(error: &PyErr, py: Python<'_>) -> bool {
    let class = py.import("symrail.errors").and_then(|errors| errors.getattr(Kind::Argument.class()));
    class.is_ok_and(|class| error.is_instance(py, &class))
}

fn exception(kind: Kind, message: &str, details: Details) -> PyErr {
    let made = Python::attach(|py| {
        let class = py.import("symrail.errors")?.getattr(kind.class())?;
        let attributes = PyDict::new(py);
        attributes.set_item("pe", details.pe)?;
        attributes.set_item("pes", details.pes.into_py_any(py)?)?;
        attributes.set_item("rail", details.rail)?;
        attributes.set_item("operation", details.operation)?;
        attributes.set_item("bytes", details.bytes)?;
        Ok(PyErr::from_type(class.cast_into::<PyType>()?, (message.to_owned(), attributes.unbind())))
    });
    made.unwrap_or_else(|error: PyErr| error)
}

/// The exception for an error of the runtime.
pub fn failed(error: impl Into<Error>) -> PyErr {
    let error = error.into();
    if let Error::Interrupted { .. } | Error::Bootstrap(Bootstrap::Interrupted { .. }) = &error
        && let Some(exception) = interrupt::take()
    {
        return exception;
    }
    let (kind, details) = sort(&error);
    exception(kind, &error.to_string(), details)
}

/// The exception for an error of a round.
pub fn failed_round(error: Round) -> PyErr {
    let text = error.to_string();
    match error {
        Round::TimedOut { late, .. } => raise_of_all(Kind::Timeout, &text, late),
        Round::Aborted { lost: Some(lost), .. } => raise_of(Kind::PeerLost, &text, lost),
        Round::Aborted { by, .. } => raise_of(Kind::Operation, &text, by),
        _ => raise(Kind::State, &text),
    }
}

/// The exception for an error of the GPU, of kernels, or of the proxy on their behalf.
pub fn failed_on_gpu(error: impl Into<OfKernels>) -> PyErr {
    let error = error.into();
    let (kind, details) = match &error {
        OfKernels::Kernel { pe, what, .. } => {
            let pe = Pe::try_from(*pe).ok();
            (Kind::Operation, Details { pe, operation: Some((*what).into()), ..Details::default() })
        }
        OfKernels::Late { pe, what, .. } => {
            let pe = Pe::try_from(*pe).ok();
            (
                Kind::Timeout,
                Details { pe, pes: pe.into_iter().collect(), operation: Some((*what).into()), ..Details::default() },
            )
        }
        OfKernels::Requests { .. } => (Kind::Operation, Details::default()),
        OfKernels::Cuda(CudaError::NoNvrtc { .. } | CudaError::NoDriver) => (Kind::Library, Details::default()),
        _ => (Kind::Other, Details::default()),
    };
    exception(kind, &error.to_string(), details)
}

fn sort(error: &Error) -> (Kind, Details) {
    let plain = Details::default;
    match error {
        Error::Transport(error) => of_transport(error),
        Error::Heap(error) => of_heap(error),
        Error::Bootstrap(error) => of_bootstrap(error),
        Error::NotSymmetric { operation, pe, bytes, .. } => (
            Kind::Argument,
            Details { pe: Some(*pe), operation: Some(operation.to_string()), bytes: Some(*bytes as u64), ..plain() },
        ),
        Error::DeviceHeap { pe } => (Kind::Unsupported, Details { pe: Some(*pe), ..plain() }),
        Error::GrowthRefused { pe, .. } | Error::TeamHeapFull { pe, .. } => {
            (Kind::HeapExhausted, Details { pe: Some(*pe), ..plain() })
        }
        Error::PeerLost { pe, what, .. } => {
            (Kind::PeerLost, Details { pe: Some(*pe), pes: vec![*pe], operation: Some((*what).into()), ..plain() })
        }
        Error::Interrupted { what, missing, .. } => {
            let pe = missing.first().copied();
            (Kind::Timeout, Details { pe, pes: missing.clone(), operation: Some((*what).into()), ..plain() })
        }
        Error::Forked { pe, .. } => (Kind::Forked, Details { pe: Some(*pe), ..plain() }),
        Error::Finalized { pe } | Error::InUse { pe, .. } => (Kind::State, Details { pe: Some(*pe), ..plain() }),
        Error::CallsDiffer { other, .. } | Error::ParametersDiffer { other, .. } => {
            (Kind::Differ, Details { pe: Some(*other), ..plain() })
        }
        Error::OutOfBounds { pe, .. } | Error::OtherRuntime { pe, .. } | Error::OtherTeam { pe, .. } => {
            (Kind::Argument, Details { pe: Some(*pe), ..plain() })
        }
        _ => (Kind::Other, plain()),
    }
}

fn of_transport(error: &Transport) -> (Kind, Details) {
    let kind = match ErrorKind::from(error) {
        ErrorKind::Setting => Kind::Setting,
        ErrorKind::Library => Kind::Library,
        ErrorKind::NoRail | ErrorKind::Fabric => Kind::Fabric,
        ErrorKind::Operation | ErrorKind::Full => Kind::Operation,
        ErrorKind::Timeout => Kind::Timeout,
        ErrorKind::PeerLost => Kind::PeerLost,
        ErrorKind::NoSuchPe => Kind::NoSuchPe,
        ErrorKind::OutOfSegment | ErrorKind::LocalBuffer | ErrorKind::Misaligned => Kind::Argument,
        ErrorKind::Mismatch => Kind::Differ,
        ErrorKind::Unsupported => Kind::Unsupported,
        ErrorKind::Malformed | ErrorKind::System => Kind::Other,
    };
    let subject = error.subject();
    let lost = matches!(kind, Kind::Timeout | Kind::PeerLost);
    let details = Details {
        pe: subject.pe,
        pes: subject.pe.filter(|_| lost).into_iter().collect(),
        rail: subject.rail.map(Into::into),
        operation: subject.operation.map(|operation| operation.to_string()),
        bytes: subject.bytes,
    };
    (kind, details)
}

fn of_heap(error: &HeapError) -> (Kind, Details) {
    match error {
        HeapError::Exhausted { pe, requested, .. } => {
            (Kind::HeapExhausted, Details { pe: Some(*pe), bytes: Some(*requested), ..Details::default() })
        }
        _ => (Kind::Other, Details::default()),
    }
}

fn of_bootstrap(error: &Bootstrap) -> (Kind, Details) {
    let of = |pe: &Pe| Details { pe: Some(*pe), ..Details::default() };
    match error {
        Bootstrap::Variable { .. } | Bootstrap::Missing { .. } | Bootstrap::Origin { .. } => {
            (Kind::Setting, Details::default())
        }
        Bootstrap::Library { .. } => (Kind::Library, Details::default()),
        Bootstrap::Peer { peer, .. } | Bootstrap::Aborted { peer, .. } => (Kind::PeerLost, of(peer)),
        Bootstrap::Timeout { .. } | Bootstrap::Interrupted { .. } => (Kind::Timeout, Details::default()),
        Bootstrap::Mismatch { pe, .. } => (Kind::Differ, of(pe)),
        _ => (Kind::Bootstrap, Details::default()),
    }
}
