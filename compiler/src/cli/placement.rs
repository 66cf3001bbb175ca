//! What commands say of a placement: warnings on stderr, a page for `kilnc plan`, a file to load again. And a warning where
//! measured times are of other nodes than the model's.

use super::args::CompileArgs;
use super::{Failure, Outcome, term};
use crate::artifact::write_whole;
use crate::ep::place::Summary;
use crate::facts::Facts;
use crate::onnx::Decoded;
use crate::program::Program;
use crate::{Options, compile};
use serde_json::{Value, json};
use std::fmt::Write;

/// Prints the warnings and saves the placement, if that was asked for.
pub(super) fn report(program: &Program, options: &Options, args: &CompileArgs) -> Outcome {
    if let Some(summary) = program.placement.as_ref().filter(|_| !args.quiet) {
        summary.warnings.iter().for_each(|w| term::message(&format!("warning: {w}")));
    }
    warn_of_times(options, program.steps.iter().map(|s| s.node.as_str()), args);
    save(program, args)
}

/// For commands that work on a module, which may come from the cache: warns of times of other nodes, and plans once more for
/// a placement that is to be saved.
pub(super) fn report_module(decoded: &Decoded, facts: &Facts, options: &Options, args: &CompileArgs) -> Outcome {
    warn_of_times(options, facts.steps.iter().map(|s| s.node.as_str()), args);
    match args.save_placement {
        Some(_) => save(&compile(decoded, options)?, args),
        None => Ok(()),
    }
}

/// Warns when no node has a measured time.
pub(super) fn warn_of_times<'n>(options: &Options, nodes: impl Iterator<Item = &'n str>, args: &CompileArgs) {
    let warning = options.profile.as_ref().and_then(|profile| profile.warning(nodes));
    if let Some(warning) = warning.filter(|_| !args.quiet) {
        term::message(&format!("warning: --profile: {warning}"));
    }
}

/// Saves the placement, if that was asked for.
pub(super) fn save(program: &Program, args: &CompileArgs) -> Outcome {
    let (Some(path), Some(summary)) = (&args.save_placement, &program.placement) else { return Ok(()) };
    let wrong = |e| Failure::Misuse(format!("cannot write {}: {e}", path.display()));
    write_whole(path, summary.saved.as_bytes()).map_err(wrong)
}

/// Lines about placement, crossings and the device for people.
pub(super) fn page(program: &Program) -> Option<String> {
    let summary = program.placement.as_ref()?;
    let mut out = String::from("placement ");
    let devices: Vec<String> = summary.devices.iter().map(|(name, n)| format!("{name} {n} nodes")).collect();
    let _ = writeln!(out, "{}, {} copies", devices.join(", "), summary.crossings.len());
    let _ = writeln!(out, "  predicted us  of the host alone");
    let alone = summary.candidates.iter().find(|(name, _)| *name == format!("all on {}", summary.host));
    let mut row = |name: &str, ns: u64| {
        let share = alone.map_or_else(String::new, |(_, all)| format!("{:.3}", ns as f64 / (*all).max(1) as f64));
        let _ = writeln!(out, "  {:>12} {share:>18}  {name}", ns.div_ceil(1000));
    };
    summary.candidates.iter().for_each(|(name, ns)| row(name, *ns));
    row("this plan", summary.predicted_ns);
    if !summary.crossings.is_empty() {
        let _ = writeln!(out, "copies        bytes  handshake       copy     repack    convert  (ns)");
    }
    for c in &summary.crossings {
        let cost = &c.cost;
        let _ = writeln!(
            out,
            "  {:>16} {:>10} {:>10} {:>10} {:>10}  {:?} {} -> {}",
            c.bytes, cost.handshake_ns, cost.copy_ns, cost.repack_ns, cost.convert_ns, c.value, c.from, c.to
        );
    }
    if let Some(d) = &program.device {
        let count = |lane| d.lanes.iter().filter(|l| **l == lane).count();
        use crate::ep::npu::expand::Lane;
        let (kernels, loads, stores) = (count(Lane::Compute), count(Lane::Load), count(Lane::Store));
        let _ = writeln!(out, "{:<9} {kernels} kernels, {loads} loads, {stores} stores", d.name);
        let _ = writeln!(
            out,
            "  memory  {} of {} bytes, bound {}",
            d.sram.bytes, d.capacity_bytes, d.sram.lower_bound_bytes
        );
    }
    Some(out)
}

/// What the placements that were compared would take, for tools.
pub(super) fn placements(summary: &Summary) -> Value {
    let row = |(name, ns): &(String, u64)| json!({ "placement": name, "predicted_ns": ns });
    let this = ("this plan".to_owned(), summary.predicted_ns);
    summary.candidates.iter().chain([&this]).map(row).collect()
}

/// The copies for tools.
pub(super) fn copies(summary: &Summary) -> Value {
    let copy = |c: &crate::ep::place::Crossing| {
        json!({
            "value": c.value, "from": c.from, "to": c.to, "bytes": c.bytes, "handshake_ns": c.cost.handshake_ns,
            "copy_ns": c.cost.copy_ns, "repack_ns": c.cost.repack_ns, "convert_ns": c.cost.convert_ns,
        })
    };
    summary.crossings.iter().map(copy).collect()
}
