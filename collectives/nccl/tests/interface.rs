//! The library as programs load it, without a GPU: names, numbers, and refused calls.
#![allow(clippy::unwrap_used, clippy::panic, missing_docs)]

#[path = "../../../tests/support/libraries.rs"]
mod libraries;

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr::{null, null_mut};
use std::sync::OnceLock;

use libloading::{Library, Symbol};

type Handle = *mut c_void;

const INVALID_ARGUMENT: c_int = 4;
const INVALID_USAGE: c_int = 5;

#[repr(C)]
#[derive(Clone, Copy)]
struct UniqueId([u8; 128]);

fn library() -> &'static Library {
    static LIBRARY: OnceLock<Library> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        // SAFETY: a library without initialisers of its own.
        unsafe { Library::new(libraries::own("symrail_nccl")) }.unwrap()
    })
}

fn function<T>(name: &str) -> Symbol<'static, T> {
    // SAFETY: tests use the functions' types of nccl.h.
    unsafe { library().get(name.as_bytes()) }.unwrap_or_else(|error| panic!("{name}: {error}"))
}

fn last_error() -> String {
    let last = function::<extern "C" fn(Handle) -> *const c_char>("ncclGetLastError");
    // SAFETY: a text that stays until the next call of this thread.
    unsafe { CStr::from_ptr(last(null_mut())) }.to_string_lossy().into_owned()
}

/// The functions that PyTorch 2.11 uses, and others of nccl.h 2.28.
const NAMES: [&str; 43] = [
    "ncclGetVersion",
    "ncclGetUniqueId",
    "ncclGetErrorString",
    "ncclGetLastError",
    "ncclCommInitRank",
    "ncclCommInitRankConfig",
    "ncclCommInitRankScalable",
    "ncclCommInitAll",
    "ncclCommSplit",
    "ncclCommShrink",
    "ncclCommFinalize",
    "ncclCommDestroy",
    "ncclCommAbort",
    "ncclCommGetAsyncError",
    "ncclCommCount",
    "ncclCommCuDevice",
    "ncclCommUserRank",
    "ncclCommRegister",
    "ncclCommDeregister",
    "ncclCommWindowRegister",
    "ncclCommWindowDeregister",
    "ncclDevCommCreate",
    "ncclDevCommDestroy",
    "ncclMemAlloc",
    "ncclMemFree",
    "ncclRedOpCreatePreMulSum",
    "ncclRedOpDestroy",
    "ncclGroupStart",
    "ncclGroupEnd",
    "ncclGroupSimulateEnd",
    "ncclAllReduce",
    "ncclReduce",
    "ncclBcast",
    "ncclBroadcast",
    "ncclAllGather",
    "ncclReduceScatter",
    "ncclAlltoAll",
    "ncclGather",
    "ncclScatter",
    "ncclSend",
    "ncclRecv",
    "ncclResetDebugInit",
    "ncclWinGetUserPtr",
];

#[test]
fn all_names_are_there() {
    for name in NAMES {
        function::<extern "C" fn()>(name);
        // The names for programs that replace NCCL's functions themselves.
        function::<extern "C" fn()>(&format!("p{name}"));
    }
}

#[test]
fn version_and_ids() {
    let mut version = 0;
    assert_eq!(function::<extern "C" fn(*mut c_int) -> c_int>("ncclGetVersion")(&raw mut version), 0);
    assert_eq!(version, 22_809);
    let mut ids = [UniqueId([1; 128]); 2];
    for id in &mut ids {
        assert_eq!(function::<extern "C" fn(*mut UniqueId) -> c_int>("ncclGetUniqueId")(id), 0);
    }
    assert_ne!(ids[0].0, ids[1].0);
    let text = function::<extern "C" fn(c_int) -> *const c_char>("ncclGetErrorString");
    // SAFETY: constant texts.
    let texts: Vec<_> = (0..9).map(|code| unsafe { CStr::from_ptr(text(code)) }.to_str().unwrap()).collect();
    assert!((0..9).all(|i| !texts[i].is_empty() && !texts[..i].contains(&texts[i])), "{texts:?}");
}

#[test]
fn what_is_wrong_is_named() {
    let init = function::<extern "C" fn(*mut Handle, c_int, UniqueId, c_int) -> c_int>("ncclCommInitRank");
    let mut new: Handle = std::ptr::without_provenance_mut(64);
    assert_eq!(init(&raw mut new, 2, UniqueId([0; 128]), 2), INVALID_ARGUMENT);
    assert!(new.is_null());
    assert!(last_error().contains("rank 2 of 2 ranks"), "{}", last_error());
    assert_ne!(init(&raw mut new, 2, UniqueId([0; 128]), 0), 0);
    assert!(last_error().contains("not an id"), "{}", last_error());
    let all = function::<extern "C" fn(*mut Handle, c_int, *const c_int) -> c_int>("ncclCommInitAll");
    assert_eq!(all(&raw mut new, 2, null()), INVALID_USAGE);
    assert!(last_error().contains("2 ranks in one process"), "{}", last_error());
    let count = function::<extern "C" fn(Handle, *mut c_int) -> c_int>("ncclCommCount");
    let mut answer = 0;
    for handle in [null_mut(), std::ptr::without_provenance_mut(64)] {
        assert_eq!(count(handle, &raw mut answer), INVALID_ARGUMENT);
        assert!(last_error().contains("is no communicator"), "{}", last_error());
    }
    let window =
        function::<extern "C" fn(Handle, Handle, usize, *mut Handle, c_int) -> c_int>("ncclCommWindowRegister");
    assert_eq!(window(null_mut(), null_mut(), 0, null_mut(), 0), INVALID_USAGE);
    assert!(last_error().contains("ncclCommWindowRegister"), "{}", last_error());
}

#[test]
fn groups_are_counted() {
    let [start, end] = ["ncclGroupStart", "ncclGroupEnd"].map(function::<extern "C" fn() -> c_int>);
    assert_eq!([start(), start(), end(), end()], [0; 4]);
    assert_eq!(end(), INVALID_USAGE);
    assert!(last_error().contains("without a start"), "{}", last_error());
    let simulate = function::<extern "C" fn(*mut c_void) -> c_int>("ncclGroupSimulateEnd");
    assert_eq!([start(), simulate(null_mut())], [0, INVALID_USAGE]);
    assert_eq!(end(), INVALID_USAGE, "a refused simulation ends its group");
}

#[test]
fn a_refused_call_keeps_its_group_from_beginning() {
    let [start, end] = ["ncclGroupStart", "ncclGroupEnd"].map(function::<extern "C" fn() -> c_int>);
    let send = function::<extern "C" fn(Handle, usize, c_int, c_int, Handle, Handle) -> c_int>("ncclSend");
    assert_eq!([start(), start()], [0; 2]);
    assert_eq!(send(null_mut(), 1, 7, 0, null_mut(), null_mut()), INVALID_ARGUMENT);
    assert_eq!([end(), end()], [0, INVALID_ARGUMENT]);
    assert!(last_error().contains("nothing of the group was begun"), "{}", last_error());
    assert!(last_error().contains("is no communicator"), "{}", last_error());
    assert_eq!([start(), end()], [0; 2], "the next group is another one");
    assert_eq!(send(null_mut(), 1, 7, 0, null_mut(), null_mut()), INVALID_ARGUMENT);
    assert_eq!([start(), end()], [0; 2], "that was in no group");
}
