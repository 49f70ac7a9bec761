//! A window: a rank's memory, and that of the same window of other ranks, as far as this rank's GPU has mapped it.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use symrail::Runtime;
use symrail::kernels::cuda::{DeviceHeap, DevicePeers, DevicePtr};
use symrail_core::lock;
use symrail_core::registry::Registry;
use symrail_heap::HostIdentity;
use symrail_heap::cuda::NotMapped;
use symrail_heap::cuda::peers::{CARD_LEN, Offer};

use crate::allocated;
use crate::guard::Failure;
use crate::ids::Ranks;
use crate::types::Handle;

/// All windows, by their handles.
static WINDOWS: Registry<Window> = Registry::new();

/// A registered window.
pub struct Window {
    pub communicator: Handle,
    pub at: usize,
    places: Places,
    // Mapped next to the memory, so dropped before it.
    _peers: Option<DevicePeers>,
    _memory: Option<Arc<DeviceHeap>>,
}

/// Where the window of each rank is.
enum Places {
    /// It was not registered for access by other ranks.
    Own,
    /// The memory of this rank cannot be mapped by others.
    NotShared {
        rank: u32,
    },
    Mapped(Vec<Place>),
}

struct Place {
    /// Null, and the reason, if this rank has not mapped it.
    at: Result<DevicePtr, String>,
    bytes: u64,
}

impl Window {
    /// A window that only this rank accesses.
    pub fn own(communicator: Handle, at: usize) -> Window {
        Window { communicator, at, places: Places::Own, _peers: None, _memory: None }
    }

    /// A window that all ranks access. Collective.
    ///
    /// # Errors
    /// Names ranks that have not come in time, or the error of the driver.
    pub fn shared(
        communicator: Handle,
        at: usize,
        bytes: usize,
        gpu: i32,
        ranks: &Ranks<'_>,
    ) -> Result<Window, Failure> {
        let runtime = ranks.runtime;
        let memory = allocated::find(at, bytes).filter(|(heap, _)| heap.gpu().ordinal() == gpu);
        let mapping = memory.map(|(heap, offset)| Mapping::begin(heap, offset, runtime)).transpose();
        // This rank's size and place in its memory, if that can be mapped; and how. The others wait for it in any case.
        let mut words = [0; 2 + CARD_LEN / 8];
        if let Ok(Some(mapping)) = &mapping {
            (words[0], words[1]) = (bytes as u64, mapping.offset);
            mapping.describe(&mut words[2..]);
        }
        let all = ranks.gather(&words)?;
        let mut mapping = mapping?;
        let of_ranks: Vec<&[u64]> = all.chunks_exact(words.len()).collect();
        let mut window = Window::own(communicator, at);
        let not_shared = (0..).zip(&of_ranks).find(|(_, words)| words[0] == 0).map(|(rank, _)| rank);
        window.places = match (not_shared, &mut mapping) {
            (Some(rank), _) => Places::NotShared { rank },
            (None, None) => Places::Own,
            (None, Some(mapping)) => {
                let cards: Vec<u8> =
                    of_ranks.iter().flat_map(|words| &words[2..]).flat_map(|word| word.to_le_bytes()).collect();
                mapping.finish(&cards, runtime)?;
                let sizes = of_ranks.iter().map(|words| (words[0], words[1]));
                Places::Mapped(mapping.places(sizes))
            }
        };
        if let (Places::Mapped(_), Some(Mapping { peers, heap, .. })) = (&window.places, mapping) {
            (window._peers, window._memory) = (Some(peers), Some(heap));
        }
        Ok(window)
    }

    /// The address of bytes of a rank's window; an error with the reason if this rank has not mapped it.
    ///
    /// # Errors
    /// The window is shorter there; or the reason.
    pub fn find(&self, rank: u32, offset: usize, bytes: u64) -> Result<Result<DevicePtr, Failure>, Failure> {
        self.places.find(rank, offset as u64, bytes)
    }

    /// Whether this rank has mapped all others' memory.
    pub fn is_mapped(&self) -> bool {
        matches!(&self.places, Places::Mapped(all) if all.iter().all(|place| place.at.is_ok()))
    }
}

