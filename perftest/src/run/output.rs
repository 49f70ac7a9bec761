//! Output of PEs that does not go directly to the launcher's output: with `--prefix` every line is written whole, with
//! the PE's number in front, and output of other hosts passes through the launcher.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// A longer line is split, so that the output of a PE that never ends its line appears and memory is bounded. In bytes.
const LONGEST_LINE: usize = 64 << 10;

/// The threads that carry the PEs' output.
pub(super) struct Carriers {
    ended: Sender<()>,
    ends: Receiver<()>,
    running: usize,
    activity: Arc<Activity>,
}

/// Distinguishes a slow reader of our output from a stream on which nothing arrives any more.
#[derive(Default)]
struct Activity {
    lines: AtomicU64,
    writing: AtomicUsize,
    /// Why output could not be written, for the first failure.
    failed: Mutex<Option<io::Error>>,
}

impl Carriers {
    pub(super) fn new() -> Carriers {
        let (ended, ends) = channel();
        Carriers { ended, ends, running: 0, activity: Arc::default() }
    }

    /// Carries PE `pe`'s stream `from` to `to`, which is locked for one line at a time; without `prefix`, for as much
    /// as is available at a time.
    pub(super) fn carry<W: Write>(
        &mut self,
        pe: u32,
        prefix: bool,
        from: impl Read + Send + 'static,
        to: impl Fn() -> W + Send + 'static,
    ) {
        let (ended, activity) = (self.ended.clone(), Arc::clone(&self.activity));
        let carrier = move || {
            let prefix = prefix.then(|| format!("[{pe}] ").into_bytes());
            carry(prefix.as_deref(), from, to, &activity);
            let _ = ended.send(());
        };
        if std::thread::Builder::new().name(format!("output {pe}")).spawn(carrier).is_ok() {
            self.running += 1;
        }
    }

    /// Waits for the ends of all streams, as long as output arrives or waits for its reader. A process that left its
    /// PE's group may hold a stream open; the wait for it ends when nothing has arrived for `quiet`. Returns why output
    /// was lost, if any was.
    pub(super) fn finish(self, quiet: Duration) -> Option<io::Error> {
        let mut left = self.running;
        let mut seen = self.activity.lines.load(Ordering::Relaxed);
        while left > 0 {
            if self.ends.recv_timeout(quiet).is_ok() {
                left -= 1;
                continue;
            }
            let lines = self.activity.lines.load(Ordering::Relaxed);
            if lines == seen && self.activity.writing.load(Ordering::Relaxed) == 0 {
                break;
            }
            seen = lines;
        }
        symrail_core::lock(&self.activity.failed).take()
    }
}

fn carry<W: Write>(prefix: Option<&[u8]>, from: impl Read, to: impl Fn() -> W, activity: &Activity) {
    let mut from = BufReader::new(from);
    let mut line = Vec::new();
    loop {
        line.clear();
        let read = match prefix {
            Some(prefix) => {
                line.extend_from_slice(prefix);
                from.by_ref().take(LONGEST_LINE as u64).read_until(b'\n', &mut line)
            }
            None => from.fill_buf().map(|there| line.extend_from_slice(there)).map(|()| line.len()),
        };
        if matches!(read, Ok(1..)) {
            match prefix {
                Some(_) if line.last() != Some(&b'\n') => line.push(b'\n'),
                Some(_) => {}
                None => from.consume(line.len()),
            }
            activity.writing.fetch_add(1, Ordering::Relaxed);
            let mut to = to();
            let written = to.write_all(&line).and_then(|()| to.flush());
            drop(to);
            activity.writing.fetch_sub(1, Ordering::Relaxed);
            activity.lines.fetch_add(1, Ordering::Relaxed);
            if let Err(reason) = written {
                // The PE gets the same error as if it had written there itself: the end of `from` closes its pipe.
                symrail_core::lock(&activity.failed).get_or_insert(reason);
                return;
            }
        }
        if !matches!(read, Ok(1..)) {
            return;
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    struct Sink(Arc<Mutex<Vec<u8>>>);

    impl Write for Sink {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    fn carried(prefix: Option<&[u8]>, text: &[u8]) -> Vec<u8> {
        let out = Arc::new(Mutex::new(Vec::new()));
        carry(prefix, text, || Sink(Arc::clone(&out)), &Activity::default());
        let out = out.lock().unwrap();
        out.clone()
    }

    #[test]
    fn every_line_has_its_prefix_and_its_end() {
        assert_eq!(carried(Some(b"[7] "), b"one\n\n\xffthree"), b"[7] one\n[7] \n[7] \xffthree\n");
        assert_eq!(carried(Some(b"[7] "), b""), b"");
        assert_eq!(carried(None, b"one\n\xffthree"), b"one\n\xffthree");
    }

    #[test]
    fn endless_lines_are_broken() {
        let out = carried(Some(b"[7] "), &vec![b'x'; LONGEST_LINE + 1]);
        assert_eq!(out.iter().filter(|byte| **byte == b'\n').count(), 2);
        assert!(out.ends_with(b"[7] x\n"));
    }
}
