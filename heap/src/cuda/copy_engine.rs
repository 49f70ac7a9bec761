//! Copies between a GPU's memory and pinned host memory, on streams of their own.
//!
//! One stream copies to the GPU, so that copies take effect in order. A second copies from it. Two more, in turn, copy
//! between it and peers' GPUs. All are non-blocking: they wait for no kernel, and no kernel waits for them. The engine
//! uses everything once at the start that the driver might load or allocate late, because a kernel that never ends
//! would block that. In a context of their own the streams do not wait either for a thread that loads or frees
//! something in the program's context ([`Gpu::for_copies`]). That context is current only during calls: a
//! host thread that drives the proxy's engine keeps its own context for its libraries, such as PyTorch.

use std::collections::VecDeque;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

use symrail_cuda::error::{Result, cuda};
use symrail_cuda::sys::{self, CUevent, CUresult, CUstream};
use symrail_cuda::{Current, Gpu, NicWrites, PinnedBuffer};

use super::small_copy::{Form, LARGE, Part, parts};
use crate::copy_engine::{Between, Copy, CopyCompletion, CopyEngine};

/// One stream, and its copies under way.
struct Lane {
    stream: CUstream,
    /// Copies under way, in order.
    tickets: VecDeque<u64>,
    /// Events in order, and the number of copies before each.
    events: VecDeque<(CUevent, usize)>,
    /// Copies behind the last event.
    unmarked: usize,
}

/// A [`CopyEngine`] for the memory of one GPU.
pub struct CudaCopyEngine {
    /// The GPU in the context of the copies.
    gpu: Arc<Gpu>,
    staging_buffer: PinnedBuffer,
    /// Lanes: copies from the GPU, copies to it, and two for copies between GPUs.
    lanes: [Lane; LANES],
    /// The lane of the next copy between GPUs.
    next: usize,
    /// Events that no copy uses.
    events: Vec<CUevent>,
    /// Whether the GPU observes NICs' writes only after a flush.
    must_ask: bool,
    /// Whether streams can write words.
    writes_words: bool,
    /// Copies whose end cannot be determined, to be reported.
    failed: Vec<CopyCompletion>,
}

// SAFETY: any thread may use streams and events after it has made their context current, which every call does.
unsafe impl Send for CudaCopyEngine {}

/// The number of streams. Two of them between GPUs keep a link busy while the driver begins the next copy.
const LANES: usize = 4;
const FIRST_BETWEEN: usize = 2;

impl CudaCopyEngine {
    /// A copy engine with a staging buffer of `staging_buffer` bytes, for up to `copies` concurrent copies. More are
    /// possible, but then it has to allocate from the driver. The buffer belongs to the first of two contexts of one
    /// GPU, and the second makes the copies. The current context of this thread stays.
    ///
    /// # Errors
    /// The driver's error.
    pub fn new([primary, gpu]: [&Arc<Gpu>; 2], staging_buffer: usize, copies: usize) -> Result<Self> {
        let _current = Current::keep();
        let staging_buffer = PinnedBuffer::new(primary, staging_buffer)?;
        let must_ask = gpu.nic_writes() == NicWrites::WhenAsked;
        let words = sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS;
        let writes_words = gpu.attribute(words) != 0;
        let lanes = [lane(gpu)?, lane(gpu)?, lane(gpu)?, lane(gpu)?];
        let (next, events) = (FIRST_BETWEEN, Vec::with_capacity(copies));
        let (gpu, failed) = (Arc::clone(gpu), Vec::new());
        let mut copy_engine =
            CudaCopyEngine { gpu, staging_buffer, lanes, next, events, must_ask, writes_words, failed };
        for _ in 0..copies {
            let event = copy_engine.new_event()?;
            copy_engine.events.push(event);
        }
        copy_engine.warm_up()?;
        Ok(copy_engine)
    }

