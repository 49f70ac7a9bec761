//! Properties of grid descriptors: pencils, neighbours, sizes of workspaces. All of them are computed, by each rank for
//! itself.

use std::ffi::c_int;

use symrail::team::heap::ALIGN;
use symrail_core::CPointer;
use symrail_decomp::halo::shifted;
use symrail_decomp::{Axis, Form, Grid, Transpose};

use crate::grid::GridDesc;
use crate::guard::{Failure, Three, given, guarded, three};
use crate::handle::{Opaque, with_desc};
use crate::layouts::{Layout, PencilInfo, axis, element};

/// Bytes of the smallest element. Sizes in elements include the rounding for elements of any type.
const SMALLEST: usize = 4;

/// A number of elements as one of C, unless it is too large.
fn counted<T: TryFrom<usize>>(what: &str, number: Option<usize>) -> Result<T, Failure> {
    let number = number.and_then(|number| T::try_from(number).ok());
    number.ok_or_else(|| Failure::usage(format!("{what}: so many elements cannot be counted")))
}

fn product(numbers: impl IntoIterator<Item = usize>) -> Option<usize> {
    let mut numbers = numbers.into_iter();
    let most = i64::MAX as usize;
    numbers.try_fold(1usize, |all, number| all.checked_mul(number).filter(|&all| all <= most))
}

/// The shape in memory of a pencil with these extents, along X, Y and Z.
fn shape(own: [usize; 3], form: Form) -> [usize; 3] {
    [0, 1, 2].map(|dim| own[dim].saturating_add(2 * form.halo[dim]).saturating_add(form.padding[dim]))
}

fn pencil_info(desc: &GridDesc, along: Axis, form: Form) -> Result<PencilInfo, Failure> {
    let pencil = desc.grid.pencil(desc.rank, along, form);
    let all = shape(pencil.extents(), form);
    let mut info = PencilInfo {
        head: PencilInfo::HEAD,
        shape: [0; 3],
        lo: pencil.order.map(|dim| pencil.from[dim] as i32),
        hi: pencil.order.map(|dim| pencil.to[dim] as i32 - 1),
        order: pencil.order.map(|dim| dim as i32),
        halo_extents: form.halo.map(|width| width as i32),
        padding: form.padding.map(|width| width as i32),
        size: counted("the pencil", product(all))?,
    };
    for (i, dim) in pencil.order.into_iter().enumerate() {
        info.shape[i] = counted("the pencil", Some(all[dim]))?;
    }
    Ok(info)
}

#[unsafe(no_mangle)]
#[allow(clippy::too_many_arguments)] // C's interface has so many
extern "C" fn cudecompGetPencilInfoVersioned(
    handle: Opaque,
    desc: Opaque,
    info: CPointer<PencilInfo>,
    size: i64,
    version: i32,
    along: i32,
    halo: Three,
    padding: Three,
) -> c_int {
    with_desc(handle, desc, |desc| {
        PencilInfo::check(size, version)?;
        let info = given("pencil_info", info)?;
        let (halo, padding) = (three("halo_extents", halo)?, three("padding", padding)?);
        info.set(pencil_info(desc, axis(along)?, Form { halo, padding })?);
        Ok(())
    })
}

/// Elements of any type that a transpose's blocks need on any rank, over rails and in place, each block rounded up.
fn for_transpose(grid: &Grid, (from, to): (Axis, Axis)) -> Option<usize> {
    // Large blocks are in up to four parts on GPUs.
    let blocks = 2 * 4 * grid.processes.into_iter().max().unwrap_or(1) + 1;
    let [input, output] = [from, to].map(|along| product(grid.largest_extents(along)));
    input?.checked_add(output?)?.checked_add(blocks * (ALIGN / SMALLEST))
}

