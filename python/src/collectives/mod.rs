//! Collectives of devices: the calls of `symrail_collectives` on the memory of arrays. Programs call the functions in
//! `symrail/collectives`.

#![allow(clippy::needless_pass_by_value)] // Python hands arrays over by value

mod agreed;

use std::ops::Range;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use pyo3::prelude::*;
use pyo3::sync::MutexExt;
use symrail::kernels::cuda::{Current, Gpu};
use symrail::{TeamHeap, with_timeout};
use symrail_collectives::gpu::normed::{RmsNorm, Scaled};
use symrail_collectives::gpu::straight::Way;
use symrail_collectives::gpu::{GpuCommunicator, Memory};
use symrail_collectives::plan::{Check, Collective, Document, Plan};
use symrail_collectives::{Buffer, Communicator, DataType, Error, Reduction, Result, Selection, Transfer};

use agreed::Parameter;

use crate::deferred_free::defer_refused;
use crate::errors::{Kind, failed, failed_on_gpu, failed_round, raise, raise_of_all};
use crate::exclusive::Exclusive;
use crate::foreign::ANY_GPU;
use crate::gpu::{DEFAULT_STREAM, HeldGpu};
use crate::held::HeldTeam;
use crate::runtime::Runtime;
use crate::stream::handle as stream_handle;
use crate::team::Team;
use crate::view::View;

/// A communicator over all PEs or a team's, on the host or on the PE's GPU.
#[pyclass(frozen, module = "symrail._symrail")]
pub struct Collectives {
    /// `None` after `free`.
    parts: Exclusive<Option<Parts>>,
    on_gpu: bool,
    /// Whether calls compare their parameters.
    compare: bool,
    /// Why PEs cannot compare any more.
    lost: Mutex<Option<String>>,
    /// Its number among the job's objects.
    number: u64,
    team: Arc<HeldTeam>,
}

enum Device {
    Host(Box<Communicator>),
    Gpu(Box<GpuCommunicator>),
}

struct Parts {
    device: Device,
    /// The memory of a team's communicator.
    heap: Option<TeamHeap>,
}

/// What PEs make together.
const KIND: &str = "a Communicator";

/// The checked parameters of a call.
struct Call {
    collective: Collective,
    input: View,
    output: View,
    ty: DataType,
    /// Whether the caller names the type.
    casts: bool,
    reduction: Reduction,
    root: u32,
}

#[pymethods]
impl Collectives {
    /// Makes a communicator. Collective over all PEs; without `heap_bytes` it is of all PEs, with it of each PE's team.
    #[new]
    #[allow(clippy::too_many_arguments)] // as Python hands them over
    fn new(
        py: Python<'_>,
        runtime: &Runtime,
        team: &Team,
        heap_bytes: Option<usize>,
        on_gpu: bool,
        any_memory: bool,
        compare: bool,
    ) -> PyResult<Collectives> {
        let (team, job) = (team.held()?, runtime.job());
        job.running()?;
        let gpu = if on_gpu { Some(job.streams()?) } else { None };
        let nvrtc = gpu.map(HeldGpu::nvrtc).transpose().map_err(failed_on_gpu)?;
        runtime.free_deferred(py, None, KIND)?;
        let (rt, members) = (job.runtime(), &*team);
        let made = py.detach(|| {
            let _current = Current::keep();
            let heap = heap_bytes.map(|bytes| TeamHeap::new(rt, bytes)).transpose()?;
            let device = || {
                let mut device = match (gpu.map(HeldGpu::device).zip(nvrtc), &heap) {
                    (None, None) => Device::Host(Box::new(Communicator::new(rt)?)),
                    (None, Some(heap)) => Device::Host(Box::new(Communicator::of_team(members, heap)?)),
                    (Some((device, nvrtc)), None) => Device::Gpu(Box::new(GpuCommunicator::new(device, nvrtc)?)),
                    (Some((device, nvrtc)), Some(heap)) => {
                        Device::Gpu(Box::new(GpuCommunicator::of_team(device, nvrtc, members, heap)?))
                    }
                };
                if let (Device::Gpu(device), true) = (&mut device, any_memory) {
                    device.accept_any_memory()?;
                }
                Ok(device)
            };
            let device = device();
            match (device, heap) {
                (Ok(device), heap) => Ok(Parts { device, heap }),
                (Err(error), heap) => {
                    heap.into_iter().for_each(|heap| defer_refused(job, KIND, heap));
                    Err(error)
                }
            }
        });
        let parts = Exclusive::new(Some(made.map_err(raised)?));
        Ok(Collectives { parts, on_gpu, compare, lost: Mutex::default(), number: job.objects.enter(KIND), team })
    }

