//! Communicators of the MPI library that the process has loaded. Nothing of MPI is linked: its functions are looked up
//! when a program passes a communicator.
//!
//! A communicator is a pointer in Open MPI and an `int` in MPICH and its relatives. Both are passed in the same register,
//! and only the MPI library itself reads it.

use std::ffi::{c_char, c_int, c_void};

use libloading::os::unix::{Library, RTLD_LAZY};

use crate::guard::Failure;

/// `MPI_Comm`.
pub type Comm = usize;

/// Names of MPI libraries, for programs that have loaded one without making its symbols global.
const NAMES: [&str; 4] = ["libmpi.so.40", "libmpi.so.12", "libmpi.so.20", "libmpi.so"];
/// `dlopen` finds a library only if it is loaded already.
const NOLOAD: c_int = 4;
/// `MPI_BYTE` of MPICH and its relatives.
const BYTE_OF_MPICH: usize = 0x4c00_010d;
/// `MPI_MAX_LIBRARY_VERSION_STRING` of any MPI library is not longer.
const VERSION_LEN: usize = 8192;

type AnswerInt = unsafe extern "C" fn(Comm, *mut c_int) -> c_int;
type Initialized = unsafe extern "C" fn(*mut c_int) -> c_int;
type Bcast = unsafe extern "C" fn(*mut c_void, c_int, usize, c_int, Comm) -> c_int;
type FromFortran = unsafe extern "C" fn(c_int) -> Comm;
type LibraryVersion = unsafe extern "C" fn(*mut c_char, *mut c_int) -> c_int;

/// The MPI library of this process.
pub struct Mpi {
    library: Library,
}

impl Mpi {
    /// Finds the library.
    pub fn find() -> Result<Mpi, Failure> {
        let loaded = NAMES.iter().filter_map(|name| {
            // SAFETY: the library is loaded already, so that nothing of it runs.
            unsafe { Library::open(Some(*name), RTLD_LAZY | NOLOAD) }.ok()
        });
        let mut places = std::iter::once(Library::this()).chain(loaded);
        let found = places.find(|library| {
            // SAFETY: the symbol is only looked up.
            unsafe { library.get::<Initialized>(b"MPI_Initialized\0") }.is_ok()
        });
        let missing = || Failure::mpi("this process has no MPI library: use symrailDecompInit or symrailDecompJoin");
        let mpi = Mpi { library: found.ok_or_else(missing)? };
        let mut initialized = 0;
        // SAFETY: MPI's function writes one number.
        mpi.check("MPI_Initialized", unsafe { mpi.function::<Initialized>("MPI_Initialized")?(&raw mut initialized) })?;
        match initialized {
            0 => Err(Failure::usage("MPI is not initialized: call MPI_Init first")),
            _ => Ok(mpi),
        }
    }

    /// A function of the library.
    ///
    /// # Safety
    /// The function has this type.
    unsafe fn function<T: Copy>(&self, name: &str) -> Result<T, Failure> {
        // SAFETY: the caller's promise.
        let found = unsafe { self.library.get::<T>(name.as_bytes()) };
        found.map(|function| *function).map_err(|error| Failure::mpi(format!("{name}: {error}")))
    }

    fn check(&self, name: &str, code: c_int) -> Result<(), Failure> {
        if code == 0 { Ok(()) } else { Err(Failure::mpi(format!("{name} returned {code}"))) }
    }

    /// The communicator of a Fortran program's number. Where the library has no function for that, it is the number.
    pub fn of_fortran(&self, number: c_int) -> Comm {
        // SAFETY: the type is that of the function in Open MPI; others, where they have it, return an `int`.
        match unsafe { self.function::<FromFortran>("MPI_Comm_f2c") } {
            // SAFETY: the caller's number is a communicator, as MPI requires.
            Ok(convert) => unsafe { convert(number) },
            Err(_) => number as Comm,
        }
    }

    /// This process's rank in a communicator, and the number of its ranks.
    pub fn rank_and_size(&self, comm: Comm) -> Result<[c_int; 2], Failure> {
        let mut numbers = [0; 2];
        for (number, name) in numbers.iter_mut().zip(["MPI_Comm_rank", "MPI_Comm_size"]) {
            // SAFETY: MPI's function has this type, and writes one number.
            self.check(name, unsafe { self.function::<AnswerInt>(name)?(comm, &raw mut *number) })?;
        }
        Ok(numbers)
    }

    /// Sends the bytes of rank 0 to all ranks. Collective.
    pub fn broadcast(&self, comm: Comm, bytes: &mut [u8]) -> Result<(), Failure> {
        let byte = self.byte()?;
        let (at, len) = (bytes.as_mut_ptr().cast(), bytes.len() as c_int);
        // SAFETY: MPI's function has this type, and writes so many bytes.
        self.check("MPI_Bcast", unsafe { self.function::<Bcast>("MPI_Bcast")?(at, len, byte, 0, comm) })
    }

    /// `MPI_BYTE`: an object of Open MPI, a number in MPICH.
    fn byte(&self) -> Result<usize, Failure> {
        // SAFETY: only the object's address is used.
        if let Ok(object) = unsafe { self.library.get::<*const c_void>(b"ompi_mpi_byte\0") } {
            return Ok(object.into_raw().expose_provenance());
        }
        let version = self.version()?;
        if ["MPICH", "Intel", "MVAPICH", "ParaStation"].iter().any(|name| version.contains(name)) {
            return Ok(BYTE_OF_MPICH);
        }
        Err(Failure::mpi(format!("{version}: Open MPI and relatives of MPICH are known; use symrailDecompJoin")))
    }

    fn version(&self) -> Result<String, Failure> {
        let (mut text, mut len) = (vec![0u8; VERSION_LEN], 0);
        // SAFETY: MPI's function has this type, and writes at most as many bytes as that of any library.
        let code = unsafe {
            self.function::<LibraryVersion>("MPI_Get_library_version")?(text.as_mut_ptr().cast(), &raw mut len)
        };
        self.check("MPI_Get_library_version", code)?;
        let text = String::from_utf8_lossy(&text);
        Ok(text.split('\0').next().unwrap_or_default().lines().next().unwrap_or_default().to_owned())
    }
}
