//! Settings: every `SYMRAIL_` environment variable, in one typed table.
//!
//! [`Settings::from_env`] reads the environment once, at init; nothing reads it later. A value that is not accepted
//! is an [`Error::Setting`] that names the variable, the value and what is accepted; a `SYMRAIL_` name
//! that does not exist is kept in [`Settings::unknown`] with the nearest name and warned about. A variable
//! that is set but empty counts as unset.
//!
//! | to … | go to |
//! |---|---|
//! | add a variable | its field in [`Settings`] and its default, here; its line in [`mod@table`]; then the documentation test says how to write `docs/environment.md` anew |
//! | add a choice to a variable | [`choices`] |
//! | change how sizes, ranges or switches are written | [`kinds`] |
//! | change how the table is printed | [`render`] |

pub mod choices;
mod ignored;
pub mod kinds;
pub mod log;
pub mod render;
pub mod table;
mod unknown;

use std::ffi::OsString;
use std::path::PathBuf;

pub use choices::{
    AddrFamily, AmoPath, BootstrapKind, DeviceCopy, GpuDirect, HeapKind, IbMode, ProgressModel, ProxyPoll, RailPolicy,
    TransportKind,
};
pub use ipnet::IpNet;
pub use kinds::NicList;
pub use table::{VARIABLES, Variable};
pub use unknown::Unknown;

use crate::error::{Error, Result};

/// What every variable's name starts with.
pub const PREFIX: &str = "SYMRAIL_";

/// Everything that can be set from the environment, parsed and checked.
///
/// Each field is the variable of the same name in upper case; [`VARIABLES`] says what each means and accepts.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
#[allow(missing_docs)]
pub struct Settings {
    pub transport: TransportKind,
    pub libfabric_provider: Option<String>,
    pub libfabric_so: Option<PathBuf>,
    pub libfabric_max_nic_per_pe: usize,
    pub progress: ProgressModel,
    pub sysfs: Option<PathBuf>,
    pub nic_list: Option<NicList>,
    /// As written, and known to be well-formed; [`NicPeMapping`](crate::topology::NicPeMapping) reads it.
    pub nic_pe_mapping: Option<String>,
    pub rail_policy: RailPolicy,
    pub stripe_threshold: usize,
    pub amo_path: AmoPath,
    pub ib_mode: IbMode,
    /// `None`: the first active port.
    pub ib_port: Option<u8>,
    /// `None`: the GID with the best score.
    pub ib_gid_index: Option<u32>,
    pub ib_roce_version: u8,
    pub ib_addr_family: AddrFamily,
    /// `None`: any address.
    pub ib_addr_range: Option<IpNet>,
    pub ib_sl: u8,
    pub ib_traffic_class: u8,
    pub ib_pkey_index: u16,
    /// As verbs counts it: 4.096 µs · 2^this.
    pub ib_timeout: u8,
    pub ib_retry_cnt: u8,
    pub ib_relaxed_ordering: bool,
    pub ibv_so: Option<PathBuf>,
    pub ib_queue_depth: u32,
    pub heap_size: usize,
    pub heap_kind: HeapKind,
    pub gpudirect: GpuDirect,
    pub device_copy: DeviceCopy,
    pub device_copy_threshold: usize,
    pub disable_p2p: bool,
    pub fake_host: Option<String>,
    pub bootstrap: BootstrapKind,
    pub proxy_poll: ProxyPoll,
    /// `None`: by cores, rails and channels.
    pub proxy_threads: Option<usize>,
    pub proxy_channels: usize,
    pub context_endpoints: usize,
    pub timeout_s: u64,
    pub check_collectives: bool,
    pub log: String,
    pub trace: Option<PathBuf>,
    pub cache_dir: Option<PathBuf>,
    pub tuning: Option<PathBuf>,
    pub nccl_interface: Option<String>,
    pub nccl_library: Option<PathBuf>,
    /// Names that start like ours and mean nothing.
    pub unknown: Vec<Unknown>,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            transport: TransportKind::Auto,
            libfabric_provider: None,
            libfabric_so: None,
            libfabric_max_nic_per_pe: 16,
            progress: ProgressModel::Auto,
            sysfs: None,
            nic_list: None,
            nic_pe_mapping: None,
            rail_policy: RailPolicy::RoundRobin,
            stripe_threshold: 256 << 10,
            amo_path: AmoPath::Auto,
            ib_mode: IbMode::Auto,
            ib_port: None,
            ib_gid_index: None,
            ib_roce_version: 2,
            ib_addr_family: AddrFamily::Ipv4,
            ib_addr_range: None,
            ib_sl: 0,
            ib_traffic_class: 0,
            ib_pkey_index: 0,
            ib_timeout: 20,
            ib_retry_cnt: 7,
            // Off, since a signal on the same queue pair may then be visible before the data that it announces.
            ib_relaxed_ordering: false,
            ibv_so: None,
            ib_queue_depth: 1024,
            heap_size: 512 << 20,
            heap_kind: HeapKind::Host,
            gpudirect: GpuDirect::Auto,
            device_copy: DeviceCopy::Kernel,
            // One block that waits for each copy: equal at 512 KiB, 39 against 62 GB/s at 1 MiB (H200).
            device_copy_threshold: 1 << 20,
            disable_p2p: false,
            fake_host: None,
            bootstrap: BootstrapKind::Auto,
            proxy_poll: ProxyPoll::Adaptive,
            proxy_threads: None,
            proxy_channels: 4,
            // 11 MB each over tcp;ofi_rxm.
            context_endpoints: 8,
            timeout_s: 60,
            check_collectives: false,
            log: "warn".into(),
            trace: None,
            cache_dir: None,
            tuning: None,
            nccl_interface: None,
            nccl_library: None,
            unknown: Vec::new(),
        }
    }
}

