//! The library's soname, `libsymrail.so.N`, where N is the number of its binary interface: a program that was linked
//! with it runs with each library of the same N (docs/openshmem.md). Programs that are linked with the library in the
//! build folder find it there by that name.

use std::path::Path;

/// Raised when a function, a type or a value of the headers changes or goes; `tests/tests/binary_interfaces.rs`.
const ABI: u32 = 1;

fn main() {
    let soname = format!("libsymrail.so.{ABI}");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,{soname}");
    println!("cargo:rerun-if-changed=build.rs");
    // OUT_DIR is `build/PACKAGE/out` in the folder of the profile.
    let out = std::env::var_os("OUT_DIR").unwrap_or_default();
    if let Some(profile) = Path::new(&out).ancestors().nth(3) {
        // It is there from an earlier build, or the build folder is not one of this layout: only its programs need it.
        let _ = std::os::unix::fs::symlink("libsymrail.so", profile.join(soname));
    }
}
