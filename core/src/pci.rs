//! PCI addresses, which identify NICs and GPUs.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A PCI address, `domain:bus:device.function` in hexadecimal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct PciAddress {
    pub domain: u32,
    pub bus: u8,
    pub device: u8,
    pub function: u8,
}

impl fmt::Display for PciAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04x}:{:02x}:{:02x}.{:x}", self.domain, self.bus, self.device, self.function)
    }
}

/// A text that is no PCI address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0} is not a PCI address; write domain:bus:device.function in hexadecimal, such as 0000:3b:00.0")]
pub struct NotPci(pub String);

impl FromStr for PciAddress {
    type Err = NotPci;

    /// Parses the output of CUDA, NVML, sysfs and `lspci`: any case, a domain of up to eight digits or none.
    fn from_str(text: &str) -> Result<Self, NotPci> {
        let read = || {
            let (rest, function) = text.rsplit_once('.')?;
            let mut fields = rest.rsplit(':');
            let (device, bus, domain) = (fields.next()?, fields.next()?, fields.next().unwrap_or("0"));
            // `from_str_radix` accepts signs.
            let signed = text.contains(['+', '-']) || fields.next().is_some();
            let byte = |digits| u8::from_str_radix(digits, 16).ok();
            let address = PciAddress {
                domain: u32::from_str_radix(domain, 16).ok()?,
                bus: byte(bus)?,
                device: byte(device).filter(|device| *device < 32)?,
                function: byte(function).filter(|function| *function < 8)?,
            };
            (!signed).then_some(address)
        };
        read().ok_or_else(|| NotPci(text.into()))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn pci_addresses_are_read_in_every_spelling() {
        let expected = PciAddress { domain: 0, bus: 0x3b, device: 0, function: 1 };
        for text in ["0000:3b:00.1", "00000000:3B:00.1", "3b:00.1", "0:3b:0.1"] {
            assert_eq!(text.parse(), Ok(expected));
        }
        assert_eq!(expected.to_string(), "0000:3b:00.1");
        for bad in ["", "3b", "3b:00", ":.", "3b:20.0", "3b:00.8", "+3b:00.0", "0:0:3b:00.0", "x:3b:00.0", "1ff:00.0"] {
            assert!(bad.parse::<PciAddress>().unwrap_err().to_string().contains("such as 0000:3b:00.0"), "{bad}");
        }
    }
}
