//! Memory that the NIC accesses and the CPU does not: a stand-in for a GPU's, at whose addresses every load and store
//! faults.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::num::NonZeroUsize;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;

use crate::verbs_support::*;
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};
use symrail_transport::device::{DeviceMemory, Export};
use symrail_transport::env::Settings;
use symrail_transport::rail::{LocalBuf, LocalKey, Piece, Rail};
use symrail_transport::verbs::{Role, VerbsRail};

const LEN: usize = 128 << 10;

/// Memory that is mapped twice: once without access, once with.
struct Closed {
    fd: OwnedFd,
    closed: NonNull<u8>,
    open: NonNull<u8>,
}

impl Closed {
    fn new() -> Self {
        let fd = memfd_create("symrail-test", MFdFlags::MFD_CLOEXEC).unwrap();
        nix::unistd::ftruncate(&fd, LEN as i64).unwrap();
        let map = |access| {
            let len = NonZeroUsize::new(LEN).unwrap();
            // SAFETY: a new mapping at an address of the kernel's choice.
            unsafe { mmap(None, len, access, MapFlags::MAP_SHARED, &fd, 0) }.unwrap().cast()
        };
        let (closed, open) = (map(ProtFlags::PROT_NONE), map(ProtFlags::PROT_READ | ProtFlags::PROT_WRITE));
        Closed { fd, closed, open }
    }

    fn memory(&self, export: Export<'static>) -> DeviceMemory<'static> {
        DeviceMemory { base: self.closed.as_ptr(), len: LEN, export }
    }

    fn local(&self, offset: usize, len: usize, key: LocalKey) -> LocalBuf {
        assert!(offset + len <= LEN);
        LocalBuf { ptr: self.closed.as_ptr().wrapping_add(offset), len, key }
    }

    fn store(&self, offset: usize, bytes: &[u8]) {
        assert!(offset + bytes.len() <= LEN);
        // SAFETY: inside of the open mapping, and nothing is outstanding on these bytes.
        unsafe { self.open.as_ptr().add(offset).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    }

    fn load(&self, offset: usize, len: usize) -> Vec<u8> {
        assert!(offset + len <= LEN);
        // SAFETY: as above; volatile, since the NIC writes it.
        (0..len).map(|at| unsafe { self.open.as_ptr().add(offset + at).read_volatile() }).collect()
    }
}

impl Drop for Closed {
    fn drop(&mut self) {
        for at in [self.closed, self.open] {
            // SAFETY: mapped by `new`; the tests drop rails before memory.
            unsafe { munmap(at.cast(), LEN) }.unwrap();
        }
    }
}

#[test]
fn the_nic_reads_and_writes_what_the_cpu_cannot_touch() {
    let Some(nic) = nics(&Settings::default()).into_iter().next() else { return };
    let (at_a, at_b) = (Closed::new(), Closed::new());
    let mut pair = Pair::new(&nic, &Settings::default(), LEN);
    let mapping = |of: &Closed| of.memory(Export::Mapping(of.open.as_ptr()));
    // SAFETY: the memories are dropped after the rails.
    let (ours, theirs) =
        unsafe { (pair.a.register_device(mapping(&at_a), 5), pair.b.register_device(mapping(&at_b), 5)) };
    let (ours, theirs) = (ours.unwrap(), theirs.unwrap());
    assert!(ours.local.is_device());
    // The CPU must not put small ones inline either.
    for (nth, size) in [1, 8, 200, 4096, 60_000].into_iter().enumerate() {
        let id = nth as u64;
        at_a.store(0, &pattern(size, nth));
        let local = at_a.local(0, size, ours.local);
        // SAFETY: the memories live as long as the rails.
        unsafe { pair.a.write(0, Piece { local, remote: remote(&theirs, 64) }, options(Some(id))) }.unwrap();
        poll_until(&mut pair.a, &mut pair.log_a, "a write", |log| log.done.last() == Some(&id));
        assert!(at_b.load(64, size) == pattern(size, nth), "{size} bytes from device to device");

        let (id, back) = (100 + id, at_a.local(LEN / 2, size, ours.local));
        // SAFETY: as above.
        unsafe { pair.a.read(0, Piece { local: back, remote: remote(&theirs, 64) }, id, false) }.unwrap();
        poll_until(&mut pair.a, &mut pair.log_a, "a read", |log| log.done.last() == Some(&id));
        assert!(at_a.load(LEN / 2, size) == pattern(size, nth), "{size} bytes back");

        let id = 200 + id;
        // SAFETY: as above.
        unsafe { pair.a.write(0, Piece { local, remote: pair.at_b.remote(0) }, options(Some(id))) }.unwrap();
        poll_until(&mut pair.a, &mut pair.log_a, "a write", |log| log.done.last() == Some(&id));
        assert!(pair.at_b.load(0, size) == pattern(size, nth), "{size} bytes from device to host");
    }
    assert!(pair.log_a.failed.is_empty(), "{:?}", pair.log_a.failed);
}

#[test]
fn a_dmabuf_that_is_refused_is_tried_by_its_address() {
    let Some(nic) = nics(&Settings::default()).into_iter().next() else { return };
    let closed = Closed::new();
    let mut rail = VerbsRail::open(&nic, Role::Host, 1, &Settings::default()).unwrap();
    // A memory file is no dmabuf. Its open addresses can be registered, its closed ones cannot.
    let offer = |base: NonNull<u8>| DeviceMemory {
        base: base.as_ptr(),
        len: LEN,
        export: Export::Gpu { ordinal: 0, dmabuf: Some(closed.fd.as_fd()) },
    };
    // SAFETY: the memory is dropped after the rail.
    let registration = unsafe { rail.register_device(offer(closed.open), 7) }.unwrap();
    assert_eq!(registration.remote_base, closed.open.as_ptr() as u64);
    // SAFETY: nothing is registered.
    let error = unsafe { rail.register_device(offer(closed.closed), 8) }.unwrap_err().to_string();
    println!("{error}");
    assert!(error.contains("ibv_reg_dmabuf_mr") && error.contains(&nic.name), "{error}");
    let by_address = closed.memory(Export::Gpu { ordinal: 0, dmabuf: None });
    // SAFETY: as above.
    let error = unsafe { rail.register_device(by_address, 8) }.unwrap_err().to_string();
    println!("{error}");
    assert!(error.contains("ibv_reg_mr") && error.contains("dmabuf"), "{error}");
    drop(rail);
}
