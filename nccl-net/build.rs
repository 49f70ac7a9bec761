//! The soname by which NCCL looks for the library, and that it stays loaded: NCCL unloads plugins, and before version 11
//! of the interface it does not say so, while the session's thread runs.

fn main() {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libnccl-net-symrail.so");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo:rerun-if-changed=build.rs");
}
