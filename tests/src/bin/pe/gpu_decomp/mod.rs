//! Transposes, halos and all-to-alls on GPUs, every byte checked: all process grids, element sizes, orders, halos,
//! padding, in and out of place, symmetric arrays and others; graphs; two plans on two streams; misuse; a PE that does
//! not arrive; and times.
//!
//!     SYMRAIL_HEAP_KIND=device SYMRAIL_HEAP_SIZE=600M symrail run -n 2 -- pe gpu_decomp WHAT
//!
//! with `small`, `large`, `graph`, `two`, `all`, `misuse`, `late`, `bench`, `crossover`, or `versus MIB EDGE…`, whose
//! workspaces have so many MiB of the heap.
//!
//! Without a GPU it prints SKIPPED.
mod all_to_all;
mod bench;
mod numbers;
mod versus;

use std::sync::Arc;
use std::time::Duration;

use symrail::gpu::GpuDevice;
use symrail::kernels::cuda::compile::Nvrtc;
use symrail::kernels::cuda::{DeviceBuffer, DevicePtr, Gpu, Stream};
use symrail::{Group, Result, Runtime, TeamHeap};
use symrail_decomp::cuda::{GpuKernels, GpuMemory, GpuPlan};
use symrail_decomp::{Axis, Decomposition, Error, Form, Grid, Halo, Mode, RankOrder, Refusal, Transpose, Workspace};
use symrail_tests::pe;
use symrail_tests::pencils::{self, Array, Place};

/// Bytes of an array in symmetric memory.
const ARRAY: usize = 40 << 20;
const TIME_LIMIT: Duration = Duration::from_secs(60);

pub fn main() -> std::process::ExitCode {
    let what: String = pe::arg(0, "small".into());
    if Gpu::count() == 0 {
        println!("SKIPPED: no CUDA driver or no GPU on this machine");
        return std::process::ExitCode::SUCCESS;
    }
    pe::run(|rt| {
        let gpu = rt.own_gpu()?;
        let device = rt.gpu_device(&gpu)?;
        let kernels = good(GpuKernels::new(&device, &good(Nvrtc::find())));
        let heap = good(TeamHeap::new(rt, pe::arg(1, 96) << 20));
        let arrays = [(); 2].map(|()| rt.align(256, ARRAY).unwrap());
        let world = World {
            rt,
            device: &device,
            gpu: &gpu,
            kernels: &kernels,
            heap: &heap,
            stream: good(Stream::new(&gpu)),
            symmetric: arrays.map(|array| device.address(array)),
            private: [(); 2].map(|()| good(gpu.alloc(ARRAY))),
        };
        let said = match what.as_str() {
            "large" => world.large(),
            "graph" => world.graph(),
            "two" => world.two(),
            "all" => world.all_to_alls()?,
            "misuse" => world.misuse(false) + ", by copy engines " + &world.misuse(true),
            "late" => world.late(),
            "bench" => world.bench(),
            "crossover" => world.crossover(),
            "versus" => {
                let edges: Vec<usize> = pe::args().skip(3).filter_map(|edge| edge.parse().ok()).collect();
                world.versus(&edges)
            }
            _ => world.small()?,
        };
        if rt.my_pe() == 0 {
            println!(
                "well: {what}, {said}, peers {}",
                if device.is_mapped(rt.n_pes() - 1) { "mapped" } else { "proxied" }
            );
        }
        rt.barrier_all()?;
        drop(kernels);
        device.close()
    })
}

fn good<T, E: std::fmt::Display>(result: std::result::Result<T, E>) -> T {
    result.unwrap_or_else(|error| panic!("{error}"))
}

struct World<'d> {
    rt: &'d Runtime,
    device: &'d GpuDevice,
    gpu: &'d Arc<Gpu>,
    kernels: &'d GpuKernels,
    heap: &'d TeamHeap,
    stream: Stream,
    symmetric: [u64; 2],
    private: [DeviceBuffer; 2],
}

/// Forms of pencils: halos and padding, on one side, on both, or none.
fn form(i: usize) -> (Form, Form) {
    let none = Form::default();
    let one = Form { halo: [1, 2, 1], padding: [1, 1, 2] };
    let other = Form { halo: [2, 0, 1], padding: [0, 3, 0] };
    [(none, none), (one, other), (none, one), (other, none)][i % 4]
}

impl<'d> World<'d> {
    fn memory(&self, which: usize, symmetric: bool, bytes: usize) -> GpuMemory {
        assert!(bytes <= ARRAY, "an array of {bytes} bytes");
        let at = if symmetric { self.symmetric[which] } else { self.private[which].at().get() };
        GpuMemory { at, bytes }
    }

