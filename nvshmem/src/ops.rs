//! The functions for the host library, for every layout.
//!
//! The host library guarantees for pointers in their arguments that structures stay unchanged during the call, and that
//! buffers stay until the operation is complete. No function keeps a structure.

use std::ffi::{c_int, c_void};

use symrail_heap::cuda::Gpu;
use symrail_proxy::session::memory::Memory;
use symrail_proxy::session::{LocalBuffer, Place};
use symrail_transport::Pe;
use symrail_transport::amo::AmoOp;
use symrail_transport::endpoint::command::Source;

use crate::abi::layout::{Layout, Ops};
use crate::abi::verbs::{Amo, AmoVerb as _, Rma};
use crate::abi::{AmoBytesDesc, AmoMemDesc, CAP_CPU, MemHandle, PeInfo, RmaBytesDesc, RmaMemDesc, RmaVerb, Vector};
use crate::plugin::{Exchange, Plugin};
use crate::report::{Failure, guarded};

/// The prefix of the handle of memory that only this PE uses. The address and the number of its registration follow.
const LOCAL: [u8; 8] = *b"SyMlocal";

/// The functions of all versions.
pub fn table<L: Layout>() -> Ops<L> {
    Ops {
        can_reach_peer: Some(can_reach_peer::<L>),
        connect_endpoints: Some(connect_endpoints::<L>),
        get_mem_handle: Some(get_mem_handle::<L>),
        release_mem_handle: Some(release_mem_handle::<L>),
        finalize: Some(finalize::<L>),
        show_info: Some(show_info::<L>),
        progress: Some(progress::<L>),
        rma: Some(rma::<L>),
        amo: Some(amo::<L>),
        fence: Some(fence::<L>),
        quiet: Some(quiet::<L>),
    }
}

type PutSignal<L> = unsafe extern "C" fn(
    *mut L,
    c_int,
    RmaVerb,
    *const Vector<RmaMemDesc>,
    *const Vector<RmaMemDesc>,
    *const Vector<RmaBytesDesc>,
    <L as Layout>::AmoVerb,
    *mut AmoMemDesc,
    AmoBytesDesc,
    c_int,
) -> c_int;

/// The function that only some versions have.
pub fn put_signal_of<L: Layout>() -> Option<PutSignal<L>> {
    Some(put_signal::<L>)
}

/// The plugin that `nvshmemt_init` has attached to a transport.
///
/// # Safety
/// `t` is null or a transport of ours that has not been finalized.
unsafe fn plugin<'a, L: Layout>(t: *mut L) -> Result<&'a Plugin, Failure> {
    if t.is_null() {
        return Err(Failure::null("the transport"));
    }
    // SAFETY: the caller's promise; `state` is a plugin, or null.
    unsafe { (*L::fields(t)).state.cast::<Plugin>().as_ref() }.ok_or_else(|| Failure::null("the transport's state"))
}

unsafe extern "C" fn can_reach_peer<L: Layout>(access: *mut c_int, _peer: *mut PeInfo, _t: *mut L) -> c_int {
    guarded("can_reach_peer", || {
        if access.is_null() {
            return Err(Failure::null("access"));
        }
        // All PEs are reachable, including this one. If a PE is not connected later, the connection fails with the
        // reason.
        // SAFETY: the host library provides a place for a number.
        unsafe { access.write(CAP_CPU) };
        Ok(())
    })
}

