//! Times of transposes, beside the driver's copies.

use symrail::kernels::cuda::compile::Nvrtc;
use symrail::kernels::cuda::{Copies, Transfer};
use symrail_decomp::cuda::GpuMemory;
use symrail_decomp::{Axis, BlockTime, Crossover, Error, Grid, Transpose};

use super::{ARRAY, TIME_LIMIT, World, good};

/// Bytes of the largest block for which copy engines are measured.
const LARGEST_BLOCK: usize = 256 << 20;

impl World<'_> {
    /// Microseconds of rounds, and their bandwidth beside a copy of as many bytes within the GPU.
    pub fn bench(&self) -> String {
        let n = self.rt.n_pes() as usize;
        for edge in [32, 64, 128, 160] {
            let contiguous = Grid::new([edge, edge, edge], [1, n]).axis_contiguous();
            for (name, grid) in [("same order", Grid::new([edge, edge, edge], [1, n])), ("axis first", contiguous)] {
                let array = self.world(grid);
                for element in [4, 8, 16] {
                    if edge * edge * edge * element / n > ARRAY {
                        continue;
                    }
                    let mut line = format!("{edge}^3, {element} B, {name}:");
                    for axes in [(Axis::X, Axis::Y), (Axis::Y, Axis::Z)] {
                        let mut plan = good(array.gpu_transpose(self.kernels, &Transpose::new(axes, element)));
                        let mut work = good(array.workspace(plan.workspace_bytes()));
                        let x = self.memory(0, true, plan.input_bytes());
                        let y = self.memory(1, true, plan.output_bytes());
                        // SAFETY: the buffers stay.
                        let mut post = || good(unsafe { plan.post(&self.stream, x, y, &mut work) });
                        post();
                        let graph = good(self.stream.capture::<Error>(|| {
                            (0..10).try_for_each(|_| {
                                post();
                                Ok(())
                            })
                        }));
                        // SAFETY: as above.
                        let replay = || good(unsafe { self.stream.replay(&graph) });
                        replay();
                        good(self.stream.wait(TIME_LIMIT));
                        good(self.rt.barrier_all());
                        good(self.stream.mark(0));
                        (0..5).for_each(|_| replay());
                        good(self.stream.mark(1));
                        good(self.stream.wait(TIME_LIMIT));
                        let us = good(self.stream.between()) / 50e3;
                        good(plan.check());
                        let copied = self.copy_time(y, x);
                        line += &format!(
                            " {axes:?} {us:.1} us ({:.0} GB/s; a copy {copied:.1} us, {:.0} %)",
                            x.bytes as f64 / us / 1e3,
                            copied / us * 100.0
                        );
                        good(array.give_up_gpu(plan));
                        good(array.give_back(work));
                    }
                    if self.rt.my_pe() == 0 {
                        println!("{line}");
                    }
                }
            }
        }
        "times".into()
    }

    /// The block size from which copy engines are faster: a table, and the same in JSON.
    pub fn crossover(&self) -> String {
        let found = good(Crossover::measure(self.kernels, self.heap, &self.rt.team_world().unwrap(), LARGEST_BLOCK));
        if self.rt.my_pe() == 0 {
            print!("{found}");
            let block = |it: &BlockTime| {
                let [one, other] = [it.multiprocessors, it.engines].map(|seconds| seconds * 1e6);
                format!("{{\"bytes\": {}, \"multiprocessors\": {one:.2}, \"engines\": {other:.2}}}", it.bytes)
            };
            let blocks: Vec<String> = found.sizes.iter().map(block).collect();
            println!("{{\"unit\": \"us\", \"blocks\": [{}]}}", blocks.join(", "));
        }
        found.engines_from().map_or("engines never".into(), |bytes| format!("engines from {bytes} bytes"))
    }

    /// Microseconds of a copy by the driver.
    fn copy_time(&self, to: GpuMemory, from: GpuMemory) -> f64 {
        let ops = good(self.device.on_stream(&good(Nvrtc::find()))).with_copies(Copies::Engine);
        let what = Transfer { dest: to.at, source: from.at, bytes: from.bytes as u64 };
        good(self.rt.barrier_all());
        good(self.stream.mark(0));
        for _ in 0..20 {
            // SAFETY: symmetric memory that stays.
            good(unsafe { ops.put(&self.stream, what, self.rt.my_pe()) });
        }
        good(self.stream.mark(1));
        good(self.stream.wait(TIME_LIMIT));
        good(self.stream.between()) / 20e3
    }
}
