//! Data that peers send when they join: memory handles, calls on the heap, unique ids.
#![no_main]

use libfuzzer_sys::fuzz_target;
use symrail::bootstrap::uid::UniqueId;
use symrail_heap::{AllocCall, HeapHandle};

fuzz_target!(|bytes: &[u8]| {
    let _ = HeapHandle::decode(bytes, 1);
    let _ = AllocCall::decode(bytes, 1);
    let _ = UniqueId::from_bytes(bytes);
    if let Ok(text) = std::str::from_utf8(bytes) {
        let _ = UniqueId::from_hex(text);
    }
});
