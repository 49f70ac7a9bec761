//! A group of ranks that can put into each other's memory, and how it comes together.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use symrail_proxy::session::memory::{HANDLE_SIZE, Memory};
use symrail_proxy::session::rendezvous::{Answered, Dial, Handle, Link, Listener, State};
use symrail_proxy::session::{Registered, Request, Session, Words};
use symrail_transport::Pe;
use symrail_transport::amo::AmoOp;
use symrail_transport::endpoint::command::Source;

use super::order::Orders;
use crate::network::Network;
use crate::report::{Failure, Result};

/// Words of a slot of the board: the number of an exchange, the length in bytes, and as many bytes as a handle has.
const SLOT: usize = 2 + HANDLE_SIZE / 8;
/// Calls between two looks at the other ranks' state, each of which is a system call.
const CALLS_PER_LOOK: u64 = 256;

/// Another rank.
struct Member {
    pe: Pe,
    /// The connection; none to this rank itself.
    link: Option<Mutex<Link>>,
    board: Registered,
}

impl Member {
    /// Whether it had closed its end of the group when it was last looked at.
    fn has_closed(&self) -> bool {
        self.link.as_ref().is_some_and(|link| matches!(symrail_core::lock(link).state(), State::Closed | State::Left))
    }
}

/// A group. Collective functions are called by all ranks in the same order, and block.
pub struct Group {
    pub network: Arc<Network>,
    pub rank: usize,
    members: Vec<Member>,
    /// Two slots for each rank, into which that rank puts in turn. A rank begins an exchange when it has everybody's
    /// part of the one before, so no rank still reads the slot that another one puts into.
    board: Words,
    exchanges: Mutex<u64>,
    pub orders: Mutex<Orders>,
    calls: AtomicU64,
}

/// A rank that has dialed and waits.
struct Half {
    rank: usize,
    answered: Answered,
    board: Registered,
}

impl Group {
    /// Connects to the ranks behind all these handles, of which the listener's own is that of `rank`. It blocks until
    /// all have called it.
    ///
    /// # Errors
    /// A rank that does not call, a malformed handle, or the error of the rendezvous.
    pub fn connect(
        network: &Arc<Network>,
        listener: &mut Listener,
        handles: &[[u8; crate::abi::HANDLE_SIZE]],
        rank: usize,
    ) -> Result<Group> {
        let (n, session, begun) = (handles.len(), &network.session, Instant::now());
        let board = Words::new(session, 2 * SLOT * n)?;
        let mut card = (rank as u32).to_le_bytes().to_vec();
        card.extend(board.memory().encode_short());
        let mut members: Vec<Option<Member>> = (0..n).map(|_| None).collect();
        let own = Registered::of_peer(session, board.memory().clone());
        let Some(here) = members.get_mut(rank) else { return Err(Failure::argument(format!("rank {rank} of {n}"))) };
        *here = Some(Member { pe: session.me(), link: None, board: own });
        // Each rank dials those before it.
        let dial = |handle: &[u8; _]| Dial::new(session, &Handle::decode(handle)?, &card);
        let mut dials = handles[..rank].iter().map(dial).collect::<symrail_transport::Result<Vec<_>>>()?;
        let mut halves: Vec<Half> = Vec::new();
        while let Some(missing) = members.iter().position(Option::is_none) {
            for dial in &mut dials {
                if let Some((link, payload)) = dial.poll(session)? {
                    let (number, board) = read_card(session, link.pe(), &payload)?;
                    enter(&mut members, number, link, board)?;
                }
            }
            if let Some(arrival) = listener.poll(session)? {
                let (number, board) = read_card(session, arrival.pe(), arrival.payload())?;
                halves.push(Half { rank: number, answered: arrival.answer(session, &card)?, board });
            }
            for mut half in std::mem::take(&mut halves) {
                match half.answered.poll()? {
                    Some(link) => enter(&mut members, half.rank, link, half.board)?,
                    None => halves.push(half),
                }
            }
            if begun.elapsed() > 2 * network.timeout {
                let seconds = begun.elapsed().as_secs();
                return Err(Failure::remote(format!("rank {missing} of {n} has not connected within {seconds} s")));
            }
            session.progress();
            std::thread::yield_now();
        }
        let members = members.into_iter().flatten().collect();
        let (exchanges, orders, calls) = (Mutex::new(0), Mutex::default(), AtomicU64::new(0));
        Ok(Group { network: Arc::clone(network), rank, members, board, exchanges, orders, calls })
    }

