//! `symrail run --hosts` and `--hostfile`, by ssh to hosts that are network namespaces.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

mod world;

use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::launched::{LIMIT, Running, run};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use symrail::bootstrap::launcher;
use symrail::{Cmp, Runtime};
use symrail_transport::env::log;
use world::{World, shell};

/// The role of a copy of this binary that runs as a PE. It is one of the variables that all PEs get.
const ROLE: &str = "SYMRAIL_TEST_ROLE";

/// Not a test by itself: the body of the PEs that the tests start.
#[test]
fn pe() {
    let Ok(role) = std::env::var(ROLE) else { return };
    // A Rust program that installs no log has none.
    log::start(&log::asked_for().unwrap_or_else(|| "warn".into()));
    if role == "secret" {
        look_for_secret();
    }
    let runtime = Runtime::init().unwrap();
    put(&runtime);
    match role.as_str() {
        "rails" => return say_rails(runtime),
        "swallowed" => return put_while_swallowed(runtime),
        _ => {}
    }
    let host = nix::unistd::gethostname().unwrap().into_string().unwrap();
    println!("PE {} of {} on {host}, pid {}", runtime.my_pe(), runtime.n_pes(), std::process::id());
    // The agent's relay: an address that can be bound here is on this host.
    let relay: SocketAddr = std::env::var(launcher::ADDRESS).unwrap().parse().unwrap();
    assert!(std::net::TcpListener::bind((relay.ip(), 0)).is_ok(), "{relay} is not on {host}");
    match role.as_str() {
        "die" if runtime.my_pe() == 2 => kill(Pid::this(), Signal::SIGKILL).unwrap(),
        "fail" if runtime.my_pe() == 3 => std::process::exit(9),
        "put for ever" => {
            let bytes = runtime.alloc_slice::<u64>(1 << 13).unwrap();
            let next = (runtime.my_pe() + 1) % runtime.n_pes();
            let why = loop {
                if let Err(error) = bytes.put(0, &[1; 1 << 13], next).and_then(|()| runtime.quiet()) {
                    break error.to_string();
                }
            };
            runtime.abort(1, &why);
            std::process::exit(1);
        }
        "die" | "fail" | "wait" => {
            runtime.barrier_all().unwrap();
            while runtime.barrier_all().is_ok() {}
            std::process::exit(1);
        }
        _ => runtime.finalize().unwrap(),
    }
}

/// Puts to all other PEs, and waits for their puts.
fn put(runtime: &Runtime) {
    let (me, n) = (runtime.my_pe() as usize, runtime.n_pes());
    let words = runtime.alloc_slice::<u64>(n as usize).unwrap();
    for pe in 0..n {
        words.put(me, &[u64::from(pe) + 1], pe).unwrap();
    }
    runtime.quiet().unwrap();
    for from in 0..n as usize {
        words.wait_until(from, Cmp::Eq, me as u64 + 1).unwrap();
    }
    runtime.barrier_all().unwrap();
}

/// Words of a put that lanes take in turns.
const LARGE: usize = 1 << 17;

/// Puts large blocks to all other PEs, so that every lane gets some, and prints the rails, why others are none, and how
/// often lanes were given up.
fn say_rails(runtime: Runtime) {
    let (me, n) = (runtime.my_pe(), runtime.n_pes());
    let blocks = runtime.alloc_slice::<u64>(n as usize * LARGE).unwrap();
    for lap in 1..=3 {
        let block: Vec<u64> = (0..LARGE as u64).map(|word| word * lap + u64::from(me)).collect();
        (0..n).filter(|&pe| pe != me).for_each(|pe| blocks.put(me as usize * LARGE, &block, pe).unwrap());
        runtime.barrier_all().unwrap();
        for from in (0..n).filter(|&pe| pe != me) {
            let expected = (0..LARGE as u64).map(|word| word * lap + u64::from(from));
            let got = blocks.to_vec().unwrap();
            assert!(got[from as usize * LARGE..][..LARGE].iter().copied().eq(expected), "from PE {from}");
        }
        runtime.barrier_all().unwrap();
    }
    let description = runtime.description();
    let rails: Vec<_> = description.rails.iter().map(|rail| rail.name.as_str()).collect();
    let given_up: u64 = runtime.counters().iter().map(|lane| lane.given_up).sum();
    println!("PE {me}: rails {}; given up {given_up}; {}", rails.join(" "), description.why.join("; "));
    runtime.finalize().unwrap();
}

