//! The tables, and their functions for groups, contexts and memory.

use std::ffi::c_int;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use symrail_proxy::session::rendezvous::Listener;

use super::abi::{Contexts, GIN_PROXY, GinConfigV13, GinV11, GroupProperties, RmaV13, RmaV14, RmaV15, RmaV16};
use super::group::Group;
use super::post::{
    Set, group, iflush, iget_v13, iget_v15, iput_signal_v11, iput_signal_v13, iput_signal_v14, iput_signal_v15,
    iput_v11, iput_v13, iput_v15, set, test,
};
use super::window::{Piece, Window};
use crate::abi::{
    Code, HANDLE_SIZE, Int, Out, PTR_CUDA, PTR_HOST, Properties, PropertiesV11, PropertiesV12, Ptr, UNDEFINED,
};
use crate::network::{self, DEVICES, Network};
use crate::report::{Failure, Logger, Result, guarded, log_to};
use crate::table::{Closed, close, give, handle_at, object, put, taken};

/// A place where the ranks of a group connect.
struct GroupListener {
    network: Arc<Network>,
    listener: Mutex<Listener>,
}

impl Closed for GroupListener {
    const BY: &'static str = "closeListen";
}

impl Closed for Set {
    const BY: &'static str = "destroyContext";
}

/// The number of the next set; 0 is that of a group's own context.
static NEXT_SET: AtomicUsize = AtomicUsize::new(1);

unsafe extern "C" fn init(out: Out, _comm: u64, logger: Option<Logger>) -> Code {
    log_to(logger);
    // The rails are opened when a group begins to listen: most communicators never do.
    // SAFETY: NCCL passes a place for the context.
    guarded("init", || unsafe { put(out, std::ptr::dangling_mut::<u8>().cast(), "the place for the context") })
}

/// NCCL may finalize a communicator that it has not initialized.
unsafe extern "C" fn finalize(_context: Ptr) -> Code {
    crate::report::SUCCESS
}

unsafe extern "C" fn devices(count: Int) -> Code {
    // SAFETY: NCCL passes a place for a number.
    guarded("devices", || unsafe { put(count, DEVICES, "the place for the number") })
}

fn properties<const N: usize>(dev: c_int) -> Result<Properties<N>> {
    // No dmabufs: the plugin exports memory itself where rails can use that.
    Ok(Properties { device_type: GIN_PROXY, ptr_support: PTR_HOST | PTR_CUDA, ..network::properties(dev)? })
}

unsafe extern "C" fn properties_v11(dev: c_int, out: *mut PropertiesV11) -> Code {
    guarded("getProperties", || {
        let properties = PropertiesV11 { common: properties(dev)?, max_multi_request_size: 1 };
        // SAFETY: NCCL passes a place for the properties.
        unsafe { put(out, properties, "the place for the properties") }
    })
}

unsafe extern "C" fn properties_v12(dev: c_int, out: *mut PropertiesV12) -> Code {
    guarded("getProperties", || {
        let (rail_id, plane_id) = (UNDEFINED, UNDEFINED);
        let properties = PropertiesV12 { common: properties(dev)?, max_multi_request_size: 1, rail_id, plane_id };
        // SAFETY: NCCL passes a place for the properties.
        unsafe { put(out, properties, "the place for the properties") }
    })
}

unsafe extern "C" fn group_properties(_group: Ptr, out: *mut GroupProperties) -> Code {
    let properties = GroupProperties { flushes_all_puts_on_any_signal: false };
    // SAFETY: NCCL passes a place for the properties.
    guarded("getRmaProperties", || unsafe { put(out, properties, "the place for the properties") })
}

unsafe extern "C" fn listen(_context: Ptr, dev: c_int, handle: Ptr, out: Out) -> Code {
    guarded("listen", || {
        network::check_device(dev)?;
        let network = Network::one_sided()?;
        let listener = Listener::new(&network.session)?;
        // SAFETY: NCCL passes memory for a handle.
        *unsafe { handle_at(handle) }? = listener.handle().encode();
        let listening = GroupListener { network, listener: Mutex::new(listener) };
        // SAFETY: NCCL passes a place for the listener.
        unsafe { give(out, listening, "the place for the listener") }
    })
}

unsafe extern "C" fn connect(_context: Ptr, handles: *mut Ptr, n: c_int, rank: c_int, listener: Ptr, out: Out) -> Code {
    guarded("connect", || {
        // SAFETY: NCCL passes what `listen` returned.
        let listening = unsafe { object::<GroupListener>(listener, "the listener") }?;
        let (Ok(n), Ok(rank)) = (usize::try_from(n), usize::try_from(rank)) else {
            return Err(Failure::argument(format!("rank {rank} of {n}")));
        };
        if handles.is_null() {
            return Err(Failure::null("the handles"));
        }
        let handle = |i: usize| -> Result<[u8; HANDLE_SIZE]> {
            // SAFETY: NCCL passes as many pointers to handles as there are ranks.
            Ok(*unsafe { handle_at(handles.add(i).read()) }?)
        };
        let handles = (0..n).map(handle).collect::<Result<Vec<_>>>()?;
        let mut listener = symrail_core::lock(&listening.listener);
        let group = Group::connect(&listening.network, &mut listener, &handles, rank)?;
        // SAFETY: NCCL passes a place for the group.
        unsafe { give(out, Arc::new(group), "the place for the group") }
    })
}

