//! The order of operations to each PE: a fence holds later ones back until earlier ones have ended.

use std::collections::VecDeque;

use symrail_transport::{Error, Pe, Result};

/// What is remembered of the operations to one PE.
#[derive(Default)]
struct Order {
    /// How many fences came before the operations under way.
    epoch: u32,
    active: u32,
    /// Operations that have to wait, and how many fences came before each.
    held: VecDeque<(usize, u32)>,
}

/// What is remembered for the order of operations. Each has a key of its owner's.
pub(super) struct Orders {
    by_pe: Vec<Order>,
    /// Fences so far.
    epoch: u32,
}

impl Orders {
    pub fn new(n_pes: u32) -> Self {
        Orders { by_pe: (0..n_pes).map(|_| Order::default()).collect(), epoch: 0 }
    }

    pub fn fence(&mut self) {
        self.epoch = self.epoch.wrapping_add(1);
    }

    /// Whether another operation to `pe` would have to wait.
    pub fn would_hold(&self, pe: Pe) -> Result<bool> {
        let Some(order) = self.by_pe.get(pe as usize) else {
            return Err(Error::NoSuchPe { pe: pe.into(), last: self.by_pe.len() as u32 - 1 });
        };
        Ok(!order.held.is_empty() || (order.active > 0 && order.epoch != self.epoch))
    }

    /// An operation that need not wait is on its way.
    pub fn begin(&mut self, pe: Pe) {
        self.by_pe[pe as usize].begin(self.epoch);
    }

    /// Keeps an operation back.
    pub fn hold(&mut self, pe: Pe, key: usize) {
        self.by_pe[pe as usize].held.push_back((key, self.epoch));
    }

    /// Forgets an operation that is kept back. `false`: it was not.
    pub fn forget(&mut self, pe: Pe, key: usize) -> bool {
        let held = &mut self.by_pe[pe as usize].held;
        let at = held.iter().position(|&(k, _)| k == key);
        at.and_then(|at| held.remove(at)).is_some()
    }

    /// An operation that was on its way has ended.
    pub fn end(&mut self, pe: Pe) {
        let order = &mut self.by_pe[pe as usize];
        order.active = order.active.saturating_sub(1);
    }

    /// Lets go of the next operation that was kept back and need not wait any longer: it is on its way now.
    pub fn release(&mut self, pe: Pe) -> Option<usize> {
        let order = &mut self.by_pe[pe as usize];
        let &(key, epoch) = order.held.front()?;
        if order.active > 0 && order.epoch != epoch {
            return None;
        }
        order.held.pop_front();
        order.begin(epoch);
        Some(key)
    }
}

impl Order {
    fn begin(&mut self, epoch: u32) {
        self.epoch = epoch;
        self.active += 1;
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn what_comes_behind_a_fence_waits_its_turn() {
        let mut orders = Orders::new(2);
        assert!(!orders.would_hold(0).unwrap() && orders.would_hold(2).is_err());
        orders.begin(0);
        orders.begin(0);
        orders.fence();
        assert!(orders.would_hold(0).unwrap() && !orders.would_hold(1).unwrap());
        orders.hold(0, 10);
        orders.hold(0, 11);
        orders.fence();
        orders.hold(0, 12);
        orders.hold(0, 13);
        orders.end(0);
        assert_eq!(orders.release(0), None, "one that came before the fence is still on its way");
        orders.end(0);
        assert_eq!([orders.release(0), orders.release(0), orders.release(0)], [Some(10), Some(11), None]);
        assert!(orders.forget(0, 12) && !orders.forget(0, 12) && !orders.forget(0, 10));
        orders.end(0);
        orders.end(0);
        assert_eq!([orders.release(0), orders.release(0)], [Some(13), None]);
        assert!(!orders.would_hold(0).unwrap());
    }
}
