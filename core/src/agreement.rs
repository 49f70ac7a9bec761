//! Values that must be equal on all PEs.

use std::fmt::Display;

use crate::error::{Error, Result};
use crate::pe::Pe;

/// Checks that the values of all PEs are equal.
///
/// # Errors
/// [`Error::Mismatch`] that names the first PE with a differing value, one with the most common value, and both values.
pub fn same<V: PartialEq + Display>(what: &'static str, values: impl IntoIterator<Item = (Pe, V)>) -> Result<()> {
    let values: Vec<(Pe, V)> = values.into_iter().collect();
    let Some((_, first)) = values.first() else { return Ok(()) };
    if values.iter().all(|(_, value)| value == first) {
        return Ok(());
    }
    // This is quadratic, but runs only before an error, and at most once.
    let (mut usual, mut most) = (0, 0);
    for (at, (_, value)) in values.iter().enumerate() {
        let count = values.iter().filter(|(_, other)| other == value).count();
        if count > most {
            (usual, most) = (at, count);
        }
        if most * 2 >= values.len() {
            break;
        }
    }
    let (other_pe, usual) = &values[usual];
    let (pe, odd) = values.iter().find(|(_, value)| value != usual).unwrap_or(&values[0]);
    Err(Error::Mismatch { what, pe: *pe, value: odd.to_string(), other_pe: *other_pe, other_value: usual.to_string() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_pe_that_differs_from_the_most_is_named() {
        assert!(same::<u8>("nothing", []).is_ok());
        assert!(same("all", (0..5).map(|pe| (pe, 8))).is_ok());
        for odd in 0..5 {
            let error = same("the size", (0..5).map(|pe| (pe, if pe == odd { 16 } else { 8 })));
            let Err(Error::Mismatch { what: "the size", pe, value, other_pe, other_value }) = error else {
                unreachable!("{error:?}")
            };
            assert_eq!((pe, value.as_str(), other_value.as_str()), (odd, "16", "8"));
            assert_ne!(other_pe, odd);
        }
    }
}
