//! A device's steps: proof that each runs on an engine that can do it and touches only memories that engine reaches.
//!
//! Kernels of the device work in its memory alone, transfers have one end in it and one outside, the CPU never sees it, and
//! every engine is one stream.

use super::streams::Wrong;
use crate::ep::npu::expand::Lane;
use crate::program::Program;
use crate::schedule::StreamStep;

/// Checks the steps of a program with a device.
pub(super) fn check(program: &Program) -> Result<(), Wrong> {
    let Some(device) = &program.device else { return Ok(()) };
    let region = program.device_region();
    let n = program.steps.len();
    if device.lanes.len() != n || device.ns.len() != n || device.handshake.len() != n {
        return Err((0, "the device's plan is another program's".into()));
    }
    if device.sram.bytes > device.capacity_bytes {
        return Err((0, "the device's memory is too small for its plan".into()));
    }
    for (i, (step, lane)) in program.steps.iter().zip(&device.lanes).enumerate() {
        let operands = step.call.operands();
        let inside = operands.iter().filter(|o| Some(o.operand.mem) == region).count();
        let transfer = step.call.descriptor() == "Transfer";
        let fits = match lane {
            Lane::Host => inside == 0,
            Lane::Compute => inside == operands.len() && !transfer,
            Lane::Load | Lane::Store => transfer && inside == 1 && operands.len() == 2,
        };
        if !fits {
            return Err((i, format!("the {lane:?} engine cannot do this")));
        }
        let out = operands.iter().any(|o| Some(o.operand.mem) != region && o.writes());
        if *lane == Lane::Store && !out || *lane == Lane::Load && out && device.store.is_some() {
            return Err((i, format!("the {lane:?} engine moves the other way")));
        }
    }
    for (s, steps) in program.schedule.streams.iter().enumerate() {
        let mut lanes = steps.iter().filter_map(|s| match s {
            StreamStep::Run(i) => device.lanes.get(*i),
            StreamStep::Wait { .. } => None,
        });
        let first = lanes.next().copied();
        if first.is_some_and(|l| l as usize != s) || lanes.any(|l| Some(*l) != first) {
            return Err((0, format!("stream {s} mixes engines")));
        }
    }
    Ok(())
}
