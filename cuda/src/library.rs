//! The search for a library of the toolkit.

use std::path::{Path, PathBuf};

use libloading::os::unix::Library;

/// Opens the first of these names that is in one of the folders, or else on the system's paths. `before` runs in each
/// folder first. The error has the paths that were tried.
pub(crate) fn open<B>(
    folders: &[PathBuf],
    names: &[&str],
    flags: i32,
    before: impl Fn(&Path) -> Option<B>,
) -> Result<(Library, Option<B>), String> {
    let mut tried = Vec::new();
    let in_folders = folders.iter().flat_map(|folder| names.iter().map(move |name| folder.join(name)));
    for path in in_folders.chain(names.iter().map(PathBuf::from)) {
        let before = path.parent().filter(|folder| !folder.as_os_str().is_empty()).and_then(&before);
        // SAFETY: the initialisers of the toolkit's libraries have no preconditions.
        match unsafe { Library::open(Some(&path), flags) } {
            Ok(library) => return Ok((library, before)),
            Err(error) => tried.push(format!("{}: {error}", path.display())),
        }
    }
    Err(tried.join("; "))
}
