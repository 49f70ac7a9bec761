//! Mistakes of programs: each gives a message that names the function and the cause, and an exit code; none crashes or
//! hangs.
#![allow(clippy::unwrap_used, clippy::panic, missing_docs)]

use crate::support::{self, LAYOUTS, Layout, compile, each, folder, run};

/// Memory that a call would access and that is not there.
const BEHIND: &str = "are not in the symmetric heap's memory";

/// Mistakes of `misuse.c`, and parts of their messages.
const MISTAKES: &[(&str, &[&str])] = &[
    ("before_init", &["shmem_my_pe: called before shmem_init"]),
    ("wrong_pe", &["shmem_int_p: PE 2 does not exist: the job has PEs 0 to 1"]),
    ("negative_pe", &["shmem_int_atomic_fetch_add: PE -1 does not exist"]),
    ("wrong_pe_of_context", &["shmem_ctx_int_put: PE 2 does not exist: the context's team has PEs 0 to 1"]),
    ("not_symmetric", &["shmem_int_p: put", "are not in the symmetric heap"]),
    ("half_symmetric", &["shmem_putmem: put", "are not in the symmetric heap"]),
    ("null_source", &["shmem_int_put: source is a null pointer"]),
    ("null_dest", &["shmem_int_get: dest is a null pointer"]),
    ("null_target", &["shmem_int_put: put", "are not in the symmetric heap"]),
    ("null_wait", &["shmem_int_wait_until: ivar is a null pointer"]),
    ("misaligned", &["shmem_int_atomic_fetch: ", "align"]),
    ("second_init", &["shmem_init: OpenSHMEM is initialised already"]),
    ("after_finalize", &["shmem_barrier_all: called after shmem_finalize"]),
    ("second_finalize", &["shmem_finalize: called after shmem_finalize"]),
    ("comparison", &["shmem_int_wait_until: 99 is no comparison"]),
    ("signal", &["shmem_int_put_signal: 7 is no signal operation"]),
    ("destroyed_context", &["shmem_ctx_int_p: the context does not exist"]),
    ("context_of_destroyed_team", &["shmem_ctx_int_p: the context does not exist; was it destroyed, or its team?"]),
    ("invalid_context", &["shmem_ctx_int_p: the context is SHMEM_CTX_INVALID"]),
    ("invalid_team", &["shmem_int_sum_reduce: the team is SHMEM_TEAM_INVALID"]),
    ("not_in_team", &["PE 1: shmem_int_sum_reduce: the team is SHMEM_TEAM_INVALID"]),
    ("root", &["shmem_int_broadcast: root 2 is not in the team, which has PEs 0 to 1"]),
    ("overlap", &["shmem_int_sum_reduce: dest (32 bytes at", "overlap"]),
    ("too_many", &["shmem_int_sum_reduce: reduce", "18446744073709551615 bytes", "are not in the symmetric heap"]),
    (
        "too_many_blocks",
        &["shmem_int_fcollect: fcollect", "18446744073709551615 bytes", "are not in the symmetric heap"],
    ),
    ("too_far_apart", &["shmem_int_alltoalls: alltoalls", "are not in the symmetric heap"]),
    ("behind_wait", &["shmem_long_wait_until: ", "8 bytes at", BEHIND]),
    ("behind_wait_any", &["shmem_int_wait_until_any: ", "16 bytes at", BEHIND]),
    ("behind_test", &["shmem_int_test: ", BEHIND]),
    ("behind_test_all", &["shmem_int_test_all: ", BEHIND]),
    ("behind_signal", &["shmem_signal_wait_until: ", BEHIND]),
    ("behind_signal_fetch", &["shmem_signal_fetch: ", BEHIND]),
    ("behind_p", &["shmem_int_p: put", "are not in the symmetric heap"]),
    ("behind_g", &["shmem_int_g: get", "are not in the symmetric heap"]),
    ("behind_amo", &["shmem_int_atomic_inc: amo", "are not in the symmetric heap"]),
    ("behind_source", &["shmem_putmem: ", "64 bytes at", BEHIND]),
    ("behind_dest", &["shmem_getmem: ", "64 bytes at", BEHIND]),
    ("behind_put_signal", &["shmem_putmem_signal: ", "8 bytes at", BEHIND]),
    ("behind_fetch", &["shmem_int_atomic_fetch_nbi: ", "4 bytes at", BEHIND]),
    ("behind_iput", &["shmem_int_iput: ", "28 bytes at", BEHIND]),
    ("behind_lock", &["shmem_set_lock: ", "are not in the symmetric heap"]),
    ("behind_sync", &["shmem_sync: amo", "are not in the symmetric heap"]),
    ("misaligned_sync", &["shmem_sync: amo", "align"]),
    ("misaligned_wait", &["shmem_long_wait_until: ivar is at", "is not aligned to 8 bytes"]),
    ("over_alltoallsmem", &["shmem_alltoallsmem: alltoalls on PE", BEHIND]),
    ("over_alltoallmem", &["shmem_alltoallmem: alltoall on PE", "16 bytes at", BEHIND]),
    ("over_broadcastmem", &["shmem_broadcastmem: broadcast on PE", "8 bytes at", BEHIND]),
    ("over_broadcast_dest", &["shmem_broadcastmem: broadcast on PE", "8 bytes at", BEHIND]),
    ("over_collectmem", &["shmem_collectmem: collect on PE", "8 bytes at", BEHIND]),
    ("over_fcollectmem", &["shmem_fcollectmem: fcollect on PE", "16 bytes at", BEHIND]),
    ("over_reduce", &["shmem_int_sum_reduce: reduce on PE", "16 bytes at", BEHIND]),
    ("over_scan", &["shmemx_int_sum_inscan: scan on PE", "16 bytes at", BEHIND]),
    ("over_broadcast64", &["shmem_broadcast64: broadcast on PE", "32 bytes at", BEHIND]),
    ("over_sum_to_all", &["shmem_int_sum_to_all: reduce on PE", "16 bytes at", BEHIND]),
    ("destroy_world", &["shmem_team_destroy: the predefined teams cannot be destroyed"]),
    ("active_set", &["shmem_int_sum_to_all: PE_start 0, logPE_stride 0, PE_size 3 is no set"]),
    ("overlap_of_set", &["shmem_int_sum_to_all: dest (32 bytes at", "overlap"]),
    ("free_middle", &["shmem_free: "]),
    ("free_static", &["shmem_free: "]),
    ("different_sizes", &["shmem_malloc: ", "1000", "2000"]),
    ("alignment", &["shmem_align: ", "alignment 24"]),
    ("lock_not_held", &["shmem_clear_lock: the lock is not held"]),
    ("lock_of_another", &["PE 1: shmem_clear_lock: the lock is not held by this PE"]),
    ("lock_not_zero", &["shmem_set_lock: the lock holds 0x7000000, so it was not set to 0"]),
    ("tested_lock_not_zero", &["shmem_test_lock: the lock holds 0x7000000, so it was not set to 0"]),
    ("lock_with_an_entry", &["shmem_set_lock: the lock holds 0x5, so it was not set to 0"]),
    ("lock_held_twice", &["shmem_set_lock: this PE holds the lock already"]),
    ("far_iput", &["shmem_int_iput: ", "18446744073709551615 bytes"]),
    ("far_iget", &["shmem_int_iget: ", "18446744073709551615 bytes"]),
    ("stride", &["shmem_int_iput: strides of 0 and 1 elements; they start at 1"]),
];

