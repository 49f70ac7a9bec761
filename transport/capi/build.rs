//! Sets the library's soname, so that programs find it independently of its place at link time.

fn main() {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libsymrail_transport.so");
    println!("cargo:rerun-if-changed=build.rs");
}
