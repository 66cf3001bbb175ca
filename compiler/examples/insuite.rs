//! Runs test cases inside the compiler, without building their modules: quick feedback while writing operators.
//!
//! `insuite [-v] [-s STREAMS] FOLDER [PATTERN…]`: cases below FOLDER whose name contains one of the patterns. A case that needs the
//! values of integer inputs at compile time is tried again with those baked in (counted and marked apart).

use kiln_compiler::ir::Tensor;
use kiln_compiler::{Options, cases, compile, exec};
use kiln_kernels::{Dtype, isa::Isa};
use std::path::Path;

fn run(case: &cases::Case, bake_ints: bool, streams: usize) -> Result<(), String> {
    let decoded = case.decode().map_err(|e| format!("UNSUPPORTED {e}"))?;
    let sets = case.data_sets(&decoded.model).map_err(|e| format!("UNSUPPORTED {e}"))?;
    for (i, set) in sets.iter().enumerate() {
        let mut import = set.import_options();
        let is_index = |t: &Tensor| t.dtype() == Dtype::I64 || t.dtype() == Dtype::I32;
        let baked = |t: &Tensor| bake_ints && t.dims().len() <= 1 && is_index(t);
        let constants = set.inputs.iter().enumerate().filter(|(_, t)| baked(t));
        import.input_constants = constants.map(|(i, t)| (i, t.clone())).collect();
        let options = Options { import, streams, ..Options::default() };
        let program = compile(&decoded, &options).map_err(|e| format!("UNSUPPORTED {e}"))?;
        let inputs: Vec<_> = set.input_data().into_iter().filter(|d| !d.tensor().is_some_and(baked)).collect();
        let got = exec::run_program_data(&program, &inputs, Isa::detect()).map_err(|e| format!("FAIL {e}"))?;
        let tolerance = case.tolerance.unwrap_or_default();
        set.compare_data(&got, tolerance).map_err(|e| format!("FAIL data set {i}: {e}"))?;
    }
    Ok(())
}

fn main() {
    let mut args: Vec<String> = std::env::args().skip(1).collect();
    let verbose = args.first().is_some_and(|a| a == "-v");
    if verbose {
        args.remove(0);
    }
    let mut streams = 1;
    if args.first().is_some_and(|a| a == "-s") && args.len() > 1 {
        streams = args[1].parse().unwrap_or(1);
        args.drain(..2);
    }
    let folder = args.first().map_or(".", String::as_str);
    let all = cases::find(Path::new(folder)).unwrap_or_default();
    let (mut passed, mut failed, mut unsupported, mut baked) = (0, 0, 0, 0);
    let attempt = |case: &cases::Case, bake: bool| {
        std::panic::catch_unwind(|| run(case, bake, streams)).unwrap_or_else(|_| Err("FAIL panicked".into()))
    };
    for case in all.iter().filter(|c| args.len() < 2 || args[1..].iter().any(|p| c.name.contains(p.as_str()))) {
        let mut result = attempt(case, false);
        if result.as_ref().is_err_and(|e| e.starts_with("UNSUPPORTED")) {
            match attempt(case, true) {
                Ok(()) => {
                    baked += 1;
                    if verbose {
                        let why = result.err().unwrap_or_default();
                        println!("BAKED {} {}", case.name, why.lines().next().unwrap_or(""));
                    }
                    continue;
                }
                Err(e) if e.starts_with("FAIL") => result = Err(e),
                Err(_) => {}
            }
        }
        match result {
            Ok(()) => {
                passed += 1;
                if verbose {
                    println!("PASS {}", case.name);
                }
            }
            Err(e) => {
                let (what, why) = e.split_once(' ').unwrap_or((&e, ""));
                if what == "FAIL" {
                    failed += 1
                } else {
                    unsupported += 1
                }
                println!("{what} {} {}", case.name, why.lines().next().unwrap_or(""));
            }
        }
    }
    println!(
        "{passed} passed, {failed} failed, {unsupported} unsupported, {baked} passed with integer inputs baked in"
    );
}
