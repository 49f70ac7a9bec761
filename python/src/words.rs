//! Operations on one element of an array: atomics, signals, waits, and the types that support them.

use pyo3::prelude::*;
use pyo3::types::PyAny;
use symrail::{AmoOp, AmoType, Cmp, Pe, Runtime, SignalOp};
use symrail_core::VariantArray;
use symrail_transport::env::HeapKind;

use crate::dtype::Type;
use crate::errors::{Kind, failed, raise};
use crate::interrupt::waiting;
use crate::job::Job;
use crate::raw;
use crate::view::Span;

/// An element of an array of this PE.
#[derive(Clone, Copy)]
pub struct Element {
    span: Span,
    ty: Type,
}

/// An element of an array, by its index in the order of NumPy's `flat`, for host threads.
pub fn element(job: &Job, array: &Bound<'_, PyAny>, offset: usize, role: &str) -> PyResult<Element> {
    let view = job.view(array, role)?;
    let span = view.element(offset).ok_or_else(|| {
        let what = if view.contiguous { format!("has {} elements", view.len) } else { "is not contiguous".into() };
        raise(Kind::Argument, &format!("{role}: no element {offset}: the array {what}"))
    })?;
    Ok(Element { span, ty: view.ty })
}

/// A signal word: one element of 64 unsigned bits.
pub fn signal_word(job: &Job, array: &Bound<'_, PyAny>, offset: usize) -> PyResult<Span> {
    match element(job, array, offset, "signal_var")? {
        Element { span, ty: Type { kind: b'u', bytes: 8 } } => Ok(span),
        Element { ty, .. } => {
            Err(raise(Kind::Argument, &format!("signal_var has elements of type {}; signals are uint64", ty.name())))
        }
    }
}

/// The signal operation that a user names.
pub fn signal_op(op: &Bound<'_, PyAny>) -> PyResult<SignalOp> {
    one_of(op, SignalOp::VARIANTS, SignalOp::into, "signal_op")
}

/// The kind of heap that a user names.
pub fn heap_kind(kind: &Bound<'_, PyAny>) -> PyResult<HeapKind> {
    one_of(kind, HeapKind::VARIANTS, HeapKind::into, "heap")
}

/// An atomic operation by its name.
pub fn amo_op(name: &Bound<'_, PyAny>) -> PyResult<AmoOp> {
    one_of(name, AmoOp::VARIANTS, AmoOp::into, "op")
}

/// The comparison that a user names.
pub fn comparison(cmp: &Bound<'_, PyAny>) -> PyResult<Cmp> {
    let name = |cmp| match cmp {
        Cmp::Eq => "==",
        Cmp::Ne => "!=",
        Cmp::Gt => ">",
        Cmp::Ge => ">=",
        Cmp::Lt => "<",
        Cmp::Le => "<=",
    };
    one_of(cmp, Cmp::VARIANTS, name, "comparison")
}

/// The element of `all` whose name a user has passed, as [`chosen`].
fn one_of<T: Copy>(given: &Bound<'_, PyAny>, all: &[T], name: impl Fn(T) -> &'static str, role: &str) -> PyResult<T> {
    let names: Vec<_> = all.iter().map(|&one| name(one)).collect();
    Ok(all[chosen(given, &names, role)?])
}

/// The index of the name that a user has passed, or of the name of an enumeration's member.
pub fn chosen(given: &Bound<'_, PyAny>, names: &[&str], role: &str) -> PyResult<usize> {
    let value = given.getattr_opt("value")?.unwrap_or_else(|| given.clone());
    let text: Option<String> = value.extract().ok();
    let found = text.as_ref().and_then(|text| names.iter().position(|name| name == text));
    found.ok_or_else(|| raise(Kind::Argument, &format!("{role} is {}; use one of {}", given, names.join(", "))))
}

/// The type of atomics for elements of this type.
pub fn amo_type(ty: Type) -> PyResult<AmoType> {
    let known = ty.data_type().and_then(|ty| AmoType::try_from(ty).ok());
    let why = || format!("no atomics on {}; use int32, uint32, int64, uint64, float32 or float64", ty.name());
    known.ok_or_else(|| raise(Kind::Argument, &why()))
}

