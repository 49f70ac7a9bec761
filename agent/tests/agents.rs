//! Agents of one process over `tcp;ofi_rxm` and `shm`: lists, notifications, metadata, cancellation.
#![allow(clippy::unwrap_used, clippy::panic, clippy::expect_used)]

use std::time::Duration;

use crate::support::{LONG, Member, until};
use symrail_agent::{Agent, Descriptor, Direction, Error};

const PROVIDERS: [&str; 2] = ["tcp;ofi_rxm", "shm"];

fn two(provider: &str, bytes: usize) -> Option<(Member, Member)> {
    Some((Member::new("left", provider, bytes)?, Member::new("right", provider, bytes)?))
}

#[test]
fn lists_move_in_both_directions_and_their_notification_comes_behind_their_data() {
    const BLOCK: usize = 96;
    const BLOCKS: usize = 5000;
    for provider in PROVIDERS {
        let Some((a, b)) = two(provider, BLOCK * BLOCKS) else { continue };
        a.loads(&b);
        a.fill(|at| (at / BLOCK + at) as u8);
        // Backwards at the target, so that none continues the one before.
        let here: Vec<_> = (0..BLOCKS).map(|i| a.at(i * BLOCK, BLOCK)).collect();
        let there: Vec<_> = (0..BLOCKS).rev().map(|i| b.at(i * BLOCK, BLOCK)).collect();
        let mut transfer = a.agent.transfer(Direction::Write, &here, &there, "right").unwrap();
        assert_eq!(transfer.operations(), BLOCKS);
        assert!(matches!(transfer.test(), Err(Error::Argument { .. })), "it is not posted");
        for round in 0..3u8 {
            a.fill(|at| (at / BLOCK + at) as u8 ^ round);
            transfer.post(Some(&[round])).unwrap();
            let got = b.notification();
            assert_eq!((got.agent.as_str(), got.message.as_slice()), ("left", &[round][..]));
            for at in 0..BLOCK * BLOCKS {
                let from = (BLOCKS - 1 - at / BLOCK) * BLOCK + at % BLOCK;
                assert_eq!(b.read(at), a.read(from), "{provider}: byte {at} in round {round}");
            }
            assert!(transfer.wait(LONG).unwrap() && transfer.test().unwrap());
        }
        // A list whose parts continue one another is one operation.
        let here: Vec<_> = (0..BLOCKS).map(|i| a.at(i * BLOCK, BLOCK)).collect();
        let there: Vec<_> = (0..BLOCKS).map(|i| b.at(i * BLOCK, BLOCK)).collect();
        let mut transfer = a.agent.transfer(Direction::Read, &here, &there, "right").unwrap();
        assert_eq!(transfer.operations(), 1);
        b.fill(|at| at as u8);
        transfer.post(None).unwrap();
        assert!(transfer.wait(LONG).unwrap());
        assert!((0..BLOCK * BLOCKS).all(|at| a.read(at) == at as u8));
        // The connection serves both agents.
        b.loads(&a);
        b.whole(Direction::Write, &a, Some(b"back")).unwrap();
        assert_eq!(a.notification().message, b"back");
    }
}

#[test]
fn notifications_of_any_size_arrive_in_order_also_at_the_sender_itself() {
    let Some((a, b)) = two(PROVIDERS[0], 4096) else { return };
    a.loads(&b);
    let message = |i: usize| vec![i as u8; [0, 1, 503, 504, 505, 5000][i % 6]];
    for i in 0..500 {
        a.agent.notify("right", &message(i)).unwrap();
    }
    let long = vec![7; 1 << 20];
    a.agent.notify("right", &long).unwrap();
    for i in 0..500 {
        assert_eq!(b.notification().message, message(i), "notification {i}");
    }
    assert!(b.notification().message == long);
    assert!(b.agent.notification().is_none());
    a.agent.notify("left", b"to myself").unwrap();
    assert_eq!(a.notification().message, b"to myself");
    a.fill(|at| at as u8);
    let mut own = a.agent.transfer(Direction::Write, &[a.at(0, 100)], &[a.at(2000, 100)], "left").unwrap();
    own.post(Some(b"done")).unwrap();
    assert!(own.wait(LONG).unwrap());
    assert_eq!((a.notification().agent.as_str(), a.read(2099)), ("left", 99));
    let too_long = vec![0; Agent::LONGEST_NOTIFICATION + 1];
    for name in ["right", "left"] {
        assert!(matches!(a.agent.notify(name, &too_long), Err(Error::Argument { .. })), "{name}");
    }
    a.fill(|at| u8::from(at < 100));
    assert!(matches!(own.post(Some(&too_long)), Err(Error::Argument { .. })));
    assert_eq!(a.read(2099), 0, "the bytes of a transfer that was refused");
}

