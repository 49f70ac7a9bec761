//! Two ranks on GPUs continue low latency by kernels after the third was killed between rounds: within their time limit
//! they get an error with its name and mask it, or with the argument `mask` the GPU does, and they run 300 verified
//! rounds. Nobody else on the device gets that error.
//!
//! Started without a launcher, which would end the job: PE 0 starts the others. Each survivor prints `PE N is through`.
use std::process::ExitCode;
use std::time::Duration;

use half::bf16;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use symrail::Runtime;
use symrail::bootstrap::uid;
use symrail::kernels::cuda::Stream;
use symrail::kernels::cuda::compile::Nvrtc;
use symrail_ep::cuda::{
    DeviceHighThroughput, DeviceLowLatency, DeviceReceived, DeviceReturns, DeviceRows, DeviceShape,
    HighThroughputShape, LowLatencyTokens,
};
use symrail_ep::{Error, WaitLimit};
use symrail_tests::pe;
use symrail_tests::unlaunched::{self, Other};

const RANKS: u32 = 3;
const LOST: u32 = RANKS - 1;
const ROUNDS: u64 = 300;
const DIES_IN: u64 = 5;
const TOKENS: usize = 6;
const K: usize = 4;
const SHAPE: DeviceShape = DeviceShape { most_tokens: TOKENS, hidden: 64, experts: 2 * RANKS as usize, k: K };
const MANY: HighThroughputShape =
    HighThroughputShape { most_tokens: 4, room: 12, row: 64, scales: 0, experts: RANKS as usize, k: 1 };
const LIMIT: Duration = Duration::from_secs(60);

pub fn main() -> ExitCode {
    let by_gpu = pe::arg(0, "name".to_owned()) == "mask";
    let (id, me) = unlaunched::started().unwrap_or_else(|| (uid::create(None).unwrap(), 0));
    let others: Vec<_> = match me {
        0 => (1..RANKS).map(|pe| Other::start(unlaunched::this_program(), id, pe, RANKS)).collect(),
        _ => Vec::new(),
    };
    let rt = unlaunched::join(id, me, RANKS);
    rounds(&rt, by_gpu);
    println!("PE {me} is through");
    Other::end_well(others.into_iter().take(LOST as usize - 1));
    // Leaving together is impossible now.
    std::process::exit(0);
}

/// The slots of a rank's tokens in a round.
fn slots(rank: u32, round: u64) -> Vec<i64> {
    (0..(TOKENS * K) as i64).map(|i| (i * 5 + i64::from(rank) + round as i64) % SHAPE.experts as i64).collect()
}

fn bytes_of<const N: usize>(words: impl Iterator<Item = [u8; N]>) -> Vec<u8> {
    words.flatten().collect()
}

fn rounds(rt: &Runtime, by_gpu: bool) {
    let me = rt.my_pe();
    let gpu = rt.own_gpu().unwrap();
    gpu.bind().unwrap();
    let device = rt.gpu_device(&gpu).unwrap();
    let (nvrtc, limit) = (Nvrtc::find().unwrap(), WaitLimit::of(rt));
    let buffers = DeviceLowLatency::new(&device, &nvrtc, SHAPE, limit).unwrap();
    let many = DeviceHighThroughput::new(&device, &nvrtc, MANY, 1, limit).unwrap();
    buffers.mask_late(by_gpu).unwrap();
    let stream = Stream::new(&gpu).unwrap();
    let (row, rows) = (2 * SHAPE.hidden, 2 * RANKS as usize * TOKENS);
    let [x, topk, weights, out, found, ranges, counts, sources, number] =
        [TOKENS * row, TOKENS * K * 8, TOKENS * K * 4, TOKENS * row, rows * row, 16 * RANKS as usize, 16, rows * 4, 8]
            .map(|bytes| gpu.alloc(bytes).unwrap());
    let addresses = [&found, &ranges, &counts, &sources, &number].map(|buffer| buffer.at().get());
    let [rows, ranges, counts, sources, number] = addresses;
    let received = DeviceReceived { rows, ranges, counts, sources, number, ..DeviceReceived::default() };
    let mut is_lost = false;
    for round in 0..ROUNDS + DIES_IN {
        if me == LOST && round == DIES_IN {
            kill(Pid::this(), Signal::SIGKILL).unwrap();
        }
        let value = |i: usize| (i / SHAPE.hidden + 10 * me as usize + round as usize % 32) as f32;
        let slots = slots(me, round);
        x.write(0, &bytes_of((0..TOKENS * SHAPE.hidden).map(|i| bf16::from_f32(value(i)).to_ne_bytes()))).unwrap();
        topk.write(0, &bytes_of(slots.iter().map(|slot| slot.to_ne_bytes()))).unwrap();
        weights.write(0, &bytes_of(slots.iter().map(|_| 0.5f32.to_ne_bytes()))).unwrap();
        let (x_at, topk_at, weights_at) = (x.at().get(), topk.at().get(), weights.at().get());
        // SAFETY: memory of this function, which outlives the stream's work. Experts return rows unchanged.
        unsafe {
            let sent = LowLatencyTokens { rows: DeviceRows::Bf16, x: x_at, topk: topk_at, tokens: TOKENS };
            buffers.send_dispatch(&stream, &sent).unwrap();
            buffers.receive_dispatch(&stream, &received).unwrap();
            buffers.send_combine(&stream, [received.rows, weights_at, number], TOKENS, DeviceReturns::Plain).unwrap();
            let to = [topk_at, out.at().get(), 0];
            buffers.receive_combine(&stream, TOKENS, to, DeviceReturns::Plain).unwrap();
        }
        stream.wait(LIMIT).unwrap();
        // These are asked first, and would take what concerns them. Requests to the dead rank would.
        let others = (device.state().check(), many.check());
        assert!(matches!(others, (Ok(()), Ok(()))) || !device.is_mapped(LOST), "PE {me}, round {round}: {others:?}");
        match buffers.check() {
            Ok(()) => is_lost |= round == DIES_IN && by_gpu,
            Err(Error::Round(symrail::rounds::Error::TimedOut { late: ranks, .. })) if !by_gpu && round == DIES_IN => {
                assert_eq!(ranks, [LOST], "PE {me}");
                buffers.mask(LOST, true).unwrap();
                is_lost = true;
            }
            Err(error) => panic!("PE {me}, round {round}: {error}"),
        }
        let masked: Vec<u32> = (0..RANKS).filter(|&rank| buffers.masked().unwrap()[rank as usize]).collect();
        assert_eq!(masked, if is_lost { &[LOST][..] } else { &[] }, "PE {me}, round {round}");
        assert!(is_lost == (round >= DIES_IN), "PE {me}, round {round}: nobody was late");
        let mut sums = vec![0; TOKENS * row];
        out.read(0, &mut sums).unwrap();
        let takes_part = |expert: &&i64| !is_lost || **expert / 2 != i64::from(LOST);
        for (i, sum) in sums.as_chunks::<2>().0.iter().enumerate() {
            let token = i / SHAPE.hidden;
            let many = slots[token * K..][..K].iter().filter(takes_part).count();
            let wanted = bf16::from_f32(value(i) * 0.5 * many as f32);
            assert_eq!(bf16::from_ne_bytes(*sum), wanted, "PE {me}, round {round}, element {i}");
        }
    }
}