unsafe extern "C" fn connect_endpoints<L: Layout>(
    t: *mut L,
    _devices: *mut c_int,
    _n_devices: c_int,
    qps: *mut c_int,
    n_qps: c_int,
) -> c_int {
    guarded("connect_endpoints", || {
        // SAFETY: the host library passes its transport.
        let plugin = unsafe { plugin(t) }?;
        // SAFETY: as above; the fields are filled in by now, and no one writes them meanwhile.
        let fields = unsafe { L::fields(t).read() };
        // SAFETY: the bootstrap that the host library has put there.
        plugin.connect(fields.my_pe, fields.n_pes, &mut unsafe { Exchange::new(fields.bootstrap) }?)?;
        // The version without queue pairs does not pass the last arguments.
        if L::QUEUE_PAIRS && !qps.is_null() {
            for i in 0..usize::try_from(n_qps).unwrap_or(0) {
                // SAFETY: room for so many numbers.
                unsafe { qps.add(i).write(plugin.new_qp()?) };
            }
        }
        Ok(())
    })
}

unsafe extern "C" fn get_mem_handle<L: Layout>(
    handle: *mut MemHandle,
    memory: *mut c_void,
    bytes: usize,
    t: *mut L,
    local_only: u8,
) -> c_int {
    guarded("get_mem_handle", || {
        if handle.is_null() || memory.is_null() {
            return Err(Failure::null("the memory or its handle"));
        }
        // SAFETY: the host library passes its transport.
        let plugin = unsafe { plugin(t) }?;
        let session = plugin.session()?;
        let mut encoded: MemHandle = [0; 512];
        let on_gpu = Gpu::has(memory.addr());
        if local_only == 0 {
            // SAFETY: the heap stays until it is released.
            let host = || unsafe { session.register(memory.cast(), bytes) };
            let registered = if on_gpu {
                let exported = plugin.export(memory.addr() as u64, bytes as u64);
                // SAFETY: as above.
                unsafe { session.register_staged(memory.cast(), bytes, exported.as_ref().map_err(String::clone)) }
            } else {
                host()
            };
            encoded = registered?.encode();
        } else {
            let buffer = if on_gpu {
                // SAFETY: memory of the GPU that the session's copy engine serves; the library releases the buffer
                // before it frees it.
                unsafe { session.register_local_staged(memory.cast(), bytes) }?
            } else {
                // SAFETY: the buffer stays until it is released.
                unsafe { session.register_local(memory.cast(), bytes) }?
            };
            let (address, id) = buffer.into_parts();
            encoded[..8].copy_from_slice(&LOCAL);
            encoded[8..16].copy_from_slice(&address.to_le_bytes());
            encoded[16..20].copy_from_slice(&id.to_le_bytes());
        }
        // SAFETY: the host library provides a place for a handle.
        unsafe { handle.write(encoded) };
        Ok(())
    })
}

unsafe extern "C" fn release_mem_handle<L: Layout>(handle: *mut MemHandle, t: *mut L) -> c_int {
    guarded("release_mem_handle", || {
        // SAFETY: the host library passes its transport, and a handle that we have filled.
        let (session, handle) = unsafe { (plugin(t)?.session()?, handle.as_ref()) };
        let handle = handle.ok_or_else(|| Failure::null("the handle"))?;
        match handle.split_first_chunk::<8>() {
            Some((&LOCAL, rest)) => {
                let address = rest.first_chunk().map_or(0, |b| usize::from_le_bytes(*b));
                let id = rest[8..].first_chunk().map_or(0, |b| u32::from_le_bytes(*b));
                session.deregister_local(LocalBuffer::from_parts(address, id));
            }
            _ => session.deregister(&Memory::decode(handle)?),
        }
        Ok(())
    })
}

unsafe extern "C" fn finalize<L: Layout>(t: *mut L) -> c_int {
    guarded("finalize", || {
        if t.is_null() {
            return Err(Failure::null("the transport"));
        }
        // SAFETY: the host library gives up its transport; both blocks are ours, from `nvshmemt_init`.
        unsafe {
            let state = std::mem::replace(&mut (*L::fields(t)).state, std::ptr::null_mut());
            if !state.is_null() {
                drop(Box::from_raw(state.cast::<Plugin>()));
            }
            libc::free(t.cast());
        }
        Ok(())
    })
}

