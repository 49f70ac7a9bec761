//! NVSHMEM's own settings, which users may have in their scripts. Each is converted to one of ours, and ours take
//! precedence.

use std::ffi::OsString;

use symrail_transport::env::Settings;
use symrail_transport::{Error, Result};

/// An NVSHMEM name without `NVSHMEM_`, our name without `SYMRAIL_`, the accepted values, and the conversion: `None`
/// refuses the value, and an empty text leaves it out.
type Translation = (&'static str, &'static str, &'static str, fn(&str) -> Option<String>);

const TRANSLATIONS: &[Translation] = &[
    ("REMOTE_TRANSPORT", "TRANSPORT", "libfabric, ibrc or ibdevx", |text| {
        Some(match text {
            "ibrc" | "ibdevx" => "ibverbs".into(),
            "libfabric" => "libfabric".into(),
            _ => String::new(),
        })
    }),
    ("LIBFABRIC_PROVIDER", "LIBFABRIC_PROVIDER", "a provider's name", |text| {
        Some(match text {
            "verbs" => "verbs;ofi_rxm".into(),
            "tcp" => "tcp;ofi_rxm".into(),
            exact => exact.into(),
        })
    }),
    ("LIBFABRIC_MAX_NIC_PER_PE", "LIBFABRIC_MAX_NIC_PER_PE", "a number", same),
    (
        "HCA_LIST",
        "NIC_LIST",
        "devices with commas between them, each with :port if need be, or ^ and those to leave out",
        nic_list,
    ),
    ("HCA_LIST", "IB_PORT", "the same port for all devices", ports),
    ("HCA_PE_MAPPING", "NIC_PE_MAPPING", "device:port:count entries with commas between them", same),
    ("IB_GID_INDEX", "IB_GID_INDEX", "a number", same),
    ("IB_ROCE_VERSION_NUM", "IB_ROCE_VERSION", "1 or 2", same),
    ("IB_ADDR_FAMILY", "IB_ADDR_FAMILY", "AF_INET or AF_INET6", |text| match text {
        "AF_INET" => Some("ipv4".into()),
        "AF_INET6" => Some("ipv6".into()),
        _ => None,
    }),
    ("IB_ADDR_RANGE", "IB_ADDR_RANGE", "a network", |text| {
        // NVSHMEM's default value corresponds to an unset one of ours.
        Some(if text == "::/0" { String::new() } else { text.into() })
    }),
    ("IB_TRAFFIC_CLASS", "IB_TRAFFIC_CLASS", "a number", same),
    ("IB_SL", "IB_SL", "a number", same),
    ("IB_PKEY_INDEX", "IB_PKEY_INDEX", "a number", same),
    ("IB_TIMEOUT", "IB_TIMEOUT", "a number", same),
    ("IB_RETRY_CNT", "IB_RETRY_CNT", "a number", same),
    ("IB_ENABLE_RELAXED_ORDERING", "IB_RELAXED_ORDERING", "yes or no", |text| Some(u8::from(truth(text)?).to_string())),
    ("DISABLE_IB_NATIVE_ATOMICS", "IB_MODE", "yes or no", |text| {
        Some(if truth(text)? { "write-with-imm".into() } else { String::new() })
    }),
    ("DEBUG", "LOG", "VERSION, WARN, INFO, ABORT or TRACE", |text| {
        Some(match text.to_ascii_uppercase().as_str() {
            "INFO" => "info".into(),
            "TRACE" => "trace".into(),
            _ => "warn".into(),
        })
    }),
];

#[allow(clippy::unnecessary_wraps)] // one signature for all
fn same(text: &str) -> Option<String> {
    Some(text.into())
}

/// Parses yes and no as NVSHMEM does.
fn truth(text: &str) -> Option<bool> {
    match text.to_ascii_lowercase().as_str() {
        "1" | "y" | "yes" | "true" | "on" => Some(true),
        "0" | "n" | "no" | "false" | "off" => Some(false),
        other => other.parse::<i64>().ok().map(|n| n != 0),
    }
}

/// Removes the ports from `mlx5_0:1,mlx5_1:1`.
fn nic_list(text: &str) -> Option<String> {
    let (sign, list) = text.strip_prefix('^').map_or(("", text), |rest| ("^", rest));
    let names: Vec<&str> = list.split(',').map(|entry| entry.split(':').next().unwrap_or(entry).trim()).collect();
    Some(format!("{sign}{}", names.join(",")))
}

/// The port that all devices of a list have, if any.
fn ports(text: &str) -> Option<String> {
    let mut ports = text.split(',').filter_map(|entry| entry.split_once(':')).map(|(_, port)| port.trim());
    let Some(first) = ports.next() else { return Some(String::new()) };
    ports.all(|port| port == first).then(|| first.into())
}

/// Reads the settings from the process's environment.
///
/// # Errors
/// A value of NVSHMEM's or our variables that is not accepted.
pub fn read() -> Result<Settings> {
    read_from(std::env::vars_os())
}

fn read_from(pairs: impl Iterator<Item = (OsString, OsString)>) -> Result<Settings> {
    let given: Vec<(OsString, OsString)> = pairs.collect();
    let mut all = Vec::new();
    for (theirs, ours, accepted, translate) in TRANSLATIONS {
        let name = format!("NVSHMEM_{theirs}");
        let Some((_, value)) = given.iter().find(|(n, v)| *n == *name && !v.is_empty()) else { continue };
        let translated = value.to_str().and_then(|text| translate(text.trim())).ok_or_else(|| Error::Setting {
            name,
            value: value.to_string_lossy().into_owned(),
            accepted: (*accepted).into(),
        })?;
        if !translated.is_empty() {
            all.push((format!("SYMRAIL_{ours}").into(), OsString::from(translated)));
        }
    }
    // If a name occurs twice, the last one counts. One of ours that is empty counts as unset.
    all.extend(given.into_iter().filter(|(_, value)| !value.is_empty()));
    Settings::from_iter(all)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use symrail_transport::env::{AddrFamily, IbMode, TransportKind};

    fn of(pairs: &[(&str, &str)]) -> Result<Settings> {
        read_from(pairs.iter().map(|(n, v)| (n.into(), v.into())))
    }

    #[test]
    fn names_of_nvshmem_count_and_ours_win() {
        let settings = of(&[
            ("NVSHMEM_REMOTE_TRANSPORT", "ibrc"),
            ("NVSHMEM_IB_GID_INDEX", "3"),
            ("NVSHMEM_IB_ADDR_FAMILY", "AF_INET6"),
            ("NVSHMEM_IB_ADDR_RANGE", "::/0"),
            ("NVSHMEM_IB_SL", "2"),
            ("NVSHMEM_IB_ENABLE_RELAXED_ORDERING", "true"),
            ("NVSHMEM_DISABLE_IB_NATIVE_ATOMICS", "1"),
            ("NVSHMEM_HCA_LIST", "mlx5_0:1,mlx5_3:1"),
            ("NVSHMEM_DEBUG", "INFO"),
            ("SYMRAIL_IB_SL", "5"),
        ])
        .unwrap();
        assert_eq!(settings.transport, TransportKind::Ibverbs);
        assert_eq!((settings.ib_gid_index, settings.ib_sl, settings.ib_port), (Some(3), 5, Some(1)));
        assert_eq!((settings.ib_addr_family, settings.ib_addr_range), (AddrFamily::Ipv6, None));
        assert_eq!((settings.ib_mode, settings.ib_relaxed_ordering), (IbMode::WriteWithImm, true));
        assert_eq!(settings.nic_list.unwrap().names, ["mlx5_0", "mlx5_3"]);
        assert_eq!(settings.log, "info");
    }

    #[test]
    fn values_of_nvshmem_are_understood_or_refused() {
        let provider = |name| of(&[("NVSHMEM_LIBFABRIC_PROVIDER", name)]).unwrap().libfabric_provider.unwrap();
        assert_eq!((provider("verbs").as_str(), provider("efa").as_str()), ("verbs;ofi_rxm", "efa"));
        let error = of(&[("NVSHMEM_IB_ADDR_FAMILY", "ipx")]).unwrap_err().to_string();
        assert!(error.contains("NVSHMEM_IB_ADDR_FAMILY=ipx") && error.contains("AF_INET6"), "{error}");
        let error = of(&[("NVSHMEM_HCA_LIST", "mlx5_0:1,mlx5_1:2")]).unwrap_err().to_string();
        assert!(error.contains("same port"), "{error}");
        assert_eq!(nic_list("^mlx5_0:1,mlx5_1"), Some("^mlx5_0,mlx5_1".into()));
        assert!(of(&[("NVSHMEM_IB_SL", "99")]).is_err());
        assert_eq!(of(&[("NVSHMEM_REMOTE_TRANSPORT", "none")]).unwrap().transport, TransportKind::Auto);
    }
}
