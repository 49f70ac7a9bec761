//! Small copies to a GPU's memory by its copy engines.
//!
//! The driver gives a copy of less than some 32 KiB from pinned memory to the hardware that also starts kernels. If a
//! kernel of another context runs, such a copy waits for a time slice: 2.4 ms on an H200 (driver 580), where a copy by
//! a copy engine takes 8 us. Copies of two rows always use a copy engine, and words that the stream writes wait for
//! nothing either.

/// Bytes from which on the driver uses a copy engine by itself.
pub(super) const LARGE: usize = 64 << 10;

/// How a range of bytes is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// By a copy of two rows, whose lengths are multiples of 8 bytes.
    Rows,
    /// By the stream, as a word of 8 or 4 bytes.
    Word,
    /// By an ordinary copy.
    Bytes,
}

/// A part of a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Part {
    /// Offset in the copy.
    pub at: usize,
    pub len: usize,
    pub form: Form,
}

/// The parts of a copy of `len` bytes to `address`, in order. None divides a word of 4 or 8 bytes at a multiple of its
/// size: kernels poll such words.
pub(super) fn parts(address: usize, len: usize) -> impl Iterator<Item = Part> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let (place, left) = (address + at, len - at);
        let (len, form) = match left {
            0 => return None,
            16.. if place.is_multiple_of(8) => (left & !15, Form::Rows),
            8.. if place.is_multiple_of(8) => (8, Form::Word),
            4.. if place.is_multiple_of(4) => (4, Form::Word),
            _ => (left.min(4 - place % 4), Form::Bytes),
        };
        let part = Part { at, len, form };
        at += len;
        Some(part)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_cover_a_copy_once_and_divide_no_word() {
        for address in 64..80 {
            for len in 0..200 {
                let mut end = 0;
                for part in parts(address, len) {
                    assert_eq!(part.at, end, "{len} bytes to {address}: {part:?}");
                    end += part.len;
                    // Where the bytes of the part are written separately.
                    let (first, row) = match part.form {
                        Form::Rows => (address + part.at, part.len / 2),
                        Form::Word => (address + part.at, part.len),
                        Form::Bytes => (address + part.at, part.len),
                    };
                    let borders = [first, first + row, first + part.len];
                    for word in [4, 8] {
                        let divided = borders.iter().any(|border| {
                            let start = border / word * word;
                            border % word != 0 && start >= address && start + word <= address + len
                        });
                        let alone = word == 8 && address % 8 == 4;
                        assert!(!divided || alone, "{len} bytes to {address}: {part:?} divides a word of {word}");
                    }
                    assert!(part.form != Form::Rows || (part.len % 16 == 0 && first % 8 == 0));
                    assert!(part.form != Form::Word || (matches!(part.len, 4 | 8) && first % part.len == 0));
                }
                assert_eq!(end, len);
            }
        }
        assert_eq!(parts(64, 8).count(), 1);
        assert_eq!(parts(64, 4096).count(), 1);
    }
}
