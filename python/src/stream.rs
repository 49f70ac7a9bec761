//! The stream that an argument names.

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyInt};

use crate::errors::{Kind, raise};

/// The driver's handle of a stream: a number (0 and 1 are the default stream, 2 is this thread's), a stream of
/// PyTorch's or CuPy's, or an object with `__cuda_stream__`.
pub fn handle(stream: &Bound<'_, PyAny>) -> PyResult<usize> {
    let py = stream.py();
    if stream.is_instance_of::<PyInt>() && !stream.is_instance_of::<PyBool>() {
        return stream.extract().map_err(|_| refused(stream));
    }
    if let Some(handle) = stream.getattr_opt(intern!(py, "cuda_stream"))? {
        return handle.extract().map_err(|_| refused(stream));
    }
    if let Some(protocol) = stream.getattr_opt(intern!(py, "__cuda_stream__"))? {
        // A method, or in the first version of the protocol an attribute.
        let said = if protocol.is_callable() { protocol.call0()? } else { protocol };
        return match said.extract::<(u32, usize)>() {
            Ok((0, handle)) => Ok(handle),
            _ => Err(raise(Kind::Argument, &format!("__cuda_stream__ of {stream} is {said}, not (0, handle)"))),
        };
    }
    match stream.getattr_opt(intern!(py, "ptr"))? {
        Some(handle) => handle.extract().map_err(|_| refused(stream)),
        None => Err(refused(stream)),
    }
}

fn refused(stream: &Bound<'_, PyAny>) -> PyErr {
    let kind = stream.get_type().name().map_or_else(|_| "?".into(), |name| name.to_string());
    let what = "give a stream of torch.cuda or cupy.cuda, an object with __cuda_stream__, or a handle";
    raise(Kind::Argument, &format!("stream is a {kind}: {what}"))
}
