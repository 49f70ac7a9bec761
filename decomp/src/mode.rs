//! The choices of a plan that change its speed and not its results.

/// The mode of a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct Mode {
    /// Whether blocks are unpacked as they arrive, and sent as they are packed. Otherwise each step ends for all blocks
    /// before the next one begins. On GPUs that concerns blocks of 128 MiB or more that copy engines move: they are
    /// exchanged in parts, each of which is unpacked while the next one is on its way.
    pub pipelined: bool,
    /// Whether blocks go straight from input to output where the staging rule allows it, and small blocks over rails
    /// through buffers of their own. Otherwise all blocks go through the workspace.
    pub direct: bool,
    /// On GPUs, the least bytes for which copy engines move the blocks of a pair of peers whose memory is mapped. The
    /// larger of the pair's two blocks counts. Multiprocessors only pack and unpack such blocks. With `None`
    /// multiprocessors perform all steps. It has no effect on host memory.
    #[serde(default)]
    pub engines: Option<usize>,
}

impl Default for Mode {
    fn default() -> Mode {
        Mode { pipelined: true, direct: true, engines: None }
    }
}

impl Mode {
    /// The modes that differ on host memory, or on GPUs.
    #[must_use]
    pub fn all(on_gpu: bool) -> Vec<Mode> {
        let best = Mode::default();
        let staged = Mode { direct: false, ..best };
        match on_gpu {
            true => vec![best, Mode { pipelined: false, ..best }, staged, Mode { engines: Some(0), ..best }],
            false => vec![best, Mode { pipelined: false, ..best }, staged, Mode { pipelined: false, ..staged }],
        }
    }

    /// The parameters that must be the same on all PEs.
    pub(crate) fn parameters(self) -> [(&'static str, u64); 3] {
        let engines = self.engines.map_or(u64::MAX, |bytes| bytes as u64);
        [("pipelining", self.pipelined.into()), ("direct", self.direct.into()), ("copy engines", engines)]
    }
}