    /// Waits until all copies that have been started have ended. They are reported as at other times.
    pub fn settle(&mut self) {
        let _current = Current::keep();
        if self.gpu.bind().is_ok() {
            for lane in &self.lanes {
                // SAFETY: our own stream.
                let _ = unsafe { sys::cuStreamSynchronize(lane.stream) };
            }
        }
    }

    /// Makes copies of every kind once, to and from the GPU.
    fn warm_up(&mut self) -> Result<()> {
        let device = self.gpu.alloc(self.staging_buffer.bytes().min(1 << 20))?;
        // Of two rows, a word and some bytes.
        let mixed = device.bytes().min(4103);
        let large = device.bytes();
        for (len, to_memory) in [(8, true), (8, false), (mixed, true), (large, true), (large, false)] {
            let host = self.staging_buffer.base().as_ptr();
            self.copy(Copy { memory: device.at().get() as usize, host, len, to_memory })?;
            let stream = self.lanes[usize::from(to_memory)].stream;
            let event = self.event()?;
            self.events.push(event);
            // SAFETY: our own event and stream.
            unsafe {
                cuda!(self.gpu.ordinal(), cuEventRecord(event, stream))?;
                cuda!(self.gpu.ordinal(), cuStreamSynchronize(stream))?;
                cuda!(self.gpu.ordinal(), cuEventQuery(event))?;
            }
        }
        Ok(())
    }

    fn event(&mut self) -> Result<CUevent> {
        self.events.pop().map_or_else(|| self.new_event(), Ok)
    }

    fn new_event(&self) -> Result<CUevent> {
        let mut event = null_mut();
        let flags = sys::CUevent_flags::CU_EVENT_DISABLE_TIMING as u32;
        // SAFETY: the driver writes one handle.
        unsafe { cuda!(self.gpu.ordinal(), cuEventCreate(&raw mut event, flags)) }?;
        Ok(event)
    }

    fn copy(&mut self, copy: Copy) -> Result<()> {
        let stream = self.lanes[usize::from(copy.to_memory)].stream;
        let (memory, host) = (copy.memory as sys::CUdeviceptr, copy.host.cast());
        if copy.to_memory && copy.len < LARGE && self.writes_words {
            let written = parts(copy.memory, copy.len).try_for_each(|part| self.write_part(copy, part, stream));
            if written.is_err() {
                // Parts before the failure may be under way, and the caller may use the host's end again.
                // SAFETY: our own stream.
                let _ = unsafe { sys::cuStreamSynchronize(stream) };
            }
            return written;
        }
        // SAFETY: the host's end is in the staging buffer, which is pinned; the driver checks the device's range.
        unsafe {
            if copy.to_memory {
                cuda!(self.gpu.ordinal(), cuMemcpyHtoDAsync_v2(memory, host, copy.len, stream))
            } else {
                cuda!(self.gpu.ordinal(), cuMemcpyDtoHAsync_v2(host, memory, copy.len, stream))
            }
        }
    }

