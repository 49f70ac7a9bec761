//! The functions of the tables. They convert C's arguments, and call those of the other modules.

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use symrail_proxy::session::{LocalBuffer, Registered};

use crate::abi::{
    Code, HANDLE_SIZE, MOST_REQUESTS, NetV9, NetV10, NetV11, NetV12, Out, PTR_HOST, PropertiesV9, PropertiesV11,
    PropertiesV12, UNDEFINED,
};
use crate::connect::{Listening, abandon, connect};
use crate::network::{self, DEVICES, Network, Networks};
use crate::receive::Receiver;
use crate::report::{Failure, Logger, Result, guarded, log_to};
use crate::ring::SLOTS;
use crate::send::Sender;

const _: () = assert!(MOST_REQUESTS <= SLOTS);

type Ptr = *mut c_void;
type Int = *mut c_int;

/// One end of a connection, as NCCL holds it.
struct Connection {
    end: Mutex<End>,
    tickets: OnceLock<Box<[Ticket]>>,
}

enum End {
    Send(Box<Sender>),
    Receive(Box<Receiver>),
}

/// A request, as NCCL holds it: a connection and an index among its requests.
struct Ticket {
    connection: *const Connection,
    index: usize,
}

// SAFETY: the pointer is to the connection that owns the ticket.
unsafe impl Send for Ticket {}
// SAFETY: as above; tickets do not change.
unsafe impl Sync for Ticket {}

/// Registered memory, as NCCL holds it.
struct Region {
    network: Arc<Network>,
    base: usize,
    len: usize,
    registered: Registration,
}

enum Registration {
    /// The memory of a receiving end, into which its peer puts.
    Receiving(Registered),
    /// A local buffer of a sending end.
    Sending(LocalBuffer),
}

impl Drop for Region {
    fn drop(&mut self) {
        if let Registration::Sending(buffer) = self.registered {
            self.network.session.deregister_local(buffer);
        }
    }
}

/// A communicator's use of the network, and the number of these.
static CONTEXTS: AtomicUsize = AtomicUsize::new(0);
struct Context {
    _networks: Networks,
}

impl Drop for Context {
    fn drop(&mut self) {
        abandon(|| CONTEXTS.fetch_sub(1, Ordering::Relaxed) == 1);
    }
}

impl Connection {
    /// A new connection, as NCCL holds it.
    fn handle_of(end: End) -> *mut c_void {
        let connection = Box::into_raw(Box::new(Connection { end: Mutex::new(end), tickets: OnceLock::new() }));
        // SAFETY: it was just made.
        let tickets = unsafe { &(*connection).tickets };
        tickets.get_or_init(|| (0..SLOTS).map(|index| Ticket { connection, index }).collect());
        connection.cast()
    }

    fn ticket(&self, index: usize) -> *mut c_void {
        let ticket = self.tickets.get().and_then(|tickets| tickets.get(index));
        ticket.map_or(std::ptr::null_mut(), |ticket| (&raw const *ticket).cast_mut().cast())
    }

    fn network(&self) -> Arc<Network> {
        Arc::clone(match &*symrail_core::lock(&self.end) {
            End::Send(sender) => sender.network(),
            End::Receive(receiver) => receiver.network(),
        })
    }
}

/// What a pointer that this library has given to NCCL points to.
///
/// # Safety
/// The pointer is null, or one of this type that NCCL has not given back.
pub(crate) unsafe fn object<'a, T>(pointer: *mut c_void, what: &str) -> Result<&'a T> {
    // SAFETY: the caller's promise.
    unsafe { pointer.cast::<T>().as_ref() }.ok_or_else(|| Failure::null(what))
}

/// Gives NCCL an object, which it gives up by [`close`] or [`taken`].
///
/// # Safety
/// The place is null or valid for a write.
pub(crate) unsafe fn give<T>(place: Out, object: T, what: &str) -> Result<()> {
    if place.is_null() {
        return Err(Failure::null(what));
    }
    // SAFETY: the caller's promise.
    unsafe { place.write(Box::into_raw(Box::new(object)).cast()) };
    Ok(())
}

/// The object that NCCL gives up.
///
/// # Safety
/// The pointer is null, or one from [`give`] of this type that NCCL has not given back.
pub(crate) unsafe fn taken<T>(pointer: Ptr) -> Option<Box<T>> {
    // SAFETY: the caller's promise.
    (!pointer.is_null()).then(|| unsafe { Box::from_raw(pointer.cast()) })
}

/// An object that NCCL gives up by a function with this name.
pub(crate) trait Closed {
    const BY: &'static str;
}

impl Closed for Context {
    const BY: &'static str = "finalize";
}

impl Closed for Connection {
    const BY: &'static str = "close";
}

