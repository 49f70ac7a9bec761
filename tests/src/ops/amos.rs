//! AMOs: every operation on every type, compared with a model.

use symrail::{AmoInteger, AmoOp, AmoValue, Result, Runtime, SymSlice, Symmetric};
use symrail_core::VariantArray;

use super::Plan;
use crate::pattern::{Value, mix};
use crate::pe::{before, doing, neighbour};

/// All types and operations.
///
/// # Errors
/// Those of the operations.
pub fn all(rt: &Runtime, plan: &Plan) -> Result<()> {
    integer::<u32>(rt, plan)?;
    integer::<i64>(rt, plan)?;
    float::<f64>(rt)?;
    if plan.thorough {
        integer::<i32>(rt, plan)?;
        integer::<u64>(rt, plan)?;
        float::<f32>(rt)?;
    }
    Ok(())
}

/// The result of an operation on a word of `size` bytes.
fn model(op: AmoOp, old: u64, operand: u64, compare: u64, size: usize) -> u64 {
    let new = match op {
        AmoOp::Fetch => old,
        AmoOp::Set => operand,
        AmoOp::Add => old.wrapping_add(operand),
        AmoOp::And => old & operand,
        AmoOp::Or => old | operand,
        AmoOp::Xor => old ^ operand,
        AmoOp::CompareSwap if old == compare => operand,
        AmoOp::CompareSwap => old,
    };
    if size == 4 { new & u64::from(u32::MAX) } else { new }
}

/// The way in which the old value is returned.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Old {
    Dropped,
    Returned,
    Stored,
}

fn integer<T: Value + AmoInteger>(rt: &Runtime, plan: &Plan) -> Result<()> {
    let (me, size) = (rt.my_pe(), size_of::<T>());
    // One word for each PE that changes it, between guards.
    let words = rt.alloc_slice::<T>(2 * rt.n_pes() as usize + 1)?;
    let results = rt.alloc_slice::<T>(1)?;
    let slot = 2 * me as usize + 1;
    let operations = AmoOp::VARIANTS.iter().copied();
    let rounds = if plan.thorough { 3 } else { 1 };
    let distances = if plan.thorough { 0..rt.n_pes() } else { 1..rt.n_pes().min(2) };
    for distance in distances {
        let peer = neighbour(rt, distance);
        let word = words.as_ptr().wrapping_add(slot);
        let mut now = 0;
        for (step, op) in operations.clone().cycle().take(rounds * AmoOp::VARIANTS.len()).enumerate() {
            for (way, old) in [Old::Dropped, Old::Returned, Old::Stored].into_iter().enumerate() {
                let operand = T::of(mix(u64::from(me) + 1, (step * 3 + way) as u64)).bits();
                // Every second compare-swap finds the value that it expects.
                let compare = if step % 2 == 0 { now } else { now ^ 1 };
                let what = format!("PE {me}: {op:?} on {} of PE {peer}, {old:?}", std::any::type_name::<T>());
                doing(what.clone());
                match old {
                    Old::Dropped => rt.amo(word.cast(), T::TYPE, op, operand, compare, peer)?,
                    Old::Returned => {
                        let got = rt.fetch_amo(word.cast(), T::TYPE, op, operand, compare, peer)?;
                        assert_eq!(got, now, "{what}");
                    }
                    Old::Stored => {
                        let to = results.as_ptr().cast();
                        // SAFETY: the result is in this PE's heap, and not accessed until the quiet.
                        unsafe { rt.fetch_amo_nbi(to, word.cast(), T::TYPE, op, operand, compare, peer) }?;
                        rt.quiet()?;
                        assert_eq!(results.read(0)?.bits(), now, "{what}");
                    }
                }
                now = model(op, now, operand, compare, size);
                rt.quiet()?;
                assert_eq!(words.atomic_fetch(slot, peer)?.bits(), now, "{what}: the new value");
            }
        }
        typed(rt, &words, slot, peer)?;
        // Checked from the other side, with the words between.
        let last = T::of(u64::from(me) + 1000);
        words.atomic_set(slot, last, peer)?;
        rt.barrier_all()?;
        let source = before(rt, distance);
        let seen = words.to_vec()?;
        assert_eq!(seen[2 * source as usize + 1], T::of(u64::from(source) + 1000), "PE {me}: from PE {source}");
        assert!(seen.iter().step_by(2).all(|&guard| guard == T::default()), "PE {me}: neighbours were touched");
        rt.barrier_all()?;
        words.fill(T::default())?;
        rt.barrier_all()?;
    }
    results.free()?;
    words.free()
}