    /// Writes a part of a copy to the GPU.
    fn write_part(&self, copy: Copy, part: Part, stream: CUstream) -> Result<()> {
        let (gpu, memory) = (self.gpu.ordinal(), (copy.memory + part.at) as sys::CUdeviceptr);
        // SAFETY: a part is within the copy, whose host end is in the staging buffer.
        let host = unsafe { copy.host.add(part.at) };
        // SAFETY: as in `copy`.
        let plain = || unsafe { cuda!(gpu, cuMemcpyHtoDAsync_v2(memory, host.cast(), part.len, stream)) };
        match part.form {
            Form::Rows => {
                let row = part.len / 2;
                let rows = sys::CUDA_MEMCPY2D {
                    srcXInBytes: 0,
                    srcY: 0,
                    srcMemoryType: sys::CUmemorytype::CU_MEMORYTYPE_HOST,
                    srcHost: host.cast_const().cast(),
                    srcDevice: 0,
                    srcArray: null_mut(),
                    srcPitch: row,
                    dstXInBytes: 0,
                    dstY: 0,
                    dstMemoryType: sys::CUmemorytype::CU_MEMORYTYPE_DEVICE,
                    dstHost: null_mut(),
                    dstDevice: memory,
                    dstArray: null_mut(),
                    dstPitch: row,
                    WidthInBytes: row,
                    Height: 2,
                };
                // SAFETY: as in `copy`; the two rows are the part.
                unsafe { cuda!(gpu, cuMemcpy2DAsync_v2(&raw const rows, stream)) }
            }
            // Streams may refuse words in memory of another context.
            // SAFETY: the bytes are the copy's until it ends, and the driver checks the device's address.
            Form::Word if part.len == 8 => unsafe {
                cuda!(gpu, cuStreamWriteValue64_v2(stream, memory, host.cast::<u64>().read_unaligned(), 0))
                    .or_else(|_| plain())
            },
            // SAFETY: the same.
            Form::Word => unsafe {
                cuda!(gpu, cuStreamWriteValue32_v2(stream, memory, host.cast::<u32>().read_unaligned(), 0))
                    .or_else(|_| plain())
            },
            Form::Bytes => plain(),
        }
    }

    fn copy_between(&self, lane: usize, copy: Between) -> Result<()> {
        let (to, from) = (copy.to as sys::CUdeviceptr, copy.from as sys::CUdeviceptr);
        let stream = self.lanes[lane].stream;
        // SAFETY: the driver checks both ranges.
        unsafe { cuda!(self.gpu.ordinal(), cuMemcpyAsync(to, from, copy.len, stream)) }
    }

    /// Implements [`CopyEngine::prepare_peer`] by copies of both directions and of small and large sizes, on each lane.
    /// It writes the peer's own bytes back to the peer.
    fn greet(&mut self, peer: usize) -> Result<()> {
        let own = self.gpu.alloc(64 << 10)?;
        let here = own.at().get() as usize;
        for lane in FIRST_BETWEEN..LANES {
            for (to, from, len) in [(here, peer, own.bytes()), (peer, here, 8), (peer, here, own.bytes())] {
                self.copy_between(lane, Between { to, from, len })?;
            }
            // SAFETY: our own stream.
            unsafe { cuda!(self.gpu.ordinal(), cuStreamSynchronize(self.lanes[lane].stream)) }?;
        }
        Ok(())
    }

    /// Starts a copy on a lane.
    fn begin(&mut self, lane: usize, ticket: u64, start: impl FnOnce(&mut Self) -> Result<()>) -> Result<()> {
        let _current = Current::keep();
        self.gpu.bind()?;
        start(self)?;
        self.lanes[lane].tickets.push_back(ticket);
        self.lanes[lane].unmarked += 1;
        Ok(())
    }

    /// Records an event behind the copies of a lane that have none behind them.
    fn mark(&mut self, lane: usize) -> Result<()> {
        let _current = Current::keep();
        self.gpu.bind()?;
        let event = self.event()?;
        let Lane { stream, unmarked, events, .. } = &mut self.lanes[lane];
        // SAFETY: our own event and stream.
        if let Err(error) = unsafe { cuda!(self.gpu.ordinal(), cuEventRecord(event, *stream)) } {
            self.events.push(event);
            return Err(error);
        }
        events.push_back((event, std::mem::take(unmarked)));
        Ok(())
    }
}

fn lane(gpu: &Arc<Gpu>) -> Result<Lane> {
    gpu.bind()?;
    let mut stream = null_mut();
    let (mut least, mut greatest) = (0, 0);
    let flags = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
    // SAFETY: the driver writes two numbers and one handle.
    unsafe {
        cuda!(gpu.ordinal(), cuCtxGetStreamPriorityRange(&raw mut least, &raw mut greatest))?;
        cuda!(gpu.ordinal(), cuStreamCreateWithPriority(&raw mut stream, flags, greatest))?;
    }
    Ok(Lane { stream, tickets: VecDeque::new(), events: VecDeque::new(), unmarked: 0 })
}

