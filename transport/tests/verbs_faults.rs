//! The behaviour of ibverbs rails when something is missing, does not match, fails or disappears.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::time::Instant;

use crate::verbs_support::*;
use symrail_transport::env::{IbMode, NicList, Settings};
use symrail_transport::error::{Error, Fault};
use symrail_transport::rail::{Piece, PostError, Rail, RemoteBuf, WriteOptions};
use symrail_transport::verbs::{Destinations, Role, VerbsRail, discover, load};

#[test]
fn a_missing_library_says_what_to_do() {
    let mut settings = Settings::default();
    settings.ibv_so = Some("/nowhere/libibverbs.so.1".into());
    let error = load(&settings).err().unwrap();
    assert!(matches!(&error, Error::Library { .. }), "{error}");
    let text = error.to_string();
    assert!(text.contains("/nowhere/libibverbs.so.1") && text.contains("SYMRAIL_IBV_SO"), "{text}");
}

#[test]
fn what_does_not_exist_is_answered_with_what_does() {
    let Some(nic) = nics(&Settings::default()).into_iter().next() else { return };
    let open = |change: &dyn Fn(&mut Settings)| {
        let mut settings = Settings::default();
        change(&mut settings);
        let error = VerbsRail::open(&nic, Role::Host, 1, &settings).err().unwrap();
        assert!(matches!(error, Error::NoRail { .. }), "{error}");
        println!("{error}");
        error.to_string()
    };
    let text = open(&|settings| settings.ib_gid_index = Some(200));
    assert!(text.contains("SYMRAIL_IB_GID_INDEX=200") && text.contains("0: fe80::"), "{text}");
    let text = open(&|settings| settings.ib_addr_range = Some("192.0.2.0/24".parse().unwrap()));
    assert!(text.contains("192.0.2.0/24") && text.contains("RoCE v2"), "{text}");
    let text = open(&|settings| settings.ib_pkey_index = 9);
    assert!(text.contains("SYMRAIL_IB_PKEY_INDEX=9") && text.contains("index 0 (0xffff)"), "{text}");

    let find = |change: &dyn Fn(&mut Settings)| {
        let mut settings = Settings::default();
        change(&mut settings);
        let text = discover(&settings).unwrap_err().to_string();
        println!("{text}");
        assert!(text.contains(&format!("{} port 1 (active", nic.device)), "{text}");
        text
    };
    assert!(find(&|settings| settings.ib_port = Some(2)).contains("SYMRAIL_IB_PORT=2"));
    let list = NicList { exclude: false, names: vec!["mlx9_9".into()] };
    assert!(find(&|settings| settings.nic_list = Some(list.clone())).contains("SYMRAIL_NIC_LIST"));

    let mut other = nic.clone();
    other.device = "mlx9_9".into();
    let text = VerbsRail::open(&other, Role::Host, 1, &Settings::default()).err().unwrap().to_string();
    assert!(text.contains("mlx9_9") && text.contains(&nic.name), "{text}");
    other = nic.clone();
    other.port = 2;
    let text = VerbsRail::open(&other, Role::Host, 1, &Settings::default()).err().unwrap().to_string();
    assert!(text.contains("port 2") && text.contains("ports 1 to 1"), "{text}");
}

#[test]
fn peers_in_another_mode_are_refused_by_both() {
    let Some(nic) = nics(&Settings::default()).into_iter().next() else { return };
    let open = |mode| {
        let mut settings = Settings::default();
        settings.ib_mode = mode;
        VerbsRail::open(&nic, Role::Host, 8, &settings).unwrap()
    };
    let (mut a, mut b) = (open(IbMode::RdmaAtomics), open(IbMode::WriteWithImm));
    let (address_a, address_b) = (a.address(), b.address());
    let error = a.connect(5, &address_b, 2).unwrap_err();
    assert!(matches!(error, Error::Mismatch { .. }));
    let text = error.to_string();
    assert!(text.contains("PE 2 has rdma-atomics, PE 5 has write-with-imm"), "{text}");
    let text = b.connect(2, &address_a, 5).unwrap_err().to_string();
    assert!(text.contains("PE 5 has write-with-imm, PE 2 has rdma-atomics"), "{text}");
    let text = a.connect(5, b"ofi address", 2).unwrap_err().to_string();
    assert!(text.contains("PE 5") && text.contains("malformed"), "{text}");
}

