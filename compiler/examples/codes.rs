//! Compares quantised operators code by code: `codes FOLDER…`, cases as `tests/peers/quantized_ops.py` cuts them out of a
//! model.
//!
//! For each case below the folders one line: how many elements differ from the expected ones, and by how much at most (for
//! codes in units, for floats relative to the greatest expected one). The last line sums up; status 1 if a code is off by
//! more than one unit, or a case does not run.

use kiln_compiler::ir::Tensor;
use kiln_compiler::{Options, cases, compile, exec};
use kiln_kernels::isa::Isa;
use std::path::Path;

/// How an output differs.
#[derive(Clone, Copy, Default)]
struct Difference {
    n: usize,
    elements: usize,
    most: f64,
}

fn difference(got: &Tensor, want: &Tensor) -> Result<Difference, String> {
    if got.dtype() != want.dtype() || got.dims() != want.dims() {
        return Err(format!("{got:?}, expected {want:?}"));
    }
    let (Some(g), Some(w)) = (cases::values(got), cases::values(want)) else {
        return Err(format!("no numbers in {want:?}"));
    };
    let scale = if want.dtype().is_float() { w.iter().fold(f64::MIN_POSITIVE, |m, v| m.max(v.abs())) } else { 1.0 };
    let off = g.iter().zip(&w).map(|(g, w)| (g - w).abs() / scale);
    Ok(Difference { n: off.clone().filter(|d| *d > 0.0).count(), elements: g.len(), most: off.fold(0.0, f64::max) })
}

fn run(case: &cases::Case) -> Result<Difference, String> {
    let decoded = case.decode().map_err(|e| e.to_string())?;
    let sets = case.data_sets(&decoded.model).map_err(|e| e.to_string())?;
    let mut all = Difference::default();
    for set in sets {
        let options = Options { import: set.import_options(), ..Options::default() };
        let program = compile(&decoded, &options).map_err(|e| e.to_string())?;
        let inputs: Vec<&[u8]> = set.inputs.iter().map(|t| &t.data()[..]).collect();
        let got = exec::run_program(&program, &inputs, Isa::detect()).map_err(|e| e.to_string())?;
        for (g, w) in got.iter().zip(&set.outputs) {
            let d = difference(g, w)?;
            all = Difference { n: all.n + d.n, elements: all.elements + d.elements, most: all.most.max(d.most) };
        }
    }
    Ok(all)
}

fn main() -> std::process::ExitCode {
    let (mut exact, mut within_one, mut off) = (0, 0, 0);
    for folder in std::env::args().skip(1) {
        for case in cases::find(Path::new(&folder)).unwrap_or_default() {
            match run(&case) {
                Ok(d) => {
                    println!("{}: {} of {} elements differ, at most {}", case.name, d.n, d.elements, d.most);
                    *(if d.n == 0 {
                        &mut exact
                    } else if d.most <= 1.0 {
                        &mut within_one
                    } else {
                        &mut off
                    }) += 1;
                }
                Err(e) => {
                    println!("{}: {e}", case.name);
                    off += 1;
                }
            }
        }
    }
    println!("{exact} exact, {within_one} within one unit, {off} off");
    std::process::ExitCode::from(u8::from(off > 0 || exact + within_one == 0))
}
