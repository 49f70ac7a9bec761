//! What PEs tell each other to connect, and what must be the same on all of them.

use serde::{Deserialize, Serialize};
use symrail_transport::wire::PROTOCOL_VERSION;
use symrail_transport::{Error, Pe, Result};

/// One PE's connection info.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ConnectionInfo {
    pub version: u32,
    /// Whether NICs perform AMOs; else CPUs do.
    pub native_amo: bool,
    /// The fabric that its rails are on.
    pub fabric: String,
    /// The IB mode; empty where the backend is not ibverbs.
    pub ib_mode: String,
    /// The addresses of its rails, in lane order.
    pub rails: Vec<Vec<u8>>,
    /// The keys of the window through which memory is staged; empty where none is.
    pub window: Vec<u8>,
}

impl ConnectionInfo {
    pub const VERSION: u32 = PROTOCOL_VERSION;

    pub fn encode(&self) -> Vec<u8> {
        // Serialising plain collections into memory has no way to fail.
        postcard::to_allocvec(self).unwrap_or_default()
    }

    /// Reads the connection infos of all PEs and checks that they agree. What follows connection info in its bytes is
    /// ignored.
    pub fn decode_all(connection_infos: &[Vec<u8>], n_pes: u32) -> Result<Vec<ConnectionInfo>> {
        if connection_infos.len() != n_pes as usize {
            let why = format!("{} connection infos in a job of {n_pes} PEs", connection_infos.len());
            return Err(Error::Malformed { what: "the list of connection infos", pe: 0, why });
        }
        let decode =
            |(bytes, pe): (&Vec<u8>, Pe)| {
                let why = |e: postcard::Error| format!("{e}; run one Symrail on all PEs");
                postcard::take_from_bytes(bytes)
                    .map(|(connection_info, _)| connection_info)
                    .map_err(|e| Error::Malformed { what: "connection info", pe, why: why(e) })
            };
        let connection_infos: Vec<ConnectionInfo> =
            connection_infos.iter().zip(0..).map(decode).collect::<Result<_>>()?;
        same("the protocol version", &connection_infos, |c| c.version.to_string())?;
        same("the fabric (SYMRAIL_TRANSPORT, SYMRAIL_LIBFABRIC_PROVIDER)", &connection_infos, |c| c.fabric.clone())?;
        same("SYMRAIL_IB_MODE", &connection_infos, |c| c.ib_mode.clone())?;
        same("SYMRAIL_AMO_PATH", &connection_infos, |c| if c.native_amo { "native" } else { "agent" }.into())?;
        same("whether memory is staged (a GPU on all PEs or on none)", &connection_infos, |c| {
            if c.window.is_empty() { "none" } else { "staging" }.into()
        })?;
        Ok(connection_infos)
    }
}

fn same(
    what: &'static str,
    connection_infos: &[ConnectionInfo],
    value: impl Fn(&ConnectionInfo) -> String,
) -> Result<()> {
    let mut values = connection_infos.iter().map(value).zip(0..);
    let Some((first, pe)) = values.next() else { return Ok(()) };
    match values.find(|(v, _)| *v != first) {
        None => Ok(()),
        Some((other_value, other_pe)) => Err(Error::Mismatch { what, pe, value: first, other_pe, other_value }),
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
            ib_mode: String::new(),
            rails: vec![vec![1], vec![2]],
            window: Vec::new(),
        };
        let mut padded = one.encode();
        padded.resize(600, 0);
        assert_eq!(ConnectionInfo::decode_all(&[one.encode(), padded], 2).unwrap(), [one.clone(), one.clone()]);
        let other = ConnectionInfo { fabric: "shm".into(), ..one.clone() };
        let error = ConnectionInfo::decode_all(&[one.encode(), other.encode()], 2).unwrap_err().to_string();
        assert!(error.contains("PE 0 has tcp, PE 1 has shm") && error.contains("PROVIDER"), "{error}");
        let staged = ConnectionInfo { window: vec![1; 16], ..one.clone() };
        let error = ConnectionInfo::decode_all(&[one.encode(), staged.encode()], 2).unwrap_err().to_string();
        assert!(error.contains("PE 0 has none, PE 1 has staging"), "{error}");
        assert!(ConnectionInfo::decode_all(&[one.encode()], 2).is_err());
        assert!(ConnectionInfo::decode_all(&[one.encode(), vec![9; 7]], 2).is_err());
    }
}
