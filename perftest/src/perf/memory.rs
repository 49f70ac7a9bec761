//! Whether a machine has the memory that its PEs will fill: if not, the kernel would end them without a word.

use super::error::{Error, Result};

/// Bytes that may still be used on this machine without swapping, if the kernel says. Limits of control groups are not
/// looked at: what counts against them includes caches that the kernel would give back.
#[must_use]
pub fn available() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.split_ascii_whitespace().next()?.parse::<u64>().ok().map(|kib| kib << 10)
}

/// Refuses `pes` PEs of one machine that fill so many bytes each, if that is more than there is.
pub fn check(pes: usize, bytes: usize, available: Option<u64>) -> Result<()> {
    let all = (bytes as u64).saturating_mul(pes as u64);
    let Some(there) = available.filter(|there| all > *there) else { return Ok(()) };
    let said = indicatif::BinaryBytes;
    Err(Error::Arguments(format!(
        "{pes} PEs with {} each need {}, and this machine has {} free; use smaller sizes (-e), a smaller window (-W), or \
         fewer PEs",
        said(bytes as u64),
        said(all),
        said(there)
    )))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn more_than_there_is_is_refused_in_words() {
        assert!(available().unwrap() > 1 << 20);
        assert!(check(2, 1 << 30, Some(2 << 30)).is_ok());
        assert!(check(2, 1 << 30, None).is_ok());
        let told = check(3, 1 << 30, Some(2 << 30)).unwrap_err().to_string();
        assert!(told.contains("3 PEs with 1.00 GiB each need 3.00 GiB, and this machine has 2.00 GiB free"), "{told}");
        assert!(check(usize::MAX, usize::MAX, Some(1 << 40)).is_err());
    }
}
