//! `libsymrail_transport.so`: the transport alone, for symmetric-heap runtimes of any kind.
//!
//! `transport/include/symrail_transport.h` is the documentation. Each function here converts C's arguments to those of
//! [`Session`], and its errors to codes and a sentence. `guard` contains panics.

mod guard;

use std::ffi::{c_char, c_int, c_void};
use std::slice;

use guard::{Failure, guarded};
use symrail_proxy::session::memory::{HANDLE_SIZE, Memory};
use symrail_proxy::session::{Place, Progress, Session};
use symrail_transport::amo::{AmoOp, AmoType};
use symrail_transport::backend::HostPes;
use symrail_transport::endpoint::command::Source;
use symrail_transport::env::{Settings, log};
use symrail_transport::topology::allowed_cpus;

/// The version of the header.
const ABI: u32 = 1;
const THREAD: u32 = 1;
const LAST_CONTEXT: u16 = 4095;
/// A bound for the number of PEs on one host; more are an error.
const MOST_LOCAL_PES: u32 = 1 << 16;

/// `symrail_transport_options`.
#[repr(C)]
pub struct Options {
    size: usize,
    pe: u32,
    n_pes: u32,
    local_pe: u32,
    local_pes: u32,
    flags: u32,
}

/// `symrail_transport_memory`.
pub type Handle = [u8; HANDLE_SIZE];

#[unsafe(no_mangle)]
extern "C" fn symrail_transport_abi() -> u32 {
    ABI
}

