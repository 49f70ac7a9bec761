//! The connection info that PEs exchange, and the settings that must agree on all of them.

use serde::{Deserialize, Serialize};
use symrail_core::agreement::same;
use symrail_core::encoding;
use symrail_transport::env::AmoPath;
use symrail_transport::ofi::variables;
use symrail_transport::wire::PROTOCOL_VERSION;
use symrail_transport::{Error, Pe, Result};

/// One PE's connection info.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ConnectionInfo {
    pub version: u32,
    /// Whether NICs perform AMOs; otherwise CPUs do.
    pub native_amo: bool,
    /// The fabric of its rails.
    pub fabric: String,
    /// The size of `ofi_rxm`'s buffers: it connects only to peers with the same size.
    pub rxm_buffers: String,
    /// The IB mode; empty where the backend is not ibverbs.
    pub ib_mode: String,
    /// The addresses of its rails, in lane order.
    pub rails: Vec<Vec<u8>>,
    /// The keys of the staging window; empty where there is none.
    pub window: Vec<u8>,
}

impl ConnectionInfo {
    pub const VERSION: u32 = PROTOCOL_VERSION;

    pub fn encode(&self) -> Vec<u8> {
        encoding::encode(self)
    }

    /// Decodes the connection infos of all PEs and checks that they agree. Bytes behind a connection info are ignored.
    pub fn decode_all(connection_infos: &[Vec<u8>], n_pes: u32) -> Result<Vec<ConnectionInfo>> {
        if connection_infos.len() != n_pes as usize {
            let why = format!("{} connection infos in a job of {n_pes} PEs", connection_infos.len());
            return Err(Error::Malformed { what: "the list of connection infos", pe: 0, why });
        }
        let decode = |(pe, bytes): (Pe, &Vec<u8>)| Ok(encoding::decode_first(bytes, "connection info", pe)?.0);
        let connection_infos: Vec<ConnectionInfo> = (0..).zip(connection_infos).map(decode).collect::<Result<_>>()?;
        ConnectionInfo::must_agree((0..).zip(&connection_infos))?;
        Ok(connection_infos)
    }

    /// Checks that the connection infos of these PEs agree.
    pub fn must_agree<'a>(all: impl IntoIterator<Item = (Pe, &'a ConnectionInfo)>) -> Result<()> {
        let all: Vec<_> = all.into_iter().collect();
        let all = || all.iter().copied();
        same("the protocol version", all().map(|(pe, c)| (pe, c.version)))?;
        same("the fabric (SYMRAIL_TRANSPORT, SYMRAIL_LIBFABRIC_PROVIDER)", all().map(|(pe, c)| (pe, &c.fabric)))?;
        let over_rxm = all().filter(|(_, c)| c.fabric.contains("ofi_rxm"));
        same(variables::RXM_BUFFERS, over_rxm.map(|(pe, c)| (pe, &c.rxm_buffers)))?;
        same("SYMRAIL_IB_MODE", all().map(|(pe, c)| (pe, &c.ib_mode)))?;
        let amo_path = |native| if native { AmoPath::Native } else { AmoPath::Agent };
        same("SYMRAIL_AMO_PATH", all().map(|(pe, c)| (pe, amo_path(c.native_amo))))?;
        let staged = |c: &ConnectionInfo| if c.window.is_empty() { "none" } else { "staging" };
        same("whether memory is staged (a GPU on all PEs or on none)", all().map(|(pe, c)| (pe, staged(c))))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn connection_infos_come_back_and_must_agree() {
        let one = ConnectionInfo {
            version: 1,
            native_amo: false,
            fabric: "tcp".into(),
            rxm_buffers: String::new(),
            ib_mode: String::new(),
            rails: vec![vec![1], vec![2]],
            window: Vec::new(),
        };
        let mut padded = one.encode();
        padded.resize(600, 0);
        assert_eq!(ConnectionInfo::decode_all(&[one.encode(), padded], 2).unwrap(), [one.clone(), one.clone()]);
        let other = ConnectionInfo { fabric: "shm".into(), ..one.clone() };
        let error = ConnectionInfo::decode_all(&[one.encode(), other.encode()], 2).unwrap_err().to_string();
        assert!(error.contains("PE 1 has shm, PE 0 has tcp") && error.contains("PROVIDER"), "{error}");
        let rxm = ["4304", "libfabric's default"].map(|size| ConnectionInfo {
            fabric: "tcp;ofi_rxm".into(),
            rxm_buffers: size.into(),
            ..one.clone()
        });
        let error = ConnectionInfo::decode_all(&rxm.map(|info| info.encode()), 2).unwrap_err().to_string();
        assert!(
            error.contains("FI_OFI_RXM_BUFFER_SIZE differs: PE 1 has libfabric's default, PE 0 has 4304"),
            "{error}"
        );
        let staged = ConnectionInfo { window: vec![1; 16], ..one.clone() };
        let error = ConnectionInfo::decode_all(&[one.encode(), staged.encode()], 2).unwrap_err().to_string();
        assert!(error.contains("PE 1 has staging, PE 0 has none"), "{error}");
        assert!(ConnectionInfo::decode_all(&[one.encode()], 2).is_err());
        assert!(ConnectionInfo::decode_all(&[one.encode(), vec![9; 7]], 2).is_err());
    }
}