#[test]
fn metadata_is_complete_or_partial_and_is_refused_when_it_was_changed() {
    let Some((a, b)) = two(PROVIDERS[0], 4096) else { return };
    let part = b.agent.partial_metadata(&[b.id], false).unwrap();
    assert!(matches!(a.agent.load(&part), Err(Error::Unknown { .. })), "it does not tell how to connect");
    let none = b.agent.partial_metadata(&[], true).unwrap();
    assert_eq!(a.agent.load(&none).unwrap(), "right");
    let prepare = |at: Descriptor| a.agent.transfer(Direction::Write, &[a.at(0, at.len as usize)], &[at], "right");
    assert!(matches!(prepare(b.at(0, 8)), Err(Error::NotRegistered { .. })));
    assert_eq!(a.agent.load(&part).unwrap(), "right");
    prepare(b.at(0, 4096)).unwrap();
    assert!(matches!(prepare(b.at(1, 4096)), Err(Error::NotRegistered { .. })), "beyond the end, here and there");
    for metadata in [&part, &b.agent.metadata()] {
        for at in 0..metadata.len() {
            let mut changed = metadata.clone();
            changed[at] ^= 0x20;
            let refused = matches!(a.agent.load(&changed), Err(Error::Metadata { .. } | Error::Unknown { .. }));
            assert!(refused, "changed at byte {at}");
            assert!(a.agent.load(&metadata[..at]).is_err());
        }
    }
    let error = a.agent.load(&part[..part.len() - 8]).unwrap_err().to_string();
    assert!(error.contains("incomplete") && !error.contains("PE 0"), "{error}");
    let namesake = Member::new("left", PROVIDERS[0], 64).unwrap();
    let error = a.agent.load(&namesake.agent.metadata()).unwrap_err().to_string();
    assert!(error.contains("this agent's name"), "{error}");
    // Another agent of the same name is not taken for the one that is known.
    let impostor = Member::new("right", PROVIDERS[0], 64).unwrap();
    let error = a.agent.load(&impostor.agent.metadata()).unwrap_err().to_string();
    assert!(error.contains("forget it first"), "{error}");
    a.agent.unload(&part).unwrap();
    assert!(matches!(prepare(b.at(0, 8)), Err(Error::NotRegistered { .. })));
    a.agent.forget("right").unwrap();
    assert!(matches!(prepare(b.at(0, 8)), Err(Error::Unknown { .. })));
    assert!(matches!(a.agent.notify("right", b""), Err(Error::Unknown { .. })));
    assert_eq!(a.agent.load(&impostor.agent.metadata()).unwrap(), "right");
    assert!(matches!(Agent::from_env(""), Err(Error::Argument { .. })));
}

#[test]
fn memory_that_its_owner_has_deregistered_is_not_written() {
    let member = |name| Member::with_timeout(name, PROVIDERS[0], 4096, 2);
    let (Some(a), Some(b)) = (member("left"), member("right")) else { return };
    a.loads(&b);
    a.fill(|_| 1);
    let mut stale = a.agent.transfer(Direction::Write, &[a.at(0, 8)], &[b.at(0, 8)], "right").unwrap();
    b.agent.deregister(b.id).unwrap();
    assert!(matches!(b.agent.deregister(b.id), Err(Error::Argument { .. })));
    stale.post(Some(b"never")).unwrap();
    // Providers that move the bytes by themselves close the connection.
    let error = stale.wait(LONG).unwrap_err();
    assert!(matches!(error, Error::Failed { .. } | Error::Lost { .. }), "{error}");
    assert!(b.agent.wait_notification(Duration::from_millis(50)).is_none(), "a notification without its data");
    assert_eq!(b.read(0), 0);
}

