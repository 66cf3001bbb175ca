//! `kilnc pack`: the memory solver alone, on a file of lifetimes and sizes.

use super::args::PackArgs;
use super::{Failure, Outcome, term};
use crate::memory::solve::Options;
use crate::memory::solve::csv::{pack, write};

/// The command.
pub(super) fn command(args: &PackArgs) -> Outcome {
    let text = std::fs::read_to_string(&args.file)
        .map_err(|e| Failure::Misuse(format!("cannot read {}: {e}", args.file.display())))?;
    match pack(&text, args.capacity, &Options::thorough()) {
        Ok((rows, solution)) if args.json => {
            let buffers = rows.iter().zip(&solution.offsets);
            let buffers: Vec<_> = buffers.map(|(row, at)| serde_json::json!({ "id": row.id, "offset": at })).collect();
            let json = serde_json::json!({
                "bytes": solution.height, "lower_bound_bytes": solution.lower_bound, "buffers": buffers,
            });
            term::result(&format!("{json:#}"));
            Ok(())
        }
        Ok((rows, solution)) => {
            term::result(write(&rows, &solution.offsets).trim_end());
            Ok(())
        }
        Err(e) if e.exit_code() == 1 => Err(Failure::short(e.to_string())),
        Err(e) => Err(Failure::Misuse(format!("{}: {e}", args.file.display()))),
    }
}
