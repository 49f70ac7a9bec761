//! The tree of a broadcast: which PE sends to which.
//!
//! The tree is binomial, over indexes counted from the root's. A PE gets the data from the index without its lowest set
//! bit, and forwards it to the indexes that add a lower bit, to the largest subtree first. If hosts have several PEs,
//! there is such a tree over the hosts; one PE of each host forwards the data through another tree over the PEs there.

use crate::team::hosts::Hosts;

/// The children of an index among `size` indexes, as offsets from it.
fn below(place: usize, size: usize) -> impl Iterator<Item = usize> {
    let digits = if place == 0 { size.next_power_of_two().trailing_zeros() } else { place.trailing_zeros() };
    (0..digits).rev().map(move |digit| place + (1 << digit)).filter(move |&child| child < size)
}

/// The parent of an index: the index without its lowest set bit.
fn above(place: usize) -> usize {
    place & place.wrapping_sub(1)
}

/// The root's host, and the index of the PE that receives the data for a host.
fn entries(hosts: &Hosts, root: u32) -> (usize, impl Fn(usize) -> usize + use<>) {
    let (start, place_of_root) = hosts.home(root);
    (start, move |host| if host == start { place_of_root } else { 0 })
}

/// The PEs to which this PE forwards data from `root`, in this order.
pub(super) fn children(hosts: &Hosts, root: u32) -> Vec<u32> {
    let (me, members) = (hosts.me() as usize, hosts.members());
    if !hosts.are_mixed() {
        let root = root as usize;
        let place = (me + members - root) % members;
        return below(place, members).map(|child| ((child + root) % members) as u32).collect();
    }
    let (start, speaks) = entries(hosts, root);
    let (count, here, mates) = (hosts.count(), hosts.here(), hosts.mates());
    let mut children = Vec::new();
    if hosts.place() == speaks(here) {
        let to = |place: usize| (place + start) % count;
        children.extend(below((here + count - start) % count, count).map(|host| hosts.on(to(host))[speaks(to(host))]));
    }
    let (first, size) = (speaks(here), mates.len());
    children.extend(below((hosts.place() + size - first) % size, size).map(|place| mates[(place + first) % size]));
    children
}

/// The PE that sends this PE the data from `root`; `None` for the root.
pub(super) fn parent(hosts: &Hosts, root: u32) -> Option<u32> {
    let (me, members) = (hosts.me() as usize, hosts.members());
    if hosts.me() == root {
        return None;
    }
    if !hosts.are_mixed() {
        let root = root as usize;
        return Some(((above((me + members - root) % members) + root) % members) as u32);
    }
    let (start, speaks) = entries(hosts, root);
    let (count, here, mates) = (hosts.count(), hosts.here(), hosts.mates());
    let (first, size) = (speaks(here), mates.len());
    if hosts.place() != first {
        return Some(mates[(above((hosts.place() + size - first) % size) + first) % size]);
    }
    let from = (above((here + count - start) % count) + start) % count;
    Some(hosts.on(from)[speaks(from)])
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::team::group::Group;
    use crate::team::hosts::shapes;

    /// Broadcasts from `root` to all. Returns how many messages leave a host, and the longest chain of messages.
    fn broadcast(hosts: &[u32], root: u32) -> (usize, usize) {
        let n = hosts.len() as u32;
        let (mut got, mut next, mut between_hosts) = (vec![None; hosts.len()], vec![root], 0);
        got[root as usize] = Some(0);
        while let Some(pe) = next.pop() {
            let children = children(&Hosts::new(Group::world(pe, n), hosts), root);
            let mut depth = got[pe as usize].unwrap();
            for child in children {
                depth += 1;
                assert_eq!(got[child as usize].replace(depth), None, "PE {child} gets it twice");
                assert_eq!(parent(&Hosts::new(Group::world(child, n), hosts), root), Some(pe), "of PE {child}");
                between_hosts += usize::from(hosts[child as usize] != hosts[pe as usize]);
                next.push(child);
            }
        }
        assert!(got.iter().all(Option::is_some), "{got:?}");
        assert_eq!(parent(&Hosts::new(Group::world(root, n), hosts), root), None);
        (between_hosts, got.into_iter().flatten().max().unwrap())
    }

    #[test]
    fn all_get_it_once_and_each_host_once() {
        for n in 1..=20u32 {
            for (_, hosts) in shapes(n) {
                let count = hosts.iter().collect::<std::collections::BTreeSet<_>>().len();
                for root in 0..n {
                    assert_eq!(broadcast(&hosts, root).0, count - 1, "{n} PEs on {hosts:?}");
                }
            }
        }
    }

    #[test]
    fn it_takes_as_many_steps_as_there_are_binary_digits() {
        assert_eq!(broadcast(&[0, 1, 2, 3, 4, 5, 6, 7], 3).1, 3);
        assert_eq!(broadcast(&[0; 16], 5).1, 4);
        assert_eq!(broadcast(&[0, 0, 0, 0, 4, 4, 4, 4], 6).1, 3);
    }
}