/// PE 0 puts blocks and adds, until a lane has been given up and for some rounds more. PE 1 checks that everything has
/// arrived, and once.
fn put_while_swallowed(runtime: Runtime) {
    let (blocks, sums) = (runtime.alloc_slice::<u64>(LARGE).unwrap(), runtime.alloc_slice::<u64>(2).unwrap());
    let (mut lap, mut left, mut told) = (0, 20_u64, false);
    while runtime.my_pe() == 0 && left > 0 {
        lap += 1;
        blocks.put(0, &[lap; LARGE], 1).unwrap();
        sums.atomic_fetch_add(0, 1, 1).unwrap();
        runtime.quiet().unwrap();
        // Of the host endpoint, behind the proxy thread's two.
        let lanes = runtime.counters();
        if !told && lanes[2].writes > 10 {
            println!("the first lane is used");
            told = true;
        }
        left -= u64::from(lanes[2].given_up > 0);
        assert_eq!(lanes[3].given_up, 0, "the lane that works");
    }
    if runtime.my_pe() == 0 {
        sums.put(1, &[lap], 1).unwrap();
    }
    runtime.barrier_all().unwrap();
    if runtime.my_pe() == 1 {
        let sums = sums.to_vec().unwrap();
        assert_eq!(sums[0], sums[1], "additions and laps");
        assert!(blocks.to_vec().unwrap().iter().all(|word| *word == sums[1]), "a put has arrived late");
        println!("all has arrived");
    }
    runtime.finalize().unwrap();
}

/// Checks that the job's secret is in no process's command line or environment.
fn look_for_secret() {
    let fd: i32 = std::env::var(launcher::SECRET_FD).unwrap().parse().unwrap();
    let mut secret = [0; 32];
    std::io::Read::read_exact(&mut std::fs::File::open(format!("/proc/self/fd/{fd}")).unwrap(), &mut secret).unwrap();
    let hex: String = secret.iter().map(|byte| format!("{byte:02x}")).collect();
    let mut looked_at = 0;
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        for file in ["cmdline", "environ"] {
            let Ok(bytes) = std::fs::read(entry.path().join(file)) else { continue };
            looked_at += usize::from(!bytes.is_empty());
            let holds = |what: &[u8]| bytes.windows(what.len()).any(|window| window.eq_ignore_ascii_case(what));
            assert!(!holds(&secret) && !holds(hex.as_bytes()), "{}/{file}", entry.path().display());
        }
    }
    println!("looked at {looked_at}");
    std::process::exit(0);
}

/// The launcher with PEs that run this binary in a role.
fn role(world: &World, options: &[&str], role: &str) -> Command {
    let mut command = world.symrail(options);
    command
        .arg("--")
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "hosts::pe", "--nocapture"])
        .env(ROLE, role);
    command
}

/// The launcher with PEs that run a shell line.
fn line(world: &World, options: &[&str], line: &str) -> Command {
    let mut command = world.symrail(options);
    command.args(["--", "sh", "-c", line]);
    command
}

