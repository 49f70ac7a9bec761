//! A folder with compiled programs: `kernels` in the folder `SYMRAIL_CACHE_DIR`.
//!
//! A file is named by the key of its program, and begins with a checksum. It appears as a whole or not at all, whatever
//! number of processes write it. The folder belongs to this user, and no other user may write there: GPUs execute what
//! it holds.

use std::fmt::Write;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};

use nix::unistd::geteuid;
use sha2::{Digest, Sha256};
use symrail_cuda::Compiled;

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
    if let Some(found) = fs::read(&at).ok().and_then(|bytes| decoded(&bytes)) {
        tracing::debug!("kernels from {}", at.display());
        return Ok(found);
    }
    let compiled = compile()?;
    if let Err(error) = write(&at, &compiled) {
        ONE_WARNING.call_once(|| tracing::warn!("compiled kernels cannot be kept in {}: {error}", at.display()));
    }
    Ok(compiled)
}

/// The path of a program's file, in a folder that only this user may write to.
fn file(folder: &Path, key: &Key) -> io::Result<PathBuf> {
    let kernels = folder.join("kernels");
    DirBuilder::new().recursive(true).mode(0o700).create(&kernels)?;
    for of in [folder, &kernels] {
        let found = fs::metadata(of)?;
        let (owner, me) = (found.uid(), geteuid().as_raw());
        if owner != me || found.mode() & 0o022 != 0 {
            let mode = found.mode() & 0o777;
            let why = format!("{} has owner {owner} and mode {mode:o}; wanted are {me} and at most 755", of.display());
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
        }
    }
    let mut name = String::new();
    for byte in key {
        let _ = write!(name, "{byte:02x}");
    }
    Ok(kernels.join(name))
}

fn decoded(bytes: &[u8]) -> Option<Compiled> {
    let (checksum, code) = bytes.split_at_checked(CHECKSUM)?;
    if Sha256::digest(code).as_slice() != checksum {
        return None;
    }
    let (cubin, ptx, log) = postcard::from_bytes(code).ok()?;
    // SAFETY: a process of this user has written what it had compiled: no other user may write to the folder, and by
    // the checksum the file is whole.
    Some(unsafe { Compiled::new(cubin, ptx, log) })
}

fn write(at: &Path, compiled: &Compiled) -> io::Result<()> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let code = (compiled.cubin(), compiled.ptx(), compiled.log());
    let code = postcard::to_allocvec(&code).map_err(io::Error::other)?;
    let part = at.with_extension(format!("{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed)));
    let written = fs::write(&part, [Sha256::digest(&code).as_slice(), &code].concat());
    written.and_then(|()| fs::rename(&part, at)).inspect_err(|_| drop(fs::remove_file(&part)))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::cuda::error::Error;

    /// A new folder, which is removed at the end.
    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Folder {
            let at = std::env::temp_dir().join(format!("symrail-kept-{}-{name}", std::process::id()));
            DirBuilder::new().mode(0o700).create(&at).unwrap();
            Folder(at)
        }

        fn files(&self) -> Vec<PathBuf> {
            fs::read_dir(self.0.join("kernels")).unwrap().map(|entry| entry.unwrap().path()).collect()
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            fs::remove_dir_all(&self.0).unwrap();
        }
    }

    const KEY: Key = [7; 32];

    /// The code that is found for a key; `fresh` is what the compiler makes, if it may be asked.
    fn found(folder: &Folder, key: &Key, fresh: Option<u8>) -> Option<(Vec<u8>, Vec<u8>, String)> {
        let compile = || {
            let byte = fresh.ok_or(Error::NoState { name: "a test" })?;
            // SAFETY: the test does not load it.
            Ok(unsafe { Compiled::new(vec![byte; 300], vec![byte, 0], format!("log {byte}")) })
        };
        code(&folder.0, key, compile).ok().map(|code| (code.cubin().into(), code.ptx().into(), code.log().into()))
    }

    fn made(byte: u8) -> Option<(Vec<u8>, Vec<u8>, String)> {
        Some((vec![byte; 300], vec![byte, 0], format!("log {byte}")))
    }

    #[test]
    fn a_later_process_does_not_compile() {
        let folder = Folder::new("later");
        assert_eq!(found(&folder, &KEY, None), None, "nothing is kept of a program that does not compile");
        assert_eq!(found(&folder, &KEY, Some(1)), made(1));
        assert_eq!(found(&folder, &KEY, None), made(1));
        assert_eq!(found(&folder, &[8; 32], Some(2)), made(2), "another program");
        assert_eq!(folder.files().len(), 2);
        assert_eq!(fs::metadata(folder.0.join("kernels")).unwrap().mode() & 0o777, 0o700);
    }

    #[test]
    fn a_file_that_is_damaged_or_cut_off_is_compiled_again() {
        let folder = Folder::new("damaged");
        assert_eq!(found(&folder, &KEY, Some(1)), made(1));
        let at = folder.files().remove(0);
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
        let folder = Folder::new("others");
        assert_eq!(found(&folder, &KEY, Some(1)), made(1));
        for (of, mode) in [(folder.0.join("kernels"), 0o777), (folder.0.clone(), 0o775)] {
            fs::set_permissions(&of, fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(found(&folder, &KEY, Some(2)), made(2), "{mode:o}");
            fs::set_permissions(&of, fs::Permissions::from_mode(0o700)).unwrap();
        }
        assert_eq!(found(&folder, &KEY, None), made(1), "nothing was written meanwhile");
        // Code is compiled where the folder cannot be made, too.
        let no_folder = Folder::new("no-folder");
        fs::write(no_folder.0.join("kernels"), "").unwrap();
        assert_eq!(found(&no_folder, &KEY, Some(3)), made(3));
    }
}
