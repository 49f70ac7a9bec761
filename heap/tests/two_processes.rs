//! Two processes observe each other's stores and atomics in a mapped heap, and no process maps a file that was not
//! described.
#![allow(clippy::unwrap_used)]

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use symrail_heap::{HeapHandle, PeerMap, Reach, Refusal, SymmetricHeap};
use symrail_transport::amo::{AmoOp, AmoType, apply};
use symrail_transport::env::Settings;

const HANDLE: &str = "HEAP_TEST_HANDLE";
const LIMIT: Duration = Duration::from_secs(20);
const ADDS: u64 = 200_000;

/// Symmetric offsets of words in the test's heap.
const READY: u64 = 0;
const COUNTER: u64 = 64;
const STORED: u64 = 128;
const GROWN: u64 = 3 << 20;

fn heap(size: usize) -> SymmetricHeap {
    let mut settings = Settings::default();
    settings.heap_size = size;
    SymmetricHeap::with_growth(0, &settings, 2 << 20).unwrap()
}

/// A map of two PEs in which `heap` is PE 0.
fn map_of(heap: &SymmetricHeap) -> PeerMap {
    PeerMap::new(0, 2, heap.handle().clone(), heap.base()).unwrap()
}

fn amo(map: &PeerMap, pe: u32, offset: u64, op: AmoOp, operand: u64) -> u64 {
    let word = map.peer_ptr(pe, offset, 8).unwrap();
    // SAFETY: a mapped, aligned word that both processes access only by atomics.
    unsafe { apply(word.as_ptr(), AmoType::U64, op, operand, 0) }
}

fn wait_for(map: &PeerMap, pe: u32, offset: u64, value: u64, mut alive: impl FnMut() -> bool) {
    let start = Instant::now();
    while amo(map, pe, offset, AmoOp::Fetch, 0) != value {
        assert!(start.elapsed() < LIMIT && alive(), "waited in vain for {value} at {offset}");
        std::thread::yield_now();
    }
}

/// A child process that is killed at the end of the test in any case.
struct Peer(Child);

