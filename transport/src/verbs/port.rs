//! An opened port of a NIC: the data that a rail over it needs and sends to its peers.

use verbs_sys as sys;

use super::address::{Address, random_psn};
use super::discover::{Nic, all};
use super::domain::Context;
use super::gid::{self, Gid};
use super::library::load;
use super::mode::Mode;
use super::queue_pair::Path;
use crate::env::Settings;
use crate::error::{Error, Result};

/// Reads and atomics in flight per queue pair, where the device allows.
const READS: u8 = 16;

/// The port, with the GID and the partition key that the settings choose.
pub(super) struct Port {
    pub context: Context,
    pub device: sys::ibv_device_attr,
    pub attr: sys::ibv_port_attr,
    pub pkey: u16,
    pub gid: Gid,
}

impl Port {
    /// # Errors
    /// [`Error::NoRail`] when device, port, GID or partition key do not exist, with those that do.
    pub fn open(nic: &Nic, settings: &Settings) -> Result<Port> {
        let verbs = load(settings)?;
        let Some(context) = Context::open(&verbs, &nic.device)? else {
            let found = all(&verbs)?.iter().map(|nic| nic.name.clone()).collect::<Vec<_>>().join(", ");
            let found = if found.is_empty() { "nothing".into() } else { found };
            return Err(Error::NoRail { wanted: format!("device {}", nic.device), found });
        };
        let device = context.query_device()?;
        if nic.port == 0 || nic.port > device.phys_port_cnt {
            return Err(Error::NoRail {
                wanted: format!("port {} of {}", nic.port, nic.device),
                found: format!("ports 1 to {}", device.phys_port_cnt),
            });
        }
        let attr = context.query_port(nic.port)?;
        let pkey = choose_pkey(&context, nic, &attr, settings.ib_pkey_index)?;
        let gids = context.gids(nic.port, &attr);
        let Some(gid) = gid::choose(&gids, settings).cloned() else {
            return Err(Error::NoRail {
                wanted: format!("{} on {}", gid::wanted(settings), nic.name),
                found: gid::table(&gids),
            });
        };
        Ok(Port { context, device, attr, pkey, gid })
    }

    /// The address attributes of its queue pairs.
    pub fn path(&self, nic: &Nic, mode: Mode, settings: &Settings) -> Path {
        Path {
            port: nic.port,
            gid_index: u8::try_from(self.gid.index).unwrap_or(u8::MAX),
            pkey_index: settings.ib_pkey_index,
            service_level: settings.ib_sl,
            traffic_class: settings.ib_traffic_class,
            timeout: settings.ib_timeout,
            retries: settings.ib_retry_cnt,
            outgoing_reads: at_most(READS, self.device.max_qp_init_rd_atom),
            incoming_reads: at_most(READS, self.device.max_qp_rd_atom),
            atomics: mode == Mode::RdmaAtomics,
        }
    }

    /// The address for peers, without the queue pairs.
    pub fn address(&self, mode: Mode, path: &Path) -> Address {
        Address {
            mode,
            gid_type: self.gid.kind,
            gid: self.gid.raw,
            prefix: self.gid.prefix(),
            lid: self.attr.lid,
            needs_grh: self.attr.flags & sys::IBV_QPF_GRH_REQUIRED != 0,
            mtu: u8::try_from(self.attr.active_mtu.clamp(1, 5)).unwrap_or(1),
            pkey: self.pkey,
            incoming_reads: path.incoming_reads,
            psn: random_psn(),
            qpns: Vec::new(),
        }
    }
}

fn at_most(ours: u8, device: i32) -> u8 {
    u8::try_from(device.clamp(0, ours.into())).unwrap_or(ours)
}

/// The partition key at the index, which must exist.
fn choose_pkey(context: &Context, nic: &Nic, port: &sys::ibv_port_attr, index: u16) -> Result<u16> {
    let at = |index| context.query_pkey(nic.port, index).filter(|pkey| *pkey != 0);
    if let Some(pkey) = (index < port.pkey_tbl_len).then(|| at(index)).flatten() {
        return Ok(pkey);
    }
    let found: Vec<_> =
        (0..port.pkey_tbl_len).filter_map(|index| Some(format!("index {index} ({:#06x})", at(index)?))).collect();
    Err(Error::NoRail {
        wanted: format!("SYMRAIL_IB_PKEY_INDEX={index} on {} port {}", nic.device, nic.port),
        found: if found.is_empty() { "nothing".into() } else { found.join(", ") },
    })
}
