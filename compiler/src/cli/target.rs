//! `kilnc target`: the machines that can be compiled for.

use super::args::TargetCommand;
use super::{Failure, Outcome, term};
use crate::{MAX_STREAMS, check_target};

/// The command.
pub(super) fn command(command: &TargetCommand) -> Outcome {
    match command {
        TargetCommand::Show { target } => {
            check_target(target).map_err(Failure::Misuse)?;
            term::result(&format!(
                "name = \"host\"\n\n[[memory]]\nname = \"dram\"\nalignment_bytes = {}\n\n\
                 [[device]]\nname = \"cpu\"\nprovider = \"cpu\"\nmemory = \"dram\"\nmax_streams = {MAX_STREAMS}",
                kiln_kernels::ALIGN
            ));
            Ok(())
        }
        TargetCommand::Measure { .. } => Err(Failure::misuse("target measure is not supported yet")),
    }
}
