//! Only an unsafe function makes a segment of an address.
use symrail_core::Segment;
use symrail_proxy::agent::Agent;

fn main() {
    let segment = Segment::new(0, 0, std::ptr::without_provenance_mut(8), 8);
    Agent::new(1, 1).add_segment(segment);
}
