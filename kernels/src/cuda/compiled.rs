//! Programs that were compiled before: NVRTC takes seconds for some of them. The process keeps what it has compiled,
//! and a folder keeps it for other processes (`kept`).

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex};

use sha2::{Digest, Sha256};
use symrail_core::lock;
use symrail_cuda::{Compiled, nvrtc};

use super::compile::{Nvrtc, Program};
use super::error::Result;
use super::kept;

/// Identifies a program by all that its code depends on.
pub(super) type Key = [u8; 32];

/// The code of a program, if it is known. Threads that need the same program wait while one of them compiles it.
type Slot = Arc<Mutex<Option<Arc<Compiled>>>>;

static KNOWN: Mutex<Option<HashMap<Key, Slot>>> = Mutex::new(None);

/// The code of a program for an architecture, which is compiled if neither this process nor the folder has it. It is
/// always compiled anew if the API's headers are in a folder, where they may have changed.
///
/// # Errors
/// The compiler's messages.
pub fn compiled(nvrtc: &Nvrtc, program: &Program<'_>, arch: &str, folder: Option<&Path>) -> Result<Arc<Compiled>> {
    if nvrtc.reads_headers() {
        return nvrtc.compile(program, arch).map(Arc::new);
    }
    let key = key(&nvrtc.version(), program, arch);
    once(key, || {
        let Some(folder) = folder else { return nvrtc.compile(program, arch) };
        kept::code(folder, &key, || nvrtc.compile(program, arch))
    })
}

fn key(version: &str, program: &Program<'_>, arch: &str) -> Key {
    let mut hash = Sha256::new();
    let versions = [env!("CARGO_PKG_VERSION"), version, arch].into_iter().chain(nvrtc::OPTIONS).map(str::as_bytes);
    for text in versions.chain(program.texts()) {
        hash.update((text.len() as u64).to_le_bytes());
        hash.update(text);
    }
    hash.finalize().into()
}

fn once(key: Key, compile: impl FnOnce() -> Result<Compiled>) -> Result<Arc<Compiled>> {
    let slot = Arc::clone(lock(&KNOWN).get_or_insert_default().entry(key).or_default());
    let mut known = lock(&slot);
    if let Some(compiled) = &*known {
        return Ok(Arc::clone(compiled));
    }
    let compiled = Arc::new(compile()?);
    *known = Some(Arc::clone(&compiled));
    Ok(compiled)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::cuda::error::Error;

    /// Code that no GPU loads.
    fn code(byte: u8) -> Compiled {
        // SAFETY: the test does not load it.
        unsafe { Compiled::new(vec![byte], vec![0], String::new()) }
    }

    #[test]
    fn each_text_is_compiled_once_for_an_architecture() {
        let mut compiles = 0u8;
        let mut compile = |version: &str, program: &Program<'_>, arch: &str| {
            let found = once(key(version, program, arch), || {
                compiles += 1;
                Ok(code(compiles))
            });
            found.unwrap().cubin()[0]
        };
        let program = Program::new("one.cu", "text");
        assert_eq!([compile("13.0", &program, "sm_90"), compile("13.0", &program, "sm_90")], [1, 1]);
        assert_eq!(compile("13.0", &program, "sm_80"), 2);
        assert_eq!(compile("12.9", &program, "sm_90"), 3, "another compiler");
        let other = Program::new("one.cu", "other text");
        assert_eq!(compile("13.0", &other, "sm_90"), 4, "the same name with another text");
        let [one, two] = [[(c"header.cuh", "1")], [(c"header.cuh", "2")]];
        assert_eq!(compile("13.0", &program.clone().with_headers(&one), "sm_90"), 5);
        assert_eq!(compile("13.0", &program.clone().with_headers(&two), "sm_90"), 6, "the same text, another header");
        assert_eq!([compile("13.0", &program, "sm_90"), compile("13.0", &program.with_headers(&one), "sm_90")], [1, 5]);
    }

    #[test]
    fn what_does_not_compile_is_tried_again() {
        let key = key("13.0", &Program::new("two.cu", "text"), "sm_90");
        assert!(once(key, || Err(Error::NoState { name: "a test" })).is_err());
        assert_eq!(once(key, || Ok(code(1))).unwrap().cubin(), [1]);
    }
}
