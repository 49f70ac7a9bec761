//! A view borrows its slice, and frees nothing.
use symrail::{Context, Result, SymSlice};

fn after_free<'rt>(slice: SymSlice<'rt, u8>, context: &Context<'rt>) -> Result<()> {
    let view = slice.on(context)?;
    slice.free()?;
    view.write(0, 1)
}

fn twice<'rt>(slice: &SymSlice<'rt, u8>, context: &Context<'rt>) -> Result<()> {
    slice.on(context)?.free()
}

fn main() {
    let _ = (after_free, twice);
}