#[test]
fn a_wrong_key_fails_its_request_and_recovery_brings_the_connection_back() {
    let Some(nic) = nics(&Settings::default()).into_iter().next() else { return };
    let mut pair = Pair::new(&nic, &Settings::default(), 8192);
    let good = pair.at_b.remote(0);
    let bad = RemoteBuf { key: good.key ^ 0x5500, ..good };
    // SAFETY: the memories live as long as the rails.
    unsafe {
        pair.a.write(0, Piece { local: pair.at_a.local(0, 4096), remote: good }, options(Some(1))).unwrap();
        pair.a.write(0, Piece { local: pair.at_a.local(0, 4096), remote: bad }, options(Some(2))).unwrap();
        for id in 3..8 {
            pair.a
                .write(
                    0,
                    Piece { local: pair.at_a.local(0, 4096), remote: good },
                    WriteOptions { more: id < 7, ..options(Some(id)) },
                )
                .unwrap();
        }
    }
    poll_until(&mut pair.a, &mut pair.log_a, "failures", |log| log.failed.len() == 6);
    assert_eq!(pair.log_a.done, [1], "what came before is done");
    let ids: Vec<u64> = pair.log_a.failed.iter().map(|(id, _)| *id).collect();
    assert_eq!(ids, [2, 3, 4, 5, 6, 7], "each once");
    let first = &pair.log_a.failed[0].1;
    assert_eq!(first.code, 10, "remote access error: {first}");
    assert!(pair.log_a.broken.is_empty(), "one destination is not the rail");
    // SAFETY: as above.
    let again = unsafe { pair.a.write(0, Piece { local: pair.at_a.local(0, 8), remote: good }, options(Some(9))) };
    assert!(matches!(again, Err(PostError::Failed(fault)) if fault.code == 10));

    // The peer learns of it by an event, or when it posts at the latest.
    let start = Instant::now();
    let mut id = 20;
    // SAFETY: as above.
    while unsafe {
        pair.b.write(0, Piece { local: pair.at_b.local(0, 8), remote: pair.at_a.remote(0) }, options(Some(id)))
    }
    .is_ok()
    {
        id += 1;
        pair.b.poll(&mut pair.log_b);
        std::thread::yield_now();
        assert!(start.elapsed() < LIMIT, "the peer never learns");
    }
    poll_until(&mut pair.b, &mut pair.log_b, "the peer's requests", |log| {
        log.done.len() + log.failed.len() == (id - 20) as usize
    });
    renew(&mut pair);
    pair.assert_works(1);
}

/// The failure of a work request without id is reported.
#[test]
fn a_wrong_key_without_an_id_breaks_the_rail() {
    let Some(nic) = nics(&Settings::default()).into_iter().next() else { return };
    let mut pair = Pair::new(&nic, &Settings::default(), 8192);
    let bad = RemoteBuf { key: pair.at_b.remote(0).key ^ 0x5500, ..pair.at_b.remote(0) };
    // SAFETY: the memories live as long as the rails.
    unsafe { pair.a.write(0, Piece { local: pair.at_a.local(0, 8), remote: bad }, options(None)) }.unwrap();
    poll_until(&mut pair.a, &mut pair.log_a, "the failure", |log| log.broken.len() == 1);
    assert_eq!(pair.log_a.broken[0].code, 10);
}

