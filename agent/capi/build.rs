//! The library's soname, `libsymrail_agent.so.N`, where N is SYMRAIL_AGENT_ABI of the header. Programs that are linked
//! with the library in the build folder find it there by that name, and by the name without the number.

use std::path::Path;

const HEADER: &str = "../include/symrail_agent.h";

fn main() -> Result<(), String> {
    let header = std::fs::read_to_string(HEADER).map_err(|error| format!("{HEADER}: {error}"))?;
    let number = header.lines().find_map(|line| line.strip_prefix("#define SYMRAIL_AGENT_ABI "));
    let abi = number.ok_or_else(|| format!("{HEADER} defines no SYMRAIL_AGENT_ABI"))?.trim();
    let soname = format!("libsymrail_agent.so.{abi}");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,{soname}");
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed={HEADER}");
    // OUT_DIR is `build/PACKAGE/out` in the folder of the profile.
    let out = std::env::var_os("OUT_DIR").unwrap_or_default();
    if let Some(profile) = Path::new(&out).ancestors().nth(3) {
        for name in [soname.as_str(), "libsymrail_agent.so"] {
            // It is there from an earlier build, or the build folder is not one of this layout.
            let _ = std::os::unix::fs::symlink("libsymrail_agent_c.so", profile.join(name));
        }
    }
    Ok(())
}
