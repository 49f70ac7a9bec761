//! What may come over a rail to a proxy endpoint or a host endpoint.
#![no_main]

use libfuzzer_sys::fuzz_target;
use symrail_transport::wire::{Reply, Request};

fuzz_target!(|bytes: &[u8]| {
    let mut rest = bytes;
    while let Ok((_, payload, after)) = Request::decode(rest) {
        assert!(payload.len() + after.len() < rest.len(), "a request takes room, so that a message comes to its end");
        rest = after;
    }
    if let Ok((_, outcomes)) = Reply::decode(bytes) {
        assert!(outcomes.count() <= bytes.len());
    }
});
