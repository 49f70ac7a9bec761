//! Collectives of devices, on several paths from PE to PE.
#![allow(clippy::unwrap_used, missing_docs)]

use std::process::Command;
use std::time::Duration;

use symrail_collectives::build::{Shape, all_reduce, moves};
use symrail_collectives::plan::Document;
use symrail_collectives::tuning::{Row, Table, Way};
use symrail_tests::job::{Job, built, pe};
use symrail_tests::path::{MAPPED, ONE_RAIL, Path, ROUND_ROBIN};

fn everything(path: Path, pes: u32, hosts: u32) {
    let outcome = path.of(Job::new("collectives"), pes).hosts(hosts).limit(120).succeed();
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
fn each_pe_on_a_host_of_its_own() {
    everything(ROUND_ROBIN, 3, 3);
}

#[test]
fn teams_by_themselves() {
    for path in [MAPPED, ONE_RAIL] {
        let _ = path.of(Job::new("collectives"), 5).args(["teams"]).limit(60).succeed();
    }
}

#[test]
fn flags_come_round() {
    let _ = MAPPED.of(Job::new("collectives"), 3).args(["flags"]).succeed();
    let _ = ONE_RAIL.of(Job::new("collectives"), 2).args(["flags"]).succeed();
}

#[test]
fn a_pe_that_does_not_arrive_is_named() {
    let job = MAPPED.of(Job::new("collectives"), 3).args(["late"]);
    let outcome = job.env("SYMRAIL_TIMEOUT_S", "5").succeed();
    assert!(outcome.out.contains("PE 1 is late or gone"), "{}", outcome.out);
}

#[test]
fn both_ends_of_a_transfer_are_told_that_their_sizes_differ() {
    for path in [MAPPED, ONE_RAIL, ROUND_ROBIN] {
        let job = path.of(Job::new("collectives"), 2).hosts(if path.name == MAPPED.name { 1 } else { 2 });
        let _ = job.args(["sizes"]).env("SYMRAIL_TIMEOUT_S", "10").limit(90).succeed();
    }
}

#[test]
fn two_pes_learn_that_the_third_was_killed_in_a_call() {
    for path in [MAPPED, ONE_RAIL] {
        let mut command = pe("collectives");
        command.arg("killed");
        let outcome = path.of_command(command, &[("SYMRAIL_TIMEOUT_S", "5")], Duration::from_secs(90));
        assert!((0..2).all(|pe| outcome.out.contains(&format!("PE {pe} is through"))), "{}: {outcome:#?}", path.name);
        assert_eq!(outcome.code, Some(0), "{}: {outcome:#?}", path.name);
    }
}

#[test]
fn a_killed_pe_is_named() {
    for path in [MAPPED, ONE_RAIL] {
        let timeout = [("SYMRAIL_TIMEOUT_S", "5")];
        let outcome = path.of_command(pe("collective_lost"), &timeout, Duration::from_secs(90));
        for pe in 0..2 {
            assert!(outcome.out.contains(&format!("PE {pe} is told: ")), "{}: {outcome:#?}", path.name);
        }
        assert_eq!(outcome.code, Some(0), "{}: {outcome:#?}", path.name);
    }
}

/// Plans with operations that the built-in algorithms do not use.
#[test]
fn plans_of_users() {
    for plan in ["copies", "packets"] {
        let file = format!("{}/plans/{plan}.json", env!("CARGO_MANIFEST_DIR"));
        for path in [MAPPED, ONE_RAIL] {
            let job = path.of(Job::new("plan"), 2).args([&file, "8", "40", "5000", "100000"]);
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
    let job = || MAPPED.of(Job::new("collectives"), 2).args(["defaults"]);
    let same = job().env("SYMRAIL_CACHE_DIR", folder.to_str().unwrap()).succeed().out;
    let none = job().succeed().out;
    std::fs::remove_dir_all(&folder).unwrap();
    assert_eq!(same.matches("of-the-folder: chosen").count(), 2, "{same}");
    assert_eq!(none.matches("one_shot with 1 blocks: chosen").count(), 2, "{none}");
}

#[test]
fn default_plans_of_broadcasts_and_reductions_are_for_their_roots() {
    let folder = std::env::temp_dir().join(format!("symrail-rooted-{}", std::process::id()));
    std::fs::create_dir_all(folder.join("default")).unwrap();
    let shape = Shape::one_host(2, 1);
    for (name, document) in [("from-1", moves::broadcast(&shape, 1)), ("to-0", moves::reduce(&shape, 0))] {
        let text = serde_json::to_string(&Document { name: name.into(), ..document }).unwrap();
        std::fs::write(folder.join(format!("default/{name}.json")), text).unwrap();
    }
    let job = MAPPED.of(Job::new("collectives"), 2).args(["rooted"]);
    let out = job.env("SYMRAIL_CACHE_DIR", folder.to_str().unwrap()).succeed().out;
    std::fs::remove_dir_all(&folder).unwrap();
    for line in [
        "Broadcast of PE 0: broadcast from rank 0 with 1 blocks: chosen",
        "Broadcast of PE 1: from-1: chosen",
        "Reduce of PE 0: to-0: chosen",
        "Reduce of PE 1: reduce to rank 1 with 1 blocks: chosen",
    ] {
        assert_eq!(out.matches(line).count(), 2, "{line}: {out}");
    }
}

/// Prefers puts for messages of every size.
fn table(pes: usize) -> Table {
    let way = Way { algorithm: "by_puts".into(), blocks: 2, chunk: None };
    let row = Row { collective: "allreduce".into(), up_to: None, way, microseconds: None };
    Table { device: "cpu".into(), pes, hosts: 1, rows: vec![row] }
}

#[test]
fn a_table_that_all_have_is_taken() {
    let folder = std::env::temp_dir().join(format!("symrail-tables-{}", std::process::id()));
    let written = |name: &str, table: &Table| {
        let file = Table::file(&folder.join(name), "cpu", 3, 1);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(&file, serde_json::to_string(table).unwrap()).unwrap();
        folder.join(name).to_str().unwrap().to_owned()
    };
    let (tuned, foreign) = (written("tuned", &table(3)), written("foreign", &table(2)));
    let job = |cache: &str| MAPPED.of(Job::new("collectives"), 3).env("SYMRAIL_CACHE_DIR", cache);
    let all = job(&tuned).args(["defaults"]).succeed().out;
    let off = job(&tuned).args(["defaults"]).env("SYMRAIL_TUNING", "off").succeed().out;
    // Only PE 0 finds it.
    let one = job("tuned").args(["defaults", folder.to_str().unwrap()]).succeed().out;
    let wrong = job(&foreign).args(["defaults"]).succeed().out;
    std::fs::remove_dir_all(&folder).unwrap();
    let own = "one_shot with 1 blocks: chosen, for one host";
    let by_table =
        |out: &str| out.lines().filter(|line| line.contains("by_puts with 2 blocks: chosen, by table ")).count();
    assert_eq!((by_table(&all), all.matches("row 1: allreduce of any size").count()), (3, 3), "{all}");
    assert_eq!((by_table(&off), off.matches(own).count()), (0, 3), "{off}");
    assert_eq!((by_table(&one), one.matches(own).count()), (0, 3), "{one}");
    assert_eq!(one.matches("not taken, PE 1 has none").count(), 1, "{one}");
    assert_eq!(one.matches("the table of PE 0: not taken, this PE has none").count(), 2, "{one}");
    assert_eq!((by_table(&wrong), wrong.matches(own).count()), (0, 3), "{wrong}");
    assert_eq!(wrong.matches("it is for cpu, 2 PEs on 1 hosts, and not for cpu, 3 on 1").count(), 3, "{wrong}");
}

#[test]
fn what_tune_writes_is_taken() {
    let folder = std::env::temp_dir().join(format!("symrail-tuned-{}", std::process::id()));
    let mut command = Command::new(built("symrail"));
    command.args(["tune", "-n", "2", "-b", "1K", "-e", "4K", "-i", "2"]);
    let cache = [("SYMRAIL_CACHE_DIR", folder.to_str().unwrap())];
    let outcome = MAPPED.of_command(command, &cache, Duration::from_secs(60));
    assert_eq!(outcome.code, Some(0), "{outcome:#?}");
    let text = std::fs::read_to_string(Table::file(&folder, "cpu", 2, 1)).unwrap();
    let table: Table = serde_json::from_str(&text).unwrap();
    let of = |name: &str| table.rows.iter().filter(|row| row.collective == name).count();
    for name in ["allreduce", "allgather", "reducescatter", "alltoall", "broadcast", "reduce"] {
        assert!(of(name) > 0, "{name}: {text}");
    }
    let job = MAPPED.of(Job::new("collectives"), 2).args(["defaults"]);
    let taken = job.env("SYMRAIL_CACHE_DIR", cache[0].1).succeed().out;
    std::fs::remove_dir_all(&folder).unwrap();
    assert_eq!(taken.matches("chosen, by table ").count(), 2, "{taken}");
}
