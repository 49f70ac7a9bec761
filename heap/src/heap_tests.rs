#![allow(clippy::unwrap_used)]

use super::*;

const MIB: u64 = 1 << 20;

fn heap_of(size: u64, growth: u64) -> SymmetricHeap {
    let mut settings = Settings::default();
    settings.heap_size = size as usize;
    SymmetricHeap::with_growth(3, &settings, growth).unwrap()
}

/// Fills a block and returns its sum.
fn fill(block: &Allocation, value: u8) {
    // SAFETY: the block is live and no other code knows it.
    unsafe { block.ptr.write_bytes(value, block.size as usize) };
}

fn bytes(block: &Allocation) -> Vec<u8> {
    // SAFETY: as above.
    (0..block.size as usize).map(|i| unsafe { block.ptr.add(i).read_volatile() }).collect()
}

#[test]
fn grows_by_segments_that_continue_one_another() {
    let mut heap = heap_of(32 * MIB, 4 * MIB);
    assert_eq!(heap.segments().len(), 1);
    assert_eq!(heap.alloc(MIB).unwrap().unwrap().grown, None);
    let large = heap.alloc(9 * MIB).unwrap().unwrap();
    let grown = large.grown.unwrap();
    assert_eq!((grown.id(), grown.offset(), grown.bytes()), (1, 4 * MIB, 8 * MIB));
    assert_eq!(heap.segments().last(), Some(&grown));
    fill(&large, 7);
    assert!(bytes(&large).iter().all(|&byte| byte == 7));
    let mut end = 0;
    for (id, segment) in heap.segments().iter().enumerate() {
        assert_eq!((segment.id() as usize, segment.offset()), (id, end));
        assert_eq!(segment.base().addr() - heap.base().addr().get(), segment.offset() as usize);
        end += segment.bytes();
    }
    assert_eq!(end, heap.stats().committed);
}

