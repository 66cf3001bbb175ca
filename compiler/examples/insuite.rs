//! Runs test cases inside the compiler, without building their modules: quick feedback while writing operators.
//!
//! `insuite [-v] [-s STREAMS] [-t TARGET] [--symbolic | --constants] [--dim NAME=A..B]… FOLDER [PATTERN…]`: cases below FOLDER whose name
//! contains one of the patterns, with these bounds of free extents.
//! A case that needs the values of integer inputs at compile time is tried again with those bounded by the values at hand
//! (1 to the value, if it can be a size), then with those baked in; both are counted apart.
//!
//! `--symbolic`: every extent of every input is a symbol of its own, whatever the model declares, between the smaller of 1
//! and its size and twice its size; what the model declares of other values is ignored; the run has the data's sizes. Where
//! that is refused, it is tried again with the extents of operands fixed, then with their values bounded as well, then with
//! operands baked in.
//!
//! `--constants`: every operand is baked in as a constant; inputs of data remain inputs.
//!
//! An *operand* is an input that tells an operator what to do: one of integers or truth values with at most one axis, one
//! without axes (a scalar), or the region or scales of a Resize or Upsample. Of inputs that are all operands the first counts
//! as data.

use kiln_compiler::ep::npu::expand::Lane;
use kiln_compiler::import::DimBound;
use kiln_compiler::ir::Tensor;
use kiln_compiler::machine::Machine;
use kiln_compiler::onnx::model::{Dim, Graph, Type, ValueInfo};
use kiln_compiler::{Options, cases, compile, exec};
use kiln_kernels::{Dtype, isa::Isa};
use std::collections::BTreeMap;
use std::path::Path;

/// How a case is run.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    /// As the model says.
    Plain,
    /// As the model says, the values of small integer inputs bounded by those at hand.
    Values,
    /// As the model says, small values baked in.
    Ints,
    /// Operands baked in.
    Constants,
    /// Every extent a symbol.
    Symbolic,
    /// Every extent a symbol, but those of operands.
    FixedOperands,
    /// The same, their values bounded by those at hand.
    BoundedOperands,
    /// Every extent a symbol, operands baked in.
    BakedOperands,
}

impl Mode {
    fn symbolic(self) -> bool {
        matches!(self, Self::Symbolic | Self::FixedOperands | Self::BoundedOperands | Self::BakedOperands)
    }

    /// What to try where this is refused.
    fn next(self) -> Option<Self> {
        match self {
            Self::Plain => Some(Self::Values),
            Self::Values => Some(Self::Ints),
            Self::Symbolic => Some(Self::FixedOperands),
            Self::FixedOperands => Some(Self::BoundedOperands),
            Self::BoundedOperands => Some(Self::BakedOperands),
            Self::Ints | Self::Constants | Self::BakedOperands => None,
        }
    }

    /// What a pass in this mode is counted as.
    fn title(self) -> &'static str {
        match self {
            Self::Plain | Self::Constants | Self::Symbolic => "passed",
            Self::Ints => "passed with small inputs baked in",
            Self::FixedOperands => "passed with operands' sizes fixed",
            Self::Values | Self::BoundedOperands => "passed with operands' values bounded",
            Self::BakedOperands => "passed with operands baked in",
        }
    }
}

/// What holds for every case.
struct How {
    machine: Machine,
    streams: usize,
    dims: BTreeMap<String, DimBound>,
}

/// `NAME=A..B`
fn parse_dim(text: &str) -> Option<(String, DimBound)> {
    let (name, range) = text.split_once('=')?;
    let (a, b) = range.split_once("..")?;
    Some((name.to_owned(), DimBound::Range(a.parse().ok()?, b.parse().ok()?)))
}

