//! The libraries that are loaded at run time: which exist, where they are, and what needs them.

use std::path::PathBuf;

use serde::Serialize;
use symrail_cuda::Nvrtc;
use symrail_transport::env::Settings;
use symrail_transport::{ofi, verbs};

use super::cuda;
use super::libfabric::missing;
use super::report::Missing;

/// A library.
#[derive(Debug, Serialize)]
pub struct Library {
    /// Its name.
    pub name: &'static str,
    /// Its purpose.
    pub purpose: &'static str,
    /// The file that was loaded.
    pub path: Option<String>,
    /// Its version, from the library or from its file's name.
    pub version: Option<String>,
    /// Why it is missing.
    pub missing: Option<Missing>,
}

impl Library {
    fn of<T>(
        (name, purpose, file): (&'static str, &'static str, &'static str),
        found: Result<(T, Option<String>), Missing>,
    ) -> Library {
        let kept = |(library, version)| {
            // Some libraries do not survive being unloaded and loaded again.
            std::mem::forget::<T>(library);
            (version, None)
        };
        let (version, missing) = found.map_or_else(|missing| (None, Some(missing)), kept);
        let path = if missing.is_none() { loaded(file) } else { None };
        let named = || Some(path.as_ref()?.file_name()?.to_str()?.split_once(".so.")?.1.to_owned());
        Library {
            name,
            purpose,
            version: version.or_else(named),
            path: path.map(|path| path.display().to_string()),
            missing,
        }
    }
}

/// Loads the existing libraries, as a PE started here would.
#[must_use]
pub fn find_out(settings: &Settings) -> Vec<Library> {
    let libfabric = ofi::load(settings).map_err(|error| missing(&error)).map(|library| {
        let (major, minor) = library.version();
        (library, Some(format!("{major}.{minor}")))
    });
    let verbs = verbs::load(settings).map_err(|error| missing(&error)).map(|library| (library, None));
    let nvrtc = Nvrtc::find().map(|library| (library, None)).map_err(|_| Missing {
        reason: "no NVRTC library (libnvrtc.so)".into(),
        remedy: "install CUDA's toolkit, and set CUDA_HOME if it is not in /usr/local/cuda".into(),
    });
    vec![
        Library::of(("libfabric", "other hosts, over any NIC; PEs of one host do without", "libfabric"), libfabric),
        Library::of(("libibverbs", "other hosts, over RDMA NICs without libfabric", "libibverbs"), verbs),
        Library::of(
            ("CUDA driver", "heaps in GPUs and reached by them", "libcuda"),
            cuda::version().map(|version| ((), version)),
        ),
        Library::of(("NVRTC", "kernels that are compiled when they are needed", "libnvrtc"), nvrtc),
    ]
}

/// The file of a library that this process has loaded.
fn loaded(name: &str) -> Option<PathBuf> {
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    let paths = maps.lines().filter_map(|line| Some(PathBuf::from(&line[line.find('/')?..])));
    let of_library = |path: &PathBuf| {
        let file = path.file_name().and_then(|file| file.to_str()).unwrap_or_default();
        // The libraries in wheels have a hash in their names: libfabric-5f3c.so.1.
        file.strip_prefix(name).is_some_and(|rest| rest.starts_with(".so") || rest.starts_with('-'))
    };
    paths.into_iter().find(of_library)
}
