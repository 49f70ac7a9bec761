//! Default plans, which have precedence over built-in plans: the files in the folder `default` of `SYMRAIL_CACHE_DIR`.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;

use crate::error::{Error, Result};
use crate::plan::registry::Registry;
use crate::plan::{Check, Document, Plan};
use crate::selection::Selection;

/// The default plans.
#[derive(Debug, Default)]
pub(crate) struct Defaults {
    pub plans: Registry,
    /// Why some are not used.
    pub refused: Vec<String>,
    /// A hash of the files: equal files have equal hashes.
    pub fingerprint: u64,
}

impl Defaults {
    /// Loads them, in the order of their names; none without the folder. Refused plans, and plans of unnamed
    /// collectives, are left out.
    ///
    /// # Errors
    /// A file cannot be read.
    pub fn load(cache: Option<&Path>) -> Result<Defaults> {
        let mut defaults = Defaults::default();
        let Some(folder) = cache.map(|cache| cache.join("default")).filter(|folder| folder.is_dir()) else {
            return Ok(defaults);
        };
        let failed = |source| Error::Read { path: folder.display().to_string(), source };
        let entries = std::fs::read_dir(&folder).map_err(failed)?.collect::<std::io::Result<Vec<_>>>();
        let mut paths: Vec<_> = entries.map_err(failed)?.into_iter().map(|entry| entry.path()).collect();
        paths.retain(|path| path.extension().is_some_and(|extension| extension == "json"));
        paths.sort();
        // An empty folder counts as none.
        if paths.is_empty() {
            return Ok(defaults);
        }
        let mut hasher = DefaultHasher::new();
        for path in paths {
            let shown = path.display().to_string();
            let text = std::fs::read_to_string(&path).map_err(|source| Error::Read { path: shown.clone(), source })?;
            (path.file_name(), &text).hash(&mut hasher);
            let plan = Document::from_json(&text, &shown).and_then(|document| Plan::new(&document, Check::Result));
            match plan.and_then(|plan| Selection::check_plan(&plan).map(|()| plan)) {
                Ok(plan) => defaults.plans.add(plan),
                Err(error) => defaults.refused.push(format!("{shown}: refused, {error}")),
            }
        }
        defaults.fingerprint = hasher.finish();
        Ok(defaults)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::build::{Shape, all_reduce};

    #[test]
    fn plans_are_taken_in_the_order_of_names_and_bad_ones_are_named() {
        let cache = std::env::temp_dir().join(format!("symrail-defaults-{}", std::process::id()));
        let folder = cache.join("default");
        std::fs::create_dir_all(&folder).unwrap();
        let document = all_reduce::two_phase(&Shape::one_host(2, 1));
        for (name, plan) in [("b.json", "second"), ("a.json", "first")] {
            let document = crate::plan::Document { name: plan.into(), ..document.clone() };
            std::fs::write(folder.join(name), serde_json::to_string(&document).unwrap()).unwrap();
        }
        std::fs::write(folder.join("c.json"), "{}").unwrap();
        std::fs::write(folder.join("notes.txt"), "no plan").unwrap();
        let defaults = Defaults::load(Some(&cache)).unwrap();
        let again = Defaults::load(Some(&cache)).unwrap().fingerprint;
        std::fs::write(folder.join("b.json"), "{}").unwrap();
        let other = Defaults::load(Some(&cache)).unwrap().fingerprint;
        for name in ["a.json", "b.json", "c.json"] {
            std::fs::remove_file(folder.join(name)).unwrap();
        }
        let empty = Defaults::load(Some(&cache)).unwrap().fingerprint;
        std::fs::remove_dir_all(&cache).unwrap();
        assert_eq!(empty, 0);
        let names = [0, 1, 2].map(|place| defaults.plans.get(place).map(Plan::name));
        assert_eq!(names, [Some("first"), Some("second"), None]);
        assert!(defaults.refused.len() == 1 && defaults.refused[0].contains("c.json"), "{:?}", defaults.refused);
        assert_eq!(defaults.fingerprint, again);
        assert_ne!(defaults.fingerprint, other);
        assert_eq!(Defaults::load(Some(&cache)).unwrap().fingerprint, 0);
    }
}
