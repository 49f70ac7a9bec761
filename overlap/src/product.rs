//! The products with communication, by name, and the ranks that get sums.

/// The product that a plan computes, or the operation of a plan without a product.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Product {
    AllGatherMatmul,
    MatmulReduceScatter,
    MatmulAllReduce,
    PointToPoint,
}

impl Product {
    pub fn name(self) -> &'static str {
        match self {
            Product::AllGatherMatmul => "all_gather_matmul",
            Product::MatmulReduceScatter => "matmul_reduce_scatter",
            Product::MatmulAllReduce => "matmul_all_reduce",
            Product::PointToPoint => "a copy between two ranks",
        }
    }
}

/// The ranks that get the sums.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reduced {
    /// Each rank gets the sums of its rows: a reduce-scatter.
    ToShards,
    /// Each rank gets all sums: an all-reduce.
    Everywhere,
}

impl Reduced {
    pub(crate) fn product(self) -> Product {
        match self {
            Reduced::ToShards => Product::MatmulReduceScatter,
            Reduced::Everywhere => Product::MatmulAllReduce,
        }
    }
}
