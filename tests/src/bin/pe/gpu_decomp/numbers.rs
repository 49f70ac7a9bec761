//! Pencils filled and checked by the GPU itself: `decomp/bench/numbers.cu`.

use symrail::kernels::cuda::compile::Nvrtc;
use symrail::kernels::cuda::{DeviceBuffer, Kernel, Program, Shape, Stream};
use symrail_decomp::Pencil;

use super::{TIME_LIMIT, World, good};

const PROGRAM: Program<'static> = Program::new("numbers.cu", include_str!("../../../../../decomp/bench/numbers.cu"));

/// The kernels, and the counter of wrong elements.
pub struct Numbers {
    fill: Kernel,
    check: Kernel,
    wrong: DeviceBuffer,
}

/// An array of a PE.
#[derive(Clone, Copy)]
pub struct Filled {
    pub at: u64,
    pub pencil: Pencil,
    pub fields: usize,
    /// Whether the halo along Z is filled, and if so whether the array wraps around.
    pub periodic: Option<bool>,
    pub edge: usize,
}

impl Numbers {
    /// For elements of 8 or of 16 bytes.
    pub fn new(world: &World<'_>, element: usize) -> Numbers {
        let module = good(world.device.load(&good(Nvrtc::find()), &PROGRAM));
        let kernel = |what| good(module.kernel(&format!("numbers_{what}_{element}")));
        Numbers { fill: kernel("fill"), check: kernel("check"), wrong: good(world.gpu.alloc(8)) }
    }

    /// Fills a PE's own elements.
    pub fn fill(&self, stream: &Stream, filled: &Filled) {
        // SAFETY: the kernel's argument; the array is as large as the pencil.
        good(unsafe { stream.launch_struct(&self.fill, SHAPE, &self.words(filled)) });
    }

    /// The number of wrong elements.
    pub fn wrong(&self, stream: &Stream, filled: &Filled) -> u64 {
        good(self.wrong.fill(0));
        // SAFETY: as above.
        good(unsafe { stream.launch_struct(&self.check, SHAPE, &self.words(filled)) });
        good(stream.wait(TIME_LIMIT));
        let mut bytes = [0; 8];
        good(self.wrong.read(0, &mut bytes));
        u64::from_ne_bytes(bytes)
    }

    /// `numbers` in `numbers.cu`.
    fn words(&self, filled: &Filled) -> Vec<u64> {
        let Filled { at, pencil, fields, periodic, edge } = filled;
        let mut words = vec![*at, self.wrong.at().get(), *edge as u64];
        for three in [pencil.from, pencil.extents(), pencil.strides()] {
            words.extend(three.map(|number| number as u64));
        }
        let numbers = [pencil.form.halo[0], *fields, pencil.len()];
        words.extend(numbers.map(|number| number as u64));
        words.extend([periodic.is_some(), *periodic == Some(true)].map(u64::from));
        words
    }
}

const SHAPE: Shape = Shape { blocks: 1056, threads: 256 };