impl Places {
    fn find(&self, rank: u32, offset: u64, bytes: u64) -> Result<Result<DevicePtr, Failure>, Failure> {
        let all = match self {
            Places::Own => {
                let remedy = "register it with NCCL_WIN_COLL_SYMMETRIC (1), on all ranks";
                return Err(Failure::argument(format!("the window is not registered for other ranks: {remedy}")));
            }
            Places::NotShared { rank } => {
                let remedy = "allocate it by ncclMemAlloc while the communicator's GPU is current, on all ranks";
                return Err(Failure::argument(format!(
                    "rank {rank}'s memory of the window cannot be mapped: {remedy}"
                )));
            }
            Places::Mapped(all) => all,
        };
        let Some(place) = all.get(rank as usize) else {
            return Err(Failure::argument(format!("rank {rank} of {} ranks", all.len())));
        };
        let size = place.bytes;
        if offset.checked_add(bytes).is_none_or(|end| end > size) {
            let why = format!("{bytes} bytes at the offset {offset} of rank {rank}'s window, which has {size}");
            return Err(Failure::argument(why));
        }
        Ok(match &place.at {
            Ok(at) => Ok(*at + offset),
            Err(why) => {
                let remedy = "use ncclSend and ncclRecv";
                Err(Failure::usage(format!("this rank's GPU has not mapped rank {rank}'s window: {why}; {remedy}")))
            }
        })
    }
}

/// The memory of a window while ranks map it.
struct Mapping {
    peers: DevicePeers,
    offer: Option<Offer>,
    offset: u64,
    heap: Arc<DeviceHeap>,
}

impl Mapping {
    fn begin(heap: Arc<DeviceHeap>, offset: u64, runtime: &Runtime) -> Result<Mapping, Failure> {
        let settings = runtime.settings();
        let host = HostIdentity::of_this_process(settings.fake_host.as_deref()).map_err(symrail::Error::from)?;
        let (me, n) = (runtime.my_pe(), runtime.n_pes());
        let peers = DevicePeers::new(me, n, &heap, &host, settings.disable_p2p).of_any_size();
        let offer = heap.segments().first().map(|segment| peers.offer(segment)).transpose()?;
        Ok(Mapping { peers, offer, offset, heap })
    }

    fn describe(&self, words: &mut [u64]) {
        if let Some(offer) = &self.offer {
            let card = offer.connection_info();
            for (word, bytes) in words.iter_mut().zip(card.chunks_exact(8)) {
                *word = bytes.iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte));
            }
        }
    }

    fn finish(&mut self, cards: &[u8], runtime: &Runtime) -> Result<(), Failure> {
        if let (Some(offer), Some(segment)) = (self.offer.take(), self.heap.segments().first()) {
            let mut wait = runtime.bounded_wait(None);
            self.peers.open(offer, segment, cards, runtime.timeout(), &mut || wait.is_interrupted())?;
        }
        Ok(())
    }

    /// The places of windows of these sizes and offsets.
    fn places(&self, of_ranks: impl Iterator<Item = (u64, u64)>) -> Vec<Place> {
        let of_ranks = self.peers.bases().into_iter().zip(0..).zip(of_ranks);
        let place = |((base, rank), (bytes, offset)): ((DevicePtr, u32), (u64, u64))| {
            let at = self.peers.why(rank).map_or(Ok(base + offset), |why| Err(reason(why)));
            Place { at, bytes }
        };
        of_ranks.map(place).collect()
    }
}

fn reason(why: &NotMapped) -> String {
    match why {
        NotMapped::Disabled => "SYMRAIL_DISABLE_P2P is set on one of them".into(),
        NotMapped::OtherHost => "it is on another host".into(),
        NotMapped::Refused(why) => why.clone(),
        NotMapped::NotOpened | NotMapped::Capacity(_) => format!("{why:?}"),
    }
}

/// The windows of a communicator, which end with it.
#[derive(Default)]
pub struct Windows(Mutex<BTreeSet<usize>>);

impl Windows {
    /// Keeps a window by a handle that was reserved for it.
    pub fn put(&self, handle: usize, window: Window) {
        WINDOWS.put(handle, window);
        lock(&self.0).insert(handle);
    }

    /// Ends a window.
    pub fn take(&self, handle: usize) -> Option<Arc<Window>> {
        lock(&self.0).remove(&handle);
        WINDOWS.take(handle)
    }
}