    /// Adds an execution plan in JSON, a text or a file's; returns its name. All PEs add the same plan. Collective.
    fn add_plan(&self, py: Python<'_>, text: Option<String>, path: Option<PathBuf>, result: bool) -> PyResult<String> {
        self.usable()?;
        let check = if result { Check::Result } else { Check::Ends };
        let origin = path.as_ref().map_or_else(|| "a text".to_owned(), |path| path.display().to_string());
        let read = || {
            let document = match (&path, &text) {
                (Some(path), _) => Document::load(path)?,
                (None, text) => Document::from_json(text.as_deref().unwrap_or_default(), &origin)?,
            };
            let plan = Plan::new(&document, check)?;
            Selection::check_plan(&plan)?;
            Ok((plan, document))
        };
        let read = py.detach(read).map_err(raised);
        let (plan, _) = self.agree(py, "add_plan", read, |(plan, document)| {
            let content = serde_json::to_string(document).unwrap_or_default();
            let shown = format!("{} of {origin}, {} bytes", plan.name(), content.len());
            vec![
                Parameter::content("plan", &content, shown),
                Parameter::name("check of the result", if result { "on" } else { "off" }),
            ]
        })?;
        let name = plan.name().to_owned();
        self.with(py, |device| selection(device).add_plan(plan))?;
        Ok(name)
    }

    /// Tells the other PEs that this one was refused a call. Collective.
    fn tell(&self, py: Python<'_>, call: &str, why: String) -> PyResult<()> {
        self.usable()?;
        if self.compare {
            self.difference(py, call, &[], Some(why))?;
        }
        Ok(())
    }

    /// The choice for a message of so many bytes, and the reason.
    fn explain(
        &self,
        py: Python<'_>,
        collective: &str,
        bytes: u64,
        in_place: bool,
        root: u32,
        algorithm: Option<&str>,
    ) -> PyResult<Vec<String>> {
        let collective = collective_of(collective)?;
        self.with(py, |device| {
            let selection = selection(device);
            selection.ask_for(algorithm);
            Ok(selection.explain(&collective, bytes, in_place, root))
        })
    }

    /// A collective of contiguous arrays; PEs first compare their parameters. Collective.
    #[allow(clippy::too_many_arguments)] // as Python hands them over
    fn run(
        &self,
        py: Python<'_>,
        collective: &str,
        input: &Bound<'_, PyAny>,
        output: &Bound<'_, PyAny>,
        op: &str,
        root: &Bound<'_, PyAny>,
        dtype: Option<&str>,
        algorithm: Option<&Bound<'_, PyAny>>,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        self.usable()?;
        let passed = || {
            let root = self.rank(root, "root")?;
            let algorithm = algorithm.map(|name| name.extract::<String>()).transpose();
            let algorithm = algorithm.map_err(|_| raise(Kind::Argument, "algorithm is neither a name nor a plan"))?;
            Ok((self.call(collective, input, output, op, root, dtype)?, algorithm, self.stream(stream)?))
        };
        let (call, algorithm, stream) = self
            .compared(py, collective, passed(), |(call, algorithm, _)| self.parameters(call, algorithm.as_deref()))?;
        self.with(py, |device| {
            selection(device).ask_for(algorithm.as_deref());
            match device {
                Device::Host(all) => {
                    let (input, output) = self.buffers(&call)?;
                    on_host(all, &call, input, output)
                }
                Device::Gpu(all) => self.on_gpu(all, &call, stream),
            }
        })
    }

