//! C and C++ programs that `symrail cc` compiles; they verify the interface while they use it.
#![allow(clippy::unwrap_used, clippy::panic, missing_docs)]

use std::process::Command;

use crate::support::{LAYOUTS, Layout, built, command, compile, job, missing, run, run_well};

#[test]
fn collectives_compute_what_they_say_mapped() {
    let Some(program) = compile("collectives.c") else { return };
    for pes in [2, 3, 5, 8] {
        run_well(&program, pes, Layout::Mapped);
    }
}

#[test]
fn collectives_compute_what_they_say_on_the_wire() {
    let Some(program) = compile("collectives.c") else { return };
    for pes in [2, 3, 5, 8] {
        run_well(&program, pes, Layout::Wire);
    }
}

#[test]
fn collectives_agree_where_algorithms_change_and_hosts_differ() {
    let Some(program) = compile("crossovers.c") else { return };
    for (pes, hosts) in [(2, 2), (3, 3), (4, 4), (8, 8), (4, 2), (5, 2), (7, 3), (8, 2)] {
        run_well(&program, pes, Layout::Hosts(hosts));
    }
    for pes in [3, 6] {
        run_well(&program, pes, Layout::Mapped);
    }
    run_well(&program, 5, Layout::Wire);
}

#[test]
fn a_nan_on_any_pe_is_the_minimum_and_the_maximum() {
    let Some(program) = compile("nan.c") else { return };
    for (pes, layout) in [(2, Layout::Mapped), (3, Layout::Mapped), (3, Layout::Wire), (4, Layout::Hosts(2))] {
        run_well(&program, pes, layout);
    }
}

#[test]
fn a_peer_connected_ahead_is_not_connected_again_when_addressed() {
    let Some(program) = compile("connect.c") else { return };
    for ahead in ["nobody", "all", "team"] {
        let outcome = run(&program, &[ahead], 8, Layout::Hosts(8), &[]);
        assert_eq!(outcome.code, Some(0), "{ahead}: {}", outcome.said);
    }
    assert_eq!(run(&program, &["all"], 2, Layout::Mapped, &[]).code, Some(0));
}

#[test]
fn c11_generics_and_cxx_overloads_choose_the_type() {
    for name in ["generics.c", "overloads.cpp"] {
        let Some(program) = compile(name) else { return };
        for layout in LAYOUTS {
            for pes in [2, 4] {
                run_well(&program, pes, layout);
            }
        }
    }
}

#[test]
fn locks_exclude_other_pes_also_while_their_holder_tests_them() {
    let Some(program) = compile("locks.c") else { return };
    for layout in LAYOUTS {
        for pes in [1, 2, 4] {
            run_well(&program, pes, layout);
        }
    }
}

#[test]
fn kernels_without_a_gpu_are_an_error_that_says_so() {
    if std::path::Path::new("/dev/nvidiactl").exists() {
        println!("SKIPPED: this machine has a GPU; scripts/gpu.sh runs kernels on it");
        return;
    }
    let Some(program) = compile("device.c") else { return };
    for layout in LAYOUTS {
        let outcome = run(&program, &[], 2, layout, &[]);
        assert_eq!(outcome.code, Some(0), "{}", outcome.said);
        assert!(outcome.said.contains("shmemx_device_attach: "), "{}", outcome.said);
        assert!(outcome.said.contains("no CUDA driver"), "{}", outcome.said);
        assert!(outcome.said.contains("2 PEs without GPUs"), "{}", outcome.said);
    }
}

#[test]
fn variables_of_the_program_are_symmetric() {
    let Some(program) = compile("statics.c") else { return };
    for layout in LAYOUTS {
        for pes in [1, 2, 4] {
            run_well(&program, pes, layout);
        }
    }
}

#[test]
fn two_arrays_in_turn_need_no_barrier() {
    let Some(program) = compile("arrays_in_turn.c") else { return };
    for (pes, layout) in [(4, Layout::Mapped), (3, Layout::Wire), (4, Layout::Hosts(2))] {
        for threads in ["single", "threads"] {
            let outcome = run(&program, &[threads], pes, layout, &[]);
            assert_eq!(outcome.code, Some(0), "{pes} PEs, {layout:?}, {threads}: {}", outcome.said);
        }
    }
}

#[test]
fn a_root_gets_ahead_of_a_late_pe_as_far_as_its_tree_is_deep() {
    let Some(program) = compile("run_ahead.c") else { return };
    for (pes, layout) in
        [(2, Layout::Mapped), (4, Layout::Mapped), (6, Layout::Mapped), (8, Layout::Mapped), (4, Layout::Wire)]
    {
        run_well(&program, pes, layout);
    }
}

#[test]
fn variables_that_are_not_used_take_no_memory() {
    let Some(program) = compile("large_statics.c") else { return };
    for layout in LAYOUTS {
        run_well(&program, 2, layout);
    }
}

#[test]
fn a_thread_with_a_small_stack_can_make_all_calls() {
    let Some(program) = compile("small_stack.c") else { return };
    for layout in LAYOUTS {
        run_well(&program, 2, layout);
    }
}

#[test]
fn threads_have_contexts_of_their_own() {
    let Some(program) = compile("threads.c") else { return };
    for layout in LAYOUTS {
        for pes in [2, 4] {
            run_well(&program, pes, layout);
        }
    }
}

