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

/// What a function answers to null pointers and zeros.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Answer {
    /// Success.
    Good,
    /// An error with this code, whose text has these words.
    Error(c_int, &'static str),
    /// No result code: a value that says that there is none, and an error text with these words.
    Nothing(c_int, &'static str),
    /// No result code, and no error.
    Text,
}

use Answer::{Error, Good, Nothing, Text};

const NULL: Answer = Error(INVALID_ARGUMENT, "is a null pointer");
const NO_COMM: Answer = Error(INVALID_ARGUMENT, "is no communicator");
const ENDPOINTS: Answer = Error(INVALID_USAGE, "the logical endpoints of windows");
const KERNELS: Answer = Error(INVALID_USAGE, "communicators for kernels");

/// The functions of nccl.h and of nccl_device/host.h up to 2.32, and their answers.
const NAMES: [(&str, Answer); 97] = [
    ("ncclMemAlloc", NULL),
    ("ncclMemFree", Good),
    ("ncclGetVersion", NULL),
    ("ncclGetUniqueId", NULL),
    ("ncclCommInitRankConfig", NULL),
    ("ncclCommInitRank", NULL),
    ("ncclCommInitAll", Error(INVALID_USAGE, "0 ranks in one process")),
    ("ncclCommFinalize", NO_COMM),
    ("ncclCommDestroy", Good),
    ("ncclCommAbort", Good),
    ("ncclCommRevoke", NO_COMM),
    ("ncclCommSplit", NULL),
    ("ncclCommShrink", NULL),
    ("ncclCommGetUniqueId", NO_COMM),
    ("ncclCommGrow", Error(INVALID_ARGUMENT, "the id of ncclCommGetUniqueId")),
    ("ncclCommInitRankScalable", Error(INVALID_ARGUMENT, "0 ids")),
    ("ncclGetErrorString", Text),
    ("ncclGetLastError", Text),
    ("ncclResetDebugInit", Text),
    ("ncclCommGetAsyncError", NULL),
    ("ncclCommCount", NO_COMM),
    ("ncclCommCuDevice", NO_COMM),
    ("ncclCommUserRank", NO_COMM),
    ("ncclCommRegister", NO_COMM),
    ("ncclCommDeregister", NO_COMM),
    ("ncclCommSuspend", Error(INVALID_ARGUMENT, "NCCL_SUSPEND_MEM")),
    ("ncclCommResume", NO_COMM),
    ("ncclCommMemStats", NO_COMM),
    ("ncclCommWindowRegister", NO_COMM),
    ("ncclCommWindowDeregister", NO_COMM),
    ("ncclWinGetUserPtr", NO_COMM),
    ("ncclRedOpCreatePreMulSum", NULL),
    ("ncclRedOpDestroy", NO_COMM),
    ("ncclReduce", NO_COMM),
    ("ncclBcast", NO_COMM),
    ("ncclBroadcast", NO_COMM),
    ("ncclAllReduce", NO_COMM),
    ("ncclReduceScatter", NO_COMM),
    ("ncclAllGather", NO_COMM),
    ("ncclAlltoAll", NO_COMM),
    ("ncclGather", NO_COMM),
    ("ncclScatter", NO_COMM),
    ("ncclAllReduceConfig", NO_COMM),
    ("ncclBroadcastConfig", NO_COMM),
    ("ncclReduceConfig", NO_COMM),
    ("ncclAllGatherConfig", NO_COMM),
    ("ncclReduceScatterConfig", NO_COMM),
    ("ncclAlltoAllConfig", NO_COMM),
    ("ncclGatherConfig", NO_COMM),
    ("ncclScatterConfig", NO_COMM),
    ("ncclSend", NO_COMM),
    ("ncclRecv", NO_COMM),
    ("ncclPutSignal", NO_COMM),
    ("ncclSignal", NO_COMM),
    ("ncclWaitSignal", NO_COMM),
    ("ncclGroupStart", Good),
    ("ncclGroupEnd", Good),
    ("ncclGroupSimulateEnd", Error(INVALID_USAGE, "the end of a group without a start")),
    ("ncclSetEncryption", Error(INVALID_USAGE, "encryption")),
    ("ncclParamBind", NULL),
    ("ncclParamGetI8", NULL),
    ("ncclParamGetI16", NULL),
    ("ncclParamGetI32", NULL),
    ("ncclParamGetI64", NULL),
    ("ncclParamGetU8", NULL),
    ("ncclParamGetU16", NULL),
    ("ncclParamGetU32", NULL),
    ("ncclParamGetU64", NULL),
    ("ncclParamGetStr", NULL),
    ("ncclParamGet", NULL),
    ("ncclParamGetParameter", NULL),
    ("ncclParamGetAllParameterKeys", NULL),
    ("ncclParamDumpAll", Text),
    ("ncclCommQueryProperties", NO_COMM),
    ("ncclDevCommCreate", KERNELS),
    ("ncclDevCommDestroy", KERNELS),
    ("ncclGetLsaMultimemDevicePointer", NULL),
    ("ncclGetMultimemDevicePointer", NULL),
    ("ncclGetLsaDevicePointer", NULL),
    ("ncclGetPeerDevicePointer", NULL),
    ("ncclGetMultimemDeviceLeInfo", ENDPOINTS),
    ("ncclGetCftDeviceLeInfo", ENDPOINTS),
    ("ncclGetPeerDeviceLeInfo", ENDPOINTS),
    ("ncclTeamWorld", Nothing(0, "is no communicator")),
    ("ncclTeamLsa", Nothing(0, "ncclTeamLsa")),
    ("ncclTeamRail", Nothing(0, "ncclTeamRail")),
    ("ncclTeamCft", Nothing(0, "ncclTeamCft")),
    ("ncclTeamCftMultimem", Nothing(0, "ncclTeamCftMultimem")),
    ("ncclTeamRankToWorld", Nothing(-1, "is no communicator")),
    ("ncclTeamRankToLsa", Nothing(-1, "ncclTeamRankToLsa")),
    ("ncclLsaBarrierCreateRequirement", KERNELS),
    ("ncclGinBarrierCreateRequirement", KERNELS),
    ("ncclCftBarrierCreateRequirement", KERNELS),
    ("ncclLLA2ACalcSlots", Nothing(0, "ncclLLA2ACalcSlots")),
    ("ncclLLA2ACreateRequirement", KERNELS),
    ("ncclGinOutboxCreateRequirement", KERNELS),
    ("ncclGinInboxA2ACreateRequirement", KERNELS),
];

/// A function of integers and pointers, and of structures of them: six in registers, the others on the stack. One that
/// takes fewer does not look at the rest.
type Any = extern "C" fn(usize, usize, usize, usize, usize, usize, Rest) -> c_int;

#[repr(C)]
struct Rest([usize; 24]);

#[test]
fn every_name_is_there_twice_and_answers() {
    if !cfg!(target_arch = "x86_64") {
        println!("SKIPPED: arguments beyond those of a function are known to be harmless on x86-64 alone");
        return;
    }
    for (name, answer) in NAMES {
        // Programs that replace NCCL's functions call those with a `p`.
        for name in [name.to_owned(), format!("p{name}")] {
            let code = function::<Any>(&name)(0, 0, 0, 0, 0, 0, Rest([0; 24]));
            let (expected, words) = match answer {
                Text => continue,
                Good => (0, ""),
                Error(code, words) | Nothing(code, words) => (code, words),
            };
            assert_eq!(code, expected, "{name}: {}", last_error());
            assert!(last_error().contains(words), "{name}: {}", last_error());
        }
    }
}

/// The functions that vLLM 0.33, SGLang and PyTorch 2.15 look for are all in the table.
#[test]
fn nothing_is_exported_that_the_table_lacks() {
    if libraries::missing("nm") {
        return;
    }
    let library = libraries::own("symrail_nccl");
    let out = std::process::Command::new("nm").args(["-D", "--defined-only"]).arg(library).output().unwrap();
    let text = String::from_utf8(out.stdout).unwrap();
    let mut found: Vec<&str> = text.lines().filter_map(|line| line.split_whitespace().last()).collect();
    found.retain(|name| name.starts_with("nccl") || name.starts_with("pnccl"));
    found.sort_unstable();
    let mut expected: Vec<String> =
        NAMES.iter().flat_map(|(name, _)| [(*name).to_owned(), format!("p{name}")]).collect();
    expected.sort_unstable();
    assert_eq!(found, expected);
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
    assert_eq!(all(null_mut(), 2, null()), INVALID_ARGUMENT);
    assert!(last_error().contains("comm is a null pointer"), "{}", last_error());
    let count = function::<extern "C" fn(Handle, *mut c_int) -> c_int>("ncclCommCount");
    let mut answer = 0;
    for handle in [null_mut(), std::ptr::without_provenance_mut(64)] {
        assert_eq!(count(handle, &raw mut answer), INVALID_ARGUMENT);
        assert!(last_error().contains("is no communicator"), "{}", last_error());
    }
    let window =
        function::<extern "C" fn(Handle, Handle, usize, *mut Handle, c_int) -> c_int>("ncclCommWindowRegister");
    assert_eq!(window(null_mut(), null_mut(), 0, null_mut(), 0), INVALID_ARGUMENT);
    assert!(last_error().contains("is no communicator"), "{}", last_error());
}

#[test]
fn configurations_are_those_of_nccls_initializers() {
    type Init = extern "C" fn(*mut Handle, c_int, UniqueId, c_int, *const u32) -> c_int;
    let init = function::<Init>("ncclCommInitRankConfig");
    let mut new: Handle = null_mut();
    let mut id = UniqueId([0; 128]);
    assert_eq!(function::<extern "C" fn(*mut UniqueId) -> c_int>("ncclGetUniqueId")(&raw mut id), 0);
    let mut of = |words: [u32; 6]| {
        assert_eq!(init(&raw mut new, 2, id, 0, words.as_ptr()), INVALID_ARGUMENT, "{}", last_error());
        last_error()
    };
    assert!(of([24, 0, 0, 22_809, 1, 2]).contains("ncclConfig_t has the size 24 and the mark 0x0"));
    assert!(of([24, 0, 0xcafe_beef, 22_809, 7, 2]).contains("blocking is 7"));
}

#[test]
fn two_ranks_of_an_id_in_a_group_are_refused_at_once() {
    let [start, end] = ["ncclGroupStart", "ncclGroupEnd"].map(function::<extern "C" fn() -> c_int>);
    let init = function::<extern "C" fn(*mut Handle, c_int, UniqueId, c_int) -> c_int>("ncclCommInitRank");
    let count = function::<extern "C" fn(Handle, *mut c_int) -> c_int>("ncclCommCount");
    let abort = function::<extern "C" fn(Handle) -> c_int>("ncclCommAbort");
    let mut id = UniqueId([0; 128]);
    assert_eq!(function::<extern "C" fn(*mut UniqueId) -> c_int>("ncclGetUniqueId")(&raw mut id), 0);
    for _ in 0..2 {
        let mut new: [Handle; 2] = [null_mut(); 2];
        assert_eq!(start(), 0);
        assert_eq!(init(&raw mut new[0], 2, id, 0), 0, "it joins at the end of the group");
        assert_eq!(init(&raw mut new[1], 2, id, 1), INVALID_USAGE);
        assert!(last_error().contains("rank 1 of an id of which rank 0 is in this process"), "{}", last_error());
        assert_eq!(end(), INVALID_USAGE);
        assert!(last_error().contains("nothing of the group was begun"), "{}", last_error());
        assert!(!new[0].is_null() && new[1].is_null());
        let mut size = 0;
        assert_eq!(count(new[0], &raw mut size), INVALID_ARGUMENT, "it was not made");
        assert_eq!([abort(new[0]), abort(new[0])], [0, INVALID_ARGUMENT], "cleaning up after it succeeds, once");
    }
}

#[test]
fn parameters_are_the_settings() {
    let mut handle: Handle = null_mut();
    let bind = function::<extern "C" fn(*mut Handle, *const c_char) -> c_int>("ncclParamBind");
    assert_eq!(bind(&raw mut handle, c"NCCL_IB_HCA".as_ptr()), INVALID_ARGUMENT);
    assert!(last_error().contains("there is no parameter NCCL_IB_HCA") && handle.is_null(), "{}", last_error());
    assert_eq!(bind(&raw mut handle, c"SYMRAIL_DISABLE_P2P".as_ptr()), 0);
    let mut small = 7i8;
    assert_eq!(function::<extern "C" fn(Handle, *mut i8) -> c_int>("ncclParamGetI8")(handle, &raw mut small), 0);
    let mut text: *const c_char = null();
    assert_eq!(
        function::<extern "C" fn(Handle, *mut *const c_char) -> c_int>("ncclParamGetStr")(handle, &raw mut text),
        0
    );
    // SAFETY: a text that stays until the next such call of this thread.
    assert_eq!((small, unsafe { CStr::from_ptr(text) }), (0, c"0"));
    let (mut bytes, mut len) = ([0u8; 2], 0);
    let raw = function::<extern "C" fn(Handle, *mut u8, c_int, *mut c_int) -> c_int>("ncclParamGet");
    assert_eq!((raw(handle, bytes.as_mut_ptr(), 0, &raw mut len), len), (INVALID_ARGUMENT, 1));
    assert_eq!((raw(handle, bytes.as_mut_ptr(), 2, &raw mut len), len, bytes), (0, 1, [b'0', 0]));

    let mut heap: Handle = null_mut();
    assert_eq!(bind(&raw mut heap, c"SYMRAIL_HEAP_SIZE".as_ptr()), 0);
    let mut size = 0u64;
    assert_eq!(function::<extern "C" fn(Handle, *mut u64) -> c_int>("ncclParamGetU64")(heap, &raw mut size), 0);
    assert_eq!(size, symrail::Settings::from_env().unwrap().heap_size as u64);
    assert_eq!(
        function::<extern "C" fn(Handle, *mut i8) -> c_int>("ncclParamGetI8")(heap, &raw mut small),
        INVALID_ARGUMENT
    );
    assert!(last_error().contains("no integer of 8 bits"), "{}", last_error());

    let (mut table, mut number): (*mut *const c_char, _) = (null_mut(), 0);
    type Keys = extern "C" fn(*mut *mut *const c_char, *mut c_int) -> c_int;
    assert_eq!(function::<Keys>("ncclParamGetAllParameterKeys")(&raw mut table, &raw mut number), 0);
    type Get = extern "C" fn(*const c_char, *mut *const c_char, *mut c_int) -> c_int;
    let get = function::<Get>("ncclParamGetParameter");
    assert!(number > 40, "{number}");
    // SAFETY: the table has so many texts.
    for &key in unsafe { std::slice::from_raw_parts(table, number as usize) } {
        assert_eq!(get(key, &raw mut text, &raw mut len), 0, "{}", last_error());
        // SAFETY: as above.
        assert_eq!(unsafe { CStr::from_ptr(text) }.to_bytes().len(), len as usize);
    }
}

#[test]
fn groups_are_counted() {
    let [start, end] = ["ncclGroupStart", "ncclGroupEnd"].map(function::<extern "C" fn() -> c_int>);
    assert_eq!([start(), start(), end(), end()], [0; 4]);
    assert_eq!(end(), INVALID_USAGE);
    assert!(last_error().contains("without a start"), "{}", last_error());
    let simulate = function::<extern "C" fn(*mut c_void) -> c_int>("ncclGroupSimulateEnd");
    // An empty group takes no time.
    let mut info = [24u64, 0x7468_5283 | 22_809 << 32, u64::MAX];
    assert_eq!([start(), simulate((&raw mut info).cast())], [0; 2]);
    assert_eq!(info[2] as u32, 0);
    assert_eq!(end(), INVALID_USAGE, "a simulation ends its group");
    info[1] = 0;
    assert_eq!([start(), simulate((&raw mut info).cast())], [0, INVALID_ARGUMENT]);
    assert!(last_error().contains("ncclSimInfo_t has the size 24 and the mark 0x0"), "{}", last_error());
    assert_eq!(end(), INVALID_USAGE, "so does one that is refused");
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