#[test]
fn pes_of_several_hosts_put_to_each_other() {
    let Some(world) = World::with_hosts("pes_of_several_hosts_put_to_each_other", 3) else { return };
    let file = world.write("hostfile", "h1 slots=2 # one\nh2:2\nh3 slots=2\n");
    for (options, n) in [(&["--hosts", "h1:2,h2:2"][..], 4), (&["--hostfile", file.to_str().unwrap()], 6)] {
        let (code, out, err) = run(role(&world, options, "put"));
        assert_eq!((code, err.as_str()), (Some(0), ""), "{out:?}");
        for pe in 0..n {
            let said = format!("PE {pe} of {n} on h{}", pe / 2 + 1);
            assert!(out.iter().any(|line| line.contains(&said)), "{said}: {out:?}");
        }
        world.expect_nothing_left();
    }
}

/// Hosts with containers have interfaces that lead nowhere: jobs run over eth0, and say which they have left out.
#[test]
fn interfaces_of_containers_are_no_rails() {
    let Some(world) = World::with_hosts("interfaces_of_containers_are_no_rails", 2) else { return };
    [1, 2].into_iter().for_each(|host| world.add_containers(host));
    for (hosts, n) in [("h1:1,h2:1", 2), ("h1:4,h2:4", 8)] {
        let (code, out, err) = run(role(&world, &["--hosts", hosts], "rails"));
        assert_eq!((code, err.as_str()), (Some(0), ""), "{out:?}");
        let said: Vec<_> = out.iter().filter(|line| line.contains("rails eth0; given up 0;")).collect();
        assert_eq!(said.len(), n, "{out:?}");
        for what in
            ["no rails: ", "docker0 (172.17.0.1): it is a bridge", "cni0 (10.88.0.1): it is", "link0 (169.254.9."]
        {
            assert!(said.iter().all(|line| line.contains(what)), "{what}: {said:?}");
        }
        world.expect_nothing_left();
    }
    let mut command = role(&world, &["--hosts", "h1:2,h2:2"], "rails");
    command.env("SYMRAIL_LOG", "info");
    let (code, _, err) = run(command);
    assert_eq!((code, err.matches("no rails: ").count()), (Some(0), 2), "once on each host: {err}");
    let info = line(&world, &["--hosts", "h1"], &format!("{} info", env!("CARGO_BIN_EXE_symrail"))).output().unwrap();
    let info = String::from_utf8_lossy(&info.stdout);
    assert!(info.contains("no rail      docker0 (172.17.0.1): it is a bridge"), "{info}");
}

/// Interfaces that look like any other: an address that both hosts have is in no lane, and a lane that never connects
/// costs a second or two, not the time-out. A list of the user is taken at its word.
#[test]
fn interfaces_that_lead_nowhere_cost_no_time_out() {
    let Some(world) = World::with_hosts("interfaces_that_lead_nowhere_cost_no_time_out", 2) else { return };
    for host in [1, 2] {
        world.add_containers(host);
        world.add_interface(host, "twin0", "192.168.77.1/24");
        world.add_interface(host, "apart0", &format!("10.77.{host}.1/24"));
    }
    // The time-out exceeds the test's limit.
    let mut command = role(&world, &["--hosts", "h1:1,h2:1"], "rails");
    command.env("SYMRAIL_TIMEOUT_S", "600");
    let (code, out, err) = run(command);
    assert_eq!(code, Some(0), "{out:?} {err}");
    for pe in 0..2 {
        let said = out.iter().find(|line| line.contains(&format!("PE {pe}: rails"))).unwrap();
        let rails = said.split(';').next().unwrap();
        assert!(["eth0", "twin0", "apart0"].iter().all(|name| rails.contains(name)), "{said}");
        assert!(!["docker0", "cni0", "link0"].iter().any(|name| rails.contains(name)), "{said}");
        assert!(!said.contains("given up 0;"), "apart0 was tried: {said}");
    }
    let lost: Vec<_> = err.lines().filter(|line| line.contains("a rail has failed")).collect();
    let names = |line: &&str| ["apart0", "10.77.1.1", "10.77.2.1"].iter().all(|part| line.contains(part));
    assert!(!lost.is_empty() && lost.iter().all(names), "{err}");
    let mut command = role(&world, &["--hosts", "h1:1,h2:1"], "rails");
    command.env("SYMRAIL_NIC_LIST", "docker0,eth0");
    let (code, out, err) = run(command);
    assert_eq!((code, err.as_str()), (Some(0), ""), "{out:?}");
    assert!(out.iter().filter(|line| line.contains("rails docker0 eth0; given up 0;")).count() == 2, "{out:?}");
    world.expect_nothing_left();
}

