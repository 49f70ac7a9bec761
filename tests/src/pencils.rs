//! Arrays in pencils, whose elements encode their index in the whole array.

use symrail_decomp::{Axis, Buffer, Decomposition, Error, Form, Grid, Halo, Mode, Pencil, Plan, Transpose, Workspace};

/// The value of bytes of an array that are never written.
const UNTOUCHED: u8 = 0xA5;

/// The memory of arrays.
#[derive(Debug, Clone, Copy)]
pub struct Place {
    /// Words of the symmetric heap, for an input and an output; `None`: memory of the process.
    pub symmetric: Option<[*mut u64; 2]>,
    /// One array for both.
    pub in_place: bool,
}

/// An array of a PE, in memory of the host.
pub struct Array {
    /// Keeps the memory of `ptr`, if that is not symmetric.
    _own: Vec<u64>,
    ptr: *mut u8,
    bytes: usize,
}

impl Array {
    fn new(symmetric: Option<*mut u64>, bytes: usize) -> Array {
        let mut own = vec![0; if symmetric.is_some() { 0 } else { bytes.div_ceil(8) }];
        let ptr = symmetric.unwrap_or(own.as_mut_ptr()).cast::<u8>();
        // SAFETY: the caller's symmetric words are as many as its largest array needs.
        unsafe { ptr.write_bytes(UNTOUCHED, bytes) };
        Array { _own: own, ptr, bytes }
    }

    /// The array as a plan takes it.
    pub fn buffer(&self) -> Buffer<'static> {
        // SAFETY: the array outlives the operation, and this thread waits for it.
        unsafe { Buffer::raw(self.ptr, self.bytes) }
    }

    /// Its bytes.
    pub fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: the array's bytes, which no other code uses during the borrow.
        unsafe { std::slice::from_raw_parts_mut(self.ptr, self.bytes) }
    }

    fn write(&mut self, element: usize, index: usize, value: u64) {
        for (i, byte) in bytes_of(element, value).enumerate() {
            // SAFETY: the index is one of the array's.
            unsafe { self.ptr.add(index * element + i).write(byte) };
        }
    }

    fn is(&self, element: usize, index: usize, value: Option<u64>) -> bool {
        let found = |i| {
            // SAFETY: the index is one of the array's.
            unsafe { self.ptr.add(index * element + i).read_volatile() }
        };
        match value {
            Some(value) => bytes_of(element, value).enumerate().all(|(i, byte)| found(i) == byte),
            None => (0..element).all(|i| found(i) == UNTOUCHED),
        }
    }
}

/// The bytes of the element with a number.
fn bytes_of(element: usize, value: u64) -> impl Iterator<Item = u8> {
    (0..element).map(move |i| (value.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> (i % 8 * 8)) as u8 ^ (i / 8) as u8)
}

/// The index in the array of an element in memory: `None` for padding.
fn at(pencil: &Pencil, index: usize) -> Option<[i64; 3]> {
    let (shape, strides) = (pencil.shape(), pencil.strides());
    let here = [0, 1, 2].map(|dim| index / strides[dim] % shape[dim]);
    let inside = (0..3).all(|dim| here[dim] < shape[dim] - pencil.form.padding[dim]);
    inside.then(|| [0, 1, 2].map(|dim| (pencil.from[dim] + here[dim]) as i64 - pencil.form.halo[dim] as i64))
}

fn is_own(pencil: &Pencil, at: [i64; 3]) -> bool {
    (0..3).all(|dim| (pencil.from[dim] as i64..pencil.to[dim] as i64).contains(&at[dim]))
}

/// The number of an element of a field.
fn number(grid: &Grid, field: usize, at: [i64; 3]) -> u64 {
    let [x, y, z] = [0, 1, 2].map(|dim| at[dim].rem_euclid(grid.extents[dim] as i64) as u64);
    let [nx, ny, nz] = grid.extents.map(|extent| extent as u64);
    ((field as u64 * nz + z) * ny + y) * nx + x + 1
}

/// Fills an array's own elements.
fn fill(array: &mut Array, grid: &Grid, pencil: &Pencil, element: usize, fields: usize) {
    for index in 0..pencil.len() {
        if let Some(at) = at(pencil, index).filter(|&at| is_own(pencil, at)) {
            for field in 0..fields {
                array.write(element, field * pencil.len() + index, number(grid, field, at));
            }
        }
    }
}