    /// An all-to-all of parts of any sizes, in elements. Collective.
    fn all_to_all_v(
        &self,
        py: Python<'_>,
        input: &Bound<'_, PyAny>,
        output: &Bound<'_, PyAny>,
        input_counts: Vec<i64>,
        output_counts: Vec<i64>,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        self.usable()?;
        let passed = || {
            let counts = (splits(&input_counts)?, splits(&output_counts)?);
            let (from, to) = self.parts_of(input, output, &counts.0, &counts.1)?;
            Ok((from, to, counts, self.stream(stream)?))
        };
        let (from, to, counts, stream) = self.compared(py, "all_to_all_v", passed(), |(from, ..)| {
            vec![Parameter::name("dtype", from.ty.name()), kind_of(from)]
        })?;
        if self.compare {
            self.agree_on_parts(py, &counts.0, &counts.1)?;
        }
        let size = from.ty.bytes as u64;
        let sends = starts(&counts.0, size).map(|(rank, at, len)| (false, rank, (&from, at, len)));
        let receives = starts(&counts.1, size).map(|(rank, at, len)| (true, rank, (&to, at, len)));
        self.transfer(py, &sends.chain(receives).collect::<Vec<_>>(), stream)
    }

    /// An all-reduce of rows with a residual, whose output is their RMS norm. Collective.
    #[allow(clippy::too_many_arguments)] // as Python hands them over
    fn all_reduce_rms_norm(
        &self,
        py: Python<'_>,
        input: &Bound<'_, PyAny>,
        residual: Option<&Bound<'_, PyAny>>,
        sum: &Bound<'_, PyAny>,
        weight: &Bound<'_, PyAny>,
        output: &Bound<'_, PyAny>,
        scale: Option<&Bound<'_, PyAny>>,
        scales: Option<&Bound<'_, PyAny>>,
        epsilon: f32,
        algorithm: Option<&str>,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        const CALL: &str = "all_reduce_rms_norm";
        self.usable()?;
        let passed = || {
            let way = match algorithm {
                None => None,
                Some("packets") => Some(Way::Packets),
                Some("pushed") => Some(Way::Pushed),
                Some(_) => return Err(raise(Kind::Argument, "algorithm is neither packets nor pushed")),
            };
            let input = self.view(input, "input", false)?;
            let name = input.ty.name();
            let (ty, like_input) = (data_type(&name)?, [&*name]);
            let typed = |array: &Bound<'_, PyAny>, role: &str, written: bool, types: &[&str]| {
                let view = self.view(array, role, written)?;
                must_be(&view, role, types)?;
                Ok::<_, PyErr>(view)
            };
            let weight = typed(weight, "weight", false, &like_input)?;
            let hidden = weight.len;
            if hidden == 0 || !input.len.is_multiple_of(hidden) {
                let why = format!("weight has {hidden} elements, and the input {}, no multiple", input.len);
                return Err(raise(Kind::Argument, &why));
            }
            let is_scaled = scale.is_some() || scales.is_some();
            let of_out: &[&str] = if is_scaled { &["float8_e4m3fn", "uint8"] } else { &like_input };
            let residual = residual.map(|array| typed(array, "residual", false, &like_input)).transpose()?;
            let has_residual = residual.is_some();
            let views = [
                Some(typed(sum, "residual_out", true, &like_input)?),
                Some(typed(output, "out", true, of_out)?),
                residual,
                scale.map(|array| typed(array, "scale", false, &["float32"])).transpose()?,
                scales.map(|array| typed(array, "scales", true, &["float32"])).transpose()?,
            ];
            Ok((input, weight, views, (ty, hidden, way, has_residual), self.stream(stream)?))
        };
        let (input, weight, [sum, output, residual, scale, scales], (ty, hidden, way, _), stream) =
            self.compared(py, CALL, passed(), |(input, _, _, (_, hidden, _, has_residual), _)| {
                vec![
                    Parameter::name("dtype", input.ty.name()),
                    kind_of(input),
                    Parameter::number("hidden", *hidden as u64),
                    Parameter::number("bytes of the input", input.bytes() as u64),
                    Parameter::name("residual", if *has_residual { "an array" } else { "None" }),
                    Parameter::content("epsilon", &epsilon.to_bits().to_string(), epsilon.to_string()),
                    named_algorithm(algorithm),
                ]
            })?;
        self.with(py, |device| {
            let Device::Gpu(all) = device else {
                return Err(Error::Call(format!("{CALL} is for GPUs")));
            };
            let gpu = self.gpu()?;
            let memory = |view: &View| Memory { at: gpu.reached(view.bounds()), len: view.bytes() as u64 };
            let (Some(sum), Some(output)) = (sum.as_ref().map(memory), output.as_ref().map(memory)) else {
                return Ok(());
            };
            let scaled = match (scale.as_ref().map(memory), scales.as_ref().map(memory)) {
                (_, Some(scales)) => Scaled::ByGroups(scales),
                (Some(scale), None) => Scaled::ByTensor(scale),
                (None, None) => Scaled::Not,
            };
            let call = RmsNorm {
                input: memory(&input),
                residual: residual.as_ref().map(memory),
                sum,
                weight: memory(&weight),
                output,
                scaled,
                rows: (input.len / hidden) as u64,
                hidden: hidden as u64,
                ty,
                epsilon,
            };
            // SAFETY: the GPU reaches the memory, as was checked; the program keeps it until the stream has come so far.
            unsafe { all.all_reduce_rms_norm(&gpu.stream(stream), &call, way) }
        })
    }

    /// Sends (rank, array) and receives, all at once.
    fn exchange(
        &self,
        py: Python<'_>,
        transfers: Vec<(bool, Bound<'_, PyAny>, Bound<'_, PyAny>)>,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let stream = self.stream(stream)?;
        let views: PyResult<Vec<_>> = transfers
            .iter()
            .map(|(receives, rank, array)| {
                let role = if *receives { "the array of a receive" } else { "the array of a send" };
                Ok((*receives, self.rank(rank, "the peer")?, self.view(array, role, *receives)?))
            })
            .collect();
        let views = views?;
        let all: Vec<_> =
            views.iter().map(|(receives, rank, view)| (*receives, *rank, (view, 0, view.bytes() as u64))).collect();
        self.transfer(py, &all, stream)
    }

    /// Raises the failures of calls on streams. Does not wait.
    fn check(&self, py: Python<'_>) -> PyResult<()> {
        self.team.job.running()?;
        let checked = py.detach(|| {
            let _current = Current::keep();
            self.parts.try_with(|parts| match parts.as_mut()?.device {
                Device::Host(_) => Some(Ok(())),
                Device::Gpu(ref mut all) => Some(all.check()),
            })
        });
        // What a call uses now raises its failures itself, or at the next check.
        checked.unwrap_or(Some(Ok(()))).ok_or_else(freed)?.map_err(raised)
    }

    /// Frees the memory. Collective over all PEs. PEs in other calls of this communicator get a DifferError there, and
    /// this waits until they free it, too, altogether within the time limit.
    fn free(&self, py: Python<'_>) -> PyResult<()> {
        // What PEs sent in a comparison that one of them gave up would be taken for a part of this one.
        let lost = self.lost.lock_py_attached(py).unwrap_or_else(PoisonError::into_inner).is_some();
        if self.compare && !lost && self.usable().is_ok() {
            let limit = self.team.job.runtime().timeout();
            with_timeout(limit, || {
                while self.difference(py, "free", &[], None)?.is_some() {}
                Ok::<_, PyErr>(())
            })?;
        }
        let Some(parts) = py.detach(|| self.parts.with(Option::take))? else { return Ok(()) };
        self.team.job.running()?;
        self.team.job.objects.leave(self.number);
        let limit = self.team.job.runtime().timeout();
        py.detach(move || with_timeout(limit, || parts.free())).map_err(raised)
    }
}

