//! One transport of the host library: its session and its queue pairs.

use std::ffi::c_int;
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, OnceLock};

use symrail_heap::cuda::{CudaCopyEngine, DevicePtr, Gpu};
use symrail_heap::export::Exported;
use symrail_heap::{CopyEngine, HostIdentity, Site};
use symrail_proxy::session::{Context, Progress, Session};
use symrail_proxy::stage::{MAX_COPIES, STAGING_BUFFER_BYTES};
use symrail_transport::Pe;
use symrail_transport::backend::{self, HostPes};
use symrail_transport::env::{GpuDirect, HeapKind, Settings, log};
use symrail_transport::topology::allowed_cpus;

use crate::abi::{Bootstrap, qp};
use crate::environment;
use crate::report::Failure;

/// The limit of a program's queue pairs, besides the host's and the default one.
const MOST_QPS: u16 = 4000;

/// The object in `state` of the transport structure.
pub struct Plugin {
    settings: Settings,
    host: HostIdentity,
    session: OnceLock<Session>,
    /// The GPU whose memory the host library uses.
    gpu: OnceLock<Arc<Gpu>>,
    /// The number of the next queue pair. Each is the context of the session with the same number.
    next_qp: AtomicU16,
}

impl Plugin {
    /// Reads the settings and checks whether there are rails at all, so that a host library that could use another
    /// transport learns of a failure now.
    pub fn new() -> Result<Plugin, Failure> {
        let settings = environment::read()?;
        log::start(&settings.log);
        settings.warn_unknown();
        backend::choose(&settings, &HostPes::alone(allowed_cpus()))?;
        let host = HostIdentity::of_this_process(settings.fake_host.as_deref())?;
        let next_qp = AtomicU16::new(qp::DEFAULT as u16 + 1);
        Ok(Plugin { settings, host, session: OnceLock::new(), gpu: OnceLock::new(), next_qp })
    }

    /// The session, once connected.
    #[inline]
    pub fn session(&self) -> Result<&Session, Failure> {
        self.session.get().ok_or_else(|| Failure::argument("the endpoints are not connected yet".into()))
    }

    /// Opens the rails and connects to all PEs. Collective; a second call has no effect.
    pub fn connect(&self, me: c_int, n_pes: c_int, bootstrap: &mut Exchange<'_>) -> Result<(), Failure> {
        if self.session.get().is_some() {
            return Ok(());
        }
        let pe = |n: c_int| Pe::try_from(n).map_err(|_| Failure::argument(format!("PE {me} of {n_pes}")));
        let (me, n_pes) = (pe(me)?, pe(n_pes)?);
        let gpu = gpu();
        let host = self.pes_of_host(me, n_pes, gpu.as_ref().ok().and_then(Option::as_deref), bootstrap)?;
        warn_of_one_core(me, &host);
        let mut settings = self.settings.clone();
        if let Ok(Some(gpu)) = &gpu {
            let _ = self.gpu.set(Arc::clone(gpu));
            settings.heap_kind = HeapKind::Device;
        }
        let opened = gpu
            .and_then(copy_engine)
            .and_then(|copy_engine| Ok(Session::open(me, n_pes, &host, &settings, Progress::Caller, copy_engine)?));
        // A PE without rails takes part nevertheless, so that the others do not wait for it.
        let connection_info = opened.as_ref().map_or_else(|_| Vec::new(), Session::connection_info);
        let connection_infos = bootstrap.allgather(&connection_info, n_pes)?;
        let session = opened?;
        if let Some(pe) = connection_infos.iter().position(Vec::is_empty) {
            return Err(Failure::argument(format!("PE {pe} has no rails; its own message says why")));
        }
        session.connect(&connection_infos)?;
        for reason in session.reasons() {
            tracing::info!("{reason}");
        }
        tracing::info!(me, n_pes, rails = session.rails().len(), "connected");
        // No other thread connects: the host library calls from one thread.
        let _ = self.session.set(session);
        Ok(())
    }

    /// Exports the GPU's memory for NICs, if there is a GPU and the settings permit it; else returns why not.
    pub fn export(&self, at: u64, bytes: u64) -> Result<Exported, String> {
        if self.settings.gpudirect == GpuDirect::Off {
            return Err("SYMRAIL_GPUDIRECT=off".into());
        }
        let gpu = self.gpu.get().ok_or("there is no GPU")?;
        Exported::of_gpu(gpu, DevicePtr::new(at), bytes)
            .inspect_err(|error| tracing::info!(%error, bytes, "rails do not reach this memory"))
            .map_err(|error| error.to_string())
    }

    /// The PEs of this host, which share its NICs. Collective.
    fn pes_of_host(
        &self,
        me: Pe,
        n_pes: u32,
        gpu: Option<&Gpu>,
        bootstrap: &mut Exchange<'_>,
    ) -> Result<HostPes, Failure> {
        let mine = Site::of_this_process(self.host.clone(), gpu.and_then(|gpu| gpu.pci()));
        let all = Site::decode_all(&bootstrap.allgather(&mine.encode(), n_pes)?)?;
        Ok(Site::pes_of_host(&all, me as usize))
    }

