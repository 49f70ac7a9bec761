//! Headers that ranks exchange before they send rows.

use symrail::Pe;

use crate::element::TYPES;
use crate::error::{Error, Result};
use crate::exchange::{Exchange, Wait, WaitLimit};
use crate::plan::layout::MOST_EXPERTS;
use crate::plan::rows::RowFormat;

/// The kind of a call.
#[derive(Debug, Clone, Copy)]
pub enum Call {
    Dispatch,
    Again,
    Combine,
}

/// A rank's call: the numbers that must be equal on all ranks, and the number of rows for each destination.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    common: [u32; COMMON.len()],
    /// Rows for each rank.
    pub per_rank: Vec<u32>,
    /// Rows for each host.
    pub per_host: Vec<u32>,
    /// For each expert of the destination rank, the slots that name it. This rank's own header holds all experts.
    per_expert: Vec<u32>,
}

/// The names of the numbers that must be equal on all ranks.
const COMMON: [&str; 10] = [
    "the call (0 dispatch, 1 dispatch with a handle, 2 combine)",
    "bytes of a row",
    "bytes of a row's scales",
    "top-k slots",
    "weights of a row",
    "bytes of a row's number",
    "bytes of a row's mask",
    "number of experts",
    "the routes of a handle (a checksum; 0 without one)",
    TYPES,
];

impl Header {
    /// `types`: of the rows and their scales; `routes`: those of the handle, 0 without one.
    pub fn new(
        call: Call,
        (format, types): (RowFormat, u32),
        routes: u32,
        per_rank: &[u32],
        per_host: &[u32],
        per_expert: &[u32],
    ) -> Header {
        let RowFormat { token, scales, indices, weights, number, mask } = format;
        let (experts, routes, types) = (per_expert.len(), routes as usize, types as usize);
        let numbers = [call as usize, token, scales, indices, weights, number, mask, experts, routes, types];
        let common = numbers.map(|number| u32::try_from(number).unwrap_or(u32::MAX));
        Header { common, per_rank: per_rank.to_vec(), per_host: per_host.to_vec(), per_expert: per_expert.to_vec() }
    }

    /// Bytes of the largest header: a job has at most as many hosts as ranks.
    pub fn most_bytes(ranks: usize) -> usize {
        4 * (COMMON.len() + 2 * ranks + MOST_EXPERTS.div_ceil(ranks))
    }

    /// The header in the form that one rank receives.
    fn to_bytes(&self, to: usize) -> Vec<u8> {
        let share = self.per_expert.len() / self.per_rank.len();
        let of_experts = &self.per_expert[to * share..][..share];
        let words = self.common.iter().chain(&self.per_rank).chain(&self.per_host).chain(of_experts);
        words.flat_map(|word| word.to_ne_bytes()).collect()
    }

    /// The header that a rank has sent.
    fn of_bytes(bytes: &[u8], ranks: usize, hosts: usize) -> Header {
        let mut words = bytes.as_chunks::<4>().0.iter().map(|word| u32::from_ne_bytes(*word));
        let common = std::array::from_fn(|_| words.next().unwrap_or(0));
        let per_rank = words.by_ref().take(ranks).collect();
        let per_host = words.by_ref().take(hosts).collect();
        Header { common, per_rank, per_host, per_expert: words.collect() }
    }
}

/// Sends this rank's header to all others, and returns the headers of all ranks.
pub fn exchange(exchange: &mut Exchange, header: &Header, limit: WaitLimit) -> Result<Vec<Header>> {
    let (rt, ranks, hosts) = (&exchange.runtime().clone(), header.per_rank.len(), header.per_host.len());
    let me = rt.my_pe() as usize;
    let mut headers = vec![None; ranks];
    headers[me] = Some(Header::of_bytes(&header.to_bytes(me), ranks, hosts));
    let others = |me: usize| (1..ranks).map(move |distance| ((me + distance) % ranks) as Pe);
    let mut unsent: Vec<Pe> = others(me).collect();
    let mut wait = Wait::new(rt, limit);
    loop {
        let mut next = 0;
        while let Some(&to) = unsent.get(next) {
            if !exchange.has_room(to)? {
                next += 1;
                continue;
            }
            let bytes = header.to_bytes(to as usize);
            exchange.write(to, 0, &bytes)?;
            exchange.send(to, bytes.len())?;
            unsent.remove(next);
        }
        for from in others(me) {
            if headers[from as usize].is_none() && exchange.has_arrived(from)? {
                let mut bytes = vec![0; Header::most_bytes(ranks).min(exchange.block())];
                exchange.read(from, 0, &mut bytes)?;
                exchange.give_back(from)?;
                headers[from as usize] = Some(Header::of_bytes(&bytes, ranks, hosts));
                wait.restart();
            }
        }
        let missing = |rank: &Pe| headers[*rank as usize].is_none() || unsent.contains(rank);
        if !others(me).any(|rank| missing(&rank)) {
            return Ok(headers.into_iter().flatten().collect());
        }
        if let Some(ended) = wait.pause() {
            let missing = others(me).filter(missing).collect();
            return Err(wait.error(ended, "the start of a dispatch or combine", missing));
        }
    }
}

/// Refuses calls that differ. If any two differ, each rank finds one that differs from its own.
pub fn compare(headers: &[Header], me: usize) -> Result<()> {
    for (other, header) in headers.iter().enumerate() {
        for (what, (here, there)) in COMMON.iter().zip(headers[me].common.iter().zip(&header.common)) {
            if here != there {
                return Err(Error::differ(what, me as Pe, (*here).into(), other as Pe, (*there).into()));
            }
        }
    }
    Ok(())
}

/// A checksum of the numbers of rows between all ranks and hosts, which is equal on all ranks.
pub fn routes(headers: &[Header]) -> u32 {
    let numbers = headers.iter().flat_map(|header| header.per_rank.iter().chain(&header.per_host));
    numbers.fold(1u32, |sum, number| (sum.rotate_left(5) ^ number).wrapping_mul(0x9e37_79b1)).max(1)
}

/// For each of this rank's experts, the number of slots that name it, over all ranks.
pub fn sum_of_experts(headers: &[Header], share: usize) -> Vec<u32> {
    (0..share).map(|expert| headers.iter().map(|header| header.per_expert[expert]).sum()).collect()
}
