//! Slots of a device's channel: any bits at all.
#![no_main]

use libfuzzer_sys::fuzz_target;
use symrail_proxy::channel::Request;
use symrail_proxy::channel::codec::chunks_used;
use symrail_proxy::channel::layout::CHUNKS;

fuzz_target!(|words: [[u64; 2]; CHUNKS]| {
    let _ = chunks_used(words[0][0]);
    let request = Request::decode(&words);
    // A request that decodes and can be encoded has the same meaning when it is decoded again.
    if let Ok(written) = request.encode() {
        assert_eq!(Request::decode(&written.chunks), request);
    }
});
