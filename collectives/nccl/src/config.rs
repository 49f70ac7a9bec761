//! Configurations of communicators and of calls: structures that begin with their size, a mark and a version, and of
//! which callers know the first fields only.

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::mem::offset_of;
use std::ops::RangeInclusive;

use symrail_core::CText;

use crate::guard::Failure;
use crate::one_sided::CONTEXTS;

/// `NCCL_API_MAGIC`
const MAGIC: c_uint = 0xcafe_beef;
/// `NCCL_CONFIG_UNDEF_INT`
const UNSET: c_int = c_int::MIN;
/// More than any version's structure has.
const MOST: usize = 4096;

/// The start of each structure.
#[repr(C)]
#[derive(Clone, Copy)]
struct Head {
    size: usize,
    magic: c_uint,
    version: c_uint,
}

/// `ncclConfig_t` of 2.32.
#[repr(C)]
#[derive(Clone, Copy)]
struct Config {
    head: Head,
    blocking: c_int,
    cga_cluster_size: c_int,
    min_ctas: c_int,
    max_ctas: c_int,
    net_name: *const c_char,
    split_share: c_int,
    traffic_class: c_int,
    comm_name: *const c_char,
    collnet_enable: c_int,
    cta_policy: c_int,
    shrink_share: c_int,
    nvls_ctas: c_int,
    channels_per_net_peer: c_int,
    nvlink_centric_sched: c_int,
    graph_usage_mode: c_int,
    num_rma_ctx: c_int,
    max_p2p_peers: c_int,
    graph_stream_ordering: c_int,
    launch_order_implicit: c_int,
    num_rma_sig: c_int,
    rma_eager_init: c_int,
    host_cft_mode: c_int,
    nvls_host_mode: c_int,
}

/// `ncclCollConfig_t` of 2.32.
#[repr(C)]
#[derive(Clone, Copy)]
struct CallConfig {
    head: Head,
    extensions: *const c_void,
    min_ctas: c_int,
    max_ctas: c_int,
    nvls_ctas: c_int,
    cga_cluster_size: c_int,
    algorithm: CText,
    force_algorithm: c_int,
    cta_policy: c_int,
    profiler_tag: u64,
    launch_completion: *const c_void,
}

/// `ncclCommProperties_t` of 2.32, as far as it is not zero here.
#[repr(C)]
struct Properties {
    head: Head,
    /// `rank`, `nRanks`, `cudaDev`, `nvmlDev`
    known: [c_int; 4],
}

const NONE: Head = Head { size: 0, magic: 0, version: 0 };

/// A structure that C's caller passes: null, or the address of one that begins with [`Head`]. The caller promises that
/// it is initialised, as long as it says, and used by no other code until the function returns.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct Structure(*mut c_void);

impl Structure {
    /// No structure.
    pub const NONE: Structure = Structure(std::ptr::null_mut());

    /// A structure with this mark and one of these sizes; `None` for a null pointer.
    pub fn find(self, what: &str, mark: c_uint, sizes: RangeInclusive<usize>) -> Result<Option<Found>, Failure> {
        if self.0.is_null() {
            return Ok(None);
        }
        // SAFETY: the caller's promise.
        let Head { size, magic, .. } = unsafe { self.0.cast::<Head>().read_unaligned() };
        if magic != mark || !sizes.contains(&size) {
            let why =
                format!("{what} has the size {size} and the mark {magic:#x}: initialise it with NCCL's initializer");
            return Err(Failure::argument(why));
        }
        Ok(Some(Found { at: self.0.cast(), size }))
    }

    /// The structure, with `unset` for the fields that the caller's version lacks; `None` for a null pointer.
    fn read<T: Copy>(self, what: &str, unset: T) -> Result<Option<T>, Failure> {
        let Some(Found { at, size }) = self.find(what, MAGIC, size_of::<Head>()..=MOST)? else { return Ok(None) };
        let mut read = unset;
        // SAFETY: the caller's promise; the fields of all versions begin alike.
        unsafe { std::ptr::copy_nonoverlapping(at, (&raw mut read).cast(), size.min(size_of::<T>())) };
        Ok(Some(read))
    }
}

/// A structure whose mark and size have been checked.
pub struct Found {
    at: *mut u8,
    size: usize,
}

impl Found {
    pub fn size(&self) -> usize {
        self.size
    }

    /// Writes a field, if it lies within the caller's size.
    pub fn set<T: Copy>(&self, offset: usize, value: T) {
        if offset.checked_add(size_of::<T>()).is_some_and(|end| end <= self.size) {
            // SAFETY: the caller's promise.
            unsafe { self.at.add(offset).cast::<T>().write_unaligned(value) };
        }
    }
}

