//! Makes an exported function of a row of the table.

/// Exports a C function whose name is concatenated from literals. `NAME` is the name within the body.
///
/// Each function is also exported with the prefix `p`: a profiling tool replaces the first name and calls the second.
macro_rules! export {
    ($([$($name:literal)+] fn($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)? $body:block)+) => {$(
        const _: () = {
            #[allow(dead_code)] // some functions cannot fail
            const NAME: &str = concat!($($name),+);
            #[unsafe(export_name = concat!($($name),+))]
            unsafe extern "C" fn exported($($arg: $ty),*) $(-> $ret)? $body
            #[unsafe(export_name = concat!("p", $($name),+))]
            unsafe extern "C" fn profiled($($arg: $ty),*) $(-> $ret)? $body
        };
    )+};
}

/// Exports a function twice: as `shmem_…`, on the default context, and as `shmem_ctx_…`, on a context that the caller
/// passes.
macro_rules! export_ctx {
    ($(|$ctx:ident| [$($name:literal)+] fn($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)? $body:block)+) => {$(
        export! {
            ["shmem_" $($name)+] fn($($arg: $ty),*) $(-> $ret)? {
                let $ctx = crate::handle::DEFAULT_CONTEXT;
                $body
            }
            ["shmem_ctx_" $($name)+] fn($ctx: crate::handle::Context, $($arg: $ty),*) $(-> $ret)? $body
        }
    )+};
}
