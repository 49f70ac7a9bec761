#![allow(clippy::unwrap_used)]

use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::*;

/// Allocates, and commits as the allocator requests.
fn alloc(a: &mut Allocator, size: u64, align: u64) -> Result<Option<u64>, AllocError> {
    match a.alloc(size, align) {
        Err(AllocError::Commit { to }) => {
            a.commit(to);
            let second = a.alloc(size, align);
            assert!(!matches!(second, Err(AllocError::Commit { .. })), "asked for memory twice");
            second
        }
        other => other,
    }
}

fn resize(a: &mut Allocator, offset: u64, size: u64) -> Result<bool, AllocError> {
    match a.resize(offset, size) {
        Err(AllocError::Commit { to }) => {
            a.commit(to);
            let second = a.resize(offset, size);
            assert_eq!(second, Ok(true), "committing what was asked for must be enough");
            second
        }
        other => other,
    }
}

#[test]
fn zero_bytes_are_no_block_and_absurd_requests_are_errors() {
    let mut a = Allocator::new(1 << 20, 1 << 16);
    assert_eq!(a.alloc(0, 64), Ok(None));
    for size in [(1 << 20) + 1, u64::MAX, u64::MAX - 62, i64::MAX as u64] {
        assert_eq!(a.alloc(size, 64), Err(AllocError::Exhausted), "{size}");
    }
    assert_eq!(a.alloc(64, 1 << 63), Err(AllocError::Commit { to: 1 << 16 }), "offset 0 has every alignment");
    assert_eq!(alloc(&mut a, 64, 1 << 63), Ok(Some(0)));
    assert_eq!(a.alloc(64, 1 << 63), Err(AllocError::Exhausted));
    assert_eq!(a.alloc(64, 48), Err(AllocError::Alignment));
    assert_eq!(a.alloc(64, 0), Err(AllocError::Alignment));
    assert_eq!(a.stats().used, 64);
}

#[test]
fn a_second_free_and_an_inner_offset_are_errors() {
    let mut a = Allocator::new(1 << 20, 1 << 16);
    let block = alloc(&mut a, 1000, 64).unwrap().unwrap();
    assert_eq!(a.free(block + 64), Err(AllocError::NotAllocated));
    assert_eq!(a.free(block), Ok(1024));
    assert_eq!(a.free(block), Err(AllocError::NotAllocated));
    assert_eq!(a.free(u64::MAX), Err(AllocError::NotAllocated));
    assert_eq!(a.resize(block, 64), Err(AllocError::NotAllocated));
}

#[test]
fn the_best_fit_is_the_smallest_hole_that_holds_the_request() {
    let mut a = Allocator::new(1 << 20, 1 << 20);
    let blocks: Vec<u64> =
        [640, 64, 128, 64, 256, 64].iter().map(|&size| alloc(&mut a, size, 64).unwrap().unwrap()).collect();
    for hole in [0, 2, 4] {
        a.free(blocks[hole]).unwrap();
    }
    assert_eq!(alloc(&mut a, 100, 64), Ok(Some(blocks[2])));
    assert_eq!(alloc(&mut a, 200, 64), Ok(Some(blocks[4])));
    assert_eq!(alloc(&mut a, 600, 64), Ok(Some(blocks[0])));
}

#[test]
fn grows_by_granules_and_only_as_far_as_needed() {
    let mut a = Allocator::new(1000 << 10, 64 << 10);
    assert_eq!(a.alloc(100, 64), Err(AllocError::Commit { to: 64 << 10 }));
    a.commit(64 << 10);
    let first = a.alloc(100, 64).unwrap().unwrap();
    // The request starts in the rest of the first granule, so two more are enough for 128 KiB.
    assert_eq!(a.alloc(128 << 10, 64), Err(AllocError::Commit { to: 192 << 10 }));
    // The capacity is no multiple of the granule, so the last growth is to the capacity.
    assert_eq!(a.alloc(970 << 10, 64), Err(AllocError::Commit { to: 1000 << 10 }));
    assert_eq!(a.alloc(1000 << 10, 64), Err(AllocError::Exhausted));
    assert_eq!(a.stats().largest, (1000 << 10) - 128);
    assert_eq!(a.stats().committed, 64 << 10);
    // A block at the end grows in place, into memory that is not committed yet.
    assert_eq!(a.resize(first, 100 << 10), Err(AllocError::Commit { to: 128 << 10 }));
    assert_eq!(resize(&mut a, first, 100 << 10), Ok(true));
    assert_eq!(a.stats().used, 100 << 10);
}

