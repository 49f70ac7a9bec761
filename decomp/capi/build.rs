//! Sets the name (soname) by which programs load the library: that of cuDecomp's, whose programs run on it.

fn main() {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libcudecomp.so.0");
    println!("cargo:rerun-if-changed=build.rs");
}