impl Drop for Collectives {
    fn drop(&mut self) {
        let Some(mut parts) = self.parts.get_mut().take() else { return };
        // The memory is freed when all PEs have dropped the communicator. That of a team may be gone by then, so that
        // only its heap stays.
        let job = &self.team.job;
        let Some(heap) = parts.heap.take() else {
            job.drop_object(self.number, Box::new(move || parts.free().map_err(raised)));
            return;
        };
        // The driver frees memory only when all kernels of the GPU have ended, which may need Python's other threads.
        // While the interpreter ends nobody else runs, and the parts go with the closure.
        let _ = Python::try_attach(|py| {
            py.detach(move || {
                let _current = Current::keep();
                drop(parts);
            });
        });
        // A heap is freed when nothing that uses it is left.
        job.drop_object(self.number, Box::new(move || heap.free().map_err(failed)));
    }
}

fn freed() -> PyErr {
    raise(Kind::State, "this communicator was given back by free()")
}

fn collective_of(name: &str) -> PyResult<Collective> {
    Collective::of_call(name).ok_or_else(|| raise(Kind::Argument, &format!("there is no collective {name}")))
}

fn data_type(name: &str) -> PyResult<DataType> {
    name.parse().map_err(|_| {
        let known: Vec<String> = DataType::ALL.iter().map(ToString::to_string).collect();
        raise(Kind::Argument, &format!("no reductions of elements of {name}; there are {}", known.join(", ")))
    })
}

