//! The job's symmetric blocks, and which of them this PE does not need any more.
//!
//! Each PE lets a block go for itself, whenever Python drops the last array in it; the other PEs do not learn of it.
//! All PEs free it together, at their next collective call for it: they determine which blocks all of them have let go,
//! and free those in the order of allocation. So blocks are the same on all PEs at all times.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use pyo3::PyErr;
use symrail::{Pe, Reduction, Result, Runtime, Team};
use symrail_core::lock;

use crate::objects::{AGREED, Objects, hash};
use crate::raw;

/// The blocks of a job.
#[derive(Default)]
pub struct Blocks {
    state: Mutex<State>,
    /// The number of blocks passed to `free` that are not freed yet.
    freed: AtomicUsize,
}

#[derive(Default)]
struct State {
    next: u64,
    /// Address and bytes by number: the same on all PEs.
    live: BTreeMap<u64, (usize, usize)>,
    /// Blocks that this PE has let go.
    dropped: BTreeSet<u64>,
    /// Blocks that the program has passed to `free`, though arrays may refer to them.
    freed: BTreeSet<u64>,
}

/// A request on which PEs must agree.
pub struct Request {
    /// For people.
    pub text: String,
    /// Whether memory is made, and not freed alone.
    pub makes: bool,
    /// Whether this thread captures a graph, in which memory can neither be made nor freed.
    pub captures: bool,
}

/// A request that all PEs refuse.
pub enum Refused {
    Differs(Differs),
    /// This PE, perhaps among others, captures a graph.
    Captures(Pe),
    /// An object that was dropped cannot be freed.
    Object(PyErr),
}

/// PEs made different requests.
pub struct Differs {
    pub other: u32,
    pub here: String,
    pub there: String,
}

impl Blocks {
    /// Allocates a zeroed block; returns its number and address. Blocks that all PEs have let go are freed first.
    /// Collective; `Ok(Err(_))` if PEs refuse the request, and then no PE gets memory.
    pub fn allocate(
        &self,
        rt: &Runtime,
        team: &Team,
        objects: &Objects,
        request: &Request,
        bytes: usize,
    ) -> Result<Result<(u64, usize), Refused>> {
        if let Err(refused) = self.agree(rt, team, objects, request)? {
            return Ok(Err(refused));
        }
        let address = rt.calloc(1, bytes.max(1))?.expose_provenance();
        let mut state = lock(&self.state);
        let number = state.next;
        state.next += 1;
        state.live.insert(number, (address, bytes));
        Ok(Ok((number, address)))
    }

    /// This PE lets a block go. Local, and returns at once, because Python may drop an object anywhere.
    pub fn drop_block(&self, number: u64) {
        lock(&self.state).dropped.insert(number);
    }

    /// Marks the block at this address as unused from now on; returns whether there is one.
    pub fn free(&self, address: usize) -> bool {
        let mut state = lock(&self.state);
        let Some(number) = state.at(address) else { return false };
        if state.freed.insert(number) {
            self.freed.fetch_add(1, Ordering::Relaxed);
        }
        true
    }

    /// Whether the address is in a block that was passed to `free`.
    #[inline]
    pub fn is_freed(&self, address: usize) -> bool {
        self.freed.load(Ordering::Relaxed) > 0 && {
            let state = lock(&self.state);
            state.at(address).is_some_and(|number| state.freed.contains(&number))
        }
    }

    /// The number of blocks, and of bytes in them.
    pub fn count(&self) -> (usize, usize) {
        let state = lock(&self.state);
        (state.live.len(), state.live.values().map(|&(_, bytes)| bytes).sum())
    }

    /// Compares the requests of all PEs, and frees the objects and blocks that all have let go, unless one captures a
    /// graph. Collective.
    pub fn agree(
        &self,
        rt: &Runtime,
        team: &Team,
        objects: &Objects,
        request: &Request,
    ) -> Result<Result<(), Refused>> {
        let Request { text, makes, captures } = request;
        let hash = hash(text);
        let (owned, of_objects) = objects.words();
        let mut words = vec![hash, !hash, if *captures { 0 } else { u64::MAX }];
        words.extend(of_objects);
        let of_blocks = words.len();
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
            return Ok(Err(Refused::Differs(Self::who_differs(team, hash, text)?)));
        }
        if words[2] == 0 {
            if !makes {
                return Ok(Ok(()));
            }
            let mut first = [if *captures { team.group().me().into() } else { u64::MAX }];
            raw::reduce_words(team, &mut first, Reduction::min::<u64>())?;
            return Ok(Err(Refused::Captures(u32::try_from(first[0]).unwrap_or(0))));
        }
        if let Err(error) = objects.free_dropped(&owned, &words[of_blocks - AGREED..of_blocks]) {
            return Ok(Err(Refused::Object(error)));
        }
        for (part, word) in numbers.chunks(64).zip(&words[of_blocks..]) {
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
        Ok(Ok(()))
    }

    /// The first PE with a request other than PE 0's, and both requests.
    fn who_differs(team: &Team, hash: u64, text: &str) -> Result<Differs> {
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