/// The typed names perform their operations.
fn typed<T: Value + AmoInteger>(rt: &Runtime, words: &SymSlice<T>, at: usize, pe: u32) -> Result<()> {
    let is = |expected: u64, what: &str| -> Result<()> {
        rt.quiet()?;
        assert_eq!(words.atomic_fetch(at, pe)?, T::of(expected), "{what}");
        Ok(())
    };
    words.atomic_set(at, T::of(12), pe)?;
    is(12, "set")?;
    assert_eq!(words.atomic_swap(at, T::of(40), pe)?, T::of(12));
    words.atomic_inc(at, pe)?;
    is(41, "inc")?;
    assert_eq!(words.atomic_fetch_inc(at, pe)?, T::of(41));
    words.atomic_add(at, T::of(8), pe)?;
    assert_eq!(words.atomic_fetch_add(at, T::of(5), pe)?, T::of(50));
    assert_eq!(rt.fetch_add(words.as_ptr().wrapping_add(at), T::of(1), pe)?, T::of(55));
    is(56, "add")?;
    words.atomic_and(at, T::of(0b110_000), pe)?;
    is(48, "and")?;
    words.atomic_or(at, T::of(3), pe)?;
    is(51, "or")?;
    words.atomic_xor(at, T::of(1), pe)?;
    is(50, "xor")?;
    assert_eq!(words.atomic_fetch_and(at, T::of(0b100_011), pe)?, T::of(50));
    assert_eq!(words.atomic_fetch_or(at, T::of(1), pe)?, T::of(34));
    assert_eq!(words.atomic_fetch_xor(at, T::of(32), pe)?, T::of(35));
    assert_eq!(words.atomic_compare_swap(at, T::of(4), T::of(9), pe)?, T::of(3));
    assert_eq!(words.atomic_compare_swap(at, T::of(3), T::of(9), pe)?, T::of(3));
    is(9, "compare_swap")
}

fn float<T: Symmetric + AmoValue + PartialEq + std::fmt::Debug + From<f32>>(rt: &Runtime) -> Result<()> {
    let (me, peer, source) = (rt.my_pe(), neighbour(rt, 1), before(rt, 1));
    let words = rt.alloc_slice::<T>(rt.n_pes() as usize)?;
    let at = me as usize;
    words.atomic_set(at, 1.5.into(), peer)?;
    rt.quiet()?;
    assert_eq!(words.atomic_fetch(at, peer)?, 1.5.into());
    assert_eq!(words.atomic_fetch_add(at, 2.25.into(), peer)?, 1.5.into());
    words.atomic_add(at, 0.25.into(), peer)?;
    rt.quiet()?;
    assert_eq!(words.atomic_swap(at, (me as f32).into(), peer)?, 4.0.into());
    rt.barrier_all()?;
    assert_eq!(words.read(source as usize)?, (source as f32).into());
    for &op in AmoOp::VARIANTS.iter().filter(|op| !op.defined_on(T::TYPE)) {
        for pe in 0..rt.n_pes() {
            let refused = rt.fetch_amo(words.as_ptr().cast(), T::TYPE, op, 1, 0, pe).map(drop);
            let refused = [refused, rt.amo(words.as_ptr().cast(), T::TYPE, op, 1, 0, pe)];
            for result in refused {
                let error = result.expect_err("bits of floats").to_string();
                assert!(error.contains(&format!("{op:?} on {:?}", T::TYPE)), "{error}");
            }
        }
    }
    rt.barrier_all()?;
    words.free()
}
