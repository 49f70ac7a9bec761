//! Collectives that only need their members to wait for one another: each PE accesses the others' memory between two
//! barriers.

use super::buffer::Buffer;
use super::members::Members;
use super::quick::copy_here;
use super::reduction::Reduction;
use crate::error::Result;
use crate::rma::Strided;

/// Bytes of elements that a reduction fetches at a time, from all PEs together.
const CHUNK: usize = 1 << 20;
/// Up to this many bytes every PE reduces everything itself.
const ALONE_UP_TO: usize = 1024;

/// Puts the root's data to all others. The root's own destination stays unchanged.
pub(super) unsafe fn broadcast(
    m: &impl Members,
    dest: *mut u8,
    source: *const u8,
    bytes: usize,
    root: u32,
) -> Result<()> {
    let (ops, group) = (m.ops(), m.group());
    if group.me() == root && bytes > 0 {
        for (_, pe) in group.others() {
            // SAFETY: the caller's promise; the source is kept until the quiet.
            unsafe { ops.put_nbi(dest, source, bytes, pe) }?;
        }
        ops.quiet()?;
    }
    m.wait_for_all()
}

/// Puts this PE's block to all PEs, `before` bytes into the destination.
pub(super) unsafe fn to_all(
    m: &impl Members,
    dest: *mut u8,
    source: *const u8,
    bytes: usize,
    before: usize,
) -> Result<()> {
    let (ops, group) = (m.ops(), m.group());
    m.must_hold("collect", &[(dest, before.saturating_add(bytes))])?;
    let dest = dest.wrapping_add(before);
    // SAFETY: the caller's promise.
    unsafe { copy_here(dest, source, bytes) };
    if bytes > 0 {
        for (_, pe) in group.others() {
            // SAFETY: the caller's promise; the source is kept until the quiet.
            unsafe { ops.put_nbi(dest, source, bytes, pe) }?;
        }
        ops.quiet()?;
    }
    m.wait_for_all()
}

/// Sends each PE its own block of strided elements.
pub(super) unsafe fn all_to_all_strided(
    m: &impl Members,
    dest: *mut u8,
    source: *const u8,
    shape: Strided,
) -> Result<()> {
    let (ops, group) = (m.ops(), m.group());
    if shape.count == 0 {
        return m.wait_for_all();
    }
    let block = |index: u32, stride: usize| index as usize * shape.count * stride * shape.size;
    let dest = dest.wrapping_add(block(group.me(), shape.dest_stride));
    let own = source.wrapping_add(block(group.me(), shape.source_stride));
    for i in 0..shape.count {
        let to = dest.wrapping_add(i * shape.dest_stride * shape.size);
        let from = own.wrapping_add(i * shape.source_stride * shape.size);
        // SAFETY: the caller's promise.
        unsafe { copy_here(to, from, shape.size) };
    }
    for (index, pe) in group.others() {
        let from = source.wrapping_add(block(index, shape.source_stride));
        // SAFETY: the caller's promise.
        unsafe {
            if shape.dest_stride == 1 && shape.source_stride == 1 {
                ops.put_nbi(dest, from, shape.count * shape.size, pe)?;
            } else {
                ops.iput(dest, from, shape, pe)?;
            }
        }
    }
    ops.quiet()?;
    m.wait_for_all()
}

/// Each PE fetches its share of the elements from all PEs, reduces it, and puts the result to all. One PE reduces each
/// element (or all PEs do so in the same order), so all get the same bits.
pub(super) unsafe fn reduce(
    m: &impl Members,
    dest: *mut u8,
    source: *const u8,
    count: usize,
    reduction: Reduction,
) -> Result<()> {
    let (ops, group, size) = (m.ops(), m.group(), reduction.size());
    if group.size() == 1 {
        // SAFETY: the caller's promise.
        unsafe { copy_here(dest, source, count * size) };
        return Ok(());
    }
    let alone = count * size <= ALONE_UP_TO;
    let share = if alone { count } else { count.div_ceil(group.size() as usize) };
    let first = if alone { 0 } else { (group.me() as usize * share).min(count) };
    let mine = share.min(count - first);
    let starts_with = if alone { 0 } else { group.me() };
    // SAFETY: the caller's promise.
    let mut sum_buffer = unsafe { reduced(m, source.wrapping_add(first * size), mine, reduction, starts_with) }?;
    let sum = sum_buffer.as_mut_ptr();
    let to = dest.wrapping_add(first * size);
    // SAFETY: the caller's promise; the buffer is kept until the quiet.
    unsafe {
        copy_here(to, sum, mine * size);
        if mine > 0 && !alone {
            for (_, pe) in group.others() {
                ops.put_nbi(to, sum, mine * size, pe)?;
            }
        }
    }
    if !alone {
        ops.quiet()?;
    }
    sum_buffer.free();
    if alone { Ok(()) } else { m.wait_for_all() }
}

