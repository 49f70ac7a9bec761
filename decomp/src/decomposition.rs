//! A grid on a team of PEs, and the plans for it.

use symrail::{Group, Pe, Runtime, Team};

use crate::any_plan::AnyPlan;
use crate::blocks::{Blocks, Kind};
use crate::cuda::{GpuKernels, GpuPlan};
use crate::error::{Error, Result};
use crate::grid::{Axis, Grid};
use crate::halo::Halo;
use crate::operation::Operation;
use crate::parts;
use crate::pencil::{Form, Pencil};
use crate::plan::Plan;
use crate::small;
use crate::staging::Path;
use crate::transpose::Transpose;
use crate::workspace::{Sharing, Workspace, new_owner};
use symrail::TeamHeap;
use symrail::team::heap::Block;

/// The largest element, in bytes.
const LARGEST_ELEMENT: usize = 1 << 16;

/// An array spread over the PEs of a team. A PE's index in the team is its rank. Several decompositions may exist at
/// once, on the same or on different teams.
pub struct Decomposition {
    grid: Grid,
    owner: u64,
    heap: TeamHeap,
    team: Team,
}

impl Decomposition {
    /// Spreads a grid over a team. Collective over the team.
    ///
    /// # Errors
    /// [`Error::Grid`], [`symrail::Error::ParametersDiffer`].
    pub fn new(heap: &TeamHeap, team: Team, grid: Grid) -> Result<Decomposition> {
        Decomposition::owned(heap, team, grid, |_| new_owner())
    }

    /// As [`Decomposition::new`]. All decompositions with the same `sharing` over the same PEs accept one another's
    /// workspaces.
    ///
    /// # Errors
    /// As for [`Decomposition::new`].
    pub fn sharing(heap: &TeamHeap, team: Team, grid: Grid, sharing: &Sharing) -> Result<Decomposition> {
        Decomposition::owned(heap, team, grid, |group| sharing.owner(heap.runtime(), group))
    }

    fn owned(heap: &TeamHeap, team: Team, grid: Grid, owner: impl FnOnce(Group) -> u64) -> Result<Decomposition> {
        team.compare("making a decomposition", &grid.parameters())?;
        grid.check(team.group().size() as usize)?;
        let owner = owner(team.group());
        Ok(Decomposition { heap: heap.clone(), team, grid, owner })
    }

    /// Returns the team. The caller frees plans and workspaces before.
    #[must_use]
    pub fn into_team(self) -> Team {
        self.team
    }

    /// The grid.
    #[must_use]
    pub fn grid(&self) -> &Grid {
        &self.grid
    }

    /// The PEs.
    #[must_use]
    pub fn team(&self) -> &Team {
        &self.team
    }

    /// The runtime of the PEs.
    #[must_use]
    pub fn runtime(&self) -> &Runtime {
        self.heap.runtime()
    }

    /// This PE's rank.
    #[must_use]
    pub fn rank(&self) -> usize {
        self.team.group().me() as usize
    }

    /// The PE of a rank.
    #[must_use]
    pub fn pe(&self, rank: usize) -> Pe {
        self.team.group().pe(rank as u32)
    }

    /// This PE's pencil along an axis.
    #[must_use]
    pub fn pencil(&self, axis: Axis, form: Form) -> Pencil {
        self.grid.pencil(self.rank(), axis, form)
    }

    /// Makes a plan for a transpose. Collective over the team.
    ///
    /// # Errors
    /// [`Error::Plan`], [`symrail::Error::ParametersDiffer`], [`symrail::Error::TeamHeapFull`].
    pub fn transpose(&self, transpose: &Transpose) -> Result<Plan> {
        self.plan(&(*transpose).into())
    }

    /// Makes a plan for updates of a halo, which runs in place. Collective over the team.
    ///
    /// # Errors
    /// [`Error::Plan`], [`symrail::Error::ParametersDiffer`], [`symrail::Error::TeamHeapFull`].
    pub fn halo(&self, halo: &Halo) -> Result<Plan> {
        self.plan(&(*halo).into())
    }

    /// As [`Decomposition::transpose`], for arrays in a GPU's memory.
    ///
    /// # Errors
    /// As for [`Decomposition::transpose`]; an error of the driver.
    pub fn gpu_transpose(&self, kernels: &GpuKernels, transpose: &Transpose) -> Result<GpuPlan> {
        self.gpu_plan(kernels, &(*transpose).into())
    }

    /// As [`Decomposition::halo`], for arrays in a GPU's memory.
    ///
    /// # Errors
    /// As for [`Decomposition::halo`]; an error of the driver.
    pub fn gpu_halo(&self, kernels: &GpuKernels, halo: &Halo) -> Result<GpuPlan> {
        self.gpu_plan(kernels, &(*halo).into())
    }