#[test]
fn shallow_queues_are_never_overrun() {
    let Some(nic) = nics(&Settings::default()).into_iter().next() else { return };
    let mut settings = Settings::default();
    settings.ib_queue_depth = 16;
    let mut pair = Pair::new(&nic, &settings, 1 << 20);
    assert_eq!(pair.a.caps().queue_depth, 16);
    let (mut ids, mut full) = (0, 0);
    for nth in 0..10_000_u64 {
        // The mix has posts with and without ids, chained and not, inline and not.
        let id = (nth % 7 < 3 || nth == 9_999).then_some(nth);
        let len = if id.is_some() && nth % 5 == 0 { 512 } else { 8 };
        let slot = 4096 + (nth as usize % 64) * 512;
        pair.at_a.store(slot, &nth.to_le_bytes());
        let local = pair.at_a.local(slot, len);
        let to = pair.at_b.remote((nth as usize % 1000) * 512);
        let options = WriteOptions { more: nth % 11 < 6 && nth != 9_999, ..options(id) };
        posted(&mut pair.a, &mut pair.log_a, |rail| {
            // SAFETY: the memories live as long as the rails. A slot is used again only 64 requests later, and at most
            // 16 of those are under way.
            let result = unsafe { rail.write(0, Piece { local, remote: to }, options) };
            full += u32::from(matches!(result, Err(PostError::Again)));
            result
        });
        ids += usize::from(id.is_some());
    }
    poll_until(&mut pair.a, &mut pair.log_a, "10,000 writes", |log| log.done.len() == ids);
    assert!(pair.log_a.done.is_sorted() && pair.log_a.failed.is_empty() && pair.log_a.broken.is_empty());
    assert!(full > 0, "the queue was never full, so this shows nothing");
    for nth in 9_000..10_000_u64 {
        assert_eq!(pair.at_b.load_u64((nth as usize % 1000) * 512), nth);
    }
    pair.assert_works(2);
}

#[test]
fn what_cannot_be_posted_is_refused_in_words() {
    let Some(nic) = nics(&Settings::default()).into_iter().next() else { return };
    let mut pair = Pair::new(&nic, &Settings::default(), 64 << 10);
    let refused = |result: Result<(), PostError>| match result {
        Err(PostError::Failed(fault)) => fault.to_string(),
        other => panic!("{other:?}"),
    };
    let inject = pair.a.caps().inject;
    assert!(inject >= 8, "small puts do not fit: {inject}");
    let to = pair.at_b.remote(0);
    // SAFETY: no work request is posted.
    unsafe {
        let long = refused(pair.a.write(0, Piece { local: pair.at_a.local(0, inject + 1), remote: to }, options(None)));
        assert!(long.contains(&format!("takes {inject}")), "{long}");
        let long = refused(pair.a.send(0, pair.at_a.local(0, 8193), Some(1)));
        assert!(long.contains("8193") && long.contains("8192"), "{long}");
        let nobody = refused(pair.a.write(3, Piece { local: pair.at_a.local(0, 8), remote: to }, options(None)));
        assert!(nobody.contains("destination 3"), "{nobody}");
        let odd = RemoteBuf { key: 1 << 40, ..to };
        assert!(
            refused(pair.a.write(0, Piece { local: pair.at_a.local(0, 8), remote: odd }, options(None)))
                .contains("key")
        );
    }
    let mut lone = VerbsRail::open(&nic, Role::Host, 1, &Settings::default()).unwrap();
    // SAFETY: no work request is posted.
    let early = refused(unsafe { lone.write(0, Piece { local: pair.at_a.local(0, 8), remote: to }, options(None)) });
    assert!(early.contains("not connected"), "{early}");
    // SAFETY: nothing is registered.
    let error = unsafe { pair.a.register(std::ptr::without_provenance_mut(4096), 4096, 9) }.unwrap_err().to_string();
    assert!(error.contains("ibv_reg_mr") && error.contains("4096 bytes"), "{error}");
    pair.assert_works(3);
}

#[test]
fn a_sleeper_wakes_when_something_arrives() {
    let Some(nic) = nics(&Settings::default()).into_iter().next() else { return };
    let mut pair = Pair::new(&nic, &Settings::default(), 8192);
    assert!(pair.a.wait_fd().is_none(), "host rails only poll");
    let fd = pair.b.wait_fd().unwrap();
    let readable = |timeout_ms| {
        let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        // SAFETY: one open descriptor.
        unsafe { libc::poll(&raw mut poll, 1, timeout_ms) == 1 }
    };
    for round in 0..20_u64 {
        while !pair.b.arm() {
            pair.b.poll(&mut pair.log_b);
        }
        assert!(!readable(0), "nothing has arrived in round {round}");
        pair.at_a.store(0, &round.to_le_bytes());
        // SAFETY: the memories live as long as the rails.
        unsafe { pair.a.send(0, pair.at_a.local(0, 8), None) }.unwrap();
        assert!(readable(20_000), "nobody woke up in round {round}");
        poll_until(&mut pair.b, &mut pair.log_b, "a message", |log| log.messages.len() as u64 == round + 1);
        if round % 2 == 0 {
            // Arming finds a completion that is there already.
            // SAFETY: as above.
            unsafe { pair.a.send(0, pair.at_a.local(0, 8), Some(round)) }.unwrap();
            poll_until(&mut pair.a, &mut pair.log_a, "its completion", |log| log.done.last() == Some(&round));
            assert!(!pair.b.arm(), "a message is there");
            pair.log_b.messages.clear();
            poll_until(&mut pair.b, &mut pair.log_b, "a message", |log| log.messages.len() == 1);
            pair.log_b.messages = vec![Vec::new(); round as usize + 1];
        }
    }
}

