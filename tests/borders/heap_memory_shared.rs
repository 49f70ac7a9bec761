//! Code that zeroes or copies a heap's memory needs exclusive access.
use symrail_heap::memory::HostMemory;

fn from_two_threads(memory: &HostMemory) {
    memory.zero(0, 64);
    memory.copy(0, 64, 64);
}

fn main() {
    let _ = from_two_threads;
}
