//! Information that PEs exchange before they connect, and settings that must be equal on all of them.

use serde::{Deserialize, Serialize};
use symrail_core::agreement::same;
use symrail_core::encoding;
use symrail_heap::{HeapHandle, Site};
use symrail_transport::backend::{Choice, HostPes};
use symrail_transport::env::{AmoPath, HeapKind, Settings};
use symrail_transport::ofi::variables;
use symrail_transport::topology::{CpuSet, PciAddress};
use symrail_transport::wire::PROTOCOL_VERSION;
use symrail_transport::{Error, Pe};

/// A PE's first message, before it chooses its rails: where it runs. The handle names the host. Fields of varying
/// length are last, because columns that PEs share travel once.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Hello {
    network: u64,
    gpu: Option<PciAddress>,
    handle: Vec<u8>,
    cpus: CpuSet,
}

impl Hello {
    /// `gpu` is the GPU of its heap, if any.
    pub fn new(handle: &HeapHandle, gpu: Option<PciAddress>) -> Hello {
        let Site { network, gpu, cpus, host: _ } = Site::of_this_process(handle.host.clone(), gpu);
        Hello { network, gpu, handle: handle.encode(), cpus }
    }

    pub fn encode(&self) -> Vec<u8> {
        encoding::encode(self)
    }

    /// Decodes the messages of all PEs, checks that their heaps agree, and returns the PEs of `me`'s host.
    ///
    /// # Errors
    /// [`Error::Malformed`] or [`Error::Mismatch`].
    pub fn decode_all(all: &[Vec<u8>], me: Pe) -> Result<(Vec<HeapHandle>, HostPes), Error> {
        let all: Vec<Hello> = encoding::decode_all(all, "first connection info")?;
        let handles = all.iter().zip(0..).map(|(h, pe)| HeapHandle::decode(&h.handle, pe));
        let handles: Vec<HeapHandle> = handles.collect::<Result<_, _>>()?;
        symrail_heap::check_agreement(&handles)?;
        let site = |(Hello { network, gpu, cpus, .. }, handle): (Hello, &HeapHandle)| Site {
            host: handle.host.clone(),
            network,
            cpus,
            gpu,
        };
        let sites: Vec<Site> = all.into_iter().zip(&handles).map(site).collect();
        Ok((handles, Site::pes_of_host(&sites, me as usize)))
    }
}

/// The keys with which peers' rails access the memory that a proxy thread has registered. A key is empty if there is no
/// such memory.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Keys {
    /// The heap's first segment in host memory.
    pub segment: Vec<u8>,
    /// The staging buffer, for a heap in memory that the CPU cannot access.
    pub staging_buffer: Vec<u8>,
    /// The heap in such memory, if all of the thread's rails reach it.
    pub direct: Vec<u8>,
}

/// The endpoint of one of a PE's proxy threads.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct OfThread {
    pub addresses: Vec<Vec<u8>>,
    pub keys: Keys,
}

/// One PE's connection info.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct ConnectionInfo {
    version: u32,
    /// Whether NICs perform AMOs; otherwise CPUs do.
    pub native_amo: bool,
    check_collectives: bool,
    /// The kind of its heap's memory. Host and pinned memory are the same kind to peers.
    heap_kind: String,
    /// The fabric of its rails; empty without rails.
    fabric: String,
    /// The size of `ofi_rxm`'s buffers: it connects only to peers with the same size.
    rxm_buffers: String,
    /// The IB mode; empty if the backend is not ibverbs.
    ib_mode: String,
    /// The number of its rails, and its host endpoint's addresses.
    rails: usize,
    pub host_addresses: Vec<Vec<u8>>,
    pub proxies: Vec<OfThread>,
    /// Bytes of the heap in memory that the CPU cannot access, and the information with which devices of its host map
    /// it; empty for other heaps.
    staged: u64,
    pub device: Vec<u8>,
}

impl ConnectionInfo {
    /// The connection info of a PE without a wire.
    pub fn without_wire(settings: &Settings) -> ConnectionInfo {
        ConnectionInfo {
            version: PROTOCOL_VERSION,
            native_amo: settings.amo_path == AmoPath::Native,
            check_collectives: settings.check_collectives,
            heap_kind: match settings.heap_kind {
                HeapKind::Host | HeapKind::Pinned => "host or pinned".into(),
                kind => kind.to_string(),
            },
            fabric: String::new(),
            rxm_buffers: variables::in_force(variables::RXM_BUFFERS),
            ib_mode: String::new(),
            rails: 0,
            host_addresses: Vec::new(),
            proxies: Vec::new(),
            staged: 0,
            device: Vec::new(),
        }
    }

