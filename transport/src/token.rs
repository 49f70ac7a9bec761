//! Tokens: random numbers that only the PEs of a job know, and that all messages to an endpoint must contain.
//!
//! A rail's address accepts messages from every sender that reaches it, because providers and NICs do not check the
//! sender. So each endpoint draws a token when it opens, or shares that of another endpoint of its PE. The token
//! travels with the addresses of the endpoint's rails ([`Token::with_address`]). Every message begins with it, and
//! every immediate contains a part of it. An endpoint drops any other message before it reads more of it.
//!
//! A token protects against a stranger that can send, but cannot observe the job's messages. Protection against one
//! that can observe them needs an encrypted network.

use rand::TryRng;

use crate::error::{Error, Result};
use crate::pe::Pe;

/// The token of one endpoint.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Token {
    messages: u64,
    /// The part in immediates, which have less room.
    immediates: u32,
}

impl Token {
    /// Its bytes at the front of a message.
    pub const SIZE: usize = 8;
    /// Its bytes behind an address.
    const BESIDE_ADDRESS: usize = 12;

    /// A fresh token.
    ///
    /// # Errors
    /// [`Error::System`] when the system provides no random numbers.
    pub fn random() -> Result<Token> {
        Ok(Token { messages: random()?, immediates: random()? as u32 })
    }

    /// A rail's address followed by the token.
    #[must_use]
    pub fn with_address(self, mut address: Vec<u8>) -> Vec<u8> {
        address.extend_from_slice(&self.messages.to_le_bytes());
        address.extend_from_slice(&self.immediates.to_le_bytes());
        address
    }

    /// Splits the address of a rail of `pe` and the token of its endpoint.
    ///
    /// # Errors
    /// [`Error::Malformed`] when there is no token behind the address.
    pub fn split(pe: Pe, bytes: &[u8]) -> Result<(&[u8], Token)> {
        let Some((address, [m0, m1, m2, m3, m4, m5, m6, m7, i0, i1, i2, i3])) =
            bytes.split_last_chunk::<{ Self::BESIDE_ADDRESS }>()
        else {
            let why = format!("{} bytes have no room for a token", bytes.len());
            return Err(Error::Malformed { what: "a rail's address", pe, why });
        };
        let messages = u64::from_le_bytes([*m0, *m1, *m2, *m3, *m4, *m5, *m6, *m7]);
        Ok((address, Token { messages, immediates: u32::from_le_bytes([*i0, *i1, *i2, *i3]) }))
    }

    /// The token's bytes at the front of a message to the endpoint.
    #[inline]
    #[must_use]
    pub fn bytes(self) -> [u8; Self::SIZE] {
        self.messages.to_le_bytes()
    }

    /// The message without its token; `None` when it has another token.
    #[inline]
    #[must_use]
    pub fn open(self, message: &[u8]) -> Option<&[u8]> {
        let (token, rest) = message.split_first_chunk::<{ Self::SIZE }>()?;
        (u64::from_le_bytes(*token) == self.messages).then_some(rest)
    }

    /// The immediate for a value.
    #[inline]
    #[must_use]
    pub fn immediate(self, value: u32) -> u64 {
        u64::from(self.immediates) << 32 | u64::from(value)
    }

    /// The value of an immediate; `None` when it has another token.
    #[inline]
    #[must_use]
    pub fn open_immediate(self, immediate: u64) -> Option<u32> {
        (immediate >> 32 == u64::from(self.immediates)).then_some(immediate as u32)
    }
}

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token(..)")
    }
}

/// Random bytes that cannot be guessed.
///
/// # Errors
/// [`Error::System`] when the system provides none.
pub fn random_bytes<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    let system = |error: rand::rngs::SysError| Error::System { what: "random numbers", reason: error.to_string() };
    rand::rngs::SysRng.try_fill_bytes(&mut bytes).map_err(system)?;
    Ok(bytes)
}

/// A random number that cannot be guessed.
///
/// # Errors
/// As for [`random_bytes`].
pub fn random() -> Result<u64> {
    random_bytes().map(u64::from_le_bytes)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn only_what_has_the_token_is_opened() {
        let (ours, theirs) = (Token::random().unwrap(), Token::random().unwrap());
        let message = [&ours.bytes()[..], b"request"].concat();
        assert_eq!(ours.open(&message), Some(&b"request"[..]));
        assert_eq!(theirs.open(&message), None);
        for bit in 0..8 * Token::SIZE {
            let mut forged = message.clone();
            forged[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(ours.open(&forged), None);
            assert_eq!(ours.open_immediate(ours.immediate(7) ^ 1 << bit).is_none(), bit >= 32);
        }
        assert_eq!(ours.open_immediate(ours.immediate(u32::MAX)), Some(u32::MAX));
        assert!((0..Token::SIZE).all(|len| ours.open(&message[..len]).is_none()));
    }

    #[test]
    fn it_travels_with_addresses() {
        let token = Token::random().unwrap();
        let bytes = token.with_address(vec![1, 2, 3]);
        assert_eq!(Token::split(0, &bytes).unwrap(), (&[1, 2, 3][..], token));
        assert!(Token::split(0, &bytes[..11]).is_err());
        assert!(!format!("{token:?}").contains(char::is_numeric), "it is not for logs");
    }
}