/// # Safety
/// As for [`group`]; `out` is null or a place for a pointer.
unsafe fn create(coll: Ptr, contexts: c_int, out: Out) -> Result<()> {
    // SAFETY: the caller's promise.
    let group = Arc::clone(unsafe { group(coll) }?);
    let set = Set { group, number: NEXT_SET.fetch_add(1, Ordering::Relaxed), contexts };
    // SAFETY: the caller's promise.
    unsafe { give(out, set, "the place for the contexts") }
}

unsafe extern "C" fn create_v13(coll: Ptr, config: *const GinConfigV13, out: Out, device: Out) -> Code {
    guarded("createContext", || {
        // SAFETY: NCCL passes its structure, what `connect` returned, and places for pointers.
        unsafe {
            let config = config.as_ref().ok_or_else(|| Failure::null("the configuration"))?;
            if !device.is_null() {
                device.write(std::ptr::null_mut());
            }
            create(coll, config.n_contexts, out)
        }
    })
}

unsafe extern "C" fn create_v14(coll: Ptr, config: *const Contexts, out: Out) -> Code {
    guarded("createContext", || {
        // SAFETY: NCCL passes its structure, what `connect` returned, and a place for a pointer.
        unsafe {
            let contexts = config.as_ref().ok_or_else(|| Failure::null("the configuration"))?;
            create(coll, *contexts, out)
        }
    })
}

/// # Safety
/// As for [`group`] and [`Window::new`]; `out` is null or a place for a pointer.
unsafe fn register(coll: Ptr, piece: Piece, out: Out) -> Result<Ptr> {
    // SAFETY: the caller's promise.
    let group = unsafe { group(coll) }?;
    if piece.base.is_null() || out.is_null() {
        return Err(Failure::null("the memory or the place for its handle"));
    }
    // SAFETY: NCCL keeps the memory until `deregMrSym`.
    let window = Arc::new(unsafe { Window::new(group, piece) }?);
    let handle: Ptr = Box::into_raw(Box::new(window)).cast();
    // SAFETY: the caller's promise.
    unsafe { put(out, handle, "the place for the handle") }.map(|()| handle)
}

/// Memory of a kind.
fn piece(data: Ptr, len: usize, kind: c_int, dma_buf: Option<OwnedFd>) -> Result<Piece> {
    match kind {
        PTR_HOST | PTR_CUDA => Ok(Piece { base: data.cast(), len, on_gpu: kind == PTR_CUDA, dma_buf }),
        _ => Err(Failure::argument(format!("memory of kind {kind}: 1 (host) and 2 (CUDA) are supported"))),
    }
}

/// Memory with NCCL's dmabuf, of which the plugin keeps a descriptor of its own. One that begins elsewhere is not used.
fn piece_with(data: Ptr, len: usize, kind: c_int, offset: u64, fd: c_int) -> Result<Piece> {
    if offset != 0 || fd < 0 {
        return piece(data, len, kind, None);
    }
    // SAFETY: NCCL's descriptor is open during the call.
    let dma_buf = unsafe { BorrowedFd::borrow_raw(fd) }.try_clone_to_owned();
    piece(data, len, kind, Some(dma_buf.map_err(|error| Failure::usage(format!("dmabuf {fd}: {error}")))?))
}

unsafe extern "C" fn reg_mr_sym(coll: Ptr, data: Ptr, len: usize, kind: c_int, _flags: u64, out: Out) -> Code {
    // SAFETY: NCCL passes what `connect` returned, and a place for the handle.
    guarded("regMrSym", || unsafe { register(coll, piece(data, len, kind, None)?, out) }.map(drop))
}

#[rustfmt::skip]
unsafe extern "C" fn reg_mr_sym_dma_buf(
    coll: Ptr, data: Ptr, len: usize, kind: c_int, offset: u64, fd: c_int, _flags: u64, out: Out,
) -> Code {
    // SAFETY: as above.
    guarded("regMrSymDmaBuf", || unsafe { register(coll, piece_with(data, len, kind, offset, fd)?, out) }.map(drop))
}

/// The handle for devices is the same one: NCCL's proxy passes it back.
#[rustfmt::skip]
unsafe extern "C" fn reg_mr_sym_v13(
    coll: Ptr, data: Ptr, len: usize, kind: c_int, _flags: u64, out: Out, device: Out,
) -> Code {
    guarded("regMrSym", || {
        // SAFETY: as above; and a place for the other handle.
        unsafe {
            let handle = register(coll, piece(data, len, kind, None)?, out)?;
            put(device, handle, "the place for the device's handle")
        }
    })
}