impl Peer {
    fn start(handle: &HeapHandle) -> Self {
        let handle: String = handle.encode().iter().map(|byte| format!("{byte:02x}")).collect();
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "two_processes::the_other_process", "--ignored"])
            .env(HANDLE, handle)
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        Peer(child)
    }

    fn alive(&mut self) -> bool {
        self.0.try_wait().unwrap().is_none()
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
#[ignore = "the second process of the other tests, started by them"]
fn the_other_process() {
    let encoded = std::env::var(HANDLE).unwrap();
    let bytes: Vec<u8> =
        (0..encoded.len()).step_by(2).map(|at| u8::from_str_radix(&encoded[at..at + 2], 16).unwrap()).collect();
    let theirs = HeapHandle::decode(&bytes, 1).unwrap();
    let own = heap(theirs.capacity as usize);
    let mut map = map_of(&own);
    assert_eq!(map.open(1, &theirs).unwrap(), &Reach::Mapped);
    let parent = std::os::unix::process::parent_id();
    let orphan = || std::os::unix::process::parent_id() == parent;
    amo(&map, 1, STORED, AmoOp::Set, 0x5eed);
    amo(&map, 1, READY, AmoOp::Set, 1);
    wait_for(&map, 1, READY, 2, orphan);
    for _ in 0..ADDS {
        amo(&map, 1, COUNTER, AmoOp::Add, 1);
    }
    amo(&map, 1, READY, AmoOp::Set, 3);
    // The heap has grown since it was mapped.
    wait_for(&map, 1, GROWN, 77, orphan);
    amo(&map, 1, GROWN, AmoOp::Set, 78);
    wait_for(&map, 1, READY, 4, orphan);
}

#[test]
fn both_see_each_others_stores_and_atomics() {
    let mut heap = heap(8 << 20);
    let map = map_of(&heap);
    let mut peer = Peer::start(heap.handle());
    wait_for(&map, 0, READY, 1, || peer.alive());
    assert_eq!(amo(&map, 0, STORED, AmoOp::Fetch, 0), 0x5eed);
    amo(&map, 0, READY, AmoOp::Set, 2);
    for _ in 0..ADDS {
        amo(&map, 0, COUNTER, AmoOp::Add, 1);
    }
    wait_for(&map, 0, READY, 3, || peer.alive());
    assert_eq!(amo(&map, 0, COUNTER, AmoOp::Fetch, 0), 2 * ADDS);
    let block = heap.alloc(4 << 20).unwrap().unwrap();
    assert!(block.grown.is_some() && (block.offset..block.offset + block.size).contains(&GROWN));
    amo(&map, 0, GROWN, AmoOp::Set, 77);
    wait_for(&map, 0, GROWN, 78, || peer.alive());
    amo(&map, 0, READY, AmoOp::Set, 4);
    let start = Instant::now();
    while peer.alive() {
        assert!(start.elapsed() < LIMIT);
        std::thread::yield_now();
    }
    assert!(peer.0.wait().unwrap().success());
}

#[test]
fn a_dead_process_is_refused() {
    let heap = heap(4 << 20);
    let mut map = map_of(&heap);
    let mut child = Command::new("true").stdin(Stdio::null()).spawn().unwrap();
    let pid = child.id();
    child.wait().unwrap();
    let handle = HeapHandle { pid, ..heap.handle().clone() };
    assert!(matches!(map.open(1, &handle).unwrap(), Reach::Wire(Refusal::Open(_))));
    assert_eq!(map.peer_ptr(1, 0, 8), None);
}

#[test]
fn what_the_handle_does_not_describe_is_refused_with_the_reason() {
    let (ours, theirs) = (heap(4 << 20), heap(4 << 20));
    let mut map = map_of(&ours);
    let good = theirs.handle().clone();
    let mut refusal = |change: &dyn Fn(&mut HeapHandle)| {
        let mut handle = good.clone();
        change(&mut handle);
        let Reach::Wire(refusal) = map.open(1, &handle).unwrap().clone() else { unreachable!("{handle:?}") };
        assert_eq!(map.peer_ptr(1, 0, 1), None);
        refusal
    };
    assert_eq!(refusal(&|handle| handle.inode += 1), Refusal::OtherFile);
    assert_eq!(refusal(&|handle| handle.device += 1), Refusal::OtherFile);
    assert_eq!(refusal(&|handle| handle.fd = 0), Refusal::OtherFile);
    assert!(matches!(refusal(&|handle| handle.fd = 1 << 20), Refusal::Open(_)));
    assert!(matches!(refusal(&|handle| handle.capacity *= 2), Refusal::Capacity { theirs } if theirs == 8 << 20));
    assert!(matches!(refusal(&|handle| handle.host.name = "elsewhere".into()), Refusal::OtherHost { .. }));
    assert!(matches!(refusal(&|handle| handle.host.boot_id ^= 1), Refusal::OtherHost { .. }));
    assert_eq!(refusal(&|handle| handle.host.pid_namespace ^= 1), Refusal::OtherPidNamespace);
    assert_eq!(refusal(&|handle| handle.private = true), Refusal::Disabled);
    let text = refusal(&|handle| handle.kind = symrail_heap::MemoryKind::Device).to_string();
    assert!(text.contains("Device"), "{text}");
    let faults = [Refusal::OtherFile, refusal(&|handle| handle.fd = 1 << 20)];
    let choices = [refusal(&|handle| handle.private = true), refusal(&|handle| handle.host.name = "elsewhere".into())];
    assert!(faults.iter().all(Refusal::is_fault) && !choices.iter().any(Refusal::is_fault));
    assert_eq!(map.open(1, &good).unwrap(), &Reach::Mapped);
}

#[test]
fn a_file_that_could_change_its_size_is_refused() {
    use nix::fcntl::{FcntlArg, SealFlag, fcntl};
    use nix::sys::memfd::{MFdFlags, memfd_create};
    use std::os::fd::AsRawFd;
    let ours = heap(4 << 20);
    let mut map = map_of(&ours);
    for seals in [SealFlag::empty(), SealFlag::F_SEAL_GROW, SealFlag::F_SEAL_SHRINK] {
        let file = memfd_create("heap-test", MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING).unwrap();
        nix::unistd::ftruncate(&file, 4 << 20).unwrap();
        fcntl(&file, FcntlArg::F_ADD_SEALS(seals)).unwrap();
        let status = nix::sys::stat::fstat(&file).unwrap();
        let handle = HeapHandle {
            fd: file.as_raw_fd() as u32,
            device: status.st_dev,
            inode: status.st_ino,
            ..ours.handle().clone()
        };
        assert_eq!(map.open(1, &handle).unwrap(), &Reach::Wire(Refusal::NotSealed), "{seals:?}");
    }
}

#[test]
fn fake_hosts_and_disabled_p2p_keep_processes_apart() {
    let named = |name: &str, disable_p2p| {
        let mut settings = Settings::default();
        settings.heap_size = 4 << 20;
        settings.fake_host = Some(name.into());
        settings.disable_p2p = disable_p2p;
        SymmetricHeap::new(0, &settings).unwrap()
    };
    let ours = named("a", false);
    let mut map = map_of(&ours);
    let other = named("b", false);
    let Reach::Wire(refusal) = map.open(1, other.handle()).unwrap() else { unreachable!() };
    assert!(refusal.to_string().contains("b (boot"), "{refusal}");
    let private = named("a", true);
    assert_eq!(map.open(1, private.handle()).unwrap(), &Reach::Wire(Refusal::Disabled));
    assert_eq!(map_of(&private).open(1, ours.handle()).unwrap(), &Reach::Wire(Refusal::Disabled));
    assert_eq!(map.open(1, named("a", false).handle()).unwrap(), &Reach::Mapped);
}

#[test]
fn opening_twice_is_a_hit_and_a_new_generation_is_mapped_anew() {
    let ours = heap(4 << 20);
    let mut map = map_of(&ours);
    let first = heap(4 << 20);
    map.open(1, first.handle()).unwrap();
    let before = map.peer_ptr(1, 0, 8);
    assert_eq!(map.open(1, first.handle()).unwrap(), &Reach::Mapped);
    assert_eq!((map.peer_ptr(1, 0, 8), map.opened_and_hits()), (before, (1, 1)));

    let second = heap(4 << 20);
    assert!(second.handle().generation > first.handle().generation);
    // SAFETY: the first word of each heap's committed memory, accessed only by this thread.
    unsafe {
        first.base().cast::<u64>().write_volatile(1);
        second.base().cast::<u64>().write_volatile(2);
    }
    let peek = |map: &PeerMap| amo(map, 1, 0, AmoOp::Fetch, 0);
    assert_eq!(peek(&map), 1);
    map.open(1, second.handle()).unwrap();
    assert_eq!((peek(&map), map.opened_and_hits()), (2, (2, 1)));
    // The mapped file outlives its owner.
    drop(second);
    assert_eq!(peek(&map), 2);
    map.close(1);
    assert_eq!((map.peer_ptr(1, 0, 8), map.bases_now()[1]), (None, 0));
}

#[test]
fn pointers_are_given_inside_of_the_heap_only() {
    let ours = heap(4 << 20);
    let map = map_of(&ours);
    assert_eq!(map.peer_ptr(0, 100, 8).map(|ptr| ptr.addr().get()), Some(ours.base().addr().get() + 100));
    assert_eq!(map.bases_now()[0], ours.base().addr().get());
    assert!(map.peer_ptr(0, 0, 4 << 20).is_some());
    assert_eq!(map.peer_ptr(0, 1, 4 << 20), None);
    assert_eq!(map.peer_ptr(0, u64::MAX, 2), None);
    assert_eq!(map.peer_ptr(2, 0, 8), None);
    assert_eq!(map.reach(0).unwrap(), &Reach::Own);
    assert!(map.reach(2).is_err() && PeerMap::new(2, 2, ours.handle().clone(), ours.base()).is_err());
}
