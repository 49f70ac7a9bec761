//! Parts of arrays in memory, and the places of their elements.

/// Elements of fields, X, Y and Z at strides. Offsets and strides count elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct View {
    pub offset: usize,
    pub extents: [usize; 4],
    pub strides: [usize; 4],
}

impl View {
    /// No elements.
    pub const EMPTY: View = View { offset: 0, extents: [0; 4], strides: [0; 4] };

    /// Contiguous elements.
    pub fn line(offset: usize, count: usize) -> View {
        View { offset, extents: [1, count, 1, 1], strides: [count, 1, count, count] }
    }

    /// The number of elements.
    pub fn len(&self) -> usize {
        self.extents.iter().product()
    }

    /// The same elements, contiguous, in the order in which they lie here.
    pub fn packed(&self) -> View {
        let mut order = [0, 1, 2, 3];
        order.sort_by_key(|&dim| (self.strides[dim], std::cmp::Reverse(dim)));
        let mut strides = [0; 4];
        order.iter().fold(1, |stride, &dim| {
            strides[dim] = stride;
            stride * self.extents[dim]
        });
        View { offset: 0, extents: self.extents, strides }
    }

    /// Whether the elements are arranged as in `other`, except for their start.
    pub fn lies_as(&self, other: &View) -> bool {
        let same = |dim: usize| self.extents[dim] == 1 || self.strides[dim] == other.strides[dim];
        self.len() == 0 || self.extents == other.extents && (0..4).all(same)
    }

    /// Whether the elements are contiguous.
    pub fn is_contiguous(&self) -> bool {
        self.lies_as(&self.packed())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packing_keeps_the_order_of_memory() {
        // Z fastest, in a larger array.
        let view = View { offset: 7, extents: [2, 3, 4, 5], strides: [1000, 100, 10, 1] };
        assert_eq!(view.packed(), View { offset: 0, extents: [2, 3, 4, 5], strides: [60, 20, 5, 1] });
        assert!(!view.is_contiguous() && view.packed().is_contiguous());
        // The stride of a dimension with a single layer does not count.
        let layer = View { offset: 7, extents: [1, 1, 4, 5], strides: [1000, 100, 5, 1] };
        assert!(layer.is_contiguous());
        assert!(View::line(3, 9).is_contiguous() && View::EMPTY.is_contiguous());
    }
}