/// Mistakes that only `SYMRAIL_CHECK_COLLECTIVES` detects: most are calls that differ between PEs.
const CHECKED: &[(&str, &[&str])] = &[
    ("other_collective", &["broadcast of 16 bytes from root 0", "fcollect of 16 bytes"]),
    ("other_of_a_set", &["broadcast of 16 bytes from root 0", "fcollect of 16 bytes"]),
    ("other_root", &["broadcast of 16 bytes from root 0", "broadcast of 16 bytes from root 1"]),
    ("other_size", &["sum reduction of 16 bytes", "sum reduction of 20 bytes"]),
    ("other_operation", &["sum reduction of 16 bytes", "max reduction of 16 bytes"]),
    ("other_type", &["sum reduction of 16 bytes (int32)", "sum reduction of 16 bytes (float32)"]),
    ("other_type_of_alltoall", &["alltoall of 8 bytes (int32)", "alltoall of 8 bytes (int64)"]),
    (
        "other_type_of_broadcast",
        &["broadcast of 8 bytes from root 0 (uint32)", "broadcast of 8 bytes from root 0 (int32)"],
    ),
    ("other_type_of_collect", &["called collect (int32)", "called collect (float64)"]),
    ("other_type_of_a_team", &["max reduction of 16 bytes (int32)", "max reduction of 16 bytes (float32)"]),
    ("other_type_of_a_set", &["alltoall of 8 bytes (32-bit words)", "alltoall of 8 bytes (64-bit words)"]),
    ("other_type_of_sum_to_all", &["sum reduction of 16 bytes (int32)", "sum reduction of 16 bytes (float32)"]),
    ("other_strides", &["with strides of 1 and 1 (int32)", "with strides of 2 and 1 (int32)"]),
    ("overlap_of_collect", &["shmem_int_fcollect: dest (", " and source (32 bytes at", "overlap"]),
    ("overlap_of_fcollect64", &["shmem_fcollect64: dest (", " and source (32 bytes at", "overlap"]),
    ("barrier_or_not", &["called barrier_all", "alltoall of 4 bytes"]),
    ("memory_or_barrier", &["called barrier_all", "allocation of 80 bytes"]),
    ("end_or_barrier", &["called barrier_all", "called finalize"]),
];

