//! The job's symmetric blocks: which there are, and which of them this PE does not need any more.
//!
//! A block is let go by each PE for itself, whenever Python drops the last array in it; no other PE hears of it. All
//! PEs give it back together, when they next make a collective call for it: they find out which blocks all of them have
//! let go, and free those in the order in which they were made. So blocks are the same on all PEs at all times.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use symrail::{Reduction, Result, Runtime, Team};
use symrail_core::lock;

use crate::raw;

/// The blocks.
#[derive(Default)]
pub struct Blocks {
    state: Mutex<State>,
    /// Blocks that `free` was called for and that are not given back yet.
    freed: AtomicUsize,
}

#[derive(Default)]
struct State {
    next: u64,
    /// By number, address and bytes: the same on all PEs.
    live: BTreeMap<u64, (usize, usize)>,
    /// Those of them that this PE has let go.
    dropped: BTreeSet<u64>,
    /// Those that the program has said it uses no more, though arrays may refer to them.
    freed: BTreeSet<u64>,
}

/// What PEs that allocate together must agree on; the text is for people.
pub struct Request {
    pub bytes: usize,
    pub text: String,
}

/// PEs asked for different things.
pub struct Differs {
    pub other: u32,
    pub here: String,
    pub there: String,
}

impl Blocks {
    /// Takes a zeroed block; returns its number and address. Blocks that all PEs have let go are given back before.
    /// Collective; `Ok(Err(_))` if PEs ask for different things, and then nobody gets anything.
    pub fn allocate(&self, rt: &Runtime, team: &Team<'_>, request: &Request) -> Result<Result<(u64, usize), Differs>> {
        if let Some(differs) = self.agree(rt, team, &request.text)? {
            return Ok(Err(differs));
        }
        let address = rt.calloc(1, request.bytes.max(1))?.expose_provenance();
        let mut state = lock(&self.state);
        let number = state.next;
        state.next += 1;
        state.live.insert(number, (address, request.bytes));
        Ok(Ok((number, address)))
    }

    /// Gives back what all PEs have let go. Collective.
    pub fn reclaim(&self, rt: &Runtime, team: &Team<'_>) -> Result<Option<Differs>> {
        self.agree(rt, team, "reclaim")
    }

    /// This PE has let a block go. Local, and at once: called from wherever Python drops an object.
    pub fn drop_block(&self, number: u64) {
        lock(&self.state).dropped.insert(number);
    }

    /// Marks the block at this address as not to be used any more; whether there is one.
    pub fn free(&self, address: usize) -> bool {
        let mut state = lock(&self.state);
        let Some(number) = state.at(address) else { return false };
        if state.freed.insert(number) {
            self.freed.fetch_add(1, Ordering::Relaxed);
        }
        true
    }

    /// Whether the address is in a block that was freed.
    #[inline]
    pub fn is_freed(&self, address: usize) -> bool {
        self.freed.load(Ordering::Relaxed) > 0 && {
            let state = lock(&self.state);
            state.at(address).is_some_and(|number| state.freed.contains(&number))
        }
    }

    /// Blocks that exist, and bytes in them.
    pub fn count(&self) -> (usize, usize) {
        let state = lock(&self.state);
        (state.live.len(), state.live.values().map(|&(_, bytes)| bytes).sum())
    }

    /// Compares what PEs want, and gives back what all have let go.
    fn agree(&self, rt: &Runtime, team: &Team<'_>, text: &str) -> Result<Option<Differs>> {
        let hash = hash(text);
        let mut words = vec![hash, !hash];
        let numbers: Vec<u64> = {
            let state = lock(&self.state);
            let numbers: Vec<u64> = state.live.keys().copied().collect();
            let bits = |part: &[u64]| {
                part.iter()
                    .zip(0..)
                    .fold(0, |word, (number, bit)| word | u64::from(state.dropped.contains(number)) << bit)
            };
            words.extend(numbers.chunks(64).map(bits));
            numbers
        };
        raw::and_of_all(team, &mut words)?;
        if words[0] != hash || words[1] != !hash {
            return Self::who_differs(team, hash, text).map(Some);
        }
        for (part, word) in numbers.chunks(64).zip(&words[2..]) {
            for (&number, _) in part.iter().zip(0..).filter(|(_, bit)| word >> bit & 1 == 1) {
                let address = lock(&self.state).live.get(&number).map(|&(address, _)| address);
                let Some(address) = address else { continue };
                rt.free(std::ptr::with_exposed_provenance_mut(address))?;
                let mut state = lock(&self.state);
                state.live.remove(&number);
                state.dropped.remove(&number);
                if state.freed.remove(&number) {
                    self.freed.fetch_sub(1, Ordering::Relaxed);
                }
            }
        }
        Ok(None)
    }

    /// The first PE that asks for something else than PE 0, and what the two ask for.
    fn who_differs(team: &Team<'_>, hash: u64, text: &str) -> Result<Differs> {
        let me = team.group().me();
        let mut first = [if me == 0 { hash } else { 0 }];
        raw::reduce_words(team, &mut first, Reduction::or::<u64>())?;
        let mut other = [if first[0] == hash { u64::MAX } else { me.into() }];
        raw::reduce_words(team, &mut other, Reduction::min::<u64>())?;
        let other = u32::try_from(other[0]).unwrap_or(0);
        let said_by = |pe: u32| -> Result<String> {
            let mut words = [0; 16];
            if pe == me {
                words.iter_mut().zip(text.as_bytes().chunks(8)).for_each(|(word, part)| {
                    let mut bytes = [0; 8];
                    bytes[..part.len()].copy_from_slice(part);
                    *word = u64::from_le_bytes(bytes);
                });
            }
            raw::reduce_words(team, &mut words, Reduction::or::<u64>())?;
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).filter(|&byte| byte != 0).collect();
            Ok(String::from_utf8_lossy(&bytes).into_owned())
        };
        Ok(Differs { other, here: said_by(0)?, there: said_by(other)? })
    }
}

impl State {
    /// The block that an address is in.
    fn at(&self, address: usize) -> Option<u64> {
        let holds = |&(start, bytes): &(usize, usize)| (start..start + bytes.max(1)).contains(&address);
        self.live.iter().find(|(_, block)| holds(block)).map(|(&number, _)| number)
    }
}

/// FNV-1a, which is the same on all PEs.
fn hash(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}
