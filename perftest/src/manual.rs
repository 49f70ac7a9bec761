//! The manual pages in `docs/man`: their sections OPTIONS are made from the options' own descriptions.
#![allow(clippy::unwrap_used)]

use std::path::Path;

use clap::CommandFactory;

use super::Cli;

const COMMANDS: [&str; 6] = ["run", "perf", "tune", "info", "doctor", "top"];
const OPTIONS: &str = ".SH OPTIONS\n";
const WRITES: &str = "SYMRAIL_TEST_WRITE_MANUAL";

/// The section OPTIONS of a command's page.
fn options(name: &str) -> String {
    let mut cli = Cli::command();
    let command = cli.find_subcommand_mut(name).unwrap().clone().disable_help_flag(true).disable_help_subcommand(true);
    let mut section = Vec::new();
    clap_mangen::Man::new(command).render_options_section(&mut section).unwrap();
    let section = String::from_utf8(section).unwrap();
    // The lines before it define a string for apostrophes.
    section[section.find(OPTIONS).unwrap()..].replace("\\*(Aq", "\\(aq")
}

#[test]
fn manual_pages_have_the_options_that_commands_have() {
    let writes = std::env::var_os(WRITES).is_some();
    for name in COMMANDS {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../docs/man/symrail-{name}.1"));
        let page = std::fs::read_to_string(&path).unwrap();
        let (before, section) = page.split_once(OPTIONS).unwrap();
        let after = section.find(".SH ").map_or("", |at| &section[at..]);
        let expected = format!("{before}{}{after}", options(name));
        if writes {
            std::fs::write(&path, expected).unwrap();
            continue;
        }
        assert_eq!(page, expected, "{}: {WRITES}=1 with this test writes its options", path.display());
    }
}