/// Each PE fetches its own block from all PEs, and reduces the blocks.
pub(super) unsafe fn reduce_scatter(
    m: &impl Members,
    dest: *mut u8,
    source: *const u8,
    count: usize,
    reduction: Reduction,
) -> Result<()> {
    let bytes = count * reduction.size();
    let source = source.wrapping_add(m.group().me() as usize * bytes);
    // SAFETY: the caller's promise.
    unsafe {
        let mut sum = reduced(m, source, count, reduction, 0)?;
        copy_here(dest, sum.as_mut_ptr(), bytes);
        sum.free();
    }
    Ok(())
}

/// Fetches `count` elements of all PEs and combines them, beginning with those of the PE at this index. Begins with a
/// barrier, after which all sources are ready, and ends with one, after which all have been read.
///
/// # Safety
/// The source is valid for reads.
unsafe fn reduced(
    m: &impl Members,
    source: *const u8,
    count: usize,
    reduction: Reduction,
    starts_with: u32,
) -> Result<Buffer> {
    let (ops, group, size) = (m.ops(), m.group(), reduction.size());
    let members = group.size() as usize;
    let part = (CHUNK / size / members).clamp(1, count.max(1));
    let mut sum_buffer = Buffer::zeroed(count * size);
    let mut parts_buffer = Buffer::zeroed(members * part * size);
    let (sum, parts) = (sum_buffer.as_mut_ptr(), parts_buffer.as_mut_ptr());
    m.wait_for_all()?;
    let of = |index: u32| parts.wrapping_add(index as usize * part * size);
    for done in (0..count).step_by(part) {
        let now = part.min(count - done);
        let from = source.wrapping_add(done * size);
        let to = sum.wrapping_add(done * size);
        // SAFETY: the buffers have space for these elements; the caller vouches for the source.
        unsafe {
            copy_here(of(group.me()), from, now * size);
            for (index, pe) in group.others() {
                ops.get_nbi(of(index), from, now * size, pe)?;
            }
            ops.quiet()?;
            copy_here(to, of(starts_with), now * size);
            for i in 1..group.size() {
                reduction.combine(to, of((starts_with + i) % group.size()), now);
            }
        }
    }
    parts_buffer.free();
    m.wait_for_all()?;
    Ok(sum_buffer)
}

/// Each PE fetches and reduces the elements of the PEs before it.
pub(super) unsafe fn scan(
    m: &impl Members,
    dest: *mut u8,
    source: *const u8,
    count: usize,
    reduction: Reduction,
    inclusive: bool,
) -> Result<()> {
    let (ops, group, bytes) = (m.ops(), m.group(), count * reduction.size());
    let (mut mine, mut others) = (Buffer::zeroed(bytes), Buffer::zeroed(bytes));
    let (sum, theirs) = (mine.as_mut_ptr(), others.as_mut_ptr());
    m.wait_for_all()?;
    let up_to = if inclusive { group.me() + 1 } else { group.me() };
    for index in 0..up_to {
        let place = if index == 0 { sum } else { theirs };
        // SAFETY: the buffers have space for the elements; the caller vouches for the source.
        unsafe {
            if index == group.me() {
                copy_here(place, source, bytes);
            } else {
                ops.get(place, source, bytes, group.pe(index))?;
            }
            if index > 0 {
                reduction.combine(sum, theirs, count);
            }
        }
    }
    others.free();
    m.wait_for_all()?;
    // SAFETY: the caller's promise.
    unsafe { copy_here(dest, sum, bytes) };
    mine.free();
    Ok(())
}
