//! One PE: its GPU, its heaps, what its kernels know.

use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;

use symrail::Runtime;
use symrail_heap::HostIdentity;
use symrail_heap::cuda::peers::CARD_LEN;
use symrail_kernels::cuda::compile::Nvrtc;
use symrail_kernels::cuda::{
    DeviceHeap, DeviceParts, DevicePeers, DeviceState, Gpu, HeapView, Module, OnStream, Program, Registration, Stream,
};

use crate::{Options, bench, on_stream, verify};

pub type Failure = Box<dyn std::error::Error>;

/// Bytes of device heap: the largest message twice, and room.
const DEVICE_HEAP: u64 = 256 << 20;
/// Bytes of the area in the heap under test.
pub const AREA: usize = 160 << 20;
/// The symmetric offset from which on offsets mean the device heap.
const DEVICE_OFFSET: u64 = 1 << 46;

/// Everything that a test needs.
pub struct Job {
    pub runtime: Runtime,
    pub gpu: Arc<Gpu>,
    pub stream: Stream,
    pub verify: Arc<Module>,
    pub bench: Arc<Module>,
    pub state: DeviceState,
    pub on_stream: OnStream,
    /// The area under test, in the GPU's address space.
    pub area: u64,
    pub area_bytes: usize,
    pub mapped: bool,
    pub patience: Duration,
}

impl Job {
    pub fn me(&self) -> u32 {
        self.runtime.my_pe()
    }

    pub fn say(&self, line: &str) {
        if self.me() == 0 {
            println!("{line}");
        }
    }
}

pub fn run(options: &Options) -> Result<bool, Failure> {
    let runtime = Runtime::init()?;
    let handles = runtime.device_handles();
    let (me, n_pes) = (handles.me, handles.n_pes);
    let gpu = match runtime.gpu() {
        Some(gpu) => Arc::clone(gpu),
        None => Gpu::open(me as i32 % Gpu::count())?,
    };
    gpu.bind()?;
    let (major, minor) = gpu.compute_capability();
    let mut nvrtc = Nvrtc::load(&options.nvrtc)?;
    if let Some(folder) = &options.sources {
        nvrtc = nvrtc.with_headers_in(&folder.join("include"));
    }
    let arch = format!("sm_{major}{minor}");
    let [verify, bench] =
        Program::OWN.map(|program| -> Result<_, Failure> { Ok(Module::load(&gpu, &nvrtc.compile(&program, &arch)?)?) });
    let (verify, bench) = (verify?, bench?);

    // The heap in host memory: every mapped PE's, registered with this GPU.
    let block = runtime.align(4096, if options.device_heap { 1 << 20 } else { AREA })?;
    let handles = runtime.device_handles();
    let mut registrations = Vec::new();
    let mut peers = Vec::new();
    // With a staged heap kernels see nothing else.
    for &base in handles.bases.iter().filter(|_| !options.staged_heap) {
        let mut at = 0;
        if let Some(start) = NonNull::new(std::ptr::with_exposed_provenance_mut::<u8>(base)) {
            // SAFETY: the heaps of this PE and of mapped peers stay mapped as long as the runtime, which outlives this.
            let registration = unsafe { Registration::new(&gpu, start, handles.committed) }?;
            at = registration.device();
            registrations.push(registration);
        }
        peers.push(at);
    }
    let (view, block_offset) = match handles.staged.filter(|_| options.staged_heap) {
        None if options.staged_heap => return Err("--heap staged needs SYMRAIL_HEAP_KIND=device".into()),
        None => {
            let (base, bytes) = (peers[me as usize], handles.committed as u64);
            (HeapView { base, bytes, offset: 0, atomics: false, peers }, (block.addr() - handles.base) as u64)
        }
        Some(staged) => {
            // This PE's own atomics go through the proxy too: only so are they atomic with everybody's.
            let (base, bytes, offset) = (staged.base as u64, staged.bytes as u64, staged.offset);
            let peers = (0..n_pes).map(|pe| if pe == me { base } else { 0 }).collect();
            (HeapView { base, bytes, offset, atomics: false, peers }, (block.addr() - staged.base) as u64)
        }
    };
    let mut heaps = vec![view];
    let mut area = heaps[0].base + block_offset;
    let mut area_bytes = if options.device_heap { 1 << 20 } else { AREA };
    let mut device = None;
    if options.device_heap {
        let (heap, map) = device_heap(&runtime, &gpu, &handles)?;
        let bytes = heap.committed();
        let view = HeapView { base: heap.base(), bytes, offset: DEVICE_OFFSET, atomics: true, peers: map.bases() };
        (area, area_bytes) = (view.base, bytes as usize);
        heaps.push(view);
        for pe in 0..n_pes {
            if let Some(why) = map.why(pe) {
                println!("PE {me}: PE {pe}'s device heap is not mapped: {why:?}");
            }
        }
        device = Some((heap, map));
    }
    let under_test = heaps.len() - 1;
    let mapped = heaps[under_test].peers.iter().all(|p| *p != 0);
    let barrier = runtime.calloc(64, 8)?;
    let first = handles.staged.map_or(handles.base, |staged| staged.base);
    let mut barrier_words = heaps[0].base + (barrier.addr() - first) as u64;
    let mut channels = handles.channels.clone();
    if options.device_heap && mapped {
        // Kernels of such a job need no proxy: what has no channels has nothing to look for in a quiet.
        heaps.remove(0);
        channels.clear();
        barrier_words = area + area_bytes as u64 - 4096;
        gpu.fill(barrier_words, 0, 4096)?;
    }
    let parts = DeviceParts { me, n_pes, heaps, channels, barrier_words, timeout: Duration::from_secs(20) };
    // SAFETY: everything stays until the end of this function, where no kernel runs any more.
    let state = unsafe { DeviceState::new(&gpu, parts) }?;
    state.attach(&verify)?;
    state.attach(&bench)?;
    gpu.fill(area, 0, area_bytes.min(16 << 20))?;
    let on_stream = OnStream::new(&gpu, &nvrtc, &state)?;
    let stream = Stream::new(&gpu)?;
    let patience = Duration::from_secs(60);
    runtime.barrier_all()?;
    let job = Job { runtime, gpu, stream, verify, bench, state, on_stream, area, area_bytes, mapped, patience };
    job.say(&format!(
        "# {} × {}, driver for CUDA {}, {} heap, peers {}",
        n_pes,
        job.gpu.name(),
        Gpu::driver_version(),
        match (options.device_heap, options.staged_heap) {
            (true, _) => "device",
            (_, true) => "staged device",
            _ => "pinned",
        },
        if mapped { "mapped" } else { "through the proxy" },
    ));
    let mut good = true;
    if options.verify {
        good &= verify::run(&job)?;
        good &= on_stream::run(&job)?;
    }
    job.runtime.barrier_all()?;
    if options.bench && good {
        bench::run(&job, options.device_heap)?;
    }
    job.runtime.barrier_all()?;
    let Job { runtime, state, on_stream, stream, verify, bench, .. } = job;
    drop((state, on_stream, stream, verify, bench, device, registrations));
    runtime.finalize()?;
    Ok(good)
}

