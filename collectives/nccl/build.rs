//! Gives the library NCCL's soname, so that programs linked with NCCL use this library if it is loaded first.

fn main() {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libnccl.so.2");
    println!("cargo:rerun-if-changed=build.rs");
}
