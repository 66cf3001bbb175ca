//! `kilnc plan`: what was decided, and how good it is.

use super::args::PlanArgs;
use super::{Outcome, model, term};
use crate::compile;
use crate::program::Program;
use std::fmt::Write;

/// The command.
pub(super) fn command(args: &PlanArgs) -> Outcome {
    let (model, options) = model::read(&args.model, &args.compile)?;
    let program = compile(&model.decoded, &options)?;
    term::result(&if args.json { json(&program) } else { text(&program) });
    Ok(())
}

fn text(program: &Program) -> String {
    let a = &program.arena;
    let mut out = String::new();
    let gap = a.bytes - a.lower_bound_bytes.min(a.bytes);
    let optimal = if gap > 0 && a.proven_optimal { " (proven optimal)" } else { "" };
    let _ = writeln!(out, "arena     {} bytes{optimal}", a.bytes);
    let _ = writeln!(out, "  bound   {} bytes, gap {gap}", a.lower_bound_bytes);
    let _ = writeln!(out, "  naive   {} bytes", a.naive_bytes);
    let _ = writeln!(out, "weights   {} bytes", program.weight_bytes);
    let _ = writeln!(out, "steps     {} on 1 stream of cpu", program.steps.len());
    let _ = writeln!(out, "flops     {}", program.flops);
    let _ = write!(out, "peak      {} tensors", a.peak.len());
    for p in a.peak.iter().take(20) {
        let _ = write!(out, "\n  {:>12} {:?}", p.bytes, p.name);
    }
    if a.peak.len() > 20 {
        let _ = write!(out, "\n  and {} smaller ones", a.peak.len() - 20);
    }
    out
}

fn json(program: &Program) -> String {
    let a = &program.arena;
    let nodes: std::collections::BTreeSet<&str> = program.steps.iter().map(|s| s.node.as_str()).collect();
    let steps = program.steps.iter().map(|s| serde_json::json!({ "kind": "launch", "node": s.node }));
    let steps: Vec<_> = steps.collect();
    let peak = a.peak.iter().map(|p| serde_json::json!({ "value": p.name, "bytes": p.bytes }));
    let peak: Vec<_> = peak.collect();
    let json = serde_json::json!({
        "arenas": [{
            "memory": "dram",
            "bytes": a.bytes,
            "lower_bound_bytes": a.lower_bound_bytes,
            "naive_bytes": a.naive_bytes,
            "proven_optimal": a.proven_optimal,
            "peak": peak,
        }],
        "weight_bytes": program.weight_bytes,
        "flops": program.flops,
        "devices": { "cpu": nodes.len() },
        "copies": [],
        "streams": [{ "device": "cpu", "steps": steps }],
    });
    format!("{json:#}")
}
