//! Puts, signals and waits for signals on streams. What has arrived is counted in symmetric words, one for each sender,
//! context and signal, to which only that sender adds; what waits have claimed is counted beside them, on the device: a
//! graph has no count in it, and each replay waits for further signals. On whatever streams, puts and signals run in the
//! order of their calls, and so do waits; a wait keeps only what follows it on its stream.

use std::sync::Arc;

use symrail::SymSlice;
use symrail::gpu::GpuDevice;
use symrail::kernels::cuda::compile::Nvrtc;
use symrail::kernels::cuda::{DeviceBuffer, DevicePtr, Kernel, LastUse, PinnedBuffer, Program, Shape, Stream, in_turn};
use symrail::rounds::Abort;

use crate::guard::Failure;
use crate::window::Window;

/// Contexts, and signals of a context.
pub const CONTEXTS: u32 = 4;
pub const SIGNALS: u32 = 16;

/// Bytes up to which one block copies, in the launch that sends the signal. More blocks copy more, and reach a link's
/// rate: a copy engine could not be kept from copying behind a wait that has ended without its signals.
const SMALL: u64 = 32 << 10;
const MOST_BLOCKS: u64 = 32;
const ONE: Shape = Shape { blocks: 1, threads: 1 };
/// Waits of a launch, as in `cu/one_sided.cu`.
const WAITS: usize = 64;

const PROGRAM: Program<'static> = Program::new("one_sided.cu", include_str!("../cu/one_sided.cu"));

/// A call.
pub enum Call {
    Put {
        /// Where the bytes go, and the window that keeps the memory mapped.
        to: DevicePtr,
        _window: Arc<Window>,
        from: DevicePtr,
        bytes: u64,
        signal: Signal,
    },
    Signal(Signal),
    /// Waits for so many more of each.
    Wait(Vec<(Signal, u64)>),
}

/// A signal to or from a rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Signal {
    pub peer: u32,
    pub context: u32,
    pub index: u32,
}

impl Signal {
    /// Its word among those of the rank that receives it from `sender`.
    fn word(self, sender: u32) -> u64 {
        (u64::from(sender) * u64::from(CONTEXTS) + u64::from(self.context)) * u64::from(SIGNALS) + u64::from(self.index)
    }
}

/// Words for the signals of so many ranks.
pub fn words(ranks: u32) -> usize {
    ranks as usize * (CONTEXTS * SIGNALS) as usize
}

struct Kernels {
    wait: Kernel,
    signal: Kernel,
    put: Kernel,
    put_large: Kernel,
}

/// One-sided calls of a rank.
pub struct OneSided {
    rank: u32,
    arrived: SymSlice<u64>,
    claimed: DeviceBuffer,
    /// The communicator's word that is not 0 once no call does anything any more: the rank that has failed, plus 1.
    stopped: DevicePtr,
    /// Its first word ends waits unless it is 0. The second one has the rank, plus 1, whose failure has
    /// ended a call.
    ended: Arc<PinnedBuffer>,
    kernels: Option<Kernels>,
    /// Behind the last put or signal, and behind the last wait.
    last_send: LastUse,
    last_wait: LastUse,
    device: GpuDevice,
}

impl OneSided {
    /// `arrived` has [`words`] words, all 0; `stopped` is that of the collectives.
    ///
    /// # Errors
    /// The driver's.
    pub fn new(device: &GpuDevice, arrived: SymSlice<u64>, stopped: DevicePtr) -> Result<OneSided, Failure> {
        let claimed = device.gpu().alloc(8 * arrived.len())?;
        claimed.fill(0)?;
        Ok(OneSided {
            rank: device.runtime().my_pe(),
            arrived,
            claimed,
            stopped,
            ended: Arc::new(PinnedBuffer::new(device.gpu(), 16)?),
            kernels: None,
            last_send: LastUse::new(device.gpu())?,
            last_wait: LastUse::new(device.gpu())?,
            device: device.clone(),
        })
    }

