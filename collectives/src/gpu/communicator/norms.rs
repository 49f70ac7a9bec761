//! All-reduces with a residual and an RMS norm.

use std::sync::Arc;

use symrail::kernels::cuda::{Kernel, Module, Stream};

use super::GpuCommunicator;
use crate::error::{Error, Result};
use crate::gpu::normed::{NormKernel, RmsNorm};
use crate::gpu::program::{Which, load};
use crate::gpu::straight::{MOST_RANKS, Straight, Way};

/// The kernels for a type of elements, by their numbers.
pub(super) struct Norms([Kernel; NormKernel::NAMES.len()]);

impl Norms {
    fn new(module: &Arc<Module>) -> Result<Norms> {
        let [packets, packets_anywhere, pushed, pushed_anywhere] = NormKernel::NAMES.map(|name| module.kernel(name));
        Ok(Norms([packets?, packets_anywhere?, pushed?, pushed_anywhere?]))
    }

    fn of(&self, kernel: NormKernel) -> &Kernel {
        &self.0[kernel as usize]
    }
}

impl GpuCommunicator {
    /// Adds up all PEs' rows and the residual, and normalises the sum, in one launch. `way` is the algorithm; by default
    /// the faster one. All ranks get the same bits.
    ///
    /// # Safety
    /// As for [`GpuCommunicator::all_reduce`].
    ///
    /// # Errors
    /// As for [`GpuCommunicator::all_reduce`]; or memory has another size than its rows; or there are more than 16 PEs,
    /// or PEs that do not access one another's memory.
    pub unsafe fn all_reduce_rms_norm(&mut self, stream: &Stream, call: &RmsNorm, way: Option<Way>) -> Result<()> {
        let n = u64::from(self.members.n());
        if !self.selection.is_straight() {
            let why =
                format!("an all-reduce with an RMS norm is for 2 to {MOST_RANKS} PEs that access one another's memory");
            return Err(Error::Call(why));
        }
        let way = way.unwrap_or_else(|| call.way(n));
        call.check(way, n)?;
        if call.rows == 0 {
            return Ok(());
        }
        self.in_order(stream, |all, captured| {
            let has_memory = all.straight.as_ref().is_some_and(|straight| straight.has_for_norms(way));
            if captured && !(has_memory && all.norms.contains_key(&call.ty)) {
                return Err(Error::Call(
                    "a first all-reduce with an RMS norm cannot be captured: make it once before".into(),
                ));
            }
            let straight = match &mut all.straight {
                Some(straight) => straight,
                none => none.insert(Straight::new(&all.device, &mut all.memory, &all.abort)?),
            };
            straight.prepare_for_norms(way, &mut all.memory)?;
            if !all.norms.contains_key(&call.ty) {
                let module = load(&all.device, &all.nvrtc, Which::Normed(call.ty))?;
                all.norms.insert(call.ty, Norms::new(&module)?);
            }
            let Some(norms) = all.norms.get(&call.ty) else { return Ok(()) };
            // SAFETY: the caller's promise.
            unsafe { straight.launch_normed(stream, norms.of(call.kernel(way)), way, call) }
        })
    }
}
