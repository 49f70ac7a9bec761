//! Copies between two arrangements of the same elements: packing, permuting and unpacking.
//!
//! Rows that are contiguous on both sides are copied as rows. Where the fastest dimensions differ, the copy goes by
//! tiles of both, so that it uses each cache line as a whole while the line is in the cache.

use symrail_heap::copy as bytes;

use crate::view::View;

/// Elements of a tile along each of its two dimensions.
const TILE: usize = 32;

/// A loop over one dimension.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Loop {
    pub count: usize,
    pub from: usize,
    pub to: usize,
}

/// The loops of a copy, the slowest in the destination first.
pub(crate) struct Loops {
    all: [Loop; 4],
    used: usize,
}

impl Loops {
    pub fn new(from: &View, to: &View) -> Loops {
        let mut all =
            [0, 1, 2, 3].map(|dim| Loop { count: to.extents[dim], from: from.strides[dim], to: to.strides[dim] });
        all.sort_by_key(|it| std::cmp::Reverse((it.to, it.from)));
        let mut loops = Loops { all: [Loop::default(); 4], used: 0 };
        for it in all.into_iter().filter(|it| it.count != 1) {
            // Two loops that run as one on both sides are merged.
            if let Some(outer) = loops.all[..loops.used].last_mut()
                && outer.from == it.from * it.count
                && outer.to == it.to * it.count
            {
                *outer = Loop { count: outer.count * it.count, ..it };
                continue;
            }
            loops.all[loops.used] = it;
            loops.used += 1;
        }
        loops
    }

    pub fn used(&self) -> &[Loop] {
        &self.all[..self.used]
    }
}

/// Copies elements of `size` bytes from one arrangement to another of the same extents.
///
/// # Safety
/// `from` is valid for reads of all elements of its view, and `to` for writes of all elements of its own. The elements
/// do not overlap. Both may be shared with other processes.
pub(crate) unsafe fn copy(size: usize, from: (*const u8, &View), to: (*mut u8, &View)) {
    debug_assert_eq!(from.1.extents, to.1.extents);
    if to.1.len() == 0 {
        return;
    }
    let loops = Loops::new(from.1, to.1);
    let source = from.0.wrapping_add(from.1.offset * size);
    let dest = to.0.wrapping_add(to.1.offset * size);
    // SAFETY: the caller's promise; elements have alignments of their sizes, or of half of them if they are complex.
    unsafe {
        match size {
            2 => copy_as::<u16>(source.cast(), dest.cast(), loops.used()),
            4 => copy_as::<u32>(source.cast(), dest.cast(), loops.used()),
            8 => copy_as::<[u32; 2]>(source.cast(), dest.cast(), loops.used()),
            16 => copy_as::<[u64; 2]>(source.cast(), dest.cast(), loops.used()),
            _ => copy_as::<u8>(source, dest, &with_bytes(loops.used(), size)),
        }
    }
}

/// The loops for elements that are copied as bytes: one more loop, over the bytes of an element.
fn with_bytes(loops: &[Loop], size: usize) -> Vec<Loop> {
    let scaled = loops.iter().map(|it| Loop { from: it.from * size, to: it.to * size, ..*it });
    scaled.chain([Loop { count: size, from: 1, to: 1 }]).collect()
}

