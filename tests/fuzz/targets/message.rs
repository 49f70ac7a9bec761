//! Messages over a rail to a proxy endpoint or a host endpoint.
#![no_main]

use libfuzzer_sys::fuzz_target;
use symrail_transport::wire::{Reply, Request, Token};

fuzz_target!(|bytes: &[u8]| {
    // Behind an address, and at the front of a message. Arbitrary bytes may have a token of zeros.
    if let Ok((address, token)) = Token::split(0, bytes) {
        assert_eq!(token.with_address(address.to_vec()), bytes);
    }
    let bytes = Token::default().open(bytes).unwrap_or(bytes);
    let mut rest = bytes;
    while let Ok((_, payload, after)) = Request::decode(rest) {
        assert!(payload.len() + after.len() < rest.len(), "a request takes room, so that a message comes to its end");
        rest = after;
    }
    if let Ok((_, outcomes)) = Reply::decode(bytes) {
        assert!(outcomes.count() <= bytes.len());
    }
});
