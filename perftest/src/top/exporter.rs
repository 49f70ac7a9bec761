//! Publishing metrics: over HTTP, or in a file that is replaced as a whole.

use std::fs;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::open_metrics::MEDIA_TYPE;
use crate::print;

/// The most bytes of a request that are read.
const LONGEST_REQUEST: usize = 8 << 10;
/// The time in which a client sends its request and takes the answer: others wait meanwhile.
const PATIENCE: Duration = Duration::from_secs(2);

/// Errors of accept(2) that are one client's.
const OF_CLIENTS: [i32; 8] = [
    libc::EINTR,
    libc::ECONNABORTED,
    libc::EPROTO,
    libc::ENETDOWN,
    libc::ENETUNREACH,
    libc::EHOSTDOWN,
    libc::EHOSTUNREACH,
    libc::ENOPROTOOPT,
];

/// Where metrics are published: the value of `--prometheus`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Target {
    /// An address on which HTTP is served.
    Http(SocketAddr),
    /// A file that each sample replaces.
    File(PathBuf),
    /// Standard output.
    Stdout,
}

impl Target {
    /// Reads `PORT` (of 127.0.0.1), `ADDRESS:PORT`, `-`, or a path.
    ///
    /// # Errors
    /// It is none of these: a text with `:` and without `/` would be an address.
    pub fn parse(text: &str) -> Result<Target, String> {
        if text.bytes().all(|byte| byte.is_ascii_digit()) {
            let port = text.parse().map_err(|_| format!("{text:?} is no port; ports go from 0 to 65535"))?;
            return Ok(Target::Http((Ipv4Addr::LOCALHOST, port).into()));
        }
        match text.parse() {
            Ok(address) => Ok(Target::Http(address)),
            Err(_) if text == "-" => Ok(Target::Stdout),
            Err(_) if text.contains('/') || !text.contains(':') => Ok(Target::File(text.into())),
            Err(_) => Err("use PORT, ADDRESS:PORT with a numeric address, a path, or -".into()),
        }
    }
}

/// Writes a sample to standard output or to a file.
///
/// # Errors
/// The output cannot be written, or the file is not a regular file.
pub(super) fn write(path: Option<&Path>, text: &str) -> io::Result<()> {
    let Some(path) = path else { return print::out(text) };
    if fs::symlink_metadata(path).is_ok_and(|about| !about.is_file()) {
        return Err(io::Error::new(ErrorKind::InvalidInput, "is not a regular file, so it cannot be replaced"));
    }
    // A reader finds the last sample or this one, never a part.
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}", std::process::id()));
    let new = path.with_file_name(name);
    let written =
        create(&new).and_then(|mut file| file.write_all(text.as_bytes())).and_then(|()| fs::rename(&new, path));
    if written.is_err() {
        let _ = fs::remove_file(&new);
    }
    written
}

/// Creates a file, in place of one that an earlier process has left; follows no link.
fn create(path: &Path) -> io::Result<fs::File> {
    match fs::File::create_new(path) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            fs::remove_file(path)?;
            fs::File::create_new(path)
        }
        created => created,
    }
}

/// Serves metrics over HTTP, one connection after the other: `count` answers, or without end.
///
/// # Errors
/// No connection can be accepted any more. What a client does wrong ends its connection only.
pub(super) fn serve(listener: &TcpListener, count: Option<u64>, metrics: impl Fn() -> String) -> io::Result<()> {
    let mut answered = 0;
    while count != Some(answered) {
        let client = match listener.accept() {
            Ok((client, _)) => client,
            // The client or its network has gone (accept(2)).
            Err(error) if error.raw_os_error().is_some_and(|code| OF_CLIENTS.contains(&code)) => continue,
            Err(error) => return Err(error),
        };
        if let Ok(true) = answer(client, &metrics) {
            answered += 1;
        }
    }
    Ok(())
}

/// Answers one request. Returns whether metrics were sent.
fn answer(mut client: TcpStream, metrics: impl Fn() -> String) -> io::Result<bool> {
    let request = head(&mut client)?;
    let mut words = request.split(' ');
    let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let path = target.split('?').next().unwrap_or_default();
    let (status, kind, body) = match (method, path) {
        ("GET" | "HEAD", "/metrics" | "/") => ("200 OK", MEDIA_TYPE, metrics()),
        ("GET" | "HEAD", _) => ("404 Not Found", "text/plain", "metrics are at /metrics\n".into()),
        _ => ("405 Method Not Allowed", "text/plain", "GET or HEAD\n".into()),
    };
    let length = body.len();
    let mut answer =
        format!("HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\nConnection: close\r\n");
    if status.starts_with("405") {
        answer.push_str("Allow: GET, HEAD\r\n");
    }
    answer.push_str("\r\n");
    if method != "HEAD" {
        answer.push_str(&body);
    }
    let (until, mut rest) = (Instant::now() + PATIENCE, answer.as_bytes());
    while !rest.is_empty() {
        client.set_write_timeout(Some(left(until)?))?;
        match client.write(rest)? {
            0 => return Err(ErrorKind::WriteZero.into()),
            written => rest = &rest[written..],
        }
    }
    Ok(status.starts_with("200"))
}

