//! `libsymrail_agent.so`: agents, for programs in C and for plugins.
//!
//! `agent/include/symrail_agent.h` is the documentation. Each function here converts C's arguments to those of
//! [`Agent`], and its errors to codes and a sentence. `guard` contains panics.

mod guard;

use std::ffi::{CStr, c_char, c_int, c_void};
use std::slice;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use guard::{Failure, guarded};
use symrail_agent::{Agent, Descriptor, Direction, Transfer};
use symrail_core::registry::Registry;
use symrail_core::{Backoff, lock};

/// The version of the header.
const ABI: u32 = 1;
const HOST: i32 = 0;
const CUDA: i32 = 1;
const READ: c_int = 0;
const WRITE: c_int = 1;
const CONNECTION: u32 = 1;
const ALL: u32 = 2;

/// An agent.
struct Held {
    agent: Agent,
    /// The agent is being closed: calls that wait end.
    closing: AtomicBool,
}

/// The longest time for which a call that waits does not look whether it has to end.
const PAUSE: Duration = Duration::from_millis(10);

static AGENTS: Registry<Held> = Registry::new();
static TRANSFERS: Registry<Mutex<Transfer>> = Registry::new();

/// `symrail_agent_options`.
#[repr(C)]
pub struct Options {
    size: usize,
    name: *const c_char,
}

/// `symrail_agent_descriptor`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct RawDescriptor {
    address: u64,
    len: u64,
}

/// `symrail_agent_region`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct RawRegion {
    size: usize,
    address: u64,
    len: u64,
    kind: i32,
    device: i32,
}

#[unsafe(no_mangle)]
extern "C" fn symrail_agent_abi() -> u32 {
    ABI
}

