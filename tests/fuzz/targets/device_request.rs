//! What a device may leave in a slot of its channel: any bits at all.
#![no_main]

use libfuzzer_sys::fuzz_target;
use symrail_proxy::channel::Request;
use symrail_proxy::channel::codec::chunks_used;
use symrail_proxy::channel::layout::CHUNKS;

fuzz_target!(|words: [[u64; 2]; CHUNKS]| {
    let _ = chunks_used(words[0][0]);
    let request = Request::decode(&words);
    // What was understood and can be written means the same when it is read again.
    if let Ok(written) = request.encode() {
        assert_eq!(Request::decode(&written.chunks), request);
    }
});