#[test]
fn resizes_in_place_only_into_free_space() {
    let mut a = Allocator::new(1 << 20, 1 << 20);
    let x = alloc(&mut a, 256, 64).unwrap().unwrap();
    let y = alloc(&mut a, 256, 64).unwrap().unwrap();
    let z = alloc(&mut a, 256, 64).unwrap().unwrap();
    assert_eq!(a.resize(x, 257), Ok(false));
    a.free(y).unwrap();
    assert_eq!(a.resize(x, 512), Ok(true));
    assert_eq!(a.resize(x, 513), Ok(false));
    assert_eq!(a.resize(x, 100), Ok(true));
    assert_eq!(a.size_of(x), Some(128));
    assert_eq!(a.resize(x, 0), Err(AllocError::Exhausted));
    assert_eq!(alloc(&mut a, 384, 64), Ok(Some(x + 128)), "what shrinking freed is one block with what was free");
    assert_eq!(a.resize(z, u64::MAX), Err(AllocError::Exhausted));
}

#[test]
fn an_aligned_request_finds_the_one_block_that_fits() {
    // Many holes of the right size at the wrong alignment, and one at the right one.
    let mut a = Allocator::new(1 << 20, 1 << 20);
    let mut holes = Vec::new();
    let mut offset = 0;
    while offset + 256 <= 1 << 20 {
        let block = alloc(&mut a, 128, 64).unwrap().unwrap();
        let wall = alloc(&mut a, 128, 64).unwrap().unwrap();
        holes.push(block);
        offset = wall + 128;
    }
    assert_eq!(a.stats().free, 0);
    let aligned = 512 << 10;
    assert!(holes.contains(&aligned));
    for &hole in holes.iter().filter(|&&hole| hole % (64 << 10) != 0 || hole == aligned) {
        a.free(hole).unwrap();
    }
    assert_eq!(a.alloc(128, 64 << 10), Ok(Some(aligned)));
    assert_eq!(a.alloc(128, 64 << 10), Err(AllocError::Exhausted));
}

#[derive(Debug, Clone)]
enum Step {
    Alloc(u64, u32),
    Free(usize),
    Resize(usize, u64),
    FreeUnknown(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let size = prop_oneof![4 => 0u64..600, 2 => 600u64..20_000, 1 => 20_000u64..400_000];
    prop::collection::vec(
        prop_oneof![
            4 => (size.clone(), 0u32..14).prop_map(|(size, align)| Step::Alloc(size, align)),
            3 => any::<usize>().prop_map(Step::Free),
            2 => (any::<usize>(), size).prop_map(|(which, size)| Step::Resize(which, size)),
            1 => any::<u64>().prop_map(Step::FreeUnknown),
        ],
        1..200,
    )
}

const CAPACITY: u64 = 1_000_000 / 64 * 64;

/// A naive model: a list of live (offset, size).
#[derive(Default)]
struct Model {
    live: Vec<(u64, u64)>,
}

impl Model {
    /// The free ranges of `0..CAPACITY`, from a scan of everything.
    fn holes(&self) -> Vec<(u64, u64)> {
        let mut live = self.live.clone();
        live.sort_unstable();
        let mut at = 0;
        let mut holes = Vec::new();
        for (offset, size) in live.into_iter().chain([(CAPACITY, 0)]) {
            assert!(at <= offset, "blocks overlap at {offset}");
            if at < offset {
                holes.push((at, offset - at));
            }
            at = offset + size;
        }
        holes
    }

