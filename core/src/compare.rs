//! Comparisons of a word with a value, and the numbers that interfaces have for them.

/// The comparison of a word with a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, strum::VariantArray)]
pub enum Cmp {
    /// Equal.
    Eq,
    /// Not equal.
    Ne,
    /// Greater.
    Gt,
    /// Greater or equal.
    Ge,
    /// Less.
    Lt,
    /// Less or equal.
    Le,
}

impl Cmp {
    /// Whether the comparison holds for `a` and `b`.
    #[inline]
    #[must_use]
    pub fn holds<T: PartialOrd + Copy>(self, a: T, b: T) -> bool {
        match self {
            Cmp::Eq => a == b,
            Cmp::Ne => a != b,
            Cmp::Gt => a > b,
            Cmp::Ge => a >= b,
            Cmp::Lt => a < b,
            Cmp::Le => a <= b,
        }
    }

    /// `SHMEM_CMP_*` of OpenSHMEM's C interface.
    #[must_use]
    pub const fn openshmem(self) -> i32 {
        match self {
            Cmp::Eq => 1,
            Cmp::Ne => 2,
            Cmp::Gt => 3,
            Cmp::Ge => 4,
            Cmp::Lt => 5,
            Cmp::Le => 6,
        }
    }

    /// The comparison with this number in OpenSHMEM's C interface.
    #[must_use]
    pub fn from_openshmem(code: i32) -> Option<Self> {
        <Self as strum::VariantArray>::VARIANTS.iter().copied().find(|cmp| cmp.openshmem() == code)
    }

    /// `SYMRAIL_CMP_*` and `NVSHMEM_CMP_*` of kernels.
    #[must_use]
    pub const fn device(self) -> i32 {
        match self {
            Cmp::Eq => 0,
            Cmp::Ne => 1,
            Cmp::Gt => 2,
            Cmp::Le => 3,
            Cmp::Lt => 4,
            Cmp::Ge => 5,
        }
    }
}

#[cfg(test)]
mod tests {
    use strum::VariantArray;

    use super::Cmp;

    #[test]
    fn every_number_of_an_interface_means_one_comparison() {
        for cmp in Cmp::VARIANTS {
            assert_eq!(Cmp::from_openshmem(cmp.openshmem()), Some(*cmp));
        }
        for wrong in [0, 7, -1] {
            assert_eq!(Cmp::from_openshmem(wrong), None);
        }
        let mut device: Vec<_> = Cmp::VARIANTS.iter().map(|cmp| cmp.device()).collect();
        device.sort_unstable();
        assert_eq!(device, [0, 1, 2, 3, 4, 5]);
    }
}