#[unsafe(no_mangle)]
extern "C" fn symrail_transport_error() -> *const c_char {
    symrail_core::guard::last()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn symrail_transport_open(abi: u32, options: *const Options, out: *mut *mut Session) -> c_int {
    guarded(|| {
        if abi != ABI {
            return Err(Failure::argument(format!("interface version {abi}: this library knows {ABI}; compile anew")));
        }
        // SAFETY: the caller passes its options, or null; the size is the first field in every version.
        let options = unsafe { options.as_ref() }.filter(|o| o.size >= size_of::<Options>());
        let (Some(options), false) = (options, out.is_null()) else {
            return Err(Failure::argument("options of another size, or a null pointer".into()));
        };
        let Options { pe, n_pes, local_pe, local_pes, flags, .. } = *options;
        if flags & !THREAD != 0 || local_pes > MOST_LOCAL_PES || (local_pes > 0 && local_pe >= local_pes) {
            return Err(Failure::argument(format!("flags {flags:#x}, PE {local_pe} of {local_pes} on this host")));
        }
        let settings = Settings::from_env()?;
        log::start(&settings.log);
        settings.warn_unknown();
        let host = match local_pes {
            0 => HostPes::alone(allowed_cpus()),
            _ => HostPes {
                all_here: local_pes == n_pes,
                ..HostPes::alike(allowed_cpus(), local_pe as usize, local_pes as usize)
            },
        };
        let progress = if flags & THREAD != 0 { Progress::Thread } else { Progress::Caller };
        let session = Box::new(Session::open(pe, n_pes, &host, &settings, progress, None)?);
        // SAFETY: not null; the caller provides a place for a pointer.
        unsafe { out.write(Box::into_raw(session)) };
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn symrail_transport_close(t: *mut Session) -> c_int {
    guarded(|| {
        if !t.is_null() {
            // SAFETY: it came from `open`, and the caller gives it up.
            drop(unsafe { Box::from_raw(t) });
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn symrail_transport_card(
    t: *mut Session,
    connection_info: *mut c_void,
    capacity: usize,
    size: *mut usize,
) -> c_int {
    guarded(|| {
        let bytes = session(t)?.connection_info();
        if size.is_null() {
            return Err(Failure::null("size"));
        }
        // SAFETY: not null; the caller provides a place for a number.
        unsafe { size.write(bytes.len()) };
        if bytes.len() > capacity || connection_info.is_null() {
            let why = format!("connection info of {} bytes does not fit into {capacity}", bytes.len());
            return Err(Failure::argument(why));
        }
        // SAFETY: the caller's buffer has `capacity` bytes.
        unsafe { connection_info.cast::<u8>().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn symrail_transport_connect(
    t: *mut Session,
    connection_infos: *const c_void,
    stride: usize,
) -> c_int {
    guarded(|| {
        let t = session(t)?;
        if connection_infos.is_null() || stride == 0 {
            return Err(Failure::null("connection infos"));
        }
        let len = stride.checked_mul(t.n_pes() as usize).filter(|&len| isize::try_from(len).is_ok());
        let len =
            len.ok_or_else(|| Failure::argument(format!("stride: {stride} bytes for each of {} PEs", t.n_pes())))?;
        // SAFETY: the caller passes connection info of `stride` bytes for each PE.
        let bytes = unsafe { slice::from_raw_parts(connection_infos.cast::<u8>(), len) };
        let connection_infos: Vec<Vec<u8>> = bytes.chunks_exact(stride).map(<[u8]>::to_vec).collect();
        Ok(t.connect(&connection_infos)?)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn symrail_transport_register(
    t: *mut Session,
    base: *mut c_void,
    len: usize,
    out: *mut Handle,
) -> c_int {
    guarded(|| {
        if base.is_null() || out.is_null() {
            return Err(Failure::null("base or out"));
        }
        // SAFETY: the header's promise about the memory.
        let memory = unsafe { session(t)?.register(base.cast(), len) }?;
        // SAFETY: not null; the caller provides a place for a handle.
        unsafe { out.write(memory.encode()) };
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn symrail_transport_deregister(t: *mut Session, memory: *const Handle) -> c_int {
    guarded(|| {
        session(t)?.deregister(&Memory::decode(handle(&memory)?)?);
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn symrail_transport_register_local(t: *mut Session, base: *mut c_void, len: usize) -> c_int {
    // SAFETY: the header's promise about the memory.
    guarded(|| unsafe { session(t)?.register_local(base.cast(), len) }.map(drop).map_err(Into::into))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn symrail_transport_deregister_local(t: *mut Session, base: *mut c_void) -> c_int {
    guarded(|| {
        let session = session(t)?;
        if let Some(buffer) = session.local_buffer_at(base.cast()) {
            session.deregister_local(buffer);
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn symrail_transport_put(
    t: *mut Session,
    context: u16,
    memory: *const Handle,
    at: u64,
    source: *const c_void,
    len: usize,
) -> c_int {
    // SAFETY: the header's promise: the source stays until a quiet.
    guarded(|| unsafe { put(t, context, memory, at, Source::Stable(source.cast()), len) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn symrail_transport_put_copied(
    t: *mut Session,
    context: u16,
    memory: *const Handle,
    at: u64,
    source: *const c_void,
    len: usize,
) -> c_int {
    // SAFETY: the source is valid during the call.
    guarded(|| unsafe { put(t, context, memory, at, Source::Copied(source.cast()), len) })
}

unsafe fn put(
    t: *mut Session,
    context: u16,
    memory: *const Handle,
    at: u64,
    source: Source,
    len: usize,
) -> Result<(), Failure> {
    check_buffer(source.ptr(), len)?;
    let to = Place::new(handle(&memory)?, at)?;
    // SAFETY: the caller's promise.
    unsafe { session(t)?.put(checked(context)?, to, source, len as u64) }?;
    Ok(())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn symrail_transport_copy_limit(t: *const Session) -> usize {
    session(t.cast_mut()).map_or(0, Session::copy_limit)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn symrail_transport_get(
    t: *mut Session,
    context: u16,
    memory: *const Handle,
    at: u64,
    dest: *mut c_void,
    len: usize,
) -> c_int {
    guarded(|| {
        check_buffer(dest.cast(), len)?;
        let from = Place::new(handle(&memory)?, at)?;
        // SAFETY: the header's promise: the destination stays until a quiet.
        unsafe { session(t)?.get(checked(context)?, from, dest.cast(), len as u64) }?;
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn symrail_transport_amo(
    t: *mut Session,
    context: u16,
    memory: *const Handle,
    at: u64,
    op: c_int,
    ty: c_int,
    operand: u64,
    compare: u64,
    old: *mut c_void,
) -> c_int {
    guarded(|| {
        let ty = u8::try_from(ty).ok().and_then(AmoType::from_repr);
        let ty = ty.ok_or_else(|| Failure::argument("an AMO on a type that does not exist".into()))?;
        let word = Place::new(handle(&memory)?, at)?;
        let old = (!old.is_null()).then_some(old.cast());
        // SAFETY: the header's promise: the place for the old value stays until a quiet.
        unsafe { session(t)?.amo(checked(context)?, word, (amo_op(op)?, ty), (operand, compare), old) }?;
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn symrail_transport_put_signal(
    t: *mut Session,
    context: u16,
    memory: *const Handle,
    at: u64,
    source: *const c_void,
    len: usize,
    signal: *const Handle,
    signal_at: u64,
    op: c_int,
    value: u64,
) -> c_int {
    guarded(|| {
        check_buffer(source.cast(), len)?;
        let (to, signal) = (Place::new(handle(&memory)?, at)?, Place::new(handle(&signal)?, signal_at)?);
        let data = (Source::Stable(source.cast()), len as u64);
        // SAFETY: the header's promise: the source stays until a quiet.
        unsafe { session(t)?.put_signal(checked(context)?, to, data, signal, (amo_op(op)?, value)) }?;
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn symrail_transport_fence(t: *mut Session) -> c_int {
    guarded(|| {
        session(t)?.fence();
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn symrail_transport_quiet(t: *mut Session, context: u16) -> c_int {
    guarded(|| Ok(session(t)?.quiet(checked(context)?)?))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn symrail_transport_progress(t: *mut Session) -> c_int {
    guarded(|| {
        session(t)?.progress();
        Ok(())
    })
}

/// The session that `open` returned to the caller.
fn session<'a>(t: *mut Session) -> Result<&'a Session, Failure> {
    // SAFETY: null, or a session from `open` that `close` has not ended: the header's promise.
    unsafe { t.as_ref() }.ok_or_else(|| Failure::null("the transport"))
}

fn handle(memory: &*const Handle) -> Result<&Handle, Failure> {
    // SAFETY: null, or a handle of the caller's, which stays during the call; bytes have no alignment.
    unsafe { memory.as_ref() }.ok_or_else(|| Failure::null("a memory handle"))
}

fn checked(context: u16) -> Result<u16, Failure> {
    let fits = context <= LAST_CONTEXT;
    if fits { Ok(context) } else { Err(Failure::argument(format!("context {context}: there are 0 to {LAST_CONTEXT}"))) }
}

fn check_buffer(ptr: *const u8, len: usize) -> Result<(), Failure> {
    if ptr.is_null() && len > 0 { Err(Failure::null("the local buffer")) } else { Ok(()) }
}

fn amo_op(op: c_int) -> Result<AmoOp, Failure> {
    let known = u8::try_from(op).ok().and_then(AmoOp::from_repr);
    known.ok_or_else(|| Failure::argument(format!("operation {op} does not exist")))
}