#[test]
fn mistakes_are_named_and_end_the_job() {
    let Some(program) = compile("misuse.c") else { return };
    for layout in LAYOUTS {
        each(MISTAKES, |(mistake, parts)| {
            let outcome = run(&program, &[mistake], 2, layout, &[]);
            assert_eq!(outcome.code, Some(1), "{mistake}, {layout:?}: {}", outcome.said);
            for part in *parts {
                assert!(outcome.said.contains(part), "{mistake}, {layout:?}: not {part:?} in: {}", outcome.said);
            }
        });
    }
}

#[test]
fn what_was_printed_before_a_mistake_comes_out() {
    let Some(program) = compile("misuse.c") else { return };
    let file = folder("printed").join("file");
    let names = [file.to_str().unwrap()];
    for layout in LAYOUTS {
        for mistake in ["after_printing", "while_printing", "exit_after_printing"] {
            let outcome = run(&program, &[&[mistake], &names[..]].concat(), 2, layout, &[]);
            assert_eq!(outcome.code, Some(1), "{mistake}, {layout:?}: {}", outcome.said);
            assert!(outcome.said.contains("printed by PE 1"), "{mistake}, {layout:?}: {}", outcome.said);
        }
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "into a file");
    }
    let outcome = run(&program, &["stream_is_held"], 2, Layout::Mapped, &[]);
    assert_eq!(outcome.code, Some(1), "{}", outcome.said);
    assert!(outcome.said.contains("PE 1: shmem_long_p: PE 99 does not exist"), "{}", outcome.said);
}

#[test]
fn checked_collectives_name_what_differs() {
    let Some(program) = compile("misuse.c") else { return };
    for (pes, layout) in [(2, Layout::Mapped), (4, Layout::Mapped), (2, Layout::Wire)] {
        each(CHECKED, |(mistake, parts)| {
            let outcome = run(&program, &[mistake], pes, layout, &[("SYMRAIL_CHECK_COLLECTIVES", "1")]);
            assert_eq!(outcome.code, Some(1), "{mistake}, {pes} PEs, {layout:?}: {}", outcome.said);
            for part in *parts {
                assert!(outcome.said.contains(part), "{mistake}, {layout:?}: not {part:?} in: {}", outcome.said);
            }
        });
    }
    let Some(program) = compile("collectives.c") else { return };
    let outcome = run(&program, &[], 3, Layout::Mapped, &[("SYMRAIL_CHECK_COLLECTIVES", "1")]);
    assert_eq!(outcome.code, Some(0), "calls that do not differ: {}", outcome.said);
}

#[test]
fn programs_end_as_they_like() {
    let Some(program) = compile("misuse.c") else { return };
    for layout in LAYOUTS {
        let ends =
            [("none", 0), ("no_finalize", 0), ("others_call", 0), ("exhausted", 0), ("fork", 0), ("global_exit", 7)];
        for (end, code) in ends {
            let outcome = run(&program, &[end], 4, layout, &[]);
            assert_eq!(outcome.code, Some(code), "{end}, {layout:?}: {}", outcome.said);
            assert!(!outcome.said.contains("without finalizing"), "{end}, {layout:?}: {}", outcome.said);
        }
    }
}

