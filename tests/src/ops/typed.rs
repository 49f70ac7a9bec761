//! Elements of all types: single ones, strided ones, slices.

use symrail::{Result, Runtime, Strided};

use super::Plan;
use crate::pattern::{Value, mix};
use crate::pe::{before, doing, neighbour};

/// All types.
///
/// # Errors
/// Those of the operations.
pub fn all(rt: &Runtime, plan: &Plan) -> Result<()> {
    one::<i32>(rt)?;
    one::<f64>(rt)?;
    if plan.thorough {
        one::<i8>(rt)?;
        one::<u8>(rt)?;
        one::<i16>(rt)?;
        one::<u16>(rt)?;
        one::<u32>(rt)?;
        one::<i64>(rt)?;
        one::<u64>(rt)?;
        one::<isize>(rt)?;
        one::<usize>(rt)?;
        one::<f32>(rt)?;
    }
    Ok(())
}

fn one<T: Value>(rt: &Runtime) -> Result<()> {
    const N: usize = 40;
    let (me, peer, source) = (rt.my_pe(), neighbour(rt, 1), before(rt, 1));
    let value = |pe: u32, i: usize| T::of(mix(u64::from(pe) + 7, i as u64));
    let all = |pe: u32| (0..N).map(|i| value(pe, i)).collect::<Vec<T>>();
    let slice = rt.alloc_slice::<T>(N)?;
    let name = std::any::type_name::<T>();

    doing(format!("elements of {name}"));
    // Single elements, in both directions.
    for i in 0..N {
        slice.p(i, value(me, i), peer)?;
    }
    rt.barrier_all()?;
    assert_eq!(slice.to_vec()?, all(source), "PE {me}: p of {name}");
    for i in 0..N {
        assert_eq!(slice.g(i, peer)?, value(me, i), "PE {me}: g of {name} at {i}");
    }
    rt.barrier_all()?;

    // Slices.
    slice.fill(T::default())?;
    rt.barrier_all()?;
    slice.put(3, &all(me)[..5], peer)?;
    rt.barrier_all()?;
    let mut expected = vec![T::default(); N];
    expected[3..8].copy_from_slice(&all(source)[..5]);
    assert_eq!(slice.to_vec()?, expected, "PE {me}: put of {name}");
    let mut got = vec![T::default(); 5];
    slice.get(3, &mut got, peer)?;
    assert_eq!(got, &all(me)[..5], "PE {me}: get of {name}");
    rt.barrier_all()?;

    // Strided: with one API in one direction, with the other in the other.
    for raw in [false, true] {
        slice.fill(T::default())?;
        rt.barrier_all()?;
        let (mine, shape) = (all(me), Strided { dest_stride: 3, source_stride: 2, size: size_of::<T>(), count: 11 });
        if raw {
            let dest = slice.as_ptr().wrapping_add(1).cast();
            // SAFETY: the source has 40 elements, and the 21st is the last one read.
            unsafe { rt.iput(dest, mine.as_ptr().cast(), shape, peer) }?;
        } else {
            slice.iput(1, 3, &mine, 2, 11, peer)?;
        }
        rt.barrier_all()?;
        let mut expected = vec![T::default(); N];
        for i in 0..11 {
            expected[1 + 3 * i] = value(source, 2 * i);
        }
        assert_eq!(slice.to_vec()?, expected, "PE {me}: iput of {name}");
        let mut got = vec![T::default(); N];
        if raw {
            let (from, shape) =
                (slice.as_ptr().wrapping_add(1).cast(), Strided { dest_stride: 2, source_stride: 3, ..shape });
            // SAFETY: the destination has 40 elements, and the 21st is the last one written.
            unsafe { rt.iget(got.as_mut_ptr().cast(), from, shape, peer) }?;
        } else {
            slice.iget(1, 3, &mut got, 2, 11, peer)?;
        }
        for (i, &g) in got.iter().enumerate() {
            let expected = if i % 2 == 0 && i < 22 { value(me, i) } else { T::default() };
            assert_eq!(g, expected, "PE {me}: iget of {name} at {i}");
        }
        rt.barrier_all()?;
    }
    slice.free()
}
