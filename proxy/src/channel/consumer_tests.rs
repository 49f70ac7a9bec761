//! Tests of the window of completions.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

#[test]
fn a_full_window_advances_at_once() {
    let mut window = Window::new(128);
    for lap in 0..3 {
        let first = lap * 128;
        for position in first + 1..first + 128 {
            assert!(window.complete(position, 1));
            assert_eq!(window.completed(), first);
        }
        assert!(!window.complete(first + 128, 1), "outside of the window");
        assert!(!window.complete(first + 5, 1), "done already");
        assert!(window.complete(first, 1));
        assert_eq!(window.completed(), first + 128);
    }
    assert!(!window.complete(3, 1), "long past");
}

proptest! {
    #[test]
    fn the_prefix_is_what_a_set_says(runs in proptest::collection::vec((0u64..80, 1u64..20), 1..600)) {
        let mut window = Window::new(64);
        let mut done = BTreeSet::new();
        let mut prefix = 0;
        for (distance, count) in runs {
            // A run is as long as it can be without positions that are complete already.
            let first = prefix + distance;
            let count = (1..=count).take_while(|n| *n == 1 || !done.contains(&(first + n - 1))).count() as u64;
            let fits = distance + count <= 64 && !done.contains(&first);
            prop_assert_eq!(window.complete(first, count), fits);
            if fits {
                done.extend(first..first + count);
            }
            while done.contains(&prefix) {
                prefix += 1;
            }
            prop_assert_eq!(window.completed(), prefix);
        }
    }
}