    /// Adds a heap of `bytes` that the CPU cannot access; devices map it by `device`.
    pub fn with_staged(self, bytes: usize, device: Vec<u8>) -> ConnectionInfo {
        ConnectionInfo { staged: bytes as u64, device, ..self }
    }

    /// The connection info of a PE whose rails are on `fabric`, with its host endpoint and its proxy threads'
    /// endpoints.
    pub fn new(
        settings: &Settings,
        choice: &Choice,
        fabric: String,
        host_addresses: Vec<Vec<u8>>,
        proxies: Vec<OfThread>,
    ) -> ConnectionInfo {
        ConnectionInfo {
            native_amo: choice.native_amo(settings),
            fabric,
            ib_mode: choice.ib_mode.as_ref().map_or_else(String::new, |(mode, _)| mode.to_string()),
            rails: choice.names().len(),
            host_addresses,
            proxies,
            ..ConnectionInfo::without_wire(settings)
        }
    }

    pub fn encode(&self) -> Vec<u8> {
        encoding::encode(self)
    }

    /// Decodes all connection infos and checks that they agree.
    ///
    /// # Errors
    /// [`Error::Malformed`] or [`Error::Mismatch`].
    pub fn decode_all(connection_infos: &[Vec<u8>]) -> Result<Vec<ConnectionInfo>, Error> {
        let connection_infos: Vec<ConnectionInfo> = encoding::decode_all(connection_infos, "connection info")?;
        let all = || (0..).zip(&connection_infos);
        same("the protocol version", all().map(|(pe, c)| (pe, c.version)))?;
        let wired = || all().filter(|(_, c)| !c.fabric.is_empty());
        let fabric = "the fabric (SYMRAIL_TRANSPORT, SYMRAIL_LIBFABRIC_PROVIDER)";
        same(fabric, wired().map(|(pe, c)| (pe, &c.fabric)))?;
        let rxm = wired().filter(|(_, c)| c.fabric.contains("ofi_rxm"));
        same(variables::RXM_BUFFERS, rxm.map(|(pe, c)| (pe, &c.rxm_buffers)))?;
        same("SYMRAIL_IB_MODE", wired().map(|(pe, c)| (pe, &c.ib_mode)))?;
        let amo_path = |native| if native { AmoPath::Native } else { AmoPath::Agent };
        same("SYMRAIL_AMO_PATH", all().map(|(pe, c)| (pe, amo_path(c.native_amo))))?;
        same("SYMRAIL_HEAP_KIND", all().map(|(pe, c)| (pe, &c.heap_kind)))?;
        same("SYMRAIL_HEAP_KIND and SYMRAIL_HEAP_SIZE (bytes that are staged)", all().map(|(pe, c)| (pe, c.staged)))?;
        same("SYMRAIL_CHECK_COLLECTIVES", all().map(|(pe, c)| (pe, u8::from(c.check_collectives))))?;
        Ok(connection_infos)
    }

    /// The number of proxy threads that all PEs can have, if some have more, and the reason. It is the smallest number
    /// of any PE, since threads with the same index talk to each other; and one if PEs do not have the same rails.
    pub fn fewer_threads(connection_infos: &[ConnectionInfo]) -> Option<(usize, String)> {
        let wired =
            || connection_infos.iter().zip(0u32..).filter(|(connection_info, _)| !connection_info.proxies.is_empty());
        let most = wired().map(|(connection_info, _)| connection_info.proxies.len()).max()?;
        let (fewest, pe) = wired().map(|(connection_info, pe)| (connection_info.proxies.len(), pe)).min()?;
        let (rails, first) = wired().map(|(connection_info, pe)| (connection_info.rails, pe)).next()?;
        let other = wired().find(|(connection_info, _)| connection_info.rails != rails);
        match other {
            Some((connection_info, pe)) if most > 1 => {
                Some((1, format!("PE {first} has {rails} rails, and PE {pe} has {}", connection_info.rails)))
            }
            _ if most > fewest => Some((fewest, format!("PE {pe} has so many"))),
            _ => None,
        }
    }

    /// The fabric of its rails; empty without rails.
    pub fn fabric(&self) -> &str {
        &self.fabric
    }

    /// One kind of key of each PE's proxy thread `thread`; empty for PEs without that thread.
    pub fn keys(all: &[ConnectionInfo], thread: usize, which: impl Fn(&Keys) -> &Vec<u8>) -> Vec<Vec<u8>> {
        let of_pe =
            |info: &ConnectionInfo| info.proxies.get(thread).map_or_else(Vec::new, |it| which(&it.keys).clone());
        all.iter().map(of_pe).collect()
    }