unsafe extern "C" fn show_info<L: Layout>(t: *mut L, _style: c_int) -> c_int {
    guarded("show_info", || {
        // SAFETY: the host library passes its transport.
        let session = unsafe { plugin(t) }?.session()?;
        for rail in session.rails() {
            eprintln!("symrail: rail {}: {}, progress {}", rail.name, rail.provider, rail.progress);
        }
        Ok(())
    })
}

unsafe extern "C" fn progress<L: Layout>(t: *mut L) -> c_int {
    guarded("progress", || {
        // SAFETY: the host library passes its transport.
        unsafe { plugin(t) }?.session()?.progress();
        Ok(())
    })
}

unsafe extern "C" fn rma<L: Layout>(
    t: *mut L,
    pe: c_int,
    verb: RmaVerb,
    remote: *mut RmaMemDesc,
    local: *mut RmaMemDesc,
    bytes: RmaBytesDesc,
    qp: c_int,
) -> c_int {
    guarded("rma", || {
        // SAFETY: the host library passes its transport and descriptions that stay during the call.
        let (plugin, remote, local) = unsafe { (plugin(t)?, remote.as_ref(), local.as_ref()) };
        let (session, context) = (plugin.session()?, plugin.context(qp));
        let local = local.ok_or_else(|| Failure::null("the local side"))?;
        // SAFETY: as above.
        let place = unsafe { place(remote, pe) }?;
        let len = bytes.bytes().ok_or_else(|| Failure::argument("a size that does not exist".into()))?;
        let ptr = local.ptr.cast::<u8>();
        if ptr.is_null() && len > 0 {
            return Err(Failure::null("the local buffer"));
        }
        let op = Rma::from_number(verb.op).ok_or_else(|| Failure::argument(format!("operation {}", verb.op)))?;
        // SAFETY: the host library keeps buffers until the operation is complete. It does not keep a value of `p`,
        // which is copied.
        unsafe {
            match op {
                Rma::P => session.put(context, place, Source::Copied(ptr), len)?,
                Rma::Put => session.put(context, place, Source::Stable(ptr), len)?,
                Rma::Get => session.get(context, place, ptr, len)?,
            }
        }
        if verb.is_nbi == 0 && op != Rma::P {
            session.quiet(context)?;
        }
        Ok(())
    })
}

unsafe extern "C" fn amo<L: Layout>(
    t: *mut L,
    pe: c_int,
    _unused: *mut c_void,
    verb: L::AmoVerb,
    target: *mut AmoMemDesc,
    bytes: AmoBytesDesc,
    qp: c_int,
) -> c_int {
    guarded("amo", || {
        // SAFETY: the host library passes its transport and a description that stays during the call.
        let (plugin, target) = unsafe { (plugin(t)?, target.as_ref()) };
        let target = target.ok_or_else(|| Failure::null("the AMO's target"))?;
        let amo = understood(verb.number(), bytes, verb.is_float())?;
        // SAFETY: as above.
        let word = unsafe { place(Some(&target.remote), pe) }?;
        let old = target.retptr.cast::<u8>();
        if amo.fetch && old.is_null() {
            return Err(Failure::null("the place for an old value"));
        }
        let operands = (amo.operand.unwrap_or(target.val), target.cmp);
        let old = amo.fetch.then_some(old);
        // SAFETY: the destination of the old value stays until a quiet.
        unsafe { plugin.session()?.amo(plugin.context(qp), word, (amo.op, amo.ty), operands, old) }?;
        Ok(())
    })
}

