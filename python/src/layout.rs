//! The layout of an array's elements in memory: shape, strides, and the effect of slices.

use crate::dtype::Type;

/// Elements in memory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Layout {
    /// The first element's address.
    pub address: usize,
    pub shape: Vec<usize>,
    /// In bytes.
    pub strides: Vec<isize>,
    pub ty: Type,
}

/// The index of one dimension between the brackets of `a[…]`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Index {
    /// One element; removes the dimension.
    At(isize),
    /// Every `step`-th element from `start` on, `len` of them.
    Slice { start: isize, step: isize, len: usize },
}

impl Layout {
    /// Contiguous elements.
    pub fn contiguous(address: usize, shape: Vec<usize>, ty: Type) -> Layout {
        let mut stride = ty.bytes as isize;
        let mut strides: Vec<isize> = (shape.iter().rev())
            .map(|&n| {
                stride *= n.max(1) as isize;
                stride / n.max(1) as isize
            })
            .collect();
        strides.reverse();
        Layout { address, shape, strides, ty }
    }

    /// The number of elements.
    pub fn len(&self) -> usize {
        self.shape.iter().product()
    }

    pub fn bytes(&self) -> usize {
        self.len() * self.ty.bytes
    }

    /// Whether the elements are contiguous, in the order of the indices.
    pub fn is_contiguous(&self) -> bool {
        let mut next = self.ty.bytes as isize;
        let fits = |(&n, &stride): (&usize, &isize)| {
            let here = n == 1 || stride == next;
            next *= n as isize;
            here
        };
        self.len() == 0 || self.shape.iter().zip(&self.strides).rev().all(fits)
    }

    /// The part that indices of the first dimensions name; the indices are within bounds.
    pub fn part(&self, indices: &[Index]) -> Layout {
        let (mut address, mut shape, mut strides) = (self.address, Vec::new(), Vec::new());
        for (index, &stride) in indices.iter().zip(&self.strides) {
            match *index {
                Index::At(at) => address = address.wrapping_add_signed(at * stride),
                Index::Slice { start, step, len } => {
                    if len > 0 {
                        address = address.wrapping_add_signed(start * stride);
                    }
                    shape.push(len);
                    strides.push(step * stride);
                }
            }
        }
        shape.extend_from_slice(&self.shape[indices.len()..]);
        strides.extend_from_slice(&self.strides[indices.len()..]);
        Layout { address, shape, strides, ty: self.ty }
    }

    /// The same elements in another shape, in which one length may be -1; `None` if they are not contiguous, or the
    /// shape holds another number of elements.
    pub fn reshape(&self, shape: &[isize]) -> Option<Layout> {
        let known: usize =
            shape.iter().filter(|&&n| n != -1).map(|&n| usize::try_from(n).ok()).product::<Option<_>>()?;
        let unknown = shape.iter().filter(|&&n| n == -1).count();
        let rest = if unknown == 0 { 1 } else { self.len().checked_div(known)? };
        let shape: Vec<usize> = shape.iter().map(|&n| usize::try_from(n).unwrap_or(rest)).collect();
        let fits = unknown <= 1 && known * rest == self.len() && self.is_contiguous();
        fits.then(|| Layout::contiguous(self.address, shape, self.ty))
    }

    /// The same bytes as elements of another type; `None` if they are not contiguous or do not fit.
    pub fn with_type(&self, ty: Type) -> Option<Layout> {
        if ty.bytes == self.ty.bytes {
            return Some(Layout { ty, ..self.clone() });
        }
        let mut shape = self.shape.clone();
        let last = shape.last_mut()?;
        let bytes = *last * self.ty.bytes;
        *last = bytes / ty.bytes;
        (bytes.is_multiple_of(ty.bytes) && self.is_contiguous()).then(|| Layout::contiguous(self.address, shape, ty))
    }

    /// Dimensions in this order.
    pub fn permute(&self, order: &[usize]) -> Layout {
        let shape = order.iter().map(|&i| self.shape[i]).collect();
        let strides = order.iter().map(|&i| self.strides[i]).collect();
        Layout { address: self.address, shape, strides, ty: self.ty }
    }
}
