//! Opening an endpoint: rails, peers and memory.

use std::sync::Arc;

use super::abilities::{AMO_LANE, Abilities};
use super::clock::Clock;
use super::failover::{Failover, Recovery};
use super::issuers::Issuers;
use super::lanes::{Lanes, MAX_LANES};
use super::observe::Observer;
use super::operations::Operations;
use super::paths::Paths;
use super::profile::Profile;
use super::queue::SendQueue;
use super::segmentation::Segmentation;
use super::swap_loop::Loops;
use super::{Addresses, Core, Directory, Endpoint, Policy, Role};
use crate::bounce::Bounce;
use crate::device::{DeviceMemory, Export};
use crate::error::{Error, Result};
use crate::grown::{self, GrownKeys};
use crate::pairing::{InterfaceAddress, pairs};
use crate::pe::Pe;
use crate::rail::{Dest, LocalKey, Rail, RailCaps, Registration};
use crate::region::{Regions, Segment};
use crate::token;
use crate::wire::{Origin, Token};

/// The rails of both ends that form lanes, and the interfaces of the other end's rails.
type Connected = (Vec<(usize, usize)>, Vec<Option<InterfaceAddress>>);

/// The most PEs of a job: the rails of a proxy endpoint number two destinations for each.
const MOST_PES: u32 = Dest::MAX / 2;

impl Endpoint {
    /// Opens an endpoint of PE `me` over opened rails, which become its lanes in this order.
    ///
    /// # Errors
    /// The error of registering the endpoint's own buffers; [`Error::Unsupported`] for more PEs than destinations have
    /// numbers for; or that there is no rail.
    pub fn new(role: Role, me: Pe, n_pes: u32, mut rails: Vec<Box<dyn Rail>>, policy: Policy) -> Result<Self> {
        if n_pes > MOST_PES {
            let (what, by) = (format!("a job of {n_pes} PEs"), "an endpoint".into());
            return Err(Error::Unsupported { what, by, remedy: format!("use at most {MOST_PES} PEs") });
        }
        let caps: Vec<RailCaps> = rails.iter().map(|r| r.caps().clone()).collect();
        let Some(largest) = caps.iter().map(|c| c.max_send).min() else {
            return Err(Error::NoRail { wanted: "an endpoint".into(), found: "nothing".into() });
        };
        let bounce = Bounce::new(&mut rails, largest)?;
        let abilities = Abilities::of(rails[AMO_LANE].as_ref());
        let lanes = rails.len();
        let profile = Profile::new(role, (me, n_pes), policy, caps, abilities, bounce.largest())?;
        let core = Core {
            lanes: Lanes::new(&profile),
            profile,
            clock: Clock::new(),
            observer: Observer::new(lanes),
            regions: Regions::new(MAX_LANES),
            bounce,
            ops: Operations::new(),
            issuers: Issuers::new(),
            queue: SendQueue::new(lanes),
            segmentation: Segmentation::new(lanes),
            late: Vec::new(),
            closing: Vec::new(),
            recovery: Recovery::new(lanes),
            loops: Loops::default(),
            paths: Paths::new(rails.iter().map(|r| r.interface(&r.address()))),
        };
        Ok(Endpoint { rails, directory: None, core })
    }

    /// The addresses of its rails, each with the endpoint's [`Token`], for [`Addresses`].
    #[must_use]
    pub fn addresses(&self) -> Vec<Vec<u8>> {
        self.rails.iter().map(|r| self.core.profile.token().with_address(r.address())).collect()
    }

    /// As [`Endpoint::addresses`], for `pe` only, to which rails may give queue pairs of their own.
    ///
    /// # Errors
    /// The error of the backend.
    pub fn addresses_to(&mut self, pe: Pe) -> Result<Vec<Vec<u8>>> {
        let token = self.core.profile.token();
        self.rails.iter_mut().map(|rail| Ok(token.with_address(rail.address_to(pe)?))).collect()
    }

