//! A caller of the tables of one-sided operations, in the order of NCCL's proxy. It declares them by itself: as pointers
//! in a row.

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::time::Instant;

use super::{PATIENCE, SUCCESS, log};

type Ptr = *mut c_void;

macro_rules! call {
    ($self:ident, $slot:expr, ($($ty:ty),*), ($($arg:expr),*)) => {{
        // SAFETY: the slot of the table has a function of this type.
        unsafe {
            let f: unsafe extern "C" fn($($ty),*) -> c_int = std::mem::transmute($self.table.add($slot).read());
            f($($arg),*)
        }
    }};
}

/// The table of GIN 11 or of RMA 13 to 16, a group, and a set of contexts.
pub struct Rma {
    table: *const Ptr,
    version: u32,
    context: Ptr,
    group: Ptr,
    set: Ptr,
}

/// The memory and the word of a signal.
#[derive(Clone, Copy)]
pub struct Signal {
    pub memory: Ptr,
    pub at: u64,
    pub value: u64,
    pub op: u32,
    pub strong: bool,
}

/// One side of a transfer.
pub type At = (Ptr, u64);

impl Rma {
    /// Loads the library, and brings a group together. `gather` is NCCL's bootstrap.
    pub fn open(
        version: u32,
        (rank, ranks): (usize, usize),
        contexts: c_int,
        gather: &mut dyn FnMut(&[u8]) -> Vec<Vec<u8>>,
    ) -> Result<Rma, c_int> {
        // SAFETY: the library's initializers do nothing.
        let library = unsafe { libloading::Library::new(crate::libraries::own("nccl_net_symrail")) }.unwrap();
        let symbol = format!("{}_v{version}", if version == 11 { "ncclGinPlugin" } else { "ncclRmaPlugin" });
        // SAFETY: the symbol is a table.
        let table = unsafe { library.get::<*const Ptr>(symbol.as_bytes()).map(|s| s.try_as_raw_ptr().unwrap()) };
        let table: *const Ptr = table.unwrap().cast();
        std::mem::forget(library);
        let mut rma = Rma { table, version, context: null_mut(), group: null_mut(), set: null_mut() };
        let (mut context, mut listener) = (null_mut(), null_mut());
        let code = call!(rma, 1, (*mut Ptr, u64, Ptr), (&raw mut context, 7, log as *const () as Ptr));
        assert!(code == SUCCESS && !context.is_null());
        rma.context = context;
        let mut n = 0;
        assert_eq!((call!(rma, 2, (*mut c_int), (&raw mut n)), n), (SUCCESS, 1));
        if version == 16 {
            let mut any = 0xa5u8;
            assert_eq!((call!(rma, 3, (Ptr, *mut u8), (null_mut(), &raw mut any)), any), (SUCCESS, 0));
        }
        let mut handle = [0u8; 128];
        let h: Ptr = handle.as_mut_ptr().cast();
        match call!(rma, rma.slot(4), (Ptr, c_int, Ptr, *mut Ptr), (context, 0, h, &raw mut listener)) {
            SUCCESS => {}
            code => return Err(code),
        }
        let mut handles = gather(&handle);
        let mut pointers: Vec<Ptr> = handles.iter_mut().map(|handle| handle.as_mut_ptr().cast()).collect();
        let (p, r, n) = (pointers.as_mut_ptr(), rank as c_int, ranks as c_int);
        let mut group = null_mut();
        // NCCL 2.28.9 passes another context than `init` has returned.
        let args = (null_mut(), p, n, r, listener, &raw mut group);
        let code = call!(
            rma,
            rma.slot(5),
            (Ptr, *mut Ptr, c_int, c_int, Ptr, *mut Ptr),
            (args.0, args.1, args.2, args.3, args.4, args.5)
        );
        assert_eq!(code, SUCCESS);
        rma.group = group;
        assert_eq!(call!(rma, rma.slot(12), (Ptr), (listener)), SUCCESS);
        if version > 11 {
            rma.create(contexts);
        } else {
            // NCCL 2.30.4 takes the group as the context then, and no functions of contexts.
            let functions = [6, 10, rma.slot(19)];
            // SAFETY: they are places of the table.
            assert!(functions.iter().all(|&slot| unsafe { rma.table.add(slot).read() }.is_null()));
        }
        Ok(rma)
    }

