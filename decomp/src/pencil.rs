//! A PE's part of an array, and its arrangement in memory.

use serde::{Deserialize, Serialize};

use crate::view::View;

/// The halo and the padding of a pencil.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub struct Form {
    /// The width of the halo, in elements, before and after the pencil's own ones, along X, Y and Z.
    pub halo: [usize; 3],
    /// Unused elements after the halo, along X, Y and Z.
    pub padding: [usize; 3],
}

impl Form {
    /// The parameters that must be the same on all PEs.
    pub(crate) fn parameters(&self, name: &'static str) -> impl Iterator<Item = (&'static str, u64)> {
        self.halo.into_iter().chain(self.padding).map(move |number| (name, number as u64))
    }
}

/// A PE's part of an array. Dimensions are X, Y, Z, whatever the order in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pencil {
    /// The index in the array of the first element along each dimension.
    pub from: [usize; 3],
    /// The index in the array after the last element.
    pub to: [usize; 3],
    /// The dimensions in the order of memory, the fastest first.
    pub order: [usize; 3],
    /// Halo and padding.
    pub form: Form,
}

impl Pencil {
    /// The number of the pencil's own elements along each dimension.
    #[must_use]
    pub fn extents(&self) -> [usize; 3] {
        [0, 1, 2].map(|dim| self.to[dim] - self.from[dim])
    }

    /// The number of elements in memory along each dimension, halo and padding included. Plans and the C interface refuse
    /// forms whose bytes cannot be counted.
    #[must_use]
    pub fn shape(&self) -> [usize; 3] {
        [0, 1, 2].map(|dim| self.to[dim] - self.from[dim] + 2 * self.form.halo[dim] + self.form.padding[dim])
    }

    /// The distance of neighbours in memory along each dimension, in elements.
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

    /// The number of elements in memory.
    #[must_use]
    pub fn len(&self) -> usize {
        self.shape().iter().product()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The index in memory of an element of the array, of the pencil's own or of the halo. `at` counts from the array's
    /// start plus the halo's width, so that elements below 0 have an index.
    fn place(&self, at: [usize; 3]) -> usize {
        let strides = self.strides();
        (0..3).map(|dim| (at[dim] - self.from[dim]) * strides[dim]).sum()
    }

    /// The index in memory of the element with these indexes in the array.
    ///
    /// # Panics
    /// The element is not one of the pencil's own.
    #[must_use]
    pub fn index(&self, at: [usize; 3]) -> usize {
        assert!((0..3).all(|dim| (self.from[dim]..self.to[dim]).contains(&at[dim])), "{at:?} is not in {self:?}");
        let halo = self.form.halo;
        self.place([at[0] + halo[0], at[1] + halo[1], at[2] + halo[2]])
    }

    /// The elements that this and another pencil have in common, in this one's memory, for `fields` fields.
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

    /// A part of `fields` fields. `from` is as in [`Pencil::place`].
    fn part(&self, from: [usize; 3], extents: [usize; 3], fields: usize) -> View {
        let ([x, y, z], strides) = (extents, self.strides());
        View {
            offset: self.place(from),
            extents: [fields, x, y, z],
            strides: [self.len(), strides[0], strides[1], strides[2]],
        }
    }
}