/// Numbers of elements.
fn splits(counts: &[i64]) -> PyResult<Vec<u64>> {
    let below = || raise(Kind::Argument, &format!("the splits {counts:?} have a number below 0"));
    counts.iter().map(|&count| u64::try_from(count).map_err(|_| below())).collect()
}

/// The addresses of an array's elements.
fn span(view: &View) -> Range<u64> {
    let start = view.bounds().address() as u64;
    start..start + view.bytes() as u64
}

fn overlap(input: &View, output: &View) -> bool {
    let (input, output) = (span(input), span(output));
    input.start < output.end && output.start < input.end
}

fn kind_of(view: &View) -> Parameter {
    Parameter::name("kind of array", if view.gpu.is_some() { "one of a GPU" } else { "one of the host" })
}

fn named_algorithm(algorithm: Option<&str>) -> Parameter {
    Parameter::name("algorithm", algorithm.map_or_else(|| "none in particular".into(), ToOwned::to_owned))
}

/// Refuses an array of another type than these.
fn must_be(view: &View, role: &str, types: &[&str]) -> PyResult<()> {
    let name = view.ty.name();
    if types.contains(&&*name) {
        return Ok(());
    }
    Err(raise(Kind::Argument, &format!("{role} has dtype {name}; use {}", types.join(" or "))))
}

impl Parts {
    /// Frees the memory. Collective over all PEs.
    fn free(self) -> Result<()> {
        let _current = Current::keep();
        let Parts { device, heap } = self;
        match device {
            Device::Host(all) => all.free()?,
            Device::Gpu(all) => all.free()?,
        }
        Ok(heap.map_or(Ok(()), TeamHeap::free)?)
    }
}

/// Part `i` has `counts[i]` elements: its number, and its bytes.
fn starts(counts: &[u64], size: u64) -> impl Iterator<Item = (u32, u64, u64)> + '_ {
    (0..).zip(counts).scan(0, move |at, (rank, count)| {
        let start = *at;
        *at += count * size;
        Some((rank, start, count * size))
    })
}

fn selection(device: &mut Device) -> &mut Selection {
    match device {
        Device::Host(all) => all.selection_mut(),
        Device::Gpu(all) => all.selection_mut(),
    }
}

