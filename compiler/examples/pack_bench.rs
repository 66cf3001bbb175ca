//! Solves every packing instance (`*.csv`) below a folder and prints height, bound and time.
//!
//! `cargo run --release -p kiln-compiler --example pack_bench -- DIR`. A file `NAME.CAPACITY.csv` is solved for that capacity and
//! then for the least height; one without a capacity only for the least height. Times are wall-clock.

use std::path::{Path, PathBuf};
use std::time::Instant;

use kiln_compiler::memory::solve::{Buffer, Options, Problem, Solution, csv, solve, solve_capacity, validate};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut files = Vec::new();
    for arg in std::env::args().skip(1) {
        collect(Path::new(&arg), &mut files)?;
    }
    files.sort();
    for path in files {
        let rows = csv::parse(&std::fs::read_to_string(&path)?)?;
        let buffers: Vec<Buffer> = rows.iter().map(|row| row.buffer).collect();
        let started = Instant::now();
        let problem = Problem::from_intervals(&buffers)?;
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        println!("{name}: {} buffers, bound {}, read in {:.3?}", rows.len(), problem.lower_bound(), started.elapsed());
        let capacity = name.split('.').rev().nth(1).and_then(|part| part.parse::<u64>().ok());
        if let Some(capacity) = capacity {
            let started = Instant::now();
            match solve_capacity(&problem, capacity, &Options::thorough()) {
                Ok(solution) => report(&format!("capacity {capacity}"), &buffers, &solution, started),
                Err(unfit) => println!("  capacity {capacity}: {unfit} ({:.3?})", started.elapsed()),
            }
        }
        if capacity.is_none_or(|capacity| capacity > problem.lower_bound()) {
            let started = Instant::now();
            report("least", &buffers, &solve(&problem, &Options::default()), started);
        }
    }
    Ok(())
}

fn report(what: &str, buffers: &[Buffer], solution: &Solution, started: Instant) {
    let seconds = started.elapsed().as_secs_f64();
    let valid = validate::intervals(buffers, &solution.offsets, solution.height);
    let gap = (solution.height as f64 / solution.lower_bound.max(1) as f64 - 1.0) * 100.0;
    let Solution { height, method, proven_optimal, .. } = solution;
    println!("  {what}: {height} (+{gap:.3} %) {method:?}, optimal {proven_optimal}, {seconds:.3} s, {valid:?}");
}

fn collect(path: &Path, files: &mut Vec<PathBuf>) -> std::io::Result<()> {
    if path.is_dir() {
        for entry in std::fs::read_dir(path)? {
            collect(&entry?.path(), files)?;
        }
    } else if path.extension().is_some_and(|end| end == "csv") {
        files.push(path.to_path_buf());
    }
    Ok(())
}
