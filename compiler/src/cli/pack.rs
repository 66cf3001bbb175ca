//! `kilnc pack`: the memory solver alone, on a file of lifetimes and sizes.

use super::args::PackArgs;
use super::{Failure, Outcome, term};
use crate::memory::solve::csv::pack_command;

/// The command.
pub(super) fn command(args: &PackArgs) -> Outcome {
    let text = std::fs::read_to_string(&args.file)
        .map_err(|e| Failure::Misuse(format!("cannot read {}: {e}", args.file.display())))?;
    match pack_command(&text, args.capacity) {
        Ok(table) => {
            term::result(table.trim_end());
            Ok(())
        }
        Err(e) if e.exit_code() == 1 => Err(Failure::short(e.to_string())),
        Err(e) => Err(Failure::Misuse(format!("{}: {e}", args.file.display()))),
    }
}
