//! The target agent, and endpoints that it learns of only when they introduce themselves.

use symrail_proxy::agent::Agent;
use symrail_transport::amo::{AmoOp, AmoType};
use symrail_transport::endpoint::TargetAgent;
use symrail_transport::region::Segment;
use symrail_transport::wire::{FROM_CONTEXT, Request, RequestKind};

const LANES: usize = 3;

fn request(kind: RequestKind, lane: usize, sequence: u32) -> Request {
    Request {
        kind,
        op: AmoOp::Add,
        ty: AmoType::U64,
        origin: FROM_CONTEXT,
        fetch: false,
        urgent: false,
        lane: lane as u8,
        source: 1,
        sequence,
        payload: 0,
        acknowledged: 0,
        offset: 0,
        operand: 1,
        second: 0,
        id: 0,
    }
}

#[test]
fn what_is_to_be_counted_outside_of_its_memory_is_refused() {
    let mut agent = Agent::new(2, LANES);
    let mut words = [0u64; 2];
    // SAFETY: the memory outlives all users of the segment, and no reference into it exists meanwhile.
    unsafe { agent.add_segment(Segment::new(0, 64, words.as_mut_ptr().cast(), 16)) };
    for word in [64, 72, 72, 56, 68, 76, 80, u64::from(u32::MAX) * 8] {
        agent.count(word);
    }
    assert_eq!(agent.counts(), (3, 5), "applied and refused");
    drop(agent);
    assert_eq!(words, [1, 2]);
}

#[test]
fn each_stream_of_a_new_endpoint_begins_on_its_own_lane() {
    let mut agent = Agent::new(2, LANES);
    let mut words = [0u64; 1];
    // The agent accesses the words only through this pointer, and is dropped before them.
    // SAFETY: the memory outlives all users of the segment, and no reference into it exists meanwhile.
    unsafe { agent.add_segment(Segment::new(0, 0, words.as_mut_ptr().cast(), 8)) };
    for lane in 0..LANES {
        agent.request(lane, &request(RequestKind::Introduce, lane, 1), b"address");
        agent.request(lane, &request(RequestKind::Amo, lane, 2), &[]);
        // The request arrives over another lane without a move, which no source sends.
        agent.request((lane + 1) % LANES, &request(RequestKind::Amo, lane, 3), &[]);
    }
    assert_eq!(agent.counts(), (2 * LANES as u64, 0), "applied and refused");
    drop(agent);
    assert_eq!(words, [LANES as u64]);
}
