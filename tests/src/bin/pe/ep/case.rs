//! The input of all ranks and the results of experts. Both come from seeds, so that each PE can compute those of all
//! PEs.

use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{Rng, RngExt, SeedableRng};
use symrail_ep::{DataType, Rows, TopK};

use super::named::Named;

/// One rank's input.
pub struct Input {
    pub indices: Vec<i64>,
    pub weights: Vec<f32>,
    pub rows: Vec<u8>,
    pub scales: Vec<u8>,
}

impl Input {
    pub fn tokens(&self, k: usize) -> usize {
        self.indices.len() / k
    }
}

/// How the slots of a token are chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Choice {
    Any,
    Distinct,
    /// About half of the slots are empty.
    Sparse,
    /// All slots of a token name the same expert, which each token chooses.
    Same,
    /// All slots of all tokens name the last expert.
    Last,
    Nobody,
}

const CHOICES: [Choice; 6] =
    [Choice::Any, Choice::Distinct, Choice::Sparse, Choice::Same, Choice::Last, Choice::Nobody];

pub struct Case {
    pub name: String,
    pub ranks: usize,
    pub share: usize,
    pub k: usize,
    pub hidden: usize,
    pub element: DataType,
    pub scale_bytes: usize,
    /// The inputs of all ranks.
    pub inputs: Vec<Input>,
    /// The group of each rank: one of two.
    pub group: Vec<bool>,
    pub most: usize,
    pub block_rows: usize,
}

impl Case {
    pub fn random(seed: u64, ranks: usize) -> Case {
        let rng = &mut StdRng::seed_from_u64(seed);
        let share = *[1, 2, 4, 8, 2048 / ranks].get(rng.random_range(0..9)).unwrap_or(&4);
        let k = rng.random_range(1..17);
        let hidden: usize = *[1, 24, 128, 200, 1000, 8192].get(rng.random_range(0..6)).unwrap_or(&64);
        let element = if rng.random() { DataType::Float32 } else { DataType::Bfloat16 };
        let scaled = rng.random();
        let most = *[1, 7, 40].get(rng.random_range(0..3)).unwrap_or(&40);
        // Cases with large rows have few tokens.
        let (share, most) = if hidden == 8192 { (share.min(8), most.min(7)) } else { (share, most) };
        let choice = CHOICES[rng.random_range(0..CHOICES.len())];
        let tokens = |rng: &mut StdRng, _| if rng.random_ratio(1, 5) { 0 } else { rng.random_range(1..most + 1) };
        let inputs = inputs(rng, (ranks, share * ranks, k), (hidden, element, scaled), tokens, choice);
        let group = (0..ranks).map(|rank| (seed >> (rank % 8)) & 1 == 1).collect();
        let (scale_bytes, block_rows) = (bytes_of_scales(hidden, scaled), rng.random_range(1..9));
        let name = format!("seed {seed}");
        Case { name, ranks, share, k, hidden, element, scale_bytes, inputs, group, most, block_rows }.described(choice)
    }

    /// The `number`th case of the table. It has the table's number of experts, rounded up to a multiple of the ranks.
    pub fn named(named: &Named, number: usize, ranks: usize) -> Case {
        let rng = &mut StdRng::seed_from_u64(number as u64);
        let &Named { what, experts, k, hidden, element, scaled, tokens, choice } = named;
        let share = experts.div_ceil(ranks).min(2048 / ranks);
        let inputs =
            inputs(rng, (ranks, share * ranks, k), (hidden, element, scaled), |_, rank| tokens.of(rank), choice);
        let most = tokens.most().max(1);
        // There are at least two groups.
        let mut group: Vec<bool> = (0..ranks).map(|_| rng.random()).collect();
        group[1 % ranks] = !group[0];
        let (name, scale_bytes) = (what.to_owned(), bytes_of_scales(hidden, scaled));
        Case { name, ranks, share, k, hidden, element, scale_bytes, inputs, group, most, block_rows: 3 }
            .described(choice)
    }