/// Renews a failed connection, as soon as both ends can.
fn renew(pair: &mut Pair) {
    let (start, mut offers) = (Instant::now(), [None, None]);
    while offers.contains(&None) {
        for (rail, log, nth) in [(&mut pair.a, &mut pair.log_a, 0), (&mut pair.b, &mut pair.log_b, 1)] {
            rail.poll(log);
            if offers[nth].is_none() {
                // An error says that the address is not back yet.
                offers[nth] = rail.renew(0).unwrap_or(None);
            }
        }
        std::thread::yield_now();
        assert!(start.elapsed() < LIMIT, "the rail does not come back");
    }
    pair.a.reconnect(0, offers[1].unwrap()).unwrap();
    pair.b.reconnect(0, offers[0].unwrap()).unwrap();
}

/// Interfaces that these tests may switch off: those of the virtual machine.
fn guest_rail(nth: u32) -> Option<symrail_transport::verbs::Nic> {
    if !std::path::Path::new(&format!("/sys/class/net/rail{nth}")).exists() {
        skipped("not in the soft-RoCE guest");
        return None;
    }
    nic(&format!("rxe{nth}"))
}

#[test]
fn a_port_that_goes_down_is_reported_and_ends_no_connection_by_itself() {
    let Some(nic) = guest_rail(0) else { return };
    let mut pair = Pair::new(&nic, &Settings::default(), 8192);
    pair.assert_works(4);
    pair.log_a = Log::default();
    assert!(pair.a.port_down().is_none());
    run("ip link set rail0 down");
    poll_until(&mut pair.a, &mut pair.log_a, "the port's end", |log| log.ports_down == 1);
    poll_until(&mut pair.b, &mut pair.log_b, "the port's end", |log| log.ports_down == 1);
    let why = pair.a.port_down().unwrap();
    println!("{why}");
    assert!(pair.a.is_connected(0) && pair.b.is_connected(0) && why.retryable);
    let ids = 0..10;
    for id in ids.clone() {
        // SAFETY: the memories live as long as the rails.
        let post = unsafe {
            pair.a.write(0, Piece { local: pair.at_a.local(0, 4096), remote: pair.at_b.remote(0) }, options(Some(id)))
        };
        assert!(post.is_ok(), "{post:?}");
    }
    // The caller has found another path, and ends the connection.
    pair.a.disconnect(0, &why);
    pair.b.disconnect(0, &why);
    poll_until(&mut pair.a, &mut pair.log_a, "all reports", |log| {
        log.failed.len() + log.done.len() == ids.end as usize
    });
    let mut ended: Vec<u64> =
        pair.log_a.failed.iter().map(|(id, _)| *id).chain(pair.log_a.done.iter().copied()).collect();
    ended.sort_unstable();
    assert!(ended.into_iter().eq(ids), "each once");
    // SAFETY: as above.
    let refused = unsafe {
        pair.a.write(0, Piece { local: pair.at_a.local(0, 8), remote: pair.at_b.remote(0) }, options(Some(99)))
    };
    assert!(matches!(refused, Err(PostError::Failed(_))));
    assert_eq!(pair.a.renew(0).unwrap(), None, "the port is still down");
    run("ip link set rail0 up");
    renew(&mut pair);
    assert!(pair.a.port_down().is_none());
    pair.assert_works(5);
}

