//! A block of numbers goes round the ring of PEs, put by device threads; every PE adds one to each number on its way.
//!
//! `symrail run -n 2 -- target/release/examples/device_ring`: CPU threads are the device.
//! `SYMRAIL_HEAP_KIND=device symrail run -n 2 -- target/release/examples/device_ring gpu`: a kernel of each PE's GPU,
//! `device_ring.cu`, compiled by NVRTC.

use std::time::Duration;

use symrail::kernels::cpu::{DeviceError, Grid};
use symrail::kernels::cuda::compile::Nvrtc;
use symrail::kernels::cuda::{Program, Shape, Stream};
use symrail::{Cmp, Runtime, SignalUpdate, SymSlice};

type Failure = Box<dyn std::error::Error>;

const NUMBERS: usize = 1000;

/// The arrays that the kernels use.
struct Ring {
    inbox: SymSlice<f64>,
    outbox: SymSlice<f64>,
    arrived: SymSlice<u64>,
    laps: u64,
    next: u32,
}

fn main() -> Result<(), Failure> {
    let on_gpu = std::env::args().nth(1).is_some_and(|device| device == "gpu");
    let rt = Runtime::init()?;
    let (me, n_pes) = (rt.my_pe(), rt.n_pes());
    let ring = Ring {
        inbox: rt.alloc_slice(NUMBERS)?,
        outbox: rt.alloc_slice(NUMBERS)?,
        arrived: rt.alloc_slice(1)?,
        laps: n_pes.into(),
        next: (me + 1) % n_pes,
    };
    let number = |i: usize| f64::from(me) * 1e4 + i as f64;
    for i in 0..NUMBERS {
        ring.outbox.write(i, number(i))?;
    }
    rt.barrier_all()?;
    if on_gpu { on_a_gpu(&rt, &ring) } else { on_cpu_threads(&rt, &ring) }?;
    // After as many laps as there are PEs the block is back, and every PE has added one.
    for i in 0..NUMBERS {
        let (got, wanted) = (ring.outbox.read(i)?, number(i) + f64::from(n_pes));
        if got != wanted {
            return Err(format!("PE {me}: number {i} is {got}, not {wanted}").into());
        }
    }
    rt.barrier_all()?;
    if me == 0 {
        let device = if on_gpu { "kernels on GPUs" } else { "CPU threads" };
        println!("device ring: {NUMBERS} numbers round {n_pes} PEs by {device}");
    }
    Ok(rt.finalize()?)
}

/// `device_ring.cu` on this PE's GPU.
fn on_a_gpu(rt: &Runtime, ring: &Ring) -> Result<(), Failure> {
    let gpu = rt.own_gpu()?;
    let device = rt.gpu_device(&gpu)?; // collective
    let program = Program::new("device_ring.cu", include_str!("device_ring.cu"));
    let module = device.load(&Nvrtc::find()?, &program)?;
    let (kernel, stream) = (module.kernel("ring")?, Stream::new(&gpu)?);
    let [inbox, outbox] = [&ring.inbox, &ring.outbox].map(|slice| device.address(slice.as_ptr().cast()));
    let arrived = device.address(ring.arrived.as_ptr().cast());
    let arguments = [inbox, outbox, arrived, NUMBERS as u64, ring.laps, ring.next.into()];
    rt.barrier_all()?;
    // SAFETY: the arguments that the kernel declares; the slices live until it has ended.
    unsafe { stream.launch(&kernel, Shape { blocks: 1, threads: 256 }, &arguments) }?;
    stream.wait(Duration::from_secs(60))?;
    device.state().check()?; // reports errors of device code and its proxy
    rt.barrier_all()?;
    Ok(device.close()?)
}

/// The kernel as CPU threads run it.
fn on_cpu_threads(rt: &Runtime, ring: &Ring) -> Result<(), Failure> {
    let device = rt.cpu_device()?;
    let (inbox, outbox) = (device.symmetric::<_, f64>(&ring.inbox)?, device.symmetric::<_, f64>(&ring.outbox)?);
    let arrived = device.symmetric::<_, u64>(&ring.arrived)?;
    let grid = Grid { blocks: 1, threads_per_block: 4 };
    let kernel = |thread: &symrail::kernels::cpu::Thread<'_>| -> Result<(), DeviceError> {
        for lap in 1..=ring.laps {
            if thread.thread_in_block() == 0 {
                thread.put_signal(inbox, outbox, SignalUpdate::set(arrived, lap), ring.next)?;
                thread.signal_wait_until(arrived, Cmp::Ge, lap)?;
            }
            thread.sync_block()?;
            for i in (thread.thread_in_block()..NUMBERS).step_by(grid.threads_per_block) {
                let mut number = [0.0];
                thread.load_local(&mut number, inbox.at(i as u64)?)?;
                thread.store_local(outbox.at(i as u64)?, &[number[0] + 1.0])?;
            }
            thread.sync_block()?;
            if thread.thread_in_block() == 0 {
                thread.barrier_all()?;
            }
            thread.sync_block()?;
        }
        Ok(())
    };
    device.launch(grid, kernel)?;
    Ok(())
}
