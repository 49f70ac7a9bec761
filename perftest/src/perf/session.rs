//! One PE of a measurement, from joining to the last figure.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use symrail::bootstrap::{self, Bootstrap};
use symrail::gpu::GpuDevice;
use symrail::{Runtime, Settings};
use symrail_decomp::cuda::GpuKernels;
use symrail_kernels::cuda::compile::Nvrtc;
use symrail_transport::env::HeapKind;

use super::Args;
use super::backend::{Backend, area};
use super::catalog::Device;
use super::catalog::{Collective, Exchange, Layer, Phase, Product, Test, Work};
use super::cuda::{self, Cuda};
use super::device;
use super::error::{Error, Result};
use super::host::Host;
use super::measure::{Bench, footprint};
use super::memory;
use super::plan::Plan;
use super::raw::{Copies, Fabric};
use super::report::{Conditions, Report};
use super::sample::{Figures, clock_cost};

/// Runs the tests in this PE. `notes` are printed above all figures.
pub fn run(args: &Args, tests: &[&'static Test], notes: &[String]) -> Result<()> {
    let begun = Instant::now();
    let settings = Settings::from_env()?;
    let mut bootstrap = bootstrap::open(&settings)?;
    let (me, n_pes) = (bootstrap.pe(), bootstrap.n_pes());
    let plan = args.plan();
    let bytes = if settings.heap_kind == HeapKind::Device { 0 } else { plan.heap(tests, n_pes) };
    let (hosts, machine) = look_around(&settings, &mut *bootstrap, bytes)?;
    let steps = tests.iter().map(|test| plan.sizes(test).len() as u64).sum();
    let mut session = Session {
        report: Report::new(me == 0, steps, args.files())?,
        conditions: Conditions {
            plan: plan.clone(),
            machine,
            hosts,
            n_pes,
            device: args.device.to_string(),
            ..Conditions::default()
        },
        plan: &plan,
        // A test that was named must run; with `all`, tests that cannot run are skipped.
        lenient: args.wants_all(),
    };
    let clock =
        format!("reading the clock takes {:.3} us of each sample, which covers `batch` operations", clock_cost());
    notes.iter().chain([&clock]).try_for_each(|note| session.report.note(note))?;
    let (bare, ours): (Vec<_>, Vec<_>) = tests.iter().copied().partition(|test| test.layer != Layer::Runtime);
    for test in bare {
        session.bare(test, &settings, &mut *bootstrap)?;
    }
    if !ours.is_empty() {
        session.with_runtime(&ours, settings, bootstrap, args.device, begun)?;
    }
    session.report.finish()
}

/// The number of hosts of the PEs, real or simulated, and the name of PE 0's machine. Refuses an area of `bytes` for
/// each PE if some machine lacks the memory for it. Collective.
fn look_around(settings: &Settings, bootstrap: &mut dyn Bootstrap, bytes: usize) -> Result<(usize, String)> {
    type Said = (String, String, Option<u64>);
    let name = nix::unistd::gethostname().map_or_else(|_| String::new(), |name| name.to_string_lossy().into_owned());
    let host = settings.fake_host.clone().unwrap_or_else(|| name.clone());
    let system = |reason: serde_json::Error| Error::System {
        what: "what a PE says of its host".into(),
        reason: reason.to_string(),
    };
    let mine: Said = (host, name, memory::available());
    let all = bootstrap.allgather(&serde_json::to_vec(&mine).map_err(system)?)?;
    let all: Vec<Said> =
        all.iter().map(|said| serde_json::from_slice(said)).collect::<Result<_, _>>().map_err(system)?;
    for (_, name, available) in &all {
        memory::check(all.iter().filter(|(_, other, _)| other == name).count(), bytes, *available)?;
    }
    let hosts: BTreeSet<&String> = all.iter().map(|(host, ..)| host).collect();
    Ok((hosts.len(), all.first().map(|(_, name, _)| name.clone()).unwrap_or_default()))
}

struct Session<'a> {
    plan: &'a Plan,
    report: Report,
    conditions: Conditions,
    lenient: bool,
}

