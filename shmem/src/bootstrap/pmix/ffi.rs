//! The part of PMIx's C interface that is used here, loaded at run time.
//!
//! The types follow the headers of PMIx 3 to 5, whose client interface has kept its layout; a test compares them with
//! the installed headers.

use std::ffi::{CStr, c_char, c_int, c_void};

use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};

use super::super::error::{Error, Result};

const SONAME: &str = "libpmix.so.2";

pub(super) type Status = c_int;
pub(super) type Rank = u32;

pub(super) const SUCCESS: Status = 0;
pub(super) const RANK_WILDCARD: Rank = u32::MAX - 1;
pub(super) const SCOPE_GLOBAL: u8 = 3;
pub(super) const TYPE_BOOL: u16 = 1;
pub(super) const TYPE_INT: u16 = 6;
pub(super) const TYPE_UINT32: u16 = 14;
pub(super) const TYPE_BYTE_OBJECT: u16 = 27;
pub(super) const JOB_SIZE: &CStr = c"pmix.job.size";
pub(super) const COLLECT_DATA: &CStr = c"pmix.collect";
pub(super) const TIMEOUT: &CStr = c"pmix.timeout";

/// `pmix_proc_t`: a process by its job's name and its rank.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Proc {
    pub namespace: [c_char; 256],
    pub rank: Rank,
}

/// `pmix_byte_object_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct ByteObject {
    pub bytes: *mut c_char,
    pub size: usize,
}

/// The union in `pmix_value_t`; its largest member is three words.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) union Data {
    pub flag: bool,
    pub integer: c_int,
    pub uint32: u32,
    pub object: ByteObject,
    pub words: [u64; 3],
}

/// `pmix_value_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Value {
    pub ty: u16,
    pub data: Data,
}

/// `pmix_info_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Info {
    pub key: [c_char; 512],
    pub flags: u32,
    pub value: Value,
}

/// `pmix_op_cbfunc_t`.
pub(super) type OnDone = unsafe extern "C" fn(Status, *mut c_void);

/// The functions. They stay valid because the library is never unloaded.
#[derive(Clone, Copy)]
pub(super) struct Pmix {
    pub init: unsafe extern "C" fn(*mut Proc, *mut Info, usize) -> Status,
    pub finalize: unsafe extern "C" fn(*const Info, usize) -> Status,
    pub abort: unsafe extern "C" fn(c_int, *const c_char, *mut Proc, usize) -> Status,
    pub put: unsafe extern "C" fn(u8, *const c_char, *mut Value) -> Status,
    pub commit: unsafe extern "C" fn() -> Status,
    pub fence_nb: unsafe extern "C" fn(*const Proc, usize, *const Info, usize, OnDone, *mut c_void) -> Status,
    pub get: unsafe extern "C" fn(*const Proc, *const c_char, *const Info, usize, *mut *mut Value) -> Status,
    error_string: unsafe extern "C" fn(Status) -> *const c_char,
    version: unsafe extern "C" fn() -> *const c_char,
}

impl Pmix {
    pub(super) fn load() -> Result<Pmix> {
        let refuse = |error: libloading::Error| Error::Library {
            library: SONAME,
            reason: error.to_string(),
            remedy: "install PMIx (Debian: libpmix2), or start the program with symrail run",
        };
        // PMIx loads its own components, which look for its symbols in the process, hence RTLD_GLOBAL.
        // SAFETY: loading runs the library's initialisers; PMIx's only set up its own tables.
        let library = unsafe { Library::open(Some(SONAME), RTLD_NOW | RTLD_GLOBAL) }.map_err(refuse)?;
        /// Looks up a function with the type of its field.
        macro_rules! function {
            ($name:literal) => {
                // SAFETY: the field's type is the function's prototype in pmix.h.
                *unsafe { library.get($name.to_bytes_with_nul()) }.map_err(refuse)?
            };
        }
        let pmix = Pmix {
            init: function!(c"PMIx_Init"),
            finalize: function!(c"PMIx_Finalize"),
            abort: function!(c"PMIx_Abort"),
            put: function!(c"PMIx_Put"),
            commit: function!(c"PMIx_Commit"),
            fence_nb: function!(c"PMIx_Fence_nb"),
            get: function!(c"PMIx_Get"),
            error_string: function!(c"PMIx_Error_string"),
            version: function!(c"PMIx_Get_version"),
        };
        // The library is never unloaded: its threads outlive finalize, and an MPI in this process may use it too.
        std::mem::forget(library);
        Ok(pmix)
    }

    /// PMIx's text for a status.
    pub(super) fn words(&self, status: Status) -> String {
        // SAFETY: returns a static string for any status.
        text(unsafe { (self.error_string)(status) })
    }

    /// The library's version string, cut at the first comma (the rest is build details).
    pub(super) fn version(&self) -> String {
        // SAFETY: returns a static string.
        let version = text(unsafe { (self.version)() });
        version.split(',').next().unwrap_or_default().to_owned()
    }
}

