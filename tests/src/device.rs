//! The CPU device of a PE.

use std::sync::Arc;
use std::time::Duration;

use symrail::{AmoOp, AmoType, Runtime, SymSlice};
use symrail_kernels::cpu::{DeviceError, DeviceParts, DeviceView, Element, Symmetric};

/// What a device sees of the PE. Its threads leave progress to the proxy thread.
///
/// # Panics
/// The runtime's parts contradict one another.
#[must_use]
pub fn view(rt: &Runtime) -> DeviceView {
    let (heap_base, heap_size) = heap(rt);
    let first = std::ptr::with_exposed_provenance::<u8>(heap_base);
    let parts = DeviceParts {
        me: rt.my_pe(),
        n_pes: rt.n_pes(),
        heap_base,
        heap_size: heap_size as u64,
        peer_bases: (0..rt.n_pes()).map(|pe| rt.peer_ptr(first, pe).expose_provenance()).collect(),
        producers: rt.producers().to_vec(),
        progress: Arc::new(|| false),
        direct_amos: rt.cpu_performs_amos(),
        timeout: Duration::from_secs(rt.settings().timeout_s),
    };
    // SAFETY: the bases are those of the runtime's mappings; the view is used while the runtime lives.
    unsafe { DeviceView::new(parts) }.unwrap()
}

/// A slice, as the device names it.
///
/// # Errors
/// It is not in the heap that the view was made of.
pub fn name<S: symrail::Symmetric, T: Element>(
    view: &DeviceView,
    rt: &Runtime,
    slice: &SymSlice<'_, S>,
) -> Result<Symmetric<T>, DeviceError> {
    let offset = slice.as_ptr().addr() - heap(rt).0;
    view.symmetric(offset as u64, slice.len() as u64)
}

/// Where this PE's heap is, and how many bytes it has: the runtime's refusal of an address outside tells.
fn heap(rt: &Runtime) -> (usize, usize) {
    match rt.fetch_amo(std::ptr::null_mut(), AmoType::U64, AmoOp::Fetch, 0, 0, rt.my_pe()) {
        Err(symrail::Error::NotSymmetric { heap, heap_bytes, .. }) => (heap, heap_bytes),
        other => panic!("address 0: {other:?}"),
    }
}
