//! The catalog of tests.

/// The thread or kernel that starts the operations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Device {
    /// The PE's host thread
    Host,
    /// A CPU thread that asks through a channel, as a GPU kernel does
    Cpu,
    /// A GPU kernel
    Cuda,
}

impl std::fmt::Display for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Device::Host => "host",
            Device::Cpu => "cpu",
            Device::Cuda => "cuda",
        })
    }
}

/// The carrier of a test's data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layer {
    /// The runtime.
    Runtime,
    /// Bare libfabric.
    Libfabric,
    /// Copies by the CPU between two shared mappings.
    Copies,
}

/// The work that is timed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Work {
    /// One put, and quiet.
    Put,
    /// One blocking get.
    Get,
    /// Windows of puts, a quiet after each.
    PutWindows(usize),
    /// Windows of gets, a quiet after each.
    GetWindows(usize),
    /// Puts, and one quiet at the end of a batch.
    PutStream,
    /// One fetch-add.
    FetchAdd,
    /// Windows of adds, a quiet after each.
    AddWindows(usize),
    /// Windows of signals that add, a quiet after each.
    SignalWindows(usize),
    /// Blocking gets, one after the other, by each of so many threads.
    Gets(usize),
    /// Fetch-adds, one after the other, by each of so many threads.
    FetchAdds(usize),
    /// A signal there, a signal back.
    SignalPingPong,
    /// An 8-byte put there, one back; polled in memory.
    PutPingPong,
    /// A put with a signal there, one back.
    PutSignalPingPong,
    /// A put, a fence, a put, and quiet.
    FencedPuts,
    /// Each PE puts to every other PE, then a barrier.
    AllToAll,
    /// A barrier.
    Barrier,
    /// Tokens to the ranks of their experts, and back.
    Experts(Phase),
    /// A collective of devices.
    Collective(Collective),
    /// An exchange of an array in pencils.
    Pencils(Exchange),
    /// A product of a layer that is spread over all PEs.
    Product(Product),
    /// Joining the job.
    Init,
    /// Resident memory besides the heap, once all PEs have talked to all.
    Memory,
    /// Processor time of a PE that sleeps.
    Idle,
}

/// A phase of expert parallelism.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Dispatch of many tokens.
    Dispatch,
    /// Combine of many tokens.
    Combine,
    /// Dispatch and combine of few tokens.
    LowLatency,
}

impl Work {
    /// Whether many threads do it, which are started for the test.
    #[must_use]
    pub fn is_by_threads(self) -> bool {
        matches!(self, Work::Gets(_) | Work::FetchAdds(_))
    }

    /// Whether it adds to the peer's counter.
    #[must_use]
    pub fn counts(self) -> bool {
        matches!(self, Work::FetchAdd | Work::FetchAdds(_) | Work::AddWindows(_) | Work::SignalWindows(_))
    }
}

/// A collective of devices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Collective {
    AllReduce,
    AllGather,
    ReduceScatter,
    AllToAll,
    Broadcast,
    Reduce,
}

/// An exchange of an array in pencils.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exchange {
    /// The four transposes between pencils along X, Y and Z.
    Transpose,
    /// A halo of one element.
    Halo,
}

/// A product of a layer that is spread over all PEs; rows move during the product.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Product {
    /// The rows of all PEs are gathered.
    AllGather,
    /// Summed over all PEs; each PE gets its rows.
    ReduceScatter,
    /// Summed over all PEs; each PE gets all rows.
    AllReduce,
}

/// The sizes of a test.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sizes {
    /// The range of `-b` and `-e`.
    Range,
    /// One word.
    Word,
    /// A token of usual size, or the range of `-b` and `-e`.
    Token,
    /// Cubes of 32, 64 and 128 elements along an edge, or the range of `-b` and `-e`.
    Cube,
    /// Rows of 256 KiB, 1 MiB and 4 MiB, or the range of `-b` and `-e`.
    Rows,
    /// No sizes.
    None,
}

/// One test.
#[derive(Debug)]
pub struct Test {
    pub name: &'static str,
    pub layer: Layer,
    pub work: Work,
    pub sizes: Sizes,
    /// Microseconds, megabytes (10^6) per second, millions of operations per second, …
    pub unit: &'static str,
    pub about: &'static str,
}

impl Test {
    /// Whether `all` includes it: the other tests take long, or measure a PE instead of operations.
    #[must_use]
    pub fn in_all(&self) -> bool {
        let alone = matches!(self.work, Work::Experts(_) | Work::Collective(_) | Work::Pencils(_) | Work::Product(_));
        self.is_repeated() && !alone
    }

    /// Whether it is repeated many times.
    #[must_use]
    pub fn is_repeated(&self) -> bool {
        !matches!(self.work, Work::Init | Work::Memory | Work::Idle)
    }

