//! The memory of an array for operations: address, shape, strides and type of its elements.

use numpy::npyffi::flags::NPY_ARRAY_WRITEABLE;
use numpy::{PyArrayDescrMethods, PyUntypedArray, PyUntypedArrayMethods};
use pyo3::prelude::*;

use crate::dtype::Type;
use crate::errors::{Kind, raise};
use crate::foreign::{self, Found};
use crate::layout::Layout;

/// Bytes of one array, or of a part of it. Only this module makes one from an array; parts of it are checked.
///
/// It is valid as long as the array, so its user keeps the array: Python keeps the arguments of a call. NumPy refuses
/// to move the memory of an array with references.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Span {
    address: usize,
    bytes: usize,
}

impl Span {
    pub fn address(self) -> usize {
        self.address
    }

    pub fn bytes(self) -> usize {
        self.bytes
    }
}

/// The layout of an array's elements.
pub struct View {
    /// From the element with the lowest address to the end of the one with the highest.
    bounds: Span,
    /// The offset of the first element from there.
    first: usize,
    pub ty: Type,
    pub len: usize,
    /// Whether the elements are contiguous, in the order of the indices.
    pub contiguous: bool,
    pub writable: bool,
    /// Whether each element is aligned for its type.
    pub aligned: bool,
    /// The GPU whose memory it is; `None` for host memory.
    pub gpu: Option<i32>,
    /// For each dimension the length, and the distance of elements in bytes; empty for NumPy's contiguous arrays.
    dims: Vec<(usize, isize)>,
}

impl View {
    /// The memory of an array: NumPy's, PyTorch's, or one with `__cuda_array_interface__`; an error for other objects,
    /// and for arrays of Python objects.
    pub fn of(array: &Bound<'_, PyAny>, role: &str) -> PyResult<View> {
        let Ok(array) = array.cast::<PyUntypedArray>() else {
            if let Some(Found { layout, gpu, writable }) = foreign::layout(array, role)? {
                return Ok(View { writable, ..View::of_layout(&layout, gpu) });
            }
            let name = array.get_type().name()?;
            let hint = if array.get_type().module()? == "numpy" {
                "; a NumPy scalar is a copy: write a[i:i+1] for a[i]"
            } else {
                ""
            };
            return Err(raise(Kind::Argument, &format!("{role} is a {name}, not an array{hint}")));
        };
        if !array.is_exact_instance_of::<PyUntypedArray>() && array.get_type().name()? == "MaskedArray" {
            let why = format!("{role} is a masked array, whose mask would be lost: pass filled()");
            return Err(raise(Kind::Argument, &why));
        }
        let descr = array.dtype();
        if descr.has_object() {
            return Err(raise(
                Kind::Argument,
                &format!("{role} holds Python objects, which are of use to this process alone"),
            ));
        }
        if descr.is_native_byteorder() == Some(false) {
            return Err(raise(
                Kind::Argument,
                &format!("the bytes of {role}'s elements are in another order than this machine's"),
            ));
        }
        let mut ty = Type { kind: descr.kind(), bytes: descr.itemsize() };
        // Some types of ml_dtypes count as floats.
        if ty.kind == b'V' || ty == (Type { kind: b'f', bytes: 1 }) {
            ty = Type::of_name(&descr.getattr("name")?.extract::<String>()?).unwrap_or(ty);
        }
        // SAFETY: a valid array, as `cast` has checked; only two of its fields are read.
        let (data, flags) = unsafe {
            let raw = array.as_array_ptr();
            ((*raw).fields.data, (*raw).fields.flags)
        };
        let (len, contiguous) = (array.len(), array.is_c_contiguous());
        let aligned = array.is_aligned();
        let writable = flags & NPY_ARRAY_WRITEABLE != 0;
        let address = data.expose_provenance();
        let view = View { writable, aligned, ..View::at(address, len, ty, None) };
        if contiguous || len == 0 {
            return Ok(view);
        }
        Ok(view.strided(address, array.shape(), array.strides()))
    }

    /// The memory of elements with a known layout.
    pub fn of_layout(layout: &Layout, gpu: Option<i32>) -> View {
        let view = View::at(layout.address, layout.len(), layout.ty, gpu);
        let contiguous = layout.is_contiguous();
        if layout.len() == 0 {
            return view;
        }
        View { contiguous, ..view.strided(layout.address, &layout.shape, &layout.strides) }
    }

    /// Contiguous elements.
    fn at(address: usize, len: usize, ty: Type, gpu: Option<i32>) -> View {
        let bounds = Span { address, bytes: len * ty.bytes };
        let aligned = address.is_multiple_of(ty.bytes.next_power_of_two().min(8));
        View { bounds, first: 0, ty, len, contiguous: true, writable: true, aligned, gpu, dims: Vec::new() }
    }

    /// The same number of elements, with strides.
    fn strided(self, address: usize, shape: &[usize], strides: &[isize]) -> View {
        let dims: Vec<_> = shape.iter().copied().zip(strides.iter().copied()).collect();
        let reach = |&(n, stride): &(usize, isize)| (n as isize - 1) * stride;
        let below: isize = dims.iter().map(reach).filter(|&reach| reach < 0).sum();
        let above: isize = dims.iter().map(reach).filter(|&reach| reach > 0).sum();
        let bytes = (above - below) as usize + self.ty.bytes;
        let bounds = Span { address: address.wrapping_add_signed(below), bytes };
        View { bounds, first: below.unsigned_abs(), contiguous: false, dims, ..self }
    }

    /// All bytes from its first to its last.
    pub fn bounds(&self) -> Span {
        self.bounds
    }

