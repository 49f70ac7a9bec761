//! What users ask of a communicator's choices, and set.

use super::Algorithm;
use super::algorithm::NAMES;
use super::limits::{MOST_BLOCKS_OF_PACKETS, MOST_BLOCKS_OF_PUSHES};
use super::{Choice, Selection};
use crate::error::{Error, Result};
use crate::plan::{Collective, Plan};
use crate::tuning::{Row, Table, Tuning, Way};

impl Selection {
    /// Adds a plan, which has precedence over built-in plans if it suits: on all PEs the same one.
    ///
    /// # Errors
    /// As for [`Selection::check_plan`].
    pub fn add_plan(&mut self, plan: Plan) -> Result<()> {
        Selection::check_plan(&plan)?;
        self.users.add(plan);
        Ok(())
    }

    /// Whether a plan can be added.
    ///
    /// # Errors
    /// No call performs its collective, or it has the name of a built-in algorithm.
    pub fn check_plan(plan: &Plan) -> Result<()> {
        let refuse = |why: String| Err(Error::Call(format!("plan {}: {why}", plan.name())));
        if let Collective::Other(name) = plan.collective() {
            return refuse(format!("no call performs its collective, {name:?}"));
        }
        if NAMES.iter().any(|(name, _)| *name == plan.name()) {
            return refuse("a built-in algorithm has that name: give the plan another one".into());
        }
        Ok(())
    }

    /// The kind of device, as in tables of `symrail tune`.
    #[must_use]
    pub fn device_kind(&self) -> &str {
        &self.device
    }

    /// From now on calls use the algorithm of this name (`packets`, `pushed`, `one_shot`, `two_phase`, `direct`,
    /// `one_round`, `hierarchical`, `by_puts`), or the added plan of this name, and fail if it does not suit; with `None`
    /// they use what suits best.
    pub fn ask_for(&mut self, algorithm: Option<&str>) {
        self.asked = algorithm.map(Into::into);
    }

    /// All ways of performing a collective here that a table may name, with the useful numbers of blocks on this device.
    #[must_use]
    pub fn ways(&self, collective: &Collective) -> Vec<Way> {
        let of = |one: Algorithm| {
            let most = match one {
                Algorithm::Packets => MOST_BLOCKS_OF_PACKETS,
                Algorithm::Pushed => MOST_BLOCKS_OF_PUSHES,
                Algorithm::OneRound => self.limits.puts.1,
                _ => self.limits.most_blocks,
            };
            (0..=most.ilog2()).map(move |power| Way { algorithm: one.name().into(), blocks: 1 << power, chunk: None })
        };
        self.algorithms(collective, 0, false).into_iter().flat_map(of).collect()
    }

    /// A table with these rows for such PEs and hosts.
    #[must_use]
    pub fn table(&self, rows: Vec<Row>) -> Table {
        Table { device: self.device.clone(), pes: self.hosts.len(), hosts: self.n_hosts(), rows }
    }

    /// Uses a table from now on, in place of the one found when the communicator was made.
    ///
    /// # Errors
    /// The table is for other communicators, or names an unknown way.
    pub fn tune(&mut self, table: Table) -> Result<()> {
        self.accepts(&table).map_err(|why| Error::Call(format!("a table is not taken: {why}")))?;
        self.tuning = Tuning { table: Some(("given by the program".into(), table)), untaken: None };
        Ok(())
    }

    /// The choice for a message of so many bytes, and why each plan of a user does not suit. The root is that of a
    /// broadcast or a reduction to one PE.
    #[must_use]
    pub fn explain(&self, collective: &Collective, message: u64, in_place: bool, root: u32) -> Vec<String> {
        if let Err(error) = self.check_root(collective, root) {
            return vec![error.to_string()];
        }
        let wanted = self.wanted(collective, message, in_place, root);
        if let Some(name) = &self.asked {
            return vec![match self.named(name, &wanted) {
                Ok(Choice::Own(algorithm, blocks)) => {
                    let row = self.row(&wanted, Some(algorithm));
                    let why = row.map_or_else(String::new, |(row, ..)| format!(", the blocks {row}"));
                    format!("{name} with {blocks} blocks: chosen, asked for by its name{why}")
                }
                Ok(_) => format!("{name}: chosen, asked for by its name"),
                Err(error) => error.to_string(),
            }];
        }
        let mut lines = self.users.explain(&wanted);
        lines.extend(self.defaults.refused.iter().cloned());
        if self.users.select(&wanted).is_none() {
            lines.extend(self.defaults.plans.explain(&wanted));
        }
        lines.extend(self.tuning.untaken.clone());
        lines.push(match self.choose(collective, message, in_place, root) {
            Ok(Choice::Own(algorithm, blocks)) => {
                let row = self.row(&wanted, None).map(|(row, ..)| row);
                let why = row.unwrap_or_else(|| self.reason(algorithm));
                format!("{algorithm} with {blocks} blocks: chosen, {why}")
            }
            Ok(Choice::User(_) | Choice::Default(_)) => return lines,
            Err(error) => error.to_string(),
        });
        lines
    }
}