impl Session<'_> {
    /// Runs a test without a runtime. Collective.
    fn bare(&mut self, test: &'static Test, settings: &Settings, bootstrap: &mut dyn Bootstrap) -> Result<()> {
        let bytes = self.plan.area(&[test], 2);
        let run = if test.layer == Layer::Copies {
            Copies::open(settings, bootstrap, bytes).map(|mut copies| {
                let conditions = Conditions { path: "copies".into(), transport: "none".into(), ..self.plain() };
                self.sizes(&mut copies, test, &conditions)
            })
        } else {
            let atomics = matches!(test.work, Work::FetchAdd | Work::AddWindows(_));
            Fabric::open(settings, bootstrap, bytes, atomics).map(|mut fabric| {
                let (provider, rail, progress) = fabric.describe();
                let (path, transport) = ("wire".into(), "libfabric".into());
                let rails = vec![rail];
                let conditions = Conditions { path, transport, provider, rails, progress, ..self.plain() };
                self.sizes(&mut fabric, test, &conditions)
            })
        };
        match run {
            Ok(done) => done,
            Err(why) if self.lenient => self.report.skip(test, &why, self.plan.sizes(test).len() as u64),
            Err(why) => Err(why),
        }
    }

    /// The conditions of tests without a device.
    fn plain(&self) -> Conditions {
        Conditions { device: Device::Host.to_string(), ..self.conditions.clone() }
    }

    /// Runs the tests of the runtime. Collective.
    fn with_runtime(
        &mut self,
        tests: &[&'static Test],
        settings: Settings,
        bootstrap: Box<dyn Bootstrap>,
        device: Device,
        begun: Instant,
    ) -> Result<()> {
        let runtime = Arc::new(Runtime::join(settings, bootstrap)?);
        let joined = begun.elapsed();
        let done = self.tests_of(&runtime, tests, device, joined);
        if let Err(error) = &done {
            // The other PEs would wait for this PE for long.
            runtime.abort(1, &error.to_string());
            return done;
        }
        // The device's references to the runtime are gone with the device.
        match Arc::into_inner(runtime) {
            Some(runtime) => Ok(runtime.finalize()?),
            None => Ok(()),
        }
    }

    fn tests_of(
        &mut self,
        runtime: &Arc<Runtime>,
        tests: &[&'static Test],
        device: Device,
        joined: Duration,
    ) -> Result<()> {
        if runtime.n_pes() < 2 {
            return Err(Error::Arguments("there is 1 PE; at least 2 are needed: use -n 2".into()));
        }
        let bytes = self.plan.area(tests, runtime.n_pes());
        let mut host = Host::new(runtime, bytes)?;
        let conditions = self.conditions_of(runtime);
        let (figures, tests): (Vec<_>, Vec<_>) =
            tests.iter().copied().partition(|test| matches!(test.work, Work::Init | Work::Memory | Work::Idle));
        for test in figures {
            self.figure(&mut host, test, &conditions, joined)?;
        }
        match device {
            Device::Host => {
                for test in tests {
                    match test.work {
                        Work::Experts(phase) => self.experts(&mut host, (test, phase), runtime, &conditions)?,
                        Work::Collective(what) => self.collective(&mut host, (test, what), runtime, &conditions)?,
                        Work::Pencils(what) => self.pencils(&mut host, (test, what), runtime, None, &conditions)?,
                        Work::Product(what) => self.product(&mut host, (test, what), runtime, &conditions)?,
                        _ => self.sizes(&mut host, test, &conditions)?,
                    }
                }
            }
            Device::Cpu => tests.into_iter().try_for_each(|test| match test.work {
                Work::Collective(what) => self.collective(&mut host, (test, what), runtime, &conditions),
                Work::Experts(phase) => self.experts(&mut host, (test, phase), runtime, &conditions),
                Work::Product(what) => self.product(&mut host, (test, what), runtime, &conditions),
                _ => device::launch(runtime, host.base(), bytes, |device| self.sizes(device, test, &conditions)),
            })?,
            Device::Cuda => {
                let gpu = runtime.own_gpu()?;
                let device = runtime.gpu_device(&gpu)?;
                self.on_gpu(&device, &mut host, tests, conditions)?;
                device.close()?;
            }
        }
        host.free()
    }

    /// Runs the tests that a GPU's kernels perform. Collective.
    fn on_gpu<'r>(
        &mut self,
        device: &GpuDevice,
        host: &mut Host<'r>,
        tests: Vec<&'static Test>,
        conditions: Conditions,
    ) -> Result<()> {
        let runtime = device.runtime();
        let path = if device.is_mapped(runtime.n_pes() - 1) { "mapped" } else { "wire" }.into();
        let conditions = Conditions { path, device: cuda::describe(device), ..conditions };
        let is_by_plan = |test: &&Test| matches!(test.work, Work::Pencils(_) | Work::Experts(_) | Work::Product(_));
        let (by_plans, calls): (Vec<_>, Vec<_>) = tests.into_iter().partition(is_by_plan);
        if !calls.is_empty() {
            let mut cuda = Cuda::new(device, host)?;
            calls.into_iter().try_for_each(|test| self.sizes(&mut cuda, test, &conditions))?;
        }
        if by_plans.is_empty() {
            return Ok(());
        }
        let (nvrtc, mut kernels, mut products) = (Nvrtc::find()?, None, None);
        for test in by_plans {
            match test.work {
                Work::Experts(phase) => self.each(host, test, &conditions, |bench, size| {
                    let (figures, traffic) = bench.gpu_experts(device, &nvrtc, phase, size)?;
                    Ok((figures, figures.map(|figures| traffic.over(figures.p50))))
                })?,
                Work::Pencils(what) => {
                    let kernels = match &mut kernels {
                        Some(kernels) => kernels,
                        none => none.insert(GpuKernels::new(device, &nvrtc)?),
                    };
                    self.pencils(host, (test, what), runtime, Some(kernels), &conditions)?;
                }
                Work::Product(what) => {
                    let kernels = match &mut products {
                        Some(kernels) => kernels,
                        none => none.insert(symrail_overlap::cuda::GpuKernels::new(device, &nvrtc)?),
                    };
                    self.each(host, test, &conditions, |bench, size| {
                        let (figures, parts) = bench.gpu_product(kernels, what, size)?;
                        Ok((figures, figures.map(|_| parts.to_string())))
                    })?;
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn conditions_of(&self, runtime: &Runtime) -> Conditions {
        let caps = runtime.rails();
        let provider = caps.first().map_or_else(String::new, |rail| rail.provider.clone());
        let transport = match provider.as_str() {
            "" => "none",
            "verbs" => "ibverbs",
            _ => "libfabric",
        };
        // PE 0 works with the last PE.
        let mapped = runtime.is_mapped(runtime.n_pes() - 1);
        Conditions {
            path: if mapped { "mapped" } else { "wire" }.into(),
            transport: transport.into(),
            provider,
            progress: caps.first().map_or_else(String::new, |rail| rail.progress.clone()),
            rails: caps.into_iter().map(|rail| rail.name).collect(),
            ..self.conditions.clone()
        }
    }

    /// Runs all sizes of a test. Collective.
    fn sizes<C: Backend>(&mut self, backend: &mut C, test: &'static Test, conditions: &Conditions) -> Result<()> {
        self.each(backend, test, conditions, |bench, size| Ok((bench.measure(size)?, None)))
    }

    /// Runs all sizes of a test of expert parallelism. Collective.
    fn experts(
        &mut self,
        host: &mut Host<'_>,
        (test, phase): (&'static Test, Phase),
        runtime: &Runtime,
        conditions: &Conditions,
    ) -> Result<()> {
        self.each(host, test, conditions, |bench, size| {
            let (figures, traffic) = bench.experts(runtime, phase, size)?;
            Ok((figures, figures.map(|figures| traffic.over(figures.p50))))
        })
    }

    /// Runs all sizes of an exchange of an array in pencils. Collective.
    fn pencils(
        &mut self,
        host: &mut Host<'_>,
        (test, what): (&'static Test, Exchange),
        runtime: &Runtime,
        kernels: Option<&GpuKernels>,
        conditions: &Conditions,
    ) -> Result<()> {
        self.each(host, test, conditions, |bench, size| {
            let (figures, cube) = bench.pencils(runtime, kernels, what, size)?;
            Ok((figures, figures.map(|figures| cube.over(figures.p50))))
        })
    }

    /// Runs all sizes of a product of a layer. Collective.
    fn product(
        &mut self,
        host: &mut Host<'_>,
        (test, what): (&'static Test, Product),
        runtime: &Runtime,
        conditions: &Conditions,
    ) -> Result<()> {
        self.each(host, test, conditions, |bench, size| {
            let (figures, parts) = bench.product(runtime, what, size)?;
            Ok((figures, figures.map(|_| parts.to_string())))
        })
    }

    /// Runs all sizes of a collective of devices. Collective.
    fn collective(
        &mut self,
        host: &mut Host<'_>,
        (test, what): (&'static Test, Collective),
        runtime: &Runtime,
        conditions: &Conditions,
    ) -> Result<()> {
        let conditions = &Conditions { device: Device::Cpu.to_string(), ..conditions.clone() };
        self.each(host, test, conditions, |bench, size| Ok((bench.collective(runtime, what, size)?, None)))
    }

    /// Reports the results of `measure` for each size of a test: PE 0's figures, and a note on them. Collective.
    fn each<C: Backend>(
        &mut self,
        backend: &mut C,
        test: &'static Test,
        conditions: &Conditions,
        mut measure: impl FnMut(&mut Bench<'_, C>, usize) -> Result<(Option<Figures>, Option<String>)>,
    ) -> Result<()> {
        self.report.begin(test, conditions)?;
        let mut bench = Bench::new(backend, self.plan, test);
        for size in self.plan.sizes(test) {
            let (figures, note) = measure(&mut bench, size)?;
            if let Some(figures) = figures {
                self.report.add(test, conditions, size, &figures)?;
            }
            note.map_or(Ok(()), |note| self.report.note(&note))?;
        }
        self.report.end(test)
    }

    /// A figure of every PE; the largest is reported. Collective.
    fn figure<C: Backend>(
        &mut self,
        backend: &mut C,
        test: &'static Test,
        conditions: &Conditions,
        joined: Duration,
    ) -> Result<()> {
        let (me, n) = (backend.pe(), backend.n_pes());
        if n as usize > area::N_WORDS {
            return Err(Error::Arguments(format!("{} is for at most {} PEs", test.name, area::N_WORDS)));
        }
        self.report.begin(test, conditions)?;
        backend.barrier()?;
        let mine = match test.work {
            Work::Init => joined.as_secs_f64() * 1e3,
            Work::Idle => footprint::processor_time_asleep()?,
            _ => {
                // Connections and buffers that come with use must exist.
                for pe in (0..n).filter(|pe| *pe != me) {
                    backend.put_word(pe, area::PING, 0)?;
                    backend.get(pe, area::RESULT, area::PING, 8)?;
                    backend.fetch_add(pe, area::COUNTER, 1)?;
                }
                backend.barrier()?;
                footprint::resident_besides_heaps()?
            }
        };
        backend.put_word(0, area::WORDS + 8 * me as usize, mine.to_bits())?;
        backend.barrier()?;
        if me == 0 {
            let all = (0..n as usize).map(|pe| f64::from_bits(backend.word(area::WORDS + 8 * pe)));
            let value = all.fold(0.0, f64::max);
            self.report.add(test, conditions, 0, &Figures::one(value))?;
        }
        backend.barrier()?;
        self.report.end(test)
    }
}
