//! Fences: they hold operations to a PE back until earlier ones have ended.

use std::collections::VecDeque;

use symrail_transport::sparse::Sparse;
use symrail_transport::{Error, Pe, Result};

/// Operations to one PE.
#[derive(Default)]
struct Order {
    /// The epoch of the operations under way.
    epoch: u32,
    active: u32,
    /// Operations held back, and their epochs.
    held: VecDeque<(usize, u32)>,
}

/// All PEs' operations, by keys of the caller's. A fence begins a new epoch.
pub(super) struct Orders {
    n_pes: u32,
    by_pe: Sparse<Order>,
    /// The current epoch.
    epoch: u32,
}

impl Orders {
    pub fn new(n_pes: u32) -> Self {
        Orders { n_pes, by_pe: Sparse::default(), epoch: 0 }
    }

    pub fn fence(&mut self) {
        self.epoch = self.epoch.wrapping_add(1);
    }

    /// Whether another operation to `pe` would have to wait.
    pub fn would_hold(&self, pe: Pe) -> Result<bool> {
        if pe >= self.n_pes {
            return Err(Error::NoSuchPe { pe: pe.into(), last: self.n_pes - 1 });
        }
        let order = self.by_pe.get(pe);
        Ok(!order.held.is_empty() || (order.active > 0 && order.epoch != self.epoch))
    }

    /// Records an operation that starts without waiting.
    pub fn begin(&mut self, pe: Pe) {
        self.by_pe.enter(pe).begin(self.epoch);
    }

    /// Holds an operation back.
    pub fn hold(&mut self, pe: Pe, key: usize) {
        self.by_pe.enter(pe).held.push_back((key, self.epoch));
    }

    /// Forgets an operation that was held back; returns `false` if it was not.
    pub fn forget(&mut self, pe: Pe, key: usize) -> bool {
        let Some(Order { held, .. }) = self.by_pe.find_mut(pe) else { return false };
        let at = held.iter().position(|&(k, _)| k == key);
        at.and_then(|at| held.remove(at)).is_some()
    }

    /// Records the end of an operation.
    pub fn end(&mut self, pe: Pe) {
        if let Some(order) = self.by_pe.find_mut(pe) {
            order.active = order.active.saturating_sub(1);
        }
    }

    /// Forgets a PE, unless operations to it are under way or held back. Returns whether it has.
    pub fn forget_pe(&mut self, pe: Pe) -> bool {
        let order = self.by_pe.get(pe);
        let over = order.active == 0 && order.held.is_empty();
        if over {
            self.by_pe.forget(pe);
        }
        over
    }

    /// Releases the next operation that need not wait any longer, and records its start.
    pub fn release(&mut self, pe: Pe) -> Option<usize> {
        let order = self.by_pe.find_mut(pe)?;
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
        assert!(!orders.forget_pe(0), "one is under way");
        orders.end(0);
        assert!(orders.forget_pe(0) && orders.by_pe.slots().numbers().next().is_none());
    }
}