/// One of two networks drops all packets: neither end gets an error, and TCP would send again for a quarter of an hour.
#[test]
fn a_network_that_swallows_everything_costs_seconds() {
    let Some(world) = World::with_hosts("a_network_that_swallows_everything_costs_seconds", 2) else { return };
    world.add_network(2);
    let mut command = role(&world, &["--hosts", "h1:1,h2:1"], "swallowed");
    // The time-out exceeds the test's limit.
    command.env("SYMRAIL_TIMEOUT_S", "600").env("SYMRAIL_NIC_LIST", "eth1,eth0");
    command.env("SYMRAIL_TRANSPORT", "libfabric").env("SYMRAIL_LIBFABRIC_PROVIDER", "tcp;ofi_rxm");
    let running = Running::start(command);
    while !running.line().contains("the first lane is used") {}
    world.swallow(2);
    let (code, out, err) = running.end(LIMIT);
    assert!(code == Some(0) && out.iter().any(|line| line.contains("all has arrived")), "{code:?} {out:?}\n{err}");
    assert!(err.contains("a rail has failed") && err.contains("10.93.0.1 to 10.93.0.2"), "{err}");
    world.expect_nothing_left();
}

/// A host whose shared memory is too small or read-only, as in containers: the error of provider shm names it.
#[test]
fn shared_memory_without_room_is_named() {
    let symrail = env!("CARGO_BIN_EXE_symrail");
    for (mount, parts) in [
        ("size=64k", &["/dev/shm, and 65536 are", "--shm-size"][..]),
        ("ro", &["Read-only file system", "is /dev/shm writable"]),
    ] {
        let there = format!("mount -t tmpfs -o {mount} none /dev/shm");
        let job = format!("{there} && exec {symrail} perf put-lat -n 2 --hosts 2 -b 8 -e 8");
        let inside = |line: &str| {
            let mut command = Command::new("unshare");
            command.args(["--map-root-user", "--mount", "sh", "-c", line]).stdin(Stdio::null());
            command.env("SYMRAIL_LIBFABRIC_PROVIDER", "shm").output()
        };
        let library = format!("mount -t tmpfs none /dev/shm && {symrail} info | grep -q '^  shm '");
        if !inside(&library).is_ok_and(|output| output.status.success()) {
            println!("SKIPPED: this needs libfabric with provider shm, and root or user namespaces");
            return;
        }
        let output = inside(&job).unwrap();
        let err = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && parts.iter().all(|part| err.contains(part)), "{mount}: {err}");
    }
}

