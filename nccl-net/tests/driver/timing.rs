//! Times of messages beside those of a TCP socket that does what NCCL's own transport does: a header with the size, then
//! the data, over a socket that does not block. Both in turns.

use std::collections::VecDeque;
use std::ffi::c_void;
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Instant;

use super::Net;

type Ptr = *mut c_void;

pub const SIZES: [usize; 6] = [8, 4 << 10, 32 << 10, 64 << 10, 256 << 10, 1 << 20];
/// Messages under way in one direction, as NCCL has.
const DEPTH: usize = 8;
const TURNS: usize = 5;

/// One process's ends of a connection in each direction.
pub struct Ends<'a> {
    pub net: &'a Net,
    pub sends: Ptr,
    pub receives: Ptr,
    pub from: (Vec<u8>, Ptr),
    pub to: (Vec<u8>, Ptr),
}

impl Ends<'_> {
    fn start(&mut self, receives: bool, slot: usize, size: usize) -> Option<Ptr> {
        let at = slot * size;
        let request = match receives {
            true => self.net.receive(self.receives, &mut self.to.0[at..at + size], 0, self.to.1),
            false => self.net.send(self.sends, &self.from.0[at..at + size], 0, self.from.1),
        };
        Some(request.unwrap()).filter(|request| !request.is_null())
    }

    fn begin(&mut self, receives: bool, size: usize) -> Ptr {
        loop {
            if let Some(request) = self.start(receives, 0, size) {
                return request;
            }
            std::thread::yield_now();
        }
    }

    fn end(&self, request: Ptr, size: usize) {
        while self.net.test(request).unwrap().inspect(|&got| assert_eq!(got, size)).is_none() {
            std::thread::yield_now(); // as NCCL's thread does
        }
    }

    /// Messages there and back, one at a time. Receives are posted ahead.
    fn ping_pong(&mut self, begins: bool, size: usize, count: usize) {
        let mut receive = self.begin(true, size);
        for at in 0..count {
            if !begins {
                self.end(receive, size);
                if at + 1 < count {
                    receive = self.begin(true, size);
                }
            }
            let send = self.begin(false, size);
            if begins {
                self.end(receive, size);
                if at + 1 < count {
                    receive = self.begin(true, size);
                }
            }
            self.end(send, size);
        }
    }

    /// Messages in one direction, several under way.
    fn stream(&mut self, receives: bool, size: usize, count: usize) {
        let (mut started, mut done, mut under_way) = (0, 0, VecDeque::new());
        while done < count {
            if started < count
                && under_way.len() < DEPTH
                && let Some(request) = self.start(receives, started % DEPTH, size)
            {
                under_way.push_back(request);
                started += 1;
            }
            match under_way.front() {
                Some(&request) if self.net.test(request).unwrap().is_some() => {
                    under_way.pop_front();
                    done += 1;
                }
                _ => std::thread::yield_now(),
            }
        }
    }
}

/// Reads or writes all of it, without blocking.
fn all(mut left: usize, mut step: impl FnMut(usize) -> std::io::Result<usize>) {
    while left > 0 {
        match step(left) {
            Ok(0) => panic!("the other end has closed"),
            Ok(n) => left -= n,
            Err(error) if error.kind() == ErrorKind::WouldBlock => std::thread::yield_now(),
            Err(error) => panic!("{error}"),
        }
    }
}

fn send(mut socket: &TcpStream, data: &[u8]) {
    let header = (data.len() as u64).to_le_bytes();
    all(8, |left| socket.write(&header[8 - left..]));
    all(data.len(), |left| socket.write(&data[data.len() - left..]));
}

fn receive(mut socket: &TcpStream, data: &mut [u8]) {
    let mut header = [0; 8];
    all(8, |left| socket.read(&mut header[8 - left..]));
    let len = data.len();
    assert_eq!(u64::from_le_bytes(header), len as u64);
    all(len, |left| socket.read(&mut data[len - left..]));
}

/// A socket between both processes.
pub fn socket(listens: bool, tell: impl FnOnce(u16), hear: impl FnOnce() -> u16) -> TcpStream {
    let socket = match listens {
        true => {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            tell(listener.local_addr().unwrap().port());
            listener.accept().unwrap().0
        }
        false => TcpStream::connect(("127.0.0.1", hear())).unwrap(),
    };
    socket.set_nodelay(true).unwrap();
    socket.set_nonblocking(true).unwrap();
    socket
}

/// Microseconds for each message of `count`.
fn timed(count: usize, run: impl FnOnce()) -> f64 {
    let begun = Instant::now();
    run();
    begun.elapsed().as_secs_f64() * 1e6 / count as f64
}

/// The median and the lowest.
fn middle(mut times: Vec<f64>) -> (f64, f64) {
    times.sort_by(f64::total_cmp);
    (times[times.len() / 2], times[0])
}

/// Half of the time of a message there and back, and the time of each message of a stream.
pub fn measure(ends: &mut Ends<'_>, socket: &TcpStream, first: bool, label: &str) {
    let only = std::env::var("NCCL_NET_TEST_SIZE").ok().map(|size| size.parse::<usize>().unwrap());
    for size in SIZES.into_iter().filter(|&size| only.is_none_or(|only| only == size)) {
        let (trips, messages) = ((2000 * 1024 / size.max(1024)).clamp(60, 1000), (64 << 20) / size.max(32 << 10));
        let (mut ours, mut theirs) = ((Vec::new(), Vec::new()), (Vec::new(), Vec::new()));
        for turn in 0..=TURNS {
            let trip = timed(2 * trips, || ends.ping_pong(first, size, trips));
            let each = timed(messages, || ends.stream(!first, size, messages));
            let mut buffer = vec![0; size];
            let their_trip = timed(2 * trips, || {
                for _ in 0..trips {
                    if first {
                        send(socket, &buffer);
                        receive(socket, &mut buffer);
                    } else {
                        receive(socket, &mut buffer);
                        send(socket, &buffer);
                    }
                }
            });
            let their_each = timed(messages, || {
                (0..messages).for_each(|_| if first { send(socket, &buffer) } else { receive(socket, &mut buffer) });
            });
            // The first turn warms up.
            if turn > 0 {
                ours.0.push(trip);
                ours.1.push(each);
                theirs.0.push(their_trip);
                theirs.1.push(their_each);
            }
        }
        if !first {
            let rows = [("half round trip", ours.0, theirs.0), ("each of a stream", ours.1, theirs.1)];
            for (what, ours, theirs) in rows {
                let ((ours, best), (theirs, their_best)) = (middle(ours), middle(theirs));
                println!(
                    "\nFIGURE {label} {size:>8} B, {what:<16}: {ours:8.1} us (best {best:.1}), a socket {theirs:8.1} \
                     ({their_best:.1}), ratio {:.2} ({:.2})",
                    ours / theirs,
                    best / their_best
                );
            }
        }
    }
}
