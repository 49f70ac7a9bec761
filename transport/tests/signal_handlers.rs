//! Loading libfabric does not change a process's signal handlers. The test has a process of its own: handlers belong to
//! the process, and another test that loads a library would affect this one.
#![allow(clippy::unwrap_used)]

use symrail_transport::env::Settings;

#[test]
fn libfabric_brings_no_signal_handlers() {
    let mut settings = Settings::default();
    settings.libfabric_provider = Some("tcp;ofi_rxm".into());
    let Ok(library) = symrail_transport::ofi::load(&settings) else {
        println!("SKIPPED: libfabric is not installed");
        return;
    };
    symrail_transport::ofi::discover(&library, &settings, false).unwrap();
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap().trim();
    let caught = u64::from_str_radix(caught, 16).unwrap();
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGILL, libc::SIGABRT] {
        assert_eq!(caught & 1 << (signal - 1), 0, "signal {signal} is caught: {caught:x}");
    }
}
