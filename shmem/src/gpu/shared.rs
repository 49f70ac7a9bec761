//! A heap in GPU memory, which the GPUs of peers on this host map.

use std::sync::Arc;
use std::time::Duration;

use symrail_heap::HostIdentity;
use symrail_heap::cuda::peers::Offer;
use symrail_heap::cuda::{DeviceHeap, DevicePeers, DevicePtr, Gpu, PinnedBuffer};
use symrail_heap::mailbox::MAILBOX_BYTES;
use symrail_transport::Pe;
use symrail_transport::env::Settings;

use crate::error::Result;

/// The GPU of a PE: the one current on this thread, or the one with the PE's number.
///
/// # Errors
/// There is none, or the driver reports an error.
pub fn gpu_of(me: Pe) -> Result<Arc<Gpu>> {
    Ok(Gpu::open(ordinal(Gpu::current(), me, Gpu::count()))?)
}

fn ordinal(current: Option<i32>, me: Pe, count: i32) -> i32 {
    current.unwrap_or(me as i32 % count.max(1))
}

/// This PE's heap and those of its peers.
pub(crate) struct Shared {
    // Dropped before the heap, next to which they are mapped.
    peers: DevicePeers,
    heap: DeviceHeap,
    /// Small writes that waiting kernels perform themselves.
    mailbox: Arc<PinnedBuffer>,
    /// The GPU with the context in which proxy threads copy.
    copies: Arc<Gpu>,
    /// Held until peers' connection infos have arrived.
    offer: Option<Offer>,
}

impl Shared {
    /// A heap with all of its memory from the start, in one segment, offered to peers.
    ///
    /// # Errors
    /// No GPU, no memory, or an error of the driver.
    pub fn new(me: Pe, n_pes: u32, settings: &Settings) -> Result<Shared> {
        let gpu = gpu_of(me)?;
        let mut heap = DeviceHeap::reserve(&gpu, settings.heap_size as u64)?;
        heap.grow(settings.heap_size as u64)?;
        let host = HostIdentity::of_this_process(settings.fake_host.as_deref())?;
        let peers = DevicePeers::new(me, n_pes, &heap, &host, settings.disable_p2p);
        let offer = heap.segments().last().map(|segment| peers.offer(segment)).transpose()?;
        let mailbox = Arc::new(PinnedBuffer::new(&gpu, MAILBOX_BYTES)?);
        Ok(Shared { peers, heap, mailbox, copies: gpu.for_copies(), offer })
    }

    /// The information that peers need to map it.
    pub fn connection_info(&self) -> Vec<u8> {
        self.offer.as_ref().map_or_else(Vec::new, |offer| offer.connection_info().to_vec())
    }

    /// Maps all heaps that can be mapped; `connection_infos` has all PEs', in order. Collective among the PEs of a
    /// host.
    ///
    /// # Errors
    /// Malformed connection infos, or a peer of this host that does not arrive.
    pub fn open(&mut self, connection_infos: &[Vec<u8>], time_limit: Duration) -> Result<()> {
        if let (Some(offer), Some(segment)) = (self.offer.take(), self.heap.segments().last()) {
            // Nothing but its time ends the wait of a PE that joins.
            self.peers.open(offer, segment, &connection_infos.concat(), time_limit, &mut || false)?;
        }
        Ok(())
    }

    pub fn gpu(&self) -> &Arc<Gpu> {
        self.heap.gpu()
    }

    /// The GPU with the program's context, and with the one in which proxy threads copy.
    pub fn contexts(&self) -> [&Arc<Gpu>; 2] {
        [self.gpu(), &self.copies]
    }

    /// See [`symrail_heap::mailbox`].
    pub fn mailbox(&self) -> &Arc<PinnedBuffer> {
        &self.mailbox
    }

    pub fn heap(&self) -> &DeviceHeap {
        &self.heap
    }

    /// This GPU's address of each PE's heap; 0 if it cannot access the heap.
    pub fn bases(&self) -> Vec<DevicePtr> {
        self.peers.bases()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pes_without_a_current_gpu_are_spread_over_all_gpus() {
        let of = |current| [0, 1, 2, 3, 4].map(|me| ordinal(current, me, 4));
        assert_eq!(of(None), [0, 1, 2, 3, 0]);
        assert_eq!(of(Some(2)), [2; 5]);
        assert_eq!(ordinal(None, 3, 0), 0, "opening it says that there is none");
    }
}
