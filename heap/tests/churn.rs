//! A long-running program leaks neither blocks nor memory.
#![allow(clippy::unwrap_used)]

use symrail_heap::SymmetricHeap;
use symrail_transport::env::Settings;

/// Resident memory of this process in pages. This is the only test in the file, because other tests' memory would
/// count.
fn resident_pages() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[test]
fn a_hundred_thousand_blocks_later_nothing_has_grown() {
    let mut settings = Settings::default();
    settings.heap_size = 64 << 20;
    let mut heap = SymmetricHeap::new(0, &settings).unwrap();
    let sizes = [8, 24, 4096, 100_000, 64, 1 << 20, 777, 12_345];
    let mut live = std::collections::VecDeque::new();
    let mut seen = None;
    for round in 0..100_000usize {
        let block = heap.alloc(sizes[round % sizes.len()]).unwrap().unwrap();
        // SAFETY: the block is live and no other code knows it.
        unsafe { block.ptr.write_bytes(1, 4096.min(block.size as usize)) };
        live.push_back(block);
        if live.len() > 20 {
            let oldest = live.pop_front().unwrap();
            heap.free(oldest.ptr.as_ptr()).unwrap();
        }
        if round == 10_000 {
            seen = Some((heap.stats(), resident_pages()));
        }
    }
    let (stats, resident) = seen.unwrap();
    let after = heap.stats();
    assert_eq!((after.high_water, after.committed), (stats.high_water, stats.committed));
    assert!(resident_pages() <= resident + 64, "{} pages instead of {resident}", resident_pages());
    for block in live {
        heap.free(block.ptr.as_ptr()).unwrap();
    }
    assert_eq!((heap.stats().used, heap.stats().largest), (0, heap.capacity()));
}