#[test]
fn a_program_that_does_not_finalize_waits_for_a_late_pe() {
    let Some(program) = compile("ends.cpp") else { return };
    for layout in LAYOUTS {
        let ways = [
            ("return", "finalize"),
            ("exit", "finalize"),
            ("handler", "a barrier"),
            ("handler_before_init", "finalize"),
            ("static", "a barrier"),
            ("static_before_init", "finalize"),
            ("joins", "finalize"),
            ("thread_local", "a barrier"),
            ("thread_local_before_init", "a barrier"),
        ];
        each(&ways, |(way, awaited)| {
            let outcome = run(&program, &[way], 2, layout, &[("SYMRAIL_TIMEOUT_S", "1")]);
            assert_eq!(outcome.code, Some(0), "{way}, {layout:?}: {}", outcome.said);
            let warned = format!("PE 0 has waited in {awaited} for");
            assert!(outcome.said.contains(&warned), "{way}, {layout:?}: not {warned:?} in: {}", outcome.said);
        });
    }
}

#[test]
fn an_error_of_a_context_that_is_not_destroyed_ends_the_job() {
    let Some(program) = compile("unfinished.c") else { return };
    for (way, function) in [("finalize", "shmem_finalize"), ("return", "exit"), ("threads", "exit")] {
        let outcome = run(&program, &[way], 2, Layout::Hosts(2), &[("SYMRAIL_LOG", "error")]);
        assert_eq!(outcome.code, Some(1), "{way}: {}", outcome.said);
        let error = format!("PE 0: {function}: put of 33554432 bytes to PE 1 over rail");
        assert!(outcome.said.contains(&error), "{way}: {}", outcome.said);
    }
}

#[test]
fn a_limit_on_the_size_of_files_is_an_error() {
    let Some(program) = compile("statics.c") else { return };
    let symrail = support::built().join("symrail");
    let c_program = format!("run -n 2 -- {}", program.display());
    for job in [c_program.as_str(), "perf put-lat -n 2 -b 8 -e 8 -i 20"] {
        let mut shell = support::command("bash");
        shell.arg("-c").arg(format!("ulimit -f 100; exec {} {job}", symrail.display()));
        let outcome = support::job(&mut shell);
        assert_eq!(outcome.code, Some(1), "{job}: {}", outcome.said);
        for part in ["ftruncate for ", "bytes of symmetric heap failed: File too large", "ulimit -f"] {
            assert!(outcome.said.contains(part), "{job}: not {part:?} in: {}", outcome.said);
        }
    }
}

#[test]
fn a_long_wait_for_a_lock_is_reported() {
    let Some(program) = compile("misuse.c") else { return };
    for layout in LAYOUTS {
        let outcome = run(&program, &["held_lock"], 2, layout, &[("SYMRAIL_TIMEOUT_S", "2")]);
        assert_eq!(outcome.code, Some(0), "{layout:?}: {}", outcome.said);
        assert!(outcome.said.contains("PE 1 has waited in shmem_set_lock for"), "{layout:?}: {}", outcome.said);
    }
}

#[test]
fn a_misspelt_variable_is_a_warning_unless_nothing_is_to_be_logged() {
    let Some(program) = compile("statics.c") else { return };
    let said = |env: &[(&str, &str)]| {
        let outcome = run(&program, &[], 1, Layout::Mapped, env);
        assert_eq!(outcome.code, Some(0), "{}", outcome.said);
        outcome.said
    };
    let misspelt = ("SYMRAIL_HEAPSIZE", "1G");
    let warned = said(&[misspelt]);
    assert!(warned.contains("WARN") && warned.contains("did you mean SYMRAIL_HEAP_SIZE?"), "{warned}");
    assert!(!warned.contains('\u{1b}'), "colours, and no terminal: {warned:?}");
    let silent = said(&[misspelt, ("SYMRAIL_LOG", "off")]);
    assert!(!silent.contains("HEAPSIZE"), "{silent}");
}
