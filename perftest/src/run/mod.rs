//! `symrail run`: starts the PEs of a job on this machine and looks after them until all are gone.

/// The arguments of `symrail run`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Not read yet
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
    rest: Vec<String>,
}

/// Runs `symrail run` and returns its exit code.
pub fn main(args: &Args) -> i32 {
    eprintln!("symrail run {}: not built in", args.rest.join(" "));
    2
}
