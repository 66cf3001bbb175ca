//! `kilnc target`: the machines that can be compiled for.

use super::args::TargetCommand;
use super::{Failure, Outcome, measure, term};
use crate::machine::text_of;
use crate::plan::target::Target;

/// The command.
pub(super) fn command(command: &TargetCommand) -> Outcome {
    match command {
        TargetCommand::Show { target } => {
            let text = text_of(target).map_err(Failure::Misuse)?;
            Target::parse(&text, target).map_err(|e| Failure::Misuse(e.to_string()))?;
            term::result(text.trim_end());
            Ok(())
        }
        TargetCommand::Measure { gpu: true, .. } => {
            Err(Failure::short("--gpu: this version cannot measure GPUs, nor compile for them"))
        }
        TargetCommand::Measure { output, .. } => {
            let rates = measure::rates().map_err(Failure::Short)?;
            let text = measure::text(&rates);
            std::fs::write(output, &text).map_err(|e| Failure::Misuse(format!("{}: {e}", output.display())))?;
            term::result(text.trim_end());
            Ok(())
        }
    }
}