    /// A function's place in this version's table, given that in version 14.
    fn slot(&self, of_v14: usize) -> usize {
        match self.version {
            11 if of_v14 > 16 => of_v14 - 2,
            16 if of_v14 >= 3 => of_v14 + 1,
            _ => of_v14,
        }
    }

    fn create(&mut self, contexts: c_int) {
        let (mut set, mut device): (Ptr, Ptr) = (null_mut(), null_mut());
        let code = if self.version == 13 {
            let config = [5, 5, contexts, 32, -1];
            let args = (self.group, config.as_ptr(), &raw mut set, &raw mut device);
            call!(self, 6, (Ptr, *const c_int, *mut Ptr, *mut Ptr), (args.0, args.1, args.2, args.3))
        } else {
            let config = [contexts, -1, 1];
            let args = (self.group, config.as_ptr(), &raw mut set);
            call!(self, self.slot(6), (Ptr, *const c_int, *mut Ptr), (args.0, args.1, args.2))
        };
        assert_eq!(code, SUCCESS);
        self.set = set;
    }

    /// The first words of the properties.
    pub fn properties(&self) -> [u32; 64] {
        let mut words = [0; 64];
        assert_eq!(call!(self, self.slot(3), (c_int, *mut u32), (0, words.as_mut_ptr())), SUCCESS);
        words
    }

    pub fn register(&self, data: *mut u8, len: usize, kind: c_int) -> Result<Ptr, c_int> {
        let (mut handle, mut device): (Ptr, Ptr) = (null_mut(), null_mut());
        let (d, h): (Ptr, _) = (data.cast(), &raw mut handle);
        let code = match self.version {
            11 | 13 => {
                let args = (self.group, d, len, kind, 0, h, &raw mut device);
                call!(
                    self,
                    7,
                    (Ptr, Ptr, usize, c_int, u64, *mut Ptr, *mut Ptr),
                    (args.0, args.1, args.2, args.3, args.4, args.5, args.6)
                )
            }
            _ => call!(self, self.slot(7), (Ptr, Ptr, usize, c_int, u64, *mut Ptr), (self.group, d, len, kind, 0, h)),
        };
        assert!(code != SUCCESS || device.is_null() || device == handle);
        if code == SUCCESS { Ok(handle) } else { Err(code) }
    }

    pub fn deregister(&self, handle: Ptr) {
        assert_eq!(call!(self, self.slot(9), (Ptr, Ptr), (self.group, handle)), SUCCESS);
    }

    pub fn put(&self, context: c_int, from: At, len: usize, to: At, rank: u32) -> Result<Ptr, c_int> {
        let mut request = null_mut();
        let r = &raw mut request;
        let code = match self.version {
            11 => call!(
                self,
                13,
                (Ptr, u64, Ptr, usize, u64, Ptr, u32, *mut Ptr),
                (self.group, from.1, from.0, len, to.1, to.0, rank, r)
            ),
            13 | 14 => call!(
                self,
                13,
                (Ptr, c_int, u64, Ptr, usize, u64, Ptr, u32, *mut Ptr),
                (self.set, context, from.1, from.0, len, to.1, to.0, rank, r)
            ),
            _ => call!(
                self,
                self.slot(13),
                (Ptr, c_int, u64, Ptr, usize, u64, Ptr, u32, u32, *mut Ptr),
                (self.set, context, from.1, from.0, len, to.1, to.0, rank, 1, r)
            ),
        };
        if code == SUCCESS { Ok(request) } else { Err(code) }
    }

