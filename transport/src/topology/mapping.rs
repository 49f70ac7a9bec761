//! `NIC_PE_MAPPING`: which NIC each PE of a host uses, as the user wrote it.

use std::str::FromStr;

use crate::error::{Error, Result};

/// The first `count` PEs of a host use the first entry's NIC, the next PEs the second entry's, and so on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NicPeMapping {
    /// Entries in the order of the PEs.
    pub entries: Vec<MappingEntry>,
}

/// One NIC and how many PEs it serves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MappingEntry {
    /// The rail's name.
    pub nic: String,
    /// The port, from 1; 1 where NICs have no ports.
    pub port: u8,
    /// The number of consecutive PEs that use it, at least 1.
    pub count: usize,
}

impl NicPeMapping {
    /// A description of accepted values.
    pub const ACCEPTED: &str = "nic:port:count entries with commas between them, such as mlx5_0:1:2,mlx5_1:1:2 \
         (port from 1 to 254, count from 1 to 65536)";

    /// The entry for the PE with this index on its host, from 0. `None` when the counts do not reach that far.
    #[must_use]
    pub fn entry(&self, local_pe: usize) -> Option<&MappingEntry> {
        let mut end = 0;
        self.entries.iter().find(|entry| {
            end += entry.count;
            local_pe < end
        })
    }

    /// For each PE of the host, the index of its NIC in `nics`, which has rail names, alone or as `name:port`.
    ///
    /// # Errors
    /// [`Error::Setting`] when an entry's NIC does not exist, or when there are more PEs than the sum of the counts.
    /// The error names the existing NICs and the number of PEs.
    pub fn assign(&self, local_pes: usize, nics: &[&str]) -> Result<Vec<usize>> {
        let refuse = |accepted: String| Error::Setting {
            name: "SYMRAIL_NIC_PE_MAPPING".into(),
            value: self.to_string(),
            accepted,
        };
        let find = |entry: &MappingEntry| {
            let with_port = format!("{}:{}", entry.nic, entry.port);
            nics.iter().position(|nic| *nic == with_port).or_else(|| nics.iter().position(|nic| *nic == entry.nic))
        };
        // A typing error is reported even where too few PEs run for the entry to matter.
        if let Some(missing) = self.entries.iter().find(|entry| find(entry).is_none()) {
            let there = if nics.is_empty() { "nothing".into() } else { nics.join(", ") };
            return Err(refuse(format!(
                "NICs that exist; {}:{} does not, there are: {there}",
                missing.nic, missing.port
            )));
        }
        let too_few = || {
            let covered: usize = self.entries.iter().map(|entry| entry.count).sum();
            refuse(format!("counts that add up to at least the {local_pes} PEs of this host, not to {covered}"))
        };
        (0..local_pes).map(|pe| self.entry(pe).and_then(find).ok_or_else(too_few)).collect()
    }
}

impl std::fmt::Display for NicPeMapping {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (i, MappingEntry { nic, port, count }) in self.entries.iter().enumerate() {
            write!(f, "{}{nic}:{port}:{count}", if i == 0 { "" } else { "," })?;
        }
        Ok(())
    }
}

impl FromStr for NicPeMapping {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let entry = |part: &str| {
            // The text is split from the right, since a rail's name may be an IPv6 address.
            let mut fields = part.trim().rsplitn(3, ':');
            let count = fields.next()?.parse().ok().filter(|count| (1..=65536).contains(count))?;
            let port = fields.next()?.parse().ok().filter(|port| (1..=254).contains(port))?;
            let nic = fields.next().filter(|nic| !nic.is_empty())?.to_owned();
            Some(MappingEntry { nic, port, count })
        };
        let mut entries = Vec::new();
        for part in text.split(',') {
            entries.push(entry(part).ok_or_else(|| Error::Setting {
                name: "SYMRAIL_NIC_PE_MAPPING".into(),
                value: text.into(),
                accepted: format!("{}; `{part}` is none", Self::ACCEPTED),
            })?);
        }
        Ok(NicPeMapping { entries })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn counts_pes_off_in_order() {
        let mapping: NicPeMapping = "mlx5_0:1:2, mlx5_1:2:1,fe80::1:1:3".parse().unwrap();
        let of = |pe| mapping.entry(pe).map(|entry| entry.nic.as_str());
        assert_eq!((of(0), of(1), of(2)), (Some("mlx5_0"), Some("mlx5_0"), Some("mlx5_1")));
        assert_eq!((of(3), of(5), of(6)), (Some("fe80::1"), Some("fe80::1"), None));
        let nics = ["mlx5_1:1", "fe80::1", "mlx5_1:2", "mlx5_0"];
        assert_eq!(mapping.assign(5, &nics).unwrap(), [3, 3, 2, 1, 1]);
    }

    #[test]
    fn says_what_was_expected() {
        for bad in ["", "a", "a:1", ":1:1", "a:0:1", "a:255:1", "a:1:0", "a:1:1,", "a:1:x", "a:1:-1", "a:1:99999999"] {
            let error = bad.parse::<NicPeMapping>().unwrap_err().to_string();
            assert!(error.contains("nic:port:count"), "{bad}: {error}");
        }
        let mapping: NicPeMapping = "a:1:2,b:1:1".parse().unwrap();
        let error = mapping.assign(1, &["a", "c"]).unwrap_err().to_string();
        assert!(error.contains("b:1 does not, there are: a, c"), "{error}");
        let error = mapping.assign(4, &["a", "b"]).unwrap_err().to_string();
        assert!(error.contains("the 4 PEs") && error.contains("not to 3"), "{error}");
    }
}
