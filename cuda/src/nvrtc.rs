//! CUDA C++, compiled at run time by NVRTC, which is loaded on demand.
//!
//! The functions are looked up one by one: `cudarc` loads NVRTC only from the system's paths, but on most machines it
//! is in a toolkit's folder or a Python wheel's.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::{Path, PathBuf};
use std::ptr::null_mut;

use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};

use crate::error::{CudaError, Result};

/// The compiler's options besides the architecture and a folder of headers.
pub const OPTIONS: [&str; 2] = ["-default-device", "--std=c++17"];

/// A compiled program, ready for [`Module::load`](crate::Module::load).
#[derive(Debug, Clone)]
pub struct Compiled {
    cubin: Vec<u8>,
    ptx: Vec<u8>,
    log: String,
}

impl Compiled {
    /// A program that was compiled earlier.
    ///
    /// # Safety
    /// NVRTC has made the machine code and the PTX, and both are whole.
    #[must_use]
    pub unsafe fn new(cubin: Vec<u8>, ptx: Vec<u8>, log: String) -> Compiled {
        Compiled { cubin, ptx, log }
    }

    /// Machine code for exactly the target.
    #[must_use]
    pub fn cubin(&self) -> &[u8] {
        &self.cubin
    }

    /// The same as PTX, terminated by a zero byte.
    #[must_use]
    pub fn ptx(&self) -> &[u8] {
        &self.ptx
    }

    /// The compiler's messages.
    #[must_use]
    pub fn log(&self) -> &str {
        &self.log
    }
}

type Handle = *mut c_void;
type Create = unsafe extern "C" fn(
    *mut Handle,
    *const c_char,
    *const c_char,
    c_int,
    *const *const c_char,
    *const *const c_char,
) -> c_int;
type Compile = unsafe extern "C" fn(Handle, c_int, *const *const c_char) -> c_int;
type Size = unsafe extern "C" fn(Handle, *mut usize) -> c_int;
type Get = unsafe extern "C" fn(Handle, *mut c_char) -> c_int;
type Destroy = unsafe extern "C" fn(*mut Handle) -> c_int;
type Version = unsafe extern "C" fn(*mut c_int, *mut c_int) -> c_int;

/// The program.
#[derive(Debug, Clone, Copy)]
pub struct Source<'a> {
    /// Its name, for messages.
    pub name: &'a str,
    /// The text, in CUDA C++.
    pub text: &'a str,
    /// Headers: the name in an `#include`, and the text.
    pub headers: &'a [(&'a CStr, &'a str)],
    /// A folder with further headers.
    pub include: Option<&'a Path>,
}

/// The loaded NVRTC.
pub struct Nvrtc {
    create: Create,
    compile: Compile,
    destroy: Destroy,
    log: (Size, Get),
    cubin: (Size, Get),
    ptx: (Size, Get),
    version: Version,
    _library: Library,
    _builtins: Option<Library>,
}

impl Nvrtc {
    /// Loads NVRTC from one of the folders, or else from the system's paths.
    ///
    /// # Errors
    /// NVRTC is missing.
    pub fn load(folders: &[PathBuf]) -> Result<Self> {
        let versions = ["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"];
        let (library, builtins) = crate::library::open(folders, &versions, RTLD_NOW, open_builtins)
            .map_err(|tried| CudaError::NoNvrtc { tried })?;
        // SAFETY: the library is NVRTC, by its name.
        unsafe { Self::of(library, builtins) }
    }

    /// # Safety
    /// The library is NVRTC.
    unsafe fn of(library: Library, builtins: Option<Library>) -> Result<Self> {
        macro_rules! function {
            ($name:literal) => {{
                // SAFETY: the caller's promise; the types are those of NVRTC's header.
                let symbol = unsafe { library.get($name) };
                *symbol.map_err(|error| CudaError::NoNvrtc { tried: error.to_string() })?
            }};
        }
        Ok(Self {
            create: function!(b"nvrtcCreateProgram"),
            compile: function!(b"nvrtcCompileProgram"),
            destroy: function!(b"nvrtcDestroyProgram"),
            log: (function!(b"nvrtcGetProgramLogSize"), function!(b"nvrtcGetProgramLog")),
            cubin: (function!(b"nvrtcGetCUBINSize"), function!(b"nvrtcGetCUBIN")),
            ptx: (function!(b"nvrtcGetPTXSize"), function!(b"nvrtcGetPTX")),
            version: function!(b"nvrtcVersion"),
            _library: library,
            _builtins: builtins,
        })
    }

    /// As [`Nvrtc::load`], from the usual folders of CUDA's toolkit: `CUDA_HOME`, `CUDA_PATH`, `/usr/local/cuda`.
    ///
    /// # Errors
    /// NVRTC is missing.
    pub fn find() -> Result<Self> {
        let named = ["CUDA_HOME", "CUDA_PATH"].into_iter().filter_map(std::env::var_os).map(PathBuf::from);
        let roots = named.chain([PathBuf::from("/usr/local/cuda")]);
        let folders: Vec<_> = roots.flat_map(|root| [root.join("lib64"), root.join("lib")]).collect();
        Self::load(&folders)
    }