impl Closed for Listening {
    const BY: &'static str = "closeListen";
}

/// Frees an object that NCCL gives up.
pub(crate) unsafe extern "C" fn close<T: Closed>(pointer: Ptr) -> Code {
    guarded(T::BY, || {
        // SAFETY: NCCL passes what it got of this type, or null.
        drop(unsafe { taken::<T>(pointer) });
        Ok(())
    })
}

/// Writes a result.
///
/// # Safety
/// The place is null or valid for a write.
pub(crate) unsafe fn put<T>(place: *mut T, value: T, what: &str) -> Result<()> {
    if place.is_null() {
        return Err(Failure::null(what));
    }
    // SAFETY: the caller's promise.
    unsafe { place.write(value) };
    Ok(())
}

/// The handle that NCCL carries.
///
/// # Safety
/// The pointer is null or valid for reads and writes of a handle.
pub(crate) unsafe fn handle_at<'a>(handle: *mut c_void) -> Result<&'a mut [u8; HANDLE_SIZE]> {
    // SAFETY: the caller's promise; bytes have no alignment.
    unsafe { handle.cast::<[u8; HANDLE_SIZE]>().as_mut() }.ok_or_else(|| Failure::null("the handle"))
}

unsafe extern "C" fn init_v9(logger: Option<Logger>) -> Code {
    log_to(logger);
    guarded("init", Network::open_for_ever)
}

unsafe extern "C" fn init_v10(logger: Option<Logger>, _profiler: Ptr) -> Code {
    // SAFETY: the same contract.
    unsafe { init_v9(logger) }
}

unsafe extern "C" fn init_v11(out: Out, _comm: u64, _config: Ptr, logger: Option<Logger>, _profiler: Ptr) -> Code {
    log_to(logger);
    guarded("init", || {
        let context = Context { _networks: Network::open()? };
        CONTEXTS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: NCCL passes a place for the context.
        unsafe { give(out, context, "the place for the context") }
    })
}

unsafe extern "C" fn devices(count: Int) -> Code {
    // SAFETY: NCCL passes a place for a number.
    guarded("devices", || unsafe { put(count, DEVICES, "the place for the number") })
}

unsafe extern "C" fn properties_v9(dev: c_int, out: *mut PropertiesV9) -> Code {
    // SAFETY: NCCL passes a place for the properties.
    guarded("getProperties", || unsafe { put(out, network::properties(dev)?, "the place for the properties") })
}

unsafe extern "C" fn properties_v11(dev: c_int, out: *mut PropertiesV11) -> Code {
    guarded("getProperties", || {
        let properties = PropertiesV11 { common: network::properties(dev)?, max_multi_request_size: 1 };
        // SAFETY: NCCL passes a place for the properties.
        unsafe { put(out, properties, "the place for the properties") }
    })
}

unsafe extern "C" fn properties_v12(dev: c_int, out: *mut PropertiesV12) -> Code {
    guarded("getProperties", || {
        let (rail_id, plane_id) = (UNDEFINED, UNDEFINED);
        let common = network::properties(dev)?;
        let properties = PropertiesV12 { common, max_multi_request_size: 1, rail_id, plane_id };
        // SAFETY: NCCL passes a place for the properties.
        unsafe { put(out, properties, "the place for the properties") }
    })
}

unsafe extern "C" fn listen_v9(dev: c_int, handle: Ptr, out: Out) -> Code {
    guarded("listen", || {
        network::check_device(dev)?;
        // SAFETY: NCCL passes memory for a handle.
        let listening = Listening::new(Network::next()?, unsafe { handle_at(handle) }?)?;
        // SAFETY: NCCL passes a place for the listener.
        unsafe { give(out, listening, "the place for the listener") }
    })
}

unsafe extern "C" fn listen_v11(_context: Ptr, dev: c_int, handle: Ptr, out: Out) -> Code {
    // SAFETY: the same contract.
    unsafe { listen_v9(dev, handle, out) }
}

unsafe extern "C" fn connect_v9(dev: c_int, handle: Ptr, out: Out, _device_handle: Out) -> Code {
    guarded("connect", || {
        network::check_device(dev)?;
        // SAFETY: NCCL passes a place for the connection.
        unsafe { put(out, std::ptr::null_mut(), "the place for the connection") }?;
        // SAFETY: NCCL passes a handle, the same as long as it repeats the call.
        if let Some(sender) = connect(unsafe { handle_at(handle) }?)? {
            // SAFETY: as above.
            unsafe { put(out, Connection::handle_of(End::Send(Box::new(sender))), "the place for the connection") }?;
        }
        Ok(())
    })
}

unsafe extern "C" fn connect_v10(dev: c_int, _config: Ptr, handle: Ptr, out: Out, device_handle: Out) -> Code {
    // SAFETY: the same contract.
    unsafe { connect_v9(dev, handle, out, device_handle) }
}

