//! The back ends and process grids among which measurements choose: all of them, less those that options and variables
//! exclude.

use symrail_decomp::Grid;

use crate::backends::{Backend, Family, Kind};
use crate::guard::Failure;
use crate::layouts::Options;

/// The candidates of a kind of back ends, by a list like `NCCL,MPI_A2A`, or `^MPI_P2P` of those that are excluded.
pub fn backends(kind: &'static Kind, options: &Options) -> Result<Vec<&'static Backend>, Failure> {
    let list = std::env::var(kind.variable).ok();
    let listed = listed(kind, list.as_deref())?;
    let disabled = |family| match family {
        Family::Mpi => options.disable_mpi_backends != 0,
        Family::Nccl => options.disable_nccl_backends != 0,
        Family::Nvshmem => options.disable_nvshmem_backends != 0,
    };
    let left: Vec<_> = listed.into_iter().filter(|backend| !disabled(backend.family)).collect();
    if left.is_empty() {
        return Err(Failure::usage(format!("{}: the options and {} leave no back end", kind.field, kind.variable)));
    }
    Ok(left)
}

fn listed(kind: &'static Kind, list: Option<&str>) -> Result<Vec<&'static Backend>, Failure> {
    let Some(list) = list else { return Ok(kind.all.iter().collect()) };
    let (but, names) = list.strip_prefix('^').map_or((false, list), |names| (true, names));
    let names: Vec<&str> = names.split(',').map(str::trim).collect();
    if let Some(unknown) = names.iter().find(|name| !kind.all.iter().any(|backend| backend.short == **name)) {
        let known: Vec<&str> = kind.all.iter().map(|backend| backend.short).collect();
        return Err(Failure::usage(format!("{}={list}: {unknown:?} is none of {}", kind.variable, known.join(", "))));
    }
    Ok(kind.all.iter().filter(|backend| names.contains(&backend.short) != but).collect())
}

/// The variables for the least and the most rows and columns of process grids.
const RANGES: [&str; 2] = ["CUDECOMP_AUTOTUNE_P_ROW_RANGE", "CUDECOMP_AUTOTUNE_P_COL_RANGE"];

/// The least and the most rows and columns of process grids, by ranges like `2,4`, which leave a grid of these ranks.
pub fn ranges(ranks: usize) -> Result<[[usize; 2]; 2], Failure> {
    within(&RANGES.map(|variable| std::env::var(variable).ok()), ranks)
}

fn within(texts: &[Option<String>; 2], ranks: usize) -> Result<[[usize; 2]; 2], Failure> {
    let of = |along: usize| {
        let text = texts[along].as_deref();
        range(text).ok_or_else(|| {
            let (variable, text) = (RANGES[along], text.unwrap_or_default());
            Failure::usage(format!("{variable}={text}: give the least and the most number, as in 1,4"))
        })
    };
    let ranges @ [rows, columns] = [of(0)?, of(1)?];
    let has = |number: usize, [least, most]: [usize; 2]| (least..=most).contains(&number);
    if Grid::factors(ranks).any(|grid| has(grid[0], rows) && has(grid[1], columns)) {
        return Ok(ranges);
    }
    let set = RANGES.iter().zip(texts).filter_map(|(variable, text)| Some(format!("{variable}={}", text.as_ref()?)));
    let set: Vec<String> = set.collect();
    Err(Failure::usage(format!("{}: no process grid of {ranks} ranks is within", set.join(", "))))
}

fn range(text: Option<&str>) -> Option<[usize; 2]> {
    let Some(text) = text else { return Some([1, usize::MAX]) };
    let (least, most) = text.split_once(',')?;
    let (least, most) = (least.trim().parse().ok()?, most.trim().parse().ok()?);
    (least <= most && most > 0).then_some([least, most])
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::backends::{HALOS, TRANSPOSES};
    use crate::guard::INVALID_USAGE;

    fn numbers(kind: &'static Kind, list: &str) -> Vec<i32> {
        let mut numbers: Vec<i32> = listed(kind, Some(list)).unwrap().iter().map(|backend| backend.number).collect();
        numbers.sort_unstable();
        numbers
    }

    #[test]
    fn lists_name_candidates_or_those_that_are_none() {
        assert_eq!(numbers(&TRANSPOSES, "NCCL,MPI_A2A,MPI_P2P"), [1, 3, 4]);
        assert_eq!(numbers(&TRANSPOSES, "^MPI_P2P"), [2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(numbers(&HALOS, "NCCL, MPI_BLOCKING"), [2, 3]);
        assert!(numbers(&HALOS, "^MPI,MPI_BLOCKING,NCCL,NVSHMEM,NVSHMEM_BLOCKING").is_empty());
        for wrong in ["", "MPI,,NCCL", "mpi", "^"] {
            assert!(listed(&HALOS, Some(wrong)).is_err(), "{wrong}");
        }
    }

    #[test]
    fn options_exclude_families() {
        let numbers = |options: Options| backends(&TRANSPOSES, &options).map(|all| all.len());
        assert_eq!(numbers(Options { disable_mpi_backends: 1, ..Options::default() }).unwrap(), 5);
        assert_eq!(numbers(Options { disable_nccl_backends: 1, ..Options::default() }).unwrap(), 6);
        assert_eq!(numbers(Options { disable_nvshmem_backends: 7, ..Options::default() }).unwrap(), 5);
        let none = Options {
            disable_mpi_backends: 1,
            disable_nccl_backends: 1,
            disable_nvshmem_backends: 1,
            ..Options::default()
        };
        assert!(numbers(none).is_err());
    }

    #[test]
    fn ranges_are_in_order() {
        assert_eq!(range(None), Some([1, usize::MAX]));
        assert_eq!(range(Some("2, 4")), Some([2, 4]));
        assert_eq!(range(Some("0,1")), Some([0, 1]));
        for wrong in ["", "2", "2,1", "0,0", "-1,2", "a,b", "1,2,3"] {
            assert_eq!(range(Some(wrong)), None, "{wrong}");
        }
    }

    #[test]
    fn ranges_that_leave_no_grid_are_wrong_arguments() {
        let of = |rows: Option<&str>, columns: Option<&str>, ranks| {
            within(&[rows, columns].map(|text| text.map(String::from)), ranks)
        };
        assert_eq!(of(Some("0,4"), None, 6).unwrap(), [[0, 4], [1, usize::MAX]]);
        assert_eq!(of(Some("2,3"), Some("2,2"), 6).unwrap(), [[2, 3], [2, 2]]);
        for (rows, columns) in [(Some("4,5"), None), (Some("2,2"), Some("2,2")), (None, Some("7,9"))] {
            let failure = of(rows, columns, 6).unwrap_err();
            assert_eq!(failure.code, INVALID_USAGE, "{rows:?} {columns:?}");
        }
    }
}
