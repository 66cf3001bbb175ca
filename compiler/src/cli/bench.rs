//! `kilnc bench`: builds the module with a timing loop, runs it in a process of its own, compares with what this machine
//! can do at most on as many threads: its measured multiply-add rate, and the roofline ([`super::roofline`]).

use super::args::BenchArgs;
use super::build::{Task, run_all};
use super::roofline::Roofline;
use super::term::{self, Progress};
use super::{Failure, Outcome, data, model, placement};
use crate::artifact::Cache;
use crate::facts::{Facts, StepFact};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

struct Times {
    min_ns: u64,
    median_ns: u64,
    p90_ns: u64,
    rss_bytes: u64,
}

/// The command.
pub(super) fn command(args: &BenchArgs) -> Outcome {
    let (file, mut options) = model::read(&args.model, &args.compile)?;
    let given = model::given_inputs(&args.input, &file.decoded.model, &mut options.import)?;
    options.per_step = args.per_op;
    let progress = Progress::new(args.compile.quiet);
    let cache = Cache::new(super::cache_folder()?);
    progress.say("compiling");
    let artifact = cache.module_of(&file, &options)?;
    placement::report_module(&file.decoded, &artifact.facts, &options, &args.compile)?;
    let inputs = model::inputs(&artifact.facts.inputs, &given, args.seed)?;
    progress.say("building");
    let (module, build_s) = model::build(&artifact, &options, &cache, &progress)?;
    let scratch = data::Scratch::new().map_err(Failure::Short)?;
    let in_file = scratch.file("in");
    data::write_data(&in_file, &inputs).map_err(Failure::Short)?;
    let kinds = if args.per_op { &["bench", "steps"][..] } else { &["bench"] };
    let task = |what| Task { module: module.clone(), what, inputs: in_file.clone(), last: args.iters.to_string() };
    let tasks: Vec<_> = kinds.iter().map(|what| task(what)).collect();
    progress.say("measuring this machine");
    let machine = Roofline::measure(&artifact.facts).map_err(Failure::Short)?;
    progress.say("running");
    let outcomes = run_all(&tasks, 1, Duration::from_secs(args.timeout), &|_| {});
    cache.prune();
    progress.done();
    let mut said = Vec::new();
    for outcome in outcomes {
        let numbers = outcome.said.map_err(Failure::Short)?;
        said.push(numbers.split(' ').map(|n| n.parse().unwrap_or(0)).collect::<Vec<u64>>());
    }
    let at = |i: usize| said.first().and_then(|n| n.get(i)).copied().unwrap_or(0);
    let times = Times { min_ns: at(0), median_ns: at(1), p90_ns: at(2), rss_bytes: at(3) };
    let ops = said.get(1).map(|medians| ops(&artifact.facts, medians, &machine));
    report(args, &artifact.facts, &times, &machine, build_s, ops.as_deref());
    Ok(())
}

/// One node's time, its steps added up.
struct Op {
    node: String,
    op: String,
    median_ns: u64,
    roofline_ns: f64,
}

fn ops(facts: &Facts, medians: &[u64], machine: &Roofline) -> Vec<Op> {
    let mut out: Vec<Op> = Vec::new();
    for (step @ StepFact { node, op, .. }, &ns) in facts.steps.iter().zip(medians) {
        // Steps are timed one by one, on one thread.
        let roofline_ns = machine.least_ns(step, 1);
        match out.last_mut().filter(|last| last.node == *node) {
            Some(last) => {
                last.median_ns += ns;
                last.roofline_ns += roofline_ns;
            }
            None => out.push(Op { node: node.clone(), op: op.clone(), median_ns: ns, roofline_ns }),
        }
    }
    out
}

/// Threads of the CPU that a run takes: the streams that were planned, which on one core run merged on one thread.
fn threads(facts: &Facts) -> u64 {
    match std::thread::available_parallelism() {
        Ok(cores) if cores.get() > 1 => facts.streams,
        _ => 1,
    }
}