#[test]
fn a_context_does_not_wait_for_what_another_has_under_way() {
    let Some(program) = compile("contexts.c") else { return };
    run_well(&program, 3, Layout::Wire);
}

#[test]
fn contexts_end_with_their_team() {
    teams("contexts", 2, &LAYOUTS);
}

#[test]
fn a_split_in_rows_and_columns_makes_both_teams_or_none() {
    teams("full", 4, &[Layout::Mapped, Layout::Hosts(2)]);
}

#[test]
fn no_team_has_no_pointers() {
    teams("none", 2, &LAYOUTS);
}

/// Runs a part of `teams.c`.
fn teams(part: &str, pes: u32, layouts: &[Layout]) {
    let Some(program) = compile("teams.c") else { return };
    for &layout in layouts {
        let outcome = run(&program, &[part], pes, layout, &[]);
        assert_eq!(outcome.code, Some(0), "{part}, {layout:?}: {}", outcome.said);
    }
}

#[test]
fn a_put_behind_another_goes_out_although_its_pe_computes() {
    let Some(program) = compile("left_behind.c") else { return };
    run_well(&program, 2, Layout::Wire);
}

#[test]
fn mpirun_starts_c_programs() {
    let Some(program) = compile("statics.c") else { return };
    if missing("mpirun") {
        return;
    }
    let root = ("OMPI_ALLOW_RUN_AS_ROOT", "1");
    let really = ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
    for p2p in ["0", "1"] {
        let mut mpirun = command("mpirun");
        mpirun.args(["--oversubscribe", "--timeout", "120", "-n", "4"]).arg(&program).envs([root, really]);
        let outcome = job(mpirun.env("SYMRAIL_DISABLE_P2P", p2p));
        assert_eq!(outcome.code, Some(0), "{}", outcome.said);
        // The launcher started one job of four PEs, not four jobs of one.
        assert!(outcome.said.contains("4 PEs share their variables"), "{}", outcome.said);
    }
}

#[test]
fn programs_tell_what_they_are_linked_with() {
    let Some(program) = compile("statics.c") else { return };
    // Our variable has precedence, but an empty one counts as unset.
    let sizes = [("SHMEM_SYMMETRIC_SIZE", "16M"), ("SYMRAIL_HEAP_SIZE", "")];
    let outcome = run(&program, &[], 2, Layout::Mapped, &[("SHMEM_INFO", "1"), sizes[0], sizes[1]]);
    assert_eq!(outcome.code, Some(0), "{}", outcome.said);
    assert_eq!(outcome.said.matches(": OpenSHMEM 1.5").count(), 1, "PE 0 alone: {}", outcome.said);
    assert!(outcome.said.contains("SHMEM_SYMMETRIC_SIZE  the"), "{}", outcome.said);
    // The program asked for 16M, and its variables are added; the default is 512M.
    let heap =
        outcome.said.split("symmetric heaps of ").nth(1).and_then(|rest| rest.split(' ').next()?.parse::<usize>().ok());
    assert!(heap.is_some_and(|bytes| (16 << 20..512 << 20).contains(&bytes)), "{}", outcome.said);
}

#[test]
fn a_program_has_all_of_the_heap_that_it_asked_for() {
    let Some(program) = compile("whole_heap.c") else { return };
    for pes in [1, 4] {
        let outcome = run(&program, &[], pes, Layout::Mapped, &[("SHMEM_SYMMETRIC_SIZE", "16M")]);
        assert_eq!(outcome.code, Some(0), "{}", outcome.said);
    }
}

#[test]
fn the_heap_size_is_read_as_the_specification_says() {
    let Some(program) = compile("teams.c") else { return };
    let heap = |env: &[(&str, &str)]| {
        let outcome = run(&program, &["none"], 1, Layout::Mapped, &[&[("SMA_INFO", "1")], env].concat());
        let said = outcome.said.split("symmetric heaps of ").nth(1).and_then(|rest| rest.split(' ').next());
        let size = said.and_then(|size| size.parse::<usize>().ok());
        (outcome.code == Some(0)).then_some(size).flatten().ok_or(outcome.said)
    };
    // What the runtime adds for itself.
    let own = heap(&[("SHMEM_SYMMETRIC_SIZE", "0")]).unwrap();
    let sizes =
        [("20m", 20 << 20), ("20kk", 20 << 10), (".5M etc.", 512 << 10), ("3.1M", 3_250_586), ("1e6", 1_000_000)];
    for (text, bytes) in sizes {
        assert_eq!(heap(&[("SHMEM_SYMMETRIC_SIZE", text)]), Ok(own + bytes), "{text}");
    }
    assert_eq!(heap(&[("SMA_SYMMETRIC_SIZE", "20m")]), Ok(own + (20 << 20)));
    assert_eq!(heap(&[("SMA_SYMMETRIC_SIZE", "20m"), ("SHMEM_SYMMETRIC_SIZE", "30m")]), Ok(own + (30 << 20)));
    for text in ["-1", "m", "20x", "inf", "nan"] {
        let refused = heap(&[("SMA_SYMMETRIC_SIZE", text)]).unwrap_err();
        assert!(refused.contains(&format!("SMA_SYMMETRIC_SIZE={text}: not accepted")), "{text}: {refused}");
    }
}

#[test]
fn the_wrapper_shows_what_it_would_do() {
    let output = Command::new(built().join("symrail")).args(["cc", "--show", "-c", "a.c"]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(said.contains("-I") && said.trim_end().ends_with("-c a.c"), "{said}");
}