unsafe extern "C" fn connect_v11(_context: Ptr, dev: c_int, handle: Ptr, out: Out, device_handle: Out) -> Code {
    // SAFETY: the same contract.
    unsafe { connect_v9(dev, handle, out, device_handle) }
}

unsafe extern "C" fn accept(listener: Ptr, out: Out, _device_handle: Out) -> Code {
    guarded("accept", || {
        // SAFETY: NCCL passes what `listen` returned, and a place for the connection.
        let listening = unsafe { object::<Listening>(listener, "the listener") }?;
        // SAFETY: as above.
        unsafe { put(out, std::ptr::null_mut(), "the place for the connection") }?;
        if let Some(receiver) = listening.accept()? {
            // SAFETY: as above.
            unsafe {
                put(out, Connection::handle_of(End::Receive(Box::new(receiver))), "the place for the connection")
            }?;
        }
        Ok(())
    })
}

unsafe extern "C" fn reg_mr(connection: Ptr, data: Ptr, size: usize, kind: c_int, out: Out) -> Code {
    guarded("regMr", || {
        // SAFETY: NCCL passes what `connect` or `accept` returned.
        let connection = unsafe { object::<Connection>(connection, "the connection") }?;
        if kind != PTR_HOST {
            return Err(Failure::argument(format!("memory of kind {kind}: only host memory (1) is supported")));
        }
        if data.is_null() {
            return Err(Failure::null("the memory"));
        }
        let network = connection.network();
        let sends = matches!(&*symrail_core::lock(&connection.end), End::Send(_));
        let registered = match sends {
            // SAFETY: NCCL keeps the memory until `deregMr`.
            true => Registration::Sending(unsafe { network.session.register_local(data.cast(), size) }?),
            false => {
                // SAFETY: as above.
                let memory = unsafe { network.session.register(data.cast(), size) }?;
                Registration::Receiving(Registered::own(&network.session, memory))
            }
        };
        let region = Region { network, base: data.addr(), len: size, registered };
        // SAFETY: NCCL passes a place for the handle.
        unsafe { give(out, region, "the place for the handle") }
    })
}

unsafe extern "C" fn dereg_mr(connection: Ptr, handle: Ptr) -> Code {
    guarded("deregMr", || {
        // SAFETY: NCCL passes what `connect` or `accept` returned.
        let connection = unsafe { object::<Connection>(connection, "the connection") }?;
        // SAFETY: it came from `regMr`.
        let region = unsafe { object::<Region>(handle, "the handle") }?;
        let mut end = symrail_core::lock(&connection.end);
        let all_there = match &mut *end {
            End::Send(sender) => {
                sender.settle();
                true
            }
            End::Receive(receiver) => receiver.settle(&(region.base..region.base.saturating_add(region.len))),
        };
        // SAFETY: it came from `regMr`, and NCCL gives it up.
        drop(unsafe { taken::<Region>(handle) });
        // No write to the memory begins from here on. One that has begun may go on.
        if let (End::Receive(receiver), false) = (&mut *end, all_there) {
            receiver.end_writes();
        }
        Ok(())
    })
}

unsafe extern "C" fn isend_v9(connection: Ptr, data: Ptr, size: usize, tag: c_int, _handle: Ptr, out: Out) -> Code {
    guarded("isend", || {
        // SAFETY: NCCL passes what `connect` returned.
        let connection = unsafe { object::<Connection>(connection, "the connection") }?;
        let End::Send(sender) = &mut *symrail_core::lock(&connection.end) else {
            return Err(Failure::argument("a send over a receiving connection"));
        };
        if data.is_null() && size > 0 {
            return Err(Failure::null("the data"));
        }
        // SAFETY: NCCL keeps the data until the request is done.
        let index = unsafe { sender.start(data.cast(), size as u64, tag) }?;
        let ticket = index.map_or(std::ptr::null_mut(), |index| connection.ticket(index));
        // SAFETY: NCCL passes a place for the request.
        unsafe { put(out, ticket, "the place for the request") }
    })
}

unsafe extern "C" fn isend_v10(c: Ptr, data: Ptr, size: usize, tag: c_int, handle: Ptr, _p: Ptr, out: Out) -> Code {
    // SAFETY: the same contract.
    unsafe { isend_v9(c, data, size, tag, handle, out) }
}

