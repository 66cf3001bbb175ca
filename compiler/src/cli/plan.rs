//! `kilnc plan`: what was decided, and how good it is: placement, streams with their predicted times, arenas, structure.

use super::args::PlanArgs;
use super::{Outcome, model, placement, term};
use crate::ep::npu::expand::Lane;
use crate::ep::npu::plan::CascadeFacts;
use crate::ep::npu::schedule::LANES;
use crate::error::CompileErrors;
use crate::ir::Graph;
use crate::memory::Arenas;
use crate::onnx::Decoded;
use crate::plan::branch::{Branches, Counts, branches};
use crate::plan::dag::Dag;
use crate::program::Program;
use crate::schedule::StreamStep;
use crate::{Options, compile_graph, graph, ops};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

/// Columns of a stream's bar.
const COLUMNS: usize = 72;
/// Tensors of the peak that are named.
const SHOWN: usize = 20;

/// The command.
pub(super) fn command(args: &PlanArgs) -> Outcome {
    let (model, options) = model::read(&args.model, &args.compile)?;
    let graph = graph(&model.decoded, &options)?;
    let program = compile_graph(&graph, &model.decoded, &options)?;
    let mut structure = Structure::of(&graph);
    structure.layouts = layouts(&program, &graph, &model.decoded, &options)?;
    placement::report(&program, &options, &args.compile)?;
    term::result(&if args.json { json(&program, &structure) } else { text(&program, &structure) });
    Ok(())
}