/// As [`for_transpose`] for updates of halos: two faces are sent and two arrive.
fn for_halos(grid: &Grid, along: Axis, halo: [usize; 3]) -> Option<usize> {
    let shape = shape(grid.largest_extents(along), Form { halo, padding: [0; 3] });
    let face = |dim: usize| product([0, 1, 2].map(|other| if other == dim { halo[dim] } else { shape[other] }));
    let faces = [0, 1, 2].map(|dim| 4usize.checked_mul(face(dim)?.checked_add(4 * (ALIGN / SMALLEST))?));
    faces.into_iter().collect::<Option<Vec<_>>>()?.into_iter().max()
}

#[unsafe(no_mangle)]
extern "C" fn cudecompGetTransposeWorkspaceSize(handle: Opaque, desc: Opaque, size: CPointer<i64>) -> c_int {
    with_desc(handle, desc, |desc| {
        let size = given("workspace_size", size)?;
        let all = Transpose::ALL.map(|axes| for_transpose(&desc.grid, axes));
        let largest = all.into_iter().collect::<Option<Vec<_>>>().and_then(|all| all.into_iter().max());
        size.set(counted("the workspace", largest)?);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cudecompGetHaloWorkspaceSize(
    handle: Opaque,
    desc: Opaque,
    along: i32,
    halo: Three,
    size: CPointer<i64>,
) -> c_int {
    with_desc(handle, desc, |desc| {
        if halo.is_null() {
            return Err(Failure::usage("halo_extents is a null pointer"));
        }
        let (size, halo) = (given("workspace_size", size)?, three("halo_extents", halo)?);
        size.set(counted("the workspace", for_halos(&desc.grid, axis(along)?, halo))?);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cudecompGetDataTypeSize(dtype: c_int, size: CPointer<i64>) -> c_int {
    guarded(|| {
        let bytes = element(dtype)?;
        given("dtype_size", size)?.set(bytes as i64);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cudecompGetShiftedRank(
    handle: Opaque,
    desc: Opaque,
    along: i32,
    dim: i32,
    displacement: i32,
    periodic: u8,
    rank: CPointer<i32>,
) -> c_int {
    with_desc(handle, desc, |desc| {
        let to = given("shifted_rank", rank)?;
        let (along, dim) = (axis(along)?, axis(dim)?.index());
        let found = shifted(&desc.grid, desc.rank, along, dim, displacement.into(), periodic != 0);
        to.set(found.map_or(-1, |rank| rank as i32));
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use symrail_decomp::Mode;

    /// Sizes hold for all ranks, types and operations, with every halo and padding, in place too.
    #[test]
    fn workspaces_are_large_enough_for_every_operation() {
        for (extents, processes) in
            [([9, 10, 11], [2, 2]), ([128, 124, 132], [1, 4]), ([5, 3, 2], [3, 2]), ([7, 7, 7], [1, 1])]
        {
            for distributed in [extents, [extents[0] - 1, extents[1] - 1, extents[2]]] {
                let grid = Grid { distributed, ..Grid::new(extents, processes) };
                for rank in 0..processes[0] * processes[1] {
                    for bytes in [4, 8, 16] {
                        for axes in Transpose::ALL {
                            let wanted = Transpose { mode: Mode::default(), ..Transpose::new(axes, bytes) };
                            let needed = wanted.workspace_bytes(&grid, rank);
                            let given = for_transpose(&grid, axes).map(|elements| elements * bytes);
                            assert!(given >= Some(needed), "{extents:?} {processes:?} {axes:?}: {given:?} < {needed}");
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn what_cannot_be_counted_is_refused() {
        let most = i32::MAX as usize;
        let grid = Grid::new([most; 3], [2, 2]);
        assert_eq!(for_transpose(&grid, (Axis::X, Axis::Y)), None);
        assert_eq!(product(grid.largest_extents(Axis::X)), None);
        assert!(counted::<i32>("it", Some(most + 1)).is_err() && counted::<i32>("it", Some(most)).is_ok());
    }
}
