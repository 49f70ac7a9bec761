//! Runs the kernels of `cu/` on CPU threads. The test needs no GPU and no CUDA, but a C++ compiler.

#![allow(clippy::unwrap_used)]

use std::io::Write as _;
use std::process::{Command, Stdio};

use symrail_ep::{DataType, logfmt};

#[path = "../../kernels/emulator/emulator.rs"]
mod emulator;

const FOLDERS: [&str; 2] = ["ep/tests/emulated", "ep/cu"];

#[test]
fn kernels_of_high_throughput() {
    emulator::run("ep/tests/emulated/high_throughput.cpp", &FOLDERS);
}

#[test]
fn kernels_of_low_latency() {
    emulator::run("ep/tests/emulated/low_latency.cpp", &FOLDERS);
}

/// A row of bfloat16 whose groups have magnitudes of all sizes, zeros, equal ones, large ones, and no numbers.
fn row(number: u64, length: usize) -> Vec<u8> {
    let mut seed = number.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut random = |below: u64| {
        seed = (seed ^ seed >> 29).wrapping_mul(0xFF51_AFD7_ED55_8CCD);
        (seed >> 20) % below
    };
    let mut values = Vec::with_capacity(length);
    while values.len() < length {
        let (kind, spread, top) = (random(8), random(60) + 1, random(127) + 1);
        let same = random(1 << 15) as u16;
        for _ in 0..logfmt::GROUP.min(length - values.len()) {
            let exponent = top.saturating_sub(random(spread));
            let sign = random(2) as u16;
            let some = (exponent << 7 | random(128)) as u16 | sign << 15;
            values.push(match kind {
                0 if random(20) == 0 => 0x7F80 | random(2) as u16,
                1 if random(30) == 0 => 0x4000,
                2 => same,
                3 if random(3) == 0 => sign << 15,
                4 => random(0x90) as u16 | sign << 15,
                5 => 0x3E00 | random(0x180) as u16 | sign << 15,
                _ => some,
            });
        }
    }
    values.iter().flat_map(|bits| bits.to_ne_bytes()).collect()
}

#[test]
fn kernels_encode_rows_with_the_same_bits() {
    const ROWS: u64 = 200;
    let Some(program) = emulator::compiled("ep/tests/emulated/logfmt.cpp", &FOLDERS, &[]) else { return };
    for length in [16usize, 48, 144, 1024, 7168] {
        let rows: Vec<u8> = (0..ROWS).flat_map(|number| row(number + length as u64, length)).collect();
        let mut encoder = Command::new(&program);
        let pipes = encoder.arg(length.to_string()).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = pipes.spawn().unwrap();
        let (mut to, given) = (child.stdin.take().unwrap(), rows.clone());
        let feeder = std::thread::spawn(move || to.write_all(&given).unwrap());
        let output = child.wait_with_output().unwrap();
        feeder.join().unwrap();
        assert!(output.status.success(), "{output:?}");
        // For each row its encoded form, and what becomes of that.
        let mut found = &output.stdout[..];
        let mut shorter = 0;
        for (number, row) in rows.chunks_exact(2 * length).enumerate() {
            let (mut encoded, mut decoded) = (Vec::new(), vec![0; row.len()]);
            logfmt::encode(row, DataType::Bfloat16, &mut encoded);
            logfmt::decode(&encoded, DataType::Bfloat16, &mut decoded).unwrap();
            shorter += usize::from(encoded.len() < row.len());
            let (its, rest) = found.split_at(encoded.len());
            assert_eq!(its, encoded, "row {number} of {length}");
            let (its, rest) = rest.split_at(decoded.len());
            assert_eq!(its, decoded, "row {number} of {length}");
            found = rest;
        }
        assert!(found.is_empty() && shorter > 0, "{shorter} of {length}");
    }
}