    /// Smaller is better.
    #[must_use]
    pub fn is_latency(&self) -> bool {
        self.unit == "us"
    }

    /// Whether it needs two PEs, instead of any number.
    #[must_use]
    pub fn needs_two(&self) -> bool {
        self.layer != Layer::Runtime
    }

    /// Whether `--busy-target` and `--idle-target` may be used with it.
    #[must_use]
    pub fn can_be_single(&self) -> bool {
        self.layer == Layer::Runtime && matches!(self.work, Work::Put | Work::Get | Work::FetchAdd)
    }

    /// Whether that device can start it.
    #[must_use]
    pub fn runs_on(&self, device: Device) -> bool {
        match (device, self.work) {
            (Device::Host, _) => true,
            // These run on the CPU device in any case: on host memory they have one form.
            (Device::Cpu, Work::Collective(_) | Work::Experts(_) | Work::Product(_)) => true,
            (Device::Cuda, Work::Pencils(_) | Work::Experts(_) | Work::Product(_)) => true,
            _ => self.layer == Layer::Runtime && self.in_all(),
        }
    }
}

/// Finds a test by its name.
#[cfg(test)]
#[must_use]
pub fn find(name: &str) -> Option<&'static Test> {
    TESTS.iter().find(|test| test.name == name)
}

macro_rules! test {
    ($name:literal, $layer:ident, $work:expr, $sizes:ident, $unit:literal, $about:literal) => {
        Test { name: $name, layer: Layer::$layer, work: $work, sizes: Sizes::$sizes, unit: $unit, about: $about }
    };
}

/// Window of bandwidth tests, unless `-W` is given.
const WIDE: usize = 64;
/// Window of rate tests.
const DEEP: usize = 64;

/// Threads of tests by many, unless `--threads` is given: the host's backend has one.
const ONE: usize = 1;

