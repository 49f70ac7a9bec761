//! Transposes and halos. The first call of an operation with certain parameters makes a plan, which is kept.

use std::ffi::{c_int, c_void};

use symrail::kernels::cuda::Gpu;
use symrail::with_timeout;
use symrail_core::CPointer;
use symrail_decomp::cuda::GpuMemory;
use symrail_decomp::operation::Kind;
use symrail_decomp::{AnyPlan, Axis, Error, Form, Halo, Mode, Operation, Transpose, Workspace};

use crate::grid::GridDesc;
use crate::guard::{Failure, Three, three, write};
use crate::handle::{Call, Handle, Opaque, key_of, with_handle};
use crate::layouts::{axis, element};
use crate::workspaces::Workspaces;

/// The buffers of a call.
#[derive(Clone, Copy)]
struct Buffers {
    input: *mut c_void,
    output: *mut c_void,
    work: *mut c_void,
    stream: *mut c_void,
}

/// What a first call with certain parameters on GPUs adds to the error that other ranks did not come: they run a plan
/// of this kind, if they know their parameters, without comparing them.
fn first_call<'k>(wanted: &Operation, known: impl Iterator<Item = &'k Operation>) -> Option<String> {
    let kind = wanted.kind();
    let known: Vec<String> = known.filter(|known| kind.has(known)).map(Operation::to_string).collect();
    (!known.is_empty()).then(|| {
        format!(
            "this is the first call with {wanted}; the others may be in a round with earlier ones: {}",
            known.join("; ")
        )
    })
}

/// Runs an operation: its parameters are right or not, its buffers are checked here. Collective.
fn run(
    handle: &mut Handle,
    desc: Opaque,
    kind: Kind,
    wanted: Result<Operation, Failure>,
    at: Buffers,
) -> Result<(), Failure> {
    let (call, on_gpu) = (if kind.halo { Call::Halos } else { Call::Transpose }, handle.job.kernels().is_some());
    let (number, checked) = match handle.desc(desc) {
        Err(unknown) => (0, Err(unknown)),
        Ok(desc) => {
            let checked = wanted.and_then(|wanted| desc.allow(&wanted).map(|()| wanted));
            (desc.number, checked.and_then(|wanted| desc.array().map(|_| wanted)))
        }
    };
    // Ranks on GPUs that have the plan compare nothing.
    if on_gpu
        && let Err(wrong) = &checked
        && let Some(told) = handle.refuse(desc, kind, at.stream)
    {
        return Err(told.err().into_iter().fold(wrong.clone(), |wrong, why| wrong.with(&why)));
    }
    let checked = checked.and_then(|wanted| check_place(on_gpu, at).map(|()| wanted));
    let key = checked.as_ref().map_or(0, key_of);
    let plans = handle.desc(desc).ok().map(|desc| &desc.plans);
    let kept = checked.as_ref().is_ok_and(|wanted| plans.is_some_and(|plans| plans.contains_key(wanted)));
    if !kept {
        let plans = plans.filter(|_| on_gpu);
        let first = checked.as_ref().ok().zip(plans).and_then(|(wanted, plans)| first_call(wanted, plans.keys()));
        let agreed = handle.agree(call, number, key, checked.clone());
        let lost = first.filter(|_| handle.is_lost());
        let agreed = agreed.map_err(|failure| lost.iter().fold(failure, |failure, why| failure.with(why)))?;
        handle.make(desc, &agreed)?;
    }
    let wanted = checked?;
    // All ranks have made the plan, or, on host memory, tell one another of each round.
    if !kept || !on_gpu {
        let accepted = handle.accepts(desc, &wanted, at);
        handle.agree(call, number, key, accepted)?;
    }
    handle.round(desc, &wanted, at)
}

/// Checks that the stream and the arrays are the GPU's if plans run there, and otherwise the host's.
fn check_place(on_gpu: bool, at: Buffers) -> Result<(), Failure> {
    if on_gpu {
        return Ok(());
    }
    let remedy = "set SYMRAIL_HEAP_KIND=device for arrays in a GPU's memory";
    if !at.stream.is_null() {
        return Err(Failure::unsupported(format!("stream: arrays are in host memory, so pass NULL; {remedy}")));
    }
    if [at.input, at.output].iter().any(|array| Gpu::has(array.addr())) {
        return Err(Failure::unsupported(format!(
            "an array is in a GPU's memory, and the symmetric heap is not; {remedy}"
        )));
    }
    Ok(())
}

impl GridDesc {
    /// Whether the operation is one that cuDecomp has, too.
    fn allow(&self, wanted: &Operation) -> Result<(), Failure> {
        let (what, axes) = match wanted {
            Operation::Halo(halo) => ("halos", [halo.axis; 2]),
            Operation::Transpose(transpose) => ("transposes", [transpose.from, transpose.to]),
        };
        match axes.into_iter().find(|&axis| self.grid.has_empty_pencils(axis)) {
            Some(axis) => Err(Failure::unsupported(format!(
                "{what}: a rank's {axis:?} pencil has no elements: use another process grid, or fewer ranks"
            ))),
            None => Ok(()),
        }
    }
}

