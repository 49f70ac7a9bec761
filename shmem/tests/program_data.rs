//! Static variables as symmetric memory, in a process of their own: sharing replaces all of its data pages.
#![allow(clippy::unwrap_used)]

use symrail::Runtime;

static mut VARIABLE: u64 = 7;

#[test]
fn shared_variables_keep_their_values_and_are_heap_memory() {
    let mut runtime = Runtime::init().unwrap();
    let variable = (&raw mut VARIABLE).cast::<u8>();
    let bytes = 9u64.to_ne_bytes();
    // SAFETY: this is the only test, so there is no thread but the waiting harness, and no other code uses the
    // variable.
    unsafe {
        assert!(runtime.put(variable, bytes.as_ptr(), 8, 0).is_err());
        runtime.share_program_data().unwrap();
        assert_eq!(variable.cast::<u64>().read_volatile(), 7);
        runtime.put(variable, bytes.as_ptr(), 8, 0).unwrap();
        assert_eq!(variable.cast::<u64>().read_volatile(), 9);
        assert_ne!(runtime.peer_ptr(variable, 0), variable, "the heap's own address of it");
    }
    runtime.finalize().unwrap();
    // SAFETY: as above; the mapping outlives the heap.
    assert_eq!(unsafe { variable.cast::<u64>().read_volatile() }, 9);
}
