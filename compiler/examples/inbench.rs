//! Times a case's steps inside the compiler: `inbench FOLDER [ITERATIONS [STEPS]]`. For kernel and fusion work; `kilnc bench` times
//! real modules. Where a model needs the values of small integer inputs (a sampling rate that chooses a branch), those at hand
//! are baked in.

use kiln_compiler::import::ImportOptions;
use kiln_compiler::ir::Symbol;
use kiln_compiler::{Options, cases, compile};
use kiln_kernels::{AlignedBytes, Cx, Region, RunState, isa::Isa};
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Instant;

fn main() {
    if let Err(e) = bench(&std::env::args().collect::<Vec<_>>()) {
        eprintln!("error: {e}");
        std::process::exit(1);
    }
}

fn bench(args: &[String]) -> Result<(), Box<dyn std::error::Error>> {
    let folder = args.get(1).ok_or("usage: inbench FOLDER [ITERATIONS [STEPS]]")?;
    let iterations: usize = args.get(2).and_then(|a| a.parse().ok()).unwrap_or(20).max(1);
    let case = cases::find(Path::new(folder))?.into_iter().next().ok_or("no case in this folder")?;
    let decoded = case.decode()?;
    let set = case.data_sets(&decoded.model)?.into_iter().next().ok_or("the case has no data")?;
    let start = Instant::now();
    let with = |import: ImportOptions| compile(&decoded, &Options { import, ..Options::default() });
    let (program, inputs) = match with(set.import_options()) {
        Ok(program) => (program, set.inputs.iter().collect()),
        Err(_) => {
            let (import, left) = set.import_options_with_ints();
            (with(import)?, left)
        }
    };
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
    let inputs: Vec<_> = inputs.iter().map(|t| AlignedBytes::copy_of(t.data()).expect("memory")).collect();
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
    if let Some(fault) = state.fault() {
        return Err(format!("step {}: {:?}", fault.0, fault.1).into());
    }
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
    Ok(())
}