#[test]
fn pes_on_other_hosts_have_the_directory_variables_input_and_output_of_those_here() {
    let name = "pes_on_other_hosts_have_the_directory_variables_input_and_output_of_those_here";
    let Some(world) = World::with_hosts(name, 2) else { return };
    let said =
        r#"echo "$SYMRAIL_LAUNCHER_PE $(pwd) $SYMRAIL_TIMEOUT_S $GIVEN $SET ${HIDDEN-none} $(wc -c)"; echo err >&2"#;
    let mut command = line(&world, &["--prefix", "--hosts", "h1,h2", "-x", "GIVEN", "-x", "SET=a b"], said);
    command.current_dir("/usr/lib").envs([("SYMRAIL_TIMEOUT_S", "77"), ("GIVEN", "given"), ("HIDDEN", "x")]);
    // More than is in flight at a time.
    let input = world.write("input", &"x".repeat(300_000));
    command.stdin(std::fs::File::open(input).unwrap());
    let (code, mut out, err) = run(command);
    out.sort();
    let expected = ["[0] 0 /usr/lib 77 given a b none 300000", "[1] 1 /usr/lib 77 given a b none 0"];
    assert_eq!((code, out), (Some(0), expected.map(str::to_owned).to_vec()), "{err}");
    let mut err: Vec<&str> = err.lines().collect();
    err.sort_unstable();
    assert_eq!(err, ["[0] err", "[1] err"]);
    // All bytes arrive unchanged.
    let bytes = line(&world, &["--hosts", "h1"], r"head -c 1000000 /dev/zero; printf '\377'").output().unwrap();
    assert_eq!((bytes.stdout.len(), bytes.stdout.last()), (1_000_001, Some(&255)));
    let command = line(&world, &["--hosts", "h1,h2"], "exec yes").stdout(Stdio::piped()).spawn();
    let mut endless = command.unwrap();
    drop(endless.stdout.take());
    assert_eq!(endless.wait().unwrap().code(), Some(141), "as the PEs by themselves: SIGPIPE");
    world.expect_nothing_left();
}

#[test]
fn a_pe_that_fails_ends_the_job_on_all_hosts() {
    let Some(world) = World::with_hosts("a_pe_that_fails_ends_the_job_on_all_hosts", 2) else { return };
    for (role_name, code, words) in [
        ("die", 137, ["symrail run: PE 2 on h2 (pid ", "was killed by signal 9 (SIGKILL)"]),
        ("fail", 9, ["symrail run: PE 3 on h2 (pid ", "exited with code 9"]),
    ] {
        let (ended, _, err) = run(role(&world, &["--hosts", "h1:2,h2:2"], role_name));
        let blame = err.lines().find(|line| line.starts_with("symrail run: ")).unwrap_or("");
        assert!(ended == Some(code) && words.iter().all(|words| blame.contains(words)), "{ended:?} {err}");
        world.expect_nothing_left();
    }
    // A shell, and processes that it has started.
    let stays = r#"trap "" TERM; [ $SYMRAIL_LAUNCHER_PE = 1 ] && exit 5; sleep 600 & setsid -w sleep 600"#;
    let (code, _, err) = run(line(&world, &["--hosts", "h1,h2"], stays));
    assert!(code == Some(5) && err.contains("PE 1 on h2 (pid "), "{err}");
    world.expect_nothing_left();
    let (code, _, err) = run(line(&world, &["--hosts", "h1,h2"], "exit 0"));
    assert_eq!((code, err.as_str()), (Some(0), ""));
    let mut command = world.symrail(&["--hosts", "h1,h2"]);
    command.arg("no-such-program-anywhere");
    let (code, _, err) = run(command);
    assert!(
        code == Some(127) && err.contains(": no-such-program-anywhere cannot be started") && err.contains(" on h"),
        "{err}"
    );
    world.expect_nothing_left();
}

#[test]
fn a_pe_that_is_killed_on_any_host_is_named_before_those_that_abort_the_job() {
    let name = "a_pe_that_is_killed_on_any_host_is_named_before_those_that_abort_the_job";
    let Some(world) = World::with_hosts(name, 2) else { return };
    for victim in 0..3 {
        let running = Running::start(role(&world, &["--hosts", "h1:1,h2:2"], "put for ever"));
        let lines: Vec<String> =
            std::iter::repeat_with(|| running.line()).filter(|it| it.contains(" pid ")).take(3).collect();
        let begins = format!("PE {victim} of 3 ");
        let pid = lines.iter().find(|line| line.contains(&begins)).and_then(|line| line.rsplit(' ').next()).unwrap();
        kill(Pid::from_raw(pid.parse().unwrap()), Signal::SIGKILL).unwrap();
        let (code, _, err) = running.end(LIMIT);
        let first = err.lines().find_map(|line| line.strip_prefix("symrail run: ")).unwrap_or("");
        let host = if victim == 0 { "h1" } else { "h2" };
        let expected = format!("PE {victim} on {host} (pid {pid}) was killed by signal 9 (SIGKILL)");
        assert!(code == Some(137) && first.starts_with(&expected), "{expected}: {code:?}\n{err}");
        world.expect_nothing_left();
    }
}

