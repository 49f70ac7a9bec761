//! Requirements on all PEs' paths, for programs that prefer to end instead of running on slower ones.

use pyo3::prelude::*;
use symrail::observe::description::Requirement;
use symrail::{Pe, Result, Runtime, Team};

use crate::errors::{Kind, raise};
use crate::raw;

/// The requirements of this PE's program.
pub struct Required(Vec<Requirement>);

/// The PEs that do not meet their requirements, and why the first of them, or this PE, does not.
pub struct Unmet {
    pub pes: Vec<Pe>,
    pub why: String,
}

impl Required {
    /// Parses the names of requirements.
    pub fn parse(names: Vec<String>) -> PyResult<Required> {
        let parsed = names.into_iter().map(|name| name.parse()).collect::<std::result::Result<_, _>>();
        parsed.map(Required).map_err(|error: String| raise(Kind::Argument, &format!("require: {error}")))
    }

    /// The PEs that do not meet their requirements; the same on all PEs. Waits for all. Collective.
    pub fn unmet(&self, rt: &Runtime, world: &Team) -> Result<Option<Unmet>> {
        let description = rt.description();
        let here = self.0.iter().find_map(|&requirement| description.unmet(requirement));
        let (n, me) = (rt.n_pes(), rt.my_pe());
        // A bit for each PE.
        let mut words = vec![u64::MAX; n.div_ceil(64) as usize];
        if here.is_some() {
            words[me as usize / 64] &= !(1 << (me % 64));
        }
        raw::and_of_all(world, &mut words)?;
        let pes: Vec<Pe> = (0..n).filter(|&pe| words[pe as usize / 64] >> (pe % 64) & 1 == 0).collect();
        let Some(first) = pes.first() else { return Ok(None) };
        let elsewhere = || format!("PE {first} does not have what it requires; its own exception says why");
        Ok(Some(Unmet { why: here.unwrap_or_else(elsewhere), pes }))
    }
}