    fn write(&self, to: GpuMemory, bytes: &[u8]) {
        // SAFETY: memory of this program, as large as the array.
        good(unsafe { self.gpu.write(DevicePtr::new(to.at), bytes) });
    }

    fn read(&self, from: GpuMemory, bytes: &mut [u8]) {
        // SAFETY: as above.
        good(unsafe { self.gpu.read(DevicePtr::new(from.at), bytes) });
    }

    /// One round, with arrays that are copied to the GPU and back.
    fn round(
        &self,
        plan: &mut GpuPlan,
        work: &mut Workspace,
        symmetric: bool,
        (input, output): (&mut Array, Option<&mut Array>),
    ) -> Result<(), Error> {
        let from = self.memory(0, symmetric, input.bytes().len());
        self.write(from, input.bytes());
        let (to, back) = match output {
            Some(output) => {
                let to = self.memory(1, symmetric, output.bytes().len());
                self.write(to, output.bytes());
                (to, output)
            }
            None => (from, input),
        };
        // SAFETY: the buffers stay, and this thread waits.
        unsafe { plan.post(&self.stream, from, to, work) }?;
        good(self.stream.wait(TIME_LIMIT));
        plan.check()?;
        self.read(to, back.bytes());
        Ok(())
    }

    fn transpose(&self, array: &Decomposition, wanted: &Transpose, in_place: bool, symmetric: bool, rounds: usize) {
        pe::doing(format!("{wanted:?} in place {in_place} symmetric {symmetric} {:?}", array.grid()));
        let mut plan = good(array.gpu_transpose(self.kernels, wanted));
        let mut work = good(array.workspace(plan.workspace_bytes()));
        let bytes = (plan.input_bytes(), plan.output_bytes());
        for _ in 0..rounds {
            let done =
                pencils::transposed(array, wanted, Place { symmetric: None, in_place }, bytes, |input, output| {
                    self.round(&mut plan, &mut work, symmetric, (input, (!in_place).then_some(output)))
                });
            good(done);
        }
        good(array.give_up_gpu(plan));
        good(array.give_back(work));
    }

    fn halo(&self, array: &Decomposition, what: (Axis, Form, bool), how: (usize, usize, Mode), symmetric: bool) {
        let ((axis, form, periodic), (element, fields, mode)) = (what, how);
        pe::doing(format!("halos of {what:?} {how:?} symmetric {symmetric} {:?}", array.grid()));
        good(pencils::updated(array, what, (element, fields), None, |dim, memory| {
            let halo = Halo { axis, dim, periodic, form, element, fields, mode };
            let mut plan = array.gpu_halo(self.kernels, &halo)?;
            let mut work = array.workspace(plan.workspace_bytes())?;
            self.round(&mut plan, &mut work, symmetric, (memory, None))?;
            array.give_up_gpu(plan)?;
            array.give_back(work)
        }));
    }

    /// 9 x 10 x 11 on all process grids of all teams of the first PEs.
    fn small(&self) -> Result<String> {
        let (rt, world) = (self.rt, self.rt.team_world()?);
        let orders = [[[0, 1, 2]; 3], [[0, 1, 2], [1, 2, 0], [2, 0, 1]], [[2, 0, 1], [0, 2, 1], [1, 0, 2]]];
        let mut count = 0;
        for size in 1..=rt.n_pes() {
            let Some(mut team) = world.split(Group::new(0, 1, size.into(), rt.my_pe(), rt.n_pes()))? else { continue };
            let mut i = size as usize * 100;
            for processes in Grid::factors(size as usize) {
                for (k, memory) in orders.into_iter().enumerate() {
                    let ranks = [RankOrder::RowMajor, RankOrder::ColumnMajor][k % 2];
                    let distributed = if k == 2 { [8, 8, 8] } else { [9, 10, 11] };
                    let grid = Grid { memory, ranks, distributed, ..Grid::new([9, 10, 11], processes) };
                    let array = good(Decomposition::new(self.heap, team, grid));
                    let variant = |i: usize| {
                        let mode = Mode {
                            pipelined: true,
                            direct: !i.is_multiple_of(7),
                            engines: [None, None, Some(0), Some(500)][i % 4],
                        };
                        (
                            [8, 16, 4, 2, 12][i % 5],
                            1 + usize::from(i.is_multiple_of(3)),
                            mode,
                            (i / 2).is_multiple_of(2),
                        )
                    };
                    for axes in Transpose::ALL {
                        i += 1;
                        let (element, fields, mode, symmetric) = variant(i);
                        let (input, output) = form(i / 4);
                        let wanted = Transpose { fields, mode, input, output, ..Transpose::new(axes, element) };
                        self.transpose(&array, &wanted, i % 3 == 1, symmetric, 2);
                    }
                    i += 1;
                    let (element, fields, mode, symmetric) = variant(i);
                    let form = Form { halo: [1, 1, 1], padding: [0, 2, 1] };
                    let what = (Axis::ALL[i % 3], form, i.is_multiple_of(2));
                    self.halo(&array, what, (element, fields, mode), symmetric);
                    team = array.into_team();
                    count += Transpose::ALL.len() + 1;
                }
            }
            team.destroy()?;
        }
        Ok(format!("{count} configurations"))
    }

