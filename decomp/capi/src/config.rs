//! The check of a configuration.

use std::ffi::c_int;

use symrail_core::CPointer;
use symrail_decomp::{Grid, RankOrder};

use crate::backends::{Backend, HALOS, Kind, TRANSPOSES};
use crate::guard::{Failure, extents, given, guarded};
use crate::layouts::{Config, Layout, Options};

const ROW_MAJOR: c_int = 1;
const COLUMN_MAJOR: c_int = 2;

/// A checked configuration.
pub struct Checked {
    pub grid: Grid,
    /// The back ends of transposes and halos; `None` where a measurement chooses.
    pub backends: [Option<&'static Backend>; 2],
    /// The configuration, with the rank order resolved.
    pub config: Config,
}

impl Checked {
    pub fn new(config: &Config, options: Option<&Options>, ranks: usize) -> Result<Checked, Failure> {
        let tuned = options.map_or([false; 2], |options| {
            [options.autotune_transpose_backend != 0, options.autotune_halo_backend != 0]
        });
        let find = |kind: &'static Kind, number, tuned| if tuned { Ok(None) } else { kind.find(number).map(Some) };
        let backends = [
            find(&TRANSPOSES, config.transpose_comm_backend, tuned[0])?,
            find(&HALOS, config.halo_comm_backend, tuned[1])?,
        ];
        let mut config = *config;
        config.rank_order = rank_order(config.rank_order)?;
        let processes = processes(config.pdims, ranks)?;
        if processes == [0, 0] && options.is_none() {
            return Err(Failure::usage(
                "pdims are 0 0, which asks for measurements, and there are no options for them",
            ));
        }
        let whole = extents("gdims", config.gdims)?;
        let distributed = extents("gdims_dist", config.gdims_dist)?;
        if distributed.iter().zip(whole).any(|(&part, all)| part > all) {
            return Err(Failure::usage(format!("gdims_dist {distributed:?} are beyond gdims {whole:?}")));
        }
        let ranks = if config.rank_order == COLUMN_MAJOR { RankOrder::ColumnMajor } else { RankOrder::RowMajor };
        let mut grid = Grid { ranks, ..Grid::new(whole, processes) };
        if !distributed.contains(&0) {
            grid.distributed = distributed;
        }
        grid.memory = memory(&config, grid.axis_contiguous().memory)?;
        grid.check_shape()?;
        Ok(Checked { grid, backends, config })
    }
}

/// The rank order. The default is row-major, unless the variable that came before the field says otherwise.
fn rank_order(order: c_int) -> Result<c_int, Failure> {
    match order {
        0 if std::env::var("CUDECOMP_USE_COL_MAJOR_RANK_ORDER").is_ok_and(|value| value.trim() == "1") => {
            Ok(COLUMN_MAJOR)
        }
        0 => Ok(ROW_MAJOR),
        ROW_MAJOR | COLUMN_MAJOR => Ok(order),
        _ => Err(Failure::usage(format!("rank_order {order}: there are 0, 1 and 2"))),
    }
}

fn processes(pdims: [i32; 2], ranks: usize) -> Result<[usize; 2], Failure> {
    let [rows, columns, _] = extents("pdims", [pdims[0], pdims[1], 0])?;
    if [rows, columns] != [0, 0] && rows * columns != ranks {
        return Err(Failure::usage(format!(
            "pdims {pdims:?}: their product is the number of ranks, {ranks}, or both are 0"
        )));
    }
    Ok([rows, columns])
}

/// The memory orders of the pencils: those of the configuration, or by its flags.
fn memory(config: &Config, contiguous: [[usize; 3]; 3]) -> Result<[[usize; 3]; 3], Failure> {
    let orders = config.transpose_mem_order;
    if orders.as_flattened().iter().all(|&dim| dim < 0) {
        let of = |axis: usize| if config.transpose_axis_contiguous[axis] != 0 { contiguous[axis] } else { [0, 1, 2] };
        return Ok([0, 1, 2].map(of));
    }
    let mut memory = [[0; 3]; 3];
    for (to, order) in memory.iter_mut().zip(orders) {
        *to = extents("transpose_mem_order", order)?;
        if !(0..3).all(|dim| to.contains(&dim)) {
            return Err(Failure::usage(format!("transpose_mem_order {order:?}: each of 0, 1 and 2 comes once")));
        }
    }
    Ok(memory)
}

fn set_defaults<T: Layout + Default>(to: CPointer<T>, struct_size: i64, version: i32) -> c_int {
    guarded(|| {
        T::check(struct_size, version)?;
        given(T::NAME, to)?.set(T::default());
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cudecompGridDescConfigSetDefaultsVersioned(config: CPointer<Config>, size: i64, version: i32) -> c_int {
    set_defaults(config, size, version)
}

#[unsafe(no_mangle)]
extern "C" fn cudecompGridDescAutotuneOptionsSetDefaultsVersioned(
    options: CPointer<Options>,
    size: i64,
    version: i32,
) -> c_int {
    set_defaults(options, size, version)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_is_refused() {
        let right = Config { gdims: [9, 10, 11], pdims: [2, 2], ..Config::default() };
        let check = |config: Config, options: Option<Options>| Checked::new(&config, options.as_ref(), 4);
        assert_eq!(check(right, None).unwrap().grid.processes, [2, 2]);
        let asked = check(Config { pdims: [0, 0], ..right }, Some(Options::default())).unwrap();
        assert_eq!((asked.grid.processes, asked.config.rank_order), ([0, 0], ROW_MAJOR));
        let mut partly = right;
        partly.transpose_mem_order[0][0] = 0;
        for (what, wrong) in [
            ("too few", Config { pdims: [1, 1], ..right }),
            ("one is 0", Config { pdims: [0, 1], ..right }),
            ("below 0", Config { pdims: [-2, -2], ..right }),
            ("no measurements", Config { pdims: [0, 0], ..right }),
            ("an order", Config { rank_order: 999, ..right }),
            ("a back end", Config { transpose_comm_backend: 9, ..right }),
            ("a back end of halos", Config { halo_comm_backend: 0, ..right }),
            ("a part of the memory orders", partly),
            ("twice the same", Config { transpose_mem_order: [[0, 1, 1]; 3], ..right }),
            ("beyond", Config { gdims_dist: [10, 10, 11], ..right }),
        ] {
            assert!(check(wrong, None).is_err(), "{what}");
        }
        let options = Options { autotune_transpose_backend: 1, ..Options::default() };
        assert!(check(Config { transpose_comm_backend: 999, ..right }, Some(options)).is_ok(), "it is measured");
    }

    #[test]
    fn memory_orders_come_from_flags_unless_they_are_set() {
        let right = Config { gdims: [9, 10, 11], pdims: [1, 1], ..Config::default() };
        let memory = |config: Config| Checked::new(&config, None, 1).unwrap().grid.memory;
        assert_eq!(memory(right), [[0, 1, 2]; 3]);
        let flags = Config { transpose_axis_contiguous: [1, 0, 1], ..right };
        assert_eq!(memory(flags), [[0, 1, 2], [0, 1, 2], [2, 0, 1]]);
        assert_eq!(memory(Config { transpose_mem_order: [[2, 1, 0]; 3], ..flags }), [[2, 1, 0]; 3]);
    }
}
