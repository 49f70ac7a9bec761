//! A folder with compiled programs: `kernels` in the folder `SYMRAIL_CACHE_DIR`.
//!
//! A file is named by the key of its program, and begins with a checksum of the key and the code. It appears as a whole
//! or not at all, whatever number of processes write it. The folder and the file belong to this user, and no other user
//! may write there: GPUs execute what they hold.

use std::fmt::Write as _;
use std::fs::{DirBuilder, File, Metadata, OpenOptions};
use std::io::{self, Read, Write as _};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Once;

use nix::libc::{O_NOFOLLOW, O_NONBLOCK};
use nix::unistd::geteuid;
use sha2::{Digest, Sha256};
use symrail_cuda::Compiled;
use tempfile::NamedTempFile;

use super::compiled::Key;
use super::error::Result;

const CHECKSUM: usize = 32;

/// A process has many programs, and the same reason holds for all of them.
static ONE_WARNING: Once = Once::new();

/// The code of a program: from the folder, or else compiled and written there. An unusable folder is no error.
pub(super) fn code(folder: &Path, key: &Key, compile: impl FnOnce() -> Result<Compiled>) -> Result<Compiled> {
    let at = match file(folder, key) {
        Ok(at) => at,
        Err(error) => {
            ONE_WARNING.call_once(|| tracing::warn!("no compiled kernels are kept in {}: {error}", folder.display()));
            return compile();
        }
    };
    let found = match read(&at) {
        Ok(bytes) => decoded(key, &bytes),
        Err(error) => {
            if error.kind() != io::ErrorKind::NotFound {
                ONE_WARNING.call_once(|| tracing::warn!("compiled kernels in {} are not used: {error}", at.display()));
            }
            None
        }
    };
    if let Some(found) = found {
        tracing::debug!("kernels from {}", at.display());
        return Ok(found);
    }
    let compiled = compile()?;
    if let Err(error) = write(&at, key, &compiled) {
        ONE_WARNING.call_once(|| tracing::warn!("compiled kernels cannot be kept in {}: {error}", at.display()));
    }
    Ok(compiled)
}

/// The path of a program's file, in a folder that only this user may write to.
fn file(folder: &Path, key: &Key) -> io::Result<PathBuf> {
    let kernels = folder.join("kernels");
    DirBuilder::new().recursive(true).mode(0o700).create(&kernels)?;
    for of in [folder, &kernels] {
        must_be_mine(of, &of.metadata()?)?;
    }
    let mut name = String::new();
    for byte in key {
        let _ = write!(name, "{byte:02x}");
    }
    Ok(kernels.join(name))
}

/// Refuses what other users may have written.
fn must_be_mine(at: &Path, found: &Metadata) -> io::Result<()> {
    let (owner, me, mode) = (found.uid(), geteuid().as_raw(), found.mode() & 0o777);
    if owner == me && mode & 0o022 == 0 {
        return Ok(());
    }
    let why = format!("{} has owner {owner} and mode {mode:o}; wanted are {me} and at most 755", at.display());
    Err(io::Error::new(io::ErrorKind::PermissionDenied, why))
}

/// The content of a regular file that no other user may have written since it was made.
fn read(at: &Path) -> io::Result<Vec<u8>> {
    let mut file: File = OpenOptions::new().read(true).custom_flags(O_NOFOLLOW | O_NONBLOCK).open(at)?;
    let found = file.metadata()?;
    must_be_mine(at, &found)?;
    if !found.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("{} is no regular file", at.display())));
    }
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The checksum includes the key, so that a file is of no use under another name.
fn checksum(key: &Key, code: &[u8]) -> [u8; CHECKSUM] {
    Sha256::new().chain_update(key).chain_update(code).finalize().into()
}

fn decoded(key: &Key, bytes: &[u8]) -> Option<Compiled> {
    let (found, code) = bytes.split_at_checked(CHECKSUM)?;
    if checksum(key, code) != found {
        return None;
    }
    let (cubin, ptx, log) = postcard::from_bytes(code).ok()?;
    // SAFETY: a process of this user has written what it had compiled: no other user may write to the file, and by the
    // checksum it is whole.
    Some(unsafe { Compiled::new(cubin, ptx, log) })
}

