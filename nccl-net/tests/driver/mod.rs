//! A caller of the plugin's tables, in NCCL's order. It declares them by itself: as pointers in a row.

pub mod one_sided;
pub mod timing;

use std::ffi::{c_char, c_int, c_ulong, c_void};
use std::ptr::{null, null_mut};
use std::time::{Duration, Instant};

pub const SUCCESS: c_int = 0;
pub const INVALID_ARGUMENT: c_int = 4;
pub const INVALID_USAGE: c_int = 5;
pub const REMOTE_ERROR: c_int = 6;
/// Nothing here waits for longer.
pub const PATIENCE: Duration = Duration::from_secs(120);

type Ptr = *mut c_void;

/// NCCL's log, of which this program takes the first three arguments behind the format.
unsafe extern "C" fn log(
    _level: c_int,
    _flags: c_ulong,
    _file: *const c_char,
    _line: c_int,
    _format: *const c_char,
    text: *const c_char,
) {
    // SAFETY: the plugin's format has one string.
    eprintln!("plugin: {}", unsafe { std::ffi::CStr::from_ptr(text) }.to_string_lossy());
}

/// A table of one version.
#[derive(Clone, Copy)]
pub struct Net {
    table: *const Ptr,
    version: u32,
    context: Ptr,
}

macro_rules! call {
    ($self:ident, $slot:literal, ($($ty:ty),*), ($($arg:expr),*)) => {{
        // SAFETY: the slot of the table has a function of this type.
        unsafe {
            let f: unsafe extern "C" fn($($ty),*) -> c_int = std::mem::transmute($self.table.add($slot).read());
            f($($arg),*)
        }
    }};
}

impl Net {
    /// Loads the library and initializes it. `Err` has the code of `init`.
    pub fn open(version: u32) -> Result<Net, c_int> {
        // SAFETY: the library's initializers do nothing.
        let library = unsafe { libloading::Library::new(super::libraries::own("nccl_net_symrail")) }.unwrap();
        let symbol = format!("ncclNetPlugin_v{version}");
        // SAFETY: the symbol is a table.
        let table = unsafe { library.get::<*const Ptr>(symbol.as_bytes()).map(|s| s.try_as_raw_ptr().unwrap()) };
        let table: *const Ptr = table.unwrap().cast();
        std::mem::forget(library);
        let mut net = Net { table, version, context: null_mut() };
        let log = log as *const () as Ptr;
        let config = [0u64; 8];
        let code = match version {
            9 => call!(net, 1, (Ptr), (log)),
            10 => call!(net, 1, (Ptr, Ptr), (log, null_mut())),
            _ => {
                let mut context = null_mut();
                let config: Ptr = config.as_ptr().cast_mut().cast();
                let code =
                    call!(net, 1, (*mut Ptr, u64, Ptr, Ptr, Ptr), (&raw mut context, 7, config, log, null_mut()));
                net.context = context;
                code
            }
        };
        if code == SUCCESS { Ok(net) } else { Err(code) }
    }

    pub fn finalize(self) {
        if self.version >= 11 {
            assert_eq!(call!(self, 20, (Ptr), (self.context)), SUCCESS);
        }
    }

    pub fn devices(&self) -> c_int {
        let mut n = -1;
        assert_eq!(call!(self, 2, (*mut c_int), (&raw mut n)), SUCCESS);
        n
    }

    /// The first words of the properties, and the place behind `maxCollBytes`.
    pub fn properties(&self, dev: c_int) -> Result<[u64; 32], c_int> {
        let mut words = [0xa5a5_a5a5_a5a5_a5a5; 32];
        match call!(self, 3, (c_int, *mut u64), (dev, words.as_mut_ptr())) {
            SUCCESS => Ok(words),
            code => Err(code),
        }
    }

    pub fn listen(&self) -> ([u8; 128], Ptr) {
        let (mut handle, mut listener) = ([0; 128], null_mut());
        let h: Ptr = handle.as_mut_ptr().cast();
        let code = match self.version {
            9 | 10 => call!(self, 4, (c_int, Ptr, *mut Ptr), (0, h, &raw mut listener)),
            _ => call!(self, 4, (Ptr, c_int, Ptr, *mut Ptr), (self.context, 0, h, &raw mut listener)),
        };
        assert_eq!(code, SUCCESS);
        (handle, listener)
    }

    /// One call of `connect`: null means later.
    pub fn connect_once(&self, handle: &mut [u8; 128]) -> Result<Ptr, c_int> {
        let (mut out, mut device): (Ptr, Ptr) = (null_mut(), null_mut());
        let (h, o, d): (Ptr, _, _) = (handle.as_mut_ptr().cast(), &raw mut out, &raw mut device);
        let code = match self.version {
            9 => call!(self, 5, (c_int, Ptr, *mut Ptr, *mut Ptr), (0, h, o, d)),
            10 => call!(self, 5, (c_int, Ptr, Ptr, *mut Ptr, *mut Ptr), (0, null_mut(), h, o, d)),
            _ => call!(self, 5, (Ptr, c_int, Ptr, *mut Ptr, *mut Ptr), (self.context, 0, h, o, d)),
        };
        if code == SUCCESS { Ok(out) } else { Err(code) }
    }

