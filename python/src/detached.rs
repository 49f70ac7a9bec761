//! Values whose drop waits.

use std::mem::ManuallyDrop;
use std::ops::Deref;

use pyo3::Python;

/// A value that is dropped without Python's lock, so that other threads go on meanwhile.
pub struct Detached<T: Send>(ManuallyDrop<T>);

impl<T: Send> Detached<T> {
    pub fn new(value: T) -> Detached<T> {
        Detached(ManuallyDrop::new(value))
    }
}

impl<T: Send> Deref for Detached<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T: Send> Drop for Detached<T> {
    fn drop(&mut self) {
        // SAFETY: it is not used afterwards.
        let mut value = Some(unsafe { ManuallyDrop::take(&mut self.0) });
        // An interpreter that ends has no lock to give up: the value is dropped below then.
        Python::try_attach(|py| py.detach(|| drop(value.take())));
        drop(value);
    }
}
