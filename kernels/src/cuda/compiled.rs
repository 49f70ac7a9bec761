//! Programs that were compiled before: NVRTC takes seconds for some of them.

use std::sync::{Arc, Mutex};

use symrail_core::lock;
use symrail_cuda::Compiled;

use super::compile::{Nvrtc, Program};
use super::error::Result;

/// The programs that were compiled for one GPU. Each is compiled once, unless its text has changed.
#[derive(Default)]
pub struct CompiledPrograms {
    known: Mutex<Vec<Known>>,
}

/// A program that was compiled, and all that the compiler has read of it.
struct Known {
    texts: Vec<Vec<u8>>,
    compiled: Arc<Compiled>,
}

impl CompiledPrograms {
    /// The code of a program for an architecture. It is always compiled anew if the API's headers are in a folder,
    /// where they may have changed.
    ///
    /// # Errors
    /// The compiler's messages.
    pub fn compile(&self, nvrtc: &Nvrtc, program: &Program<'_>, arch: &str) -> Result<Arc<Compiled>> {
        if nvrtc.reads_headers() {
            return nvrtc.compile(program, arch).map(Arc::new);
        }
        self.once(program, arch, || nvrtc.compile(program, arch))
    }

    fn once(
        &self,
        program: &Program<'_>,
        arch: &str,
        compile: impl FnOnce() -> Result<Compiled>,
    ) -> Result<Arc<Compiled>> {
        let mut texts = program.texts();
        texts.push(arch.into());
        // Other threads wait meanwhile, since they may need the same program.
        let mut known = lock(&self.known);
        if let Some(Known { compiled, .. }) = known.iter().find(|known| known.texts == texts) {
            return Ok(Arc::clone(compiled));
        }
        let compiled = Arc::new(compile()?);
        known.push(Known { texts, compiled: Arc::clone(&compiled) });
        Ok(compiled)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::cuda::error::Error;

    #[test]
    fn each_text_is_compiled_once_for_an_architecture() {
        let (programs, mut compiles) = (CompiledPrograms::default(), 0u8);
        let mut compile = |program: &Program<'_>, arch: &str| {
            let code = programs.once(program, arch, || {
                compiles += 1;
                Ok(Compiled { cubin: vec![compiles], ptx: Vec::new(), log: String::new() })
            });
            code.unwrap().cubin[0]
        };
        let program = Program::new("one.cu", "text");
        assert_eq!([compile(&program, "sm_90"), compile(&program, "sm_90")], [1, 1]);
        assert_eq!(compile(&program, "sm_80"), 2);
        assert_eq!(compile(&Program::new("one.cu", "other text"), "sm_90"), 3, "the same name with another text");
        let [one, other] = [[(c"header.cuh", "1")], [(c"header.cuh", "2")]];
        assert_eq!(compile(&program.clone().with_headers(&one), "sm_90"), 4);
        assert_eq!(compile(&program.clone().with_headers(&other), "sm_90"), 5, "the same text with another header");
        assert_eq!([compile(&program, "sm_90"), compile(&program.with_headers(&one), "sm_90")], [1, 4]);
    }

    #[test]
    fn what_does_not_compile_is_tried_again() {
        let (programs, program) = (CompiledPrograms::default(), Program::new("one.cu", "text"));
        let failed = programs.once(&program, "sm_90", || Err(Error::NoState { name: "a test" }));
        assert!(failed.is_err());
        let compiled =
            programs.once(&program, "sm_90", || Ok(Compiled { cubin: vec![1], ptx: Vec::new(), log: String::new() }));
        assert_eq!(compiled.unwrap().cubin, [1]);
    }
}
