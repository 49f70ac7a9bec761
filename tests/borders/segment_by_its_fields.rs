//! A segment's fields are private.
use symrail_core::Segment;

fn moved(segment: Segment) -> Segment {
    Segment { base: std::ptr::without_provenance_mut(8), ..segment }
}

fn main() {
    let _ = moved;
}
