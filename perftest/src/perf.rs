//! `symrail perf`.

/// The arguments of `symrail perf`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Not read yet
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
    rest: Vec<String>,
}

/// Runs `symrail perf` and returns its exit code.
pub fn main(args: &Args) -> i32 {
    eprintln!("symrail perf {}: not built in", args.rest.join(" "));
    2
}
