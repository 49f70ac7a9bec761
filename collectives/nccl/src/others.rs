//! Functions of NCCL up to 2.32 that only the other library implements: communicators for kernels. They are exported,
//! because a program that finds one missing here would find NVIDIA's, which takes this library's handles for addresses.

use std::ffi::{c_int, c_void};

use symrail_core::registry::is_known;

use crate::export::{answer, refused};
use crate::guard::refuse;
use crate::registry::{self, is_unknown};
use crate::types::{Handle, Team};

type Window = usize;

refused! {
    "the logical endpoints of windows":
    fn ncclGetMultimemDeviceLeInfo(window: Window, offset: usize, id: *mut c_void, to: *mut usize)
        leaves (!is_known(window));
    fn ncclGetCftDeviceLeInfo(
        window: Window,
        offset: usize,
        peer: c_int,
        team: Team,
        id: *mut c_void,
        to: *mut usize,
    ) leaves (!is_known(window));
    fn ncclGetPeerDeviceLeInfo(window: Window, offset: usize, peer: c_int, id: *mut c_void, to: *mut usize)
        leaves (!is_known(window));
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
