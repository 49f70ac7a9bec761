//! Rounds of a plan with certain buffers, written to GPU memory. A plan uses such an image again when the same buffers
//! return.
//!
//! A plan allocates memory for images when it is made. An allocation waits for all work of the GPU, which may in turn
//! wait for a round of this PE. An image for new buffers replaces the one whose last use is the longest ago, after its
//! last round has ended. An image of a round that a graph has captured stays.

use std::sync::Arc;

use symrail::kernels::cuda::{DeviceBuffer, Event, Gpu, PinnedBuffer, Stream};

use super::binding::{Binding, Round};
use super::layout::{Leg, StridedCopy};
use crate::blocks::Blocks;
use crate::error::{Refusal, Result};

/// The buffers that a round was bound to: input, output, workspace; or the reason for its refusal.
pub(super) type Key = Result<(u64, u64, u64), Refusal>;

/// The images of a plan's rounds.
pub(super) struct Images {
    gpu: Arc<Gpu>,
    /// Bytes of each image.
    bytes: usize,
    /// Allocations for [`Images::EACH`] images each.
    memory: Vec<(DeviceBuffer, PinnedBuffer)>,
    bound: Vec<Bound>,
    turns: Turns,
}

struct Bound {
    key: Key,
    binding: Binding,
    /// Recorded after the image's last round.
    over: Event,
}

impl Images {
    /// The number of images in one allocation.
    const EACH: usize = 8;

    /// Allocates images for rounds of a plan with these blocks.
    pub fn new(gpu: &Arc<Gpu>, blocks: &Blocks) -> Result<Images> {
        let copies = 2 * 2 * (blocks.legs.len() + blocks.flows.own.len());
        let bytes = (blocks.legs.len() * size_of::<Leg>() + copies * size_of::<StridedCopy>()).max(16);
        let (gpu, turns) = (Arc::clone(gpu), Turns::default());
        let mut images = Images { gpu, bytes, memory: Vec::new(), bound: Vec::new(), turns };
        images.grow()?;
        Ok(images)
    }

    fn grow(&mut self) -> Result<()> {
        let bytes = self.bytes * Images::EACH;
        self.memory.push((self.gpu.alloc(bytes)?, PinnedBuffer::new(&self.gpu, bytes)?));
        Ok(())
    }

    /// The index of the image for these buffers, if there is one.
    pub fn find(&self, key: &Key) -> Option<usize> {
        self.bound.iter().position(|bound| bound.key == *key)
    }

    /// Writes a round, in stream order. Returns the index of its image.
    pub fn bind(&mut self, stream: &Stream, key: Key, round: Round) -> Result<usize> {
        let place = match self.turns.oldest(self.memory.len() * Images::EACH) {
            Some(place) => place,
            None => {
                self.grow()?;
                self.bound.len()
            }
        };
        // No search finds the image until it has been written.
        let known = self.bound.get_mut(place);
        let over = known.map(|bound| std::mem::replace(&mut bound.key, NOBODYS)).map(|_| &self.bound[place].over);
        over.map_or(Ok(()), Event::wait)?;
        let (device, pinned) = &self.memory[place / Images::EACH];
        let offset = place % Images::EACH * self.bytes;
        let at = device.at() + offset as u64;
        let (words, binding) = round.image(at.get());
        for (i, word) in words.iter().enumerate() {
            pinned.set_word(offset / size_of::<u64>() + i, *word);
        }
        if !words.is_empty() {
            // SAFETY: the memory is this image's alone, and its earlier rounds have ended.
            unsafe { stream.write(at, pinned, offset, size_of_val(&words[..])) }?;
        }
        match self.bound.get_mut(place) {
            Some(bound) => (bound.key, bound.binding) = (key, binding),
            None => self.bound.push(Bound { key, binding, over: Event::new(&self.gpu)? }),
        }
        Ok(place)
    }

    /// The binding of an image.
    pub fn at(&self, place: usize) -> &Binding {
        &self.bound[place].binding
    }

    /// Records that a round was enqueued on a stream, or `captured` in a graph.
    pub fn used(&mut self, place: usize, stream: &Stream, captured: bool) -> Result<()> {
        self.turns.used(place, captured);
        if !captured {
            self.bound[place].over.record(stream)?;
        }
        Ok(())
    }
}

/// A key that no round has, since buffers at these addresses overlap.
const NOBODYS: Key = Ok((u64::MAX, u64::MAX, u64::MAX));

/// The time of the last use of several images.
#[derive(Debug, Default)]
struct Turns {
    now: u64,
    /// The times by index; [`Turns::FOR_EVER`] for an image that stays.
    last: Vec<u64>,
}

impl Turns {
    const FOR_EVER: u64 = u64::MAX;

    fn used(&mut self, place: usize, for_ever: bool) {
        self.now += 1;
        self.last.resize(self.last.len().max(place + 1), 0);
        let now = if for_ever || self.last[place] == Turns::FOR_EVER { Turns::FOR_EVER } else { self.now };
        self.last[place] = now;
    }

    /// The index for a new image, of `places`: one without use so far, or else the one whose last use is the longest
    /// ago, except those that stay. `None` if all stay.
    fn oldest(&self, places: usize) -> Option<usize> {
        if self.last.len() < places {
            return Some(self.last.len());
        }
        let free = (0..places).filter(|&place| self.last[place] != Turns::FOR_EVER);
        free.min_by_key(|&place| self.last[place])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_that_are_new_take_the_place_of_the_oldest_but_of_none_that_was_captured() {
        let mut turns = Turns::default();
        for place in 0..4 {
            assert_eq!(turns.oldest(4), Some(place));
            turns.used(place, place == 1);
        }
        turns.used(0, false);
        turns.used(1, false);
        for expected in [2, 3, 0, 2, 3, 0] {
            assert_eq!(turns.oldest(4), Some(expected), "as many buffers as there may be take no more memory");
            turns.used(expected, false);
        }
        [0, 2, 3].into_iter().for_each(|place| turns.used(place, true));
        assert_eq!((turns.oldest(4), turns.oldest(8)), (None, Some(4)));
    }
}