/// An agent that an operation has found lost is connected to anew when its metadata is loaded again.
#[test]
fn an_agent_that_a_transfer_has_lost_is_loaded_again() {
    let member = |name| Member::with_timeout(name, PROVIDERS[0], 4096, 5);
    let (Some(a), Some(b)) = (member("left"), member("right")) else { return };
    a.loads(&b);
    a.whole(Direction::Write, &b, None).unwrap();
    let mut stale = a.agent.transfer(Direction::Read, &[a.at(0, 4096)], &[b.at(0, 4096)], "right").unwrap();
    b.agent.deregister(b.id).unwrap();
    stale.post(None).unwrap();
    let error = stale.wait(LONG).unwrap_err();
    // SAFETY: as in `Member::new`.
    unsafe { b.agent.register(b.bytes.as_ptr().cast_mut().cast(), b.bytes.len()) }.unwrap();
    if matches!(error, Error::Lost { .. }) {
        assert!(matches!(a.agent.notify("right", b"never"), Err(Error::Lost { .. })), "it is lost, and yet open");
    }
    a.loads(&b);
    a.fill(|at| at as u8);
    a.whole(Direction::Write, &b, Some(b"again")).unwrap();
    assert_eq!((b.notification().message, b.read(99)), (b"again".to_vec(), 99));
}

#[test]
fn cancelled_transfers_end_by_themselves_and_their_memory_can_be_deregistered() {
    let Some((a, b)) = two(PROVIDERS[0], 32 << 20) else { return };
    a.loads(&b);
    let whole = |m: &Member| [m.at(0, 32 << 20)];
    let mut transfer = a.agent.transfer(Direction::Read, &whole(&a), &whole(&b), "right").unwrap();
    transfer.post(None).unwrap();
    assert!(matches!(transfer.post(None), Err(Error::Busy { .. })) || transfer.test().unwrap());
    transfer.cancel();
    transfer.post(Some(b"second")).unwrap();
    drop(transfer);
    a.agent.deregister(a.id).unwrap();
    let mut second = b.agent.wait_notification(Duration::ZERO);
    // The second one may have ended before it was cancelled.
    assert!(second.take().is_none_or(|got| got.message == b"second"));
    assert!(matches!(
        a.agent.transfer(Direction::Read, &whole(&a), &whole(&b), "right"),
        Err(Error::NotRegistered { .. })
    ));
}

#[test]
fn an_agent_that_leaves_is_lost_to_the_others_and_a_new_one_takes_its_name() {
    let Some((a, b)) = two(PROVIDERS[0], 1 << 16) else { return };
    let c = Member::new("third", PROVIDERS[0], 1 << 16).unwrap();
    a.loads(&b);
    a.loads(&c);
    a.whole(Direction::Write, &b, None).unwrap();
    let mut prepared = a.agent.transfer(Direction::Write, &[a.at(0, 8)], &[b.at(0, 8)], "right").unwrap();
    drop(b);
    until("the loss to be noticed", || {
        matches!(prepared.post(None).and_then(|()| prepared.wait(LONG)), Err(Error::Lost { .. }))
    });
    assert!(matches!(a.agent.connect("right"), Err(Error::Lost { .. })));
    a.whole(Direction::Write, &c, None).unwrap();
    let b = Member::new("right", PROVIDERS[0], 1 << 16).unwrap();
    a.loads(&b);
    a.whole(Direction::Write, &b, Some(b"again")).unwrap();
    assert_eq!(b.notification().message, b"again");
    // An agent that was never there.
    let gone = Member::new("gone", PROVIDERS[0], 64).unwrap();
    a.loads(&gone);
    let at = gone.at(0, 8);
    drop(gone);
    let lost = a.agent.transfer(Direction::Write, &[a.at(0, 8)], &[at], "gone").and_then(|mut transfer| {
        transfer.post(None)?;
        transfer.wait(LONG)
    });
    assert!(matches!(lost, Err(Error::Lost { .. })), "{lost:?}");
}

#[test]
fn an_agent_over_shm_may_be_used_by_others_of_its_process_after_it_has_ended() {
    let Some((a, b)) = two("shm", 1 << 16) else { return };
    a.loads(&b);
    a.whole(Direction::Write, &b, None).unwrap();
    let mut transfer = a.agent.transfer(Direction::Write, &[a.at(0, 1 << 16)], &[b.at(0, 1 << 16)], "right").unwrap();
    drop(b);
    until("the loss to be noticed", || match transfer.post(None).and_then(|()| transfer.wait(LONG)) {
        Ok(_) => false,
        Err(error) => matches!(error, Error::Lost { .. } | Error::Failed { .. }),
    });
}