unsafe extern "C" fn irecv_v9(
    connection: Ptr,
    n: c_int,
    data: Out,
    sizes: *mut usize,
    tags: Int,
    handles: Out,
    out: Out,
) -> Code {
    guarded("irecv", || {
        // SAFETY: NCCL passes what `accept` returned.
        let connection = unsafe { object::<Connection>(connection, "the connection") }?;
        let End::Receive(receiver) = &mut *symrail_core::lock(&connection.end) else {
            return Err(Failure::argument("a receive over a sending connection"));
        };
        if n != 1 || data.is_null() || sizes.is_null() || tags.is_null() || handles.is_null() {
            return Err(Failure::argument(format!("{n} buffers in one receive: 1 is supported")));
        }
        // SAFETY: arrays of one entry, as checked.
        let (data, size, tag, handle) = unsafe { (data.read(), sizes.read(), tags.read(), handles.read()) };
        // SAFETY: NCCL passes what `regMr` returned.
        let region = unsafe { object::<Region>(handle, "the memory's handle") }?;
        let Registration::Receiving(memory) = &region.registered else {
            return Err(Failure::argument("the memory is registered with a sending connection"));
        };
        let offset = data.addr().wrapping_sub(region.base);
        if offset.checked_add(size).is_none_or(|end| end > region.len) {
            return Err(Failure::argument(format!("a buffer of {size} bytes that is not inside of its memory")));
        }
        // SAFETY: NCCL keeps the buffer until the request is done.
        let index = unsafe { receiver.start(data.cast(), (memory, offset as u64), size as u64, tag) }?;
        let ticket = index.map_or(std::ptr::null_mut(), |index| connection.ticket(index));
        // SAFETY: NCCL passes a place for the request.
        unsafe { put(out, ticket, "the place for the request") }
    })
}

#[rustfmt::skip]
unsafe extern "C" fn irecv_v10(
    c: Ptr, n: c_int, data: Out, sizes: *mut usize, tags: Int, handles: Out, _p: Out, out: Out,
) -> Code {
    // SAFETY: the same contract.
    unsafe { irecv_v9(c, n, data, sizes, tags, handles, out) }
}

/// Host memory needs no flush.
unsafe extern "C" fn iflush(_c: Ptr, _n: c_int, _data: Out, _sizes: Int, _handles: Out, out: Out) -> Code {
    // SAFETY: NCCL passes a place for the request.
    guarded("iflush", || unsafe { put(out, std::ptr::null_mut(), "the place for the request") })
}

unsafe extern "C" fn test(request: Ptr, done: Int, sizes: Int) -> Code {
    guarded("test", || {
        // SAFETY: NCCL passes what `isend` or `irecv` returned, while the connection is open.
        let ticket = unsafe { object::<Ticket>(request, "the request") }?;
        // SAFETY: the connection owns the ticket.
        let connection = unsafe { &*ticket.connection };
        let size = match &mut *symrail_core::lock(&connection.end) {
            End::Send(sender) => sender.test(ticket.index),
            End::Receive(receiver) => receiver.test(ticket.index),
        }?;
        if let (Some(size), false) = (size, sizes.is_null()) {
            // SAFETY: a place for a number. NCCL's sizes are of type int here.
            unsafe { sizes.write(size as c_int) };
        }
        // SAFETY: NCCL passes a place for a number.
        unsafe { put(done, c_int::from(size.is_some()), "the place for the result") }
    })
}

/// The table of one version.
macro_rules! export {
    ($(#[$doc:meta])* $symbol:ident: $table:ident, $init:ident, $properties:ident, $listen:ident, $connect:ident,
     $isend:ident, $irecv:ident $(, finalize: $finalize:expr)?) => {
        $(#[$doc])*
        #[unsafe(no_mangle)]
        #[allow(non_upper_case_globals)]
        pub static $symbol: $table = $table {
            name: c"symrail".as_ptr(),
            init: $init,
            devices,
            get_properties: $properties,
            listen: $listen,
            connect: $connect,
            accept,
            reg_mr,
            reg_mr_dma_buf: None,
            dereg_mr,
            isend: $isend,
            irecv: $irecv,
            iflush,
            test,
            close_send: close::<Connection>,
            close_recv: close::<Connection>,
            close_listen: close::<Listening>,
            get_device_mr: None,
            irecv_consumed: None,
            make_v_device: None,
            $(finalize: $finalize, set_attributes: None,)?
        };
    };
}

export!(ncclNetPlugin_v9: NetV9, init_v9, properties_v9, listen_v9, connect_v9, isend_v9, irecv_v9);
export!(ncclNetPlugin_v10: NetV10, init_v10, properties_v9, listen_v9, connect_v10, isend_v10, irecv_v10);
export!(ncclNetPlugin_v11: NetV11, init_v11, properties_v11, listen_v11, connect_v11, isend_v10, irecv_v10,
    finalize: close::<Context>);
export!(ncclNetPlugin_v12: NetV12, init_v11, properties_v12, listen_v11, connect_v11, isend_v10, irecv_v10,
    finalize: close::<Context>);