    fn described(self, choice: Choice) -> Case {
        let Case { name, ranks, share, k, hidden, element, scale_bytes, most, block_rows, .. } = &self;
        let name = format!(
            "{name}: {ranks} ranks with {share} experts, top-{k}, hidden {hidden} {element:?}, scales {scale_bytes}, \
             at most {most} tokens, {choice:?}, {block_rows} rows a block"
        );
        Case { name, ..self }
    }

    pub fn row(&self) -> usize {
        self.hidden * self.element.size()
    }

    pub fn topk<'a>(&self, input: &'a Input) -> TopK<'a> {
        TopK::new(&input.indices, self.k).unwrap()
    }

    /// Whether a token goes to a rank.
    pub fn goes(&self, input: &Input, token: usize, rank: usize) -> bool {
        self.topk(input).of(token).iter().any(|&e| e >= 0 && e as usize / self.share == rank)
    }

    /// The result of expert (or rank) `by` for a token: a row that depends on all of them.
    pub fn made(&self, source: usize, token: usize, by: usize) -> Vec<u8> {
        let rng = &mut StdRng::seed_from_u64(((source * 10_000 + token) * 10_000 + by) as u64);
        numbers(rng, self.hidden, self.element)
    }

    pub fn values(&self, row: &[u8]) -> Vec<f32> {
        match self.element {
            DataType::Float32 => row.chunks(4).map(|v| f32::from_ne_bytes(v.try_into().unwrap())).collect(),
            _ => row.chunks(2).map(|v| half::bf16::from_ne_bytes(v.try_into().unwrap()).to_f32()).collect(),
        }
    }

    pub fn rounded(&self, values: &[f32]) -> Vec<u8> {
        match self.element {
            DataType::Float32 => values.iter().flat_map(|v| v.to_ne_bytes()).collect(),
            _ => values.iter().flat_map(|&v| half::bf16::from_f32(v).to_ne_bytes()).collect(),
        }
    }
}

fn bytes_of_scales(hidden: usize, scaled: bool) -> usize {
    if scaled { 4 * hidden.div_ceil(128) } else { 0 }
}

fn numbers(rng: &mut StdRng, many: usize, element: DataType) -> Vec<u8> {
    let values = (0..many).map(|_| rng.random_range(-9f32..9.0));
    match element {
        DataType::Float32 => values.flat_map(f32::to_ne_bytes).collect(),
        _ => values.flat_map(|value| half::bf16::from_f32(value).to_ne_bytes()).collect(),
    }
}

/// The input of each rank.
fn inputs(
    rng: &mut StdRng,
    (ranks, experts, k): (usize, usize, usize),
    (hidden, element, scaled): (usize, DataType, bool),
    tokens: impl Fn(&mut StdRng, usize) -> usize,
    choice: Choice,
) -> Vec<Input> {
    let of_rank = |rank| {
        let tokens = tokens(rng, rank);
        let indices: Vec<i64> = (0..tokens).flat_map(|_| choose(rng, choice, experts, k)).collect();
        let weights = indices.iter().map(|_| rng.random_range(-2.0..2.0)).collect();
        let rows = numbers(rng, tokens * hidden, element);
        let mut scales = vec![0; tokens * bytes_of_scales(hidden, scaled)];
        rng.fill_bytes(&mut scales);
        Input { indices, weights, rows, scales }
    };
    (0..ranks).map(of_rank).collect()
}

fn choose(rng: &mut StdRng, choice: Choice, experts: usize, k: usize) -> Vec<i64> {
    let any = |rng: &mut StdRng| rng.random_range(0..experts as i64);
    match choice {
        Choice::Any => (0..k).map(|_| any(rng)).collect(),
        Choice::Distinct => {
            let mut all: Vec<i64> = (0..experts as i64).collect();
            all.shuffle(rng);
            all.resize(k, -1);
            all
        }
        Choice::Sparse => (0..k).map(|_| if rng.random() { any(rng) } else { -1 }).collect(),
        Choice::Same => vec![any(rng); k],
        Choice::Last => vec![experts as i64 - 1; k],
        Choice::Nobody => vec![-1; k],
    }
}

pub fn rows(data: &[u8], bytes: usize) -> Rows<'_> {
    Rows::new(data, bytes).unwrap()
}
