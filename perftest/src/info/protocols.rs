//! The table of protocols, from the endpoints that a PE started here would open.

use std::fmt::Write;

use symrail_transport::Result;
use symrail_transport::backend::{self, HostPes};
use symrail_transport::endpoint::{Endpoint, Policy, ProtocolRow, Role};
use symrail_transport::env::Settings;
use symrail_transport::proxy_threads::Share;

use super::{host, json};
use crate::print;

/// The PEs of the job for which the endpoints are opened; the table is the same for any number.
const PES: u32 = 2;

/// Prints the table, and returns the exit code: 0, or 1 where no rail can be opened.
pub fn main(settings: &Settings, as_json: bool) -> i32 {
    let rows = match find_out(settings) {
        Ok(rows) => rows,
        Err(error) => {
            print::error("symrail info --protocols", &error);
            return 1;
        }
    };
    let printed = if as_json { json(&rows) } else { text(&rows) };
    match print::out(&printed) {
        Ok(()) => 0,
        Err(reason) => print::failed("symrail info", &reason),
    }
}

/// The rows of the host endpoint and of the first proxy thread's endpoint.
fn find_out(settings: &Settings) -> Result<Vec<ProtocolRow>> {
    let (_, here) = host::find_out(settings);
    let choice = backend::choose(settings, &HostPes::alone(here.allowed.clone()))?;
    let share = Share::of(0, choice.threads.number, choice.names().len());
    let policy = Policy::new(settings, choice.native_amo(settings));
    let rows = |role| -> Result<Vec<ProtocolRow>> {
        let rails = choice.open_share(&share, role, PES, settings)?;
        let mut endpoint = Endpoint::new(role, 0, PES, rails, policy)?;
        if share.spare {
            endpoint.keep_others_spare();
        }
        Ok(endpoint.protocols())
    };
    Ok([rows(Role::Host)?, rows(Role::Proxy)?].concat())
}

/// The table for people: a section for each endpoint.
fn text(rows: &[ProtocolRow]) -> String {
    let mut text = String::new();
    let line = |text: &mut String, columns: [&str; 6]| {
        let [operation, sizes, completion, order, form, why] = columns;
        // Writing to a String cannot fail, here and below.
        let _ = writeln!(text, "  {operation:<15} {sizes:<16} {completion:<22} {order:<30} {form:<52} {why}");
    };
    for (at, row) in rows.iter().enumerate() {
        if at == 0 || rows[at - 1].endpoint != row.endpoint {
            let space = if at == 0 { "" } else { "\n" };
            let _ = writeln!(text, "{space}{} endpoint over {}", row.endpoint, row.provider);
            line(&mut text, ["operation", "bytes", "completion", "order", "form", "why"]);
        }
        let to = row.to.map_or_else(String::new, |to| to.to_string());
        let sizes = if row.to == Some(row.from) { to } else { format!("{}..={to}", row.from) };
        let posted = if row.posting.is_empty() { String::new() } else { format!(" ({})", row.posting) };
        let form = format!("{}{posted}", row.form);
        line(&mut text, [row.operation, sizes.trim_end_matches('='), &row.completion, &row.order, &form, row.why]);
    }
    text
}
