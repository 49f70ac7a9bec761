//! The functions for PyTorch's symmetric memory: a table for `symrail/torch/symmetric_memory.cpp`.
//!
//! Allocations are local, in a block of the heap that all PEs have reserved together; the PEs of a group exchange their
//! addresses in PyTorch's rendezvous. Only the reservation is collective.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::{CString, c_char};
use std::sync::{Arc, Mutex};

use pyo3::prelude::*;
use symrail::kernels::cuda::{DeviceBuffer, DevicePtr, Error, Gpu, Kernel, Program, Shape};
use symrail_core::lock;
use symrail_heap::allocator::{Allocator, MIN_ALIGN};

use crate::errors::{Kind, failed_on_gpu, raise};
use crate::gpu::HeldGpu;
use crate::job::Job;
use crate::memory::Kept;

/// The alignment of allocations.
const ALIGNMENT: u64 = 256;
const FLAGS: Program<'static> = Program::new("torch.cu", include_str!("torch.cu"));

/// In the layout of the extension's `Table`. The extension passes the context to the functions, and an address and a
/// number of words to `upload`.
#[repr(C)]
struct Table {
    version: u32,
    gpu: i32,
    pe: u32,
    reserved: u32,
    context: *const Context,
    alloc: extern "C" fn(&Context, u64, u64) -> u64,
    free: extern "C" fn(&Context, u64),
    offset: extern "C" fn(&Context, u64) -> u64,
    peer: extern "C" fn(&Context, u64, u64, u32) -> u64,
    upload: unsafe extern "C" fn(&Context, *const u64, u64) -> u64,
    release: extern "C" fn(&Context, u64),
    flags: extern "C" fn(&Context, u32, u64, u32, u32, u32, u32, u64, u64) -> i32,
    error: extern "C" fn() -> *const c_char,
}

/// The reserved block, and its allocations.
struct Context {
    kept: Arc<Kept>,
    gpu: Arc<Gpu>,
    base: u64,
    blocks: Mutex<Allocator>,
    /// Tables of pointers for kernels, by address.
    uploaded: Mutex<BTreeMap<u64, DeviceBuffer>>,
    /// Barrier, signal, wait. Their `pads` are pointers, and behind them as many numbers of PEs.
    kernels: Mutex<[Kernel; 3]>,
}

thread_local! {
    /// The error of this thread's last failed call.
    static WRONG: RefCell<CString> = RefCell::default();
}

fn wrong<T: Default>(what: &str) -> T {
    // A thread that ends may have no message any more.
    let _ = WRONG.try_with(|wrong| wrong.replace(CString::new(what).unwrap_or_default()));
    T::default()
}

impl Context {
    fn job(&self) -> &Job {
        self.kept.job()
    }

    fn alloc(&self, bytes: u64, zeroed: u64) -> u64 {
        let mut blocks = lock(&self.blocks);
        let Ok(Some(offset)) = blocks.alloc(bytes.max(1), ALIGNMENT) else {
            let left = blocks.stats().largest;
            return wrong(&format!(
                "{bytes} bytes do not fit into what is reserved for PyTorch, of which {left} are left in one piece; give \
                 symrail.torch.register(pool_bytes=…) more"
            ));
        };
        if zeroed == 0 {
            return self.base + offset;
        }
        // SAFETY: inside the block that was just allocated, which no other code uses.
        match unsafe { self.gpu.fill(DevicePtr::new(self.base + offset), 0, zeroed as usize) } {
            Ok(()) => self.base + offset,
            Err(error) => wrong(&error.to_string()),
        }
    }

    fn free(&self, address: u64) {
        // The extension frees each of its allocations once.
        let _ = lock(&self.blocks).free(address - self.base);
    }

    fn peer(&self, offset: u64, bytes: u64, pe: u32) -> u64 {
        let found = self.job().gpu().and_then(|gpu| gpu.peer_address(self.base + offset, bytes, pe));
        found.unwrap_or_else(|| wrong(&format!("this GPU does not reach PE {pe}'s memory by loads and stores")))
    }

