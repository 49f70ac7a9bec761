//! Sends and receives of one call: the order of work on them, in which no two PEs wait for each other.

use std::ops::Range;

use crate::error::{Error, Result};

/// A send or a receive. The n-th send from a PE to another matches the n-th receive there, which has the same size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transfer<M> {
    /// To a PE.
    Send {
        /// Its rank in the communicator; for a communicator of all PEs, its number.
        to: u32,
        /// The data.
        memory: M,
    },
    /// From a PE.
    Receive {
        /// Its rank.
        from: u32,
        /// The memory for the data.
        memory: M,
    },
}

/// A PE's transfers with one other PE in one direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Row {
    pub peer: u32,
    pub receives: bool,
}

/// The work of a call.
#[derive(Debug)]
pub(crate) struct Arranged<M> {
    /// Transfers of the PE to itself: from and to.
    pub own: Vec<(M, M)>,
    /// The rest, by rounds: in round `r` PE `p` sends to PE `p + r` and receives from PE `p - r`, the n-th transfers of
    /// both before the next ones. A transfer only waits for earlier ones in this order, on whatever PE, and for those of
    /// its turn.
    pub others: Vec<(Row, M)>,
    /// The number of transfers in each turn: the n-th send and the n-th receive of a round, which have to be under way
    /// at the same time.
    pub turns: Vec<usize>,
}

/// Arranges the transfers of rank `me` of `n`.
///
/// # Errors
/// There is no such PE, or sends to itself and receives from itself differ in number or sizes.
pub(crate) fn arrange<M: Copy>(
    me: u32,
    n: u32,
    transfers: &[Transfer<M>],
    bytes: impl Fn(M) -> u64,
) -> Result<Arranged<M>> {
    let (mut from_own, mut to_own, mut others) = (Vec::new(), Vec::new(), Vec::with_capacity(transfers.len()));
    for &transfer in transfers {
        let (row, memory) = match transfer {
            Transfer::Send { to, memory } => (Row { peer: to, receives: false }, memory),
            Transfer::Receive { from, memory } => (Row { peer: from, receives: true }, memory),
        };
        if row.peer >= n {
            return Err(Error::Call(format!("a transfer with PE {} of {n}", row.peer)));
        }
        match (row.peer == me, row.receives) {
            (true, false) => from_own.push(memory),
            (true, true) => to_own.push(memory),
            _ => {
                let round = if row.receives { me + n - row.peer } else { row.peer + n - me } % n;
                others.push(((round, 0), (row, memory)));
            }
        }
    }
    if from_own.len() != to_own.len() {
        let (sends, receives) = (from_own.len(), to_own.len());
        return Err(Error::Call(format!(
            "PE {me} sends {sends} times to itself and receives {receives} times from itself"
        )));
    }
    let own: Vec<(M, M)> = from_own.into_iter().zip(to_own).collect();
    let sizes = |&(from, to): &(M, M)| (bytes(from), bytes(to));
    if let Some((sent, received)) = own.iter().map(sizes).find(|(sent, received)| sent != received) {
        return Err(Error::Call(format!(
            "PE {me} sends {sent} bytes to itself, and receives them as {received} bytes"
        )));
    }
    // By rows, in which they keep their order and are numbered; then by turns. Few are sorted without an allocation.
    others.sort_by_key(|&((round, _), (row, _))| (round, row.peer, row.receives));
    for at in 1..others.len() {
        let (before, this) = (others[at - 1], &mut others[at]);
        this.0.1 = if before.1.0 == this.1.0 { before.0.1 + 1 } else { 0usize };
    }
    others.sort_by_key(|&(order, _)| order);
    let turns = others.chunk_by(|(one, _), (other, _)| one == other).map(<[_]>::len).collect();
    let others = others.into_iter().map(|(_, transfer)| transfer).collect();
    Ok(Arranged { own, others, turns })
}