    /// Connects this endpoint's rails to those of an endpoint of `pe` with which they form lanes. Returns these pairs, and
    /// the interfaces of the other end's rails.
    fn connect_rails(&mut self, pe: Pe, dest: Dest, addresses: &[Vec<u8>], return_dest: Dest) -> Result<Connected> {
        let theirs = addresses.iter().map(|address| Ok(self.rails[0].interface(Token::split(pe, address)?.0)));
        let theirs: Vec<_> = theirs.take(MAX_LANES).collect::<Result<_>>()?;
        let native = self.core.profile.native_amo();
        let pairs = pairs(self.core.paths.mine(), &theirs, native);
        for &(lane, rail) in &pairs {
            let (address, token) = Token::split(pe, &addresses[rail])?;
            self.rails[lane].connect(dest, address, return_dest)?;
            self.core.profile.learn_token(dest, token);
        }
        Ok((pairs, theirs))
    }

    /// Uses the token of another endpoint of this PE, so that peers have less to store. The caller calls it before it
    /// publishes the addresses.
    pub fn share_token(&mut self, other: &Endpoint) {
        self.core.profile.set_token(other.core.profile.token());
    }

    /// Sets the directory of PEs that are not connected. The endpoint connects each when it first addresses it or hears
    /// of it.
    pub fn set_directory(&mut self, directory: Arc<dyn Directory>) {
        self.directory = Some(directory);
    }

    /// Connects all PEs of the directory that are not connected yet, which makes the first operations on them cheaper.
    ///
    /// # Errors
    /// The error of the directory or the backend.
    pub fn connect_all(&mut self) -> Result<()> {
        (0..self.n_pes()).try_for_each(|pe| self.need(pe))
    }

    /// Connects a PE, unless it is connected, before an operation on it.
    #[inline(always)]
    pub(super) fn need(&mut self, pe: Pe) -> Result<()> {
        if self.core.lanes.is_connected(pe) { Ok(()) } else { self.connect_now(pe) }
    }

    /// Connects a PE of the directory.
    #[cold]
    pub(super) fn connect_now(&mut self, pe: Pe) -> Result<()> {
        let Some(directory) = self.directory.clone() else { return Ok(()) };
        let Some(addresses) = directory.addresses(pe)? else { return Ok(()) };
        for id in self.core.regions.ids() {
            if let Some(keys) = directory.keys(pe, id)? {
                self.core.regions.learn_of(pe, id, &keys)?;
            }
        }
        self.connect(pe, &addresses)
    }

    /// Reads from the directory the keys of a new segment of all connected PEs.
    ///
    /// # Errors
    /// The error of the directory, or [`Error::Malformed`].
    pub fn learn_segment(&mut self, id: u32) -> Result<()> {
        let Some(directory) = self.directory.clone() else { return Ok(()) };
        for at in 0..self.core.lanes.records() {
            let Some(pe) = self.core.lanes.addressed(at) else { continue };
            if let Some(keys) = directory.keys(pe, id)? {
                self.core.regions.learn_of(pe, id, &keys)?;
            }
        }
        Ok(())
    }

    /// Makes `pe` reachable, over the lanes that the rails of both ends form ([`pairing`](crate::pairing)).
    ///
    /// # Errors
    /// The error of the backend about the addresses; [`Error::NoRail`] where no rail of this PE can reach one of `pe`.
    pub fn connect(&mut self, pe: Pe, addresses: &Addresses) -> Result<()> {
        self.connect_as(self.me(), pe, addresses)
    }

    /// As [`Endpoint::connect`], where `pe` has the number `me` for this PE: PEs that meet one by one number each
    /// other by themselves. The numbers that two PEs have for each other differ.
    ///
    /// # Errors
    /// As for [`Endpoint::connect`].
    pub fn connect_as(&mut self, me: Pe, pe: Pe, addresses: &Addresses) -> Result<()> {
        let (n, role) = (self.core.profile.n_pes(), self.core.profile.role());
        self.core.profile.learn_source(pe, me);
        let return_dest = if role == Role::Host { n + me } else { me };
        let (pairs, theirs) = self.connect_rails(pe, pe, &addresses.proxy, return_dest)?;
        let without_amos = self.core.profile.native_amo() && pairs.first() != Some(&(AMO_LANE, AMO_LANE));
        if !addresses.proxy.is_empty() && (pairs.is_empty() || without_amos) {
            return Err(self.core.paths.none(pe, &theirs, without_amos && !pairs.is_empty()));
        }
        if role == Role::Proxy {
            self.connect_rails(pe, n + pe, &addresses.host, me)?;
        }
        if pe < n {
            self.core.lanes.connect(pe, &pairs, addresses.host.len());
            self.core.paths.learn(pe, theirs);
        }
        let lanes = pairs.len();
        if lanes > 1 && Failover::possible(self.core.profile.all_caps()) {
            self.watch_uses(pe, !addresses.host.is_empty());
            for &(lane, _) in &pairs {
                if let Some(c) = self.core.lanes.get_mut(pe, lane) {
                    c.failover = Some(Box::new(Failover::new(lane)));
                }
            }
        }
        Ok(())
    }

