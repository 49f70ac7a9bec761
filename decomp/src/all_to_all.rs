//! All-to-all plans: each PE of a team has a block of any size for each other PE.

use symrail::{Pe, Team, TeamHeap};

use crate::blocks::{Blocks, Kind};
use crate::cuda::{GpuKernels, GpuPlan};
use crate::error::{Error, Result};
use crate::flow::{Flow, Flows};
use crate::mode::Mode;
use crate::plan::Plan;
use crate::small;
use crate::staging::Path;
use crate::view::View;
use crate::workspace::{Workspace, new_owner};

const CALL: &str = "all-to-all";

/// Elements of a buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Span {
    /// The index of the first one.
    pub offset: usize,
    /// The number of elements, which may be 0.
    pub count: usize,
}

/// An all-to-all of a team, which runs any number of times. Several may exist at once.
pub struct AllToAll<P = Plan> {
    /// The plan: [`Plan::run`] and [`Plan::start`], or [`GpuPlan::post`] and [`GpuPlan::check`].
    pub plan: P,
    /// The workspace of the plan.
    pub work: Workspace,
}

/// An all-to-all of arrays in a GPU's memory, in stream order.
pub type GpuAllToAll = AllToAll<GpuPlan>;

impl AllToAll {
    /// Makes a plan for elements of `element` bytes. `sends` has the span of the input for each PE of the team, in team
    /// order; `receives` has the span of the output for each PE's block. Collective over the team.
    ///
    /// # Errors
    /// [`Error::Plan`] for a number of spans that is not the team's, or elements without bytes;
    /// [`symrail::Error::ParametersDiffer`] for spans of two PEs that do not match; [`symrail::Error::TeamHeapFull`].
    pub fn new(
        heap: &TeamHeap,
        team: &Team,
        element: usize,
        mode: Mode,
        sends: &[Span],
        receives: &[Span],
    ) -> Result<AllToAll> {
        heap.must_be_the_hosts()?;
        let kind = Kind { what: CALL, element, mode, owner: new_owner(), small: small::MOST };
        let blocks = blocks(team, kind, sends, receives, |pe| Plan::path(heap.runtime(), pe))?;
        let (bytes, plan) = (blocks.workspace_bytes, Plan::new(heap, team, blocks)?);
        AllToAll::with_workspace(heap, team, (bytes, kind.owner), plan, Plan::free)
    }

    /// Frees the plan and its workspace. Collective over the team.
    ///
    /// # Errors
    /// Those of [`Block::free`](symrail::team::heap::Block::free).
    pub fn give_up(self, team: &Team) -> Result<()> {
        self.end(team, Plan::free)
    }
}

impl GpuAllToAll {
    /// As [`AllToAll::new`], for arrays in a GPU's memory. Rounds are enqueued on streams, and graphs can capture them.
    ///
    /// # Errors
    /// As for [`AllToAll::new`]; an error of the driver.
    pub fn on_gpu(
        kernels: &GpuKernels,
        heap: &TeamHeap,
        team: &Team,
        element: usize,
        mode: Mode,
        sends: &[Span],
        receives: &[Span],
    ) -> Result<GpuAllToAll> {
        let kind = Kind { what: CALL, element, mode, owner: new_owner(), small: 0 };
        let blocks = blocks(team, kind, sends, receives, |pe| GpuPlan::path(kernels, pe))?;
        let (bytes, plan) = (blocks.workspace_bytes, GpuPlan::new(kernels, heap, team, blocks)?);
        AllToAll::with_workspace(heap, team, (bytes, kind.owner), plan, GpuPlan::free)
    }

    /// Frees the plan and its workspace when the GPU has completed all its work. Collective over the team.
    ///
    /// # Errors
    /// Those of [`Block::free`](symrail::team::heap::Block::free); an error of the driver; an error of
    /// [`GpuPlan::check`] that no call has returned.
    pub fn give_up_gpu(self, team: &Team) -> Result<()> {
        self.end(team, GpuPlan::free)
    }
}