    /// Ends the waits of kernels, from any thread and for ever.
    pub fn end_waits(&self) -> impl Fn() + Send + Sync + use<> {
        let ended = Arc::clone(&self.ended);
        move || ended.set_word(0, 1)
    }

    /// Fails if another rank's failure has ended a call so far.
    ///
    /// # Errors
    /// Names that rank.
    pub fn check(&self) -> Result<(), Failure> {
        given_up(self.rank, self.ended.word(1))
    }

    /// Whether calls load no module.
    pub fn is_prepared(&self) -> bool {
        self.kernels.is_some()
    }

    /// Loads the kernels, unless they are there, which waits for streams and cannot be captured.
    ///
    /// # Errors
    /// The compiler's, or the driver's.
    pub fn prepare(&mut self) -> Result<(), Failure> {
        if self.kernels.is_none() {
            let module = self.device.load(&Nvrtc::find()?, &PROGRAM)?;
            let kernel = |name| module.kernel(name);
            let (wait, signal) = (kernel("wait_for_signals")?, kernel("send_signal")?);
            let (put, put_large) = (kernel("put_and_signal")?, kernel("put_by_blocks")?);
            self.kernels = Some(Kernels { wait, signal, put, put_large });
        }
        Ok(())
    }

    /// Begins a call on a stream.
    ///
    /// # Safety
    /// The memory of a put is valid for the GPU until the stream has passed this point.
    ///
    /// # Errors
    /// The driver's; or a usage error, if the kernels are not loaded and the stream is capturing. [`GpuDevice::state`] has
    /// errors that kernels find, such as a signal that does not come in time.
    pub unsafe fn begin(&mut self, stream: &Stream, call: &Call) -> Result<(), Failure> {
        if self.kernels.is_none() && stream.is_capturing()? {
            let remedy = "register a window with NCCL_WIN_COLL_SYMMETRIC, or make a call before";
            return Err(Failure::usage(format!("the first one-sided call loads kernels, and is captured: {remedy}")));
        }
        self.prepare()?;
        let Some(kernels) = &self.kernels else { return Ok(()) };
        let words = self.device.address(self.arrived.as_ptr().cast());
        let (stopped, ended) = (self.stopped.get(), self.ended.device().get());
        let there = |signal: Signal| [words + 8 * signal.word(self.rank), u64::from(signal.peer), stopped, ended];
        let last = if matches!(call, Call::Wait(_)) { &self.last_wait } else { &self.last_send };
        in_turn(last, stream, |_| {
            match call {
                &Call::Put { to, from, bytes, signal, .. } if (1..=SMALL).contains(&bytes) => {
                    let [word, pe, ..] = there(signal);
                    let arguments = [to.get(), from.get(), bytes, word, pe, stopped, ended];
                    // SAFETY: the kernel's arguments; the caller's promise, and the window's for the other end.
                    unsafe { stream.launch(&kernels.put, copying(bytes), &arguments) }?;
                }
                &Call::Put { to, from, bytes, signal, .. } => {
                    if bytes > 0 {
                        let arguments = [to.get(), from.get(), bytes, stopped, ended];
                        // SAFETY: as above.
                        unsafe { stream.launch(&kernels.put_large, copying(bytes), &arguments) }?;
                    }
                    // SAFETY: the kernel's arguments.
                    unsafe { stream.launch(&kernels.signal, ONE, &there(signal)) }?;
                }
                // SAFETY: the kernel's arguments.
                &Call::Signal(signal) => unsafe { stream.launch(&kernels.signal, ONE, &there(signal)) }?,
                Call::Wait(waits) => {
                    for waits in waits.chunks(WAITS) {
                        let head = [words, self.claimed.at().get(), ended, stopped];
                        // SAFETY: the kernel's structure, whose memory is this communicator's.
                        unsafe { stream.launch_struct(&kernels.wait, SHAPE_OF_WAITS, &list(head, waits)) }?;
                    }
                }
            }
            Ok(())
        })
    }

