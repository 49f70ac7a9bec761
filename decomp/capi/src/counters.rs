//! What a descriptor's back ends have done: as counters, and as text.

use std::ffi::{c_char, c_int};

use symrail_core::CPointer;
use symrail_decomp::Counters;

use crate::backends::Way;
use crate::grid::GridDesc;
use crate::guard::{Failure, given};
use crate::handle::{Opaque, with_desc, with_handle};

impl GridDesc {
    /// The counters of its transposes, or of its halos.
    fn counters(&self, halos: bool) -> Counters {
        let mut all = Counters::default();
        let plans = self.plans.iter().filter(|(operation, _)| operation.kind().halo == halos);
        plans.for_each(|(_, plan)| all += plan.counters());
        all
    }

    /// What its back ends do, and have done.
    fn explain(&self, on_gpu: bool) -> String {
        let line = |halos: bool| {
            let what = if halos { "halos" } else { "transposes" };
            let way = Way { backend: self.backends[usize::from(halos)], on_gpu };
            let Counters { rounds, copied, fetched, put, direct, staged, pipelined } = self.counters(halos);
            format!(
                "{what}: {way}\n  {rounds} rounds; blocks sent: {copied} copied, {put} over rails; {fetched} fetched by copy \
                 engines; received: {direct} in the output, {staged} in the workspace, {pipelined} of these unpacked as \
                 each arrived\n"
            )
        };
        line(false) + &line(true)
    }
}

#[unsafe(no_mangle)]
extern "C" fn symrailDecompGetCounters(
    handle: Opaque,
    desc: Opaque,
    halos: bool,
    counters: CPointer<Counters>,
) -> c_int {
    with_desc(handle, desc, |desc| {
        given("counters", counters)?.set(desc.counters(halos));
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn symrailDecompExplain(handle: Opaque, desc: Opaque, text: *mut c_char, bytes: usize) -> c_int {
    with_handle(handle, |handle| {
        let on_gpu = handle.job.kernels().is_some();
        let told = handle.desc(desc)?.explain(on_gpu);
        if text.is_null() || bytes == 0 {
            return Err(Failure::usage("text is a null pointer, or has no bytes"));
        }
        let length = told.len().min(bytes - 1);
        // SAFETY: C's caller vouches for `bytes` bytes at its pointer.
        unsafe {
            text.cast::<u8>().copy_from_nonoverlapping(told.as_ptr(), length);
            text.add(length).write(0);
        }
        Ok(())
    })
}
