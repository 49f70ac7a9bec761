//! Values of environment variables: the first byte chooses the variable, the rest is its value.
#![no_main]

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

use libfuzzer_sys::fuzz_target;
use symrail_transport::env::{Settings, VARIABLES};
use symrail_transport::topology::NicPeMapping;

fuzz_target!(|bytes: &[u8]| {
    let Some((&which, value)) = bytes.split_first() else { return };
    let name = VARIABLES[usize::from(which) % VARIABLES.len()].name;
    match Settings::from_iter([(OsString::from(name), OsString::from_vec(value.to_vec()))]) {
        Ok(settings) => assert!(settings.changed().count() <= 1, "one variable changes one setting"),
        Err(error) => assert!(error.to_string().contains(name), "{error}"),
    }
    if let Ok(text) = std::str::from_utf8(value) {
        let _ = text.parse::<NicPeMapping>();
    }
});
