//! The CPU device of a PE.

use std::sync::Arc;

use symrail::{Runtime, SymSlice};
use symrail_kernels::cpu::{DeviceError, DeviceView, Element, Symmetric};

/// A device's view of the PE. Its threads leave progress to the proxy thread.
///
/// # Panics
/// The runtime's parts contradict one another.
#[must_use]
pub fn view(rt: &Runtime) -> DeviceView {
    // SAFETY: the bases are those of the runtime's mappings; the view is used while the runtime lives.
    unsafe { DeviceView::new(rt.cpu_device_parts(Arc::new(|| false))) }.unwrap()
}

/// A slice by the device's name for it.
///
/// # Errors
/// It is not in the heap that the view was made of.
pub fn name<S: symrail::Symmetric, T: Element>(
    view: &DeviceView,
    rt: &Runtime,
    slice: &SymSlice<S>,
) -> Result<Symmetric<T>, DeviceError> {
    let offset = rt.symmetric_offset(slice.as_ptr().cast(), 0).unwrap_or(u64::MAX);
    view.symmetric(offset, slice.len() as u64)
}