impl<P> AllToAll<P> {
    /// Allocates the workspace, of so many bytes and for this owner. If the heap is full, the plan is freed on all PEs.
    fn with_workspace(
        heap: &TeamHeap,
        team: &Team,
        (bytes, owner): (usize, u64),
        plan: P,
        free: impl FnOnce(P, &Team) -> Result<()>,
    ) -> Result<AllToAll<P>> {
        match heap.take(team, bytes).map_err(Error::from) {
            Err(full) if full.is_full() => free(plan, team).and(Err(full)),
            block => Ok(AllToAll { plan, work: Workspace::new(block?, owner) }),
        }
    }

    /// Frees the workspace, too, whatever the plan's rounds return.
    fn end(self, team: &Team, free: impl FnOnce(P, &Team) -> Result<()>) -> Result<()> {
        let rounds = free(self.plan, team);
        self.work.block.map_or(Ok(()), |block| block.free(team))?;
        rounds
    }
}

/// The blocks of this PE, after all PEs have compared their spans.
fn blocks(team: &Team, kind: Kind, sends: &[Span], receives: &[Span], path: impl Fn(Pe) -> Path) -> Result<Blocks> {
    let Kind { element, mode, .. } = kind;
    let (size, me) = (team.group().size() as usize, team.group().me() as usize);
    // The limit prevents an overflow of any sum of sizes.
    let most = isize::MAX as usize / (4 * size * element.max(1));
    let fits = |span: &Span| span.offset <= most && span.count <= most;
    let right = [sends, receives].iter().all(|spans| spans.len() == size && spans.iter().all(fits)) && element > 0;
    // All PEs take part in the comparison, so that each PE with wrong spans is named on all.
    let mut parameters = vec![("bytes of an element", element as u64), ("a number of spans", right.into())];
    parameters.extend(mode.parameters());
    team.compare(CALL, &parameters)?;
    if !right {
        let reason = format!(
            "{} and {} spans of elements of {element} bytes, for {size} PEs: use one for each, of elements that memory \
             has room for",
            sends.len(),
            receives.len()
        );
        return Err(Error::Plan { what: CALL, reason });
    }
    let counts: Vec<u64> = sends.iter().chain(receives).map(|span| span.count as u64).collect();
    let all = team.gather(&counts)?;
    let sent = |from: usize, to: usize| all[from * 2 * size + to];
    let received = |at: usize, from: usize| all[at * 2 * size + size + from];
    for from in 0..size {
        if let Some(to) = (0..size).find(|&to| sent(from, to) != received(to, from)) {
            let (pe, other) = (team.group().pe(from as u32), team.group().pe(to as u32));
            let what = "elements that one sends and the other receives";
            return Err(Error::Runtime(symrail::Error::ParametersDiffer {
                call: CALL,
                what,
                pe,
                mine: sent(from, to),
                other,
                theirs: received(to, from),
            }));
        }
    }
    let pe = |rank: usize| team.group().pe(rank as u32);
    Ok(Blocks::new(kind, flows(me, sends, receives), pe, path))
}

/// The blocks that the PE of a rank exchanges with others.
pub(crate) fn flows(me: usize, sends: &[Span], receives: &[Span]) -> Flows {
    let size = sends.len();
    let line = |span: &Span| View::line(span.offset, span.count);
    let flow = |distance: usize| {
        let rank = (me + distance) % size;
        let into = line(&Span { offset: 0, ..sends[rank] });
        Flow { rank, here: rank, there: me, part: 0, from: line(&sends[rank]), into, at: line(&receives[rank]) }
    };
    let end = |spans: &[Span]| spans.iter().map(|span| span.offset + span.count).max().unwrap_or(0);
    Flows {
        others: (1..size).map(flow).collect(),
        own: vec![(line(&sends[me]), line(&receives[me]))],
        slots: size,
        elements: (end(sends), end(receives)),
        disjoint: false,
    }
}
