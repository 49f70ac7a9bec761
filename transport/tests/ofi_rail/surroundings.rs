//! The library, the NICs that it finds, and leftovers of rails in shared memory.

use super::*;

fn shared_memory_of(pid: u32) -> Vec<String> {
    let names = std::fs::read_dir("/dev/shm").unwrap().filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    names.filter(|name| name.starts_with("symrail-") && name.split('-').nth(2) == Some(&pid.to_string())).collect()
}

/// Closing leaves no file behind in shared memory, on either side.
#[test]
#[serial]
fn shm_leaves_nothing_behind() {
    let Some(mut pair) = Pair::start(&SHM) else { return };
    pair.write(0, 0, 0, 8, delivered(1));
    pair.wait_done(1);
    let (us, them) = (std::process::id(), pair.peer_id());
    assert!(!shared_memory_of(us).is_empty() && !shared_memory_of(them).is_empty(), "these are not the names");
    pair.part();
    drop(pair);
    assert_eq!((shared_memory_of(us), shared_memory_of(them)), (vec![], vec![]));
}

/// Opening a rail removes files that a killed process left in shared memory.
#[test]
#[serial]
fn shm_of_the_dead_is_removed() {
    let Some(mut pair) = Pair::start(&SHM) else { return };
    let them = pair.peer_id();
    pair.kill();
    assert!(!shared_memory_of(them).is_empty(), "these are not the names");
    let rails = SHM.open(symrail_transport::ofi::Role::Host).unwrap();
    assert_eq!(shared_memory_of(them), Vec::<String>::new());
    drop(rails);
}

/// Rails are found by address, in the order of the list, and an error names missing ones.
#[test]
fn nics_are_named_and_ordered() {
    let discover = |setup: Setup, change: &dyn Fn(&mut symrail_transport::env::Settings)| {
        let mut settings = setup.settings();
        change(&mut settings);
        let library = symrail_transport::ofi::load(&settings).ok()?;
        let found = symrail_transport::ofi::discover(&library, &settings, false);
        Some(
            found
                .map(|found| found.nics.into_iter().map(|nic| nic.name).collect::<Vec<_>>())
                .map_err(|e| e.to_string()),
        )
    };
    let Some(found) = discover(Setup::new("tcp", "127.0.0.3,127.0.0.2,127.0.0.4"), &|_| {}) else {
        println!("SKIPPED: libfabric is not installed");
        return;
    };
    assert_eq!(found.unwrap(), ["127.0.0.3", "127.0.0.2", "127.0.0.4"]);
    let mut settings = Setup::new("tcp", "127.0.0.3,127.0.0.2,127.0.0.4").settings();
    settings.transport = TransportKind::Libfabric;
    settings.libfabric_max_nic_per_pe = 2;
    let two = backend::choose(&settings, &HostPes::alone([0].into())).unwrap();
    assert_eq!(two.names(), ["127.0.0.3", "127.0.0.2"]);
    assert_eq!(discover(Setup::new("tcp", "lo"), &|_| {}).unwrap().unwrap(), ["lo"]);
    assert_eq!(discover(Setup::new("shm", "shm1,shm0"), &|_| {}).unwrap().unwrap(), ["shm1", "shm0"]);
    assert_eq!(discover(Setup::new("shm", ""), &|_| {}).unwrap().unwrap(), ["shm"]);
    let error = discover(Setup::new("tcp", "eth77"), &|_| {}).unwrap().unwrap_err();
    assert!(error.contains("eth77") && error.contains("lo (tcp;ofi_rxm)"), "{error}");
    let error = discover(Setup::new("nonesuch", ""), &|_| {}).unwrap().unwrap_err();
    assert!(error.contains("nonesuch") && error.contains("tcp;ofi_rxm"), "{error}");
    let excluded = discover(Setup::new("tcp", "lo"), &|s| s.nic_list.as_mut().unwrap().exclude = true);
    assert!(!excluded.unwrap().is_ok_and(|names| names.contains(&"lo".to_owned())));
}

/// Keys that the rail chooses are random, and use all available bits.
#[test]
#[serial]
fn keys_cannot_be_guessed() {
    let mut memory = vec![0u64; 512];
    let mut keys = Vec::new();
    for setup in [&TCP, &SHM] {
        let Ok(mut rails) = setup.open(symrail_transport::ofi::Role::Proxy) else {
            println!("SKIPPED: libfabric has no such provider here");
            continue;
        };
        for id in 0..8 {
            // SAFETY: the memory outlives the rails.
            let registration = unsafe { rails[0].register(memory.as_mut_ptr().cast(), 4096, id) }.unwrap();
            keys.push(registration.remote_key);
        }
    }
    let expected = keys.len();
    assert!(keys.iter().filter(|&&key| key > u32::MAX.into()).count() * 2 >= expected, "{keys:x?}");
    keys.sort_unstable();
    keys.dedup();
    assert_eq!(keys.len(), expected, "the same id, and the same rail, give another key each time");
}

/// Keys to segments by which memory grows are derived from those to the first one, where rails choose keys.
#[test]
#[serial]
fn keys_to_what_has_grown_follow_from_the_first_ones() {
    let mut memory = vec![0u64; 1024];
    let base = memory.as_mut_ptr().cast::<u8>();
    // SAFETY: the memory outlives the endpoints, and nothing refers into it.
    let segment = |id: u32| unsafe { Segment::new(id, 4096 * u64::from(id), base.add(4096 * id as usize), 4096) };
    for setup in [&TCP, &SHM] {
        let Ok(rails) = setup.open(symrail_transport::ofi::Role::Proxy) else {
            println!("SKIPPED: libfabric has no such provider here");
            continue;
        };
        let mut endpoint = Endpoint::new(Role::Proxy, 0, 2, rails, Policy::new(&setup.settings(), false)).unwrap();
        // SAFETY: as above.
        let (first, grown) =
            unsafe { (endpoint.register(segment(0)), endpoint.register_grown(segment(1), &segment(0))) };
        assert_eq!(grown.unwrap(), GrownKeys::Follow(8));
        let keys = GrownKeys::Follow(8).connection_info(0, (&segment(0), &first.clone().unwrap()), &segment(1));
        assert_ne!(keys.unwrap(), first.unwrap());
    }
}

#[test]
fn a_missing_library_says_what_to_do() {
    let mut settings = TCP.settings();
    settings.libfabric_so = Some("/nowhere/libfabric.so.1".into());
    let error = symrail_transport::ofi::load(&settings).unwrap_err().to_string();
    assert!(error.contains("/nowhere/libfabric.so.1") && error.contains("SYMRAIL_LIBFABRIC_SO"), "{error}");
}