fn on_host(all: &mut Communicator, call: &Call, input: Buffer, output: Buffer) -> Result<()> {
    match call.collective {
        Collective::AllReduce => all.all_reduce(input, output, call.ty, call.reduction),
        Collective::ReduceScatter => all.reduce_scatter(input, output, call.ty, call.reduction),
        Collective::Reduce => all.reduce(input, output, call.ty, call.reduction, call.root),
        Collective::AllGather => all.all_gather(input, output),
        Collective::AllToAll => all.all_to_all(input, output),
        _ => all.broadcast(input, output, call.root),
    }
}

impl Collectives {
    /// Uses the communicator, without Python's lock, one call at a time.
    fn with<R: Send>(&self, py: Python<'_>, call: impl FnOnce(&mut Device) -> Result<R> + Send) -> PyResult<R> {
        self.team.job.running()?;
        let result = py.detach(|| {
            // Programs rely on the device that is current on their threads.
            let _current = Current::keep();
            self.parts.with(|parts| parts.as_mut().map(|parts| call(&mut parts.device)))
        });
        result?.ok_or_else(freed)?.map_err(raised)
    }

    /// Fails if the communicator was freed, which all PEs did together.
    fn usable(&self) -> PyResult<()> {
        self.team.job.running()?;
        // One that another call uses now exists.
        if self.parts.try_with(|parts| parts.is_some()).unwrap_or(true) { Ok(()) } else { Err(freed()) }
    }

    /// A call's arguments, which PEs compare if they do so.
    fn compared<T>(
        &self,
        py: Python<'_>,
        call: &str,
        passed: PyResult<T>,
        parameters: impl FnOnce(&T) -> Vec<Parameter>,
    ) -> PyResult<T> {
        if self.compare { self.agree(py, call, passed, parameters) } else { passed }
    }

    /// What PEs compare of a call.
    fn parameters(&self, call: &Call, algorithm: Option<&str>) -> Vec<Parameter> {
        let place = |view: &View| {
            let (span, rt) = (view.bounds(), self.team.job.runtime());
            let start = std::ptr::with_exposed_provenance(span.address());
            rt.symmetric_offset(start, span.bytes()).ok()
        };
        let (mut input, mut output) = (place(&call.input), place(&call.output));
        // In place, the smaller array is each rank's own part of the larger one.
        let own = u64::from(self.team.group().me());
        let inner = |outer: Option<u64>, view: &View| outer.map(|outer| outer + own * view.bytes() as u64);
        match call.collective {
            Collective::AllGather if input == inner(output, &call.input) => input = output,
            Collective::ReduceScatter if output == inner(input, &call.output) => output = input,
            _ => {}
        }
        let at = |what, offset: Option<u64>| match offset {
            Some(offset) => Parameter::number(what, offset),
            None => Parameter::name(what, "none: outside of the heap"),
        };
        let ty = call.input.ty.name();
        vec![
            Parameter::name("operation", call.reduction.to_string()),
            Parameter::name("dtype", if call.casts { format!("{ty} as {}", call.ty) } else { ty }),
            Parameter::number("bytes of the input", call.input.bytes() as u64),
            Parameter::number("root", call.root.into()),
            named_algorithm(algorithm),
            at("symmetric address of the input", input),
            at("symmetric address of the output", output),
            kind_of(&call.input),
        ]
    }

    fn n(&self) -> usize {
        self.team.group().size() as usize
    }

    fn rank(&self, rank: &Bound<'_, PyAny>, role: &str) -> PyResult<u32> {
        let n = self.n();
        let found = rank.extract::<u32>().ok().filter(|&rank| (rank as usize) < n);
        found.ok_or_else(|| raise(Kind::Argument, &format!("{role} is rank {rank} of {n}")))
    }

    fn stream(&self, stream: Option<&Bound<'_, PyAny>>) -> PyResult<usize> {
        match stream {
            Some(_) if !self.on_gpu => Err(raise(Kind::Argument, "a communicator of the host takes no stream")),
            Some(stream) => stream_handle(stream),
            None => Ok(DEFAULT_STREAM),
        }
    }