    pub fn connect(&self, handle: &mut [u8; 128]) -> Ptr {
        until("connect", || self.connect_once(handle).map(|out| (!out.is_null()).then_some(out))).unwrap()
    }

    pub fn accept_once(&self, listener: Ptr) -> Result<Ptr, c_int> {
        let (mut out, mut device): (Ptr, Ptr) = (null_mut(), null_mut());
        let code = call!(self, 6, (Ptr, *mut Ptr, *mut Ptr), (listener, &raw mut out, &raw mut device));
        if code == SUCCESS { Ok(out) } else { Err(code) }
    }

    pub fn accept(&self, listener: Ptr) -> Ptr {
        until("accept", || self.accept_once(listener).map(|out| (!out.is_null()).then_some(out))).unwrap()
    }

    pub fn register(&self, connection: Ptr, data: &mut [u8]) -> Ptr {
        self.try_register(connection, data, 1).unwrap()
    }

    pub fn try_register(&self, connection: Ptr, data: &mut [u8], kind: c_int) -> Result<Ptr, c_int> {
        let mut handle = null_mut();
        let base: Ptr = data.as_mut_ptr().cast();
        let args = (connection, base, data.len(), kind, &raw mut handle);
        match call!(self, 7, (Ptr, Ptr, usize, c_int, *mut Ptr), (args.0, args.1, args.2, args.3, args.4)) {
            SUCCESS => Ok(handle),
            code => Err(code),
        }
    }

    pub fn deregister(&self, connection: Ptr, handle: Ptr) {
        assert_eq!(call!(self, 9, (Ptr, Ptr), (connection, handle)), SUCCESS);
    }

    /// One call of `isend`: null means later.
    pub fn send(&self, connection: Ptr, data: &[u8], tag: c_int, handle: Ptr) -> Result<Ptr, c_int> {
        let mut request = null_mut();
        let base: Ptr = data.as_ptr().cast_mut().cast();
        let r = &raw mut request;
        let code = match self.version {
            9 => {
                call!(self, 10, (Ptr, Ptr, usize, c_int, Ptr, *mut Ptr), (connection, base, data.len(), tag, handle, r))
            }
            _ => call!(
                self,
                10,
                (Ptr, Ptr, usize, c_int, Ptr, Ptr, *mut Ptr),
                (connection, base, data.len(), tag, handle, null_mut(), r)
            ),
        };
        if code == SUCCESS { Ok(request) } else { Err(code) }
    }

    /// One call of `irecv`: null means later.
    pub fn receive(&self, connection: Ptr, data: &mut [u8], tag: c_int, handle: Ptr) -> Result<Ptr, c_int> {
        let mut request = null_mut();
        let (mut base, mut size, mut tag, mut handle): (Ptr, _, _, _) =
            (data.as_mut_ptr().cast(), data.len(), tag, handle);
        let (b, s, t, h, r) = (&raw mut base, &raw mut size, &raw mut tag, &raw mut handle, &raw mut request);
        let code = match self.version {
            9 => call!(
                self,
                11,
                (Ptr, c_int, *mut Ptr, *mut usize, *mut c_int, *mut Ptr, *mut Ptr),
                (connection, 1, b, s, t, h, r)
            ),
            _ => call!(
                self,
                11,
                (Ptr, c_int, *mut Ptr, *mut usize, *mut c_int, *mut Ptr, *const Ptr, *mut Ptr),
                (connection, 1, b, s, t, h, null(), r)
            ),
        };
        if code == SUCCESS { Ok(request) } else { Err(code) }
    }

    /// One call of `test`: the size if the request is done.
    pub fn test(&self, request: Ptr) -> Result<Option<usize>, c_int> {
        let (mut done, mut size) = (-1, -1);
        match call!(self, 13, (Ptr, *mut c_int, *mut c_int), (request, &raw mut done, &raw mut size)) {
            SUCCESS => Ok((done == 1).then_some(size as usize)),
            code => Err(code),
        }
    }

    pub fn finish(&self, request: Ptr) -> Result<usize, c_int> {
        until("test", || self.test(request))
    }

    pub fn close_send(&self, connection: Ptr) {
        assert_eq!(call!(self, 14, (Ptr), (connection)), SUCCESS);
    }

    pub fn close_receive(&self, connection: Ptr) {
        assert_eq!(call!(self, 15, (Ptr), (connection)), SUCCESS);
    }

    pub fn close_listen(&self, listener: Ptr) {
        assert_eq!(call!(self, 16, (Ptr), (listener)), SUCCESS);
    }
}

/// Repeats a call until it returns something.
pub fn until<T>(what: &str, mut call: impl FnMut() -> Result<Option<T>, c_int>) -> Result<T, c_int> {
    let begun = Instant::now();
    loop {
        if let Some(result) = call()? {
            return Ok(result);
        }
        assert!(begun.elapsed() < PATIENCE, "{what} takes too long");
        std::thread::yield_now();
    }
}
