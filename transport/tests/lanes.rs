//! Lanes between rails on network interfaces: which pair, and what happens to one that never connects.
#![allow(clippy::unwrap_used)]

use symrail_transport::endpoint::command::{Command, Owner, Source};
use symrail_transport::endpoint::{Addresses, Endpoint, NoAgent, Policy, Role, TargetAgent};
use symrail_transport::env::Settings;
use symrail_transport::mock::{Fabric, FabricConfig};
use symrail_transport::pairing::InterfaceAddress;
use symrail_transport::region::Segment;
use symrail_transport::wire::{Reply, Request, RequestKind, Token};

const WORDS: usize = 4096;
const LEN: usize = 8 * WORDS;
/// Seconds that an operation may take: more than any test ticks.
const TIMEOUT: u64 = 60;

/// PE 0's host endpoint, and PE 1's memory behind its proxy endpoint. Rails are numbered in the order of opening: those
/// of the host endpoint, then those of PE 1.
struct World {
    host: Endpoint,
    peer: Endpoint,
    memory: Vec<u64>,
    fabric: Fabric,
    second: u32,
}

fn interface(network: u32, ip: [u8; 4]) -> Option<InterfaceAddress> {
    Some(InterfaceAddress { ip: ip.into(), prefix: 24, network })
}

/// The part of a target agent that failover needs: it answers moves of streams, of which it has applied nothing.
#[derive(Default)]
struct Moves(Vec<(usize, Request)>);

impl TargetAgent for Moves {
    fn request(&mut self, lane: usize, request: &Request, _payload: &[u8]) {
        if request.kind == RequestKind::Move {
            self.0.push((lane, *request));
        }
    }

    fn count(&mut self, _word: u64) {}
}

impl Moves {
    fn answer(self, endpoint: &mut Endpoint) {
        for (lane, Request { source, origin, lane: stream, sequence, operand, .. }) in self.0 {
            let generation = operand as u32;
            let reply = Reply {
                source: endpoint.me(),
                lane: stream,
                after: sequence,
                applied: sequence,
                generation,
                outcomes: 0,
            };
            let mut bytes = [&[0; Token::SIZE][..], &reply.encode()].concat();
            assert!(endpoint.reply(source, origin, lane, &mut bytes));
        }
    }
}

impl World {
    /// A world whose endpoints have rails at these addresses, of hosts 1 and 2.
    fn new(here: &[[u8; 4]], there: &[[u8; 4]]) -> World {
        World::over(FabricConfig::default(), here, there)
    }

    fn over(config: FabricConfig, here: &[[u8; 4]], there: &[[u8; 4]]) -> World {
        let fabric = Fabric::new(7, FabricConfig { delay: 0, again: 0, ..config });
        let mut settings = Settings::default();
        settings.timeout_s = TIMEOUT;
        let policy = Policy::new(&settings, false);
        let endpoint = |role, me, network, ips: &[[u8; 4]]| {
            let open = |ip: &[u8; 4]| fabric.open_at(&format!("rail{}", ip[2]), interface(network, *ip)).unwrap();
            Endpoint::new(role, me, 2, ips.iter().map(open).collect(), policy).unwrap()
        };
        let (mut host, mut peer) = (endpoint(Role::Host, 0, 1, here), endpoint(Role::Proxy, 1, 2, there));
        let mut proxy = endpoint(Role::Proxy, 0, 1, here);
        let mut memory: Vec<u64> = (0..2 * WORDS as u64).collect();
        let base = memory.as_mut_ptr();
        // SAFETY: the memory outlives all users of the segment, and no reference into it exists meanwhile.
        let segment = |base: *mut u64| unsafe { Segment::new(0, 0, base.cast(), LEN as u64) };
        // SAFETY: the memory is dropped after the endpoints.
        let keys =
            unsafe { [proxy.register(segment(base)).unwrap(), peer.register(segment(base.add(WORDS))).unwrap()] };
        // SAFETY: as above.
        unsafe { host.register(segment(base)) }.unwrap();
        let addresses = [
            Addresses { host: host.addresses(), proxy: proxy.addresses() },
            Addresses { host: Vec::new(), proxy: peer.addresses() },
        ];
        host.learn(0, &keys).unwrap();
        host.connect(1, &addresses[1]).unwrap();
        peer.connect(0, &addresses[0]).unwrap();
        World { host, peer, memory, fabric, second: 0 }
    }