fn report(args: &BenchArgs, facts: &Facts, times: &Times, machine: &Roofline, build_s: f64, ops: Option<&[Op]>) {
    let threads = threads(facts);
    let least_ns: f64 = facts.steps.iter().map(|s| machine.least_ns(s, threads)).sum();
    let fraction = least_ns / times.median_ns.max(1) as f64;
    let gflops = facts.flops as f64 / times.median_ns.max(1) as f64;
    let peak_gflops = machine.flops_per_s * threads as f64 / 1e9;
    if args.json {
        let ops = ops.unwrap_or_default().iter().map(|o| {
            serde_json::json!({
                "node": o.node, "op": o.op, "median_ns": o.median_ns, "roofline_ns": o.roofline_ns.round() as u64,
            })
        });
        let ops: Vec<_> = ops.collect();
        let json = serde_json::json!({
            "threads": threads,
            "min_ns": times.min_ns,
            "median_ns": times.median_ns,
            "p90_ns": times.p90_ns,
            "predicted_ns": facts.predicted_ns,
            "roofline_fraction": fraction,
            "gflops": gflops,
            "peak_fraction": gflops / peak_gflops,
            "peak_gflops": peak_gflops,
            "peak_gb_s": machine.dram_bytes_per_s / 1e9,
            "cache_gb_s": machine.cache_bytes_per_s / 1e9,
            "arena_bytes": facts.arena_bytes,
            "weight_bytes": facts.weight_bytes,
            "rss_bytes": times.rss_bytes,
            "build_s": build_s,
            "ops": ops,
        });
        term::result(&format!("{json:#}"));
        return;
    }
    let ms = |ns: u64| ns as f64 / 1e6;
    let mb = |bytes: u64| bytes as f64 / 1e6;
    let n_threads = if threads == 1 { "1 thread".to_owned() } else { format!("{threads} threads") };
    let mut out = String::new();
    let _ = writeln!(
        out,
        "latency   min {:.3} ms, median {:.3} ms, p90 {:.3} ms ({} runs, {})",
        ms(times.min_ns),
        ms(times.median_ns),
        ms(times.p90_ns),
        args.iters,
        n_threads
    );
    if !facts.device.is_empty() {
        let ratio = times.median_ns as f64 / facts.predicted_ns.max(1) as f64;
        let (predicted, device) = (ms(facts.predicted_ns), &facts.device);
        let _ = writeln!(
            out,
            "predicted {predicted:.3} ms on the CPU and \"{device}\": the median is {ratio:.3} times that"
        );
    }
    let _ = writeln!(
        out,
        "speed     {gflops:.2} GFLOP/s, {:.1} % of this machine's measured peak on {n_threads}, {peak_gflops:.1} GFLOP/s",
        100.0 * gflops / peak_gflops
    );
    let _ = writeln!(
        out,
        "roofline  {:.1} % of what multiply-adds, memory ({:.1} GB/s) and caches ({:.1} GB/s) allow",
        100.0 * fraction,
        machine.dram_bytes_per_s / 1e9,
        machine.cache_bytes_per_s / 1e9
    );
    let _ = writeln!(
        out,
        "memory    arena {:.2} MB (bound {:.2}), weights {:.2} MB, resident {:.2} MB",
        mb(facts.arena_bytes),
        mb(facts.lower_bound_bytes),
        mb(facts.weight_bytes),
        mb(times.rss_bytes)
    );
    let _ = write!(out, "build     {build_s:.1} s");
    if let Some(ops) = ops {
        let total: u64 = ops.iter().map(|o| o.median_ns).sum();
        let mut kinds: BTreeMap<&str, (u64, f64, usize)> = BTreeMap::new();
        for o in ops {
            let kind = kinds.entry(&o.op).or_default();
            *kind = (kind.0 + o.median_ns, kind.1 + o.roofline_ns, kind.2 + 1);
        }
        let mut kinds: Vec<_> = kinds.into_iter().collect();
        kinds.sort_by_key(|(_, (ns, ..))| std::cmp::Reverse(*ns));
        let share = |ns: u64| 100.0 * ns as f64 / total.max(1) as f64;
        let of = |least: f64, ns: u64| 100.0 * least / ns.max(1) as f64;
        for (op, (ns, least, n)) in kinds {
            let _ = write!(
                out,
                "\n{:>9.3} ms {:>5.1} % {:>5.1} % of roofline  {op} ({n})",
                ms(ns),
                share(ns),
                of(least, ns)
            );
        }
        let mut slowest: Vec<_> = ops.iter().collect();
        slowest.sort_by_key(|o| std::cmp::Reverse(o.median_ns));
        for o in slowest.iter().take(20) {
            let (ns, of) = (o.median_ns, of(o.roofline_ns, o.median_ns));
            let _ =
                write!(out, "\n{:>9.3} ms {:>5.1} % {of:>5.1} % of roofline  {} {:?}", ms(ns), share(ns), o.op, o.node);
        }
    }
    term::result(&out);
}
