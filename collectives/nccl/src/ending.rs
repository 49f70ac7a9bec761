//! Finalizing, destroying, aborting, revoking and suspending communicators.

use std::ffi::c_int;

use crate::communicator::State;
use crate::export::nccl;
use crate::guard::Failure;
use crate::registry;
use crate::types::Handle;

/// `NCCL_SUSPEND_MEM`
const MEMORY: c_int = 1;

nccl! {
    fn ncclCommFinalize(comm: Handle) of comm {
        let communicator = registry::find(comm)?;
        if communicator.state() == State::Revoked {
            return Err(Failure::usage("the communicator was revoked, and is not finalized: destroy it"));
        }
        communicator.finalize()
    }
}

nccl! {
    fn ncclCommDestroy(comm: Handle) of comm {
        if comm == 0 || registry::take_not_made(comm) {
            return Ok(());
        }
        // Removed after it has ended, so that an abort can find it until then.
        let ended = registry::find(comm)?.finalize();
        // Not there any more if it was aborted meanwhile.
        let _ = registry::take(comm);
        ended
    }
}

nccl! {
    fn ncclCommAbort(comm: Handle) of comm {
        if comm == 0 || registry::take_not_made(comm) {
            return Ok(());
        }
        registry::take(comm)?.abort()
    }
}

nccl! {
    fn ncclCommRevoke(comm: Handle, flags: c_int) of comm {
        if flags != 0 {
            return Err(Failure::argument(format!("revokeFlags is {flags}, and there is NCCL_REVOKE_DEFAULT (0) only")));
        }
        registry::find(comm)?.revoke()
    }
}

// Its memory is the heap, into which other ranks write directly, so it stays.
nccl! {
    fn ncclCommSuspend(comm: Handle, flags: c_int) of comm {
        if flags != MEMORY {
            return Err(Failure::argument(format!("flags is {flags}, and there is NCCL_SUSPEND_MEM ({MEMORY}) only")));
        }
        registry::find(comm)?.set_suspended(true)
    }
}

nccl! {
    fn ncclCommResume(comm: Handle) of comm {
        registry::find(comm)?.set_suspended(false)
    }
}