/// It uses a rail of its own: the address comes back at another index.
#[test]
fn an_address_that_goes_away_is_reported() {
    let Some(nic) = guest_rail(2) else { return };
    let mut pair = Pair::new(&nic, &Settings::default(), 8192);
    pair.assert_works(6);
    run("ip addr add 10.99.0.1/24 dev rail2");
    for _ in 0..4096 {
        pair.a.poll(&mut pair.log_a);
    }
    assert!(pair.log_a.broken.is_empty(), "another address is none of ours");
    run("ip addr del 10.77.2.1/24 dev rail2");
    poll_until(&mut pair.a, &mut pair.log_a, "the address's end", |log| log.broken.len() == 1);
    assert!(pair.log_a.broken[0].text.contains("10.77.2.1"), "{:?}", pair.log_a.broken);
    let error = pair.a.renew(0).unwrap_err().to_string();
    assert!(error.contains("10.77.2.1") && error.contains("10.99.0.1"), "{error}");
    run("ip addr add 10.77.2.1/24 dev rail2");
    renew(&mut pair);
    pair.assert_works(7);
    run("ip addr del 10.99.0.1/24 dev rail2");
}

#[test]
fn a_failed_destination_leaves_the_others_alone() {
    let Some(nic) = nics(&Settings::default()).into_iter().next() else { return };
    let open = |destinations| VerbsRail::open(&nic, Role::Host, destinations, &Settings::default()).unwrap();
    let (mut rail, mut first, mut second) = (open(2), open(1), open(1));
    let address = rail.address();
    rail.connect(0, &first.address(), 0).unwrap();
    rail.connect(1, &second.address(), 0).unwrap();
    first.connect(0, &address, 0).unwrap();
    second.connect(0, &address, 1).unwrap();
    let source = Memory::new(&mut rail, 4096, 1);
    let (at_first, at_second) = (Memory::new(&mut first, 4096, 1), Memory::new(&mut second, 4096, 1));
    let bad = RemoteBuf { key: at_first.remote(0).key ^ 0x5500, ..at_first.remote(0) };
    source.store(0, &pattern(4096, 8));
    let mut log = Log::default();
    // The chain changes its destination.
    for id in 0..30 {
        let (dest, to) = if id % 3 == 0 { (0, bad) } else { (1, at_second.remote(0)) };
        let options = WriteOptions { more: true, ..options(Some(id)) };
        // SAFETY: the memories live as long as the rails.
        match unsafe { rail.write(dest, Piece { local: source.local(0, 4096), remote: to }, options) } {
            Ok(()) => {}
            Err(PostError::Failed(_)) if dest == 0 => log.failed.push((id, log.failed[0].1.clone())),
            Err(error) => panic!("{error:?}"),
        }
    }
    poll_until(&mut rail, &mut log, "all of them", |log| log.done.len() + log.failed.len() == 30);
    assert_eq!(log.done, (0..30).filter(|id| id % 3 != 0).collect::<Vec<_>>());
    assert_eq!(log.failed.iter().map(|(id, _)| *id).collect::<Vec<_>>(), (0..30).step_by(3).collect::<Vec<_>>());
    assert_eq!(at_second.load(0, 4096), pattern(4096, 8));
    assert_eq!(at_first.load(0, 4096), [0; 4096]);
    drop((rail, first, second));
}

#[test]
fn a_rail_reaches_itself() {
    let Some(nic) = nics(&Settings::default()).into_iter().next() else { return };
    let mut rail = VerbsRail::open(&nic, Role::Proxy, 1, &Settings::default()).unwrap();
    let address = rail.address();
    rail.connect(0, &address, 0).unwrap();
    let memory = Memory::new(&mut rail, 8192, 1);
    memory.store(0, &pattern(4096, 9));
    let mut log = Log::default();
    // SAFETY: the memory lives as long as the rail.
    unsafe {
        rail.write(0, Piece { local: memory.local(0, 4096), remote: memory.remote(4096) }, options(Some(1))).unwrap();
        rail.send(0, memory.local(0, 100), None).unwrap();
    }
    poll_until(&mut rail, &mut log, "a write and a message", |log| log.done == [1] && log.messages.len() == 1);
    assert_eq!(memory.load(4096, 4096), pattern(4096, 9));
    assert_eq!(log.messages[0], pattern(4096, 9)[..100]);
    drop(rail);
}

