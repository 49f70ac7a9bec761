//! Programs in CUDA C++ with the device API, compiled at run time.
//!
//! The API's headers are built into this library, so a program needs only NVRTC, which is loaded on demand.

use std::ffi::CStr;
use std::path::{Path, PathBuf};

use symrail_cuda::Compiled;
use symrail_cuda::nvrtc::Source;

use super::error::Result;

/// The headers: the name in an `#include`, and the text.
pub const HEADERS: [(&CStr, &str); 25] = [
    (c"symrail_device.cuh", include_str!("../../include/symrail_device.cuh")),
    (c"symrail_nvshmem.cuh", include_str!("../../include/symrail_nvshmem.cuh")),
    (c"../symrail_layout.h", include_str!("../../include/symrail_layout.h")),
    (c"symrail/api.cuh", include_str!("../../include/symrail/api.cuh")),
    (c"symrail/combine.cuh", include_str!("../../include/symrail/combine.cuh")),
    (c"batch.cuh", include_str!("../../include/symrail/batch.cuh")),
    (c"state.cuh", include_str!("../../include/symrail/state.cuh")),
    (c"failure.cuh", include_str!("../../include/symrail/failure.cuh")),
    (c"order.cuh", include_str!("../../include/symrail/order.cuh")),
    (c"team.cuh", include_str!("../../include/symrail/team.cuh")),
    (c"amo.cuh", include_str!("../../include/symrail/amo.cuh")),
    (c"rma.cuh", include_str!("../../include/symrail/rma.cuh")),
    (c"route.cuh", include_str!("../../include/symrail/route.cuh")),
    (c"channel.cuh", include_str!("../../include/symrail/channel.cuh")),
    (c"shared_poll.cuh", include_str!("../../include/symrail/shared_poll.cuh")),
    (c"mail.cuh", include_str!("../../include/symrail/mail.cuh")),
    (c"bulk.cuh", include_str!("../../include/symrail/bulk.cuh")),
    (c"memory.cuh", include_str!("../../include/symrail/memory.cuh")),
    (c"symrail_channels.cuh", include_str!("../../include/symrail_channels.cuh")),
    (c"symrail/memory_channel.cuh", include_str!("../../include/symrail/memory_channel.cuh")),
    (c"packet.cuh", include_str!("../../include/symrail/packet.cuh")),
    (c"semaphore.cuh", include_str!("../../include/symrail/semaphore.cuh")),
    (c"semaphore_layout.cuh", include_str!("../../include/symrail/semaphore_layout.cuh")),
    (c"memory_channel_layout.cuh", include_str!("../../include/symrail/memory_channel_layout.cuh")),
    (c"symrail/number.cuh", include_str!("../../include/symrail/number.cuh")),
];

/// What this crate's programs for streams share.
const ON_STREAM: [(&CStr, &str); 1] = [(c"on_stream.cuh", include_str!("../../cu/on_stream.cuh"))];

/// A program's source.
#[derive(Debug, Clone)]
pub struct Program<'a> {
    name: &'a str,
    source: &'a str,
    headers: &'a [(&'a CStr, &'a str)],
}

/// The loaded NVRTC, with the device API's headers.
pub struct Nvrtc {
    library: symrail_cuda::Nvrtc,
    include: Option<PathBuf>,
}

impl Nvrtc {
    /// Loads NVRTC from one of the folders, or else from the system's paths.
    ///
    /// # Errors
    /// NVRTC is missing.
    pub fn load(folders: &[PathBuf]) -> Result<Self> {
        Ok(Self { library: symrail_cuda::Nvrtc::load(folders)?, include: None })
    }

    /// As [`Nvrtc::load`], from the usual folders of CUDA's toolkit: `CUDA_HOME`, `CUDA_PATH`, `/usr/local/cuda`.
    ///
    /// # Errors
    /// NVRTC is missing.
    pub fn find() -> Result<Self> {
        Ok(Self { library: symrail_cuda::Nvrtc::find()?, include: None })
    }

    /// Uses the API's headers in a folder instead of the built-in ones. It serves development of the headers.
    #[must_use]
    pub fn with_headers_in(self, folder: &Path) -> Self {
        Self { include: Some(folder.into()), ..self }
    }

    /// The version, such as `13.0`.
    #[must_use]
    pub fn version(&self) -> String {
        self.library.version()
    }

    /// Whether the API's headers are in a folder.
    pub(super) fn reads_headers(&self) -> bool {
        self.include.is_some()
    }

    /// Compiles a program for an architecture such as `sm_90`.
    ///
    /// # Errors
    /// The compiler's messages.
    pub fn compile(&self, program: &Program<'_>, arch: &str) -> Result<Compiled> {
        self.with_source(program, |source| self.library.compile(source, arch))
    }

    /// As [`Nvrtc::compile`] in a sixth of the time, to slow machine code: for tests of whether a program compiles.
    ///
    /// # Errors
    /// The compiler's messages.
    pub fn compile_quickly(&self, program: &Program<'_>, arch: &str) -> Result<Compiled> {
        self.with_source(program, |source| self.library.compile_quickly(source, arch))
    }

    fn with_source(
        &self,
        program: &Program<'_>,
        compile: impl FnOnce(&Source<'_>) -> symrail_cuda::Result<Compiled>,
    ) -> Result<Compiled> {
        let api: &[(&CStr, &str)] = if self.include.is_some() { &[] } else { &HEADERS };
        let headers = [api, program.headers].concat();
        let source =
            Source { name: program.name, text: program.source, headers: &headers, include: self.include.as_deref() };
        Ok(compile(&source)?)
    }
}

impl<'a> Program<'a> {
    /// Names a source; the name is for messages.
    #[must_use]
    pub const fn new(name: &'a str, source: &'a str) -> Self {
        Self { name, source, headers: &[] }
    }

    /// Adds headers of the program: the name in an `#include`, and the text.
    #[must_use]
    pub const fn with_headers(self, headers: &'a [(&'a CStr, &'a str)]) -> Self {
        Self { headers, ..self }
    }

    /// The programs of this crate, which verify and measure the device API.
    pub const OWN: [Program<'static>; 2] = [
        Program::new("verify.cu", include_str!("../../cu/verify.cu")),
        Program::new("bench.cu", include_str!("../../cu/bench.cu")),
    ];

    /// The tests of `symrail perf`, as kernels.
    pub const PERF: Program<'static> = Program::new("perf.cu", include_str!("../../cu/perf.cu"));

    /// Operations in the order of a stream, for [`OnStream`](super::OnStream).
    pub const STREAM: Program<'static> =
        Program::new("stream.cu", include_str!("../../cu/stream.cu")).with_headers(&ON_STREAM);

    /// Collectives in the order of a stream, for [`Collectives`](super::Collectives).
    pub const COLLECTIVES: Program<'static> =
        Program::new("collectives.cu", include_str!("../../cu/collectives.cu")).with_headers(&ON_STREAM);

    /// All names and texts that the compiler reads.
    pub(super) fn texts(&self) -> impl Iterator<Item = &[u8]> {
        let headers = HEADERS.iter().chain(self.headers).flat_map(|(name, text)| [name.to_bytes(), text.as_bytes()]);
        [self.name.as_bytes(), self.source.as_bytes()].into_iter().chain(headers)
    }

    /// The program's name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.name
    }
}