/// The transfers of an all-to-all of any sizes: a part to each PE, and one from each.
///
/// # Errors
/// There is not one part for each PE, or a part that arrives would overwrite one that is sent.
pub(crate) fn all_to_all_v<M: Copy>(
    n: u32,
    inputs: &[M],
    outputs: &[M],
    span: impl Fn(M) -> Range<u64>,
) -> Result<Vec<Transfer<M>>> {
    let (sent, received) = (inputs.len(), outputs.len());
    if sent != n as usize || received != n as usize {
        return Err(Error::Call(format!("an all-to-all of {sent} and {received} parts among {n} PEs")));
    }
    let mut sources: Vec<_> = inputs.iter().map(|&memory| span(memory)).filter(|source| !source.is_empty()).collect();
    sources.sort_by_key(|source| source.start);
    // The highest end so far.
    let highest = |end: &mut u64, source: &Range<u64>| {
        *end = source.end.max(*end);
        Some(*end)
    };
    let ends: Vec<u64> = sources.iter().scan(0, highest).collect();
    let overwrites = |dest: Range<u64>| {
        let below = sources.partition_point(|source| source.start < dest.end);
        !dest.is_empty() && below > 0 && ends[below - 1] > dest.start
    };
    if let Some(from) = outputs.iter().position(|&memory| overwrites(span(memory))) {
        let why = format!("the part from PE {from} of an all-to-all overlaps the input; all_to_all works in place");
        return Err(Error::Call(why));
    }
    let sends = (0..n).zip(inputs).map(|(to, &memory)| Transfer::Send { to, memory });
    let receives = (0..n).zip(outputs).map(|(from, &memory)| Transfer::Receive { from, memory });
    Ok(sends.chain(receives).collect())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn both_ends_of_a_transfer_are_in_the_same_round() {
        const N: u32 = 5;
        let order = |me: u32| {
            let both = |peer| [Transfer::Send { to: peer, memory: () }, Transfer::Receive { from: peer, memory: () }];
            let all: Vec<_> = (0..N).flat_map(both).collect();
            arrange(me, N, &[all.clone(), all].concat(), |()| 1).unwrap()
        };
        for me in 0..N {
            let arranged = order(me);
            assert_eq!((arranged.own.len(), arranged.others.len()), (2, 4 * (N as usize - 1)));
            for (place, (row, ())) in arranged.others.iter().enumerate() {
                let meets = Row { peer: me, receives: !row.receives };
                let there = order(row.peer).others;
                // Each round and number has four transfers.
                assert!(there.iter().enumerate().any(|(at, (row, ()))| *row == meets && at / 4 == place / 4));
            }
        }
    }

    #[test]
    fn no_part_of_an_all_to_all_overwrites_another() {
        let span = |memory: (u64, u64)| memory.0..memory.0 + memory.1;
        let of = |inputs: [(u64, u64); 2], outputs: [(u64, u64); 2]| all_to_all_v(2, &inputs, &outputs, span);
        // The same source for both, and empty parts within others.
        assert_eq!(of([(0, 8), (0, 8)], [(8, 4), (12, 0)]).unwrap().len(), 4);
        assert_eq!(of([(0, 8), (4, 0)], [(8, 4), (2, 0)]).unwrap().len(), 4);
        for outputs in [[(20, 4), (7, 4)], [(20, 4), (3, 1)], [(20, 4), (0, 30)]] {
            let error = of([(0, 8), (9, 1)], outputs).map(drop).unwrap_err().to_string();
            assert!(error.contains("the part from PE 1 of an all-to-all overlaps the input"), "{error}");
        }
    }

    #[test]
    fn a_send_without_a_receive_is_an_error() {
        assert!(arrange(0, 2, &[Transfer::Send { to: 2, memory: () }], |()| 1).is_err());
        let error = arrange(1, 2, &[Transfer::Send { to: 1, memory: () }], |()| 1).unwrap_err().to_string();
        assert!(error.contains("PE 1 sends 1 times to itself and receives 0 times"), "{error}");
        let own = [Transfer::Send { to: 1, memory: 5 }, Transfer::Receive { from: 1, memory: 3 }];
        let error = arrange(1, 2, &own, |bytes| bytes).unwrap_err().to_string();
        assert!(error.contains("PE 1 sends 5 bytes to itself, and receives them as 3 bytes"), "{error}");
    }
}