impl Drop for Windows {
    fn drop(&mut self) {
        for &handle in lock(&self.0).iter() {
            drop(WINDOWS.take(handle));
        }
    }
}

/// A window of any communicator.
///
/// # Errors
/// There is none by this handle, or none any more.
pub fn find(handle: Handle) -> Result<Arc<Window>, Failure> {
    if handle == 0 {
        return Err(Failure::argument("the window is a null pointer"));
    }
    WINDOWS.find(handle).ok_or_else(|| Failure::argument(format!("{handle:#x} is no window, or none any more")))
}

/// A communicator's window.
///
/// # Errors
/// As for [`find`], or it is another communicator's.
pub fn find_of(communicator: Handle, handle: Handle) -> Result<Arc<Window>, Failure> {
    let found = find(handle)?;
    if found.communicator != communicator {
        return Err(Failure::argument(format!("{handle:#x} is a window of another communicator")));
    }
    Ok(found)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::ffi::c_int;

    use super::*;
    use crate::guard::{INVALID_ARGUMENT, INVALID_USAGE};
    use crate::ids::tests::job;

    fn places() -> Places {
        let place = |at, bytes| Place { at, bytes };
        Places::Mapped(vec![place(Ok(DevicePtr::new(1 << 20)), 64), place(Err("OtherHost".into()), 32)])
    }

    fn refused<T>(found: Result<T, Failure>) -> (c_int, String) {
        found.map(drop).unwrap_err().into()
    }

    #[test]
    fn only_what_lies_in_a_rank_s_window_is_found() {
        let all = places();
        assert_eq!(all.find(0, 16, 48).unwrap().unwrap(), DevicePtr::new((1 << 20) + 16));
        assert_eq!(all.find(0, 64, 0).unwrap().unwrap(), DevicePtr::new((1 << 20) + 64));
        for (rank, offset, bytes, words) in [
            (0, 17, 48, "48 bytes at the offset 17 of rank 0's window, which has 64"),
            (0, u64::MAX, 2, "2 bytes at the offset 18446744073709551615"),
            (1, 1, 32, "32 bytes at the offset 1 of rank 1's window, which has 32"),
            (2, 0, 1, "rank 2 of 2 ranks"),
        ] {
            let (code, text) = refused(all.find(rank, offset, bytes));
            assert!(code == INVALID_ARGUMENT && text.contains(words), "{code}: {text}");
        }
    }

    #[test]
    fn what_is_not_mapped_is_refused_with_the_reason() {
        let (code, text) = refused(places().find(1, 0, 32).unwrap());
        assert!(code == INVALID_USAGE && text.contains("rank 1's window: OtherHost"), "{text}");
        let (_, text) = refused(Places::NotShared { rank: 1 }.find(0, 0, 1));
        assert!(text.contains("rank 1's memory") && text.contains("ncclMemAlloc"), "{text}");
        let (_, text) = refused(Places::Own.find(0, 0, 1));
        assert!(text.contains("NCCL_WIN_COLL_SYMMETRIC"), "{text}");
    }

    #[test]
    fn a_rank_whose_memory_cannot_be_mapped_is_named_on_all() {
        let ranks = job(2, 30);
        std::thread::scope(|scope| {
            for rank in &ranks {
                scope.spawn(|| {
                    let byte = 0u8;
                    let window = Window::shared(0, (&raw const byte).addr(), 1, 0, &rank.ranks()).unwrap();
                    let (code, text) = refused(window.find(1, 0, 1));
                    assert!(code == INVALID_ARGUMENT && text.contains("rank 0's memory of the window"), "{text}");
                });
            }
        });
    }

    #[test]
    fn a_communicator_s_windows_end_with_it() {
        let [one, other, kept, ended] = [(); 4].map(|()| symrail_core::registry::number());
        let windows = Windows::default();
        windows.put(kept, Window::own(one, 0));
        windows.put(ended, Window::own(one, 0));
        assert!(find_of(one, kept).is_ok());
        assert!(refused(find_of(other, kept)).1.contains("another communicator"));
        assert!(windows.take(ended).is_some() && windows.take(ended).is_none());
        assert!(refused(find(ended)).1.contains("none any more"));
        drop(windows);
        assert!(refused(find(kept)).1.contains("none any more"));
        assert!(refused(find(0)).1.contains("null pointer"));
    }
}