impl Handle {
    /// Makes the plan. Collective.
    fn make(&mut self, desc: Opaque, wanted: &Operation) -> Result<(), Failure> {
        let (kernels, limit) = (self.job.kernels().cloned(), self.job.limit(1));
        let (kernels, number) = (kernels.as_ref(), desc);
        let desc = self.desc(number)?;
        let (array, halos) = (desc.array()?, wanted.kind().halo);
        let in_mode = wanted.in_mode(desc.modes[usize::from(halos)]);
        let made = with_timeout(limit, || AnyPlan::new(array, kernels, &in_mode));
        let call = match halos {
            false => "the first transpose with these parameters and this back end",
            true => "the first update of halos with these parameters and this back end",
        };
        let plan = made.map_err(|error| self.job.failure(call, error))?;
        self.desc(number)?.plans.insert(*wanted, plan);
        Ok(())
    }

    /// Ends a later call on GPUs whose plan this rank's arguments do not tell: [`Kind::refuse`].
    fn refuse(&mut self, desc: Opaque, kind: Kind, stream: *mut c_void) -> Option<Result<(), String>> {
        let (limit, known) = (self.job.limit(1), self.descs.contains_key(&desc.addr()));
        // A wrong descriptor may stand for any.
        let descs = self.descs.iter_mut().filter(|(number, _)| !known || **number == desc.addr());
        let plans = descs.flat_map(|(_, desc)| &mut desc.plans);
        // SAFETY: C's caller vouches for the stream.
        with_timeout(limit, || unsafe { kind.refuse(plans, stream.expose_provenance()) })
    }

    /// The plan of an operation, and the handle's workspaces.
    fn plan(&mut self, desc: Opaque, wanted: &Operation) -> Result<(&mut AnyPlan, &mut Workspaces), Failure> {
        let Handle { descs, workspaces, .. } = self;
        let plan = descs.get_mut(&desc.addr()).and_then(|desc| desc.plans.get_mut(wanted));
        Ok((plan.ok_or_else(|| Failure::usage("there is no such plan"))?, workspaces))
    }

    /// Checks the buffers of a round.
    fn accepts(&mut self, desc: Opaque, wanted: &Operation, at: Buffers) -> Result<(), Failure> {
        let (plan, workspaces) = self.plan(desc, wanted)?;
        // SAFETY: C's caller vouches for its buffers.
        Ok(unsafe { plan.accepts(at.of(plan), workspaces.at(at.work)?) }?)
    }

    /// Runs or enqueues a round.
    fn round(&mut self, desc: Opaque, wanted: &Operation, at: Buffers) -> Result<(), Failure> {
        let (limit, on_gpu) = (self.job.limit(1), self.job.kernels().is_some());
        let (plan, workspaces) = self.plan(desc, wanted)?;
        let (mut none, buffers) = (Workspace::none(), at.of(plan));
        // Without a workspace the plan refuses the round, so that no rank waits for this one.
        let (work, fault) = match workspaces.at(at.work) {
            Ok(work) => (work, Ok(())),
            Err(unknown) => (&mut none, Err(unknown)),
        };
        // SAFETY: C's caller vouches for its buffers, for their sizes, which cudecompGetPencilInfo returns, and for the
        // stream.
        let ran = with_timeout(limit, || unsafe { plan.run(buffers, work, at.stream.expose_provenance()) });
        let ran = match ran {
            // What another rank was given in an earlier round is no fault of this one. No earlier call could tell.
            Err(told @ Error::RefusedBy { .. }) if on_gpu => {
                write(&format!("in rounds so far: {told}"));
                Ok(())
            }
            // A rank that is late may be in a first call with other parameters.
            Err(late @ Error::Round(_)) if on_gpu => {
                return Err(Failure::from(late).with(&format!("this rank ran {wanted}")));
            }
            ran => ran,
        };
        fault.and(ran.map_err(Failure::from))
    }
}

impl Buffers {
    /// Input and output, as large as the plan needs them.
    fn of(&self, plan: &AnyPlan) -> [GpuMemory; 2] {
        let memory = |at: *mut c_void, bytes| GpuMemory { at: at.expose_provenance() as u64, bytes };
        [memory(self.input, plan.input_bytes()), memory(self.output, plan.output_bytes())]
    }
}

/// The arguments of a transpose, in C's order.
struct Arrays {
    at: Buffers,
    dtype: c_int,
    forms: [Three; 4],
}

