//! Bytes from an unauthenticated client of the rendezvous service. It must continue to serve, and admit no such client.
#![no_main]

use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, Shutdown, TcpStream};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use symrail::bootstrap::rendezvous::{Event, Options, Secret, Server};

static SERVER: OnceLock<Server> = OnceLock::new();
static LET_IN: AtomicBool = AtomicBool::new(false);

fn server() -> &'static Server {
    SERVER.get_or_init(|| {
        let options = Options {
            hello_timeout: Duration::from_millis(100),
            on_event: Box::new(|_: Event| LET_IN.store(true, Ordering::SeqCst)),
            ..Options::default()
        };
        Server::start(IpAddr::V4(Ipv4Addr::LOCALHOST), &Secret::generate().expect("random numbers"), options)
            .expect("a service on the loopback interface")
    })
}

fuzz_target!(|bytes: &[u8]| {
    let mut stream = TcpStream::connect(server().address().ip().expect("an IP address")).expect("the service listens");
    // It may close the connection at any byte.
    let _ = stream.write_all(bytes);
    let _ = stream.shutdown(Shutdown::Write);
    assert!(!LET_IN.load(Ordering::SeqCst), "somebody without the secret was let in");
});
