//! The four transposes of complex numbers and halos of three fields, every element checked, in the form that
//! `scripts/gpu.sh transposes` has for NVSHMEM and NCCL: a line of JSON for each figure.

use symrail::kernels::cuda::compile::Nvrtc;
use symrail_decomp::cuda::{GpuMemory, GpuPlan};
use symrail_decomp::{Axis, Decomposition, Error, Form, Grid, Halo, Mode, Transpose, Tuning, Workspace, tune_on};
use symrail_tests::pe;

use super::numbers::{Filled, Numbers};
use super::{TIME_LIMIT, World, good};

/// Bytes of a complex number, and the edge of the arrays whose halos are updated.
const ELEMENT: usize = 16;
const HALO_EDGE: usize = 512;
const FIELDS: usize = 3;
/// Timed batches, the duration of each in microseconds, and its most rounds.
const BATCHES: usize = 7;
const BATCH_US: f64 = 5000.0;
const MOST_ROUNDS: f64 = 100.0;

/// A measurement: library, operation, and the most bytes that a PE sends to others.
struct Figure {
    system: &'static str,
    what: String,
    edge: usize,
    moved: usize,
}

impl<'d> World<'d> {
    pub fn versus(&self, edges: &[usize]) -> String {
        let n = self.rt.n_pes() as usize;
        let halo = FIELDS * (HALO_EDGE + 2).pow(2) * (HALO_EDGE.div_ceil(n) + 2) * 8;
        let most = edges.iter().map(|&edge| edge * edge * edge.div_ceil(n) * ELEMENT).max().unwrap_or(0).max(halo);
        let arrays = [(); 2].map(|()| good(self.rt.align(256, most)));
        let arrays = arrays.map(|array| self.device.address(array));
        let numbers = Numbers::new(self, ELEMENT);
        for &edge in edges {
            self.versus_transposes(edge, arrays, &numbers);
        }
        for periodic in [false, true] {
            self.versus_halo(periodic, arrays[0]);
        }
        format!("{} sizes", edges.len())
    }

    fn versus_transposes(&self, edge: usize, arrays: [u64; 2], numbers: &Numbers) {
        pe::doing(format!("{edge}^3"));
        let n = self.rt.n_pes() as usize;
        let grid = Grid::new([edge; 3], [1, n]).axis_contiguous();
        let tuning = Tuning { processes: Some(grid.processes), element: ELEMENT, ..Tuning::default() };
        let (team, tuned) = good(tune_on(Some(self.kernels), self.heap, self.rt.team_world().unwrap(), grid, &tuning));
        let array = good(Decomposition::new(self.heap, team, grid));
        let engines = Mode { engines: Some(0), ..Mode::default() };
        let mode = tuned.mode;
        let said = format!("symrail, tuned (direct {}, engines {:?})", mode.direct, mode.engines);
        if self.rt.my_pe() == 0 {
            println!("{edge}^3: {said}");
        }
        for (system, mode) in [("symrail", Mode::default()), ("symrail, engines", engines), ("symrail, tuned", mode)] {
            let mut plans: Vec<GpuPlan> = Transpose::ALL
                .iter()
                .map(|&axes| {
                    good(array.gpu_transpose(self.kernels, &Transpose { mode, ..Transpose::new(axes, ELEMENT) }))
                })
                .collect();
            let mut work = good(array.workspace(plans.iter().map(GpuPlan::workspace_bytes).max().unwrap_or(0)));
            let pencil = |axis: Axis| array.pencil(axis, Form::default());
            // X and Z are in one array, Y in the other.
            let place = |axis: Axis| arrays[usize::from(axis == Axis::Y)];
            let memory = |axis| GpuMemory { at: place(axis), bytes: pencil(axis).len() * ELEMENT };
            let filled = |axis| Filled { at: place(axis), pencil: pencil(axis), fields: 1, periodic: None, edge };
            let mut post = |which: usize| {
                let (from, to) = Transpose::ALL[which];
                // SAFETY: the arrays stay.
                unsafe { plans[which].post(&self.stream, memory(from), memory(to), &mut work) }
            };
            numbers.fill(&self.stream, &filled(Axis::X));
            let mut wrong = 0;
            for (which, (_, to)) in Transpose::ALL.into_iter().enumerate() {
                good(post(which));
                good(self.stream.wait(TIME_LIMIT));
                wrong += numbers.wrong(&self.stream, &filled(to));
            }
            let figure = |what: &str| {
                let moved = pencil(Axis::X).len() * ELEMENT * (n - 1) / n;
                Figure { system, what: what.into(), edge, moved: 2 * moved }
            };
            let mut four = || (0..4).try_for_each(&mut post);
            let taken = self.timed(&array, || good(four()));
            self.say(&figure("four transposes"), taken, wrong + numbers.wrong(&self.stream, &filled(Axis::X)));
            let graph = good(self.stream.capture::<Error>(&mut four));
            // SAFETY: the arrays and the plans stay.
            let taken = self.timed(&array, || good(unsafe { self.stream.replay(&graph) }));
            self.say(&figure("four transposes, graph"), taken, wrong + numbers.wrong(&self.stream, &filled(Axis::X)));
            // Z to Y and back.
            let mut crossing = || post(2).and_then(|()| post(1));
            let taken = self.timed(&array, || good(crossing()));
            self.say(&figure("the two that cross"), taken, wrong);
            let graph = good(self.stream.capture::<Error>(&mut crossing));
            // SAFETY: as above.
            let taken = self.timed(&array, || good(unsafe { self.stream.replay(&graph) }));
            self.say(&figure("the two that cross, graph"), taken, wrong);
            drop(graph);
            plans.iter().for_each(|plan| good(plan.check()));
            plans.into_iter().for_each(|plan| good(array.give_up_gpu(plan)));
            good(array.give_back(work));
        }
    }