#[test]
fn ctrl_c_ends_the_job_on_all_hosts() {
    let Some(world) = World::with_hosts("ctrl_c_ends_the_job_on_all_hosts", 2) else { return };
    for (signal, code) in [(Signal::SIGINT, 130), (Signal::SIGTERM, 143)] {
        let running = Running::start(role(&world, &["--hosts", "h1:2,h2:2"], "wait"));
        (0..4).for_each(|_| while !running.line().contains("PE ") {});
        kill(running.pid(), signal).unwrap();
        let (ended, _, err) = running.end(LIMIT);
        assert!(ended == Some(code) && err.contains(&format!("passing {signal} on")), "{ended:?} {err}");
        world.expect_nothing_left();
    }
    // The second signal kills a PE that ignores the first.
    let deaf = r#"trap "echo heard" INT; trap "" TERM; echo ready; while :; do sleep 0.1; done"#;
    let running = Running::start(line(&world, &["--hosts", "h1,h2"], deaf));
    for said in ["ready", "heard"] {
        assert_eq!([running.line(), running.line()], [said, said]);
        kill(running.pid(), Signal::SIGINT).unwrap();
    }
    let (code, _, err) = running.end(LIMIT);
    assert!(code == Some(130) && err.contains("SIGINT again"), "{err}");
    world.expect_nothing_left();
    let on_usr1 = r#"trap "echo usr1; exit 0" USR1; echo ready; while :; do sleep 0.1; done"#;
    let running = Running::start(line(&world, &["--hosts", "h1,h2"], on_usr1));
    assert_eq!([running.line(), running.line()], ["ready", "ready"]);
    kill(running.pid(), Signal::SIGUSR1).unwrap();
    let (code, out, _) = running.end(LIMIT);
    assert_eq!((code, out), (Some(0), vec!["usr1".to_owned(); 2]));
}

#[test]
fn nothing_outlives_a_killed_launcher_or_ssh() {
    let Some(world) = World::with_hosts("nothing_outlives_a_killed_launcher_or_ssh", 2) else { return };
    // One PE is the program, one has a shell between, one has also left its session.
    let stays = r#"echo ready; case $SYMRAIL_LAUNCHER_PE in
        0) exec sleep 600;; 1) sleep 600; true;; *) setsid -w sleep 600; true;; esac"#;
    let start = || {
        let running = Running::start(line(&world, &["--hosts", "h1,h2:2"], stays));
        (0..3).for_each(|_| assert_eq!(running.line(), "ready"));
        running
    };
    let running = start();
    kill(running.pid(), Signal::SIGKILL).unwrap();
    assert_eq!(running.end(LIMIT).0, None);
    world.expect_nothing_left();
    let killed = |words: [&str; 2]| {
        let found = world.others().into_iter().find(|(_, line)| words.iter().all(|words| line.contains(words)));
        let (pid, _) = found.unwrap_or_else(|| panic!("{words:?}: {:?}", world.others()));
        kill(Pid::from_raw(pid.cast_signed()), Signal::SIGKILL).unwrap();
    };
    // The client, the daemon's process for it, the agent.
    for words in [["ssh -T", " h2 "], ["sshd: root@notty", ""], ["symrail agent", ""]] {
        let running = start();
        killed(words);
        let (code, _, err) = running.end(LIMIT);
        assert!(code == Some(1) && err.contains("was lost with the connection to its host"), "{code:?} {err}");
        assert_eq!(err.matches("was lost").count(), 1, "{err}");
        world.expect_nothing_left();
    }
}

