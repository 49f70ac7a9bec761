//! Exports functions under NCCL's names, and forwards calls on other libraries' communicators.

/// Defines a function with NCCL's name, and again with the prefix `p` for programs that replace NCCL's functions
/// themselves. Its body returns a `Result`. Calls `of` a communicator of the other library, or for which the expression
/// behind `leaves` is true, go to that library (`library`).
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

/// Defines a function that returns a value and no result code: as [`nccl!`], and `none` for what cannot be answered.
macro_rules! answer {
    (fn $name:ident($($arg:ident: $ty:ty),* $(,)?) -> $answer:ty, else $none:expr, leaves ($theirs:expr) $body:block) => {
        #[unsafe(no_mangle)]
        pub(crate) extern "C" fn $name($($arg: $ty),*) -> $answer {
            let there = |at: *const std::ffi::c_void| {
                // SAFETY: the function of this name of a library with NCCL's interface.
                let there: extern "C" fn($($ty),*) -> $answer = unsafe { std::mem::transmute(at) };
                there($($arg),*)
            };
            let name = concat!(stringify!($name), "\0");
            let here = || -> Result<$answer, $crate::guard::Failure> { $body };
            let mut answer = $none;
            $crate::guard::guarded(|| {
                answer = match $crate::library::forwarded(name, || $theirs, there)? {
                    Some(theirs) => theirs,
                    None => here()?,
                };
                Ok(())
            });
            answer
        }
        const _: () = {
            #[unsafe(export_name = concat!("p", stringify!($name)))]
            extern "C" fn with_p($($arg: $ty),*) -> $answer {
                $name($($arg),*)
            }
        };
    };
}
pub(crate) use answer;

/// Defines functions that this library refuses, with the reason: a table of NCCL's functions.
macro_rules! refused {
    ($why:literal: $(fn $name:ident($($arg:ident: $ty:ty),* $(,)?) leaves ($theirs:expr);)*) => {$(
        $crate::export::nccl! {
            fn $name($($arg: $ty),*) leaves ($theirs) { $crate::guard::refuse(stringify!($name), $why) }
        }
    )*};
}
pub(crate) use refused;
