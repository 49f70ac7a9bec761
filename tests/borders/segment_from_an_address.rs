//! An address becomes a segment by an unsafe function only.
use symrail_core::Segment;
use symrail_proxy::agent::Agent;

fn main() {
    let segment = Segment::new(0, 0, std::ptr::without_provenance_mut(8), 8);
    Agent::new(0, 1, 1).add_segment(segment);
}