#[test]
fn hosts_on_which_nothing_can_be_started_are_named() {
    let Some(world) = World::with_hosts("hosts_on_which_nothing_can_be_started_are_named", 2) else { return };
    world.add_silent("gone");
    let other = world.write("other", "#!/bin/sh\necho Welcome\necho symrail-agent 9.9.9 7 -\nexec cat\n");
    shell(&format!("chmod +x {}", other.display()));
    let no_login = "Host h1\n HostName 10.92.0.1\n IdentityFile /dev/null\n StrictHostKeyChecking no\n UserKnownHostsFile /dev/null\n";
    let no_login = world.write("no-login", no_login);
    let no_login = format!("ssh -T -F {}", no_login.display());
    let cases: [(&[&str], i32, &str); 7] = [
        (&["--hosts", "h1,gone"], 1, "host gone: symrail there has not answered within 5 s"),
        (&["--hosts", "h1,nowhere.invalid"], 1, "host nowhere.invalid: cannot log in; `ssh -T -F "),
        (&["--ssh", &no_login, "--hosts", "h1"], 1, "host h1: cannot log in"),
        (&["--symrail", "/no/symrail", "--hosts", "h2,h1"], 1, ": /no/symrail cannot be run there; install Symrail"),
        (&["--symrail", other.to_str().unwrap(), "--hosts", "h1"], 1, "host h1: symrail there is version 9.9.9"),
        (&["--address", "10.92.0.200", "--hosts", "h1"], 1, "10.92.0.200"),
        (&["--ssh", "no-such-ssh", "--hosts", "h1"], 1, "host h1: no-such-ssh cannot be started"),
    ];
    for (options, code, why) in cases {
        let mut command = line(&world, options, "echo started");
        command.env("SYMRAIL_TIMEOUT_S", if options.contains(&"h1,gone") { "5" } else { "30" });
        let (ended, out, err) = run(command);
        assert!(ended == Some(code) && err.contains(why), "{options:?}: {ended:?} {err}");
        assert!(out.is_empty(), "{out:?}");
        world.expect_nothing_left();
    }
    let mut command = line(&world, &["--hosts", "h1"], "echo started");
    command.current_dir(world.only_here());
    let (code, _, err) = run(command);
    assert!(code == Some(1) && err.contains("start the job in a directory that all its hosts have"), "{err}");
}

#[test]
fn an_interrupt_while_hosts_are_reached_ends_it() {
    let Some(world) = World::with_hosts("an_interrupt_while_hosts_are_reached_ends_it", 1) else { return };
    world.add_silent("gone");
    let running = Running::start(line(&world, &["--hosts", "h1,gone"], "echo started"));
    let deadline = Instant::now() + LIMIT;
    while !world.others().iter().any(|(_, line)| line.contains("symrail agent")) {
        assert!(Instant::now() < deadline, "{:?}", world.others());
        std::thread::sleep(Duration::from_millis(1));
    }
    kill(running.pid(), Signal::SIGINT).unwrap();
    let (code, out, err) = running.end(LIMIT);
    assert_eq!((code, out.len()), (Some(130), 0), "{err}");
    world.expect_nothing_left();
}

#[test]
fn the_secret_is_in_no_command_line_and_no_environment() {
    let Some(world) = World::with_hosts("the_secret_is_in_no_command_line_and_no_environment", 1) else { return };
    let (code, out, err) = run(role(&world, &["--hosts", "h1:2"], "secret"));
    assert_eq!(code, Some(0), "{err}");
    let looked_at = out.iter().filter_map(|line| line.split_once("looked at ")?.1.parse::<u32>().ok());
    // The test, launcher, ssh, sshd, agent and PEs.
    assert!(looked_at.min().is_some_and(|least| least >= 12), "{out:?}");
}
