//! The encoding of data that PEs exchange while they join and connect: postcard's.

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::{Error, Result};
use crate::pe::Pe;

/// Encodes a value.
#[must_use]
pub fn encode(value: &impl Serialize) -> Vec<u8> {
    // Serialising plain collections into memory cannot fail.
    postcard::to_allocvec(value).unwrap_or_default()
}

/// Decodes a value that PE `pe` has sent, and returns the bytes behind it. `what` names the value in the error.
///
/// # Errors
/// [`Error::Malformed`].
pub fn decode_first<'b, T: DeserializeOwned>(bytes: &'b [u8], what: &'static str, pe: Pe) -> Result<(T, &'b [u8])> {
    let why = |error: postcard::Error| format!("{error}; run one Symrail on all PEs");
    postcard::take_from_bytes(bytes).map_err(|error| Error::Malformed { what, pe, why: why(error) })
}

/// As [`decode_first`], but no bytes may follow.
///
/// # Errors
/// [`Error::Malformed`].
pub fn decode<T: DeserializeOwned>(bytes: &[u8], what: &'static str, pe: Pe) -> Result<T> {
    match decode_first(bytes, what, pe)? {
        (value, []) => Ok(value),
        (_, rest) => Err(Error::Malformed { what, pe, why: format!("{} bytes follow it", rest.len()) }),
    }
}

/// Decodes the values of all PEs, in their order.
///
/// # Errors
/// As for [`decode`]; it names the first PE with malformed bytes.
pub fn decode_all<T: DeserializeOwned>(all: &[Vec<u8>], what: &'static str) -> Result<Vec<T>> {
    all.iter().zip(0..).map(|(bytes, pe)| decode(bytes, what, pe)).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn values_come_back_and_the_pe_whose_bytes_are_malformed_is_named() {
        let mut all = vec![encode(&(7u32, "seven")), encode(&(8u32, "eight"))];
        assert_eq!(decode_all::<(u32, String)>(&all, "numbers").unwrap(), [(7, "seven".into()), (8, "eight".into())]);
        all[1].push(0);
        let error = decode_all::<(u32, String)>(&all, "numbers").unwrap_err().to_string();
        assert!(error.contains("numbers from PE 1") && error.contains("1 bytes follow"), "{error}");
        assert_eq!(decode_first::<(u32, String)>(&all[1], "numbers", 1).unwrap(), ((8, "eight".into()), &[0][..]));
        all[1].truncate(3);
        assert!(decode_all::<(u32, String)>(&all, "numbers").unwrap_err().to_string().contains("one Symrail"));
    }
}