    pub(crate) fn gpu_plan(&self, kernels: &GpuKernels, operation: &Operation) -> Result<GpuPlan> {
        let (.., mode) = operation.sizes();
        // Multiprocessors that unpack take as much from those that send as the overlap saves.
        let least = Some(parts::LEAST).filter(|_| mode.pipelined && mode.engines.is_some());
        let blocks = self.blocks(operation, least, 0, |pe| GpuPlan::path(kernels, pe))?;
        GpuPlan::new(kernels, &self.heap, &self.team, blocks)
    }

    /// Frees a plan when the GPU has completed all its work. Collective over the team.
    ///
    /// # Errors
    /// Those of [`Block::free`]; an error of the driver; an error of [`GpuPlan::check`] that no call has returned.
    pub fn give_up_gpu(&self, plan: GpuPlan) -> Result<()> {
        plan.free(&self.team)
    }

    pub(crate) fn plan(&self, operation: &Operation) -> Result<Plan> {
        self.heap.must_be_the_hosts()?;
        let blocks = self.blocks(operation, None, small::MOST, |pe| Plan::path(self.runtime(), pe))?;
        Plan::new(&self.heap, &self.team, blocks)
    }

    /// The blocks of an operation, in parts of at least so many bytes if that is given, of which those of up to `small`
    /// bytes have buffers of their own over rails.
    fn blocks(
        &self,
        operation: &Operation,
        least: Option<usize>,
        small: usize,
        path: impl Fn(Pe) -> Path,
    ) -> Result<Blocks> {
        let (what, (element, fields, mode)) = (operation.kind().name(), operation.sizes());
        self.team.compare(what, &operation.parameters())?;
        if !(1..=LARGEST_ELEMENT).contains(&element) || fields == 0 {
            let reason =
                format!("elements of {element} bytes, {fields} fields: use 1 to {LARGEST_ELEMENT}, at least 1");
            return Err(Error::Plan { what, reason });
        }
        let flows = operation.flows(&self.grid, self.rank())?;
        let flows = match least {
            None => flows,
            Some(least) => flows.in_parts(element, least),
        };
        let kind = Kind { what, element, mode, owner: self.owner, small };
        Ok(Blocks::new(kind, flows, |rank| self.pe(rank), path))
    }

    /// Frees a plan. Collective over the team. A plan that is only dropped never returns its few words to the heap.
    ///
    /// # Errors
    /// Those of [`Block::free`].
    pub fn give_up(&self, plan: Plan) -> Result<()> {
        plan.free(&self.team)
    }

    /// Bytes of workspace with which this PE can run each of the four transposes, with or without halos and padding.
    #[must_use]
    pub fn transpose_workspace_bytes(&self, element: usize, fields: usize) -> usize {
        let wanted = Transpose::ALL.map(|axes| Transpose { fields, ..Transpose::new(axes, element) });
        wanted.iter().map(|transpose| transpose.workspace_bytes(&self.grid, self.rank())).max().unwrap_or(0)
    }

    /// The largest number of all PEs: the size that a workspace for all of them needs. Collective over the team.
    ///
    /// # Errors
    /// An error that names a peer that does not answer.
    pub fn largest(&self, number: usize) -> Result<usize> {
        let mut most = [number as u64];
        self.team.max_of_all(&mut most)?;
        Ok(most[0] as usize)
    }

    /// Allocates a workspace of the largest size that a PE passes. Collective over the team.
    ///
    /// # Errors
    /// [`symrail::Error::TeamHeapFull`].
    pub fn workspace(&self, bytes: usize) -> Result<Workspace> {
        Ok(Workspace::new(self.heap.take(&self.team, bytes)?, self.owner))
    }

    /// Frees a workspace. Collective over the team.
    ///
    /// # Errors
    /// Those of [`Block::free`].
    pub fn give_back(&self, workspace: Workspace) -> Result<()> {
        Ok(workspace.block.map_or(Ok(()), |block| block.free(&self.team))?)
    }

    /// Frees a workspace that a larger one replaces, or returns it if a graph of some PE uses it: then it stays as long
    /// as graphs may be replayed. Collective over the team.
    ///
    /// # Errors
    /// Those of [`Block::free`].
    pub fn replace(&self, workspace: Workspace) -> Result<Option<Workspace>> {
        if self.largest(workspace.is_kept().into())? > 0 {
            return Ok(Some(workspace));
        }
        self.give_back(workspace).map(|()| None)
    }

    /// Frees plans, in whatever state they are: it returns no error of their rounds. The GPU has completed its work.
    /// Collective over the team.
    ///
    /// # Errors
    /// Those of [`Block::free`].
    pub fn give_up_all(&self, plans: Vec<AnyPlan>) -> Result<()> {
        let blocks = plans.into_iter().flat_map(AnyPlan::into_blocks);
        Ok(Block::free_all(&self.team, blocks)?)
    }
}