/// Branches and layers of the graph.
struct Structure {
    branches: Branches,
    counts: Counts,
    names: Vec<String>,
    /// Bytes of the arena by each layout.
    layouts: [(&'static str, u64); 2],
}

/// The arena's bytes with everything packed together, and with a region for each branch.
fn layouts(
    program: &Program,
    graph: &Graph,
    decoded: &Decoded,
    options: &Options,
) -> Result<[(&'static str, u64); 2], CompileErrors> {
    let bytes = |arenas: Arenas| {
        if arenas == options.arenas {
            return Ok(program.arena.bytes);
        }
        let other = Options { arenas, budget_bytes: None, ..options.clone() };
        Ok::<u64, CompileErrors>(compile_graph(graph, decoded, &other)?.arena.bytes)
    };
    Ok([("shared", bytes(Arenas::Shared)?), ("branch", bytes(Arenas::Branch)?)])
}

impl Structure {
    fn of(graph: &Graph) -> Self {
        let mut maker = BTreeMap::new();
        for (i, node) in graph.nodes.iter().enumerate() {
            maker.extend(node.outputs.iter().flatten().map(|v| (*v, i)));
        }
        let from = |v: &Option<crate::ir::ValueId>| v.as_ref().and_then(|v| maker.get(v).copied());
        let edges: Vec<(usize, usize)> = graph
            .nodes
            .iter()
            .enumerate()
            .flat_map(|(i, n)| n.inputs.iter().filter_map(from).map(move |p| (p, i)))
            .collect();
        // Nodes of a graph stand in a topological order.
        let dag = Dag::new(graph.nodes.len(), edges).unwrap_or_default();
        let control_flow = |n: usize| matches!(graph.nodes[n].op.as_str(), "If" | "Loop" | "Scan");
        let branches = branches(&dag, control_flow, |_, _| true);
        let work = |n: usize| {
            let node = &graph.nodes[n];
            let flops = ops::find(node).and_then(|op| (op.flops)(&ops::view::NodeView { graph, node }));
            flops.ok().and_then(|f| f.upper()).and_then(|f| u64::try_from(f).ok()).unwrap_or(0)
        };
        let counts = branches.counts(work);
        Self { branches, counts, layouts: [("", 0); 2], names: graph.nodes.iter().map(|n| n.name.clone()).collect() }
    }
}

/// How many nodes the CPU runs.
fn n_nodes(program: &Program) -> usize {
    program.steps.iter().map(|s| s.node.as_str()).collect::<BTreeSet<_>>().len()
}

fn ms(ns: u64) -> f64 {
    ns as f64 / 1e6
}

fn text(program: &Program, structure: &Structure) -> String {
    let mut out = String::new();
    let a = &program.arena;
    match placement::page(program) {
        Some(page) => out += &page,
        None => _ = writeln!(out, "placement cpu {} nodes, no copies (one device)", n_nodes(program)),
    }
    let _ = writeln!(out, "steps     {}, {} floating-point operations", program.steps.len(), program.flops);
    gantt(&mut out, program);
    let gap = a.bytes - a.lower_bound_bytes.min(a.bytes);
    let optimal = if gap > 0 && a.proven_optimal { " (proven optimal)" } else { "" };
    let _ = writeln!(out, "arena     {} bytes in dram{optimal}", a.bytes);
    let _ = writeln!(out, "  bound   {} bytes, gap {gap}", a.lower_bound_bytes);
    let _ = writeln!(out, "  naive   {} bytes", a.naive_bytes);
    for (layout, bytes) in structure.layouts {
        let _ = writeln!(out, "  {layout:<7} {bytes} bytes");
    }
    for n in &program.narrow {
        let (bytes, ms) = (n.memory_bytes(), ms(n.schedule.predicted_ns));
        let streams = n.schedule.streams.len();
        let _ = writeln!(out, "  or      {bytes} bytes, streams: {streams}, predicted {ms:.3} ms");
    }
    for c in program.device.iter().flat_map(|d| &d.cascades) {
        let (n, rows, nodes) = (c.n_strips, c.rows, &c.nodes);
        let _ = writeln!(out, "cascade   {n} strips of {rows} rows, {} buffers: {nodes:?}", c.n_buffers);
    }
    let _ = writeln!(out, "weights   {} bytes", program.weight_bytes);
    let c = &structure.counts;
    let _ = writeln!(out, "structure     nodes  branches    layers  parallel  candidate  most branches");
    for (what, c) in [("graph", c), ("on cpu", c)] {
        let [n, b, l, p] = [c.n_nodes, c.n_branches, c.n_layers, c.n_parallel_layers];
        let _ =
            writeln!(out, "  {what:<8}{n:>9}{b:>10}{l:>10}{p:>10}{:>11}{:>15}", c.n_candidate_layers, c.max_branches);
    }
    let _ = write!(out, "peak      {} tensors", a.peak.len());
    for p in a.peak.iter().take(SHOWN) {
        let _ = write!(out, "\n  {:>12} {:?}", p.bytes, p.name);
    }
    if a.peak.len() > SHOWN {
        let _ = write!(out, "\n  and {} smaller ones", a.peak.len() - SHOWN);
    }
    out
}

/// The streams' predicted time lines: how busy each is in every part of the run.
fn gantt(out: &mut String, program: &Program) {
    let schedule = &program.schedule;
    let end = schedule.predicted_ns.max(1);
    let n = schedule.streams.len();
    let whose = if program.device.is_some() { "" } else { " of cpu" };
    let _ = write!(out, "streams   {n}{whose}, {} waits, predicted {} ns ({:.3} ms)", schedule.n_waits(), end, ms(end));
    if n > 1 {
        let times = schedule.sequential_ns as f64 / end as f64;
        let _ = write!(out, ", {times:.2} times as fast as one stream's {} ns", schedule.sequential_ns);
    }
    out.push('\n');
    for (s, steps) in schedule.streams.iter().enumerate() {
        let mut busy = vec![0u128; COLUMNS];
        let mut total = 0;
        for step in steps {
            let StreamStep::Run(i) = *step else { continue };
            let Some(&(from, to)) = schedule.times.get(i) else { continue };
            total += to - from;
            // In units of 1 / COLUMNS of a nanosecond, so that columns have whole borders.
            let scale = |ns: u64| u128::from(ns) * COLUMNS as u128;
            let first = (scale(from) / u128::from(end)) as usize;
            for (c, column) in busy.iter_mut().enumerate().skip(first) {
                let (left, right) = (c as u128 * u128::from(end), (c as u128 + 1) * u128::from(end));
                if left >= scale(to) {
                    break;
                }
                *column += scale(to).min(right) - scale(from).max(left);
            }
        }
        let mark = |b: &u128| [' ', '.', '-', '+', '#'][(b * 4).div_ceil(u128::from(end)).min(4) as usize];
        let bar: String = busy.iter().map(mark).collect();
        let on = if program.device.is_some() { format!("  {}", runs_on(program, s)) } else { String::new() };
        let _ = writeln!(out, "  {s:>2} |{bar}| {:.0} % busy{on}", total as f64 * 100.0 / end as f64);
    }
    let mut longest: Vec<usize> = (0..schedule.times.len().min(program.steps.len())).collect();
    let ns = |i: usize| schedule.times[i].1 - schedule.times[i].0;
    longest.sort_by_key(|&i| (std::cmp::Reverse(ns(i)), i));
    for &i in longest.iter().take(5) {
        let (from, to) = schedule.times[i];
        let step = &program.steps[i];
        let _ = writeln!(out, "  {from:>12} .. {to:<12} ns  {} {:?}", step.call.entry(), step.node);
    }
}

fn json(program: &Program, structure: &Structure) -> String {
    let a = &program.arena;
    let peak: Vec<_> = a.peak.iter().map(|p| json!({ "value": p.name, "bytes": p.bytes })).collect();
    let c = &structure.counts;
    let names = |b: &Vec<usize>| b.iter().map(|&n| structure.names[n].clone()).collect::<Vec<_>>();
    let summary = program.placement.as_ref();
    let devices = summary.map_or_else(
        || json!({ "cpu": n_nodes(program) }),
        |s| s.devices.iter().map(|(name, n)| (name.clone(), json!(n))).collect::<serde_json::Map<_, _>>().into(),
    );
    let copies = summary.map_or_else(|| json!([]), placement::copies);
    let schedule = |p: &Program| {
        json!({
            "streams": p.schedule.streams.len(), "bytes": p.memory_bytes(), "predicted_ns": p.schedule.predicted_ns,
        })
    };
    let schedules: Vec<_> = std::iter::once(program).chain(&program.narrow).map(schedule).collect();
    let cascade =
        |c: &CascadeFacts| json!({ "nodes": c.nodes, "strips": c.n_strips, "rows": c.rows, "buffers": c.n_buffers });
    let cascades: Vec<_> = program.device.iter().flat_map(|d| &d.cascades).map(cascade).collect();
    let placements = summary.map_or_else(|| json!([]), placement::placements);
    let mut json = json!({
        "arenas": [{
            "memory": "dram",
            "bytes": a.bytes,
            "lower_bound_bytes": a.lower_bound_bytes,
            "naive_bytes": a.naive_bytes,
            "proven_optimal": a.proven_optimal,
            "shared_bytes": structure.layouts[0].1,
            "branch_bytes": structure.layouts[1].1,
            "peak": peak,
        }],
        "schedules": schedules,
        "cascades": cascades,
        "predicted_ns": program.schedule.predicted_ns,
        "sequential_ns": program.schedule.sequential_ns,
        "weight_bytes": program.weight_bytes,
        "flops": program.flops,
        "devices": devices,
        "copies": copies,
        "placements": placements,
        "streams": (0..program.schedule.streams.len()).map(|s| stream(program, s)).collect::<Vec<_>>(),
        "layers": structure.branches.layers,
        "branches": structure.branches.nodes.iter().map(names).collect::<Vec<_>>(),
        "counts": {
            "nodes": c.n_nodes, "branches": c.n_branches, "layers": c.n_layers, "parallel_layers": c.n_parallel_layers,
            "candidate_layers": c.n_candidate_layers, "most_branches": c.max_branches,
        },
    });
    if let (Some(d), Some(arenas)) = (&program.device, json["arenas"].as_array_mut()) {
        arenas.push(json!({
            "memory": d.name, "bytes": d.sram.bytes, "lower_bound_bytes": d.sram.lower_bound_bytes,
            "naive_bytes": d.sram.naive_bytes, "proven_optimal": d.sram.proven_optimal, "capacity_bytes": d.capacity_bytes,
        }));
    }
    format!("{json:#}")
}

/// What a stream runs on.
fn runs_on(program: &Program, s: usize) -> String {
    match &program.device {
        None => "cpu".into(),
        Some(d) => match LANES.get(s) {
            Some(Lane::Host) | None => "cpu".into(),
            Some(lane) => format!("{} {}", d.name, format!("{lane:?}").to_lowercase()),
        },
    }
}

/// A stream's steps. A wait lasts from the end of the step before it to the beginning of the one after.
fn stream(program: &Program, s: usize) -> Value {
    let schedule = &program.schedule;
    let steps = &schedule.streams[s];
    let time = |i: usize| schedule.times.get(i).copied().unwrap_or((0, 0));
    let mut now = 0;
    let mut out = Vec::with_capacity(steps.len());
    for (at, step) in steps.iter().enumerate() {
        match *step {
            StreamStep::Run(i) => {
                let (start_ns, end_ns) = time(i);
                now = end_ns;
                let (node, kernel) = (&program.steps[i].node, program.steps[i].call.entry());
                out.push(json!({
                    "kind": "launch", "node": node, "start_ns": start_ns, "end_ns": end_ns, "step": i, "kernel": kernel,
                }));
            }
            StreamStep::Wait { stream, count } => {
                let next =
                    steps[at..].iter().find_map(|s| if let StreamStep::Run(i) = s { Some(time(*i).0) } else { None });
                let end_ns = next.unwrap_or(now).max(now);
                out.push(json!({
                    "kind": "wait", "node": "", "start_ns": now, "end_ns": end_ns, "stream": stream, "count": count,
                }));
            }
        }
    }
    json!({ "device": runs_on(program, s), "steps": out })
}