impl Settings {
    /// Reads the process's environment, and warns about unknown names (see [`Settings::warn_unknown`]).
    ///
    /// # Errors
    /// [`Error::Setting`] for the first value that is not accepted, in the table's order.
    pub fn from_env() -> Result<Self> {
        let settings = Self::from_iter(std::env::vars_os())?;
        settings.warn_unknown();
        Ok(settings)
    }

    /// Whether the process's environment sets a variable; as everywhere, one that is empty counts as unset. For those
    /// who set others unless the user has.
    #[must_use]
    pub fn is_set(name: &str) -> bool {
        std::env::var_os(name).is_some_and(|value| !value.is_empty())
    }

    /// Reads names and values from anywhere; names that do not start with [`PREFIX`] are ignored.
    /// Of a name that comes twice, the last counts.
    ///
    /// # Errors
    /// As for [`Settings::from_env`].
    #[allow(clippy::should_implement_trait, reason = "`FromIterator` cannot fail, and this can")]
    pub fn from_iter<N: Into<OsString>, V: Into<OsString>>(pairs: impl IntoIterator<Item = (N, V)>) -> Result<Self> {
        let mut given = std::collections::BTreeMap::new();
        for (name, value) in pairs {
            // A name that is not UTF-8 cannot be one of ours.
            if let Ok(name) = name.into().into_string()
                && name.starts_with(PREFIX)
            {
                given.insert(name, value.into());
            }
        }
        let mut settings = Settings::default();
        for variable in VARIABLES {
            let Some(value) = given.remove(variable.name) else { continue };
            if value.is_empty() {
                continue;
            }
            let accepted = value.to_str().is_some_and(|text| (variable.set)(&mut settings, text.trim()));
            if !accepted {
                return Err(Error::Setting {
                    name: variable.name.into(),
                    value: value.to_string_lossy().into_owned(),
                    accepted: (variable.accepted)(),
                });
            }
        }
        settings.unknown = given.into_keys().filter_map(Unknown::check).collect();
        Ok(settings)
    }

    /// Holds the unknown names that whoever started this process has reported, separated by commas.
    pub const REPORTED: &str = "SYMRAIL_LAUNCHER_TOLD";

    /// Logs a warning for each unknown name, and returns their names for [`Settings::REPORTED`].
    #[must_use]
    pub fn report_unknown(&self) -> String {
        self.warn_unknown();
        self.unknown.iter().map(|unknown| unknown.name.as_str()).collect::<Vec<_>>().join(",")
    }

    /// Logs a warning for each unknown name that nobody has reported yet. Logs go nowhere before a subscriber is
    /// installed, and the subscriber's level is itself a setting: who installs one after [`Settings::from_env`] calls
    /// this again.
    pub fn warn_unknown(&self) {
        let reported = std::env::var(Self::REPORTED).unwrap_or_default();
        for unknown in self.unknown.iter().filter(|unknown| !reported.split(',').any(|name| name == unknown.name)) {
            tracing::warn!("{unknown}");
        }
    }

    /// The variables whose value differs from the default.
    pub fn changed(&self) -> impl Iterator<Item = &'static Variable> {
        let default = Settings::default();
        VARIABLES.iter().filter(move |variable| (variable.show)(self) != (variable.show)(&default))
    }
}

#[cfg(test)]
mod tests;