    fn world(&self, grid: Grid) -> Decomposition {
        good(Decomposition::new(self.heap, self.rt.team_world().unwrap(), grid))
    }

    fn large(&self) -> String {
        for (i, processes) in Grid::factors(self.rt.n_pes() as usize).enumerate() {
            let grid = Grid::new([128, 124, 132], processes);
            let array = self.world(if i.is_multiple_of(2) { grid } else { grid.axis_contiguous() });
            for (k, axes) in Transpose::ALL.into_iter().enumerate() {
                let element = [2, 4, 8, 16][(i + k) % 4];
                self.transpose(&array, &Transpose::new(axes, element), k == 3, (i + k).is_multiple_of(2), 1);
            }
            let form = Form { halo: [1, 1, 1], padding: [0; 3] };
            self.halo(&array, (Axis::Y, form, true), (8, 1, Mode::default()), i.is_multiple_of(2));
        }
        "128 x 124 x 132".into()
    }

    fn plan(&self, array: &Decomposition, axes: (Axis, Axis), engines: bool) -> (GpuPlan, Workspace) {
        let mode = Mode { engines: engines.then_some(0), ..Mode::default() };
        let plan = good(array.gpu_transpose(self.kernels, &Transpose { mode, ..Transpose::new(axes, 8) }));
        let work = good(array.workspace(plan.workspace_bytes()));
        (plan, work)
    }

    /// A graph is replayed while the elements change.
    fn graph(&self) -> String {
        let n = self.rt.n_pes() as usize;
        let array = self.world(Grid::new([24, 20, 28], [n, 1]).axis_contiguous());
        let (mut there, mut work) = self.plan(&array, (Axis::X, Axis::Y), false);
        let (mut back, mut other) = self.plan(&array, (Axis::Y, Axis::X), true);
        let x = self.memory(0, true, there.input_bytes());
        let y = self.memory(1, false, there.output_bytes());
        let post = |there: &mut GpuPlan, back: &mut GpuPlan, work: &mut Workspace, other: &mut Workspace| {
            // SAFETY: the buffers stay.
            unsafe {
                there.post(&self.stream, x, y, work)?;
                back.post(&self.stream, y, x, other)
            }
        };
        let captured = self.stream.capture::<Error>(|| post(&mut there, &mut back, &mut work, &mut other));
        assert!(matches!(captured, Err(Error::FirstCaptured { .. })), "a first round was captured");
        good(post(&mut there, &mut back, &mut work, &mut other));
        good(self.stream.wait(TIME_LIMIT));
        let graph = good(self.stream.capture::<Error>(|| post(&mut there, &mut back, &mut work, &mut other)));
        for round in 0..200u64 {
            let words: Vec<u8> = (0..x.bytes as u64 / 8).flat_map(|i| (round << 32 | i).to_ne_bytes()).collect();
            self.write(x, &words);
            // Bytes that the round does not write keep this value.
            self.write(y, &vec![0xEE; y.bytes]);
            // SAFETY: as when it was captured.
            good(unsafe { self.stream.replay(&graph) });
            good(self.stream.wait(TIME_LIMIT));
            let mut found = vec![0; x.bytes];
            self.read(x, &mut found);
            assert!(found == words, "round {round}");
            good(there.check().and_then(|()| back.check()));
        }
        for (plan, work) in [(there, work), (back, other)] {
            good(array.give_up_gpu(plan));
            good(array.give_back(work));
        }
        "200 replays".into()
    }

