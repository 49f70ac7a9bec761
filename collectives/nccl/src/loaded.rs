//! Which NCCL a program has: this one, or another one in the same process, as programs load it that look for it by path.

use std::io::Write;
use std::sync::Once;

use symrail::Settings;

use crate::types::VERSION;

/// Says once which library serves communicators: on standard output, as NCCL does, if `NCCL_DEBUG` asks for its version
/// or more; and in the log, if the process has another library of that name, which is not the one of
/// `SYMRAIL_NCCL_LIBRARY`. Only rank 0 names the version.
pub fn note_once(rank: u32) {
    static NOTED: Once = Once::new();
    NOTED.call_once(|| {
        if rank == 0 && wants_version(std::env::var("NCCL_DEBUG").ok().as_deref()) {
            // `println` panics where nobody reads the output.
            let _ = writeln!(
                std::io::stdout(),
                "NCCL version {} (Symrail {})",
                version(VERSION),
                env!("CARGO_PKG_VERSION")
            );
        }
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
        let expected = Settings::from_env().ok().and_then(|settings| settings.nccl_library);
        for path in others(&maps, expected.as_ref().and_then(|path| path.to_str())) {
            tracing::warn!(
                "{path} is loaded, too: calls of programs that loaded it by path do not come here; VLLM_NCCL_SO_PATH, \
                 SGLANG_NCCL_SO_PATH and LD_LIBRARY_PATH name this library for them"
            );
        }
    });
}

/// Whether this level of `NCCL_DEBUG` has NCCL print its version.
fn wants_version(level: Option<&str>) -> bool {
    level.is_some_and(|level| {
        ["version", "warn", "info", "abort", "trace"].iter().any(|it| level.eq_ignore_ascii_case(it))
    })
}

/// A version as NCCL writes it: 22809 is 2.28.9.
fn version(code: i32) -> String {
    format!("{}.{}.{}", code / 10_000, code / 100 % 100, code % 100)
}

/// The files of a process's mappings that are libraries of NCCL, except for the expected one.
fn others(maps: &str, expected: Option<&str>) -> Vec<String> {
    let path = |line: &str| line.find('/').map(|at| line[at..].trim_end().to_owned());
    let is_nccl = |path: &String| {
        let name = path.rsplit('/').next().unwrap_or_default();
        name.starts_with("libnccl.so") && expected != Some(path.as_str())
    };
    let mut found: Vec<String> = maps.lines().filter_map(path).filter(is_nccl).collect();
    found.dedup();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_printed_where_nccl_prints_it() {
        assert_eq!(version(VERSION), "2.28.9");
        for level in ["VERSION", "WARN", "INFO", "TRACE", "info"] {
            assert!(wants_version(Some(level)), "{level}");
        }
        assert!(![None, Some(""), Some("NONE")].into_iter().any(wants_version));
    }

    #[test]
    fn other_libraries_are_found_by_their_names() {
        let line = |path: &str| format!("7f00-7f10 r-xp 00000000 00:00 12  {path}\n");
        let files =
            ["/a/libnccl.so.2", "/a/libnccl.so.2", "/b/libsymrail_nccl.so", "/c/libnccl-net.so", "/d/libnccl.so.2"];
        let maps: String =
            files.iter().map(|path| line(path)).chain(["7f00-7f10 rw-p 0 00:00 0\n".to_owned()]).collect();
        assert_eq!(others(&maps, None), ["/a/libnccl.so.2", "/d/libnccl.so.2"]);
        assert_eq!(others(&maps, Some("/d/libnccl.so.2")), ["/a/libnccl.so.2"]);
    }
}