/// Polls and forgets a destination.
fn forget(rail: &mut VerbsRail, log: &mut Log, dest: u32) {
    let (start, mut polls) = (Instant::now(), 100);
    while !rail.forget(dest) {
        for _ in 0..polls {
            rail.poll(log);
            std::thread::yield_now();
        }
        // In the place of the seconds that pass between two calls.
        polls = (2 * polls).min(20_000);
        assert!(start.elapsed() < LIMIT, "destination {dest} is never forgotten");
    }
    assert!(rail.is_connected(dest), "there is nothing to renew");
}

fn queue_pair(address: &[u8]) -> &[u8] {
    &address[address.len() - 4..]
}

/// A peer that does not know yet that it was forgotten goes on. What it sends is not taken for its successor's: here both
/// are the same rail, and the same packet would be the next one on either connection.
#[test]
fn a_queue_pair_serves_one_destination_after_another() {
    let Some(nic) = nics(&Settings::default()).into_iter().next() else { return };
    let mut settings = impatient();
    settings.ib_queue_depth = 16;
    let open = || VerbsRail::open(&nic, Role::Proxy, Destinations::Any(1), &settings).unwrap();
    let (mut stays, mut visits) = (open(), open());
    let memory = Memory::new(&mut visits, 4096, 1);
    let back_memory = Memory::new(&mut stays, 4096, 1);
    let mut used = std::collections::BTreeSet::new();
    for round in 1..30 {
        let (dest, back) = (2 * round, 2 * round + 1);
        let (to_stays, to_visits) = (stays.address_to(dest).unwrap(), visits.address_to(back).unwrap());
        assert_eq!(to_stays, stays.address_to(dest).unwrap(), "a second card");
        used.insert(queue_pair(&to_stays).to_vec());
        stays.connect(dest, &to_visits, back).unwrap();
        visits.connect(back, &to_stays, dest).unwrap();
        let (mut log, mut at_visits) = (Log::default(), Log::default());
        let say = |stays: &mut VerbsRail, visits: &mut VerbsRail, log: &mut Log, at_visits: &mut Log, nth: u64| {
            memory.store(0, &(u64::from(round) << 8 | nth).to_le_bytes());
            // Its completion is never requested.
            // SAFETY: the memory lives as long as the rails.
            posted(visits, at_visits, |rail| unsafe { rail.send(back, memory.local(0, 8), None) });
            poll_until(stays, log, "a message", |log| log.messages.len() as u64 == nth);
            assert_eq!(log.messages[nth as usize - 1], (u64::from(round) << 8 | nth).to_le_bytes());
            back_memory.store(0, &nth.to_le_bytes());
            // SAFETY: as above.
            posted(stays, log, |rail| unsafe { rail.send(dest, back_memory.local(0, 8), None) });
            poll_until(visits, at_visits, "an answer", |log| log.messages.len() as u64 == nth);
        };
        (1..4).for_each(|nth| say(&mut stays, &mut visits, &mut log, &mut at_visits, nth));
        if (2..5).contains(&round) {
            memory.store(0, &[0xff; 8]);
            // SAFETY: the memory lives as long as the rails.
            unsafe { visits.send(back - 2, memory.local(0, 8), Some(99)) }.unwrap();
            poll_until(&mut visits, &mut at_visits, "the failure", |log| log.failed.len() + log.done.len() == 1);
            stays.poll(&mut log);
            assert_eq!((at_visits.done.len(), log.messages.len()), (0, 3), "round {round}: a late message has arrived");
            say(&mut stays, &mut visits, &mut log, &mut at_visits, 4);
        }
        assert!(log.broken.is_empty() && log.failed.is_empty(), "{log:?}");
        if round > 1 {
            forget(&mut visits, &mut at_visits, back - 2);
        }
        forget(&mut stays, &mut log, dest);
        assert!(log.broken.is_empty(), "messages that have arrived: {:?}", log.broken);
        // SAFETY: nothing is posted.
        let refused = unsafe { stays.send(dest, back_memory.local(0, 8), Some(1)) };
        assert!(matches!(refused, Err(PostError::Failed(_))), "{refused:?}");
        let again = stays.renew(dest).unwrap();
        assert_eq!(again, None);
    }
    assert_eq!(used.len(), 1, "{used:?}");
}

