//! Sets the library's soname to the name that NVSHMEM loads, except for the last digit, which depends on the version.
//! `scripts/nvshmem-install.sh` inserts that.

fn main() {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,nvshmem_transport_libfabric.so.0");
    println!("cargo:rerun-if-changed=build.rs");
}
