//! Files of results, which are checked to be writable before anything is measured.

use std::fs::{File, Metadata, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use crate::perf::error::{Error, Result};

/// A file that is written from its beginning.
pub(super) struct Output {
    path: PathBuf,
    file: File,
    /// It is no pipe, terminal or other device, so it can be rewritten.
    regular: bool,
}

impl Output {
    /// Opens a file and empties it.
    pub fn begin(path: &Path) -> Result<Output> {
        let (file, about) = open(path)?;
        let regular = about.is_file();
        let output = Output { path: path.to_owned(), file, regular };
        if regular {
            output.file.set_len(0).map_err(failed(path))?;
        }
        Ok(output)
    }

    pub fn is_regular(&self) -> bool {
        self.regular
    }

    /// Writes at an offset; a stream gets all texts in order.
    pub fn write_at(&mut self, offset: u64, text: &str) -> Result<()> {
        let written = match self.regular {
            true => self.file.write_all_at(text.as_bytes(), offset),
            false => self.file.write_all(text.as_bytes()),
        };
        written.map_err(failed(&self.path))
    }

    /// Rewrites the whole file.
    pub fn replace(&mut self, bytes: &[u8]) -> Result<()> {
        let written = match self.regular {
            true => self.file.write_all_at(bytes, 0).and_then(|()| self.file.set_len(bytes.len() as u64)),
            false => self.file.write_all(bytes),
        };
        written.map_err(failed(&self.path))
    }
}

/// Checks that these files can be written, and are different. Leaves no new file behind.
pub(super) fn check(paths: &[&Path]) -> Result<()> {
    let mut seen: Vec<(u64, u64)> = Vec::new();
    let mut new = Vec::new();
    let checked = paths.iter().try_for_each(|path| {
        let is_new = !path.exists();
        let (_, about) = open(path)?;
        if is_new {
            new.push(path);
        }
        let identity = (about.dev(), about.ino());
        if about.is_file() && seen.contains(&identity) {
            let path = path.display();
            return Err(Error::Arguments(format!("--json and --plot: {path} cannot be both; use two files")));
        }
        seen.push(identity);
        Ok(())
    });
    for path in new {
        // This function made the file, and it is empty.
        let _ = std::fs::remove_file(path);
    }
    checked
}

fn open(path: &Path) -> Result<(File, Metadata)> {
    let open = || {
        let file = OpenOptions::new().write(true).create(true).truncate(false).open(path)?;
        let about = file.metadata()?;
        Ok((file, about))
    };
    open().map_err(failed(path))
}

fn failed(path: &Path) -> impl Fn(std::io::Error) -> Error {
    let what = format!("writing {}", path.display());
    move |reason| Error::System { what: what.clone(), reason: reason.to_string() }
}