    /// The number of a new queue pair.
    pub fn new_qp(&self) -> Result<c_int, Failure> {
        let next = self.next_qp.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| (n < MOST_QPS).then(|| n + 1));
        next.map(c_int::from).map_err(|_| Failure::argument(format!("more than {MOST_QPS} queue pairs")))
    }

    /// The context of a queue pair.
    #[inline]
    pub fn context(&self, qp: c_int) -> Context {
        // Operations on `ANY` use the default one.
        Context::try_from(qp).ok().filter(|&c| c < self.next_qp.load(Ordering::Relaxed)).unwrap_or(qp::DEFAULT as u16)
    }

    /// Waits for a queue pair; for `ALL`, for all queue pairs of devices.
    pub fn quiet(&self, qp: c_int) -> Result<(), Failure> {
        let session = self.session()?;
        if qp != qp::ALL {
            return Ok(session.quiet(self.context(qp))?);
        }
        for context in qp::DEFAULT as u16..self.next_qp.load(Ordering::Relaxed) {
            session.quiet(context)?;
        }
        Ok(())
    }
}

/// Warns of a single core. The host library's proxy thread polls without a pause, and so does a thread that waits for a
/// kernel. On one core each operation would wait for whole time slices. Only one PE of a host warns, since a launcher
/// binds all of them alike.
fn warn_of_one_core(me: Pe, host: &HostPes) {
    let cpus = host.cpus.get(host.local_pe).filter(|cpus| host.local_pe == 0 && cpus.len() == 1);
    if let Some(core) = cpus.and_then(|cpus| cpus.first()) {
        tracing::warn!(
            "PE {me} may run on core {core} only, where its own threads and NVSHMEM's proxy thread keep each other waiting: puts are up to a \
             hundred times slower; give each PE two cores or more (mpirun --bind-to none, or --map-by slot:PE=2)"
        );
    }
}

/// The GPU whose context the host library has made current, if there is one.
fn gpu() -> Result<Option<Arc<Gpu>>, Failure> {
    Ok(Gpu::current().map(Gpu::open).transpose()?)
}

/// The copy engine for the GPU's memory, which rails may not be able to access.
fn copy_engine(gpu: Option<Arc<Gpu>>) -> Result<Option<Box<dyn CopyEngine>>, Failure> {
    let Some(gpu) = gpu else { return Ok(None) };
    Ok(Some(Box::new(CudaCopyEngine::new([&gpu, &gpu], STAGING_BUFFER_BYTES, MAX_COPIES)?)))
}

/// Exchanges by the host library's bootstrap.
pub struct Exchange<'a>(&'a mut Bootstrap);

impl Exchange<'_> {
    /// # Safety
    /// It is the bootstrap that the host library has put into the transport structure, or null.
    pub unsafe fn new<'a>(bootstrap: *mut Bootstrap) -> Result<Exchange<'a>, Failure> {
        // SAFETY: the caller's promise; the host library keeps it as long as it runs.
        unsafe { bootstrap.as_mut() }.map(Exchange).ok_or_else(|| Failure::null("the bootstrap"))
    }

    /// Gathers all PEs' bytes, which may have different lengths.
    fn allgather(&mut self, mine: &[u8], n_pes: u32) -> Result<Vec<Vec<u8>>, Failure> {
        let mut lengths = vec![0u8; 8 * n_pes as usize];
        self.allgather_equal(&(mine.len() as u64).to_le_bytes(), &mut lengths)?;
        let lengths: Vec<usize> = lengths.as_chunks().0.iter().map(|b| u64::from_le_bytes(*b) as usize).collect();
        let longest = lengths.iter().copied().max().unwrap_or(0).max(1);
        if longest > 1 << 24 {
            return Err(Failure::argument(format!("the bootstrap brought connection info of {longest} bytes")));
        }
        let mut padded = mine.to_vec();
        padded.resize(longest, 0);
        let mut all = vec![0; longest * n_pes as usize];
        self.allgather_equal(&padded, &mut all)?;
        Ok(all
            .chunks_exact(longest)
            .zip(lengths)
            .map(|(connection_info, len)| connection_info[..len].to_vec())
            .collect())
    }

    fn allgather_equal(&mut self, mine: &[u8], all: &mut [u8]) -> Result<(), Failure> {
        let Some(allgather) = self.0.allgather else { return Err(Failure::null("the bootstrap's allgather")) };
        let bytes =
            c_int::try_from(mine.len()).map_err(|_| Failure::argument("connection info that is too large".into()))?;
        // SAFETY: a function of the host library, with a buffer of `bytes` for each PE.
        let code = unsafe { allgather(mine.as_ptr().cast(), all.as_mut_ptr().cast(), bytes, self.0) };
        if code == 0 { Ok(()) } else { Err(Failure::argument(format!("the bootstrap's allgather failed with {code}"))) }
    }
}
