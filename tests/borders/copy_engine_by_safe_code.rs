//! A type to which engines entrust memory is implemented by `unsafe impl` only.
use std::ptr::NonNull;

use symrail_heap::copy_engine::{Between, Copy, CopyCompletion, CopyEngine};

struct Liar;

impl CopyEngine for Liar {
    fn staging_buffer(&self) -> (NonNull<u8>, usize) {
        (NonNull::dangling(), 1 << 30)
    }
    unsafe fn start(&mut self, _: Copy, _: u64) -> Result<(), String> {
        Ok(())
    }
    fn prepare_peer(&mut self, _: usize) -> Result<(), String> {
        Ok(())
    }
    unsafe fn start_between(&mut self, _: Between, _: u64) -> Result<(), String> {
        Ok(())
    }
    fn poll(&mut self, _: &mut dyn FnMut(CopyCompletion)) -> usize {
        0
    }
    fn pending(&self) -> usize {
        0
    }
    fn writing(&self) -> usize {
        0
    }
}

fn main() {}
