//! Measurements of a kind of device (`symrail tune`): the best algorithm for each range of sizes. A table is used if
//! all PEs of a communicator have the same one.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use symrail::Settings;

use crate::error::Result;
use crate::members::Members;
use crate::plan::Collective;

/// The most blocks that a row may ask for.
pub const MOST_BLOCKS: usize = 128;

/// The measurements for communicators of this many PEs on this many hosts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Table {
    /// The kind of device, as in [`Selection::device_kind`](crate::Selection::device_kind).
    pub device: String,
    /// PEs.
    pub pes: usize,
    /// Hosts.
    pub hosts: usize,
    /// The first row that suits a message is used.
    pub rows: Vec<Row>,
}

/// The way for messages of some sizes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// The collective, by its name in plans.
    pub collective: String,
    /// The largest message in bytes; without it, any.
    pub up_to: Option<u64>,
    /// The way.
    #[serde(flatten)]
    pub way: Way,
    /// The measured time of a call, if there is one.
    pub microseconds: Option<f64>,
}

/// A way to perform a collective.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Way {
    /// The algorithm's name.
    pub algorithm: String,
    /// Blocks of each PE that work on a message.
    pub blocks: usize,
    /// Bytes that a block pushes at a time; by default the size of the message determines them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chunk: Option<u64>,
}

impl std::fmt::Display for Way {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} with {} blocks", self.algorithm, self.blocks)
    }
}

impl std::fmt::Display for Row {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.collective)?;
        match self.up_to {
            Some(bytes) => write!(f, " of up to {bytes} bytes")?,
            None => write!(f, " of any size")?,
        }
        self.microseconds.map_or(Ok(()), |time| write!(f, ", {time:.1} us measured"))
    }
}

impl Table {
    /// The file of a table in the folder `SYMRAIL_CACHE_DIR`.
    #[must_use]
    pub fn file(cache: &Path, device: &str, pes: usize, hosts: usize) -> PathBuf {
        cache.join("tuned").join(format!("{device}-{pes}x{hosts}.json"))
    }

    /// The first row for a message with one of these algorithms, and its number.
    pub(crate) fn row(
        &self,
        collective: &Collective,
        message: u64,
        algorithm: impl Fn(&str) -> bool,
    ) -> Option<(usize, &Row)> {
        let suits = |row: &Row| {
            let sizes = Collective::of(&row.collective) == *collective && row.up_to.is_none_or(|to| message <= to);
            sizes && algorithm(&row.way.algorithm)
        };
        self.rows.iter().enumerate().find(|(_, row)| suits(row))
    }
}

/// The table in use, and its file; or why none is used.
#[derive(Debug, Default)]
pub(crate) struct Tuning {
    pub table: Option<(String, Table)>,
    pub untaken: Option<String>,
}

impl Tuning {
    /// Uses this PE's table if all members have the same one, and `check` accepts it. Collective.
    ///
    /// # Errors
    /// The runtime's.
    pub fn agree(
        members: &Members,
        device: &str,
        hosts: usize,
        check: impl Fn(&Table) -> std::result::Result<(), String>,
    ) -> Result<Tuning> {
        let pes = members.n() as usize;
        let path = path_of(members.runtime().settings(), device, pes, hosts);
        let loaded =
            path.as_deref().map(|path| load(path).and_then(|(table, digest)| check(&table).map(|()| (table, digest))));
        // An unusable table counts as none.
        let own = loaded.as_ref().and_then(|loaded| loaded.as_ref().ok()).map_or(0, |(_, digest)| *digest);
        let all = members.gather(&[own])?;
        let file = path.map_or_else(String::new, |path| path.display().to_string());
        let other = all.iter().position(|&digest| digest != own).map(|rank| (members.pe(rank), all[rank]));
        let untaken = |why: String| Tuning { table: None, untaken: Some(why) };
        Ok(match (loaded, other) {
            (Some(Err(why)), _) => untaken(format!("table {file}: not taken, {why}")),
            (Some(Ok(_)), Some((pe, 0))) => untaken(format!("table {file}: not taken, PE {pe} has none")),
            (Some(Ok(_)), Some((pe, _))) => untaken(format!("table {file}: not taken, PE {pe} has another one")),
            (Some(Ok((table, _))), None) => Tuning { table: Some((file, table)), untaken: None },
            (None, Some((pe, _))) => untaken(format!("the table of PE {pe}: not taken, this PE has none")),
            (None, None) => Tuning::default(),
        })
    }
}

/// A table's file, and the table, or why it is unusable.
pub type Found = (PathBuf, Result<Table, String>);

/// The tables from which communicators choose, with the reasons why some are unusable for any communicator; or why
/// there are none.
///
/// # Errors
/// There are none.
pub fn tables(settings: &Settings) -> Result<Vec<Found>, String> {
    let paths = match (&settings.tuning, &settings.cache_dir) {
        (Some(path), _) if path.as_os_str() == "off" => return Err("none: SYMRAIL_TUNING=off".into()),
        (Some(path), _) => vec![path.clone()],
        (None, None) => return Err("none: SYMRAIL_CACHE_DIR is not set".into()),
        (None, Some(cache)) => {
            let folder = cache.join("tuned");
            let entries = std::fs::read_dir(&folder).into_iter().flatten().flatten().map(|entry| entry.path());
            let mut paths: Vec<_> = entries.filter(|path| path.extension().is_some_and(|ext| ext == "json")).collect();
            paths.sort();
            if paths.is_empty() {
                return Err(format!("none in {}; symrail tune writes them", folder.display()));
            }
            paths
        }
    };
    let loaded = |path: PathBuf| {
        let table = load(&path).map(|(table, _)| table);
        (path, table)
    };
    Ok(paths.into_iter().map(loaded).collect())
}

/// The file of this PE's table, if it has one.
fn path_of(settings: &Settings, device: &str, pes: usize, hosts: usize) -> Option<PathBuf> {
    match &settings.tuning {
        Some(path) if path.as_os_str() == "off" => None,
        Some(path) => Some(path.clone()),
        None => {
            let file = Table::file(settings.cache_dir.as_deref()?, device, pes, hosts);
            file.exists().then_some(file)
        }
    }
}

/// A table, and a hash of its file; never 0.
fn load(path: &Path) -> std::result::Result<(Table, u64), String> {
    let text = std::fs::read_to_string(path).map_err(|reason| format!("it cannot be read: {reason}"))?;
    let table = serde_json::from_str(&text).map_err(|reason| format!("it is no table: {reason}"))?;
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    Ok((table, hasher.finish().max(1)))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn rows_may_say_how_much_is_pushed_at_a_time() {
        let row = |more: &str| {
            let text = r#"{"collective": "allreduce", "up_to": null, "algorithm": "pushed", "blocks": 32MORE}"#;
            serde_json::from_str::<Row>(&text.replace("MORE", more))
        };
        assert_eq!(row("").unwrap().way.chunk, None);
        assert_eq!(row(r#", "chunk": 4096"#).unwrap().way.chunk, Some(4096));
        assert!(!serde_json::to_string(&row("").unwrap()).unwrap().contains("chunk"));
    }
}
