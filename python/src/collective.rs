//! The arrays of a collective, the path that it takes, and the combination of elements.

use pyo3::prelude::*;
use symrail::collective::{Bool, Complex, Extent, bf16, f16};
use symrail::kernels::cuda::collectives::{self as on_stream, Combine};
use symrail::{DataType, Reduction};

use crate::dtype::Type;
use crate::errors::{Kind, raise};
use crate::gpu::DEFAULT_STREAM;
use crate::held::HeldTeam;
use crate::interrupt::waiting;
use crate::on_stream::Collective;
use crate::sides::{Order, must_be_of_one_type};
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
        let (to, from) = (dest, source);
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
        must_be_of_one_type((to, &dest), (from, &source))?;
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
    pub fn need(&self, to: usize, from: usize) -> PyResult<()> {
        let found = (self.dest.len, self.source.len);
        if found == (to, from) {
            return Ok(());
        }
        let (dest, source) = found;
        Err(raise(Kind::Argument, &format!("dst has {dest} elements and src {source}; they need {to} and {from}")))
    }

    /// The bytes of the source, and the type of elements.
    pub fn extent(&self) -> Extent {
        Extent { bytes: self.source.bytes(), ty: self.dest.ty.element() }
    }

    /// Whether host threads perform it.
    pub fn on_host(&self) -> bool {
        self.order.is_none()
    }

    /// Performs it: on the stream, or on the host by `on_host` with destination and source, which are all that `what`
    /// may lack.
    pub fn run(
        &self,
        py: Python<'_>,
        team: &HeldTeam,
        what: impl Into<Option<Collective>>,
        on_host: impl FnOnce(Span, Span) -> symrail::Result<()> + Send,
    ) -> PyResult<()> {
        match self.order.zip(what.into()) {
            Some((order, what)) => {
                order.start(py, &team.job, |gpu, stream| gpu.collective(team, what, &self.dest, &self.source, stream))
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
    on_stream: Option<on_stream::Reduction>,
    /// The operation and the type, for messages.
    text: String,
}

/// What callers may name.
const OPS: [&str; 8] = ["sum", "prod", "min", "max", "and", "or", "xor", "avg"];

impl Combining {
    /// The combination that a caller names, for elements of a type.
    pub fn of(op: &Bound<'_, PyAny>, ty: Type) -> PyResult<Combining> {
        use Combine::{And, Max, Min, Or, Product, Sum, Xor};
        let op = words::chosen(op, &OPS, "op")?;
        let text = format!("reduction {} of elements of type {}", OPS[op], ty.name());
        macro_rules! of {
            (integer $t:ty) => { of!($t; 0: sum 1: product 2: min 3: max 4: and 5: or 6: xor 7: average) };
            (float $t:ty) => { of!($t; 0: sum 1: product 2: min 3: max 7: average) };
            (complex $t:ty) => { of!($t; 0: sum 1: product 7: average) };
            ($t:ty; $($number:literal: $method:ident)*) => {
                match op {
                    $($number => Some(Reduction::$method::<$t>()),)*
                    _ => None,
                }
            };
        }
        let element = ty.data_type();
        let on_host = element.and_then(|ty| match ty {
            DataType::Int8 => of!(integer i8),
            DataType::Int16 => of!(integer i16),
            DataType::Int32 => of!(integer i32),
            DataType::Int64 => of!(integer i64),
            DataType::Uint8 => of!(integer u8),
            DataType::Uint16 => of!(integer u16),
            DataType::Uint32 => of!(integer u32),
            DataType::Uint64 => of!(integer u64),
            DataType::Float16 => of!(float f16),
            DataType::Bfloat16 => of!(float bf16),
            DataType::Float32 => of!(float f32),
            DataType::Float64 => of!(float f64),
            DataType::Complex64 => of!(complex Complex<f32>),
            DataType::Complex128 => of!(complex Complex<f64>),
            DataType::Bool => of!(Bool; 0: sum 1: product 2: min 3: max 4: and 5: or 6: xor),
            DataType::Float8E4m3 | DataType::Float8E5m2 | DataType::Float8E4m3b15 => None,
        });
        let on_host = on_host.ok_or_else(|| raise(Kind::Argument, &format!("there is no {text}")))?;
        let combine = [Sum, Product, Min, Max, And, Or, Xor].get(op).copied();
        let on_stream = combine.zip(element).and_then(|(combine, ty)| on_stream::Reduction::new(combine, ty).ok());
        Ok(Combining { on_host, on_stream, text })
    }

    /// The path of a call with these arrays: `None` if host threads perform it.
    ///
    /// # Errors
    /// Kernels lack the combination.
    pub fn on_stream(&self, of: &Arrays) -> PyResult<Option<on_stream::Reduction>> {
        if of.on_host() {
            return Ok(None);
        }
        let lacks = || format!("{} is not done on streams; use arrays in host memory, or a Communicator", self.text);
        self.on_stream.map(Some).ok_or_else(|| raise(Kind::Unsupported, &lacks()))
    }
}
