//! Functions of NCCL up to 2.32 that only the other library implements: communicators for kernels, one-sided calls,
//! parameters. They are exported, because a program that finds one missing here would find NVIDIA's,
//! which takes this library's handles for addresses.

use std::ffi::{c_char, c_int, c_uint, c_void};

use crate::export::{answer, refused};
use crate::guard::refuse;
use crate::registry::{self, is_unknown};
use crate::types::{CudaStream, Handle, Team};

type Window = *mut c_void;
type Parameter = *mut c_void;

refused! {
    "one-sided access to windows":
    fn ncclPutSignal(
        from: *const c_void,
        count: usize,
        ty: c_int,
        peer: c_int,
        window: Window,
        offset: usize,
        signal: c_int,
        context: c_int,
        flags: c_uint,
        comm: Handle,
        stream: CudaStream,
    ) leaves (is_unknown(comm));
    fn ncclSignal(peer: c_int, signal: c_int, context: c_int, flags: c_uint, comm: Handle, stream: CudaStream)
        leaves (is_unknown(comm));
    fn ncclWaitSignal(count: c_int, signals: *mut c_void, comm: Handle, stream: CudaStream) leaves (is_unknown(comm));
    // All windows are the other library's.
    fn ncclGetPeerDevicePointer(window: Window, offset: usize, peer: c_int, to: *mut *mut c_void) leaves (true);
    fn ncclGetLsaDevicePointer(window: Window, offset: usize, rank: c_int, to: *mut *mut c_void) leaves (true);
    fn ncclGetLsaMultimemDevicePointer(window: Window, offset: usize, to: *mut *mut c_void) leaves (true);
    // `multimem` is a structure of one address.
    fn ncclGetMultimemDevicePointer(window: Window, offset: usize, multimem: *mut c_void, to: *mut *mut c_void)
        leaves (true);
    fn ncclGetMultimemDeviceLeInfo(window: Window, offset: usize, id: *mut c_void, to: *mut usize) leaves (true);
    fn ncclGetCftDeviceLeInfo(
        window: Window,
        offset: usize,
        peer: c_int,
        team: Team,
        id: *mut c_void,
        to: *mut usize,
    ) leaves (true);
    fn ncclGetPeerDeviceLeInfo(window: Window, offset: usize, peer: c_int, id: *mut c_void, to: *mut usize)
        leaves (true);
}

refused! {
    "communicators for kernels":
    fn ncclDevCommCreate(comm: Handle, requirements: *const c_void, to: *mut c_void) leaves (is_unknown(comm));
    fn ncclDevCommDestroy(comm: Handle, device: *const c_void) leaves (is_unknown(comm));
    // `requirement` is a resource requirement that the function fills.
    fn ncclLsaBarrierCreateRequirement(team: Team, barriers: c_int, to: *mut c_void, requirement: *mut c_void)
        leaves (true);
    fn ncclGinBarrierCreateRequirement(
        comm: Handle,
        team: Team,
        barriers: c_int,
        to: *mut c_void,
        requirement: *mut c_void,
    ) leaves (is_unknown(comm));
    fn ncclCftBarrierCreateRequirement(team: Team, barriers: c_int, to: *mut c_void, requirement: *mut c_void)
        leaves (true);
    fn ncclLLA2ACreateRequirement(blocks: c_int, slots: c_int, to: *mut c_void, requirement: *mut c_void)
        leaves (true);
    fn ncclGinOutboxCreateRequirement(blocks: c_int, size: c_int, to: *mut c_void, requirement: *mut c_void)
        leaves (true);
    fn ncclGinInboxA2ACreateRequirement(
        team: Team,
        blocks: c_int,
        size: c_int,
        to: *mut c_void,
        requirement: *mut c_void,
    ) leaves (true);
}

refused! {
    "the encryption of NCCL's sockets":
    fn ncclSetEncryption(config: *const c_void) leaves (true);
}

refused! {
    "NCCL's parameters: its settings are the variables SYMRAIL_…":
    fn ncclParamBind(to: *mut Parameter, key: *const c_char) leaves (true);
    fn ncclParamGetI8(parameter: Parameter, to: *mut i8) leaves (true);
    fn ncclParamGetI16(parameter: Parameter, to: *mut i16) leaves (true);
    fn ncclParamGetI32(parameter: Parameter, to: *mut i32) leaves (true);
    fn ncclParamGetI64(parameter: Parameter, to: *mut i64) leaves (true);
    fn ncclParamGetU8(parameter: Parameter, to: *mut u8) leaves (true);
    fn ncclParamGetU16(parameter: Parameter, to: *mut u16) leaves (true);
    fn ncclParamGetU32(parameter: Parameter, to: *mut u32) leaves (true);
    fn ncclParamGetU64(parameter: Parameter, to: *mut u64) leaves (true);
    fn ncclParamGetStr(parameter: Parameter, to: *mut *const c_char) leaves (true);
    fn ncclParamGet(parameter: Parameter, to: *mut c_void, most: c_int, len: *mut c_int) leaves (true);
    fn ncclParamGetParameter(key: *const c_char, value: *mut *const c_char, len: *mut c_int) leaves (true);
    fn ncclParamGetAllParameterKeys(table: *mut *mut *const c_char, len: *mut c_int) leaves (true);
    // Callers expect no result.
    fn ncclParamDumpAll() leaves (true);
}

answer! {
    fn ncclTeamWorld(comm: Handle) -> Team, else Team::NONE, leaves (is_unknown(comm)) {
        let communicator = registry::find(comm)?;
        Ok(Team { size: communicator.size as c_int, rank: communicator.rank as c_int, stride: 1 })
    }
}

answer! {
    fn ncclTeamRankToWorld(comm: Handle, team: Team, rank: c_int) -> c_int, else -1, leaves (is_unknown(comm)) {
        let own = registry::find(comm)?.rank as c_int;
        Ok(own.wrapping_add(rank.wrapping_sub(team.rank).wrapping_mul(team.stride)))
    }
}

/// Teams for kernels, which reach no other rank here.
macro_rules! teams {
    ($(fn $name:ident($($arg:ident: $ty:ty),*);)*) => {$(
        answer! {
            fn $name(comm: Handle, $($arg: $ty),*) -> Team, else Team::NONE, leaves (is_unknown(comm)) {
                refuse(stringify!($name), "communicators for kernels")
            }
        }
    )*};
}

teams! {
    fn ncclTeamLsa();
    fn ncclTeamRail();
    fn ncclTeamCft(mode: c_int);
    fn ncclTeamCftMultimem();
}

answer! {
    fn ncclTeamRankToLsa(comm: Handle, team: Team, rank: c_int) -> c_int, else -1, leaves (is_unknown(comm)) {
        refuse("ncclTeamRankToLsa", "communicators for kernels")
    }
}

answer! {
    fn ncclLLA2ACalcSlots(elements: c_int, bytes: c_int) -> c_int, else 0, leaves (true) {
        refuse("ncclLLA2ACalcSlots", "communicators for kernels")
    }
}

/// Does nothing: the log's settings are read once.
#[unsafe(no_mangle)]
extern "C" fn ncclResetDebugInit() {}

#[unsafe(no_mangle)]
extern "C" fn pncclResetDebugInit() {}
