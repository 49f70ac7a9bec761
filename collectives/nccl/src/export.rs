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
            let there = $crate::export::there!($name($($arg: $ty),*) -> std::ffi::c_int);
            match $crate::library::elsewhere(there, || $theirs) {
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

/// The name of one of this library's functions, and a call of the other library's function of that name.
macro_rules! there {
    ($name:ident($($arg:ident: $ty:ty),*) -> $answer:ty) => {
        (concat!(stringify!($name), "\0"), |at: *const std::ffi::c_void| {
            let _: extern "C" fn($($ty),*) -> $answer = $name;
            // SAFETY: a library with NCCL's interface has a function of this name, of the type of this library's.
            let there: extern "C" fn($($ty),*) -> $answer = unsafe { std::mem::transmute(at) };
            there($($arg),*)
        })
    };
}
pub(crate) use there;

/// Defines a function that returns a value and no result code: as [`nccl!`], and `none` for what cannot be answered.
macro_rules! answer {
    (fn $name:ident($($arg:ident: $ty:ty),* $(,)?) -> $answer:ty, else $none:expr, leaves ($theirs:expr) $body:block) => {
        #[unsafe(no_mangle)]
        pub(crate) extern "C" fn $name($($arg: $ty),*) -> $answer {
            let there = $crate::export::there!($name($($arg: $ty),*) -> $answer);
            let here = || -> Result<$answer, $crate::guard::Failure> { $body };
            let mut answer = $none;
            $crate::guard::guarded(|| {
                answer = match $crate::library::forwarded(there, || $theirs)? {
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
