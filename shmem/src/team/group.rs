//! Groups of PEs: arithmetic progressions of PE numbers, the only form of teams and active sets.

use symrail_transport::Pe;

/// Some PEs of the job, in order, from the view of one of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Group {
    start: Pe,
    stride: i64,
    size: u32,
    me: u32,
}

impl Group {
    /// PEs `start`, `start + stride`, … (`size` of them), from the view of PE `me`; `None` if `me` is not among them,
    /// if one of them is not in a job of `n_pes`, or if the stride is 0 (except for a single PE).
    #[must_use]
    pub fn new(start: i64, stride: i64, size: i64, me: Pe, n_pes: u32) -> Option<Group> {
        let last = stride.checked_mul(size.checked_sub(1)?).and_then(|span| span.checked_add(start))?;
        let inside = |pe: i64| (0..i64::from(n_pes)).contains(&pe);
        if size < 1 || !inside(start) || !inside(last) || (stride == 0 && size > 1) {
            return None;
        }
        // All values fit: they are PE numbers, or count PEs.
        let mut group = Group { start: start as Pe, stride, size: size as u32, me: 0 };
        group.me = group.index_of(me)?;
        Some(group)
    }

    /// All PEs of the job.
    #[must_use]
    pub fn world(me: Pe, n_pes: u32) -> Group {
        Group { start: 0, stride: 1, size: n_pes, me }
    }

    /// The numbers that define the group.
    pub(crate) fn parts(&self) -> [u64; 3] {
        [self.start.into(), self.stride.cast_unsigned(), self.size.into()]
    }

    /// The group with these numbers, from the view of PE `me`; `None` as for [`Group::new`].
    pub(crate) fn from_parts(parts: [u64; 3], me: Pe, n_pes: u32) -> Option<Group> {
        let [start, stride, size] = parts.map(u64::cast_signed);
        Group::new(start, stride, size, me, n_pes)
    }

    /// Whether these are the same PEs in the same order.
    pub(crate) fn is_same(&self, other: &Group) -> bool {
        self.parts() == other.parts()
    }

    /// The number of PEs.
    #[inline]
    #[must_use]
    pub fn size(&self) -> u32 {
        self.size
    }

    /// This PE's index.
    #[inline]
    #[must_use]
    pub fn me(&self) -> u32 {
        self.me
    }

    /// The PE with an index below the size.
    #[inline]
    #[must_use]
    pub fn pe(&self, index: u32) -> Pe {
        (i64::from(self.start) + self.stride * i64::from(index)) as Pe
    }

    /// The index of a PE, if it is one of these.
    #[must_use]
    pub fn index_of(&self, pe: Pe) -> Option<u32> {
        let distance = i64::from(pe) - i64::from(self.start);
        let index = if self.stride == 0 { distance } else { distance / self.stride };
        let index = u32::try_from(index).ok().filter(|&index| index < self.size)?;
        (self.pe(index) == pe).then_some(index)
    }

    /// All PEs but this one, starting behind it, so that not all PEs address the same PE first.
    pub fn others(&self) -> impl Iterator<Item = (u32, Pe)> + use<> {
        let group = *self;
        (1..group.size).map(move |i| {
            let index = (group.me + i) % group.size;
            (index, group.pe(index))
        })
    }

    /// The progression of indexes `start`, `start + stride`, … of this group as a group of PEs; `None` if an index does
    /// not exist. The view is that of `me`; if `me` is not in it, the inner option is `None`.
    #[must_use]
    pub fn part(&self, start: i64, stride: i64, size: i64) -> Option<Option<Group>> {
        let last = stride.checked_mul(size.checked_sub(1)?).and_then(|span| span.checked_add(start))?;
        let inside = |index: i64| (0..i64::from(self.size)).contains(&index);
        if size < 1 || !inside(start) || !inside(last) || (stride == 0 && size > 1) {
            return None;
        }
        let stride_of_pes = if size == 1 { 1 } else { stride * self.stride };
        let mut part = Group { start: self.pe(start as u32), stride: stride_of_pes, size: size as u32, me: 0 };
        Some(part.index_of(self.pe(self.me)).map(|me| {
            part.me = me;
            part
        }))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn progressions_may_go_down_and_nest() {
        let evens = Group::new(0, 2, 4, 4, 8).unwrap();
        assert_eq!((evens.me(), evens.pe(3), evens.index_of(5)), (2, 6, None));
        let back = evens.part(3, -1, 3).unwrap().unwrap();
        assert_eq!((back.pe(0), back.pe(2), back.me()), (6, 2, 1));
        assert_eq!(back.others().map(|(_, pe)| pe).collect::<Vec<_>>(), [2, 6]);
        assert_eq!(evens.part(0, 1, 2), Some(None), "PE 4 is not in it");
        assert_eq!(evens.part(2, 1, 3), None, "index 4 is not there");
        assert_eq!(evens.part(0, 0, 2), None);
        assert_eq!(evens.part(2, 0, 1).unwrap().unwrap().pe(0), 4);
    }

    #[test]
    fn what_leaves_the_job_is_no_group() {
        assert!(Group::new(0, 3, 3, 0, 7).is_some());
        assert!(Group::new(0, 3, 4, 0, 7).is_none());
        assert!(Group::new(0, 1, 0, 0, 7).is_none());
        assert!(Group::new(2, -1, 4, 0, 7).is_none());
        assert!(Group::new(0, i64::MAX, i64::MAX, 0, 7).is_none());
        assert!(Group::new(1, 2, 2, 2, 7).is_none(), "PE 2 is not in it");
    }
}