/// Checks fields as NCCL does, and logs those that are set: none of them has an effect here.
fn check(what: &str, fields: &[(&str, c_int, c_int, c_int)], also: &[(&str, bool)]) -> Result<(), Failure> {
    for (name, value, least, most) in fields {
        if *value != UNSET && !(least..=most).contains(&value) {
            return Err(Failure::argument(format!("{what}: {name} is {value}, and has to be {least} to {most}")));
        }
    }
    let set = fields.iter().filter(|(_, value, ..)| *value != UNSET).map(|(name, ..)| *name);
    let set: Vec<&str> = set.chain(also.iter().filter(|(_, set)| *set).map(|(name, _)| *name)).collect();
    if !set.is_empty() {
        tracing::info!("{what}: {} without effect here", set.join(", "));
    }
    Ok(())
}

fn check_ctas(what: &str, least: c_int, most: c_int) -> Result<(), Failure> {
    if least != UNSET && most != UNSET && least > most {
        return Err(Failure::argument(format!("{what}: minCTAs is {least}, above maxCTAs, {most}")));
    }
    Ok(())
}

impl Structure {
    /// Checks a communicator's configuration, an `ncclConfig_t`.
    pub fn check_for_communicator(self) -> Result<(), Failure> {
        const WHAT: &str = "ncclConfig_t";
        const ANY: (c_int, c_int) = (c_int::MIN, c_int::MAX);
        let unset = Config {
            head: NONE,
            blocking: UNSET,
            cga_cluster_size: UNSET,
            min_ctas: UNSET,
            max_ctas: UNSET,
            net_name: std::ptr::null(),
            split_share: UNSET,
            traffic_class: UNSET,
            comm_name: std::ptr::null(),
            collnet_enable: UNSET,
            cta_policy: UNSET,
            shrink_share: UNSET,
            nvls_ctas: UNSET,
            channels_per_net_peer: UNSET,
            nvlink_centric_sched: UNSET,
            graph_usage_mode: UNSET,
            num_rma_ctx: UNSET,
            max_p2p_peers: UNSET,
            graph_stream_ordering: UNSET,
            launch_order_implicit: UNSET,
            num_rma_sig: UNSET,
            rma_eager_init: UNSET,
            host_cft_mode: UNSET,
            nvls_host_mode: UNSET,
        };
        let Some(config) = self.read(WHAT, unset)? else { return Ok(()) };
        check_ctas(WHAT, config.min_ctas, config.max_ctas)?;
        let fields = [
            ("blocking", config.blocking, 0, 1),
            ("cgaClusterSize", config.cga_cluster_size, 0, 8),
            ("minCTAs", config.min_ctas, 1, c_int::MAX),
            ("maxCTAs", config.max_ctas, 1, c_int::MAX),
            ("splitShare", config.split_share, 0, 1),
            ("trafficClass", config.traffic_class, ANY.0, ANY.1),
            ("collnetEnable", config.collnet_enable, 0, 1),
            ("CTAPolicy", config.cta_policy, 0, 3),
            ("shrinkShare", config.shrink_share, 0, 1),
            ("nvlsCTAs", config.nvls_ctas, 1, c_int::MAX),
            ("nChannelsPerNetPeer", config.channels_per_net_peer, 1, c_int::MAX),
            ("nvlinkCentricSched", config.nvlink_centric_sched, 0, 1),
            ("graphUsageMode", config.graph_usage_mode, 0, 2),
            ("numRmaCtx", config.num_rma_ctx, 1, CONTEXTS as c_int),
            ("maxP2pPeers", config.max_p2p_peers, ANY.0, ANY.1),
            ("graphStreamOrdering", config.graph_stream_ordering, ANY.0, ANY.1),
            ("launchOrderImplicit", config.launch_order_implicit, ANY.0, ANY.1),
            ("numRmaSig", config.num_rma_sig, ANY.0, ANY.1),
            ("rmaEagerInit", config.rma_eager_init, ANY.0, ANY.1),
            ("hostCftMode", config.host_cft_mode, ANY.0, ANY.1),
            ("nvlsHostMode", config.nvls_host_mode, ANY.0, ANY.1),
        ];
        check(WHAT, &fields, &[("netName", !config.net_name.is_null()), ("commName", !config.comm_name.is_null())])
    }