    fn versus_halo(&self, periodic: bool, at: u64) {
        pe::doing(format!("halo, periodic {periodic}"));
        let (n, edge) = (self.rt.n_pes() as usize, HALO_EDGE);
        let array = self.world(Grid::new([edge; 3], [1, n]));
        let form = Form { halo: [1; 3], padding: [0; 3] };
        let pencil = array.pencil(Axis::X, form);
        let filled = Filled { at, pencil, fields: FIELDS, periodic: Some(periodic), edge };
        let memory = GpuMemory { at, bytes: FIELDS * pencil.len() * 8 };
        let numbers = Numbers::new(self, 8);
        let ops = good(self.device.on_stream(&good(Nvrtc::find())));
        let neighbours = if periodic || n > 2 { 2 } else { 1 };
        let moved = neighbours * FIELDS * (edge + 2).pow(2) * 8;
        for (system, engines) in [("symrail", None), ("symrail, engines", Some(0))] {
            let mode = Mode { engines, ..Mode::default() };
            let halo = Halo { axis: Axis::X, dim: 2, periodic, form, element: 8, fields: FIELDS, mode };
            let mut plan: GpuPlan = good(array.gpu_halo(self.kernels, &halo));
            let mut work: Workspace = good(array.workspace(plan.workspace_bytes()));
            // SAFETY: memory of this program, as large as the array.
            good(unsafe { self.gpu.fill(symrail::kernels::cuda::DevicePtr::new(at), 0xEE, memory.bytes) });
            numbers.fill(&self.stream, &filled);
            // SAFETY: the array stays.
            let mut post = || unsafe { plan.post(&self.stream, memory, memory, &mut work) };
            good(post());
            good(self.stream.wait(TIME_LIMIT));
            let wrong = numbers.wrong(&self.stream, &filled);
            let what = if periodic { "halo, periodic" } else { "halo" };
            let figure = |more: &str| Figure { system, what: format!("{what}{more}"), edge, moved };
            let taken = self.timed(&array, || good(post()));
            self.say(&figure(""), taken, wrong);
            let taken = self.timed(&array, || {
                good(ops.barrier(&self.stream, None));
                good(post());
                good(ops.barrier(&self.stream, None));
            });
            self.say(&figure(", between two barriers"), taken, wrong);
            let graph = good(self.stream.capture::<Error>(&mut post));
            // SAFETY: as above.
            let taken = self.timed(&array, || good(unsafe { self.stream.replay(&graph) }));
            self.say(&figure(", graph"), taken, wrong + numbers.wrong(&self.stream, &filled));
            drop(graph);
            good(plan.check());
            good(array.give_up_gpu(plan));
            good(array.give_back(work));
        }
    }

    /// Microseconds of a round on the slowest PE: the median of batches.
    fn timed(&self, array: &Decomposition, mut round: impl FnMut()) -> f64 {
        let mut batch = |rounds: usize| {
            good(self.stream.wait(TIME_LIMIT));
            good(self.rt.barrier_all());
            good(self.stream.mark(0));
            (0..rounds).for_each(|_| round());
            good(self.stream.mark(1));
            good(self.stream.wait(TIME_LIMIT));
            let nanoseconds = good(self.stream.between()) / rounds as f64;
            good(array.largest(nanoseconds as usize)) as f64 / 1e3
        };
        batch(3);
        let rounds = (BATCH_US / batch(3)).clamp(1.0, MOST_ROUNDS) as usize;
        let mut times: Vec<f64> = (0..BATCHES).map(|_| batch(rounds)).collect();
        times.sort_by(f64::total_cmp);
        times[BATCHES / 2]
    }

    fn say(&self, figure: &Figure, us: f64, wrong: u64) {
        let mut all = [u64::from(wrong != 0)];
        self.rt.team_world().unwrap().max_of_all(&mut all).unwrap();
        if self.rt.my_pe() == 0 {
            let Figure { system, what, edge, moved } = figure;
            println!(
                "{{\"system\": \"{system}\", \"what\": \"{what}\", \"edge\": {edge}, \"us\": {us:.2}, \
                 \"moved\": {moved}, \"right\": {}}}",
                all == [0]
            );
        }
    }
}