    /// The addresses of its rails' network interfaces, in lane order.
    #[must_use]
    pub fn interfaces(&self) -> &[Option<InterfaceAddress>] {
        self.core.paths.mine()
    }

    /// Whether the addresses of a PE's rails are known here.
    #[must_use]
    pub fn is_connected(&self, pe: Pe) -> bool {
        self.core.lanes.is_connected(pe)
    }

    /// Makes the first lane the only one in use while it works, as for host endpoints. The caller calls it before the
    /// first operation.
    pub fn keep_others_spare(&mut self) {
        self.core.lanes.keep_others_spare();
    }

    /// Makes this endpoint an additional host endpoint of its PE. Peers did not learn of it when they connected, so it
    /// introduces itself to each of them with its first request.
    pub fn introduce_as(&mut self, origin: Origin) {
        let address = self.addresses().into_iter().next();
        self.core.profile.introduce_as(origin, address);
    }

    /// Makes an endpoint that has introduced itself reachable for answers.
    ///
    /// # Errors
    /// The error of the backend about the address.
    pub fn connect_introduced(&mut self, pe: Pe, origin: Origin, address: &[u8]) -> Result<()> {
        let dest = self.core.profile.answer_to(pe, origin);
        self.connect_rails(pe, dest, &[address.to_vec()], self.core.profile.me()).map(drop)
    }

    /// The number of destinations that each rail of an endpoint of `role` connects to, in a job of `n_pes`.
    #[must_use]
    pub fn destinations(role: Role, n_pes: u32) -> u32 {
        if role == Role::Host { n_pes } else { n_pes.saturating_mul(2) }
    }

    /// Registers a segment of this PE's symmetric memory with every rail, and returns its connection info. That of a
    /// proxy endpoint goes to [`Endpoint::learn`] on all PEs. Host endpoints are no targets: peers cannot reach memory
    /// that is registered with them.
    ///
    /// # Safety
    /// The segment stays mapped as long as the endpoint lives.
    ///
    /// # Errors
    /// The error of the provider.
    pub unsafe fn register(&mut self, segment: Segment) -> Result<Vec<u8>> {
        // SAFETY: the caller's promise.
        let local = unsafe {
            match self.core.profile.role() {
                Role::Proxy => {
                    let key = token::random()?;
                    self.register_all(segment, |_| Ok(key))
                }
                Role::Host => {
                    let keys = self.register_local(segment.base(), segment.bytes() as usize, segment.id())?;
                    Ok(keys.into_iter().map(|local| Registration { local, remote_key: 0, remote_base: 0 }).collect())
                }
            }
        }?;
        self.core.regions.add(segment, local);
        Ok(self.core.regions.connection_info(segment.id()))
    }

    /// As [`Endpoint::register`], for a segment by which memory that begins with the segment `first` has grown; for
    /// proxy endpoints. Keys that this library chooses follow from those of `first`, so peers can compute them. Returns
    /// what peers still need.
    ///
    /// # Safety
    /// As for [`Endpoint::register`].
    ///
    /// # Errors
    /// The error of the provider.
    pub unsafe fn register_grown(&mut self, segment: Segment, first: &Segment) -> Result<GrownKeys> {
        let keys: Vec<u64> = self.core.regions.registrations(first.id()).iter().map(|it| it.remote_key).collect();
        let key = |rail| keys.get(rail).map_or_else(token::random, |first| Ok(grown::key(*first, segment.id())));
        // SAFETY: the caller's promise.
        let local = unsafe { self.register_all(segment, key) }?;
        self.core.regions.add(segment, local);
        let [of_first, of_grown] = [first, &segment].map(|it| self.core.regions.connection_info(it.id()));
        Ok(GrownKeys::new((first, &of_first), (&segment, &of_grown)))
    }

