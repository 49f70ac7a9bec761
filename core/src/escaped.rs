//! Untrusted text in messages.

use std::fmt::{self, Write as _};

/// The most characters that a message shows.
const LONGEST: usize = 200;

/// An untrusted text in the form for a message: characters that a terminal would interpret are escaped, and a long text
/// is shortened to its beginning.
#[derive(Debug, Clone, Copy)]
pub struct Escaped<'a>(pub &'a str);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut chars = self.0.chars();
        for c in chars.by_ref().take(LONGEST) {
            if c.is_control() { write!(f, "{}", c.escape_default()) } else { f.write_char(c) }?;
        }
        if chars.next().is_some() { write!(f, "… ({} bytes)", self.0.len()) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_obeys_nothing_and_is_not_filled() {
        assert_eq!(Escaped("größer\t\u{1b}[31m\n\u{9b}").to_string(), "größer\\t\\u{1b}[31m\\n\\u{9b}");
        assert_eq!(Escaped(&"x".repeat(LONGEST)).to_string(), "x".repeat(LONGEST));
        assert_eq!(Escaped(&"x".repeat(100_000)).to_string(), "x".repeat(LONGEST) + "… (100000 bytes)");
    }
}