fn text(text: *const c_char) -> String {
    if text.is_null() {
        return "no text".into();
    }
    // SAFETY: PMIx returns terminated strings that live as long as the library.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

impl Value {
    pub(super) fn flag(flag: bool) -> Value {
        let mut data = Data { words: [0; 3] };
        data.flag = flag;
        Value { ty: TYPE_BOOL, data }
    }

    pub(super) fn int(integer: c_int) -> Value {
        let mut data = Data { words: [0; 3] };
        data.integer = integer;
        Value { ty: TYPE_INT, data }
    }

    /// Refers to `bytes`, which PMIx only reads.
    pub(super) fn bytes(bytes: &[u8]) -> Value {
        let mut data = Data { words: [0; 3] };
        data.object = ByteObject { bytes: bytes.as_ptr().cast_mut().cast(), size: bytes.len() };
        Value { ty: TYPE_BYTE_OBJECT, data }
    }
}

impl Info {
    pub(super) fn new(key: &CStr, value: Value) -> Info {
        let mut info = Info { key: [0; 512], flags: 0, value };
        for (to, from) in info.key.iter_mut().zip(key.to_bytes()) {
            *to = from.cast_signed();
        }
        info
    }
}

/// A value that PMIx allocated; drop frees it.
pub(super) struct Given(*mut Value);

// SAFETY: memory from malloc that only its owner uses.
unsafe impl Send for Given {}

impl Given {
    /// # Safety
    /// `value` is null, or `PMIx_Get` returned it and no other code owns it.
    pub(super) unsafe fn new(value: *mut Value) -> Option<Given> {
        (!value.is_null()).then_some(Given(value))
    }

    fn value(&self) -> Value {
        // SAFETY: not null and valid until the drop, see `new`.
        unsafe { *self.0 }
    }

    pub(super) fn uint32(&self) -> Option<u32> {
        let value = self.value();
        match value.ty {
            // SAFETY: the type says which member of the union is set.
            TYPE_UINT32 => Some(unsafe { value.data.uint32 }),
            _ => None,
        }
    }

    /// A copy of a byte object.
    pub(super) fn bytes(&self) -> Option<Vec<u8>> {
        let ByteObject { bytes, size } = self.object()?;
        if bytes.is_null() || size == 0 {
            return Some(Vec::new());
        }
        // SAFETY: PMIx states that `size` bytes lie there; nothing writes them, and the copy ends the borrow.
        Some(unsafe { std::slice::from_raw_parts(bytes.cast::<u8>(), size) }.to_vec())
    }

    fn object(&self) -> Option<ByteObject> {
        let value = self.value();
        match value.ty {
            // SAFETY: the type says which member of the union is set.
            TYPE_BYTE_OBJECT => Some(unsafe { value.data.object }),
            _ => None,
        }
    }
}

impl Drop for Given {
    fn drop(&mut self) {
        if let Some(object) = self.object() {
            // SAFETY: PMIx allocates a byte object's bytes with malloc, and the caller owns them.
            unsafe { libc::free(object.bytes.cast()) };
        }
        // SAFETY: as for the bytes; numbers own nothing else.
        unsafe { libc::free(self.0.cast()) };
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::mem::{offset_of, size_of};
    use std::process::Command;

    use super::*;

    /// Compares the types with the installed headers by the C compiler.
    #[test]
    fn layouts_are_those_of_the_installed_headers() {
        let include = ["/usr/lib/x86_64-linux-gnu/pmix2/include", "/usr/include"].into_iter();
        let mut include = include.filter(|folder| std::path::Path::new(folder).join("pmix.h").exists());
        let (Some(include), Ok(true)) =
            (include.next(), Command::new("cc").arg("--version").output().map(|it| it.status.success()))
        else {
            println!("SKIPPED: needs a C compiler and pmix.h (Debian: gcc, libpmix-dev)");
            return;
        };
        let folder = std::env::temp_dir().join(format!("symrail-pmix-layout-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let (source, binary) = (folder.join("layout.c"), folder.join("layout"));
        let program = r#"
            #include <stdio.h>
            #include <stddef.h>
            #include <pmix.h>
            int main(void) {
                printf("%zu %zu %zu %zu %zu %zu %zu %zu %u %u %d %d %d %d %s %s %s",
                    sizeof(pmix_proc_t), offsetof(pmix_proc_t, rank), sizeof(pmix_value_t), offsetof(pmix_value_t, data),
                    sizeof(pmix_info_t), offsetof(pmix_info_t, flags), offsetof(pmix_info_t, value),
                    sizeof(pmix_byte_object_t), PMIX_RANK_WILDCARD, PMIX_GLOBAL, PMIX_BOOL, PMIX_INT, PMIX_UINT32,
                    PMIX_BYTE_OBJECT, PMIX_JOB_SIZE, PMIX_COLLECT_DATA, PMIX_TIMEOUT);
                return 0;
            }"#;
        std::fs::write(&source, program).unwrap();
        let built = Command::new("cc").arg("-I").arg(include).arg(&source).arg("-o").arg(&binary).status().unwrap();
        let printed = Command::new(&binary).output();
        std::fs::remove_dir_all(&folder).unwrap();
        assert!(built.success());
        let ours = format!(
            "{} {} {} {} {} {} {} {} {RANK_WILDCARD} {SCOPE_GLOBAL} {TYPE_BOOL} {TYPE_INT} {TYPE_UINT32} {TYPE_BYTE_OBJECT} {} {} {}",
            size_of::<Proc>(),
            offset_of!(Proc, rank),
            size_of::<Value>(),
            offset_of!(Value, data),
            size_of::<Info>(),
            offset_of!(Info, flags),
            offset_of!(Info, value),
            size_of::<ByteObject>(),
            JOB_SIZE.to_str().unwrap(),
            COLLECT_DATA.to_str().unwrap(),
            TIMEOUT.to_str().unwrap(),
        );
        assert_eq!(String::from_utf8(printed.unwrap().stdout).unwrap(), ours);
    }
}