    /// As [`Endpoint::register`], for a segment that the CPU does not touch, if all rails reach it (see
    /// [`Rail::register_device`]).
    /// Between PEs that have done so, only puts and gets with a tag and of more bytes than [`Endpoint::copy_limit`]
    /// work on it.
    ///
    /// # Safety
    /// As for [`Endpoint::register`].
    ///
    /// # Errors
    /// The error of the first rail that does not reach it. Then no rail has it registered.
    ///
    /// [`Rail::register_device`]: crate::rail::Rail::register_device
    pub unsafe fn register_device(&mut self, segment: Segment, export: Export<'_>) -> Result<Vec<u8>> {
        let memory = DeviceMemory { base: segment.base(), len: segment.bytes() as usize, export };
        // SAFETY: the caller's promise.
        let local = self.rails.iter_mut().map(|r| unsafe { r.register_device(memory, segment.id()) }).collect();
        match local {
            Ok(local) => self.core.regions.add(segment, local),
            Err(error) => return self.or_deregister(segment.id(), Err(error)),
        }
        Ok(self.core.regions.connection_info(segment.id()))
    }

    /// Stores the connection infos of a segment that all PEs' proxy endpoints have returned.
    ///
    /// # Errors
    /// [`Error::Malformed`].
    pub fn learn(&mut self, id: u32, connection_infos: &[Vec<u8>]) -> Result<()> {
        self.core.regions.learn(id, connection_infos)
    }

    /// Stores the connection info of a segment that `pe` has laid out separately. See [`Regions::learn_separate`].
    ///
    /// # Errors
    /// [`Error::Malformed`], [`Error::NoSuchPe`].
    pub fn learn_separate(&mut self, pe: Pe, offset: u64, len: u64, connection_info: &[u8]) -> Result<()> {
        self.core.regions.learn_separate((pe, self.core.profile.n_pes()), offset, len, connection_info)
    }

    /// Forgets a segment that `pe` has laid out separately.
    pub fn forget_separate(&mut self, pe: Pe, offset: u64) {
        self.core.regions.forget_separate(pe, offset);
    }

    /// Undoes [`Endpoint::register`]; unknown ids are ignored. All operations on the segment must have ended.
    pub fn deregister(&mut self, id: u32) {
        self.rails.iter_mut().for_each(|r| r.deregister(id));
        self.core.regions.remove(id);
    }

    /// Registers a local buffer outside of the heap. `id` must not be a segment's.
    ///
    /// # Safety
    /// The buffer stays mapped until [`Endpoint::deregister_buffer`].
    ///
    /// # Errors
    /// The error of the provider.
    pub unsafe fn register_buffer(&mut self, base: *mut u8, len: usize, id: u32) -> Result<()> {
        // SAFETY: the caller's promise.
        let local = unsafe { self.register_local(base, len, id) }?;
        // SAFETY: the caller's promise.
        unsafe { self.core.regions.add_buffer(base, len, id, local) };
        Ok(())
    }

    /// Undoes [`Endpoint::register_buffer`] for a buffer that starts at `base`; unknown buffers are ignored. Rails keep
    /// the registration until no work request uses the bytes: another registration of them may have been meant.
    pub fn deregister_buffer(&mut self, base: *const u8, id: u32) {
        if let Some(bytes) = self.core.regions.remove_buffer(base.addr(), id) {
            self.core.closing.push((id, bytes));
            self.close_buffers();
        }
    }

    /// Ends registrations that [`Endpoint::deregister_buffer`] has left to rails, as far as no work request uses them.
    pub(super) fn close_buffers(&mut self) {
        let Core { closing, queue, .. } = &mut self.core;
        closing.retain(|(id, bytes)| {
            let within = |ptr: *mut u8| bytes.contains(&(ptr.addr() as u64));
            let used = queue.all().any(|(_, request)| request.slot.is_none() && within(request.ptr));
            if !used {
                self.rails.iter_mut().for_each(|r| r.deregister(*id));
            }
            used
        });
    }

    /// On an error no rail has it registered.
    unsafe fn register_local(&mut self, base: *mut u8, len: usize, id: u32) -> Result<Vec<LocalKey>> {
        // SAFETY: the callers' promise, passed on.
        let keys = self.rails.iter_mut().map(|r| unsafe { r.register_local(base, len, id) }).collect();
        self.or_deregister(id, keys)
    }

