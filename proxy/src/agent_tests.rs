//! Requests that are deferred, of a source that is forgotten meanwhile.

use super::*;

/// A request whose outcome comes later.
fn deferred(source: Pe) -> Request {
    Request {
        kind: RequestKind::Flush,
        op: amo::AmoOp::Fetch,
        ty: amo::AmoType::U64,
        origin: 0,
        fetch: true,
        urgent: false,
        lane: 0,
        source,
        sequence: 1,
        payload: 0,
        acknowledged: 0,
        offset: 0,
        operand: 0,
        second: 0,
        id: source.into(),
    }
}

#[test]
fn a_late_outcome_does_not_go_to_the_successor_of_its_source() {
    let mut agent = Agent::new(8, 1);
    agent.stage();
    agent.know_only_proxies();
    agent.request(0, &deferred(2), &[]);
    agent.forget(2);
    agent.request(0, &deferred(4), &[]);
    assert_eq!(agent.sources.find(4), 1, "it has the record of its predecessor");
    agent.later.clear();
    for (source, late) in [(2, vec![]), (4, vec![4])] {
        let request = agent.next_deferred().map(|it| it.request);
        assert_eq!(request.map(|it| it.source), Some(source));
        agent.report(&deferred(source), Outcome::of(u64::from(source), 0, Refusal::None));
        assert_eq!(agent.connections[1].late.iter().map(|it| it.id).collect::<Vec<_>>(), late);
    }
    assert!(agent.streams_of(2, FROM_CONTEXT, true).is_none(), "it has no such endpoint");
}
