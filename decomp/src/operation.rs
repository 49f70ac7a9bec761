//! Transposes and halos as callers name them that have no plans: the C and Python interfaces keep the plan of each
//! operation.

use std::fmt;

use crate::any_plan::AnyPlan;
use crate::cuda::GpuMemory;
use crate::error::{Error, Result};
use crate::flow::Flows;
use crate::grid::Grid;
use crate::halo::Halo;
use crate::mode::Mode;
use crate::transpose::Transpose;
use crate::workspace::Workspace;

/// An operation of pencils.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum Operation {
    Transpose(Transpose),
    Halo(Halo),
}

/// What is known of an operation whose arguments are wrong: whether it updates halos; the axes, or the axis and the
/// dimension, where they are right.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kind {
    /// Whether it updates halos.
    pub halo: bool,
    /// The axes of a transpose; the axis and the dimension of halos.
    pub axes: [Option<usize>; 2],
}

impl From<Transpose> for Operation {
    fn from(transpose: Transpose) -> Operation {
        Operation::Transpose(transpose)
    }
}

impl From<Halo> for Operation {
    fn from(halo: Halo) -> Operation {
        Operation::Halo(halo)
    }
}

impl Operation {
    /// Its kind.
    #[must_use]
    pub fn kind(&self) -> Kind {
        let (halo, axes) = match self {
            Operation::Transpose(transpose) => (false, [transpose.from.index(), transpose.to.index()]),
            Operation::Halo(halo) => (true, [halo.axis.index(), halo.dim]),
        };
        Kind { halo, axes: axes.map(Some) }
    }

    /// The same in a mode.
    #[must_use]
    pub fn in_mode(self, mode: Mode) -> Operation {
        match self {
            Operation::Transpose(transpose) => Transpose { mode, ..transpose }.into(),
            Operation::Halo(halo) => Halo { mode, ..halo }.into(),
        }
    }

    /// Bytes of an element, the number of fields, and the mode.
    pub(crate) fn sizes(&self) -> (usize, usize, Mode) {
        match *self {
            Operation::Transpose(Transpose { element, fields, mode, .. })
            | Operation::Halo(Halo { element, fields, mode, .. }) => (element, fields, mode),
        }
    }

    /// The blocks that the PE of a rank exchanges with others.
    pub(crate) fn flows(&self, grid: &Grid, rank: usize) -> Result<Flows> {
        match self {
            Operation::Transpose(transpose) => transpose.flows(grid, rank),
            Operation::Halo(halo) => halo.flows(grid, rank),
        }
    }

    /// The parameters that must be the same on all PEs.
    pub(crate) fn parameters(&self) -> Vec<(&'static str, u64)> {
        match self {
            Operation::Transpose(transpose) => transpose.parameters(),
            Operation::Halo(halo) => halo.parameters(),
        }
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Operation::Transpose(Transpose { from, to, element, input, output, .. }) => write!(
                f,
                "a transpose from {from:?} to {to:?}, {element} bytes an element, halos {:?} and {:?}, paddings {:?} and \
                 {:?}",
                input.halo, output.halo, input.padding, output.padding
            ),
            Operation::Halo(Halo { axis, dim, periodic, element, form, .. }) => {
                let (dim, periods) = (["X", "Y", "Z"].get(*dim).unwrap_or(&"?"), if *periodic { "" } else { "not " });
                write!(
                    f,
                    "halos of pencils along {axis:?} in dimension {dim}, {periods}periodic, {element} bytes an element, \
                     {:?}, padding {:?}",
                    form.halo, form.padding
                )
            }
        }
    }
}

impl Kind {
    /// The name of its operations.
    #[must_use]
    pub fn name(&self) -> &'static str {
        if self.halo { "halo" } else { "transpose" }
    }

    /// Whether an operation is of this kind, as far as it is known.
    #[must_use]
    pub fn has(&self, operation: &Operation) -> bool {
        let other = operation.kind();
        self.halo == other.halo
            && self.axes.iter().zip(other.axes).all(|(axis, other)| axis.is_none() || *axis == other)
    }

    /// The one of these plans in whose round the other PEs are, if some are of this kind. The inner option is `None` if
    /// there are several: which one is not known.
    fn later<'k, P>(&self, known: impl Iterator<Item = (&'k Operation, P)>) -> Option<Option<P>> {
        let mut plans = known.filter(|(operation, _)| self.has(operation)).map(|(_, plan)| plan);
        let first = plans.next()?;
        Some(Some(first).filter(|_| plans.next().is_none()))
    }

    /// Ends a later call on GPUs, in which the other PEs are: they compare nothing, and this PE's arguments do not tell
    /// the plan. If there is only one of this kind, this PE takes part in its round without memory, which the plan
    /// refuses. Returns `None` if no plan is of this kind, so that all PEs compare a first call; or why others wait.
    ///
    /// # Safety
    /// The stream is one of the GPU's.
    pub unsafe fn refuse<'p>(
        &self,
        known: impl Iterator<Item = (&'p Operation, &'p mut AnyPlan)>,
        stream: usize,
    ) -> Option<Result<(), String>> {
        let Some(plan) = self.later(known)? else {
            return Some(Err("other PEs wait for SYMRAIL_TIMEOUT_S, since several plans may be theirs".into()));
        };
        let none = GpuMemory { at: 0, bytes: 0 };
        // SAFETY: there is no memory; the caller's promise.
        match unsafe { plan.run([none; 2], &mut Workspace::none(), stream) } {
            Ok(()) | Err(Error::Refused { .. }) => Some(Ok(())),
            Err(error) => Some(Err(format!("other PEs do not hear of it: {error}"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::grid::Axis;
    use crate::pencil::Form;

    #[test]
    fn a_call_that_tells_no_plan_is_of_the_only_one_of_its_kind() {
        let form = Form { halo: [1; 3], padding: [0; 3] };
        let halo = Halo { axis: Axis::Y, dim: 2, periodic: true, form, element: 8, fields: 1, mode: Mode::default() };
        let transpose = |element| Transpose::new((Axis::Y, Axis::Z), element).into();
        let known = [(halo.into(), "halo"), (transpose(8), "transpose")];
        let find = |known: &[(Operation, &'static str)], halo, axes| {
            Kind { halo, axes }.later(known.iter().map(|(operation, plan)| (operation, *plan)))
        };
        let [x, y, z] = Axis::ALL.map(|axis| Some(axis.index()));
        for (halo, axes, plan) in [
            (false, [y, z], Some("transpose")),
            (false, [y, x], None),
            (false, [x, y], None),
            (false, [y, None], Some("transpose")),
            (false, [None, x], None),
            (false, [None, None], Some("transpose")),
            (true, [y, z], Some("halo")),
            (true, [y, x], None),
            (true, [y, None], Some("halo")),
            (true, [z, None], None),
        ] {
            assert_eq!(find(&known, halo, axes), plan.map(Some), "{halo} {axes:?}: a first call is compared");
        }
        let two = [known[0], known[1], (transpose(16), "another transpose")];
        assert_eq!(find(&two, false, [y, z]), Some(None), "a round of the wrong plan would be worse than none");
        assert_eq!(find(&two, true, [y, None]), Some(Some("halo")));
    }
}