    /// The number of ranks.
    pub fn ranks(&self) -> usize {
        self.members.len()
    }

    /// The number of a rank in this rank's session.
    pub fn pe(&self, rank: usize) -> Pe {
        self.members[rank].pe
    }

    /// Gathers bytes of all ranks: at most [`HANDLE_SIZE`] of each. Collective.
    ///
    /// # Errors
    /// A rank that is lost or does not call.
    pub fn gather(&self, mine: &[u8]) -> Result<Vec<Vec<u8>>> {
        let mut exchanges = symrail_core::lock(&self.exchanges);
        *exchanges += 1;
        let number = *exchanges;
        let slot = |rank: usize| slot(rank, number);
        let here = slot(self.rank);
        self.board.store(here + 1, mine.len() as u64);
        let (words, rest) = mine.as_chunks::<8>();
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        for (i, word) in words.iter().chain([&last]).enumerate().take(HANDLE_SIZE / 8) {
            self.board.store(here + 2 + i, u64::from_le_bytes(*word));
        }
        self.board.store(here, number);
        let (begun, mut puts) = (Instant::now(), Vec::new());
        let gathered = self.exchange(number, begun, &mut puts);
        // Whatever has failed: the puts read the board.
        self.settle(begun, &puts, gathered.is_ok())?;
        gathered?;
        let read = |rank: usize| {
            let (at, len) = (slot(rank), (self.board.load(slot(rank) + 1) as usize).min(HANDLE_SIZE));
            let words = (0..len.div_ceil(8)).flat_map(|i| self.board.load(at + 2 + i).to_le_bytes());
            words.take(len).collect()
        };
        Ok((0..self.ranks()).map(read).collect())
    }

    /// Puts this rank's part of an exchange into all boards, and waits for the other parts.
    fn exchange(&self, number: u64, begun: Instant, puts: &mut Vec<Request>) -> Result<()> {
        let slot = |rank: usize| slot(rank, number);
        let here = slot(self.rank);
        for member in self.members.iter().enumerate().filter(|&(rank, _)| rank != self.rank).map(|(_, member)| member) {
            let place = |word: usize| member.board.place(8 * word as u64);
            let (data, len) = (Source::Stable(self.board.address(here + 1)), 8 * (SLOT as u64 - 1));
            loop {
                let (to, signal) = (place(here + 1), place(here));
                // SAFETY: the slot is not changed before the exchange after the next one.
                let put =
                    unsafe { self.network.session.start_put_signal(to, (data, len), signal, (AmoOp::Set, number)) };
                if let Some(put) = put? {
                    break puts.push(put);
                }
                self.wait(begun, "room for an operation")?;
            }
        }
        let arrived = |rank: usize| self.board.load(slot(rank)) == number;
        while let Some(missing) = (0..self.ranks()).find(|&rank| !arrived(rank)) {
            // An end that closes has put everything before.
            let closed = self.members[missing].has_closed();
            self.wait(begun, &format!("rank {missing}"))?;
            if closed && !arrived(missing) {
                return Err(Failure::remote(format!("rank {missing} has closed the group")));
            }
        }
        Ok(())
    }

