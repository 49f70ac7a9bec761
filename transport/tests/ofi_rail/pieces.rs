//! Work requests of several pieces.

use std::time::{Duration, Instant};

use serial_test::serial;
use symrail_transport::rail::{Notify, Piece, Pieces, PostError};

use super::TCP;
use super::peer::Pair;

const PATIENCE: Duration = Duration::from_secs(60);

/// Local offsets, remote offsets and lengths of pieces: short ones, and more than a socket accepts at once.
const PLACES: [(usize, usize, usize); 4] =
    [(0, 700_000, 8), (1 << 12, 600_008, 4096), (1 << 17, 64, 65_536), (5 << 16, 300_000, 262_144)];

#[test]
#[serial]
fn tcp_moves_four_pieces_at_once() {
    let Some(mut pair) = Pair::start(&TCP) else { return };
    assert_eq!(pair.side.rails[0].caps().pieces, PLACES.len());
    let pieces =
        PLACES.map(|(here, there, len)| Piece { local: pair.local(0, here, len), remote: pair.remote(0, there) });
    let ends = |(here, there, len): (usize, usize, usize)| [(here, there), (here + len - 8, there + len - 8)];
    let before = pair.ask_number("count immediates");
    for (round, way) in [(Notify::Delivered, None), (Notify::Transmitted, Some(77))].into_iter().enumerate() {
        let (notify, immediate) = way;
        let number = |at: usize| (at + 10 * round) as u64;
        for (here, _) in PLACES.into_iter().flat_map(ends) {
            pair.side.write_heap(here, number(here));
        }
        let id = 1 + round as u64;
        // SAFETY: the heap stays, and no code accesses these parts of it before the completion.
        pair.post("pieces", |pair| unsafe {
            pair.side.rails[0].move_pieces(0, &pieces, Pieces::Written(notify, immediate), id)
        });
        pair.wait_done(id);
        if let Some(immediate) = immediate {
            let deadline = Instant::now() + PATIENCE;
            while pair.ask_number("count immediates") == before {
                assert!(Instant::now() < deadline, "the immediate did not arrive");
            }
            assert_eq!(pair.ask_number(&format!("immediate {before}")), immediate);
        }
        for (here, there) in PLACES.into_iter().flat_map(ends) {
            let found = pair.ask_number(&format!("peek {there}"));
            assert_eq!(found, number(here), "a piece was not there on delivery, or behind the immediate");
        }
    }
    for (_, there) in PLACES.into_iter().flat_map(ends) {
        pair.ask(&format!("poke {there} {}", there + 3));
    }
    // SAFETY: as above.
    pair.post("pieces", |pair| unsafe { pair.side.rails[0].move_pieces(0, &pieces, Pieces::Read, 9) });
    pair.wait_done(9);
    for (here, there) in PLACES.into_iter().flat_map(ends) {
        assert_eq!(pair.side.read_heap(here), there as u64 + 3);
    }
    let five = [pieces[0]; 5];
    // SAFETY: as above.
    let refused = unsafe { pair.side.rails[0].move_pieces(0, &five, Pieces::Read, 10) };
    assert!(matches!(refused, Err(PostError::Failed(_))), "{refused:?}");
}
