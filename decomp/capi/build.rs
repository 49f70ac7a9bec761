//! Gives the library the name by which programs ask for it, wherever it was when they were linked.

fn main() {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libsymrail_decomp_c.so");
    println!("cargo:rerun-if-changed=build.rs");
}
