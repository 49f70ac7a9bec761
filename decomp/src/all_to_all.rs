//! All-to-all plans: each PE of a team has a block for each, of any size.

use symrail::Team;

use crate::blocks::Blocks;
use crate::error::{Error, Result};
use crate::flow::{Flow, Flows};
use crate::plan::{Mode, Plan};
use crate::small;
use crate::view::View;
use crate::workspace::{Workspace, new_owner};
use symrail::TeamHeap;

/// Elements of a buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Span {
    /// The first one.
    pub offset: usize,
    /// How many; none are as good as some.
    pub count: usize,
}

/// An all-to-all of a team, to be run as often as wanted.
pub struct AllToAll<'rt> {
    heap: &'rt TeamHeap<'rt>,
    /// The plan, and its workspace.
    pub plan: Plan<'rt>,
    /// Its workspace.
    pub work: Workspace,
}

impl<'rt> AllToAll<'rt> {
    /// Makes a plan: element spans of the input for each PE of the team, in its order, and of the output for what comes
    /// from each. Collective over the team.
    ///
    /// # Errors
    /// [`Error::Plan`] for a number of spans that is not the team's; [`symrail::Error::ParametersDiffer`] for spans of two PEs that do not
    /// match; [`symrail::Error::TeamHeapFull`].
    pub fn new(
        heap: &'rt TeamHeap<'rt>,
        team: &Team<'rt>,
        (element, mode): (usize, Mode),
        sends: &[Span],
        receives: &[Span],
    ) -> Result<AllToAll<'rt>> {
        const CALL: &str = "all-to-all";
        heap.must_be_the_hosts()?;
        let (size, me) = (team.group().size() as usize, team.group().me() as usize);
        let right = sends.len() == size && receives.len() == size && element > 0;
        // Whoever is wrong is found by all.
        let parameters = [
            ("bytes of an element", element as u64),
            ("direct", mode.direct.into()),
            ("a number of spans", right.into()),
        ];
        team.compare(CALL, &parameters)?;
        if !right {
            let reason =
                format!("{} and {} spans of elements of {element} bytes, for {size} PEs", sends.len(), receives.len());
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
        let line = |span: &Span| View::line(span.offset, span.count);
        let flow = |distance: usize| {
            let rank = (me + distance) % size;
            let from = line(&sends[rank]);
            Flow {
                rank,
                here: rank,
                there: me,
                from,
                into: line(&Span { offset: 0, ..sends[rank] }),
                at: line(&receives[rank]),
            }
        };
        let end = |spans: &[Span]| spans.iter().map(|span| span.offset + span.count).max().unwrap_or(0);
        let flows = Flows {
            others: (1..size).map(flow).collect(),
            own: vec![(line(&sends[me]), line(&receives[me]))],
            slots: size,
            elements: (end(sends), end(receives)),
            disjoint: false,
        };
        let (owner, runtime) = (new_owner(), heap.runtime());
        let (pe, path) = (|rank: usize| team.group().pe(rank as u32), |pe| Plan::path(runtime, pe));
        let blocks = Blocks::new((CALL, element, mode), flows, pe, path, (owner, small::MOST));
        let plan = Plan::new(heap, team, blocks)?;
        let work = Workspace::new(heap.take(team, plan.workspace_bytes())?, owner);
        Ok(AllToAll { heap, plan, work })
    }

    /// Gives it up. Collective over the team.
    ///
    /// # Errors
    /// A peer that does not answer.
    pub fn give_up(self, team: &Team<'rt>) -> Result<()> {
        self.heap.give_back(team, self.work.block)?;
        Ok(self.heap.give_back(team, self.plan.words)?)
    }
}
