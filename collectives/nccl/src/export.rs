//! How functions get NCCL's names, and calls of other libraries' communicators their way there.

/// Defines a function by NCCL's name, and once more with a `p` in front, as programs call it that stand in NCCL's place
/// themselves. Its body gives a `Result`. Calls that are `of` a communicator of the other library, or of which the
/// expression behind `leaves` says so, go there (`library`).
macro_rules! nccl {
    (fn $name:ident($($arg:ident: $ty:ty),* $(,)?) of $comm:ident $body:block) => {
        $crate::export::nccl! { fn $name($($arg: $ty),*) leaves ($crate::registry::is_unknown($comm)) $body }
    };
    (fn $name:ident($($arg:ident: $ty:ty),* $(,)?) leaves ($theirs:expr) $body:block) => {
        $crate::export::nccl! { fn $name($($arg: $ty),*) as {
            let there = |at: *const std::ffi::c_void| {
                // SAFETY: the function of this name of a library with NCCL's interface.
                let there: extern "C" fn($($ty),*) -> std::ffi::c_int = unsafe { std::mem::transmute(at) };
                there($($arg),*)
            };
            let name = concat!(stringify!($name), "\0");
            match $crate::library::elsewhere(name, || $theirs, there) {
                Some(code) => code,
                None => $crate::guard::guarded(|| $body),
            }
        } }
    };
    (fn $name:ident($($arg:ident: $ty:ty),* $(,)?) as $whole:block) => {
        #[unsafe(no_mangle)]
        pub(crate) extern "C" fn $name($($arg: $ty),*) -> std::ffi::c_int $whole
        const _: () = {
            #[unsafe(export_name = concat!("p", stringify!($name)))]
            extern "C" fn with_p($($arg: $ty),*) -> std::ffi::c_int {
                $name($($arg),*)
            }
        };
    };
    (fn $name:ident($($arg:ident: $ty:ty),* $(,)?) $body:block) => {
        $crate::export::nccl! { fn $name($($arg: $ty),*) as { $crate::guard::guarded(|| $body) } }
    };
}
pub(crate) use nccl;
