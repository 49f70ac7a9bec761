//! Memory for workspaces. It belongs to the handle: all of its descriptors may use and free it.

use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};

use symrail::with_timeout;
use symrail_core::CPointer;
use symrail_decomp::Workspace;

use crate::guard::{Failure, given};
use crate::handle::{Call, Opaque, with_handle};

/// The alignment of addresses in a workspace, which suits all elements.
const ALIGN: usize = 16;

/// The workspaces of a handle, by their addresses: those of the GPU if arrays are there.
#[derive(Default)]
pub struct Workspaces {
    by_address: BTreeMap<usize, Numbered>,
    made: u64,
}

struct Numbered {
    /// Its number, the same on all ranks.
    number: u64,
    workspace: Workspace,
}

impl Workspaces {
    fn add(&mut self, address: usize, workspace: Workspace) {
        self.made += 1;
        self.by_address.insert(address, Numbered { number: self.made, workspace });
    }

    /// The workspace that an address is in, from that address on.
    pub fn at(&mut self, address: *mut c_void) -> Result<&mut Workspace, Failure> {
        let address = address.addr();
        let unknown = || Failure::usage(format!("work {address:#x}: it is not from cudecompMalloc of this handle"));
        let before = self.by_address.range_mut(..=address).next_back();
        let (base, Numbered { workspace, .. }) = before.ok_or_else(unknown)?;
        let offset = address - base;
        if offset >= workspace.all_bytes() {
            return Err(unknown());
        }
        if !offset.is_multiple_of(ALIGN) {
            return Err(Failure::usage(format!("work {address:#x}: it is no multiple of {ALIGN} bytes")));
        }
        workspace.begin_at(offset);
        Ok(workspace)
    }
}

#[unsafe(no_mangle)]
extern "C" fn cudecompMalloc(handle: Opaque, desc: Opaque, buffer: CPointer<*mut c_void>, bytes: usize) -> c_int {
    with_handle(handle, |handle| {
        let number = handle.desc(desc).map(|desc| desc.number);
        let arguments = number.clone().and_then(|_| {
            let to = given("buffer", buffer)?;
            if bytes == 0 { Err(Failure::usage("buffer_size_bytes is 0")) } else { Ok(to) }
        });
        let to = handle.agree(Call::Malloc, number.unwrap_or(0), 0, arguments)?;
        let (limit, array) = (handle.job.limit(1), handle.desc(desc)?.array()?);
        let workspace = with_timeout(limit, || array.workspace(bytes));
        let workspace = workspace.map_err(|error| handle.job.failure("cudecompMalloc", error))?;
        let base = workspace.base();
        let device = handle.job.kernels().map(|kernels| kernels.device().address(base) as usize);
        let address = device.unwrap_or(base.addr());
        to.set(std::ptr::with_exposed_provenance_mut(address));
        if device.is_none() {
            base.expose_provenance();
        }
        handle.workspaces.add(address, workspace);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cudecompFree(handle: Opaque, desc: Opaque, buffer: *mut c_void) -> c_int {
    with_handle(handle, |handle| {
        // A descriptor of the handle, whichever; a wrong one is this rank's alone, as a wrong address is.
        handle.desc(desc)?;
        if buffer.is_null() {
            return Ok(());
        }
        let unknown = || Failure::usage(format!("buffer {buffer:?}: it is not from cudecompMalloc of this handle"));
        let number = handle.workspaces.by_address.get(&buffer.addr()).map(|known| known.number).ok_or_else(unknown);
        handle.agree(Call::Free, 0, number.clone().unwrap_or(0), number)?;
        // Rounds that were enqueued may still use it.
        handle.job.settle();
        let Numbered { workspace, .. } = handle.workspaces.by_address.remove(&buffer.addr()).ok_or_else(unknown)?;
        let limit = handle.job.limit(1);
        let array = handle.desc(desc)?.array()?;
        Ok(with_timeout(limit, || array.give_back(workspace))?)
    })
}