    /// The memory of an array, if this communicator can use it.
    fn view(&self, array: &Bound<'_, PyAny>, role: &str, written: bool) -> PyResult<View> {
        let (job, view) = (&self.team.job, self.team.job.any_view(array, role)?);
        let refuse = |why: &str| Err(raise(Kind::Argument, &format!("{role} {why}")));
        if !view.contiguous {
            return refuse("is not contiguous");
        }
        if written && !view.writable {
            return refuse("cannot be written to (its flag `writeable` is false)");
        }
        let span = view.bounds();
        let symmetric = job.runtime().is_symmetric(std::ptr::with_exposed_provenance(span.address()), span.bytes());
        match (self.on_gpu, view.gpu) {
            (false, Some(_)) => refuse("is in a GPU's memory, and this communicator is the host's"),
            (false, None) if !symmetric && view.len > 0 => refuse(
                "is not symmetric memory of this job: copy it into an array of symrail.array(n, dtype), or make it one",
            ),
            (true, Some(gpu)) if gpu != ANY_GPU && gpu != job.streams()?.ordinal() => {
                refuse(&format!("is in the memory of GPU {gpu}, which is not this PE's"))
            }
            (true, None) if !symmetric && !Gpu::reaches(span.address()) => refuse(
                "is memory of the host that no GPU reaches: copy it into an array of symrail.array, or of the GPU",
            ),
            _ => Ok(view),
        }
    }

    fn call(
        &self,
        collective: &str,
        input: &Bound<'_, PyAny>,
        output: &Bound<'_, PyAny>,
        op: &str,
        root: u32,
        dtype: Option<&str>,
    ) -> PyResult<Call> {
        let (name, collective, n) = (collective, collective_of(collective)?, self.n());
        let (input, output) = (self.view(input, "input", false)?, self.view(output, "output", true)?);
        if input.ty != output.ty {
            let (from, to) = (input.ty.name(), output.ty.name());
            return Err(raise(Kind::Argument, &format!("dtypes differ: input has {from}, output {to}")));
        }
        let reduces = matches!(collective, Collective::AllReduce | Collective::ReduceScatter | Collective::Reduce);
        let ty = match (reduces, dtype) {
            (false, _) => DataType::Uint8,
            (true, name) => data_type(name.unwrap_or(&input.ty.name()))?,
        };
        if reduces && ty.size() != input.ty.bytes {
            let why = format!("dtype={ty} has {} bytes, and the array's {}", ty.size(), input.ty.bytes);
            return Err(raise(Kind::Argument, &why));
        }
        let (from, to) = (input.len, output.len);
        let (fits, wanted) = match collective {
            Collective::AllGather => (to == from * n, format!("output has {n} times as many elements as input")),
            Collective::ReduceScatter => (from == to * n, format!("input has {n} times as many elements as output")),
            Collective::AllToAll => {
                (from == to && from.is_multiple_of(n), format!("both have as many elements, a multiple of {n}"))
            }
            _ => (from == to, "both have as many elements".to_owned()),
        };
        if !fits {
            let why = format!("{name}: input has {from} elements and output {to}; {wanted}");
            return Err(raise(Kind::Argument, &why));
        }
        collective.check_overlap(self.team.group().me(), &span(&input), &span(&output)).map_err(raised)?;
        let reduction = op.parse().map_err(raised)?;
        Ok(Call { collective, input, output, ty, casts: reduces && dtype.is_some(), reduction, root })
    }

    fn parts_of(
        &self,
        input: &Bound<'_, PyAny>,
        output: &Bound<'_, PyAny>,
        from: &[u64],
        to: &[u64],
    ) -> PyResult<(View, View)> {
        let views = (self.view(input, "input", false)?, self.view(output, "output", true)?);
        if views.0.ty != views.1.ty {
            let (from, to) = (views.0.ty.name(), views.1.ty.name());
            return Err(raise(Kind::Argument, &format!("dtypes differ: input has {from}, output {to}")));
        }
        if overlap(&views.0, &views.1) {
            return Err(raise(Kind::Argument, "input and output overlap; all_to_all works in place"));
        }
        let n = self.n();
        for (role, view, counts) in [("input", &views.0, from), ("output", &views.1, to)] {
            let sum = counts.iter().try_fold(0u64, |sum, count| sum.checked_add(*count));
            if counts.len() != n || sum != Some(view.len as u64) {
                let why = format!("{role} has {} elements, and its splits are {counts:?} among {n} PEs", view.len);
                return Err(raise(Kind::Argument, &why));
            }
        }
        Ok(views)
    }