    pub fn put_signal(&self, context: c_int, from: At, len: usize, to: At, rank: u32, s: Signal) -> Result<Ptr, c_int> {
        let mut request = null_mut();
        let r = &raw mut request;
        let code = match self.version {
            11 => call!(
                self,
                14,
                (Ptr, u64, Ptr, usize, u64, Ptr, u32, u64, Ptr, u64, u32, *mut Ptr),
                (self.group, from.1, from.0, len, to.1, to.0, rank, s.at, s.memory, s.value, s.op, r)
            ),
            13 => call!(
                self,
                14,
                (Ptr, c_int, u64, Ptr, usize, u64, Ptr, u32, u64, Ptr, u64, u32, *mut Ptr),
                (self.set, context, from.1, from.0, len, to.1, to.0, rank, s.at, s.memory, s.value, s.op, r)
            ),
            14 => call!(
                self,
                14,
                (Ptr, c_int, u64, Ptr, usize, u64, Ptr, u32, u64, Ptr, u64, u32, bool, *mut Ptr),
                (self.set, context, from.1, from.0, len, to.1, to.0, rank, s.at, s.memory, s.value, s.op, s.strong, r)
            ),
            _ => call!(
                self,
                self.slot(14),
                (Ptr, c_int, u64, Ptr, usize, u64, Ptr, u32, u64, Ptr, u64, u32, bool, u32, *mut Ptr),
                (
                    self.set, context, from.1, from.0, len, to.1, to.0, rank, s.at, s.memory, s.value, s.op, s.strong,
                    1, r
                )
            ),
        };
        if code == SUCCESS { Ok(request) } else { Err(code) }
    }

    /// Reads `len` bytes at `from` of a rank.
    pub fn get(&self, context: c_int, from: At, len: usize, to: At, rank: u32) -> Result<Ptr, c_int> {
        let mut request = null_mut();
        let r = &raw mut request;
        let code = match self.version {
            13 | 14 => call!(
                self,
                15,
                (Ptr, c_int, u64, Ptr, usize, u64, Ptr, u32, *mut Ptr),
                (self.set, context, from.1, from.0, len, to.1, to.0, rank, r)
            ),
            _ => call!(
                self,
                self.slot(15),
                (Ptr, c_int, u64, Ptr, usize, u64, Ptr, u32, u32, *mut Ptr),
                (self.set, context, from.1, from.0, len, to.1, to.0, rank, 0, r)
            ),
        };
        if code == SUCCESS { Ok(request) } else { Err(code) }
    }

    pub fn flush(&self, context: c_int, memory: Ptr, rank: u32) -> Result<Ptr, c_int> {
        let mut request = null_mut();
        let args = (self.set, context, memory, rank, &raw mut request);
        let code =
            call!(self, self.slot(16), (Ptr, c_int, Ptr, u32, *mut Ptr), (args.0, args.1, args.2, args.3, args.4));
        if code == SUCCESS { Ok(request) } else { Err(code) }
    }

    pub fn test(&self, request: Ptr) -> Result<bool, c_int> {
        let mut done = -1;
        match call!(self, self.slot(17), (Ptr, Ptr, *mut c_int), (self.group, request, &raw mut done)) {
            SUCCESS => Ok(done == 1),
            code => Err(code),
        }
    }

    pub fn progress(&self) -> c_int {
        let of = if self.version == 11 { self.group } else { self.set };
        call!(self, self.slot(18), (Ptr), (of))
    }

    pub fn has_error(&self) -> bool {
        let mut has = false;
        assert_eq!(call!(self, self.slot(19), (Ptr, *mut bool), (self.set, &raw mut has)), SUCCESS);
        has
    }

    pub fn finish(&self, request: Ptr) -> Result<(), c_int> {
        let begun = Instant::now();
        while !self.test(request)? {
            assert!(begun.elapsed() < PATIENCE, "test takes too long");
            std::thread::yield_now();
        }
        Ok(())
    }

    pub fn close(self) {
        if self.version > 11 {
            assert_eq!(call!(self, self.slot(10), (Ptr), (self.set)), SUCCESS);
        }
        assert_eq!(call!(self, self.slot(11), (Ptr), (self.group)), SUCCESS);
        assert_eq!(call!(self, self.slot(20), (Ptr), (self.context)), SUCCESS);
    }
}
