//! Signal handlers that come with libfabric, and are kept out.
//!
//! Some builds of libfabric depend on libinfinipath and libpsm2. Their initialisers install handlers for SIGINT,
//! SIGTERM, SIGSEGV, SIGBUS, SIGILL and SIGABRT. These handlers call `exit` inside of the signal, which waits for ever
//! for a lock that the interrupted thread may hold. They replace a death by signal (and its core file) by exit code 1,
//! and they replace the program's own choice, including an inherited "ignore".

use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::sync::{Mutex, PoisonError};

/// The lock admits one load at a time: of two concurrent ones each would take the other's handlers for the former ones.
static LOADING: Mutex<()> = Mutex::new(());

/// Every object begins at a multiple of this.
const PAGE: usize = 4096;

/// Runs `load`, which loads libraries, and then restores every signal handler that a newly loaded library has replaced.
/// Handlers that the program itself installs meanwhile stay. This thread receives no signals until then.
pub(crate) fn kept<T>(load: impl FnOnce() -> T) -> T {
    let _one = LOADING.lock().unwrap_or_else(PoisonError::into_inner);
    let mask = block_all();
    let known = objects();
    let before: Vec<_> = (1..=libc::SIGRTMAX()).map(|signal| (signal, action(signal))).collect();
    let loaded = load();
    for (signal, before) in before {
        let (Some(before), Some(now)) = (before, action(signal)) else { continue };
        if now.sa_sigaction != before.sa_sigaction && is_foreign(now.sa_sigaction, &known) {
            // SAFETY: a live action from the system; no place for the old one.
            unsafe { libc::sigaction(signal, &raw const before, std::ptr::null_mut()) };
        }
    }
    // SAFETY: a mask from the system.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const mask, std::ptr::null_mut()) };
    loaded
}

/// Blocks all signals in this thread. Returns the former mask.
fn block_all() -> libc::sigset_t {
    let mut all = MaybeUninit::<libc::sigset_t>::zeroed();
    let mut before = MaybeUninit::<libc::sigset_t>::zeroed();
    // SAFETY: both sets may be written, and a set of zeros is one; the first is filled before it is read.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
        before.assume_init()
    }
}

/// The action of a signal; `None` for signals of the C library.
fn action(signal: c_int) -> Option<libc::sigaction> {
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: nothing is changed, and the result may be written.
    let code = unsafe { libc::sigaction(signal, std::ptr::null(), action.as_mut_ptr()) };
    // SAFETY: zeros are a valid action, and the system has written it when the call succeeded.
    (code == 0).then(|| unsafe { action.assume_init() })
}

/// The start addresses of this process's objects.
fn objects() -> Vec<usize> {
    extern "C" fn note(info: *mut libc::dl_phdr_info, _: usize, bases: *mut c_void) -> c_int {
        // SAFETY: the loader passes a live entry with `dlpi_phnum` headers, and `bases` is the vector below, which no
        // other code uses meanwhile.
        let (info, bases) = unsafe { (&*info, &mut *bases.cast::<Vec<usize>>()) };
        // SAFETY: as above.
        let headers = unsafe { std::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)) };
        let first = headers.iter().find(|header| header.p_type == libc::PT_LOAD);
        bases.extend(first.map(|first| (info.dlpi_addr + first.p_vaddr) as usize & !(PAGE - 1)));
        0
    }
    let mut bases: Vec<usize> = Vec::new();
    // SAFETY: the callback expects the value that is passed here.
    unsafe { libc::dl_iterate_phdr(Some(note), (&raw mut bases).cast()) };
    bases
}

/// Whether a handler is in the code of an object that is not among the known ones.
fn is_foreign(handler: libc::sighandler_t, known: &[usize]) -> bool {
    let mut info = MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: any address may be looked up, and the result is writable.
    let found = unsafe { libc::dladdr(handler as *const c_void, info.as_mut_ptr()) } != 0;
    // SAFETY: zeros are a valid result too.
    let base = unsafe { info.assume_init() }.dli_fbase.addr();
    found && !known.contains(&base)
}

#[cfg(test)]
mod tests {
    use super::*;

    extern "C" fn own(_: c_int) {}

    #[test]
    fn the_programs_own_handlers_stay_and_the_mask_is_as_before() {
        // The compiler may emit a small function more than once, so its address is taken once.
        let handler = own as *const () as libc::sighandler_t;
        // SAFETY: a handler that does nothing, for a signal that no code here sends.
        let install = || unsafe { libc::signal(libc::SIGWINCH, handler) };
        let mask = block_all();
        // SAFETY: the former mask.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const mask, std::ptr::null_mut()) };
        kept(install);
        let now = action(libc::SIGWINCH).map(|action| action.sa_sigaction);
        assert_eq!(now, Some(handler));
        let after = block_all();
        // SAFETY: two sets from the system.
        let same = |signal| unsafe {
            libc::sigismember(&raw const mask, signal) == libc::sigismember(&raw const after, signal)
        };
        assert!((1..=libc::SIGRTMAX()).all(same));
        // SAFETY: the former mask.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const mask, std::ptr::null_mut()) };
    }

    #[test]
    fn objects_are_known_by_where_they_begin() {
        let known = objects();
        assert!(!is_foreign(own as *const () as usize, &known), "this program");
        assert!(!is_foreign(libc::getpid as *const () as usize, &known), "the C library");
        assert!(is_foreign(libc::getpid as *const () as usize, &[]));
        assert!(!is_foreign(libc::SIG_IGN, &[]) && !is_foreign(libc::SIG_DFL, &[]));
    }
}
