//! Gives the library the name by which NVSHMEM asks for it, but for the last digit, which differs from version to
//! version: `scripts/nvshmem-install.sh` puts it in.

fn main() {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,nvshmem_transport_libfabric.so.0");
    println!("cargo:rerun-if-changed=build.rs");
}
