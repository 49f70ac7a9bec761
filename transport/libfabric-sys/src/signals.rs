//! Signal handlers that come with libfabric, and are kept out.
//!
//! The initialisers of libinfinipath and libpsm2, on which some builds of libfabric depend, install handlers for
//! SIGINT, SIGTERM, SIGSEGV, SIGBUS, SIGILL and SIGABRT. Theirs call `exit` inside of the signal, which waits for ever
//! for a lock that the interrupted thread may hold; they replace an exit by signal (and its core file) by exit code 1,
//! and what the program had chosen, an inherited "ignore" included.

use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::sync::{Mutex, PoisonError};

/// One change at a time: two threads that load at once would take each other's "before".
static LOADING: Mutex<()> = Mutex::new(());

/// Objects begin at a multiple of this.
const PAGE: usize = 4096;

/// Runs `load`, which loads libraries, and then gives every signal back its handler that a library loaded meanwhile has
/// replaced. Handlers that the program itself installs meanwhile stay. This thread takes no signals until then.
pub(crate) fn kept<T>(load: impl FnOnce() -> T) -> T {
    let _one = LOADING.lock().unwrap_or_else(PoisonError::into_inner);
    let mask = block_all();
    let known = objects();
    let before: Vec<_> = (1..=libc::SIGRTMAX()).map(|signal| (signal, action(signal))).collect();
    let loaded = load();
    for (signal, before) in before {
        let (Some(before), Some(now)) = (before, action(signal)) else { continue };
        if now.sa_sigaction != before.sa_sigaction && is_foreign(now.sa_sigaction, &known) {
            // SAFETY: a live action that the system gave; no place for the old one.
            unsafe { libc::sigaction(signal, &raw const before, std::ptr::null_mut()) };
        }
    }
    // SAFETY: a mask that the system gave.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const mask, std::ptr::null_mut()) };
    loaded
}

/// Blocks all signals in this thread. Returns what was blocked before.
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

/// What is done at a signal; `None` for those that are the C library's own.
fn action(signal: c_int) -> Option<libc::sigaction> {
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: nothing is changed, and the result may be written.
    let code = unsafe { libc::sigaction(signal, std::ptr::null(), action.as_mut_ptr()) };
    // SAFETY: zeros are a valid action, and the system has written it when it said so.
    (code == 0).then(|| unsafe { action.assume_init() })
}

/// Where the objects of this process begin.
fn objects() -> Vec<usize> {
    extern "C" fn note(info: *mut libc::dl_phdr_info, _: usize, bases: *mut c_void) -> c_int {
        // SAFETY: the loader passes a live entry with `dlpi_phnum` headers, and `bases` is the vector below, which
        // nobody else uses meanwhile.
        let (info, bases) = unsafe { (&*info, &mut *bases.cast::<Vec<usize>>()) };
        // SAFETY: as above.
        let headers = unsafe { std::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)) };
        let first = headers.iter().find(|header| header.p_type == libc::PT_LOAD);
        bases.extend(first.map(|first| (info.dlpi_addr + first.p_vaddr) as usize & !(PAGE - 1)));
        0
    }
    let mut bases: Vec<usize> = Vec::new();
    // SAFETY: the callback takes what is passed here.
    unsafe { libc::dl_iterate_phdr(Some(note), (&raw mut bases).cast()) };
    bases
}

/// Whether a handler is code of an object that is not among the known ones.
fn is_foreign(handler: libc::sighandler_t, known: &[usize]) -> bool {
    let mut info = MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: any address may be asked for, and the result may be written.
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
        // The compiler may make a small function more than once: its address is taken once.
        let handler = own as *const () as libc::sighandler_t;
        // SAFETY: a handler that does nothing, for a signal that nobody here sends.
        let install = || unsafe { libc::signal(libc::SIGWINCH, handler) };
        let mask = block_all();
        // SAFETY: what was blocked before.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const mask, std::ptr::null_mut()) };
        kept(install);
        let now = action(libc::SIGWINCH).map(|action| action.sa_sigaction);
        assert_eq!(now, Some(handler));
        let after = block_all();
        // SAFETY: two sets that the system gave.
        let same = |signal| unsafe {
            libc::sigismember(&raw const mask, signal) == libc::sigismember(&raw const after, signal)
        };
        assert!((1..=libc::SIGRTMAX()).all(same));
        // SAFETY: what was blocked before.
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