/// The time-out, which is too long, is refused only when the queue pair could receive already.
#[test]
fn a_connection_that_fails_midway_can_be_made_again() {
    let Some(nic) = nics(&Settings::default()).into_iter().next() else { return };
    let mut settings = Settings::default();
    settings.ib_timeout = 32;
    let mut rail = VerbsRail::open(&nic, Role::Proxy, Destinations::Any(1), &settings).unwrap();
    for dest in [2, 4, 4] {
        let own = rail.address_to(dest).unwrap();
        let error = rail.connect(dest, &own, dest).unwrap_err().to_string();
        assert!(error.contains("ibv_modify_qp(RTS)"), "destination {dest}: {error}");
        assert!(dest == 4 || rail.forget(dest), "it was never connected");
    }
}

/// The device's limit is out of reach here. Without address space its library fails in the same way.
#[test]
fn a_limit_of_queue_pairs_is_named() {
    let Some(nic) = nics(&Settings::default()).into_iter().next() else { return };
    let mut settings = Settings::default();
    settings.ib_queue_depth = 16384;
    let mut rail = VerbsRail::open(&nic, Role::Proxy, Destinations::Any(1), &settings).unwrap();
    rail.address_to(2).unwrap();
    let mut before = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    let pages: u64 = std::fs::read_to_string("/proc/self/statm").unwrap().split(' ').next().unwrap().parse().unwrap();
    // SAFETY: only this process's own limit changes, and only for one call.
    let refused = unsafe {
        libc::getrlimit(libc::RLIMIT_AS, &raw mut before);
        libc::setrlimit(libc::RLIMIT_AS, &libc::rlimit { rlim_cur: pages * 4096 + (256 << 10), ..before });
        let refused = rail.address_to(4);
        libc::setrlimit(libc::RLIMIT_AS, &raw const before);
        refused
    };
    let error = refused.unwrap_err();
    assert!(matches!(error, Error::Unsupported { .. }), "{error}");
    let error = error.to_string();
    assert!(error.contains("another queue pair") && error.contains("it has 1 queue pairs of the "), "{error}");
    rail.address_to(6).unwrap();
}

#[test]
fn a_job_has_no_other_destinations() {
    let Some(nic) = nics(&Settings::default()).into_iter().next() else { return };
    let mut rail = VerbsRail::open(&nic, Role::Proxy, 2, &Settings::default()).unwrap();
    let own = rail.address();
    let error = rail.connect(2, &own, 1).unwrap_err();
    assert!(matches!(error, Error::NoSuchPe { pe: 2, last: 1 }), "{error}");
    rail.connect(1, &own, 1).unwrap();
}

/// The completion that ends messages whose completions are never requested needs a credit, which others may hold.
#[test]
fn a_rail_without_credits_forgets_and_renews_later() {
    let Some(nic) = nics(&Settings::default()).into_iter().next() else { return };
    let mut settings = impatient();
    settings.ib_queue_depth = 16;
    let open = || VerbsRail::open(&nic, Role::Proxy, Destinations::Any(1), &settings).unwrap();
    for renews in [false, true] {
        let (mut stays, mut leaves, mut busy) = (open(), open(), open());
        for (dest, other) in [(2, &mut leaves), (4, &mut busy)] {
            let (there, here) = (stays.address_to(dest).unwrap(), other.address_to(1).unwrap());
            stays.connect(dest, &here, 1).unwrap();
            other.connect(1, &there, dest).unwrap();
        }
        let memory = Memory::new(&mut stays, 4096, 1);
        // SAFETY: the memory lives as long as the rails.
        let send = |stays: &mut VerbsRail, dest| unsafe { stays.send(dest, memory.local(0, 8), None) };
        (0..3).for_each(|_| send(&mut stays, 2).unwrap());
        poll_until(&mut leaves, &mut Log::default(), "three messages", |log| log.messages.len() == 3);
        while send(&mut stays, 4).is_ok() {}
        let mut log = Log::default();
        if renews {
            stays.disconnect(2, &Fault { code: libc::ENOTCONN, text: "it has failed".into(), retryable: true });
            poll_until(&mut busy, &mut Log::default(), "the others", |log| log.messages.len() == 13);
            let begun = Instant::now();
            while stays.renew(2).unwrap().is_none() {
                (0..100).for_each(|_| _ = stays.poll(&mut log));
                std::thread::yield_now();
                assert!(begun.elapsed() < LIMIT, "it is never renewed");
            }
        }
        // After `renew`, it waits for the other end.
        log.broken.clear();
        let used = stays.address_to(2).unwrap();
        forget(&mut stays, &mut log, 2);
        assert!(log.broken.is_empty(), "{log:?}");
        let (there, here) = (stays.address_to(6).unwrap(), leaves.address_to(3).unwrap());
        assert_eq!(queue_pair(&there), queue_pair(&used));
        stays.connect(6, &here, 3).unwrap();
        leaves.connect(3, &there, 6).unwrap();
        send(&mut stays, 6).unwrap();
        poll_until(&mut leaves, &mut Log::default(), "a message to the next", |log| log.messages.len() == 1);
    }
}

