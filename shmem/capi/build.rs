//! Sets the library's soname: programs load the library by this name, wherever it was when they were linked.

fn main() {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libsymrail.so");
    println!("cargo:rerun-if-changed=build.rs");
}
