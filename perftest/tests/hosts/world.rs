//! Hosts for tests: network namespaces with a name, an address and an sshd each, on one bridge.
//!
//! A test runs its binary again inside new namespaces of network, mounts, names and processes, where it is process 1:
//! when it ends, the kernel ends all processes there, and the machine around is unchanged.

use std::io::Write;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Set in the copy of this binary that runs inside: the folder of its files.
const INSIDE: &str = "HOSTS_TEST_INSIDE";
const LIMIT: Duration = Duration::from_secs(60);

pub struct World {
    folder: PathBuf,
    daemons: Vec<Child>,
}

impl World {
    /// Hosts `h1`, `h2` and so on. `None` outside: the copy inside has run the test `name`, or it was skipped.
    pub fn with_hosts(name: &str, hosts: u32) -> Option<World> {
        match std::env::var_os(INSIDE) {
            Some(folder) => Some(World::lay_out(folder.into(), hosts)),
            None => {
                go_inside(name);
                None
            }
        }
    }

    fn lay_out(folder: PathBuf, hosts: u32) -> World {
        for line in [
            // sshd's folder, instead of the machine's.
            "mount -t tmpfs none /run && mkdir /run/sshd",
            "ip link set lo up && ip link add hosts type bridge",
            "ip addr add 10.92.0.100/24 dev hosts && ip link set hosts up",
        ] {
            shell(line);
        }
        for key in ["user", "host"] {
            shell(&format!("ssh-keygen -q -t ed25519 -N '' -f {}/{key}", folder.display()));
        }
        let mut world = World { folder, daemons: Vec::new() };
        world.write("ssh", "");
        std::fs::create_dir_all(world.folder.join("here/only")).unwrap();
        for host in 1..=hosts {
            world.add_host(host);
        }
        world
    }

    fn add_host(&mut self, host: u32) {
        let (at, address) = (self.folder.display(), format!("10.92.0.{host}"));
        for line in [
            format!("touch {at}/net{host} && unshare --net={at}/net{host} true"),
            format!("ip link add to{host} type veth peer name eth0 netns {at}/net{host}"),
            format!("ip link set to{host} master hosts up"),
            format!(
                "nsenter --net={at}/net{host} sh -c 'ip link set lo up && ip addr add {address}/24 dev eth0 && ip link set eth0 up'"
            ),
        ] {
            shell(&line);
        }
        // /sys shows the namespace in which it is mounted. A separate home: a user's login scripts are not what is tested.
        let sshd = format!(
            "Port 22\nListenAddress {address}\nHostKey {at}/host\nPidFile none\nAuthorizedKeysFile {at}/user.pub\n\
             StrictModes no\nUsePAM no\nPermitRootLogin yes\nPasswordAuthentication no\nSetEnv HOME={at}\n"
        );
        self.write(&format!("sshd{host}"), &sshd);
        let line = format!(
            "mount -t sysfs none /sys && mount -t tmpfs none {at}/here && hostname h{host} && exec \"$(command -v sshd || echo /usr/sbin/sshd)\" -D -f {at}/sshd{host}"
        );
        let net = format!("--net={at}/net{host}");
        let daemon = Command::new("nsenter")
            .args([&net, "unshare", "--uts", "--mount", "sh", "-c", &line])
            .stderr(Stdio::null())
            .spawn();
        self.daemons.push(daemon.unwrap());
        self.name(&format!("h{host}"), &address);
        let deadline = Instant::now() + LIMIT;
        while TcpStream::connect((address.as_str(), 22)).is_err() {
            assert!(Instant::now() < deadline, "no sshd on {address}");
            std::thread::yield_now();
        }
    }

    /// Gives a host the interfaces of hosts with containers: docker0 with an address that all hosts have, a container's
    /// bridge, and a cable with link-local addresses.
    pub fn add_containers(&self, host: u32) {
        self.run_at(host, "ip link add docker0 type bridge && ip addr add 172.17.0.1/16 dev docker0");
        self.run_at(host, "ip link add cni0 type bridge && ip addr add 10.88.0.1/16 dev cni0");
        for bridge in ["docker0", "cni0"] {
            let port = format!("veth-{bridge}");
            self.run_at(
                host,
                &format!("ip link add {port} type veth peer name in-{bridge} && ip link set {port} master {bridge} up"),
            );
            self.run_at(host, &format!("ip link set in-{bridge} up && ip link set {bridge} up"));
            // Interfaces that do not run are not looked at.
            let runs = format!("ip -o link show {bridge} | grep -q LOWER_UP");
            self.run_at(host, &format!("for i in $(seq 400); do {runs} && break; sleep 0.05; done"));
        }
        self.add_interface(host, "link0", &format!("169.254.9.{host}/16"));
    }

    /// Gives a host an interface that looks as if it led elsewhere, and does not.
    pub fn add_interface(&self, host: u32, name: &str, address: &str) {
        self.run_at(host, &format!("ip link add {name} type veth peer name {name}-end && ip link set {name}-end up"));
        self.run_at(host, &format!("ip addr add {address} dev {name} && ip link set {name} up"));
    }

