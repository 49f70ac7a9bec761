//! Grid descriptors: their creation and their end.

use std::collections::HashMap;
use std::ffi::c_int;

use symrail::with_timeout;
use symrail_core::{CPointer, registry};
use symrail_decomp::{AnyPlan, Decomposition, Grid, Mode, Operation};

use crate::backends::{Backend, Way};
use crate::config::Checked;
use crate::guard::{Failure, given, value};
use crate::handle::{Call, Handle, Opaque, with_desc, with_handle};
use crate::layouts::{Config, Layout, Options};
use crate::tuning::{self, Step};

/// `cudecompGridDesc_t`.
pub struct GridDesc {
    /// Its number, the same on all ranks.
    pub number: u64,
    pub grid: Grid,
    pub rank: usize,
    /// The back ends of transposes and halos, and their modes.
    pub backends: [&'static Backend; 2],
    pub modes: [Mode; 2],
    /// The plans, of operations in the default mode. All ranks together make a plan when they first run it.
    pub plans: HashMap<Operation, AnyPlan>,
    /// `None` if there are more elements than can be counted: the geometry can still be asked for.
    array: Option<Decomposition>,
    config: Config,
}

impl GridDesc {
    pub fn array(&self) -> Result<&Decomposition, Failure> {
        let extents = self.grid.extents;
        self.array
            .as_ref()
            .ok_or_else(|| Failure::usage(format!("gdims {extents:?}: so many elements cannot be counted")))
    }
}

/// The arguments of a creation.
struct Arguments {
    to: CPointer<Opaque>,
    config: CPointer<Config>,
    checked: Checked,
    steps: Vec<Step>,
}

#[unsafe(no_mangle)]
#[allow(clippy::too_many_arguments)] // C's interface has so many
extern "C" fn cudecompGridDescCreateVersioned(
    handle: Opaque,
    desc: CPointer<Opaque>,
    config: CPointer<Config>,
    config_size: i64,
    config_version: i32,
    options: CPointer<Options>,
    options_size: i64,
    options_version: i32,
) -> c_int {
    with_handle(handle, |handle| {
        let ranks = handle.job.runtime().n_pes() as usize;
        let arguments = (|| {
            Config::check(config_size, config_version)?;
            if !options.is_null() {
                Options::check(options_size, options_version)?;
            }
            let (to, asked, options) = (given("grid_desc", desc)?, value("config", config)?, options.get());
            asked.check_filled(config_size, config_version)?;
            if let Some(options) = &options {
                options.check_filled(options_size, options_version)?;
            }
            let checked = Checked::new(&asked, options.as_ref(), ranks)?;
            let steps = tuning::steps(&checked, options.as_ref(), ranks)?;
            Ok::<_, Failure>(Arguments { to, config, checked, steps })
        })();
        let arguments = handle.agree(Call::Create, 0, 0, arguments)?;
        handle.compare("making a grid descriptor", &arguments.parameters())?;
        let Arguments { to, config, checked, steps } = arguments;
        let chosen = tuning::choose(handle, checked, steps)?;
        let desc = handle.describe(chosen)?;
        config.set(desc.config);
        let number = registry::number();
        handle.descs.insert(number, desc);
        to.set(std::ptr::without_provenance_mut(number));
        Ok(())
    })
}

impl Arguments {
    /// What must be the same on all ranks.
    fn parameters(&self) -> Vec<(&'static str, u64)> {
        let config = &self.checked.config;
        let mut all = Vec::new();
        let mut add = |name, numbers: &[i32]| all.extend(numbers.iter().map(|&number| (name, number as u64)));
        add("gdims", &config.gdims);
        add("gdims_dist", &config.gdims_dist);
        add("pdims", &config.pdims);
        add("rank_order", &[config.rank_order]);
        add("transpose_comm_backend", &[config.transpose_comm_backend]);
        add("halo_comm_backend", &[config.halo_comm_backend]);
        for axis in 0..3 {
            add(
                "transpose_axis_contiguous or transpose_mem_order",
                &self.checked.grid.memory[axis].map(|dim| dim as i32),
            );
        }
        all.extend(tuning::parameters(&self.steps));
        all
    }
}

impl Handle {
    /// A descriptor of a configuration whose process grid and back ends are known.
    #[allow(clippy::needless_pass_by_value)] // it is taken apart
    fn describe(&mut self, chosen: Checked) -> Result<GridDesc, Failure> {
        let Checked { grid, backends, mut config } = chosen;
        let [Some(transposes), Some(halos)] = backends else {
            return Err(Failure::runtime("a back end was not chosen"));
        };
        config.pdims = grid.processes.map(|number| number as i32);
        (config.transpose_comm_backend, config.halo_comm_backend) = (transposes.number, halos.number);
        let array = match grid.is_countable() {
            true => {
                let (heap, team) = (self.job.heap(), self.job.team()?);
                let make = || Decomposition::sharing(heap, team, grid, &self.sharing);
                Some(with_timeout(self.job.limit(1), make)?)
            }
            false => None,
        };
        let on_gpu = self.job.kernels().is_some();
        let (number, rank) = (self.next(), self.job.runtime().my_pe() as usize);
        let backends = [transposes, halos];
        for (what, backend) in ["transposes", "halos"].into_iter().zip(backends) {
            tracing::info!("cudecomp: grid descriptor {number}: {what}: {}", Way { backend, on_gpu });
        }
        let modes = backends.map(|backend| backend.mode(on_gpu));
        Ok(GridDesc { number, grid, rank, backends, modes, plans: HashMap::new(), array, config })
    }
}

#[unsafe(no_mangle)]
extern "C" fn cudecompGridDescDestroy(handle: Opaque, desc: Opaque) -> c_int {
    with_handle(handle, |handle| {
        let number = handle.desc(desc)?.number;
        let agreed = handle.agree(Call::Destroy, number, 0, Ok(()));
        // Ranks that make another call may still need it. If they never will, it is of no use any more.
        if agreed.is_err() && !handle.is_lost() {
            return agreed;
        }
        let Some(GridDesc { array: Some(array), plans, .. }) = handle.descs.remove(&desc.addr()) else { return agreed };
        handle.job.settle();
        // What earlier rounds returned, or have left behind, is no reason to keep anything.
        agreed?;
        Ok(with_timeout(handle.job.limit(1), || array.give_up_all(plans.into_values().collect()))?)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cudecompGetGridDescConfigVersioned(
    handle: Opaque,
    desc: Opaque,
    config: CPointer<Config>,
    size: i64,
    version: i32,
) -> c_int {
    with_desc(handle, desc, |desc| {
        Config::check(size, version)?;
        given("config", config)?.set(desc.config);
        Ok(())
    })
}