    /// Whether all its rails reach its heap in memory that the CPU cannot access.
    pub fn is_direct(&self) -> bool {
        !self.proxies.is_empty() && self.proxies.iter().all(|it| !it.keys.direct.is_empty())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn connection_info(native: bool) -> ConnectionInfo {
        ConnectionInfo {
            version: PROTOCOL_VERSION,
            native_amo: native,
            check_collectives: false,
            heap_kind: "host or pinned".into(),
            fabric: "tcp;ofi_rxm".into(),
            rxm_buffers: "4304".into(),
            ib_mode: String::new(),
            rails: 2,
            host_addresses: vec![vec![2]],
            proxies: vec![OfThread {
                addresses: vec![vec![3], vec![4]],
                keys: Keys { segment: vec![5], ..Keys::default() },
            }],
            staged: 0,
            device: vec![],
        }
    }

    #[test]
    fn connection_infos_come_back_and_must_agree() {
        let connection_infos =
            ConnectionInfo::decode_all(&[connection_info(false).encode(), connection_info(false).encode()]).unwrap();
        let keys = |thread| ConnectionInfo::keys(&connection_infos, thread, |keys| &keys.segment);
        assert_eq!((keys(0), keys(1)), (vec![vec![5]; 2], vec![vec![]; 2]));
        let error = ConnectionInfo::decode_all(&[connection_info(false).encode(), connection_info(true).encode()])
            .unwrap_err()
            .to_string();
        assert!(error.contains("PE 0 has agent") && error.contains("PE 1 has native"), "{error}");
        let checks = ConnectionInfo { check_collectives: true, ..connection_info(false) }.encode();
        let error = ConnectionInfo::decode_all(&[connection_info(false).encode(), checks]).unwrap_err().to_string();
        assert!(error.contains("SYMRAIL_CHECK_COLLECTIVES"), "{error}");
        let larger = ConnectionInfo { rxm_buffers: "16384".into(), ..connection_info(false) };
        let error =
            ConnectionInfo::decode_all(&[connection_info(false).encode(), larger.encode()]).unwrap_err().to_string();
        assert!(error.contains("FI_OFI_RXM_BUFFER_SIZE differs: PE 1 has 16384, PE 0 has 4304"), "{error}");
        let elsewhere =
            |connection_info: ConnectionInfo| ConnectionInfo { fabric: "shm".into(), ..connection_info }.encode();
        assert!(ConnectionInfo::decode_all(&[elsewhere(connection_info(false)), elsewhere(larger)]).is_ok());
        let with = |ib_mode: &str| {
            ConnectionInfo {
                fabric: "verbs".into(),
                ib_mode: ib_mode.into(),
                ..connection_info(ib_mode == "rdma-atomics")
            }
            .encode()
        };
        let none = ConnectionInfo { fabric: String::new(), ..connection_info(false) }.encode();
        let error =
            ConnectionInfo::decode_all(&[none, with("write-with-imm"), with("rdma-atomics")]).unwrap_err().to_string();
        assert!(error.contains("PE 2 has rdma-atomics, PE 1 has write-with-imm"), "{error}");
        assert!(error.contains("SYMRAIL_IB_MODE"), "{error}");
        assert!(ConnectionInfo::decode_all(&[vec![9; 7]]).is_err());
        assert!(ConnectionInfo::decode_all(&[vec![]]).is_err());
    }

    #[test]
    fn all_have_as_many_proxy_threads_as_the_pe_with_the_fewest() {
        let with = |rails: usize, threads: usize| {
            let proxies = vec![
                OfThread { addresses: vec![vec![3]], keys: Keys { segment: vec![5], ..Keys::default() } };
                threads
            ];
            ConnectionInfo { rails, proxies, ..connection_info(false) }
        };
        let fewer = |connection_infos: &[(usize, usize)]| {
            ConnectionInfo::fewer_threads(
                &connection_infos.iter().map(|&(rails, threads)| with(rails, threads)).collect::<Vec<_>>(),
            )
        };
        for agreed in [&[(4, 4), (4, 4)][..], &[(4, 2), (0, 0), (4, 2)], &[(2, 1), (4, 1)], &[(0, 0)], &[]] {
            assert_eq!(fewer(agreed), None, "{agreed:?}");
        }
        assert_eq!(fewer(&[(4, 4), (0, 0), (4, 2), (4, 3)]), Some((2, "PE 2 has so many".into())));
        assert_eq!(fewer(&[(4, 2), (2, 2)]), Some((1, "PE 0 has 4 rails, and PE 1 has 2".into())));
    }
}
