//! Plans are used and dropped in any order, with and without `finalize`: none harms, and after `finalize` each refuses
//! by name. The runtime's own handles are in `shmem/tests/handles.rs`.
#![allow(clippy::unwrap_used, clippy::panic, clippy::unit_arg)]

use std::error::Error;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use symrail::bootstrap::single::Single;
use symrail::{Runtime, Settings, TeamHeap};
use symrail_collectives::{Buffer, Communicator, DataType, ReduceOp};
use symrail_decomp::{Axis, Decomposition, Grid as Extents, Transpose};
use symrail_ep::low_latency::Shape;
use symrail_ep::{LowLatency, TopK, WaitLimit};
use symrail_overlap::{Layout, Products, Weight};

const SEEDS: u64 = 24;

/// A call of a handle, which the closure owns.
type Call = Box<dyn FnMut() -> Result<(), Box<dyn Error>>>;

fn alone() -> Runtime {
    let mut settings = Settings::default();
    settings.heap_size = 32 << 20;
    Runtime::join(settings, Box::new(Single::default())).unwrap()
}

/// Plans of all kinds that need no GPU, and what they are made from, each with a call that `finalize` forbids.
fn handles(rt: &Runtime) -> Result<Vec<(&'static str, Call)>, Box<dyn Error>> {
    let world = rt.team_world()?;
    let team = world.split(Some(world.group()))?.unwrap();
    let heap = TeamHeap::new(rt, 8 << 20)?;
    let block = heap.take_words(&team, 64)?;
    let (mut communicator, memory) = (Communicator::of_team(&team, &heap)?, rt.alloc_slice::<u64>(1024)?);
    let (mut products, of_products) = (Products::new(&heap, None), rt.team_world()?);
    let array = Decomposition::new(&heap, team.clone(), Extents::new([4, 4, 4], [1, 1]))?;
    let mut plan = array.transpose(&Transpose::new((Axis::ALL[0], Axis::ALL[1]), 8))?;
    let mut work = array.workspace(plan.workspace_bytes())?;
    let shape = Shape { most_tokens: 4, token: 64, scales: 0, experts: 2, k: 1 };
    let mut buffers = LowLatency::new(rt, shape, WaitLimit::of(rt))?;
    let last = rt.clone();
    Ok(vec![
        ("runtime", Box::new(move || Ok(last.barrier_all()?))),
        ("team", Box::new(move || Ok(team.barrier()?))),
        ("heap", Box::new(move || Ok(heap.runtime().sync_all()?))),
        ("block", Box::new(move || if block.bytes >= 64 { Ok(()) } else { Err("too short".into()) })),
        (
            "communicator",
            Box::new(move || {
                let all = Buffer::of(&memory)?;
                Ok(communicator.all_reduce(all, all, DataType::Uint64, ReduceOp::Sum)?)
            }),
        ),
        (
            "products",
            Box::new(move || {
                let weight = Weight::new(&[1.0; 4], Layout::ByInputs, 2, 2);
                assert_eq!(products.all_gather_matmul(&of_products, &[1.0; 4], 2, &weight, false)?.product, [2.0; 4]);
                Ok(())
            }),
        ),
        (
            "plan",
            Box::new(move || {
                let (mut from, mut to) = (vec![1u64; 64], vec![0u64; 64]);
                plan.run(&mut from, &mut to, &mut work)?;
                assert_eq!(from, to);
                Ok(())
            }),
        ),
        ("array", Box::new(move || Ok(drop(array.workspace(64)?)))),
        (
            "buffers",
            Box::new(move || {
                let rows = symrail_ep::Rows::new(&[7; 64], 64)?;
                let sent = buffers.send_dispatch(rows, None, TopK::new(&[0], 1)?)?;
                Ok(drop(buffers.receive_dispatch(&sent)?))
            }),
        ),
    ])
}

/// What needs no job: the block is memory.
const LOCAL: [&str; 1] = ["block"];

#[test]
fn plans_dropped_in_any_order() {
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