    /// Gives the first hosts a second network, with the interface eth1.
    pub fn add_network(&self, hosts: u32) {
        shell("ip link add second type bridge && ip link set second up");
        let at = self.folder.display();
        for host in 1..=hosts {
            shell(&format!("ip link add second{host} type veth peer name eth1 netns {at}/net{host}"));
            shell(&format!("ip link set second{host} master second up"));
            self.run_at(host, &format!("ip addr add 10.93.0.{host}/24 dev eth1 && ip link set eth1 up"));
        }
    }

    /// From now on the second network drops what a host sends and what is sent to it, and no host can tell.
    pub fn swallow(&self, host: u32) {
        shell(&format!("ip link set second{host} nomaster"));
    }

    fn run_at(&self, host: u32, line: &str) {
        shell(&format!("nsenter --net={}/net{host} sh -c '{line}'", self.folder.display()));
    }

    /// A host that never answers: an address that no machine has, though packets are sent to it.
    pub fn add_silent(&self, host: &str) {
        shell("ip neigh add 10.92.0.77 lladdr 02:00:00:00:00:77 dev hosts");
        self.name(host, "10.92.0.77");
    }

    /// Gives an address a name for ssh.
    fn name(&self, host: &str, address: &str) {
        let at = self.folder.display();
        let entry = format!(
            "Host {host}\n HostName {address}\n User root\n IdentityFile {at}/user\n IdentitiesOnly yes\n \
             StrictHostKeyChecking no\n UserKnownHostsFile {at}/known\n LogLevel ERROR\n"
        );
        let mut file = std::fs::OpenOptions::new().append(true).open(self.folder.join("ssh")).unwrap();
        file.write_all(entry.as_bytes()).unwrap();
    }

    pub fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.folder.join(name);
        std::fs::write(&path, text).unwrap();
        path
    }

    /// A folder that no other host has.
    pub fn only_here(&self) -> PathBuf {
        self.folder.join("here/only")
    }

    /// The launcher with these options, and a way to log in.
    pub fn symrail(&self, options: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_symrail"));
        command.arg("run").args(options);
        if !options.contains(&"--ssh") {
            command.args(["--ssh", &format!("ssh -T -F {}/ssh", self.folder.display())]);
        }
        command.stdin(Stdio::null()).env_remove("SSH_AUTH_SOCK");
        command
    }

    /// The processes here besides the hosts' daemons and this test: ids and command lines.
    pub fn others(&self) -> Vec<(u32, String)> {
        let known = |pid: u32| pid == std::process::id() || self.daemons.iter().any(|daemon| daemon.id() == pid);
        let pids =
            std::fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
        let running = |pid: u32| {
            let line = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
            // Zombies have no command line.
            (!line.is_empty()).then(|| (pid, String::from_utf8_lossy(&line).replace('\0', " ")))
        };
        pids.filter(|pid| !known(*pid)).filter_map(running).collect()
    }

    /// Waits until no process of a job is left, on any host.
    pub fn expect_nothing_left(&self) {
        let deadline = Instant::now() + LIMIT;
        while !self.others().is_empty() {
            assert!(Instant::now() < deadline, "left behind: {:#?}", self.others());
            std::thread::yield_now();
        }
    }
}

/// Runs a command line, which must succeed.
pub fn shell(line: &str) {
    let output = Command::new("sh").args(["-c", line]).output().unwrap();
    assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Runs the test again, in new namespaces.
fn go_inside(name: &str) {
    let probe =
        "ip link add probe type bridge && command -v ssh ssh-keygen && { command -v sshd || test -x /usr/sbin/sshd; }";
    let outside = ["--net", "--mount", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc"];
    let output = Command::new("unshare").args(outside).args(["sh", "-c", probe]).output();
    if !output.as_ref().is_ok_and(|output| output.status.success()) {
        let why = output.map_or_else(|e| e.to_string(), |it| String::from_utf8_lossy(&it.stderr).trim().to_owned());
        println!(
            "SKIPPED: hosts in network namespaces need root, bridges, ssh and sshd (Debian: openssh-server): {why}"
        );
        return;
    }
    let folder = Folder::new();
    let mut copy = Command::new("unshare");
    let test = format!("hosts::{name}");
    copy.args(outside).arg(std::env::current_exe().unwrap()).args(["--exact", &test, "--nocapture"]);
    let output = copy.env(INSIDE, &folder.0).stdin(Stdio::null()).output().unwrap();
    let said = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    // A name that no test has would be a success, too.
    assert!(output.status.success() && said[0].contains(" 1 passed; "), "{}\n{}", said[0], said[1]);
}

struct Folder(PathBuf);

impl Folder {
    fn new() -> Folder {
        let unique = format!("symrail-hosts-{}-{:?}", std::process::id(), std::thread::current().id());
        let path = std::env::temp_dir().join(unique.replace(['(', ')'], ""));
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(Path::new(&self.0));
    }
}