    /// Two plans on two streams, which PEs post in different orders.
    fn two(&self) -> String {
        let n = self.rt.n_pes() as usize;
        let streams = [(); 2].map(|()| good(Stream::new(self.gpu)));
        let array = self.world(Grid::new([64, 48, 40], [1, n]));
        let mut plans = [false, true].map(|engines| self.plan(&array, (Axis::Y, Axis::Z), engines));
        let input = plans[0].0.input_bytes();
        let memory = |k: usize, which: usize, bytes: usize| {
            let base = self.memory(which, k == 0, bytes);
            GpuMemory { at: base.at + (k * (ARRAY / 2)) as u64, bytes }
        };
        let wanted = Transpose::new((Axis::Y, Axis::Z), 8);
        for round in 0..50u64 {
            let order = if (u64::from(self.rt.my_pe()) + round).is_multiple_of(2) { [0, 1] } else { [1, 0] };
            let mut outputs = Vec::new();
            let filled = pencils::transposed(
                &array,
                &wanted,
                Place { symmetric: None, in_place: false },
                (input, plans[0].0.output_bytes()),
                |from, to| {
                    for k in order {
                        self.write(memory(k, 0, input), from.bytes());
                        self.write(memory(k, 1, to.bytes().len()), to.bytes());
                    }
                    for k in order {
                        let (plan, work) = &mut plans[k];
                        let (a, b) = (memory(k, 0, input), memory(k, 1, to.bytes().len()));
                        // SAFETY: the buffers stay.
                        unsafe { plan.post(&streams[k], a, b, work) }?;
                    }
                    for k in [0, 1] {
                        good(streams[k].wait(TIME_LIMIT));
                        plans[k].0.check()?;
                        let mut bytes = vec![0; to.bytes().len()];
                        self.read(memory(k, 1, bytes.len()), &mut bytes);
                        outputs.push(bytes);
                    }
                    to.bytes().copy_from_slice(&outputs[0]);
                    Ok(())
                },
            );
            good(filled);
            assert!(outputs[0] == outputs[1], "round {round}: the two plans differ");
        }
        for (plan, work) in plans {
            good(array.give_up_gpu(plan));
            good(array.give_back(work));
        }
        "50 rounds of two plans".into()
    }

    /// A wrong argument on one PE is an error on all PEs that exchange data with it, and the next round is right.
    fn misuse(&self, engines: bool) -> String {
        let (me, n) = (self.rt.my_pe(), self.rt.n_pes());
        let array = self.world(Grid::new([12, 10, 8], [n as usize, 1]));
        let (mut plan, mut work) = self.plan(&array, (Axis::X, Axis::Y), engines);
        let (mut from, mut to) = (self.memory(0, true, plan.input_bytes()), self.memory(1, false, plan.output_bytes()));
        let host = vec![0u64; plan.input_bytes() / 8];
        let wrong = n - 1;
        let cases = [Refusal::InputTooSmall, Refusal::HostMemory, Refusal::Overlap, Refusal::Misaligned];
        for expected in cases {
            let (right_from, right_to) = (from, to);
            if me == wrong {
                match expected {
                    Refusal::InputTooSmall => from.bytes -= 8,
                    Refusal::HostMemory => from.at = host.as_ptr().addr() as u64,
                    Refusal::Overlap => to.at = from.at + 8,
                    _ => to.at += 4,
                }
            }
            // SAFETY: the buffers stay.
            let posted = unsafe { plan.post(&self.stream, from, to, &mut work) };
            good(self.stream.wait(TIME_LIMIT));
            let found = posted.and_then(|()| plan.check()).unwrap_err();
            let right = match &found {
                Error::Refused { pe, refusal, .. } => me == wrong && *pe == me && *refusal == expected,
                Error::RefusedBy { by, refusal, .. } => me != wrong && *by == wrong && *refusal == expected,
                _ => false,
            };
            assert!(right, "PE {me}, {expected:?}: {found}");
            (from, to) = (right_from, right_to);
            // SAFETY: the buffers stay.
            good(unsafe { plan.post(&self.stream, from, to, &mut work) });
            good(self.stream.wait(TIME_LIMIT));
            good(plan.check());
        }
        good(array.give_up_gpu(plan));
        good(array.give_back(work));
        "4 refusals".into()
    }

    /// The last PE does not post: the others' waits end with errors that name it.
    fn late(&self) -> String {
        let n = self.rt.n_pes();
        let array = self.world(Grid::new([12, 10, 8], [n as usize, 1]));
        let plans = [false, true].map(|engines| self.plan(&array, (Axis::X, Axis::Y), engines));
        let ended = self.rt.alloc_slice::<u64>(1).unwrap();
        if self.rt.my_pe() == n - 1 {
            while ended.read(0).unwrap() < u64::from(n - 1) {
                self.rt.progress();
            }
            return String::new();
        }
        let found = plans.map(|(mut plan, mut work)| {
            let (from, to) = (self.memory(0, true, plan.input_bytes()), self.memory(1, false, plan.output_bytes()));
            // SAFETY: the buffers stay.
            good(unsafe { plan.post(&self.stream, from, to, &mut work) });
            good(self.stream.wait(TIME_LIMIT));
            let found = plan.check().unwrap_err();
            assert!(
                matches!(found, Error::Round(symrail::rounds::Error::TimedOut { ref late, .. }) if late == &[n - 1]),
                "{found}"
            );
            found.to_string()
        });
        ended.atomic_fetch_add(0, 1, n - 1).unwrap();
        found.join(", by copy engines ")
    }
}