    fn put(&mut self) {
        let source = Source::Stable(self.memory.as_ptr().cast());
        // SAFETY: the memory stays unchanged until the put has ended.
        unsafe {
            self.host.submit(1, Command::Put { dest: 0, source, len: LEN as u64 }, Owner { issuer: 0, tag: None })
        }
        .unwrap();
    }

    /// Lets both endpoints work for a second.
    fn second(&mut self) {
        self.second += 1;
        self.host.tick(self.second);
        self.peer.tick(self.second);
        for _ in 0..1000 {
            self.host.poll(&mut NoAgent);
            let mut moves = Moves::default();
            self.peer.poll(&mut moves);
            moves.answer(&mut self.peer);
        }
    }

    /// Seconds until the put has arrived, up to a limit.
    fn seconds_until_put(&mut self, limit: u32) -> Option<u32> {
        let begin = self.second;
        while self.second < begin + limit {
            self.second();
            // A lane that is tried again keeps the endpoint active.
            if self.host.is_quiet(0) {
                assert!(self.host.take_error(0).is_none());
                assert_eq!(self.memory[..WORDS], self.memory[WORDS..]);
                return Some(self.second - begin);
            }
        }
        None
    }

    /// For each of the host endpoint's rails: writes, and how often it was given up.
    fn counters(&self) -> Vec<(u64, u64)> {
        self.host.counters().iter().map(|lane| (lane.writes, lane.given_up)).collect()
    }
}

#[test]
fn a_rail_with_an_address_of_the_peers_host_is_no_lane() {
    let docker0 = [172, 17, 0, 1];
    let mut world = World::new(&[docker0, [10, 0, 0, 1]], &[[10, 0, 0, 2], docker0]);
    // Nothing reaches the peer over these: the host endpoint's first rail, and the peer's second.
    [0, 3].into_iter().for_each(|rail| world.fabric.make_unreachable(rail));
    world.put();
    assert_eq!(world.seconds_until_put(1), Some(1));
    let counters = world.counters();
    assert!(counters[0] == (0, 0) && counters[1].0 > 0 && counters[1].1 == 0, "{counters:?}");
}

#[test]
fn rails_in_another_order_pair_within_their_subnets() {
    let mut world = World::new(&[[10, 0, 0, 1], [10, 0, 1, 1]], &[[10, 0, 1, 2], [10, 0, 0, 2]]);
    // The networks of 10.0.0 and of 10.0.1 are apart, which the mock fabric does not know: it shows by this one.
    [0, 3].into_iter().for_each(|rail| world.fabric.make_unreachable(rail));
    world.put();
    let seconds = world.seconds_until_put(10).unwrap();
    assert!(seconds > 1, "the first lane cannot work");
    let counters = world.counters();
    assert!(counters[0].1 == 1 && counters[1].0 > 0 && counters[1].1 == 0, "{counters:?}");
}

#[test]
fn a_lane_that_never_connected_is_given_up_at_once_while_another_works() {
    let mut world = World::new(&[[10, 0, 0, 1], [10, 0, 1, 1]], &[[10, 0, 0, 2], [10, 0, 1, 2]]);
    world.fabric.make_unreachable(0);
    world.put();
    let seconds = world.seconds_until_put(TIMEOUT as u32 / 2).unwrap();
    assert!(seconds <= 3, "{seconds} s, counted in whole ones");
    assert_eq!(world.counters()[0].1, 1);
    world.put();
    assert_eq!(world.seconds_until_put(1), Some(1), "the next put does not try the lane");
}

