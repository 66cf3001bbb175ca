//! How planning time grows with the graph: prints milliseconds of each stage for generated graphs of 1k, 10k and 100k nodes.
//!
//! `cargo run --release -p kiln-compiler --example plan_bench`

use kiln_compiler::plan::branch::branches;
use kiln_compiler::plan::check::check;
use kiln_compiler::plan::graph::{Form, Node, Shape, Source, TaskGraph, Value};
use kiln_compiler::plan::id::{DtypeId, LayoutId, ValueId};
use kiln_compiler::plan::insert::insert;
use kiln_compiler::plan::order::{HappensBefore, accesses, conflicts};
use kiln_compiler::plan::placement::{Objective, Policy, optimal, sum};
use kiln_compiler::plan::schedule;
use kiln_compiler::plan::target::Target;
use std::time::Instant;

/// Inception-like: blocks of four chains of different lengths that fork from one node and join in another.
fn generated(n: usize, target: &Target) -> TaskGraph {
    let mut graph = TaskGraph::default();
    let mut seed = 1u64;
    let mut random = move |n: u64| {
        seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (seed >> 33) % n
    };
    let mut value = |graph: &mut TaskGraph, source| {
        let bytes = 10_000 + random(100_000);
        let form = Form { layout: LayoutId(0), dtype: DtypeId(0), bytes };
        let forms = vec![form; target.n_devices()];
        graph.values.push(Value { name: String::new(), elements: bytes / 4, forms, source, output: None });
        (ValueId::new(graph.values.len() - 1), bytes)
    };
    let (mut last, _) = value(&mut graph, Source::Input(target.host));
    let mut node = |graph: &mut TaskGraph, inputs: &[ValueId]| {
        let (out, bytes) = value(graph, Source::Node);
        let i = graph.nodes.len() as u64;
        let on_host = 10_000 + bytes;
        // One node in ten is what accelerators lack.
        let cost = |d: usize| match d + 1 == target.n_devices() {
            true => Some(on_host),
            false => (i % 10 != 7).then_some(on_host / 6),
        };
        graph.nodes.push(Node {
            name: format!("n{i}"),
            inputs: inputs.to_vec(),
            outputs: vec![out],
            macs: bytes,
            cost_ns: (0..target.n_devices()).map(cost).collect(),
            pin: None,
            control_flow: false,
            splits: if i.is_multiple_of(5) { 8 } else { 1 },
            rowwise: Vec::new(),
        });
        out
    };
    while graph.nodes.len() < n {
        let fork = node(&mut graph, &[last]);
        let mut ends = Vec::new();
        for length in 1..=4 {
            let mut at = fork;
            for _ in 0..length {
                at = node(&mut graph, &[at]);
            }
            ends.push(at);
        }
        last = node(&mut graph, &ends);
    }
    graph.values[last.idx()].output = Some(target.host);
    graph
}

fn timed<T>(what: &str, run: impl FnOnce() -> T) -> T {
    let start = Instant::now();
    let out = run();
    print!(" {what} {:.1}", start.elapsed().as_secs_f64() * 1000.0);
    out
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let host = Target::shipped("host").ok_or("no such target")??.with_host_streams(2);
    let soc = Target::shipped("soc-npu").ok_or("no such target")??;
    for n in [1_000, 10_000, 100_000] {
        for target in [&host, &soc] {
            let graph = generated(n, target);
            print!("{n} nodes on {}, ms:", target.name);
            let shape = timed("shape", || Shape::new(&graph, target))?;
            timed("branches", || branches(&shape.dag, |_| false, |_, _| true));
            let placement = timed("sum", || sum::place(&graph, &shape, target));
            let list = timed("insert", || insert(&graph, &shape, target, &placement));
            let planned = timed("schedule", || schedule::best(&list, target, true));
            let hb = timed("order", || HappensBefore::new(&planned.schedule)).ok_or("deadlock")?;
            let edges = timed("conflicts", || conflicts(&hb, &accesses(&list, &planned.schedule)));
            timed("check", || check(&graph, target, &list, &planned.schedule))?;
            println!(" ({} tasks, {} waits, {} conflicts)", list.tasks.len(), planned.schedule.n_waits(), edges.len());
            if n <= 10_000 {
                let policy = Policy::Optimal(Objective::Makespan);
                let effort = optimal::Effort::default();
                let placed = timed("  makespan search", || optimal::place(&graph, &shape, target, policy, effort));
                println!("; simulated {:?} us", placed.planned.timeline.end_ns / 1000);
            }
        }
    }
    Ok(())
}
