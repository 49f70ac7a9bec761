//! The arrays of a collective, the path that it takes, and the combination of elements.

use pyo3::prelude::*;
use symrail::Reduction;
use symrail::collective::Complex;
use symrail::kernels::cuda::collectives::{self as on_stream, Combine, Element};

use crate::dtype::Type;
use crate::errors::{Kind, raise};
use crate::gpu::DEFAULT_STREAM;
use crate::held::HeldTeam;
use crate::interrupt::waiting;
use crate::on_stream::Collective;
use crate::sides::Order;
use crate::stream;
use crate::view::{Span, View};
use crate::words;

/// The arrays of a collective: contiguous, and of one type.
pub struct Arrays {
    pub dest: View,
    pub source: View,
    /// The stream that performs it; `None` if host threads do.
    order: Option<Order>,
}

impl Arrays {
    /// The arrays of a call; the caller compares their lengths. For arrays in GPU memory without a stream it uses the
    /// default stream.
    pub fn of(
        team: &HeldTeam,
        dest: &Bound<'_, PyAny>,
        source: &Bound<'_, PyAny>,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Arrays> {
        let job = &team.job;
        let (dest, source) = (job.any_view(dest, "dst")?, job.any_view(source, "src")?);
        for (view, role) in [(&dest, "dst"), (&source, "src")] {
            if !view.contiguous {
                let why = format!("{role} is not contiguous; collectives take contiguous arrays");
                return Err(raise(Kind::Argument, &why));
            }
            if !view.aligned {
                return Err(raise(Kind::Argument, &format!("the elements of {role} are not aligned to their size")));
            }
        }
        dest.must_be_written("dst")?;
        if dest.ty != source.ty {
            let (to, from) = (dest.ty.name(), source.ty.name());
            return Err(raise(Kind::Argument, &format!("dtypes differ: dst has {to}, src {from}")));
        }
        let order = match stream.map(stream::handle).transpose()? {
            Some(handle) => Some(Order { handle, waits: false }),
            None if job.gpu().is_some() && (dest.gpu.is_some() || source.gpu.is_some()) => {
                Some(Order { handle: DEFAULT_STREAM, waits: true })
            }
            None => None,
        };
        Ok(Arrays { dest, source, order })
    }

    /// Refuses lengths that do not match.
    pub fn need(&self, (to, from): (usize, usize)) -> PyResult<()> {
        let found = (self.dest.len, self.source.len);
        if found == (to, from) {
            return Ok(());
        }
        let (dest, source) = found;
        Err(raise(Kind::Argument, &format!("dst has {dest} elements and src {source}; they need {to} and {from}")))
    }

    /// Whether host threads perform it.
    pub fn on_host(&self) -> bool {
        self.order.is_none()
    }

    /// Performs it: on the stream, or on the host by `on_host` with destination and source.
    pub fn run(
        &self,
        py: Python<'_>,
        team: &HeldTeam,
        what: Collective,
        on_host: impl FnOnce(Span, Span) -> symrail::Result<()> + Send,
    ) -> PyResult<()> {
        match self.order {
            Some(order) => {
                order.start(py, &team.job, |gpu, stream| gpu.collective(team, what, (&self.dest, &self.source), stream))
            }
            None => {
                let views = [(&self.dest, "dst"), (&self.source, "src")];
                views.iter().try_for_each(|(view, role)| team.job.on_host(view, role))?;
                waiting(py, None, || on_host(self.dest.bounds(), self.source.bounds()))
            }
        }
    }
}

/// The combination of elements, for host threads and for kernels.
pub struct Combining {
    pub on_host: Reduction,
    pub on_stream: on_stream::Reduction,
}

impl Combining {
    /// The combination that a caller names, for elements of a type.
    pub fn of(op: &Bound<'_, PyAny>, ty: Type) -> PyResult<Combining> {
        use Combine::{And, Max, Min, Or, Product, Sum, Xor};
        let op = words::chosen(op, &["sum", "prod", "min", "max", "and", "or", "xor"], "op")?;
        macro_rules! of {
            ($t:ty, $element:ident: $($method:ident),*) => {
                [$(Reduction::$method::<$t>()),*].get(op).copied().map(|on_host| (on_host, Element::$element))
            };
        }
        macro_rules! integer {
            ($t:ty, $element:ident) => { of!($t, $element: sum, product, min, max, and, or, xor) };
        }
        let found = match (ty.kind, ty.bytes) {
            (b'i', 1) => integer!(i8, I8),
            (b'i', 2) => integer!(i16, I16),
            (b'i', 4) => integer!(i32, I32),
            (b'i', 8) => integer!(i64, I64),
            (b'u', 1) => integer!(u8, U8),
            (b'u', 2) => integer!(u16, U16),
            (b'u', 4) => integer!(u32, U32),
            (b'u', 8) => integer!(u64, U64),
            (b'f', 4) => of!(f32, F32: sum, product, min, max),
            (b'f', 8) => of!(f64, F64: sum, product, min, max),
            (b'c', 8) => of!(Complex<f32>, C64: sum, product),
            (b'c', 16) => of!(Complex<f64>, C128: sum, product),
            _ => None,
        };
        let combine = [Sum, Product, Min, Max, And, Or, Xor].get(op).copied();
        match found.zip(combine) {
            Some(((on_host, element), combine)) => {
                Ok(Combining { on_host, on_stream: on_stream::Reduction { combine, element } })
            }
            None => Err(raise(Kind::Argument, &format!("no such reduction of elements of type {}", ty.name()))),
        }
    }
}
