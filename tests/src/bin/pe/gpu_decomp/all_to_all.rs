//! All-to-alls of blocks of any size and none: two plans at once, and in graphs.

use symrail::Result;
use symrail::kernels::cuda::Stream;
use symrail_decomp::cuda::GpuMemory;
use symrail_decomp::{Error, GpuAllToAll, Mode, Span};

use super::{ARRAY, TIME_LIMIT, World, good};

/// Words from one PE to another: none for some pairs.
fn count(from: usize, to: usize) -> usize {
    if (from + to).is_multiple_of(3) { 0 } else { from * 40 + to * 3000 + 1 }
}

/// Spans with gaps between them.
fn spans(counts: impl Iterator<Item = usize>) -> Vec<Span> {
    let place = |end: &mut usize, count| {
        let span = Span { offset: *end, count };
        *end += count + 2;
        Some(span)
    };
    counts.scan(0, place).collect()
}

/// A word that encodes its source, its destination, its index and its round.
fn word(from: usize, to: usize, i: usize, round: u64) -> u64 {
    round << 48 | (from << 40 | to << 32 | i) as u64
}

/// A plan, its stream, and its arrays.
struct One {
    it: GpuAllToAll,
    stream: Stream,
    input: GpuMemory,
    output: GpuMemory,
}

impl One {
    fn post(&mut self) -> Result<(), Error> {
        // SAFETY: the buffers stay.
        unsafe { self.it.plan.post(&self.stream, self.input, self.output, &mut self.it.work) }
    }
}

impl World<'_> {
    pub fn all_to_alls(&self) -> Result<String> {
        let (team, me, n) = (self.rt.team_world()?, self.rt.my_pe() as usize, self.rt.n_pes() as usize);
        let (sends, receives) = (spans((0..n).map(|to| count(me, to))), spans((0..n).map(|from| count(from, me))));
        let make = |k: usize| {
            let mode =
                [Mode { engines: Some(20_000), ..Mode::default() }, Mode { direct: false, ..Mode::default() }][k];
            let it = good(GpuAllToAll::on_gpu(self.kernels, self.heap, &team, 8, mode, &sends, &receives));
            // The input of one plan and the output of the other are symmetric.
            let memory = |which: usize, bytes: usize| {
                let base = self.memory(which, which == k, ARRAY / 2);
                GpuMemory { at: base.at + (k * (ARRAY / 2)) as u64, bytes }
            };
            let (input, output) = (memory(0, it.plan.input_bytes()), memory(1, it.plan.output_bytes()));
            One { it, stream: good(Stream::new(self.gpu)), input, output }
        };
        let mut plans = [make(0), make(1)];
        let mut graphs = Vec::new();
        for round in 0..40u64 {
            for (k, plan) in plans.iter().enumerate() {
                let mut words = vec![0u64; plan.input.bytes / 8];
                for (to, span) in sends.iter().enumerate() {
                    (0..span.count).for_each(|i| words[span.offset + i] = word(me, to, i, round + 100 * k as u64));
                }
                self.write(plan.input, &words.iter().flat_map(|word| word.to_ne_bytes()).collect::<Vec<u8>>());
                self.write(plan.output, &vec![0xEE; plan.output.bytes]);
            }
            // PEs post in different orders.
            let order = if (me as u64 + round).is_multiple_of(2) { [0, 1] } else { [1, 0] };
            for k in order {
                match graphs.get(k) {
                    // SAFETY: as when it was captured.
                    Some(graph) => good(unsafe { plans[k].stream.replay(graph) }),
                    None => good(plans[k].post()),
                }
            }
            for (k, plan) in plans.iter().enumerate() {
                good(plan.stream.wait(TIME_LIMIT));
                good(plan.it.plan.check());
                let mut bytes = vec![0; plan.output.bytes];
                self.read(plan.output, &mut bytes);
                let found: Vec<u64> =
                    bytes.chunks_exact(8).map(|word| u64::from_ne_bytes(word.try_into().unwrap())).collect();
                let mut expected = vec![u64::from_ne_bytes([0xEE; 8]); found.len()];
                for (from, span) in receives.iter().enumerate() {
                    (0..span.count).for_each(|i| expected[span.offset + i] = word(from, me, i, round + 100 * k as u64));
                }
                assert!(found == expected, "plan {k}, round {round}");
            }
            if round == 3 {
                let capture = |plan: &mut One| {
                    // SAFETY: the stream stays as long as this.
                    let stream = unsafe { Stream::of_others(self.gpu, plan.stream.raw()) };
                    good(stream.capture::<Error>(|| plan.post()))
                };
                graphs = plans.iter_mut().map(capture).collect();
            }
        }
        drop(graphs);
        plans.into_iter().for_each(|plan| good(plan.it.give_up_gpu(&team)));
        Ok("40 rounds of two plans, most of them replayed".into())
    }
}