    fn buffers(&self, call: &Call) -> Result<(Buffer, Buffer)> {
        let whole = |view: &View| self.buffer(view, 0, view.bytes() as u64);
        Ok((whole(&call.input)?, whole(&call.output)?))
    }

    /// Bytes of an array in the symmetric heap.
    fn buffer(&self, view: &View, at: u64, len: u64) -> Result<Buffer> {
        let (span, rt) = (view.bounds(), self.team.job.runtime());
        Buffer::at(rt, std::ptr::with_exposed_provenance(span.address()), span.bytes())?.part(at, len)
    }

    fn gpu(&self) -> Result<&HeldGpu> {
        self.team.job.gpu().ok_or_else(|| Error::Call("there is no GPU".into()))
    }

    fn on_gpu(&self, all: &mut GpuCommunicator, call: &Call, stream: usize) -> Result<()> {
        let gpu = self.gpu()?;
        let stream = &gpu.stream(stream);
        let memory = |view: &View| Memory { at: gpu.reached(view.bounds()), len: view.bytes() as u64 };
        let (input, output) = (memory(&call.input), memory(&call.output));
        // SAFETY: the GPU reaches the memory, as was checked; the program keeps it until the stream has come so far.
        unsafe {
            match call.collective {
                Collective::AllReduce => all.all_reduce(stream, input, output, call.ty, call.reduction),
                Collective::ReduceScatter => all.reduce_scatter(stream, input, output, call.ty, call.reduction),
                Collective::Reduce => all.reduce(stream, input, output, call.ty, call.reduction, call.root),
                Collective::AllGather => all.all_gather(stream, input, output),
                Collective::AllToAll => all.all_to_all(stream, input, output),
                _ => all.broadcast(stream, input, output, call.root),
            }
        }
    }

    /// Transfers: whether it is a receive, the rank, and bytes of an array.
    fn transfer(&self, py: Python<'_>, all: &[(bool, u32, (&View, u64, u64))], stream: usize) -> PyResult<()> {
        fn made<M>(receives: bool, rank: u32, memory: M) -> Transfer<M> {
            if receives { Transfer::Receive { from: rank, memory } } else { Transfer::Send { to: rank, memory } }
        }
        self.with(py, |device| match device {
            Device::Host(communicator) => {
                let transfers: Result<Vec<_>> = all
                    .iter()
                    .map(|&(receives, rank, (view, at, len))| Ok(made(receives, rank, self.buffer(view, at, len)?)))
                    .collect();
                communicator.exchange(&transfers?)
            }
            Device::Gpu(communicator) => {
                let gpu = self.gpu()?;
                let memory = |view: &View, at: u64, len: u64| Memory { at: gpu.reached(view.bounds()) + at, len };
                let transfers: Vec<_> = all
                    .iter()
                    .map(|&(receives, rank, (view, at, len))| made(receives, rank, memory(view, at, len)))
                    .collect();
                // SAFETY: the GPU reaches the memory, as was checked; the program keeps it until the stream has come so
                // far.
                unsafe { communicator.exchange(&gpu.stream(stream), &transfers) }
            }
        })
    }
}

/// The exception for an error.
fn raised(error: Error) -> PyErr {
    let text = error.to_string();
    match error {
        Error::Runtime(error) => failed(error),
        Error::Gpu(error) => failed_on_gpu(error),
        Error::Round(error) => failed_round(error),
        Error::Sizes { from, to, .. } => raise_of_all(Kind::Differ, &text, vec![from, to]),
        Error::Device(_) | Error::Launch(_) => raise(Kind::Operation, &text),
        _ => raise(Kind::Argument, &text),
    }
}
