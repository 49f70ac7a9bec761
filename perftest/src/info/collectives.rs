//! Tables of collectives (`symrail tune`): the ones that communicators of programs started here use.

use symrail_collectives::tuning;
use symrail_transport::env::Settings;

use super::report::{Collectives, TuningTable};

pub fn find_out(settings: &Settings) -> Collectives {
    let (found, none) = tuning::tables(settings).map_or_else(|why| (Vec::new(), Some(why)), |found| (found, None));
    let tables = found.into_iter().map(|(path, table)| {
        let file = path.display().to_string();
        match table {
            Ok(table) => TuningTable {
                file,
                device: table.device,
                pes: table.pes,
                hosts: table.hosts,
                rows: table.rows.len(),
                problem: None,
            },
            Err(problem) => TuningTable { file, problem: Some(problem), ..TuningTable::default() },
        }
    });
    Collectives { tables: tables.collect(), no_tables: none }
}