#[test]
fn exhaustion_says_what_there_is_and_what_to_raise() {
    let mut heap = heap_of(4 * MIB, 2 * MIB);
    let first = heap.alloc(3 * MIB).unwrap().unwrap();
    let before = heap.stats();
    let text = heap.alloc(2 * MIB).unwrap_err().to_string();
    for part in [
        "PE 3",
        "2097152 bytes",
        "1048576 of 4194304",
        "largest block has 1048576",
        "SYMRAIL_HEAP_SIZE (now 4194304) on",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(matches!(heap.calloc(u64::MAX, 2), Err(HeapError::Exhausted { requested: u64::MAX, .. })));
    assert!(matches!(heap.alloc(u64::MAX), Err(HeapError::Exhausted { .. })));
    assert!(matches!(heap.realloc(first.ptr.as_ptr(), u64::MAX), Err(HeapError::Exhausted { .. })));
    assert_eq!(heap.stats(), before);
}

#[test]
fn exhaustion_names_the_size_that_the_user_has_chosen() {
    let mut settings = Settings::default();
    settings.heap_size = 16 << 20;
    settings.add_to_heap(2 << 20);
    let mut heap = SymmetricHeap::new(0, &settings).unwrap();
    let text = heap.alloc(32 << 20).unwrap_err().to_string();
    assert!(text.contains("SYMRAIL_HEAP_SIZE (now 16777216; 2097152 bytes more are for the library itself)"), "{text}");
}

#[test]
fn calloc_clears_what_a_block_left() {
    let mut heap = heap_of(4 * MIB, 2 * MIB);
    let dirty = heap.alloc(4096).unwrap().unwrap();
    fill(&dirty, 0xff);
    heap.free(dirty.ptr.as_ptr()).unwrap();
    let clean = heap.calloc(64, 64).unwrap().unwrap();
    assert_eq!(clean.offset, dirty.offset, "the test wants the same block");
    assert!(bytes(&clean).iter().all(|&byte| byte == 0));
    assert_eq!(heap.calloc(0, 8).unwrap(), None);
    assert_eq!(heap.calloc(8, 0).unwrap(), None);
}

#[test]
fn alignment_holds_for_address_and_offset_and_is_checked() {
    let mut heap = heap_of(256 * MIB, 2 * MIB);
    for shift in 3..=26 {
        let block = heap.align(1 << shift, 100).unwrap().unwrap();
        assert_eq!((block.offset % (1 << shift), block.ptr.addr().get() % (1 << shift)), (0, 0));
        assert!(block.ptr.addr().get().is_multiple_of(64));
        assert!(heap.alloc(40).unwrap().is_some());
    }
    for align in [0, 1, 4, 24, 128 * MIB, 1 << 63] {
        let error = heap.align(align, 100).unwrap_err();
        assert!(matches!(error, HeapError::Alignment { pe: 3, .. }), "{error}");
    }
}

#[test]
fn realloc_keeps_contents_in_place_and_when_moving() {
    let mut heap = heap_of(16 * MIB, 2 * MIB);
    let block = heap.realloc(std::ptr::null_mut(), 1000).unwrap().unwrap();
    fill(&block, 9);
    let same = heap.realloc(block.ptr.as_ptr(), 5000).unwrap().unwrap();
    assert_eq!(same.offset, block.offset);
    let wall = heap.alloc(64).unwrap().unwrap();
    let moved = heap.realloc(same.ptr.as_ptr(), 3 * MIB).unwrap().unwrap();
    assert_ne!(moved.offset, block.offset);
    assert!(moved.grown.is_some());
    assert!(bytes(&moved)[..1000].iter().all(|&byte| byte == 9));
    assert!(matches!(heap.free(same.ptr.as_ptr()), Err(HeapError::NotAllocated { .. })), "moving frees the old block");
    let shrunk = heap.realloc(moved.ptr.as_ptr(), 10).unwrap().unwrap();
    assert_eq!((shrunk.offset, shrunk.size), (moved.offset, 64));
    assert_eq!(heap.realloc(shrunk.ptr.as_ptr(), 0).unwrap(), None);
    heap.free(wall.ptr.as_ptr()).unwrap();
    assert_eq!(heap.stats().used, 0);
}

#[test]
fn wrong_pointers_are_errors_that_name_them() {
    let mut heap = heap_of(4 * MIB, 2 * MIB);
    let block = heap.alloc(256).unwrap().unwrap();
    let local = 5u8;
    let wrong = [
        block.ptr.as_ptr().wrapping_add(64),
        heap.base().as_ptr().wrapping_add(3 << 20),
        heap.base().as_ptr().wrapping_sub(64),
        (&raw const local).cast_mut(),
    ];
    for ptr in wrong {
        let text = heap.free(ptr).unwrap_err().to_string();
        assert!(text.contains("PE 3") && text.contains(&format!("{:#x}", ptr.addr())), "{text}");
        assert!(matches!(heap.realloc(ptr, 8), Err(HeapError::NotAllocated { .. })));
    }
    assert!(heap.free(std::ptr::null_mut()).is_ok());
    heap.free(block.ptr.as_ptr()).unwrap();
    assert!(matches!(heap.free(block.ptr.as_ptr()), Err(HeapError::NotAllocated { .. })));
}

#[test]
fn offsets_are_given_for_committed_ranges_only() {
    let heap = heap_of(4 * MIB, 2 * MIB);
    let base = heap.base().as_ptr();
    assert_eq!(heap.offset_of(base, 2 * MIB), Some(0));
    assert_eq!(heap.offset_of(base, 2 * MIB + 1), None);
    assert_eq!(heap.offset_of(base.wrapping_add(100), 8), Some(100));
    assert_eq!(heap.offset_of(base.wrapping_add(100), u64::MAX), None);
    assert_eq!(heap.offset_of(base.wrapping_sub(1), 1), None);
    assert_eq!(heap.ptr_of(100, 8).map(|ptr| ptr.as_ptr()), Some(base.wrapping_add(100)));
    assert_eq!(heap.ptr_of(2 * MIB, 1), None);
    assert_eq!(heap.ptr_of(u64::MAX, 2), None);
}

#[test]
fn calls_are_counted_and_described_before_they_are_made() {
    let (mut ours, mut theirs) = (heap_of(4 * MIB, 2 * MIB), heap_of(4 * MIB, 2 * MIB));
    let block = ours.alloc(100).unwrap().unwrap();
    let null = std::ptr::null();
    let calls = [ours.describe(AllocOp::Alloc, 8, 64, null), theirs.describe(AllocOp::Alloc, 8, 64, null)];
    assert!(AllocCall::check(&calls).is_err(), "one PE is a call ahead");
    let twin = theirs.alloc(100).unwrap().unwrap();
    assert_ne!(block.ptr, twin.ptr);
    let calls = [
        ours.describe(AllocOp::Free, 0, 0, block.ptr.as_ptr()),
        theirs.describe(AllocOp::Free, 0, 0, twin.ptr.as_ptr()),
    ];
    AllocCall::check(&calls).unwrap();
    assert_eq!(ours.alloc(0).unwrap(), None);
    assert_eq!(calls[0], ours.describe(AllocOp::Free, 0, 0, block.ptr.as_ptr()), "no block, no call");
    ours.free(block.ptr.as_ptr()).unwrap();
    assert_eq!(ours.describe(AllocOp::Alloc, 8, 64, null).sequence, 2);
}

#[test]
fn heaps_of_different_shape_do_not_agree() {
    let handles = [4, 4, 8].map(|mib| heap_of(mib * MIB, 2 * MIB).handle().clone());
    crate::check_agreement(&handles[..2]).unwrap();
    let text = crate::check_agreement(&handles).unwrap_err().to_string();
    for part in ["SYMRAIL_HEAP_SIZE", "PE 2 has 8388608", "PE 0 has 4194304"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert_ne!(handles[0].generation, handles[1].generation);
}

#[test]
fn settings_that_cannot_work_are_errors() {
    let mut settings = Settings::default();
    settings.heap_kind = HeapKind::Device;
    assert!(matches!(SymmetricHeap::new(0, &settings), Err(HeapError::Transport(Error::Unsupported { .. }))));
    settings.heap_kind = HeapKind::Host;
    for size in [0, usize::MAX, 1 << 47] {
        settings.heap_size = size;
        assert!(matches!(SymmetricHeap::new(0, &settings), Err(HeapError::Transport(Error::Setting { .. }))), "{size}");
    }
    settings.heap_size = 1 << 20;
    settings.fake_host = Some("h".repeat(65));
    assert!(matches!(SymmetricHeap::new(0, &settings), Err(HeapError::Transport(Error::Setting { .. }))));
    settings.fake_host = Some("node-a".into());
    assert_eq!(SymmetricHeap::new(0, &settings).unwrap().handle().host.name, "node-a");
}

#[test]
fn memory_that_the_system_refuses_is_an_error_and_changes_nothing() {
    let mut heap = heap_of(4 * MIB, 2 * MIB);
    // An allocator with a larger capacity than the memory makes the memory refuse.
    heap.allocator = Allocator::new(8 * MIB, 2 * MIB);
    heap.allocator.commit(2 * MIB);
    let before = heap.stats();
    let text = heap.alloc(5 * MIB).unwrap_err().to_string();
    for part in ["PE 3", "commit for 4194304 bytes", "allocate less"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert_eq!((heap.stats(), heap.segments().len()), (before, 1));
    assert_eq!(heap.describe(AllocOp::Alloc, 8, 64, std::ptr::null()).sequence, 0);
    assert!(heap.alloc(MIB).unwrap().is_some());
}

#[test]
fn blocks_that_are_kept_are_their_owners() {
    let mut heap = heap_of(MIB, MIB);
    let block = heap.alloc(64).unwrap().unwrap().ptr.as_ptr();
    heap.keep(block).unwrap();
    assert!(matches!(heap.free(block), Err(HeapError::Kept { .. })));
    assert!(matches!(heap.realloc(block, 128), Err(HeapError::Kept { .. })));
    assert!(matches!(heap.realloc(block, 0), Err(HeapError::Kept { .. })));
    heap.free_kept(block).unwrap();
    // The next block at that place is an ordinary one.
    let again = heap.alloc(64).unwrap().unwrap().ptr.as_ptr();
    assert_eq!(again, block);
    heap.free(again).unwrap();
    assert!(matches!(heap.free_kept(block), Err(HeapError::NotAllocated { .. })));
}