    /// Undoes the registration of `id` with the rails before the one that has refused it.
    fn or_deregister<T>(&mut self, id: u32, registered: Result<T>) -> Result<T> {
        registered.inspect_err(|_| self.rails.iter_mut().for_each(|r| r.deregister(id)))
    }

    /// `key` returns the key for each rail. On an error no rail has it registered.
    unsafe fn register_all(
        &mut self,
        segment: Segment,
        key: impl Fn(usize) -> Result<u64>,
    ) -> Result<Vec<Registration>> {
        let register = |(at, rail): (usize, &mut Box<dyn Rail>)| {
            rail.suggest_key(key(at)?);
            // SAFETY: the callers' promise, passed on.
            unsafe { rail.register(segment.base(), segment.bytes() as usize, segment.id()) }
        };
        let all = self.rails.iter_mut().enumerate().map(register).collect();
        self.or_deregister(segment.id(), all)
    }
}

impl Core {
    /// The number of destinations of rails that belong to records of PEs, including free ones.
    pub(super) fn addressed_dests(&self) -> usize {
        let each = if self.profile.role() == Role::Host { 1 } else { 2 };
        each * self.lanes.records()
    }

    /// A destination of rails that belongs to a PE with a record; `None` for a free record.
    pub(super) fn addressed_dest(&self, at: usize) -> Option<Dest> {
        match self.profile.role() {
            Role::Host => self.lanes.addressed(at),
            Role::Proxy => self.lanes.addressed(at / 2).map(|pe| self.profile.answer_to(pe, (at % 2) as Origin)),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::endpoint::command::{Command, Owner, Source};
    use crate::endpoint::{NoAgent, Policy};
    use crate::env::Settings;
    use crate::mock::{Fabric, FabricConfig};

    #[test]
    fn more_pes_than_destinations_have_numbers_for_are_refused() {
        let policy = || Policy::new(&Settings::default(), false);
        for (role, n_pes) in [(Role::Proxy, 1 << 31), (Role::Host, u32::MAX)] {
            let rails = vec![Fabric::new(1, FabricConfig::default()).open("mock").unwrap()];
            let refused = Endpoint::new(role, 0, n_pes, rails, policy()).err().unwrap().to_string();
            assert!(refused.contains(&format!("{n_pes} PEs")) && refused.contains("at most 2147483647"), "{refused}");
            assert!(Endpoint::destinations(role, n_pes) >= n_pes, "room for them is made before");
        }
    }

    #[test]
    fn a_registration_ends_behind_the_work_requests_on_its_bytes() {
        let fabric = Fabric::new(1, FabricConfig { local_registration: true, ..FabricConfig::default() });
        let endpoint = |role, me| {
            let rails = vec![fabric.open("mock").unwrap()];
            Endpoint::new(role, me, 2, rails, Policy::new(&Settings::default(), false)).unwrap()
        };
        let (mut host, mut peer) = (endpoint(Role::Host, 0), endpoint(Role::Proxy, 1));
        let mut memory = vec![5u64; 4096];
        let (base, len) = (memory.as_mut_ptr().cast::<u8>(), 16384);
        // SAFETY: the memory outlives both endpoints.
        let keys = unsafe { peer.register(Segment::new(0, 0, base.add(len), len as u64)) }.unwrap();
        host.connect(1, &Addresses { host: Vec::new(), proxy: peer.addresses() }).unwrap();
        peer.connect(0, &Addresses { host: host.addresses(), proxy: Vec::new() }).unwrap();
        host.learn_separate(1, 0, len as u64, &keys).unwrap();
        // SAFETY: as above.
        unsafe {
            host.register_buffer(base, len, 8).unwrap();
            host.register_buffer(base, len, 9).unwrap();
            let put = Command::Put { dest: 0, source: Source::Stable(base), len: len as u64 };
            host.submit(1, put, Owner { issuer: 0, tag: Some(1) }).unwrap();
        }
        host.deregister_buffer(base, 8);
        host.deregister_buffer(base, 9);
        assert_eq!(host.core.closing.len(), 2, "a work request is under way");
        let mut second = 0;
        while !host.core.closing.is_empty() {
            assert!(second < 1000);
            second += 1;
            host.poll(&mut NoAgent);
            peer.poll(&mut NoAgent);
            host.tick(second);
        }
        assert!(host.take_finished(0, 1).unwrap().result.is_ok());
    }
}
