//! Writes the C headers: `cargo run -p symrail-c --example emit_header -- shmem/include`.

#[macro_use]
#[path = "../src/types.rs"]
mod types;
#[path = "../header/generate.rs"]
#[allow(dead_code)] // what the tests use
mod generate;
#[path = "../header/routines.rs"]
mod routines;

use std::path::PathBuf;

fn main() -> std::io::Result<()> {
    let Some(folder) = std::env::args_os().nth(1).map(PathBuf::from) else {
        print!("{}", generate::shmem_h());
        return Ok(());
    };
    std::fs::write(folder.join("shmem.h"), generate::shmem_h())?;
    std::fs::write(folder.join("shmemx.h"), generate::shmemx_h())?;
    std::fs::write(folder.join("pshmem.h"), generate::pshmem_h())
}