unsafe extern "C" fn put_signal<L: Layout>(
    t: *mut L,
    pe: c_int,
    _verb: RmaVerb,
    remotes: *const Vector<RmaMemDesc>,
    locals: *const Vector<RmaMemDesc>,
    sizes: *const Vector<RmaBytesDesc>,
    signal_verb: L::AmoVerb,
    signal: *mut AmoMemDesc,
    signal_bytes: AmoBytesDesc,
    qp: c_int,
) -> c_int {
    guarded("put_signal", || {
        // SAFETY: the host library passes its transport, vectors and a description that stay during the call.
        let (plugin, remotes, locals, sizes, signal) = unsafe {
            let vectors = (remotes.as_ref(), locals.as_ref(), sizes.as_ref());
            let (Some(remotes), Some(locals), Some(sizes)) = vectors else { return Err(Failure::null("a vector")) };
            (plugin(t)?, remotes.elements(), locals.elements(), sizes.elements(), signal.as_ref())
        };
        let (session, context) = (plugin.session()?, plugin.context(qp));
        let signal = signal.ok_or_else(|| Failure::null("the signal"))?;
        let amo = understood(signal_verb.number(), signal_bytes, false)?;
        if amo.ty.size() != 8 || !matches!(amo.op, AmoOp::Set | AmoOp::Add) || remotes.len() != sizes.len() {
            return Err(Failure::argument(format!("a signal by AMO {}", signal_verb.number())));
        }
        // SAFETY: as above.
        let word = unsafe { place(Some(&signal.remote), pe) }?;
        let (op, value) = (amo.op, amo.operand.unwrap_or(signal.val));
        let mut pieces = remotes.iter().zip(locals).zip(sizes).peekable();
        if pieces.peek().is_none() {
            // SAFETY: no buffers.
            unsafe { session.amo(context, word, (op, amo.ty), (value, 0), None) }?;
            return Ok(());
        }
        while let Some(((remote, local), size)) = pieces.next() {
            let len = size.bytes().ok_or_else(|| Failure::argument("a size that does not exist".into()))?;
            // SAFETY: descriptions and buffers as above; sources stay until the operation is complete.
            unsafe {
                let (to, source) = (place(Some(remote), pe)?, Source::Stable(local.ptr.cast()));
                if pieces.peek().is_some() {
                    session.put(context, to, source, len)?;
                } else {
                    if remotes.len() > 1 {
                        // The signal goes behind the earlier pieces, which may be on other rails.
                        session.fence();
                    }
                    session.put_signal(context, to, (source, len), word, (op, value))?;
                }
            }
        }
        Ok(())
    })
}

unsafe extern "C" fn fence<L: Layout>(t: *mut L, _pe: c_int, _qp: c_int, _is_multi: c_int) -> c_int {
    guarded("fence", || {
        // SAFETY: the host library passes its transport.
        unsafe { plugin(t) }?.session()?.fence();
        Ok(())
    })
}

unsafe extern "C" fn quiet<L: Layout>(t: *mut L, _pe: c_int, qp: c_int) -> c_int {
    // Operations to all PEs are counted together, so the following quiets for other PEs find nothing to do.
    // SAFETY: the host library passes its transport.
    guarded("quiet", || unsafe { plugin(t) }?.quiet(qp))
}

fn understood(number: c_int, bytes: AmoBytesDesc, is_float: bool) -> Result<Amo, Failure> {
    let refused = || Failure::argument(format!("AMO {number} on a word of {} bytes", bytes.element_bytes));
    Amo::from_number(number, bytes.element_bytes, is_float).ok_or_else(refused)
}

/// The place of a remote side.
///
/// # Safety
/// Its handle stays unchanged during the call that it was passed to.
unsafe fn place<'a>(remote: Option<&RmaMemDesc>, pe: c_int) -> Result<Place<'a>, Failure> {
    let remote = remote.ok_or_else(|| Failure::null("the remote side"))?;
    // SAFETY: the caller's promise.
    let handle = unsafe { remote.handle.as_ref() }.ok_or_else(|| Failure::null("the remote memory's handle"))?;
    let place = Place::at_address(handle, remote.ptr.expose_provenance() as u64)?;
    if Pe::try_from(pe).is_ok_and(|pe| pe == place.pe()) {
        return Ok(place);
    }
    Err(Failure::argument(format!("an operation on PE {pe} with a handle of PE {}", place.pe())))
}
