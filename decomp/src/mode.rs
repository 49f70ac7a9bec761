//! The choices of a plan that change its speed and not its results.

/// How a plan does its work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct Mode {
    /// Blocks are unpacked as they come, and sent as they are packed; else all of each step is done before the next.
    pub pipelined: bool,
    /// Blocks go straight from input to output where the staging rule allows it, and small ones over rails through room
    /// of their own; else all go through the workspace.
    pub direct: bool,
    /// On GPUs, copy engines move blocks between peers whose memory is mapped if the larger of the two, that which goes
    /// and that which comes, has at least so many bytes; multiprocessors only pack and unpack them. Without it
    /// multiprocessors do it all. It says nothing on host memory.
    #[serde(default)]
    pub engines: Option<usize>,
}

impl Default for Mode {
    fn default() -> Mode {
        Mode { pipelined: true, direct: true, engines: None }
    }
}

impl Mode {
    /// The modes that differ on host memory, or on GPUs, where blocks are unpacked when all have come.
    #[must_use]
    pub fn all(on_gpu: bool) -> Vec<Mode> {
        let best = Mode::default();
        let staged = Mode { direct: false, ..best };
        match on_gpu {
            true => vec![best, staged, Mode { engines: Some(0), ..best }],
            false => vec![best, Mode { pipelined: false, ..best }, staged, Mode { pipelined: false, ..staged }],
        }
    }

    /// The numbers that PEs must have in common.
    pub(crate) fn parameters(self) -> [(&'static str, u64); 3] {
        let engines = self.engines.map_or(u64::MAX, |bytes| bytes as u64);
        [("pipelining", self.pipelined.into()), ("direct", self.direct.into()), ("copy engines", engines)]
    }
}