fn transpose(handle: Opaque, desc: Opaque, axes: (Axis, Axis), arrays: &Arrays) -> c_int {
    with_handle(handle, |handle| {
        let wanted = (|| {
            let element = element(arrays.dtype)?;
            let names = ["input_halo_extents", "output_halo_extents", "input_padding", "output_padding"];
            let mut forms = [[0; 3]; 4];
            for (i, name) in names.iter().enumerate() {
                forms[i] = three(name, arrays.forms[i])?;
            }
            Ok::<_, Failure>(Operation::from(Transpose {
                input: Form { halo: forms[0], padding: forms[2] },
                output: Form { halo: forms[1], padding: forms[3] },
                ..Transpose::new(axes, element)
            }))
        })();
        let kind = Kind { halo: false, axes: [axes.0, axes.1].map(|axis| Some(axis.index())) };
        run(handle, desc, kind, wanted, arrays.at)
    })
}

macro_rules! transposes {
    ($($name:ident: $from:ident, $to:ident;)*) => {$(
        #[unsafe(no_mangle)]
        #[allow(clippy::too_many_arguments)] // C's interface has so many
        extern "C" fn $name(
            handle: Opaque,
            desc: Opaque,
            input: *mut c_void,
            output: *mut c_void,
            work: *mut c_void,
            dtype: c_int,
            input_halo: Three,
            output_halo: Three,
            input_padding: Three,
            output_padding: Three,
            stream: *mut c_void,
        ) -> c_int {
            let forms = [input_halo, output_halo, input_padding, output_padding];
            let at = Buffers { input, output, work, stream };
            transpose(handle, desc, (Axis::$from, Axis::$to), &Arrays { at, dtype, forms })
        }
    )*};
}

transposes! {
    cudecompTransposeXToY: X, Y;
    cudecompTransposeYToZ: Y, Z;
    cudecompTransposeZToY: Z, Y;
    cudecompTransposeYToX: Y, X;
}

/// The arguments of a halo after its buffers, in C's order.
struct HaloCall {
    dtype: c_int,
    halo: Three,
    periods: CPointer<[u8; 3]>,
    dim: i32,
    padding: Three,
}

fn halo(handle: Opaque, desc: Opaque, along: Axis, at: Buffers, call: &HaloCall) -> c_int {
    let &HaloCall { dtype, halo, periods, dim, padding } = call;
    with_handle(handle, |handle| {
        let wanted = (|| {
            let element = element(dtype)?;
            if halo.is_null() {
                return Err(Failure::usage("halo_extents is a null pointer"));
            }
            let (halo, padding) = (three("halo_extents", halo)?, three("padding", padding)?);
            let dim = axis(dim)?.index();
            let periodic = periods.get().is_some_and(|periods| periods[dim] != 0);
            let form = Form { halo, padding };
            let mode = Mode::default();
            Ok::<_, Failure>(Operation::from(Halo { axis: along, dim, periodic, form, element, fields: 1, mode }))
        })();
        // Without a halo there is nothing to do, and nothing to check.
        if let Ok(Operation::Halo(Halo { form, .. })) = &wanted
            && form.halo == [0; 3]
        {
            return handle.desc(desc).map(|_| ());
        }
        let kind = Kind { halo: true, axes: [Some(along.index()), axis(dim).ok().map(Axis::index)] };
        run(handle, desc, kind, wanted, at)
    })
}

macro_rules! halos {
    ($($name:ident: $axis:ident;)*) => {$(
        #[unsafe(no_mangle)]
        #[allow(clippy::too_many_arguments)] // C's interface has so many
        extern "C" fn $name(
            handle: Opaque,
            desc: Opaque,
            input: *mut c_void,
            work: *mut c_void,
            dtype: c_int,
            extents: Three,
            periods: CPointer<[u8; 3]>,
            dim: i32,
            padding: Three,
            stream: *mut c_void,
        ) -> c_int {
            let at = Buffers { input, output: input, work, stream };
            halo(handle, desc, Axis::$axis, at, &HaloCall { dtype, halo: extents, periods, dim, padding })
        }
    )*};
}

halos! {
    cudecompUpdateHalosX: X;
    cudecompUpdateHalosY: Y;
    cudecompUpdateHalosZ: Z;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_first_call_that_others_do_not_make_names_its_parameters_and_theirs() {
        let of = |element| Operation::from(Transpose::new((Axis::Y, Axis::Z), element));
        let other = Operation::from(Transpose::new((Axis::X, Axis::Y), 8));
        let said = first_call(&of(16), [other, of(8)].iter()).unwrap_or_default();
        assert!(said.contains("first call with a transpose from Y to Z, 16 bytes"), "{said}");
        assert!(said.contains("earlier ones: a transpose from Y to Z, 8 bytes"), "{said}");
        assert_eq!(first_call(&of(16), [other].iter()), None, "all ranks come to a first call of a kind");
    }
}
