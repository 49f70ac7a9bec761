//! A view borrows its slice, and frees nothing.
use symrail::{Context, Result, SymSlice};

fn after_free(slice: SymSlice<u8>, context: &Context) -> Result<()> {
    let view = slice.on(context)?;
    slice.free()?;
    view.write(0, 1)
}

fn twice(slice: &SymSlice<u8>, context: &Context) -> Result<()> {
    slice.on(context)?.free()
}

fn main() {
    let _ = (after_free, twice);
}