#[rustfmt::skip]
unsafe extern "C" fn reg_mr_sym_dma_buf_v13(
    coll: Ptr, data: Ptr, len: usize, kind: c_int, offset: u64, fd: c_int, _flags: u64, out: Out, device: Out,
) -> Code {
    guarded("regMrSymDmaBuf", || {
        // SAFETY: as above.
        unsafe {
            let handle = register(coll, piece_with(data, len, kind, offset, fd)?, out)?;
            put(device, handle, "the place for the device's handle")
        }
    })
}

unsafe extern "C" fn dereg_mr_sym(coll: Ptr, handle: Ptr) -> Code {
    guarded("deregMrSym", || {
        // SAFETY: NCCL passes what `connect` returned.
        let group = unsafe { group(coll) }?;
        // SAFETY: it came from `regMrSym`, and NCCL gives it up.
        let window = unsafe { taken::<Arc<Window>>(handle) }.ok_or_else(|| Failure::null("the handle"))?;
        let begun = Instant::now();
        // Operations hold it while they are under way.
        while Arc::strong_count(&window) > 1 && begun.elapsed() < 2 * group.network.timeout {
            if group.progress().is_err() {
                group.close();
            }
            std::thread::yield_now();
        }
        Ok(())
    })
}

unsafe extern "C" fn close_coll(coll: Ptr) -> Code {
    guarded("closeColl", || {
        // SAFETY: it came from `connect`, and NCCL gives it up.
        if let Some(group) = unsafe { taken::<Arc<Group>>(coll) } {
            group.close();
        }
        Ok(())
    })
}

unsafe extern "C" fn progress_v11(coll: Ptr) -> Code {
    // SAFETY: NCCL passes what `connect` returned.
    guarded("ginProgress", || unsafe { group(coll) }?.progress())
}

unsafe extern "C" fn progress(context: Ptr) -> Code {
    // SAFETY: NCCL passes what `createContext` returned.
    guarded("rmaProgress", || unsafe { set(context) }?.group.progress())
}

unsafe extern "C" fn query_last_error(context: Ptr, out: *mut bool) -> Code {
    guarded("queryLastError", || {
        // SAFETY: NCCL passes what `createContext` returned.
        let group = &unsafe { set(context) }?.group;
        // SAFETY: NCCL passes a place for a truth value.
        unsafe { put(out, group.has_failed(), "the place for the result") }
    })
}

/// The table of one version.
macro_rules! export {
    ($symbol:ident: $table:ident, $properties:ident, $([$group:ident: $group_properties:ident],)?
     ($create:expr, $destroy:expr, $last_error:expr), $register:ident, $dma_buf:ident, $iput:ident, $iput_signal:ident,
     $([$iget:ident: $get:ident],)? $progress:ident) => {
        #[unsafe(no_mangle)]
        #[allow(non_upper_case_globals)]
        pub static $symbol: $table = $table {
            name: c"symrail".as_ptr(),
            init,
            devices,
            $($group: $group_properties,)?
            get_properties: $properties,
            listen,
            connect,
            create_context: $create,
            reg_mr_sym: $register,
            reg_mr_sym_dma_buf: $dma_buf,
            dereg_mr_sym,
            destroy_context: $destroy,
            close_coll,
            close_listen: close::<GroupListener>,
            iput: $iput,
            iput_signal: $iput_signal,
            $($iget: $get, iflush,)?
            test,
            progress: $progress,
            query_last_error: $last_error,
            finalize,
        };
    };
}

export!(ncclGinPlugin_v11: GinV11, properties_v11, (None, None, None), reg_mr_sym_v13, reg_mr_sym_dma_buf_v13, iput_v11,
    iput_signal_v11, progress_v11);
export!(ncclRmaPlugin_v13: RmaV13, properties_v12, (Some(create_v13), Some(close::<Set>), Some(query_last_error)),
    reg_mr_sym_v13, reg_mr_sym_dma_buf_v13, iput_v13, iput_signal_v13, [iget: iget_v13], progress);
export!(ncclRmaPlugin_v14: RmaV14, properties_v12, (Some(create_v14), Some(close::<Set>), Some(query_last_error)),
    reg_mr_sym, reg_mr_sym_dma_buf, iput_v13, iput_signal_v14, [iget: iget_v13], progress);
export!(ncclRmaPlugin_v15: RmaV15, properties_v12, (Some(create_v14), Some(close::<Set>), Some(query_last_error)),
    reg_mr_sym, reg_mr_sym_dma_buf, iput_v15, iput_signal_v15, [iget: iget_v15], progress);
export!(ncclRmaPlugin_v16: RmaV16, properties_v12, [get_group_properties: group_properties],
    (Some(create_v14), Some(close::<Set>), Some(query_last_error)), reg_mr_sym, reg_mr_sym_dma_buf, iput_v15,
    iput_signal_v15, [iget: iget_v15], progress);