/// The bits of a Python number.
pub fn bits(ty: AmoType, value: &Bound<'_, PyAny>) -> PyResult<u64> {
    Ok(match ty {
        AmoType::I32 => u64::from(value.extract::<i32>()?.cast_unsigned()),
        AmoType::U32 => value.extract::<u32>()?.into(),
        AmoType::I64 => value.extract::<i64>()?.cast_unsigned(),
        AmoType::U64 => value.extract::<u64>()?,
        AmoType::F32 => (value.extract::<f64>()? as f32).to_bits().into(),
        AmoType::F64 => value.extract::<f64>()?.to_bits(),
    })
}

/// The Python number with these bits.
pub fn number<'py>(py: Python<'py>, ty: AmoType, bits: u64) -> PyResult<Bound<'py, PyAny>> {
    Ok(match ty {
        AmoType::I32 => (bits as u32).cast_signed().into_pyobject(py)?.into_any(),
        AmoType::U32 => (bits as u32).into_pyobject(py)?.into_any(),
        AmoType::I64 => bits.cast_signed().into_pyobject(py)?.into_any(),
        AmoType::U64 => bits.into_pyobject(py)?.into_any(),
        AmoType::F32 => f64::from(f32::from_bits(bits as u32)).into_pyobject(py)?.into_any(),
        AmoType::F64 => f64::from_bits(bits).into_pyobject(py)?.into_any(),
    })
}

/// An atomic operation, with its values.
pub struct Amo<'a, 'py> {
    pub op: AmoOp,
    pub operand: Option<&'a Bound<'py, PyAny>>,
    pub compare: Option<&'a Bound<'py, PyAny>>,
    pub fetches: bool,
}

impl<'py> Amo<'_, 'py> {
    /// Performs it on an element on `pe`; returns the old value on request.
    pub fn perform(
        &self,
        rt: &Runtime,
        Element { span, ty }: Element,
        pe: Pe,
        py: Python<'py>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let ty = amo_type(ty)?;
        let bits = |value: Option<&Bound<'_, PyAny>>| value.map_or(Ok(0), |value| bits(ty, value));
        let (operand, compare) = (bits(self.operand)?, bits(self.compare)?);
        let (op, fetches) = (self.op, self.fetches);
        let perform = || match fetches {
            true => raw::fetch_amo(rt, span, ty, op, operand, compare, pe).map(Some),
            false => raw::amo(rt, span, ty, op, operand, pe).map(|()| None),
        };
        // Without the wire the thread waits for no other PE.
        let at_once = rt.is_mapped(pe) && rt.cpu_performs_amos();
        let old = if at_once { perform().map_err(failed)? } else { waiting(py, None, perform)? };
        old.map(|bits| number(py, ty, bits)).transpose()
    }
}

fn misaligned() -> PyErr {
    raise(Kind::Argument, "the word is not aligned to its size")
}

macro_rules! for_words {
    ($ty:expr, $call:ident) => {
        match ($ty.kind, $ty.bytes) {
            (b'i', 1) => $call!(i8),
            (b'i', 2) => $call!(i16),
            (b'i', 4) => $call!(i32),
            (b'i', 8) => $call!(i64),
            (b'u' | b'b', 1) => $call!(u8),
            (b'u', 2) => $call!(u16),
            (b'u', 4) => $call!(u32),
            (b'u', 8) => $call!(u64),
            _ => Err(raise(Kind::Argument, &format!("no waits for {}; use an integer type", $ty.name()))),
        }
    };
}

/// Waits for an element of this PE's memory, and returns its value.
pub fn wait<'py>(
    rt: &Runtime,
    Element { span, ty }: Element,
    cmp: Cmp,
    value: &Bound<'py, PyAny>,
    timeout: Option<f64>,
) -> PyResult<Bound<'py, PyAny>> {
    let py = value.py();
    macro_rules! wait {
        ($t:ty) => {{
            let value: $t = value.extract()?;
            let waited = waiting(py, timeout, || raw::wait_until(rt, span, cmp, value).transpose())?;
            Ok(waited.ok_or_else(misaligned)?.into_pyobject(py)?.into_any())
        }};
    }
    for_words!(ty, wait)
}

/// Whether an element of this PE's memory compares as asked now.
pub fn test(rt: &Runtime, Element { span, ty }: Element, cmp: Cmp, value: &Bound<'_, PyAny>) -> PyResult<bool> {
    macro_rules! test {
        ($t:ty) => {{
            let value: $t = value.extract()?;
            raw::test(rt, span, cmp, value).ok_or_else(misaligned)
        }};
    }
    for_words!(ty, test)
}
