//! Collectives of devices, on several paths from PE to PE.
#![allow(clippy::unwrap_used, missing_docs)]

use std::process::Command;
use std::time::Duration;

use symrail_collectives::build::{Shape, all_reduce};
use symrail_collectives::plan::Document;
use symrail_tests::job::{Job, built};
use symrail_tests::path::{MAPPED, ONE_RAIL, Path, ROUND_ROBIN};

fn everything(path: Path, pes: u32, hosts: u32) {
    let outcome = path.of(Job::new("pe_collectives"), pes).hosts(hosts).limit(120).succeed();
    println!("{}, {pes} PEs: {:?}", path.name, outcome.elapsed);
}

#[test]
fn mapped() {
    for pes in [1, 2, 3, 8] {
        everything(MAPPED, pes, 1);
    }
}

#[test]
fn over_one_rail() {
    everything(ONE_RAIL, 3, 2);
}

#[test]
fn over_two_rails() {
    everything(ROUND_ROBIN, 4, 2);
}

#[test]
fn everybody_alone_on_a_host() {
    everything(ROUND_ROBIN, 3, 3);
}

#[test]
fn teams_by_themselves() {
    for path in [MAPPED, ONE_RAIL] {
        let _ = path.of(Job::new("pe_collectives"), 5).args(["teams"]).limit(60).succeed();
    }
}

#[test]
fn flags_come_round() {
    let _ = MAPPED.of(Job::new("pe_collectives"), 3).args(["flags"]).succeed();
    let _ = ONE_RAIL.of(Job::new("pe_collectives"), 2).args(["flags"]).succeed();
}

#[test]
fn who_does_not_come_is_named() {
    let job = MAPPED.of(Job::new("pe_collectives"), 3).args(["late"]);
    let outcome = job.env("SYMRAIL_TIMEOUT_S", "2").succeed();
    assert!(outcome.out.contains("PE 1 is late or gone"), "{}", outcome.out);
}

#[test]
fn two_pes_learn_that_the_third_was_killed_in_a_call() {
    for path in [MAPPED, ONE_RAIL] {
        let mut command = Command::new(built("pe_collectives"));
        command.arg("killed");
        let outcome = path.of_command(command, &[("SYMRAIL_TIMEOUT_S", "2")], Duration::from_secs(40));
        assert!((0..2).all(|pe| outcome.out.contains(&format!("PE {pe} is through"))), "{}: {outcome:#?}", path.name);
        assert_eq!(outcome.code, Some(0), "{}: {outcome:#?}", path.name);
    }
}

#[test]
fn who_is_killed_is_named() {
    for path in [MAPPED, ONE_RAIL] {
        let timeout = [("SYMRAIL_TIMEOUT_S", "3")];
        let outcome = path.of_command(Command::new(built("pe_collective_lost")), &timeout, Duration::from_secs(60));
        for pe in 0..2 {
            assert!(outcome.out.contains(&format!("PE {pe} is told: ")), "{}: {outcome:#?}", path.name);
        }
        assert_eq!(outcome.code, Some(0), "{}: {outcome:#?}", path.name);
    }
}

/// Plans with the operations that our own algorithms do without.
#[test]
fn plans_of_users() {
    for plan in ["copies", "packets"] {
        let file = format!("{}/plans/{plan}.json", env!("CARGO_MANIFEST_DIR"));
        for path in [MAPPED, ONE_RAIL] {
            let job = path.of(Job::new("pe_plan"), 2).args([&file, "8", "40", "5000", "100000"]);
            let outcome = job.succeed();
            assert!(outcome.out.contains("right"), "{plan}, {}: {}", path.name, outcome.out);
        }
    }
}

#[test]
fn default_plans_come_first() {
    let folder = std::env::temp_dir().join(format!("symrail-plans-{}", std::process::id()));
    let plan = Document { name: "of-the-folder".into(), ..all_reduce::two_phase(&Shape::one_host(2, 1)) };
    std::fs::create_dir_all(folder.join("default")).unwrap();
    std::fs::write(folder.join("default/plan.json"), serde_json::to_string(&plan).unwrap()).unwrap();
    let job = || MAPPED.of(Job::new("pe_collectives"), 2).args(["defaults"]);
    let same = job().env("SYMRAIL_CACHE_DIR", folder.to_str().unwrap()).succeed().out;
    let none = job().succeed().out;
    std::fs::remove_dir_all(&folder).unwrap();
    assert_eq!(same.matches("of-the-folder: chosen").count(), 2, "{same}");
    assert_eq!(none.matches("OneShot with 1 blocks: chosen").count(), 2, "{none}");
}