#[unsafe(no_mangle)]
extern "C" fn symrail_agent_error() -> *const c_char {
    symrail_core::guard::last()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn symrail_agent_open(abi: u32, options: *const Options, out: *mut u64) -> c_int {
    guarded(|| {
        if abi != ABI {
            return Err(Failure::argument(format!("interface version {abi}: this library knows {ABI}; compile anew")));
        }
        // SAFETY: the caller passes its options, or null; the size is the first field in every version.
        let options = unsafe { options.as_ref() }.filter(|o| o.size >= size_of::<Options>());
        let options = options.ok_or_else(|| Failure::argument("options of another size, or a null pointer"))?;
        let out = place(out, "out")?;
        // SAFETY: the caller passes a name that ends with a zero byte, or null.
        let name = unsafe { text(options.name, "name") }?;
        let agent = Agent::from_env(name)?;
        *out = AGENTS.add(Held { agent, closing: AtomicBool::new(false) }) as u64;
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn symrail_agent_close(agent: u64) -> c_int {
    guarded(|| {
        let mut held = AGENTS.take(number(agent)).ok_or_else(|| none("agent", agent))?;
        held.closing.store(true, Ordering::Release);
        let mut backoff = Backoff::new(64, 256, PAUSE);
        // Other threads' calls keep the agent, and with it the registrations, until they return.
        loop {
            match Arc::try_unwrap(held) {
                Ok(_) => return Ok(()),
                Err(shared) => held = shared,
            }
            backoff.pause();
        }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn symrail_agent_register(agent: u64, base: *mut c_void, len: usize, out: *mut u64) -> c_int {
    guarded(|| {
        let out = place(out, "out")?;
        // SAFETY: the header's promise about the memory.
        *out = unsafe { held(agent)?.agent.register(base.cast(), len) }?;
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn symrail_agent_register_region(agent: u64, region: *const RawRegion, out: *mut u64) -> c_int {
    guarded(|| {
        let out = place(out, "out")?;
        // SAFETY: the caller passes a region, or null; the size is the first field in every version.
        let region = unsafe { region.as_ref() }.filter(|region| region.size >= size_of::<RawRegion>());
        let region = region.ok_or_else(|| Failure::argument("a region of another size, or a null pointer"))?;
        let RawRegion { address, len, kind, device, .. } = *region;
        let base = std::ptr::with_exposed_provenance_mut::<u8>(address as usize);
        let agent = &held(agent)?.agent;
        // SAFETY: the header's promise about the memory.
        *out = unsafe {
            match kind {
                HOST => agent.register(base, len as usize),
                CUDA => agent.register_device(address, len, device),
                other => return Err(Failure::argument(format!("kind of memory {other}; there are {HOST} and {CUDA}"))),
            }
        }?;
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn symrail_agent_memory_kinds() -> u32 {
    1 << HOST | u32::from(symrail_agent::devices::cuda::is_present()) << CUDA
}

#[unsafe(no_mangle)]
extern "C" fn symrail_agent_deregister(agent: u64, memory: u64) -> c_int {
    guarded(|| Ok(held(agent)?.agent.deregister(memory)?))
}

#[unsafe(no_mangle)]
extern "C" fn symrail_agent_deregister_within(agent: u64, memory: u64, milliseconds: u32) -> c_int {
    guarded(|| Ok(held(agent)?.agent.deregister_within(memory, Duration::from_millis(milliseconds.into()))?))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn symrail_agent_metadata(
    agent: u64,
    memory: *const u64,
    count: usize,
    flags: u32,
    out: *mut c_void,
    capacity: usize,
    size: *mut usize,
) -> c_int {
    guarded(|| {
        let held = held(agent)?;
        let bytes = match flags {
            _ if flags & !(CONNECTION | ALL) != 0 => return Err(Failure::argument(format!("flags {flags:#x}"))),
            _ if flags == CONNECTION | ALL => held.agent.metadata(),
            _ if flags & ALL != 0 => return Err(Failure::argument("SYMRAIL_AGENT_ALL needs SYMRAIL_AGENT_CONNECTION")),
            _ => {
                // SAFETY: the caller passes so many numbers.
                let memory = unsafe { list(memory, count, "memory") }?;
                held.agent.partial_metadata(memory, flags & CONNECTION != 0)?
            }
        };
        *place(size, "size")? = bytes.len();
        // SAFETY: the caller's buffer has `capacity` bytes.
        unsafe { store(&bytes, out.cast(), capacity, "metadata") }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn symrail_agent_load(
    agent: u64,
    metadata: *const c_void,
    size: usize,
    name: *mut c_char,
    capacity: usize,
) -> c_int {
    guarded(|| {
        // SAFETY: the caller passes so many bytes.
        let metadata = unsafe { list(metadata.cast::<u8>(), size, "metadata") }?;
        let loaded = held(agent)?.agent.load(metadata)?;
        if name.is_null() {
            return Ok(());
        }
        // SAFETY: the caller's buffer has `capacity` bytes.
        unsafe { store(&zero_ended(&loaded), name.cast(), capacity, "name") }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn symrail_agent_unload(agent: u64, metadata: *const c_void, size: usize) -> c_int {
    guarded(|| {
        // SAFETY: the caller passes so many bytes.
        let metadata = unsafe { list(metadata.cast::<u8>(), size, "metadata") }?;
        Ok(held(agent)?.agent.unload(metadata)?)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn symrail_agent_forget(agent: u64, name: *const c_char) -> c_int {
    // SAFETY: the caller passes a name that ends with a zero byte, or null.
    guarded(|| Ok(held(agent)?.agent.forget(unsafe { text(name, "name") }?)?))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn symrail_agent_connect(agent: u64, name: *const c_char, connected: *mut c_int) -> c_int {
    guarded(|| {
        // SAFETY: the caller passes a name that ends with a zero byte, or null.
        let found = held(agent)?.agent.connect(unsafe { text(name, "name") }?)?;
        if !connected.is_null() {
            // SAFETY: not null; the caller provides a place for a number.
            unsafe { connected.write(c_int::from(found)) };
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn symrail_agent_prepare(
    agent: u64,
    direction: c_int,
    local: *const RawDescriptor,
    remote: *const RawDescriptor,
    count: usize,
    name: *const c_char,
    out: *mut u64,
) -> c_int {
    guarded(|| {
        let direction = match direction {
            READ => Direction::Read,
            WRITE => Direction::Write,
            other => return Err(Failure::argument(format!("direction {other}; there are {READ} and {WRITE}"))),
        };
        let out = place(out, "out")?;
        // SAFETY: the caller passes so many descriptors.
        let descriptors = |raw, what| unsafe { list::<RawDescriptor>(raw, count, what) };
        let convert = |raw: &RawDescriptor| Descriptor { address: raw.address, len: raw.len };
        let local: Vec<Descriptor> = descriptors(local, "local")?.iter().map(convert).collect();
        let remote: Vec<Descriptor> = descriptors(remote, "remote")?.iter().map(convert).collect();
        // SAFETY: the caller passes a name that ends with a zero byte, or null.
        let name = unsafe { text(name, "name") }?;
        let transfer = held(agent)?.agent.transfer(direction, &local, &remote, name)?;
        *out = TRANSFERS.add(Mutex::new(transfer)) as u64;
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn symrail_agent_post(transfer: u64, notification: *const c_void, len: usize) -> c_int {
    guarded(|| {
        let message = match notification.is_null() {
            true => None,
            // SAFETY: the caller passes so many bytes.
            false => Some(unsafe { list(notification.cast::<u8>(), len, "notification") }?),
        };
        Ok(lock(&*found(transfer)?).post(message)?)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn symrail_agent_test(transfer: u64, done: *mut c_int) -> c_int {
    guarded(|| {
        *place(done, "done")? = c_int::from(lock(&*found(transfer)?).test()?);
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn symrail_agent_wait(transfer: u64, milliseconds: u32, done: *mut c_int) -> c_int {
    guarded(|| {
        let (limit, begun) = (Duration::from_millis(milliseconds.into()), Instant::now());
        let done = place(done, "done")?;
        let mut backoff = Backoff::new(256, 4096, Duration::from_micros(100));
        // The transfer is found anew each time: other threads may cancel and release it meanwhile.
        loop {
            let ended = lock(&*found(transfer)?).test()?;
            if ended || begun.elapsed() >= limit {
                *done = c_int::from(ended);
                return Ok(());
            }
            backoff.pause();
        }
    })
}

#[unsafe(no_mangle)]
extern "C" fn symrail_agent_cancel(transfer: u64) -> c_int {
    guarded(|| {
        lock(&*found(transfer)?).cancel();
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn symrail_agent_release(transfer: u64) -> c_int {
    guarded(|| TRANSFERS.take(number(transfer)).map(drop).ok_or_else(|| none("transfer", transfer)))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn symrail_agent_notify(
    agent: u64,
    name: *const c_char,
    message: *const c_void,
    len: usize,
) -> c_int {
    guarded(|| {
        // SAFETY: the caller passes a name that ends with a zero byte, or null.
        let name = unsafe { text(name, "name") }?;
        // SAFETY: the caller passes so many bytes.
        let message = unsafe { list(message.cast::<u8>(), len, "message") }?;
        Ok(held(agent)?.agent.notify(name, message)?)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn symrail_agent_notification(
    agent: u64,
    milliseconds: u32,
    name: *mut c_char,
    name_capacity: usize,
    message: *mut c_void,
    capacity: usize,
    size: *mut usize,
    found: *mut c_int,
) -> c_int {
    guarded(|| {
        let held = held(agent)?;
        let (size, found) = (place(size, "size")?, place(found, "found")?);
        let (limit, begun) = (Duration::from_millis(milliseconds.into()), Instant::now());
        loop {
            let left = limit.saturating_sub(begun.elapsed());
            // One that does not fit stays the next one.
            let taken = held.agent.read_notification(left.min(PAUSE), |next| {
                *size = next.message.len();
                // SAFETY: the caller's buffers have so many bytes.
                unsafe {
                    store(&zero_ended(&next.agent), name.cast(), name_capacity, "name")?;
                    store(&next.message, message.cast(), capacity, "message")
                }
            });
            *found = c_int::from(taken.is_some());
            match taken {
                Some(taken) => return taken.map(drop),
                None if left.is_zero() || held.closing.load(Ordering::Acquire) => return Ok(()),
                None => {}
            }
        }
    })
}

fn number(handle: u64) -> usize {
    usize::try_from(handle).unwrap_or(0)
}

fn none(what: &str, handle: u64) -> Failure {
    Failure::argument(format!("{handle} is no {what} of this process"))
}

fn held(agent: u64) -> Result<Arc<Held>, Failure> {
    AGENTS.find(number(agent)).ok_or_else(|| none("agent", agent))
}

fn found(transfer: u64) -> Result<Arc<Mutex<Transfer>>, Failure> {
    TRANSFERS.find(number(transfer)).ok_or_else(|| none("transfer", transfer))
}

/// The caller's place for a result.
fn place<'a, T>(out: *mut T, what: &str) -> Result<&'a mut T, Failure> {
    // SAFETY: null, or a place that the caller provides for this call: the header's promise.
    unsafe { out.as_mut() }.ok_or_else(|| Failure::null(what))
}

/// The caller's elements.
///
/// # Safety
/// There are so many, and they stay during the call.
unsafe fn list<'a, T>(first: *const T, count: usize, what: &str) -> Result<&'a [T], Failure> {
    if count == 0 {
        return Ok(&[]);
    }
    if first.is_null() || !first.is_aligned() || count > isize::MAX as usize / size_of::<T>() {
        return Err(Failure::argument(format!("{what} at {first:?} with {count} elements")));
    }
    // SAFETY: the caller's promise.
    Ok(unsafe { slice::from_raw_parts(first, count) })
}

/// The caller's text.
///
/// # Safety
/// It ends with a zero byte, or is null.
unsafe fn text<'a>(text: *const c_char, what: &str) -> Result<&'a str, Failure> {
    if text.is_null() {
        return Err(Failure::null(what));
    }
    // SAFETY: the caller's promise.
    unsafe { CStr::from_ptr(text) }.to_str().map_err(|_| Failure::argument(format!("{what} is not UTF-8")))
}

fn zero_ended(text: &str) -> Vec<u8> {
    text.bytes().chain([0]).collect()
}

/// # Safety
/// `to` has `capacity` bytes, or is null.
unsafe fn store(bytes: &[u8], to: *mut u8, capacity: usize, what: &str) -> Result<(), Failure> {
    if bytes.is_empty() {
        return Ok(());
    }
    if to.is_null() || bytes.len() > capacity {
        return Err(Failure::argument(format!("{what} of {} bytes does not fit into {capacity}", bytes.len())));
    }
    // SAFETY: the caller's promise.
    unsafe { to.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    Ok(())
}