/// For each input whether it is an operand rather than data; a sequence or an optional value is data.
fn operands(graph: &Graph, set: &cases::DataSet) -> Vec<bool> {
    let resizes = |name: &str| {
        let mut nodes = graph.nodes.iter().filter(|n| matches!(n.op_type.as_str(), "Resize" | "Upsample"));
        nodes.any(|n| n.inputs.iter().skip(1).any(|i| i == name))
    };
    let whole = |d: Dtype| !d.is_float() && !matches!(d, Dtype::C64 | Dtype::C128);
    let small = |t: &Tensor| t.dims().is_empty() || (t.dims().len() == 1 && whole(t.dtype()));
    let is_operand = |(i, (info, t)): (usize, (&ValueInfo, &Tensor))| {
        !set.input_objects.contains_key(&i) && (small(t) || resizes(&info.name))
    };
    let mut all: Vec<bool> = graph.inputs.iter().zip(&set.inputs).enumerate().map(is_operand).collect();
    if all.iter().all(|&o| o)
        && let Some(first) = all.first_mut()
    {
        *first = false;
    }
    all
}

/// Forgets the extents that a graph declares of what its nodes make.
fn forget_extents(graph: &mut Graph) {
    for info in graph.value_infos.iter_mut().chain(&mut graph.outputs) {
        if let Some(Type::Tensor(_, dims)) = &mut info.ty {
            *dims = None;
        }
    }
}

/// A kernel that met a format it does not know says so; any other fault is a failure.
fn verdict_of(message: &str) -> &'static str {
    if message.contains(kiln_kernels::Fault::Unsupported.message()) { "UNSUPPORTED" } else { "FAIL" }
}

fn run(case: &cases::Case, mode: Mode, how: &How) -> Result<(), String> {
    let mut decoded = case.decode().map_err(|e| format!("UNSUPPORTED {e}"))?;
    let sets = case.data_sets(&decoded.model).map_err(|e| format!("UNSUPPORTED {e}"))?;
    if mode.symbolic() {
        forget_extents(&mut decoded.model.graph);
    }
    for (i, set) in sets.iter().enumerate() {
        let mut import = set.import_options_with(&decoded.model, &how.dims);
        let operands = operands(&decoded.model.graph, set);
        let baked: Vec<bool> = match mode {
            Mode::Plain | Mode::Values | Mode::Symbolic | Mode::FixedOperands | Mode::BoundedOperands => {
                vec![false; set.inputs.len()]
            }
            Mode::Constants | Mode::BakedOperands => operands.clone(),
            Mode::Ints => {
                let small = set.small_values();
                (0..set.inputs.len()).map(|i| small.contains_key(&i)).collect()
            }
        };
        let constants = set.inputs.iter().enumerate().filter(|(k, _)| baked[*k]);
        import.input_constants = constants.map(|(k, t)| (k, t.clone())).collect();
        if mode.symbolic() {
            import.input_dims.clear();
            import.dims = BTreeMap::new();
            for (k, (info, t)) in decoded.model.graph.inputs.iter_mut().zip(&set.inputs).enumerate() {
                if set.input_objects.contains_key(&k) {
                    continue;
                }
                let fixed = matches!(mode, Mode::FixedOperands | Mode::BoundedOperands) && operands[k];
                let mut dims = Vec::new();
                for (axis, &n) in t.dims().iter().enumerate() {
                    let name = format!("{}.{axis}", info.name);
                    if fixed {
                        dims.push(Dim::Known(n));
                        continue;
                    }
                    import.dims.insert(name.clone(), DimBound::Range(n.min(1) as i64, (2 * n).max(1) as i64));
                    dims.push(Dim::Symbol(name));
                }
                info.ty = Some(Type::Tensor(t.dtype(), Some(dims)));
            }
        }
        if matches!(mode, Mode::Values | Mode::BoundedOperands) {
            import.dims.extend(set.value_bounds(&decoded.model));
        }
        let options = Options { import, streams: how.streams, machine: how.machine.clone(), ..Options::default() };
        let program = compile(&decoded, &options).map_err(|e| format!("UNSUPPORTED {e}"))?;
        if let Some(device) = &program.device {
            let count = |lane| device.lanes.iter().filter(|l| **l == lane).count();
            let (kernels, loads, stores) = (count(Lane::Compute), count(Lane::Load), count(Lane::Store));
            let (ns, bytes) = (program.schedule.predicted_ns, device.sram.bytes);
            let host = count(Lane::Host);
            println!(
                "{}: {host} steps on the CPU; {}: {kernels} kernels, {loads} loads, {stores} stores, {bytes} bytes; {} us",
                case.name,
                device.name,
                ns / 1000
            );
        }
        let inputs: Vec<_> =
            set.input_data().into_iter().zip(&baked).filter(|(_, baked)| !**baked).map(|(d, _)| d).collect();
        let got = exec::run_program_data(&program, &inputs, Isa::detect())
            .map_err(|e| format!("{} {e}", verdict_of(&e.message)))?;
        let tolerance = case.tolerance.unwrap_or_default();
        set.compare_data(&got, tolerance).map_err(|e| format!("FAIL data set {i}: {e}"))?;
    }
    Ok(())
}

