//! Gives the library NCCL's name, so that programs that were linked with that take this one when it is loaded before.

fn main() {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libnccl.so.2");
    println!("cargo:rerun-if-changed=build.rs");
}