#[test]
fn a_peer_that_answers_over_no_lane_keeps_all_its_lanes() {
    let mut world = World::new(&[[10, 0, 0, 1], [10, 0, 1, 1]], &[[10, 0, 0, 2], [10, 0, 1, 2]]);
    [0, 1].into_iter().for_each(|rail| world.fabric.make_unreachable(rail));
    world.put();
    assert_eq!(world.seconds_until_put(TIMEOUT as u32 / 2), None);
    assert_eq!(world.counters(), [(0, 0); 2]);
    let error = loop {
        world.second();
        if let Some(error) = world.host.take_error(0) {
            break error.to_string();
        }
        assert!(world.second < 3 * TIMEOUT as u32);
    };
    assert!(error.contains("PE 1"), "{error}");
    world.put_is_refused_with(&["rail rail0 (10.0.0.1 to 10.0.0.2)", "rail rail1 (10.0.1.1 to 10.0.1.2)"]);
}

#[test]
fn memory_of_an_operation_that_was_reported_as_failed_is_not_accessed_later() {
    let config = FabricConfig { tells_silence: true, ..FabricConfig::default() };
    let mut world = World::over(config, &[[10, 0, 0, 1]], &[[10, 0, 0, 2]]);
    world.put();
    assert_eq!(world.seconds_until_put(1), Some(1));
    let mut fetched = vec![0u64; WORDS];
    let dest = fetched.as_mut_ptr();
    let get = Command::Get { source: 0, dest: dest.cast(), len: LEN as u64 };
    world.fabric.mute(0);
    // SAFETY: the memory is not used otherwise until the get has ended.
    unsafe { world.host.submit(1, get, Owner { issuer: 0, tag: Some(1) }) }.unwrap();
    let failed = loop {
        world.second();
        assert!(world.second < 2 * TIMEOUT as u32, "no end within twice the time-out");
        if let Some(end) = world.host.take_finished(0, 1) {
            break end.result;
        }
    };
    assert!(failed.is_err_and(|error| error.to_string().contains("PE 1")));
    // SAFETY: the caller's own again.
    unsafe { std::slice::from_raw_parts_mut(dest, WORDS) }.fill(7);
    world.fabric.plug_in(0);
    (0..5).for_each(|_| world.second());
    // SAFETY: as above.
    assert!((0..WORDS).all(|at| unsafe { dest.add(at).read_volatile() } == 7), "it was overwritten");
}

impl World {
    /// Checks the error about a peer that was given up.
    fn put_is_refused_with(&mut self, texts: &[&str]) {
        for _ in 0..3 * TIMEOUT {
            self.second();
        }
        let source = Source::Stable(self.memory.as_ptr().cast());
        let put = Command::Put { dest: 0, source, len: LEN as u64 };
        // SAFETY: the put is refused.
        let refused = unsafe { self.host.submit(1, put, Owner { issuer: 0, tag: None }) };
        let error = refused.unwrap_err().to_string();
        assert!(texts.iter().all(|text| error.contains(text)), "{error}");
    }
}

#[test]
fn a_peer_without_a_rail_in_reach_is_an_error_that_names_both_ends() {
    let rail = |network, ip| Fabric::new(1, FabricConfig::default()).open_at("rail", interface(network, ip)).unwrap();
    let endpoint = |me, network, ip| {
        let policy = Policy::new(&Settings::default(), false);
        Endpoint::new(Role::Proxy, me, 2, vec![rail(network, ip)], policy).unwrap()
    };
    let (mut here, there) = (endpoint(0, 1, [172, 17, 0, 1]), endpoint(1, 2, [172, 17, 0, 1]));
    let error = here.connect(1, &Addresses { host: Vec::new(), proxy: there.addresses() }).unwrap_err().to_string();
    assert!(error.contains("PE 1, which is at 172.17.0.1/24") && error.contains("SYMRAIL_NIC_LIST"), "{error}");
}
