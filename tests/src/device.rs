//! The CPU device of a PE.

use std::sync::Arc;

use symrail::{Runtime, SymSlice};
use symrail_kernels::cpu::{DeviceError, DeviceParts, DeviceView, Element, Symmetric};

/// What a device sees of the PE. Its threads leave progress to the proxy thread.
///
/// # Panics
/// The runtime's parts contradict one another.
#[must_use]
pub fn view(rt: &Runtime) -> DeviceView {
    let handles = rt.device_handles();
    let parts = DeviceParts {
        me: handles.me,
        n_pes: handles.n_pes,
        heap_base: handles.base,
        heap_size: handles.committed as u64,
        peer_bases: handles.bases,
        producers: handles.channels,
        progress: Arc::new(|| false),
        direct_amos: rt.cpu_performs_amos(),
        timeout: handles.timeout,
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
    let offset = slice.as_ptr().addr() - rt.device_handles().base;
    view.symmetric(offset as u64, slice.len() as u64)
}