/// Every test, in the order in which `all` runs them: bare tests first, before a runtime exists.
#[rustfmt::skip] // One line per test.
pub static TESTS: &[Test] = &[
    test!("raw-put-lat", Libfabric, Work::Put, Range, "us", "put, awaited delivery, on bare libfabric"),
    test!("raw-get-lat", Libfabric, Work::Get, Range, "us", "get on bare libfabric"),
    test!("raw-put-bw", Libfabric, Work::PutWindows(WIDE), Range, "MB/s", "windows of puts, all deliveries awaited after each, on bare libfabric"),
    test!("raw-get-bw", Libfabric, Work::GetWindows(WIDE), Range, "MB/s", "windows of gets, all awaited after each, on bare libfabric"),
    test!("raw-put-rate", Libfabric, Work::PutWindows(DEEP), Word, "Mop/s", "windows of 64 8-byte puts, all deliveries awaited after each, on bare libfabric"),
    test!("raw-put-pingpong", Libfabric, Work::PutPingPong, Word, "us", "half round trip of an 8-byte put on bare libfabric"),
    test!("raw-amo-lat", Libfabric, Work::FetchAdd, Word, "us", "the provider's own fetch-add"),
    test!("raw-amo-rate", Libfabric, Work::AddWindows(DEEP), Word, "Mop/s", "windows of 64 of the provider's own adds, all awaited after each"),
    test!("raw-memcpy-bw", Copies, Work::PutWindows(WIDE), Range, "MB/s", "memcpy between shared mappings of two processes"),
    test!("put-bw", Runtime, Work::PutWindows(WIDE), Range, "MB/s", "windows of puts, a quiet after each"),
    test!("put-lat", Runtime, Work::Put, Range, "us", "put and quiet"),
    test!("get-bw", Runtime, Work::GetWindows(WIDE), Range, "MB/s", "windows of gets, a quiet after each"),
    test!("get-lat", Runtime, Work::Get, Range, "us", "blocking get"),
    test!("p-rate", Runtime, Work::PutWindows(DEEP), Word, "Mop/s", "windows of 64 8-byte puts, a quiet after each"),
    test!("put-rate", Runtime, Work::PutStream, Word, "Mop/s", "8-byte puts, one quiet at the end"),
    test!("put-pingpong", Runtime, Work::PutPingPong, Word, "us", "half round trip of an 8-byte put"),
    test!("amo-lat", Runtime, Work::FetchAdd, Word, "us", "fetch-add of 8 bytes"),
    test!("amo-rate", Runtime, Work::AddWindows(DEEP), Word, "Mop/s", "windows of 64 adds, a quiet after each"),
    test!("get-rate", Runtime, Work::Gets(ONE), Range, "Mop/s", "blocking gets by each of --threads threads"),
    test!("fetch-rate", Runtime, Work::FetchAdds(ONE), Word, "Mop/s", "fetch-adds of 8 bytes by each of --threads threads"),
    test!("signal-rate", Runtime, Work::SignalWindows(DEEP), Word, "Mop/s", "windows of 64 signals that add, a quiet after each"),
    test!("signal-lat", Runtime, Work::SignalPingPong, Word, "us", "half round trip of a signal"),
    test!("put-signal-pingpong", Runtime, Work::PutSignalPingPong, Range, "us", "half round trip of a put with a signal"),
    test!("fence-lat", Runtime, Work::FencedPuts, Range, "us", "put, fence, put, quiet"),
    test!("alltoall-bw", Runtime, Work::AllToAll, Range, "MB/s", "each PE puts to all others, then a barrier; what one PE sends"),
    test!("barrier-lat", Runtime, Work::Barrier, None, "us", "barrier over all PEs"),
    test!("all-reduce", Runtime, Work::Collective(Collective::AllReduce), Range, "MB/s", "all-reduce of f32 by threads of the CPU device: bus bandwidth"),
    test!("all-gather", Runtime, Work::Collective(Collective::AllGather), Range, "MB/s", "all-gather, of so many bytes in all: bus bandwidth"),
    test!("reduce-scatter", Runtime, Work::Collective(Collective::ReduceScatter), Range, "MB/s", "reduce-scatter of f32, of so many bytes in all: bus bandwidth"),
    test!("all-to-all", Runtime, Work::Collective(Collective::AllToAll), Range, "MB/s", "all-to-all, of so many bytes of each PE: bus bandwidth"),
    test!("broadcast", Runtime, Work::Collective(Collective::Broadcast), Range, "MB/s", "broadcast from PE 0: bus bandwidth"),
    test!("reduce", Runtime, Work::Collective(Collective::Reduce), Range, "MB/s", "reduction of f32 to PE 0: bus bandwidth"),
    test!("ep-dispatch", Runtime, Work::Experts(Phase::Dispatch), Token, "us", "4096 tokens of each PE to the PEs of their experts (8 of 256)"),
    test!("ep-combine", Runtime, Work::Experts(Phase::Combine), Token, "us", "their rows back, and added"),
    test!("ep-ll", Runtime, Work::Experts(Phase::LowLatency), Token, "us", "dispatch and combine of 128 tokens of each PE, low latency"),
    test!("transpose", Runtime, Work::Pencils(Exchange::Transpose), Cube, "us", "transposes X to Y, Y to Z and back of an array of so many bytes, in pencils"),
    test!("halo", Runtime, Work::Pencils(Exchange::Halo), Cube, "us", "updates of a halo of one element along X, Y and Z, of an array of so many bytes in pencils"),
    test!("ag-gemm", Runtime, Work::Product(Product::AllGather), Rows, "GFLOP/s", "all-gather of rows of 512 f32 (of GPUs: 4096 bf16), so many bytes in all, and their product with each PE's square weight, overlapped"),
    test!("gemm-rs", Runtime, Work::Product(Product::ReduceScatter), Rows, "GFLOP/s", "product of rows with each PE's square weight (as ag-gemm) and reduce-scatter of so many bytes, overlapped"),
    test!("gemm-ar", Runtime, Work::Product(Product::AllReduce), Rows, "GFLOP/s", "product of rows with each PE's square weight (as ag-gemm) and all-reduce of so many bytes, overlapped"),
    test!("init-time", Runtime, Work::Init, None, "ms", "joining the job, of the slowest PE"),
    test!("memory", Runtime, Work::Memory, None, "MiB", "resident memory besides heaps, of the largest PE"),
    test!("idle-cpu", Runtime, Work::Idle, None, "%", "processor time of a PE that sleeps 5 s, of the busiest PE"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_and_only_once() {
        for test in TESTS {
            assert_eq!(TESTS.iter().filter(|other| other.name == test.name).count(), 1, "{}", test.name);
            assert!(find(test.name).is_some_and(|found| std::ptr::eq(found, test)));
            assert_eq!(test.name.starts_with("raw-"), test.layer != Layer::Runtime, "{}", test.name);
            assert_eq!(test.is_latency(), test.unit == "us");
        }
        assert!(find("all").is_none());
    }

    #[test]
    fn devices_have_their_tests() {
        let on = |device| TESTS.iter().filter(|test| test.runs_on(device)).map(|test| test.name).collect::<Vec<_>>();
        let (cpu, cuda) = (on(Device::Cpu), on(Device::Cuda));
        assert_eq!(on(Device::Host).len(), TESTS.len());
        assert!(["all-reduce", "ep-ll", "ag-gemm", "put-lat"].iter().all(|name| cpu.contains(name)));
        assert!(!cpu.contains(&"transpose"));
        assert!(["halo", "ep-ll", "ag-gemm", "transpose", "put-lat"].iter().all(|name| cuda.contains(name)));
        assert!(!cuda.iter().any(|name| name.starts_with("raw-") || *name == "all-reduce"));
    }
}
