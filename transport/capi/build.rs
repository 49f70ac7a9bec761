//! The library's soname, `libsymrail_transport.so.N`, where N is SYMRAIL_TRANSPORT_ABI of the header: a program that was
//! linked with it runs with each library of the same N (docs/nvshmem.md). Programs that are linked with the library in
//! the build folder find it there by that name.

use std::path::Path;

const HEADER: &str = "../include/symrail_transport.h";

fn main() -> Result<(), String> {
    let header = std::fs::read_to_string(HEADER).map_err(|error| format!("{HEADER}: {error}"))?;
    let number = header.lines().find_map(|line| line.strip_prefix("#define SYMRAIL_TRANSPORT_ABI "));
    let abi = number.ok_or_else(|| format!("{HEADER} defines no SYMRAIL_TRANSPORT_ABI"))?.trim();
    let soname = format!("libsymrail_transport.so.{abi}");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,{soname}");
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed={HEADER}");
    // OUT_DIR is `build/PACKAGE/out` in the folder of the profile.
    let out = std::env::var_os("OUT_DIR").unwrap_or_default();
    if let Some(profile) = Path::new(&out).ancestors().nth(3) {
        // It is there from an earlier build, or the build folder is not one of this layout: only its programs need it.
        let _ = std::os::unix::fs::symlink("libsymrail_transport.so", profile.join(soname));
    }
    Ok(())
}
