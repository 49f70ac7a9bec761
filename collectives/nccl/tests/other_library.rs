//! Communicators of another library with NCCL's interface, which the test builds.
#![allow(clippy::unwrap_used, clippy::panic, missing_docs)]

#[path = "../../../tests/support/libraries.rs"]
mod libraries;

use std::ffi::{CStr, c_char, c_int, c_void};
use std::path::Path;
use std::process::Command;
use std::ptr::{null, null_mut, without_provenance_mut};

use libloading::{Library, Symbol};

type Handle = *mut c_void;

#[repr(C)]
#[derive(Clone, Copy)]
struct UniqueId([u8; 128]);

fn text(at: *const c_char) -> String {
    // SAFETY: texts that end and stay.
    unsafe { CStr::from_ptr(at) }.to_string_lossy().into_owned()
}

#[test]
fn what_this_library_cannot_make_is_the_others() {
    if libraries::missing("cc") {
        return;
    }
    let other = Path::new(env!("CARGO_TARGET_TMPDIR")).join("libother_nccl.so");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/other/nccl.c");
    let soname = ["-shared", "-fPIC", "-Wl,-soname,libnccl.so.2", "-o"];
    libraries::succeed(Command::new("cc").args(soname).arg(&other).arg(source));
    // SAFETY: the only test of this program, before other threads that read the environment exist.
    unsafe { std::env::set_var("SYMRAIL_NCCL_LIBRARY", &other) };
    // SAFETY: libraries without initialisers of their own.
    let (ours, noted) = unsafe { (Library::new(libraries::own("symrail_nccl")), Library::new(&other)) };
    let (ours, noted) = (ours.unwrap(), noted.unwrap());
    // SAFETY: the types of nccl.h and of the test's library.
    let function = |name: &str| unsafe { ours.get::<fn()>(name.as_bytes()).unwrap().try_as_raw_ptr() }.unwrap();
    macro_rules! call {
        ($name:literal($($argument:expr),*): fn($($ty:ty),*) -> $result:ty) => {{
            // SAFETY: as above.
            let function: extern "C" fn($($ty),*) -> $result = unsafe { std::mem::transmute(function($name)) };
            function($($argument),*)
        }};
    }
    let last = |comm: Handle| text(call!("ncclGetLastError"(comm): fn(Handle) -> *const c_char));
    // SAFETY: as above.
    let calls: Symbol<'_, extern "C" fn() -> *const c_char> = unsafe { noted.get(b"other_calls") }.unwrap();

    // Without a GPU, ids belong to the other library.
    let mut id = UniqueId([b'x'; 128]);
    if !Path::new("/dev/nvidiactl").exists() {
        id = UniqueId([0; 128]);
        assert_eq!(call!("ncclGetUniqueId"(&raw mut id): fn(*mut UniqueId) -> c_int), 0);
        assert_eq!(text(calls()), "u", "no GPU is here");
    }
    let mut comm: Handle = null_mut();
    let init = |comm: &mut Handle, id: UniqueId| call!("ncclCommInitRank"(comm, 3, id, 2): fn(&mut Handle, c_int, UniqueId, c_int) -> c_int);
    assert_eq!(init(&mut comm, id), 0);
    let mut count = 0;
    // The name with a `p` works as well.
    assert_eq!(call!("pncclCommCount"(comm, &raw mut count): fn(Handle, *mut c_int) -> c_int), 0);
    assert_eq!(count, 3);
    assert_eq!(call!("ncclGroupStart"(): fn() -> c_int), 0);
    let reduce = |count: usize| {
        let (from, to, stream) = (without_provenance_mut(64), without_provenance_mut(128), without_provenance_mut(3));
        call!("ncclAllReduce"(from, to, count, 7, 2, comm, stream):
            fn(Handle, Handle, usize, c_int, c_int, Handle, Handle) -> c_int)
    };
    assert_eq!(reduce(10), 0);
    assert_eq!(call!("ncclGroupEnd"(): fn() -> c_int), 0);
    assert_eq!(reduce(11), 5, "the other library's result is given");
    assert_eq!(last(comm), "it was not what the caller said");
    let mut window: Handle = null_mut();
    let at: Handle = without_provenance_mut(256);
    assert_eq!(
        call!("ncclCommWindowRegister"(comm, at, 32, &raw mut window, 1):
            fn(Handle, Handle, usize, *mut Handle, c_int) -> c_int),
        0
    );
    assert_eq!(window, at);
    // A function that the other library lacks is an error that names the function.
    assert_eq!(call!("ncclCommFinalize"(comm): fn(Handle) -> c_int), 5);
    assert!(last(null_mut()).contains("ncclCommFinalize: neither this library nor"), "{}", last(null_mut()));
    let mut made = "";
    if !Path::new("/dev/nvidiactl").exists() {
        made = "a";
        let mut all = [null_mut::<c_void>(); 2];
        let init = call!("ncclCommInitAll"(all.as_mut_ptr(), 2, null()): fn(*mut Handle, c_int, *const c_int) -> c_int);
        assert_eq!((init, all), (0, [comm; 2]));
    }
    assert_eq!(call!("ncclCommDestroy"(comm): fn(Handle) -> c_int), 0);
    assert!(text(calls()).ends_with(&format!("in(r)w{made}d")), "{}", text(calls()));

    // An id of this library is not the other one's.
    let mut ours = UniqueId([0; 128]);
    ours.0[..8].copy_from_slice(b"symrail\0");
    let before = text(calls());
    assert_ne!(init(&mut comm, ours), 0);
    assert_eq!(text(calls()), before);
}