    /// The version, such as `13.0`.
    #[must_use]
    pub fn version(&self) -> String {
        let (major, minor) = self.numbers();
        format!("{major}.{minor}")
    }

    fn numbers(&self) -> (c_int, c_int) {
        let (mut major, mut minor) = (0, 0);
        // SAFETY: the function writes two numbers.
        unsafe { (self.version)(&raw mut major, &raw mut minor) };
        (major, minor)
    }

    /// Compiles a program for an architecture such as `sm_90`.
    ///
    /// # Errors
    /// The compiler's messages.
    pub fn compile(&self, program: &Source<'_>, arch: &str) -> Result<Compiled> {
        self.compile_with(program, arch, &[])
    }

    /// As [`Nvrtc::compile`] in a sixth of the time, to slow machine code: for tests of whether a program compiles.
    /// NVRTC before 12.8 knows no such option.
    ///
    /// # Errors
    /// The compiler's messages.
    pub fn compile_quickly(&self, program: &Source<'_>, arch: &str) -> Result<Compiled> {
        let quickly: &[&str] = if self.numbers() >= (12, 8) { &["-Ofc=max"] } else { &[] };
        self.compile_with(program, arch, quickly)
    }

    fn compile_with(&self, program: &Source<'_>, arch: &str, more: &[&str]) -> Result<Compiled> {
        let fail = |log: String| CudaError::Compile { name: program.name.into(), arch: arch.into(), log };
        let text = |s: &str| CString::new(s).map_err(|_| fail("a zero byte in the source".into()));
        let mut bodies = Vec::new();
        let mut names = Vec::new();
        for (name, body) in program.headers {
            bodies.push(text(body)?);
            names.push(name.as_ptr());
        }
        let bodies_raw: Vec<_> = bodies.iter().map(|b| b.as_ptr()).collect();
        let (source, name) = (text(program.text)?, text(program.name)?);
        let mut handle = null_mut();
        let count = names.len() as c_int;
        // SAFETY: terminated strings and arrays of `count` of them, alive during the call.
        let created = unsafe {
            (self.create)(&raw mut handle, source.as_ptr(), name.as_ptr(), count, bodies_raw.as_ptr(), names.as_ptr())
        };
        if created != 0 {
            return Err(fail(format!("NVRTC's error {created}")));
        }
        let mut options = vec![text(&format!("-arch={arch}"))?];
        for option in OPTIONS.iter().chain(more) {
            options.push(text(option)?);
        }
        if let Some(folder) = program.include {
            options.push(text(&format!("-I{}", folder.display()))?);
        }
        let options: Vec<_> = options.iter().map(|o| o.as_ptr()).collect();
        // SAFETY: the program was created above; terminated strings, alive during the call.
        let answer = unsafe { (self.compile)(handle, options.len() as c_int, options.as_ptr()) };
        // SAFETY: as above, for each of the three outputs.
        let [log, cubin, ptx] = [self.log, self.cubin, self.ptx].map(|output| unsafe { fetch(handle, output) });
        // SAFETY: created above, destroyed once.
        let _ = unsafe { (self.destroy)(&raw mut handle) };
        let log = String::from_utf8_lossy(&log).trim_end_matches(['\0', '\n']).to_owned();
        if answer != 0 { Err(fail(log)) } else { Ok(Compiled { cubin, ptx, log }) }
    }
}

/// # Safety
/// The functions belong to the library that made the program.
unsafe fn fetch(program: Handle, (size, get): (Size, Get)) -> Vec<u8> {
    let mut bytes = 0;
    // SAFETY: the caller's promise; the function writes one number.
    if unsafe { size(program, &raw mut bytes) } != 0 {
        return Vec::new();
    }
    let mut out = vec![0u8; bytes];
    // SAFETY: the caller's promise; there is room for as many bytes as the size.
    unsafe { get(program, out.as_mut_ptr().cast()) };
    out
}

/// NVRTC opens a second library by its name alone. It finds a library that was loaded before from the same folder.
fn open_builtins(folder: &Path) -> Option<Library> {
    let entries = std::fs::read_dir(folder).ok()?;
    let is_builtins = |name: &str| name.starts_with("libnvrtc-builtins.so.") && !name.contains(".alt");
    let path = entries
        .flatten()
        .map(|e| e.path())
        .find(|p| p.file_name().is_some_and(|n| is_builtins(&n.to_string_lossy())))?;
    // SAFETY: a library of data and functions, whose initialisers have no preconditions.
    unsafe { Library::open(Some(path), RTLD_NOW | RTLD_GLOBAL) }.ok()
}