/// Runs a transpose `rounds` times and checks every byte of the output.
///
/// # Panics
/// An element is wrong, or memory outside the array was written.
///
/// # Errors
/// The plan's.
pub fn transpose(array: &Decomposition, wanted: &Transpose, place: Place, rounds: usize) -> Result<(), Error> {
    let mut plan = array.transpose(wanted)?;
    let mut work = array.workspace(plan.workspace_bytes())?;
    let bytes = (plan.input_bytes(), plan.output_bytes());
    for _ in 0..rounds {
        transposed(array, wanted, place, bytes, |input, output| {
            if place.in_place {
                plan.run_in_place(input.buffer(), &mut work)
            } else {
                plan.run(input.buffer(), output.buffer(), &mut work)
            }
        })?;
    }
    end(array, plan, work)
}

/// Fills an input, transposes it by `run`, and checks every byte of the output.
///
/// # Panics
/// As for [`transpose`].
///
/// # Errors
/// That of `run`.
pub fn transposed(
    array: &Decomposition,
    wanted: &Transpose,
    place: Place,
    bytes: (usize, usize),
    run: impl FnOnce(&mut Array, &mut Array) -> Result<(), Error>,
) -> Result<(), Error> {
    let (grid, element) = (array.grid(), wanted.element);
    let (from, to) = (array.pencil(wanted.from, wanted.input), array.pencil(wanted.to, wanted.output));
    let bytes = if place.in_place { (bytes.0.max(bytes.1), 0) } else { bytes };
    let mut input = Array::new(place.symmetric.map(|words| words[0]), bytes.0);
    let mut output = Array::new(place.symmetric.map(|words| words[1]), bytes.1);
    fill(&mut input, grid, &from, element, wanted.fields);
    run(&mut input, &mut output)?;
    let output = if place.in_place { &input } else { &output };
    for index in 0..to.len() {
        let at = at(&to, index).filter(|&at| is_own(&to, at));
        for field in 0..wanted.fields {
            let expected = at.map(|at| number(grid, field, at));
            // In place, the rest is left over from the input.
            let right = place.in_place && at.is_none() || output.is(element, field * to.len() + index, expected);
            assert!(right, "{wanted:?} {place:?} of {grid:?}: rank {}, field {field}, {at:?}", array.rank());
        }
    }
    Ok(())
}

/// Updates all halos of pencils along an axis and checks every byte.
///
/// # Panics
/// An element is wrong, or memory outside the array was written.
///
/// # Errors
/// The plan's.
pub fn halo(
    array: &Decomposition,
    (axis, form, periodic): (Axis, Form, bool),
    (element, fields, mode): (usize, usize, Mode),
    symmetric: Option<*mut u64>,
) -> Result<(), Error> {
    updated(array, (axis, form, periodic), (element, fields), symmetric, |dim, memory| {
        let mut plan = array.halo(&Halo { axis, dim, periodic, form, element, fields, mode })?;
        let mut work = array.workspace(plan.workspace_bytes())?;
        plan.run_in_place(memory.buffer(), &mut work)?;
        end(array, plan, work)
    })
}

/// Fills an array, updates its halos by `run` in one dimension after the other, and checks every byte.
///
/// # Panics
/// As for [`halo`].
///
/// # Errors
/// That of `run`.
pub fn updated(
    array: &Decomposition,
    (axis, form, periodic): (Axis, Form, bool),
    (element, fields): (usize, usize),
    symmetric: Option<*mut u64>,
    mut run: impl FnMut(usize, &mut Array) -> Result<(), Error>,
) -> Result<(), Error> {
    let (grid, pencil) = (array.grid(), array.pencil(axis, form));
    let mut memory = Array::new(symmetric, pencil.len() * fields * element);
    fill(&mut memory, grid, &pencil, element, fields);
    (0..3).try_for_each(|dim| run(dim, &mut memory))?;
    for index in 0..pencil.len() {
        let whole = |at: &[i64; 3]| (0..3).all(|dim| (0..grid.extents[dim] as i64).contains(&at[dim]));
        let at = at(&pencil, index).filter(|at| periodic || whole(at));
        for field in 0..fields {
            let right = memory.is(element, field * pencil.len() + index, at.map(|at| number(grid, field, at)));
            assert!(right, "{axis:?} {form:?} {periodic} of {grid:?}: rank {}, field {field}, {at:?}", array.rank());
        }
    }
    Ok(())
}

fn end(array: &Decomposition, plan: Plan, work: Workspace) -> Result<(), Error> {
    array.give_up(plan)?;
    array.give_back(work)
}