    /// The lengths of its dimensions, if they are known.
    pub fn lengths(&self) -> Option<impl Iterator<Item = usize> + '_> {
        (!self.dims.is_empty()).then(|| self.dims.iter().map(|&(n, _)| n))
    }

    /// Bytes of its elements.
    pub fn bytes(&self) -> usize {
        self.len * self.ty.bytes
    }

    /// Refuses what cannot be written to, and elements that share memory: the last one written would remain in it.
    pub fn must_be_written(&self, role: &str) -> PyResult<()> {
        if !self.writable {
            let why = format!("{role} cannot be written to (its flag `writeable` is false)");
            return Err(raise(Kind::Argument, &why));
        }
        self.must_not_share(role)
    }

    /// As above, for the layout of an array on another PE, where it can be written to.
    pub fn must_not_share(&self, role: &str) -> PyResult<()> {
        match self.shares_memory() {
            false => Ok(()),
            true => Err(raise(Kind::Argument, &format!("elements of {role} share memory, so it cannot be written to"))),
        }
    }

    /// Whether two elements have a byte in common.
    fn shares_memory(&self) -> bool {
        let mut dims: Vec<_> = self.dims.iter().filter(|(n, _)| *n > 1).collect();
        dims.sort_unstable_by_key(|(_, stride)| stride.unsigned_abs());
        let mut reach = self.ty.bytes;
        let are_apart = dims.iter().all(|(n, stride)| {
            let here = stride.unsigned_abs() >= reach;
            reach = reach.saturating_add((n - 1).saturating_mul(stride.unsigned_abs()));
            here
        });
        if self.contiguous || are_apart {
            return false;
        }
        // Rows that lie between others' elements: their starts decide.
        let mut starts: Vec<isize> = vec![0];
        for &&(n, stride) in &dims {
            if stride == 0 {
                return true;
            }
            starts = starts.iter().flat_map(|start| (0..n as isize).map(move |i| start + i * stride)).collect();
        }
        starts.sort_unstable();
        starts.windows(2).any(|pair| pair[1] - pair[0] < self.ty.bytes as isize)
    }

    /// One element.
    pub fn element(&self, index: usize) -> Option<Span> {
        (self.contiguous && index < self.len)
            .then(|| Span { address: self.bounds.address + index * self.ty.bytes, bytes: self.ty.bytes })
    }

    /// The same elements in contiguous memory.
    pub fn packed(&self, memory: &mut [u8]) -> View {
        let bounds = Span { address: memory.as_mut_ptr().expose_provenance(), bytes: memory.len().min(self.bytes()) };
        View::at(bounds.address, bounds.bytes / self.ty.bytes.max(1), self.ty, None)
    }

    /// Length and stride of each dimension of the other view, which has as many elements.
    fn dims_like(&self, other: &View) -> Vec<(usize, isize)> {
        if !self.contiguous {
            return self.dims.clone();
        }
        let mut stride = self.ty.bytes as isize;
        let dim = |&(n, _): &(usize, isize)| {
            stride *= n as isize;
            (n, stride / n as isize)
        };
        let mut dims: Vec<_> = other.dims.iter().rev().map(dim).collect();
        dims.reverse();
        dims
    }

    /// The pieces of two views of the same shape that are contiguous in both, as large as possible.
    pub fn pieces(&self, other: &View) -> Pieces {
        let whole = self.contiguous && other.contiguous;
        let (a, b) = if whole { Default::default() } else { (self.dims_like(other), other.dims_like(self)) };
        let mut dims: Vec<_> =
            a.into_iter().zip(b).filter(|((n, _), _)| *n != 1).map(|((n, a), (_, b))| (n, a, b)).collect();
        // The largest strides are outermost, whatever the order of the indices.
        dims.sort_by_key(|&(_, a, _)| std::cmp::Reverse(a.unsigned_abs()));
        let mut run = if whole { self.bytes() } else { self.ty.bytes };
        while let Some(&(n, a, b)) = dims.last()
            && a == run as isize
            && b == run as isize
        {
            run *= n;
            dims.pop();
        }
        Pieces {
            a: (self.bounds, self.first),
            b: (other.bounds, other.first),
            run,
            index: vec![0; dims.len()],
            dims,
            done: self.len == 0,
        }
    }
}

/// Pieces of two views: see [`View::pieces`].
pub struct Pieces {
    a: (Span, usize),
    b: (Span, usize),
    run: usize,
    dims: Vec<(usize, isize, isize)>,
    index: Vec<usize>,
    done: bool,
}

impl Pieces {
    /// Bytes of each.
    pub fn run(&self) -> usize {
        self.run
    }

    /// The number of all pieces.
    pub fn number(&self) -> usize {
        self.dims.iter().map(|&(n, ..)| n).product()
    }

    fn piece((bounds, at): (Span, usize), run: usize) -> Option<Span> {
        (at.checked_add(run)? <= bounds.bytes).then(|| Span { address: bounds.address + at, bytes: run })
    }
}

impl Iterator for Pieces {
    type Item = (Span, Span);

    fn next(&mut self) -> Option<(Span, Span)> {
        if self.done {
            return None;
        }
        let piece = Some((Self::piece(self.a, self.run)?, Self::piece(self.b, self.run)?));
        self.done = true;
        for (i, &(n, a, b)) in self.dims.iter().enumerate().rev() {
            self.index[i] += 1;
            if self.index[i] < n {
                self.a.1 = self.a.1.wrapping_add_signed(a);
                self.b.1 = self.b.1.wrapping_add_signed(b);
                self.done = false;
                break;
            }
            self.index[i] = 0;
            self.a.1 = self.a.1.wrapping_add_signed(-a * (n as isize - 1));
            self.b.1 = self.b.1.wrapping_add_signed(-b * (n as isize - 1));
        }
        piece
    }
}
