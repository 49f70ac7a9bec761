//! One PE: its GPU, its area of the symmetric heap, its programs.

use std::sync::Arc;
use std::time::Duration;

use symrail::gpu::GpuDevice;
use symrail::{Runtime, Team};
use symrail_kernels::cuda::compile::Nvrtc;
use symrail_kernels::cuda::{DevicePtr, DeviceState, Gpu, Module, OnStream, Program, Stream};

use crate::Options;

pub type Failure = Box<dyn std::error::Error>;

/// The part of the heap outside of the area.
const SPARE: usize = 64 << 20;
/// Size of the area in bytes: twice the largest message, and more.
const AREA: usize = 160 << 20;

/// The environment of a test.
pub struct Job<'a> {
    pub runtime: &'a Runtime,
    pub device: GpuDevice,
    pub gpu: Arc<Gpu>,
    pub stream: Stream,
    pub verify: Arc<Module>,
    pub bench: Arc<Module>,
    pub on_stream: OnStream,
    /// The team of all PEs. It is made once, because it allocates heap memory.
    pub world: Team,
    /// The area under test, in the GPU's address space.
    pub area: u64,
    pub area_bytes: usize,
    /// Whether kernels can access all peers' areas by loads and stores.
    pub mapped: bool,
    pub time_limit: Duration,
}

impl Job<'_> {
    pub fn me(&self) -> u32 {
        self.runtime.my_pe()
    }

    pub fn state(&self) -> &DeviceState {
        self.device.state()
    }

    pub fn say(&self, line: &str) {
        if self.me() == 0 {
            println!("{line}");
        }
    }
}

/// A function that uses a job.
type Work = fn(&Job<'_>, &Options) -> Result<(), Failure>;

pub fn run(options: &Options, work: Work) -> Result<(), Failure> {
    let runtime = Runtime::init()?;
    if let Err(error) = with(&runtime, options, work) {
        runtime.abort(1, &error.to_string());
        return Err(error);
    }
    Ok(runtime.finalize()?)
}

fn with(runtime: &Runtime, options: &Options, work: Work) -> Result<(), Failure> {
    let n_pes = runtime.n_pes();
    let gpu = runtime.own_gpu()?;
    gpu.bind()?;
    let mut nvrtc = Nvrtc::load(&options.nvrtc)?;
    if let Some(folder) = &options.sources {
        nvrtc = nvrtc.with_headers_in(&folder.join("include"));
    }
    let arch = gpu.arch();
    let [verify, bench] =
        Program::OWN.map(|program| -> Result<_, Failure> { Ok(Module::load(&gpu, &nvrtc.compile(&program, &arch)?)?) });
    let (verify, bench) = (verify?, bench?);
    // For the largest copies the area is as large as the heap allows.
    let area_bytes = runtime.settings().heap_size.saturating_sub(SPARE).max(AREA) & !0xfff;
    let block = runtime.align(4096, area_bytes)?;
    let device = runtime.gpu_device(&gpu)?;
    device.attach(&verify)?;
    device.attach(&bench)?;
    let area = device.address(block);
    // SAFETY: inside of the area under test, which lives as long as the job.
    unsafe { gpu.fill(DevicePtr::new(area), 0, 16 << 20) }?;
    let on_stream = device.on_stream(&nvrtc)?;
    let stream = Stream::new(&gpu)?;
    let world = runtime.team_world()?;
    let mapped = (0..n_pes).all(|pe| device.is_mapped(pe));
    let time_limit = Duration::from_secs(60);
    runtime.barrier_all()?;
    let job =
        Job { runtime, device, gpu, stream, verify, bench, on_stream, world, area, area_bytes, mapped, time_limit };
    job.say(&format!(
        "# {n_pes} × {}, driver for CUDA {}, {} heap, {}",
        job.gpu.name(),
        Gpu::driver_version(),
        format!("{:?}", runtime.settings().heap_kind).to_lowercase(),
        match (mapped, job.device.is_direct()) {
            (true, true) => "peers mapped, no proxy",
            (true, false) => "peers mapped, AMOs through the proxy",
            (false, _) => "peers through the proxy",
        },
    ));
    work(&job, options)?;
    runtime.barrier_all()?;
    let Job { device, on_stream, stream, verify, bench, world, .. } = job;
    world.destroy()?;
    drop((on_stream, stream, verify, bench));
    device.close()?;
    runtime.free(block)?;
    Ok(())
}
