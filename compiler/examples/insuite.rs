//! Runs test cases inside the compiler, without building their modules: quick feedback while writing operators.
//!
//! `insuite [-v] FOLDER [PATTERN…]`: cases below FOLDER whose name contains one of the patterns. A case that needs the
//! values of integer inputs at compile time is tried again with those baked in (counted and marked apart).

use kiln_compiler::ir::Tensor;
use kiln_compiler::{Options, cases, compile, exec};
use kiln_kernels::{Dtype, isa::Isa};
use std::path::Path;

/// A kernel that met a format it does not know says so; any other fault is a failure.
fn verdict_of(message: &str) -> &'static str {
    if message.contains(kiln_kernels::Fault::Unsupported.message()) { "UNSUPPORTED" } else { "FAIL" }
}

fn run(case: &cases::Case, bake_ints: bool) -> Result<(), String> {
    let decoded = case.decode().map_err(|e| format!("UNSUPPORTED {e}"))?;
    let sets = case.data_sets(&decoded.model).map_err(|e| format!("UNSUPPORTED {e}"))?;
    for (i, set) in sets.iter().enumerate() {
        let mut import = set.import_options();
        let baked =
            |t: &Tensor| bake_ints && t.dims().len() <= 1 && (t.dtype() == Dtype::I64 || t.dtype() == Dtype::I32);
        let constants = set.inputs.iter().enumerate().filter(|(_, t)| baked(t));
        import.input_constants = constants.map(|(i, t)| (i, t.clone())).collect();
        let options = Options { import, ..Options::default() };
        let program = compile(&decoded, &options).map_err(|e| format!("UNSUPPORTED {e}"))?;
        let inputs: Vec<&[u8]> = set.inputs.iter().filter(|t| !baked(t)).map(|t| &t.data()[..]).collect();
        let got = exec::run_program(&program, &inputs, Isa::detect())
            .map_err(|e| format!("{} {e}", verdict_of(&e.message)))?;
        let tolerance = case.tolerance.unwrap_or_default();
        set.compare(&got, tolerance).map_err(|e| format!("FAIL data set {i}: {e}"))?;
    }
    Ok(())
}

fn main() {
    let mut args: Vec<String> = std::env::args().skip(1).collect();
    let verbose = args.first().is_some_and(|a| a == "-v");
    if verbose {
        args.remove(0);
    }
    let folder = args.first().map_or(".", String::as_str);
    let all = cases::find(Path::new(folder)).unwrap_or_default();
    let (mut passed, mut failed, mut unsupported, mut baked) = (0, 0, 0, 0);
    let attempt = |case: &cases::Case, bake: bool| {
        std::panic::catch_unwind(|| run(case, bake)).unwrap_or_else(|_| Err("FAIL panicked".into()))
    };
    for case in all.iter().filter(|c| args.len() < 2 || args[1..].iter().any(|p| c.name.contains(p.as_str()))) {
        let mut result = attempt(case, false);
        if result.as_ref().is_err_and(|e| e.starts_with("UNSUPPORTED")) {
            match attempt(case, true) {
                Ok(()) => {
                    baked += 1;
                    if verbose {
                        println!("BAKED {}", case.name);
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
