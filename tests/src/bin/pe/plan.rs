//! Runs an execution plan and checks its result: `pe plan PLAN BYTES…`, where the bytes are those of a part (see
//! `symrail_collectives::run::Call`). Each size is run several times. The result of an unnamed collective's plan is not
//! checked.
use symrail::{Result, Runtime};
use symrail_collectives::plan::{Check, Collective, Plan};
use symrail_collectives::{Accumulate, Buffer, Call, DataType, Prepared, ReduceOp};
use symrail_tests::collectives::{Data, difference, parts};
use symrail_tests::pe;

pub fn main() -> std::process::ExitCode {
    let path: String = pe::arg(0, String::new());
    let sizes: Vec<usize> = (1..).map_while(|i| pe::args().nth(i + 1)?.parse().ok()).collect();
    pe::run(|rt| {
        let plan = Plan::load(&path, Check::Ends).unwrap_or_else(|error| panic!("{error}"));
        run(rt, &plan, &sizes)
    })
}

fn run(rt: &Runtime, plan: &Plan, sizes: &[usize]) -> Result<()> {
    let (me, n) = (rt.my_pe() as usize, rt.n_pes() as usize);
    let collective = plan.collective();
    let (inputs, outputs) = parts(collective, n);
    let largest = sizes.iter().max().copied().unwrap_or(0);
    let mut prepared = Prepared::new(rt, plan, largest as u64).unwrap_or_else(|error| panic!("{error}"));
    // Misaligned by a byte, which must make no difference.
    let source = rt.alloc_slice::<u8>(inputs.max(outputs) * largest + 1)?;
    let dest = rt.alloc_slice::<u8>(outputs * largest + 1)?;
    for &part in sizes {
        for round in 0..4 {
            let ty = [DataType::Float32, DataType::Bfloat16, DataType::Int8, DataType::Uint64][round % 4];
            let part = part.next_multiple_of(ty.size());
            if part > largest {
                continue;
            }
            pe::doing(format!("{}: {part} bytes of {ty:?}, round {round}", plan.name()));
            let data = Data { ty, op: ReduceOp::Sum, n, round };
            let input = data.input(me, inputs * part / ty.size());
            let (whole, own) = (Buffer::of(&source).unwrap(), part * me);
            let buffer = |slice: Buffer, start: usize, len: usize| slice.part(1 + start as u64, len as u64).unwrap();
            let (from, to) = match (plan.in_place(), inputs.cmp(&outputs)) {
                (false, _) => (buffer(whole, 0, inputs * part), buffer(Buffer::of(&dest).unwrap(), 0, outputs * part)),
                (true, std::cmp::Ordering::Less) => (buffer(whole, own, part), buffer(whole, 0, outputs * part)),
                (true, std::cmp::Ordering::Equal) => (buffer(whole, 0, part * inputs), buffer(whole, 0, part * inputs)),
                (true, std::cmp::Ordering::Greater) => (buffer(whole, 0, inputs * part), buffer(whole, own, part)),
            };
            source.fill(0xee)?;
            dest.fill(0xee)?;
            let at = if plan.in_place() && inputs < outputs { own } else { 0 };
            source.write_slice(1 + at, &input)?;
            rt.barrier_all()?;
            let accumulate = Accumulate::F32;
            let call =
                Call { input: from, output: to, part: part as u64, data_type: ty, op: ReduceOp::Sum, accumulate };
            prepared.run(&call).unwrap_or_else(|error| panic!("PE {me}: {error}"));
            if !matches!(collective, Collective::Other(_)) {
                let mut found = vec![0; outputs * part];
                let (slice, at) = if plan.in_place() { (&source, 1) } else { (&dest, 1) };
                let at = if plan.in_place() && outputs < inputs { at + own } else { at };
                slice.read_slice(at, &mut found)?;
                if let Some(difference) = difference(&found, &data.output(collective, me, part / ty.size())) {
                    panic!("PE {me}, {}, {part} bytes of {ty:?}, round {round}: {difference}", plan.name());
                }
            }
            rt.barrier_all()?;
        }
    }
    if me == 0 {
        println!("{}: right", plan.name());
    }
    Ok(())
}
