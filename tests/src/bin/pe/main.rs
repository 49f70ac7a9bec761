//! The PEs' programs of the tests: `pe PROGRAM ARGUMENT…`. One binary, so that its crates are linked once.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod apart;
mod barriers;
mod blocks;
mod calls;
mod collective_lost;
mod collectives;
mod decomp;
mod ep;
mod ep_lost;
mod ep_slots;
mod fault;
mod flap;
mod gpu_collectives;
mod gpu_decomp;
mod gpu_ep_lost;
mod gpu_overlap;
mod hammer;
mod heap;
mod lost;
mod ops;
mod order;
mod overlap;
mod overlap_lost;
mod plan;
mod quiet;
mod rejoin;
mod scale;
mod several;
mod soak;
mod stranger;
mod threads;
mod urgent;

fn main() -> std::process::ExitCode {
    let program = std::env::args().nth(1).unwrap_or_default();
    match program.as_str() {
        "apart" => apart::main(),
        "barriers" => barriers::main(),
        "blocks" => blocks::main(),
        "calls" => calls::main(),
        "collective_lost" => collective_lost::main(),
        "collectives" => collectives::main(),
        "decomp" => decomp::main(),
        "ep" => ep::main(),
        "ep_lost" => ep_lost::main(),
        "ep_slots" => ep_slots::main(),
        "fault" => fault::main(),
        "flap" => flap::main(),
        "gpu_collectives" => gpu_collectives::main(),
        "gpu_decomp" => gpu_decomp::main(),
        "gpu_ep_lost" => gpu_ep_lost::main(),
        "gpu_overlap" => gpu_overlap::main(),
        "hammer" => hammer::main(),
        "heap" => heap::main(),
        "lost" => lost::main(),
        "ops" => ops::main(),
        "order" => order::main(),
        "overlap" => overlap::main(),
        "overlap_lost" => overlap_lost::main(),
        "plan" => plan::main(),
        "quiet" => quiet::main(),
        "rejoin" => rejoin::main(),
        "scale" => scale::main(),
        "several" => several::main(),
        "soak" => soak::main(),
        "stranger" => stranger::main(),
        "threads" => threads::main(),
        "urgent" => urgent::main(),
        _ => {
            eprintln!("pe: no program is named {program:?}");
            std::process::ExitCode::from(2)
        }
    }
}
