//! Sets the name (soname) by which programs load the library, independent of its path when they were linked.

fn main() {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libsymrail_decomp_c.so");
    println!("cargo:rerun-if-changed=build.rs");
}
