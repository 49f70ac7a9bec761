//! Settings that have no effect because of others. They are reported where the others take effect.

use super::{DeviceCopy, GpuDirect, HeapKind, RailPolicy, Settings};

impl Settings {
    /// One sentence for each user setting without effect, with the reason.
    #[must_use]
    pub fn ignored(&self, by_ibverbs: bool) -> Vec<String> {
        let of_ibverbs = |name: &str| name.starts_with("SYMRAIL_IB_") || name == "SYMRAIL_IBV_SO";
        let of_libfabric =
            |name: &str| matches!(name, "SYMRAIL_LIBFABRIC_PROVIDER" | "SYMRAIL_LIBFABRIC_SO" | "SYMRAIL_PROGRESS");
        let reason = |name: &str| match name {
            name if !by_ibverbs && of_ibverbs(name) => Some("the transport is libfabric"),
            name if by_ibverbs && of_libfabric(name) => Some("the transport is ibverbs"),
            "SYMRAIL_STRIPE_THRESHOLD" if self.rail_policy != RailPolicy::Stripe => {
                Some("operations are split with SYMRAIL_RAIL_POLICY=stripe only")
            }
            "SYMRAIL_GPUDIRECT" if self.gpudirect == GpuDirect::On && self.heap_kind != HeapKind::Device => {
                Some("the heap is in a GPU's memory with SYMRAIL_HEAP_KIND=device only")
            }
            "SYMRAIL_DEVICE_COPY_THRESHOLD" if self.device_copy != DeviceCopy::Engine => {
                Some("engines copy with SYMRAIL_DEVICE_COPY=engine only")
            }
            _ => None,
        };
        let warning = |variable: &super::Variable| {
            let value = (variable.show)(self);
            Some(format!("{}={value} has no effect: {}", variable.name, reason(variable.name)?))
        };
        self.changed().filter_map(warning).collect()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn ignored(pairs: &[(&str, &str)], by_ibverbs: bool) -> Vec<String> {
        Settings::from_iter(pairs.iter().copied()).unwrap().ignored(by_ibverbs)
    }

    #[test]
    fn what_another_choice_makes_useless_is_named_with_it() {
        for (name, value, by_ibverbs, why) in [
            ("SYMRAIL_IB_MODE", "rdma-atomics", false, "the transport is libfabric"),
            ("SYMRAIL_IBV_SO", "/nonexistent", false, "the transport is libfabric"),
            ("SYMRAIL_PROGRESS", "manual", true, "the transport is ibverbs"),
            ("SYMRAIL_STRIPE_THRESHOLD", "1M", true, "SYMRAIL_RAIL_POLICY=stripe"),
            ("SYMRAIL_GPUDIRECT", "on", true, "SYMRAIL_HEAP_KIND=device"),
            ("SYMRAIL_DEVICE_COPY_THRESHOLD", "2M", false, "SYMRAIL_DEVICE_COPY=engine"),
        ] {
            let warnings = ignored(&[(name, value)], by_ibverbs);
            assert!(
                warnings.len() == 1 && warnings[0].starts_with(name) && warnings[0].contains(why),
                "{name}: {warnings:?}"
            );
        }
        assert_eq!(ignored(&[("SYMRAIL_IB_SL", "3"), ("SYMRAIL_TIMEOUT_S", "5")], true), Vec::<String>::new());
        assert_eq!(ignored(&[("SYMRAIL_RAIL_POLICY", "stripe"), ("SYMRAIL_STRIPE_THRESHOLD", "1M")], false).len(), 0);
    }
}