/// A device heap in two segments, each offered to all PEs.
fn device_heap(
    runtime: &Runtime,
    gpu: &Arc<Gpu>,
    handles: &symrail::device::DeviceHandles,
) -> Result<(DeviceHeap, DevicePeers), Failure> {
    let private = runtime.settings().disable_p2p;
    let host = HostIdentity::of_this_process(runtime.settings().fake_host.as_deref())?;
    let mut heap = DeviceHeap::reserve(gpu, DEVICE_HEAP)?;
    let mut peers = DevicePeers::new(handles.me, handles.n_pes, &heap, &host, private);
    let cards = runtime.calloc(handles.n_pes as usize, CARD_LEN)?;
    for to in [64 << 20, DEVICE_HEAP] {
        heap.grow(to)?;
        let segment = heap.segments().last().ok_or("no segment")?;
        let offer = peers.offer(segment)?;
        let all = everybodys(runtime, cards, &offer.card(), handles.n_pes)?;
        peers.open(offer, segment, &all, handles.timeout)?;
    }
    if let (0, Some(segment)) = (handles.me, heap.segments().first()) {
        println!("# device heap: {} segments, handed on as {:?}", heap.segments().len(), segment.kind);
    }
    Ok((heap, peers))
}

/// Tells everybody a card and returns everybody's, through the symmetric heap.
fn everybodys(runtime: &Runtime, cards: *mut u8, mine: &[u8; CARD_LEN], n_pes: u32) -> Result<Vec<u8>, Failure> {
    let own = cards.wrapping_add(runtime.my_pe() as usize * CARD_LEN);
    for pe in 0..n_pes {
        // SAFETY: the block has room for a card of each PE, and the card is copied before the call returns.
        unsafe { runtime.put(own, mine.as_ptr(), CARD_LEN, pe) }?;
    }
    runtime.barrier_all()?;
    let mut all = vec![0; n_pes as usize * CARD_LEN];
    // SAFETY: the block is this PE's, and nobody writes to it between the barriers.
    unsafe { std::ptr::copy_nonoverlapping(cards, all.as_mut_ptr(), all.len()) };
    runtime.barrier_all()?;
    Ok(all)
}