    /// Checks a call's configuration, an `ncclCollConfig_t`. What it asks for must not be left out is refused.
    pub fn check_for_call(self) -> Result<(), Failure> {
        const WHAT: &str = "ncclCollConfig_t";
        let unset = CallConfig {
            head: NONE,
            extensions: std::ptr::null(),
            min_ctas: UNSET,
            max_ctas: UNSET,
            nvls_ctas: UNSET,
            cga_cluster_size: UNSET,
            algorithm: CText::NULL,
            force_algorithm: 1,
            cta_policy: UNSET,
            profiler_tag: 0,
            launch_completion: std::ptr::null(),
        };
        let Some(config) = self.read(WHAT, unset)? else { return Ok(()) };
        let selects = config.algorithm.get().is_some_and(|name| !name.is_empty());
        if selects && config.force_algorithm != 0 {
            let remedy = "leave it empty, or set forceAlgSelection to 0";
            return Err(Failure::usage(format!("{WHAT}: algSelection selects among NCCL's algorithms: {remedy}")));
        }
        if !config.launch_completion.is_null() {
            return Err(Failure::usage(format!("{WHAT}: launchCompletionEvent is not recorded by this library")));
        }
        check_ctas(WHAT, config.min_ctas, config.max_ctas)?;
        let fields = [
            ("minCTAs", config.min_ctas, 1, c_int::MAX),
            ("maxCTAs", config.max_ctas, 1, c_int::MAX),
            ("nvlsCTAs", config.nvls_ctas, 1, c_int::MAX),
            ("cgaClusterSize", config.cga_cluster_size, 0, 8),
            ("CTAPolicy", config.cta_policy, 0, 3),
        ];
        let also = [
            ("ext", !config.extensions.is_null()),
            ("algSelection", selects),
            ("userProfilerTag", config.profiler_tag != 0),
        ];
        check(WHAT, &fields, &also)
    }

    /// Fills a communicator's properties, an `ncclCommProperties_t`; those that are for kernels, or that the structure
    /// has further on, are zeros.
    pub fn fill_properties(self, known: [c_int; 4]) -> Result<(), Failure> {
        let found = self.find("ncclCommProperties_t", MAGIC, size_of::<Head>()..=MOST)?;
        let found = found.ok_or_else(|| Failure::argument("props is a null pointer"))?;
        if found.size < size_of::<Properties>() {
            return Err(Failure::argument(format!("ncclCommProperties_t has {} bytes only", found.size)));
        }
        found.set(offset_of!(Properties, known), known);
        (size_of::<Properties>()..found.size).for_each(|rest| found.set(rest, 0u8));
        Ok(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// A configuration as a caller's initializer makes it, with these first fields behind the head.
    fn words(size: usize, magic: c_uint, fields: &[c_int]) -> Vec<u64> {
        let mut all = vec![0u64; 32];
        let ints = [&[size as c_int, 0, magic as c_int, 22_809][..], fields].concat();
        for (i, pair) in ints.chunks(2).enumerate() {
            let high = *pair.get(1).unwrap_or(&0);
            all[i] = u64::from(pair[0] as u32) | u64::from(high as u32) << 32;
        }
        all
    }

    #[test]
    fn configurations_are_checked() {
        let text = |result: Result<(), Failure>| {
            result.map_or_else(|failure| <(c_int, String)>::from(failure).1, |()| String::new())
        };
        let of = |mut words: Vec<u64>| text(Structure(words.as_mut_ptr().cast()).check_for_communicator());
        assert_eq!(text(Structure::NONE.check_for_communicator()), "");
        assert_eq!(of(words(24, MAGIC, &[1, 2])), "");
        assert!(of(words(24, 0, &[1, 2])).contains("the mark 0x0"));
        assert!(of(words(0, MAGIC, &[])).contains("the size 0"));
        assert!(of(words(24, MAGIC, &[2, UNSET])).contains("blocking is 2, and has to be 0 to 1"));
        assert!(of(words(32, MAGIC, &[UNSET, UNSET, 8, 4])).contains("minCTAs is 8, above maxCTAs, 4"));
        // What lies beyond the size is not the caller's.
        assert_eq!(of(words(20, MAGIC, &[1, 99])), "");
    }

    #[test]
    fn properties_have_the_size_of_the_callers_version() {
        let mut memory = words(48, MAGIC, &[]);
        memory[2..].fill(u64::MAX);
        let properties = Structure(memory.as_mut_ptr().cast());
        properties.fill_properties([1, 2, 3, 3]).map_err(<(c_int, String)>::from).unwrap();
        let found = properties.find("", MAGIC, 48..=48).map_err(<(c_int, String)>::from).unwrap();
        found.unwrap().set(44, 0u64);
        assert_eq!(memory[2..7], [1 | 2 << 32, 3 | 3 << 32, 0, 0, u64::MAX]);
    }
}