    /// Waits until these operations have ended. With `looks` a failure of the group ends the wait; without it the
    /// operations end by themselves.
    fn settle(&self, begun: Instant, puts: &[Request], looks: bool) -> Result<()> {
        let end = Instant::now() + 2 * self.network.timeout;
        for put in puts {
            loop {
                match self.network.session.test(put) {
                    Ok(true) => break,
                    Err(error) if looks => return Err(error.into()),
                    Err(_) => break,
                    Ok(false) if looks => self.wait(begun, "its own operations")?,
                    Ok(false) if Instant::now() > end => return Ok(()),
                    Ok(false) => {
                        self.network.session.progress();
                        std::thread::yield_now();
                    }
                }
            }
        }
        Ok(())
    }

    /// One step of a wait in a collective function.
    fn wait(&self, begun: Instant, what: &str) -> Result<()> {
        self.network.session.progress();
        self.look()?;
        std::thread::yield_now();
        let seconds = begun.elapsed().as_secs();
        if begun.elapsed() < 2 * self.network.timeout {
            return Ok(());
        }
        Err(Failure::remote(format!("rank {} has waited for {what} for {seconds} s", self.rank)))
    }

    /// Makes progress, and looks from time to time whether the other ranks are there.
    ///
    /// # Errors
    /// The first failure of the group's operations; a rank whose process has ended.
    pub fn progress(&self) -> Result<()> {
        self.network.session.progress();
        let mut orders = symrail_core::lock(&self.orders);
        self.look().map_err(|failure| orders.fail(failure))?;
        orders.advance(self)
    }

    /// Whether the group has failed, or a rank is lost.
    pub fn has_failed(&self) -> bool {
        let mut orders = symrail_core::lock(&self.orders);
        orders.usable().and_then(|()| self.look_now().map_err(|failure| orders.fail(failure))).is_err()
    }

    /// Ends all operations. Nothing is posted afterwards.
    pub fn close(&self) {
        symrail_core::lock(&self.orders).forget(self, None);
    }

    /// Looks from time to time whether the other ranks are there.
    ///
    /// # Errors
    /// As for [`Group::progress`].
    pub fn look(&self) -> Result<()> {
        if self.calls.fetch_add(1, Ordering::Relaxed).is_multiple_of(CALLS_PER_LOOK) { self.look_now() } else { Ok(()) }
    }

    /// Looks whether the other ranks are there. One that has closed its group is not missed, but operations to one that
    /// has ended since must not wait for it.
    fn look_now(&self) -> Result<()> {
        for (rank, member) in self.members.iter().enumerate() {
            let Some(link) = &member.link else { continue };
            let (why, is_lost) = match symrail_core::lock(link).poll(&self.network.session) {
                State::Open | State::Closed => continue,
                State::Left => (format!("rank {rank} has closed the group and has ended"), false),
                State::Lost(why) | State::Failed(why) => (format!("rank {rank} is lost: {why}"), true),
            };
            if member.pe != self.network.session.me() {
                self.network.session.remove_peer(member.pe, &why);
            }
            if is_lost {
                return Err(Failure::remote(why));
            }
        }
        Ok(())
    }
}

/// A rank's slot of the board in an exchange.
fn slot(rank: usize, number: u64) -> usize {
    SLOT * (2 * rank + (number % 2) as usize)
}

/// A rank's number and its board.
fn read_card(session: &Arc<Session>, pe: Pe, bytes: &[u8]) -> Result<(usize, Registered)> {
    let Some((rank, board)) = bytes.split_first_chunk() else {
        return Err(Failure::remote(format!("the card of peer {pe} has {} bytes", bytes.len())));
    };
    Ok((u32::from_le_bytes(*rank) as usize, Registered::of_peer(session, Memory::of_peer(pe, board)?)))
}

/// Enters a rank that is connected.
fn enter(members: &mut [Option<Member>], rank: usize, link: Link, board: Registered) -> Result<()> {
    let n = members.len();
    match members.get_mut(rank) {
        Some(place @ None) => {
            *place = Some(Member { pe: link.pe(), link: Some(Mutex::new(link)), board });
            Ok(())
        }
        _ => Err(Failure::remote(format!("a peer connects as rank {rank} of {n}, which is taken or does not exist"))),
    }
}
