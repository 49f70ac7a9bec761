//! A PE's part of an array, and how it lies in memory.

use serde::{Deserialize, Serialize};

use crate::view::View;

/// What a pencil has besides its elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub struct Form {
    /// Elements of neighbours before and behind its own, along X, Y and Z.
    pub halo: [usize; 3],
    /// Unused elements behind all that, along X, Y and Z.
    pub padding: [usize; 3],
}

impl Form {
    /// The numbers that PEs must have in common.
    pub(crate) fn parameters(&self, name: &'static str) -> impl Iterator<Item = (&'static str, u64)> {
        self.halo.into_iter().chain(self.padding).map(move |number| (name, number as u64))
    }
}

/// A PE's part of an array. Dimensions are X, Y, Z, whatever the order in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pencil {
    /// The first element along each dimension, in the array's numbers.
    pub from: [usize; 3],
    /// Behind the last one.
    pub to: [usize; 3],
    /// The dimensions in the order of memory, the fastest first.
    pub order: [usize; 3],
    /// Halo and padding.
    pub form: Form,
}

impl Pencil {
    /// Elements of its own along each dimension.
    #[must_use]
    pub fn extents(&self) -> [usize; 3] {
        [0, 1, 2].map(|dim| self.to[dim] - self.from[dim])
    }

    /// Elements in memory along each dimension, halo and padding included.
    #[must_use]
    pub fn shape(&self) -> [usize; 3] {
        [0, 1, 2].map(|dim| self.to[dim] - self.from[dim] + 2 * self.form.halo[dim] + self.form.padding[dim])
    }

    /// Elements between neighbours along each dimension.
    #[must_use]
    pub fn strides(&self) -> [usize; 3] {
        let shape = self.shape();
        let mut strides = [0; 3];
        self.order.iter().fold(1, |stride, &dim| {
            strides[dim] = stride;
            stride * shape[dim]
        });
        strides
    }

    /// Elements in memory.
    #[must_use]
    pub fn len(&self) -> usize {
        self.shape().iter().product()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Where an element of the array, its own or in the halo, is in memory. `at` counts from the array's start, with
    /// the halo's width added, so that an element below 0 can be named.
    fn place(&self, at: [usize; 3]) -> usize {
        let strides = self.strides();
        (0..3).map(|dim| (at[dim] - self.from[dim]) * strides[dim]).sum()
    }

    /// Where the element at these numbers of the array is in memory.
    ///
    /// # Panics
    /// It is not one of the pencil's own.
    #[must_use]
    pub fn index(&self, at: [usize; 3]) -> usize {
        assert!((0..3).all(|dim| (self.from[dim]..self.to[dim]).contains(&at[dim])), "{at:?} is not in {self:?}");
        let halo = self.form.halo;
        self.place([at[0] + halo[0], at[1] + halo[1], at[2] + halo[2]])
    }

    /// What this and another pencil have in common, in this one's memory, of so many fields.
    pub(crate) fn common(&self, other: &Pencil, fields: usize) -> View {
        let from = [0, 1, 2].map(|dim| self.from[dim].max(other.from[dim]));
        let to = [0, 1, 2].map(|dim| self.to[dim].min(other.to[dim]));
        let extents = [0, 1, 2].map(|dim| to[dim].saturating_sub(from[dim]));
        if extents.contains(&0) {
            return View::EMPTY;
        }
        let halo = self.form.halo;
        self.part([from[0] + halo[0], from[1] + halo[1], from[2] + halo[2]], extents, fields)
    }

    /// `width` layers across `dim` from layer `first` on, which counts from the first layer in memory, with the halo
    /// across the other dimensions and without the padding.
    pub(crate) fn layers(&self, dim: usize, first: usize, width: usize, fields: usize) -> View {
        let mut extents = [0, 1, 2].map(|dim| self.to[dim] - self.from[dim] + 2 * self.form.halo[dim]);
        let mut from = self.from;
        extents[dim] = width;
        from[dim] += first;
        self.part(from, extents, fields)
    }

    /// A part of so many fields. `from` is as in [`Pencil::place`].
    fn part(&self, from: [usize; 3], extents: [usize; 3], fields: usize) -> View {
        let ([x, y, z], strides) = (extents, self.strides());
        View {
            offset: self.place(from),
            extents: [fields, x, y, z],
            strides: [self.len(), strides[0], strides[1], strides[2]],
        }
    }
}