// SAFETY: the staging buffer is pinned memory that the copy engine owns, and a copy is reported when the driver reports
// its end.
unsafe impl CopyEngine for CudaCopyEngine {
    fn staging_buffer(&self) -> (NonNull<u8>, usize) {
        (self.staging_buffer.base(), self.staging_buffer.bytes())
    }

    unsafe fn start(&mut self, copy: Copy, ticket: u64) -> Result<(), String> {
        let lane = usize::from(copy.to_memory);
        self.begin(lane, ticket, |copy_engine| copy_engine.copy(copy)).map_err(|error| error.to_string())
    }

    fn prepare_peer(&mut self, peer: usize) -> Result<(), String> {
        let _current = Current::keep();
        self.greet(peer).map_err(|error| error.to_string())
    }

    unsafe fn start_between(&mut self, copy: Between, ticket: u64) -> Result<(), String> {
        let lane = self.next;
        self.next = if lane + 1 == LANES { FIRST_BETWEEN } else { lane + 1 };
        self.begin(lane, ticket, |copy_engine| copy_engine.copy_between(lane, copy)).map_err(|error| error.to_string())
    }

    fn flush_nic_writes(&mut self) {
        let _current = Current::keep();
        if self.must_ask
            && let Err(error) = self.gpu.see_nic_writes()
        {
            tracing::warn!(%error, "the GPU may see late what NICs have written");
        }
    }

    fn flush(&mut self) {
        for lane in 0..LANES {
            if self.lanes[lane].unmarked == 0 {
                continue;
            }
            if let Err(error) = self.mark(lane) {
                let Lane { tickets, unmarked, .. } = &mut self.lanes[lane];
                let first = tickets.len() - std::mem::take(unmarked);
                let lost = |ticket| CopyCompletion { ticket, result: Err(error.to_string()) };
                self.failed.extend(tickets.drain(first..).map(lost));
            }
        }
    }

    fn poll(&mut self, ended: &mut dyn FnMut(CopyCompletion)) -> usize {
        if self.pending() == 0 {
            return 0;
        }
        let _current = Current::keep();
        if self.gpu.bind().is_err() {
            return 0;
        }
        self.flush();
        let mut count = self.failed.len();
        self.failed.drain(..).for_each(&mut *ended);
        for Lane { tickets, events, .. } in &mut self.lanes {
            while let Some(&(event, copies)) = events.front() {
                // SAFETY: our own event, which was recorded.
                let answer = unsafe { sys::cuEventQuery(event) };
                if answer == CUresult::CUDA_ERROR_NOT_READY {
                    break;
                }
                let result = symrail_cuda::error::check(self.gpu.ordinal(), "cuEventQuery", answer);
                let result = result.map_err(|error| error.to_string());
                events.pop_front();
                self.events.push(event);
                for ticket in tickets.drain(..copies) {
                    ended(CopyCompletion { ticket, result: result.clone() });
                }
                count += copies;
            }
        }
        count
    }

    fn pending(&self) -> usize {
        self.failed.len() + self.lanes.iter().map(|lane| lane.tickets.len()).sum::<usize>()
    }

    fn writing(&self) -> usize {
        self.lanes[1].tickets.len()
    }
}

impl Drop for CudaCopyEngine {
    fn drop(&mut self) {
        let _current = Current::keep();
        if self.gpu.bind().is_err() {
            return;
        }
        for lane in &mut self.lanes {
            // SAFETY: our own stream and events; copies under way end before the staging buffer is freed.
            unsafe {
                let _ = sys::cuStreamSynchronize(lane.stream);
                for (event, _) in lane.events.drain(..) {
                    let _ = sys::cuEventDestroy_v2(event);
                }
                let _ = sys::cuStreamDestroy_v2(lane.stream);
            }
        }
        for event in self.events.drain(..) {
            // SAFETY: our own event.
            let _ = unsafe { sys::cuEventDestroy_v2(event) };
        }
    }
}