/// Runs a case, in weaker modes where it is refused: the mode it ended in, and how. The first refusal is the one to report.
fn attempt(case: &cases::Case, first: Mode, how: &How) -> (Mode, Result<(), String>) {
    let run = |mode| std::panic::catch_unwind(|| run(case, mode, how)).unwrap_or_else(|_| Err("FAIL panicked".into()));
    let refused = |r: &Result<(), String>| r.as_ref().is_err_and(|e| e.starts_with("UNSUPPORTED"));
    let result = run(first);
    let mut mode = first;
    while refused(&result)
        && let Some(next) = mode.next()
    {
        mode = next;
        let again = run(mode);
        if !refused(&again) {
            return (mode, again);
        }
    }
    (first, result)
}

fn main() {
    let mut args: Vec<String> = std::env::args().skip(1).collect();
    let mut flag = |name: &str| match args.iter().position(|a| a == name) {
        Some(at) => {
            args.remove(at);
            true
        }
        None => false,
    };
    let (verbose, symbolic, constants) = (flag("-v"), flag("--symbolic"), flag("--constants"));
    let mut how = How { streams: 1, machine: Machine::default(), dims: BTreeMap::new() };
    while let Some(at) = args.iter().position(|a| a == "--dim") {
        how.dims.extend(args.get(at + 1).and_then(|text| parse_dim(text)));
        args.drain(at..(at + 2).min(args.len()));
    }
    if let Some(at) = args.iter().position(|a| a == "-s")
        && at + 1 < args.len()
    {
        how.streams = args[at + 1].parse().unwrap_or(1);
        args.drain(at..at + 2);
    }
    if let Some(at) = args.iter().position(|a| a == "-t")
        && at + 1 < args.len()
    {
        match Machine::named(&args[at + 1]) {
            Ok(named) => how.machine = named,
            Err(e) => return eprintln!("{e}"),
        }
        args.drain(at..at + 2);
    }
    let first = match (symbolic, constants) {
        (true, _) => Mode::Symbolic,
        (_, true) => Mode::Constants,
        _ => Mode::Plain,
    };
    let folder = args.first().map_or(".", String::as_str);
    let all = cases::find(Path::new(folder)).unwrap_or_default();
    let (mut failed, mut unsupported) = (0, 0);
    let mut passed: Vec<(Mode, usize)> = Vec::new();
    for case in all.iter().filter(|c| args.len() < 2 || args[1..].iter().any(|p| c.name.contains(p.as_str()))) {
        let (mode, result) = attempt(case, first, &how);
        match result {
            Ok(()) => {
                match passed.iter_mut().find(|(m, _)| *m == mode) {
                    Some((_, n)) => *n += 1,
                    None => passed.push((mode, 1)),
                }
                if verbose {
                    println!("PASS {} {}", case.name, if mode == first { "" } else { mode.title() });
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
    let mut mode = Some(first);
    let mut counts = Vec::new();
    while let Some(m) = mode {
        let n = passed.iter().find(|(p, _)| *p == m).map_or(0, |(_, n)| *n);
        counts.push(format!("{n} {}", m.title()));
        mode = m.next();
    }
    println!("{}, {failed} failed, {unsupported} unsupported", counts.join(", "));
}