    fn upload(&self, words: &[u64]) -> u64 {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let made = self.gpu.alloc(bytes.len()).and_then(|buffer| buffer.write(0, &bytes).map(|()| buffer));
        match made {
            Ok(buffer) => {
                let address = buffer.at().get();
                lock(&self.uploaded).insert(address, buffer);
                address
            }
            Err(error) => wrong(&error.to_string()),
        }
    }
}

extern "C" fn alloc(context: &Context, bytes: u64, zeroed: u64) -> u64 {
    context.alloc(bytes, zeroed)
}

extern "C" fn free(context: &Context, address: u64) {
    context.free(address);
}

extern "C" fn offset(context: &Context, address: u64) -> u64 {
    address - context.base
}

extern "C" fn peer(context: &Context, offset: u64, bytes: u64, pe: u32) -> u64 {
    context.peer(offset, bytes, pe)
}

unsafe extern "C" fn upload(context: &Context, words: *const u64, count: u64) -> u64 {
    // SAFETY: the extension passes so many words.
    context.upload(unsafe { std::slice::from_raw_parts(words, count as usize) })
}

extern "C" fn release(context: &Context, address: u64) {
    lock(&context.uploaded).remove(&address);
}

extern "C" fn flags(
    context: &Context,
    what: u32,
    pads: u64,
    other: u32,
    channel: u32,
    rank: u32,
    size: u32,
    timeout_ms: u64,
    stream: u64,
) -> i32 {
    let kernels = lock(&context.kernels);
    let Some(kernel) = kernels.get(what as usize) else { return 1 };
    let Some(gpu) = context.job().gpu() else {
        wrong::<()>("the job has no GPU");
        return 1;
    };
    // PyTorch's current stream.
    let stream = gpu.stream(stream as usize);
    let threads = if what == 0 { size.next_multiple_of(32) } else { 1 };
    let arguments = [pads, other.into(), channel.into(), rank.into(), size.into(), timeout_ms];
    // SAFETY: the kernels' arguments; the flags belong to a rendezvous, which the caller keeps.
    match unsafe { stream.launch(kernel, Shape { blocks: 1, threads }, &arguments) } {
        Ok(()) => 0,
        Err(error) => {
            wrong::<()>(&error.to_string());
            1
        }
    }
}

extern "C" fn error() -> *const c_char {
    // Valid until this thread's next failure.
    WRONG.try_with(|wrong| wrong.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}

/// The address of a table for the extension, which lives as long as the process, over reserved memory.
pub fn table(kept: &Arc<Kept>, address: usize, bytes: usize) -> PyResult<usize> {
    let job = kept.job();
    let needs_gpu =
        || raise(Kind::Unsupported, "PyTorch's symmetric memory needs a heap in GPUs: init(heap=\"device\")");
    let held = job.gpu().filter(|_| job.gpu_of(address).is_some()).ok_or_else(needs_gpu)?;
    let kernels = kernels(held).map_err(failed_on_gpu)?;
    let mut blocks = Allocator::new(bytes as u64, MIN_ALIGN);
    blocks.commit(bytes as u64);
    let context = Box::into_raw(Box::new(Context {
        kept: Arc::clone(kept),
        gpu: Arc::clone(held.gpu()),
        base: address as u64,
        blocks: Mutex::new(blocks),
        uploaded: Mutex::default(),
        kernels: Mutex::new(kernels),
    }));
    let pe = job.runtime().my_pe();
    let table = Table {
        version: 2,
        gpu: held.ordinal(),
        pe,
        reserved: 0,
        context,
        alloc,
        free,
        offset,
        peer,
        upload,
        release,
        flags,
        error,
    };
    Ok(Box::into_raw(Box::new(table)).expose_provenance())
}

fn kernels(held: &HeldGpu) -> Result<[Kernel; 3], Error> {
    let module = held.load(&FLAGS)?;
    Ok([module.kernel("barrier")?, module.kernel("put_signal")?, module.kernel("wait_signal")?])
}