fn write(at: &Path, key: &Key, compiled: &Compiled) -> io::Result<()> {
    let code = (compiled.cubin(), compiled.ptx(), compiled.log());
    let code = postcard::to_allocvec(&code).map_err(io::Error::other)?;
    let mut part = NamedTempFile::new_in(at.parent().unwrap_or(at))?;
    part.write_all(&checksum(key, &code))?;
    part.write_all(&code)?;
    part.persist(at)?;
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt, symlink};

    use tempfile::{TempDir, tempdir};

    use super::*;
    use crate::cuda::error::Error;

    fn files(folder: &TempDir) -> Vec<PathBuf> {
        fs::read_dir(folder.path().join("kernels")).unwrap().map(|entry| entry.unwrap().path()).collect()
    }

    const KEY: Key = [7; 32];

    /// The code that is found for a key; `fresh` is what the compiler makes, if it may be asked.
    fn found(folder: &TempDir, key: &Key, fresh: Option<u8>) -> Option<(Vec<u8>, Vec<u8>, String)> {
        let compile = || {
            let byte = fresh.ok_or(Error::NoState { name: "a test" })?;
            // SAFETY: the test does not load it.
            Ok(unsafe { Compiled::new(vec![byte; 300], vec![byte, 0], format!("log {byte}")) })
        };
        code(folder.path(), key, compile).ok().map(|code| (code.cubin().into(), code.ptx().into(), code.log().into()))
    }

    fn made(byte: u8) -> Option<(Vec<u8>, Vec<u8>, String)> {
        Some((vec![byte; 300], vec![byte, 0], format!("log {byte}")))
    }

    #[test]
    fn a_later_process_does_not_compile() {
        let folder = tempdir().unwrap();
        assert_eq!(found(&folder, &KEY, None), None, "nothing is kept of a program that does not compile");
        assert_eq!(found(&folder, &KEY, Some(1)), made(1));
        assert_eq!(found(&folder, &KEY, None), made(1));
        assert_eq!(found(&folder, &[8; 32], Some(2)), made(2), "another program");
        assert_eq!(files(&folder).len(), 2);
        for (of, mode) in [(folder.path().join("kernels"), 0o700), (files(&folder).remove(0), 0o600)] {
            assert_eq!(fs::metadata(of).unwrap().mode() & 0o777, mode);
        }
    }

    #[test]
    fn a_file_that_is_damaged_or_cut_off_is_compiled_again() {
        let folder = tempdir().unwrap();
        assert_eq!(found(&folder, &KEY, Some(1)), made(1));
        let at = files(&folder).remove(0);
        let whole = fs::read(&at).unwrap();
        for (next, bytes) in [
            (2, &whole[..20]),
            (3, &whole[..whole.len() - 1]),
            (4, &[&whole[..100], &[!whole[100]], &whole[101..]].concat()[..]),
            (5, b""),
        ] {
            fs::write(&at, bytes).unwrap();
            assert_eq!(found(&folder, &KEY, Some(next)), made(next));
            assert_eq!(found(&folder, &KEY, None), made(next), "the file is whole again");
        }
    }

    #[test]
    fn a_folder_that_others_may_write_to_is_not_used() {
        let folder = tempdir().unwrap();
        assert_eq!(found(&folder, &KEY, Some(1)), made(1));
        for (of, mode) in [(folder.path().join("kernels"), 0o777), (folder.path().into(), 0o775)] {
            fs::set_permissions(&of, Permissions::from_mode(mode)).unwrap();
            assert_eq!(found(&folder, &KEY, Some(2)), made(2), "{mode:o}");
            fs::set_permissions(&of, Permissions::from_mode(0o700)).unwrap();
        }
        assert_eq!(found(&folder, &KEY, None), made(1), "nothing was written meanwhile");
        // Code is compiled where the folder cannot be made, too.
        let no_folder = tempdir().unwrap();
        fs::write(no_folder.path().join("kernels"), "").unwrap();
        assert_eq!(found(&no_folder, &KEY, Some(3)), made(3));
    }

    #[test]
    fn a_file_that_others_may_have_written_is_compiled_again() {
        let folder = tempdir().unwrap();
        assert_eq!(found(&folder, &KEY, Some(1)), made(1));
        let at = files(&folder).remove(0);
        // The checksums of both are right.
        fs::set_permissions(&at, Permissions::from_mode(0o666)).unwrap();
        assert_eq!(found(&folder, &KEY, Some(2)), made(2));
        let elsewhere = folder.path().join("elsewhere");
        fs::rename(&at, &elsewhere).unwrap();
        symlink(&elsewhere, &at).unwrap();
        assert_eq!(found(&folder, &KEY, Some(3)), made(3));
        assert_eq!(found(&folder, &KEY, None), made(3), "the written file is this user's alone");
    }

    #[test]
    fn a_file_is_of_no_use_under_another_name() {
        let folder = tempdir().unwrap();
        assert_eq!(found(&folder, &KEY, Some(1)), made(1));
        let at = files(&folder).remove(0);
        fs::rename(&at, file(folder.path(), &[8; 32]).unwrap()).unwrap();
        assert_eq!(found(&folder, &[8; 32], Some(2)), made(2));
    }
}