/// The time that is left.
fn left(until: Instant) -> io::Result<Duration> {
    let left = until.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(ErrorKind::TimedOut.into()) } else { Ok(left) }
}

/// The first line of a request, read with its headers.
fn head(client: &mut TcpStream) -> io::Result<String> {
    let until = Instant::now() + PATIENCE;
    let mut request = Vec::new();
    while !request.windows(4).any(|end| end == b"\r\n\r\n") {
        if request.len() > LONGEST_REQUEST {
            return Err(ErrorKind::InvalidData.into());
        }
        client.set_read_timeout(Some(left(until)?))?;
        let mut bytes = [0; 1024];
        match client.read(&mut bytes)? {
            0 => return Err(ErrorKind::UnexpectedEof.into()),
            read => request.extend_from_slice(&bytes[..read]),
        }
    }
    let line = request.split(|byte| *byte == b'\r').next().unwrap_or_default();
    Ok(String::from_utf8_lossy(line).into_owned())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn targets_are_ports_addresses_or_files() {
        let parse = |text| Target::parse(text).unwrap();
        assert_eq!(parse("9400"), Target::Http("127.0.0.1:9400".parse().unwrap()));
        assert_eq!(parse("[::1]:9400"), Target::Http("[::1]:9400".parse().unwrap()));
        assert_eq!(parse("/tmp/9400"), Target::File("/tmp/9400".into()));
        assert_eq!(parse("-"), Target::Stdout);
        assert!(Target::parse("65536").unwrap_err().contains("no port"));
        for wrong in ["localhost:9400", ":9400", "127.0.0.1:94000"] {
            assert!(Target::parse(wrong).unwrap_err().contains("ADDRESS:PORT"), "{wrong}");
        }
    }

    /// The answers to these requests, each over a connection of its own, from a server that ends with the last.
    fn answers(requests: &[&str], metrics: u64) -> Vec<String> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::scope(|scope| {
            let server = scope.spawn(move || serve(&listener, Some(metrics), || "figures\n# EOF\n".into()));
            let ask = |request: &&str| {
                let mut client = TcpStream::connect(address).unwrap();
                let _ = client.write_all(request.as_bytes());
                let _ = client.shutdown(std::net::Shutdown::Write);
                let mut answer = String::new();
                let _ = client.read_to_string(&mut answer);
                answer
            };
            let answers = requests.iter().map(ask).collect();
            server.join().unwrap().unwrap();
            answers
        })
    }

    #[test]
    fn http_is_served_and_wrong_requests_end_only_themselves() {
        let long = format!("GET /metrics HTTP/1.1\r\nX: {}", "x".repeat(2 * LONGEST_REQUEST));
        let got = answers(
            &[
                "GET /other HTTP/1.1\r\n\r\n",
                "POST /metrics HTTP/1.1\r\n\r\n",
                "",
                "\u{0}\u{1}",
                &long,
                "HEAD /metrics HTTP/1.1\r\n\r\n",
                "GET /metrics?name[]=x HTTP/1.1\r\nHost: x\r\n\r\n",
            ],
            2,
        );
        let begins = |answer: &String, with: &str| answer.starts_with(&format!("HTTP/1.1 {with}"));
        assert!(
            begins(&got[0], "404") && begins(&got[1], "405") && got[1].contains("\r\nAllow: GET, HEAD\r\n"),
            "{got:?}"
        );
        assert!(got[2..5].iter().all(String::is_empty), "{got:?}");
        assert!(begins(&got[5], "200") && got[5].ends_with("\r\n\r\n") && got[5].contains("Content-Length: 14\r\n"));
        assert!(begins(&got[6], "200") && got[6].ends_with("\r\n\r\nfigures\n# EOF\n") && got[6].contains(MEDIA_TYPE));
    }

    #[test]
    fn a_file_is_replaced_as_a_whole_and_nothing_else_is() {
        let folder = std::env::temp_dir().join(format!("symrail-metrics-{}", std::process::id()));
        fs::create_dir(&folder).unwrap();
        let path = folder.join("symrail.prom");
        // What a link of the temporary name points to stays as it is.
        let kept = folder.join("kept");
        fs::write(&kept, "kept").unwrap();
        std::os::unix::fs::symlink(&kept, folder.join(format!("symrail.prom.{}", std::process::id()))).unwrap();
        let results = [write(Some(&path), "one\n"), write(Some(&path), "two\n"), write(Some(&folder), "three\n")];
        let (text, files) = (fs::read_to_string(&path).unwrap(), fs::read_dir(&folder).unwrap().count());
        let untouched = fs::read_to_string(&kept).unwrap();
        fs::remove_dir_all(&folder).unwrap();
        assert_eq!(untouched, "kept");
        assert!(results[0].is_ok() && results[1].is_ok());
        assert_eq!((text.as_str(), files), ("two\n", 2));
        assert!(results[2].as_ref().unwrap_err().to_string().contains("not a regular file"));
        assert!(
            write(Some(Path::new("/dev/null")), "x").is_err() && write(Some(Path::new("/nowhere/x")), "x").is_err()
        );
    }
}