    /// Waits until all calls have ended, except for those of graphs that were not launched yet.
    ///
    /// # Errors
    /// The driver's.
    pub fn wait(&self) -> Result<(), Failure> {
        self.wait_for_sends()?;
        Ok(self.last_wait.wait()?)
    }

    /// As [`OneSided::wait`], for puts and signals alone.
    ///
    /// # Errors
    /// The driver's.
    pub fn wait_for_sends(&self) -> Result<(), Failure> {
        Ok(self.last_send.wait()?)
    }
}

fn copying(bytes: u64) -> Shape {
    Shape { blocks: bytes.div_ceil(SMALL).min(MOST_BLOCKS) as u32, threads: 1024 }
}

const SHAPE_OF_WAITS: Shape = Shape { blocks: 1, threads: WAITS as u32 };

/// The kernel's structure for at most [`WAITS`] waits.
fn list(head: [u64; 4], waits: &[(Signal, u64)]) -> [u64; 5 + 2 * WAITS] {
    let mut list = [0; 5 + 2 * WAITS];
    list[..4].copy_from_slice(&head);
    list[4] = waits.len() as u64;
    for (place, &(signal, count)) in list[5..].chunks_exact_mut(2).zip(waits) {
        place.copy_from_slice(&[signal.word(signal.peer), count]);
    }
    list
}

/// The failure of a rank, by the word of failures; 0 if there is none.
fn given_up(pe: u32, by: u64) -> Result<(), Failure> {
    Ok(Abort::check(by, pe, "a one-sided call").map_err(symrail_collectives::Error::Round)?)
}

#[cfg(test)]
#[path = "../../../tests/support/nvrtc.rs"]
mod support;

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn each_sender_context_and_signal_has_a_word_of_its_own() {
        let signals = (0..CONTEXTS).flat_map(|context| (0..SIGNALS).map(move |index| (context, index)));
        let words_of =
            |sender| signals.clone().map(move |(context, index)| Signal { peer: 9, context, index }.word(sender));
        let all: BTreeSet<u64> = (0..3).flat_map(words_of).collect();
        assert_eq!((all.len(), all.last().copied()), (words(3), Some(words(3) as u64 - 1)));
    }

    #[test]
    fn the_rank_whose_failure_has_ended_a_call_is_named() {
        assert!(given_up(0, 0).is_ok());
        let (code, text) = given_up(0, 3).unwrap_err().into();
        assert_eq!(code, crate::guard::REMOTE_ERROR);
        assert!(text.contains("a one-sided call") && text.contains("PE 2"), "{text}");
    }

    #[test]
    fn a_wait_is_for_the_word_of_its_sender() {
        let signal = Signal { peer: 2, context: 1, index: 3 };
        let list = list([1, 2, 3, 4], &[(signal, 7), (Signal { peer: 0, ..signal }, 1)]);
        let word = |sender| u64::from((sender * CONTEXTS + 1) * SIGNALS + 3);
        assert_eq!(list[..9], [1, 2, 3, 4, 2, word(2), 7, word(0), 1]);
        assert!(list[9..].iter().all(|&rest| rest == 0));
    }

    #[test]
    fn the_kernels_become_machine_code() {
        let Some(nvrtc) = support::nvrtc() else { return };
        for arch in ["sm_80", "sm_90"] {
            let compiled = nvrtc.compile(&PROGRAM, arch).unwrap();
            assert_eq!(compiled.log(), "");
            let ptx = String::from_utf8_lossy(compiled.ptx()).into_owned();
            for kernel in ["wait_for_signals", "send_signal", "put_and_signal", "put_by_blocks"] {
                assert!(ptx.contains(&format!(".entry {kernel}(")), "{kernel}");
            }
        }
        let source = include_str!("../cu/one_sided.cu");
        assert!(source.contains(&format!("#define WAITS {WAITS}\n")));
    }
}
