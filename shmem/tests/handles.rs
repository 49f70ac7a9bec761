//! Handles are used and dropped in any order, with and without `finalize`: none harms, and after `finalize` each
//! refuses by name. Plans are in `tests/tests/handles.rs`.
#![allow(clippy::unwrap_used, clippy::panic, clippy::unit_arg)]

use std::error::Error;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use symrail::bootstrap::single::Single;
use symrail::kernels::cpu::Grid;
use symrail::{ActiveSets, Runtime, Settings, TeamHeap};

const SEEDS: u64 = 24;

/// A call of a handle, which the closure owns.
type Call = Box<dyn FnMut() -> Result<(), Box<dyn Error>>>;

fn alone() -> Runtime {
    let mut settings = Settings::default();
    settings.heap_size = 32 << 20;
    Runtime::join(settings, Box::new(Single::default())).unwrap()
}

/// All kinds of handles that need no GPU, each with a call that `finalize` forbids.
fn handles(rt: &Runtime) -> Result<Vec<(&'static str, Call)>, Box<dyn Error>> {
    let world = rt.team_world()?;
    let team = world.split(Some(world.group()))?.unwrap();
    let heap = TeamHeap::new(rt, 8 << 20)?;
    let block = heap.take_words(&team, 64)?;
    let (slice, words) = (rt.alloc_slice::<u64>(8)?, rt.alloc_slice::<u64>(4)?);
    let (context, device, sets) = (rt.create_context()?, rt.cpu_device()?, ActiveSets::new(&world, false)?);
    let (group, last, made_later) = (world.group(), rt.clone(), rt.clone());
    let pair = (rt.alloc_slice::<u64>(1)?, rt.create_context()?);
    let signal = rt.alloc_slice::<u64>(1)?;
    let sent = slice.put_signal_tracked(0, &slice, 1, 1, symrail::SignalUpdate::set((&signal, 0), 1), 0)?;
    let mut sent = Some(sent);
    let alone = Grid { blocks: 1, threads_per_block: 1 };
    Ok(vec![
        ("runtime", Box::new(move || Ok(last.barrier_all()?))),
        ("a slice that is made", Box::new(move || Ok(drop(made_later.alloc_slice::<u8>(1)?)))),
        ("slice", Box::new(move || Ok(slice.p(0, 1, 0)?))),
        ("view", Box::new(move || Ok(pair.0.on(&pair.1)?.p(0, 1, 0)?))),
        ("world", Box::new(move || Ok(world.sync()?))),
        ("team", Box::new(move || Ok(team.barrier()?))),
        ("heap", Box::new(move || Ok(heap.runtime().sync_all()?))),
        ("block", Box::new(move || if block.bytes >= 64 { Ok(()) } else { Err("too short".into()) })),
        ("context", Box::new(move || Ok(context.quiet()?))),
        (
            "CPU device",
            Box::new(move || {
                device.launch(alone, |thread| Ok::<_, symrail::kernels::cpu::DeviceError>(thread.my_pe()))?;
                Ok(())
            }),
        ),
        (
            "active sets",
            // SAFETY: words of the heap, all 0, which nothing else uses.
            Box::new(move || Ok(unsafe { sets.set(group, words.as_ptr()) }?.barrier()?)),
        ),
        ("delivery", Box::new(move || Ok(sent.take().map_or(Ok(()), symrail::Delivery::wait)?))),
    ])
}

/// What a call on a handle may do without a job: the block is memory, the device's threads reach nobody here, and this
/// delivery was complete when it was made.
const LOCAL: [&str; 3] = ["block", "CPU device", "delivery"];

#[test]
fn handles_dropped_in_any_order() {
    for seed in 0..SEEDS {
        let mut random = StdRng::seed_from_u64(seed);
        let runtime = alone();
        let mut all = handles(&runtime).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        let mut finalizing = Some(runtime);
        // A third of the jobs end without it.
        let after = random.random_range(0..all.len() * 3 / 2);
        let mut steps = 0;
        while let Some(last) = all.len().checked_sub(1) {
            if steps == after
                && let Some(runtime) = finalizing.take()
            {
                let other = runtime.clone();
                runtime.finalize().unwrap_or_else(|error| panic!("seed {seed}: {error}"));
                assert!(matches!(other.finalize(), Err(symrail::Error::Finalized { pe: 0 })), "seed {seed}");
            }
            steps += 1;
            let at = random.random_range(0..=last);
            let (name, call) = &mut all[at];
            match (call(), finalizing.is_some() || LOCAL.contains(name)) {
                (Ok(()), true) => {}
                (Err(error), false) if error.to_string().contains("has left the job") => {}
                (result, joined) => panic!("seed {seed}: {name}, {joined}: {result:?}"),
            }
            drop(all.swap_remove(at));
        }
    }
}

#[test]
fn freeing_what_is_in_use_is_refused() {
    let rt = alone();
    let world = rt.team_world().unwrap();
    let in_use = |result: symrail::Result<()>| matches!(result, Err(symrail::Error::InUse { handles: 1, .. }));
    let heap = TeamHeap::new(&rt, 1 << 20).unwrap();
    let block = heap.take(&world, 64).unwrap();
    assert!(matches!(heap.clone().free(), Err(symrail::Error::InUse { handles: 2, .. })), "the heap and its block");
    drop(block);
    heap.free().unwrap();
    let team = world.split(Some(world.group())).unwrap().unwrap();
    let other = team.clone();
    assert!(in_use(team.destroy()));
    other.sync().unwrap();
    other.destroy().unwrap();
    rt.finalize().unwrap();
}