/// # Safety
/// As for [`copy`].
unsafe fn copy_as<T: Copy>(from: *const T, to: *mut T, loops: &[Loop]) {
    match loops {
        // SAFETY: the caller's promise, for a single element.
        [] => unsafe { bytes::copy(to.cast(), from.cast(), size_of::<T>()) },
        [Loop { count, from: 1, to: 1 }] => {
            // SAFETY: the caller's promise, for a row.
            unsafe { bytes::copy(to.cast(), from.cast(), count * size_of::<T>()) };
        }
        [it] => {
            for i in 0..it.count {
                // SAFETY: the caller's promise, for each element.
                unsafe { to.wrapping_add(i * it.to).write(from.wrapping_add(i * it.from).read()) };
            }
        }
        [one, other] if other.from != 1 && one.from < other.from => {
            // SAFETY: the caller's promise.
            unsafe { copy_tiles(from, to, one, other) }
        }
        // The loop that is fastest in the source is moved next to the one that is fastest in the destination.
        [first, middle, last] if last.from != 1 && first.from < middle.from => {
            // SAFETY: the caller's promise; the loops are in another order.
            unsafe { copy_as(from, to, &[*middle, *first, *last]) }
        }
        [a, b, c, d] if d.from != 1 && a.from < b.from.min(c.from) => {
            // SAFETY: as above.
            unsafe { copy_as(from, to, &[*b, *c, *a, *d]) }
        }
        [outer, inner @ ..] => {
            for i in 0..outer.count {
                // SAFETY: the caller's promise, for each part.
                unsafe { copy_as(from.wrapping_add(i * outer.from), to.wrapping_add(i * outer.to), inner) };
            }
        }
    }
}

/// # Safety
/// As for [`copy`].
unsafe fn copy_tiles<T: Copy>(from: *const T, to: *mut T, one: &Loop, other: &Loop) {
    for i in (0..one.count).step_by(TILE) {
        for j in (0..other.count).step_by(TILE) {
            for i in i..one.count.min(i + TILE) {
                for j in j..other.count.min(j + TILE) {
                    let source = from.wrapping_add(i * one.from + j * other.from);
                    // SAFETY: the caller's promise, for each element.
                    unsafe { to.wrapping_add(i * one.to + j * other.to).write(source.read()) };
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Strides of extents in an order of memory, with gaps.
    fn view(extents: [usize; 4], order: [usize; 4], gap: usize) -> View {
        let mut strides = [0; 4];
        order.iter().fold(1, |stride, &dim| {
            strides[dim] = stride;
            stride * (extents[dim] + gap)
        });
        View { offset: gap, extents, strides }
    }

    fn span(view: &View) -> usize {
        view.offset + (0..4).map(|dim| (view.extents[dim] - 1) * view.strides[dim]).sum::<usize>() + 1
    }

    proptest! {
        #[test]
        fn every_element_comes_to_its_place(
            extents in prop::array::uniform4(1usize..40).prop_filter("small", |e| e.iter().product::<usize>() < 20_000),
            from_order in Just([0, 1, 2, 3]).prop_shuffle(),
            to_order in Just([0, 1, 2, 3]).prop_shuffle(),
            gaps in (0usize..3, 0usize..3),
            size in prop::sample::select(vec![1usize, 2, 4, 8, 12, 16]),
        ) {
            let (from, to) = (view(extents, from_order, gaps.0), view(extents, to_order, gaps.1));
            let source: Vec<u8> = (0..span(&from) * size).map(|i| (i * 7 % 251) as u8).collect();
            // Words make the memory aligned for every element.
            let source_words: Vec<u64> = source.chunks(8).map(|c| {
                let mut word = [0; 8];
                word[..c.len()].copy_from_slice(c);
                u64::from_ne_bytes(word)
            }).collect();
            let mut dest = vec![u64::MAX; (span(&to) * size).div_ceil(8)];
            // SAFETY: both have space for their spans.
            unsafe { copy(size, (source_words.as_ptr().cast(), &from), (dest.as_mut_ptr().cast(), &to)) };
            let dest: Vec<u8> = dest.iter().flat_map(|word| word.to_ne_bytes()).collect();
            let mut expected = vec![0xff; dest.len()];
            for n in 0..extents.iter().product() {
                let at = [n % extents[0], n / extents[0] % extents[1], n / extents[0] / extents[1] % extents[2],
                    n / extents[0] / extents[1] / extents[2]];
                let place = |view: &View| view.offset + (0..4).map(|dim| at[dim] * view.strides[dim]).sum::<usize>();
                let (f, t) = (place(&from) * size, place(&to) * size);
                expected[t..t + size].copy_from_slice(&source[f..f + size]);
            }
            prop_assert!(dest == expected);
        }
    }
}
