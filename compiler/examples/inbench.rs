//! Times a case's steps inside the compiler: `inbench FOLDER [ITERATIONS]`. For kernel and fusion work; `kilnc bench` times real modules.

use kiln_compiler::{Options, cases, compile, ir::Symbol};
use kiln_kernels::{AlignedBytes, Cx, Region, RunState, isa::Isa};
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Instant;

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let iterations: usize = args.get(2).and_then(|a| a.parse().ok()).unwrap_or(20);
    let case = cases::find(Path::new(&args[1])).expect("folder").remove(0);
    let decoded = case.decode().expect("model");
    let set = case.data_sets(&decoded.model).expect("data").remove(0);
    let start = Instant::now();
    let program = compile(&decoded, &Options { import: set.import_options(), ..Options::default() }).expect("compiles");
    eprintln!(
        "compiled in {:?}, {} steps, arena {} (bound {}), weights {}",
        start.elapsed(),
        program.steps.len(),
        program.arena.bytes,
        program.arena.lower_bound_bytes,
        program.weight_bytes
    );
    let mut arena = AlignedBytes::zeroed(program.arena.bytes as usize).expect("memory");
    let weights = AlignedBytes::copy_of(&program.weights_blob()).expect("memory");
    let inputs: Vec<_> = set.inputs.iter().map(|t| AlignedBytes::copy_of(t.data()).expect("memory")).collect();
    let mut regions = vec![Region::write(arena.as_mut_slice()), Region::read(weights.as_slice())];
    regions.extend(inputs.iter().map(|i| Region::read(i.as_slice())));
    let state = RunState::new();
    let cx = Cx::new(&regions, Isa::detect(), &state, &[]);
    let mut times = vec![Vec::new(); program.steps.len()];
    let mut totals = Vec::new();
    for _ in 0..iterations {
        let all = Instant::now();
        for (i, step) in program.steps.iter().enumerate() {
            let t = Instant::now();
            step.call.run(&cx, &|_: &Symbol| 0);
            times[i].push(t.elapsed().as_nanos() as u64);
        }
        totals.push(all.elapsed().as_nanos() as u64);
    }
    assert!(state.fault().is_none());
    let median = |v: &mut Vec<u64>| {
        v.sort_unstable();
        v[v.len() / 2]
    };
    let best = *totals.iter().min().expect("iterations");
    println!(
        "total: median {} us, best {} us, {:.1} GFLOP/s",
        median(&mut totals) / 1000,
        best / 1000,
        program.flops as f64 / best as f64
    );
    let mut by_kernel: BTreeMap<&str, (u64, usize)> = BTreeMap::new();
    let mut rows = Vec::new();
    for (step, t) in program.steps.iter().zip(&mut times) {
        let m = median(t);
        let e = by_kernel.entry(step.call.entry()).or_default();
        e.0 += m;
        e.1 += 1;
        rows.push((m, step));
    }
    let mut kernels: Vec<_> = by_kernel.into_iter().collect();
    kernels.sort_by_key(|(_, (t, _))| std::cmp::Reverse(*t));
    for (k, (t, n)) in kernels.iter().take(20) {
        println!("{:8} us {n:5} x {k}", t / 1000);
    }
    rows.sort_by_key(|(m, _)| std::cmp::Reverse(*m));
    for (m, step) in rows.iter().take(args.get(3).and_then(|a| a.parse().ok()).unwrap_or(15)) {
        println!("{:8.1} us {} {} {}", *m as f64 / 1000.0, step.call.entry(), step.node, step.note);
    }
}