    fn has_room(&self, size: u64, align: u64) -> bool {
        self.holes().iter().any(|&(at, free)| at.next_multiple_of(align) + size <= at + free)
    }
}

/// Applies the steps to allocator and model; returns every assigned offset.
fn play(steps: &[Step]) -> Result<Vec<Option<u64>>, TestCaseError> {
    let mut a = Allocator::new(CAPACITY, 100_000);
    let mut model = Model::default();
    let mut given = Vec::new();
    for step in steps {
        match *step {
            Step::Alloc(size, align) => {
                let align = 1 << align;
                match alloc(&mut a, size, align) {
                    Ok(Some(offset)) => {
                        prop_assert_eq!(offset % align.max(64), 0);
                        prop_assert!(offset + size <= a.stats().committed);
                        model.live.push((offset, size.next_multiple_of(64)));
                        given.push(Some(offset));
                    }
                    Ok(None) => prop_assert_eq!(size, 0),
                    Err(error) => {
                        prop_assert_eq!(error, AllocError::Exhausted);
                        prop_assert!(!model.has_room(size.next_multiple_of(64), align.max(64)), "refused what fits");
                        given.push(None);
                    }
                }
            }
            Step::Free(which) if !model.live.is_empty() => {
                let (offset, size) = model.live.swap_remove(which % model.live.len());
                prop_assert_eq!(a.free(offset), Ok(size));
                prop_assert_eq!(a.free(offset), Err(AllocError::NotAllocated));
            }
            Step::Resize(which, size) if !model.live.is_empty() && size > 0 => {
                let which = which % model.live.len();
                let (offset, old) = model.live[which];
                let size = size.next_multiple_of(64);
                let room = {
                    model.live.swap_remove(which);
                    let fits = model.holes().iter().any(|&(at, free)| at <= offset && offset + size <= at + free);
                    model.live.push((offset, old));
                    fits
                };
                prop_assert_eq!(resize(&mut a, offset, size), Ok(room));
                if room && let Some(last) = model.live.last_mut() {
                    last.1 = size;
                }
            }
            Step::FreeUnknown(offset) if !model.live.iter().any(|&(live, _)| live == offset) => {
                prop_assert_eq!(a.free(offset), Err(AllocError::NotAllocated));
            }
            _ => {}
        }
        let stats = a.stats();
        let used: u64 = model.live.iter().map(|&(_, size)| size).sum();
        let largest = model.holes().iter().map(|&(_, size)| size).max().unwrap_or(0);
        prop_assert_eq!((stats.used, stats.free, stats.largest), (used, CAPACITY - used, largest));
        prop_assert_eq!(stats.blocks, model.live.len());
        prop_assert!(stats.high_water >= used && stats.committed <= CAPACITY);
    }
    for (offset, _) in model.live {
        a.free(offset).map_err(|error| TestCaseError::fail(format!("{error:?}")))?;
    }
    prop_assert_eq!(a.free.len(), usize::from(a.committed > 0), "free neighbours were left apart");
    prop_assert_eq!(a.free_by_size.len(), a.free.len());
    prop_assert_eq!(a.stats().largest, CAPACITY);
    Ok(given)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn behaves_as_the_model_and_the_same_each_time(steps in steps()) {
        prop_assert_eq!(play(&steps)?, play(&steps)?);
    }
}

/// The time of `n` alloc/free pairs among `live` live blocks with as many holes between them.
fn time_among(live: u64, n: u64) -> Duration {
    let mut a = Allocator::new(1 << 40, 1 << 40);
    let blocks: Vec<u64> = (0..2 * live).map(|i| alloc(&mut a, 64 * (1 + i % 7), 64).unwrap().unwrap()).collect();
    for hole in blocks.iter().step_by(2) {
        a.free(*hole).unwrap();
    }
    let mut fastest = Duration::MAX;
    for _ in 0..5 {
        let start = Instant::now();
        for i in 0..n {
            let block = alloc(&mut a, 64 * (1 + i % 7), if i % 8 == 0 { 4096 } else { 64 }).unwrap().unwrap();
            a.free(block).unwrap();
        }
        fastest = fastest.min(start.elapsed());
    }
    fastest
}

#[test]
fn many_live_blocks_cost_little_more_than_few() {
    let few = time_among(1_000, 20_000);
    let many = time_among(100_000, 20_000);
    // log2(100,000) / log2(1,000) is 1.7; cache misses make it more. Anything linear would be near 100.
    assert!(many < few * 40, "{many:?} among 100,000 blocks against {few:?} among 1,000");
}
