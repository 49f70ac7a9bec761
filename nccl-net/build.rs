//! Keeps the library loaded once it is: NCCL unloads plugins, and before version 11 of the interface it does not say
//! so, while the session's thread runs.

fn main() {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo:rerun-if-changed=build.rs");
}