/// Nobody polls, so the end of what is outstanding is never seen, as when the device has failed.
#[test]
fn a_queue_pair_whose_work_does_not_end_is_replaced() {
    let Some(nic) = nics(&Settings::default()).into_iter().next() else { return };
    let open = || VerbsRail::open(&nic, Role::Proxy, Destinations::Any(1), &impatient()).unwrap();
    let (mut stays, mut first, mut second) = (open(), open(), open());
    let memory = Memory::new(&mut stays, 4096, 1);
    let mut used = std::collections::BTreeSet::new();
    let mut log = Log::default();
    for (dest, other) in [(2, &mut first), (4, &mut second)] {
        let (there, here) = (stays.address_to(dest).unwrap(), other.address_to(1).unwrap());
        used.insert(queue_pair(&there).to_vec());
        stays.connect(dest, &here, 1).unwrap();
        other.connect(1, &there, dest).unwrap();
        // Late completions of the former queue pair come now.
        (0..100).for_each(|_| _ = stays.poll(&mut log));
        // SAFETY: the memory lives as long as the rails.
        (0..3).for_each(|_| unsafe { stays.send(dest, memory.local(0, 8), None) }.unwrap());
        poll_until(other, &mut Log::default(), "messages", |log| log.messages.len() == 3);
        if dest == 2 {
            let calls = (1..100).find(|_| stays.forget(dest)).unwrap();
            assert!(calls > 3, "its completions were seen");
            assert!(stays.forget(dest));
        } else {
            forget(&mut stays, &mut log, dest);
            assert!(log.broken.is_empty(), "{log:?}");
        }
    }
    assert_eq!(used.len(), 2, "{used:?}");
}

/// A peer that dies, while much is under way to it.
#[test]
fn the_queue_pair_of_a_peer_that_died_serves_another() {
    let Some(nic) = nics(&Settings::default()).into_iter().next() else { return };
    let open = || VerbsRail::open(&nic, Role::Proxy, Destinations::Any(4), &impatient()).unwrap();
    let mut stays = open();
    let source = Memory::new(&mut stays, 4096, 1);
    source.store(0, &pattern(4096, 3));
    let mut used = std::collections::BTreeSet::new();
    for dest in 2..6 {
        let (mut other, mut log) = (open(), Log::default());
        let target = Memory::new(&mut other, 4096, 1);
        let (there, here) = (stays.address_to(dest).unwrap(), other.address_to(1).unwrap());
        used.insert(queue_pair(&there).to_vec());
        stays.connect(dest, &here, 1).unwrap();
        other.connect(1, &there, dest).unwrap();
        let remote = target.remote(0);
        let write = |stays: &mut VerbsRail, id| {
            let piece = Piece { local: source.local(0, 4096), remote };
            // SAFETY: the source lives as long as the rail.
            unsafe { stays.write(dest, piece, options(Some(id))) }.unwrap();
        };
        write(&mut stays, 0);
        poll_until(&mut stays, &mut log, "a write", |log| log.done == [0]);
        assert_eq!(target.load(0, 4096), pattern(4096, 3));
        drop(other);
        (1..10).for_each(|id| write(&mut stays, id));
        let why = Fault { code: libc::ENOTCONN, text: "it has died".into(), retryable: true };
        stays.disconnect(dest, &why);
        poll_until(&mut stays, &mut log, "all reports", |log| log.failed.len() == 9);
        forget(&mut stays, &mut log, dest);
    }
    assert_eq!(used.len(), 1, "{used:?}");
}
