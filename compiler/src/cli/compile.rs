//! `kilnc compile`: the module, its weights, and the plans as text; says by which line a crate uses them.

use super::args::{CompileCommandArgs, Plan};
use super::placement::report;
use super::{Failure, Outcome, model, term};
use crate::artifact::write_whole;
use crate::emit;
use crate::ir::Graph;
use crate::ir::text::graph_text;
use crate::program::Program;
use crate::{compile_graph, graph};
use std::fmt::Write;
use std::path::Path;

/// The command.
pub(super) fn command(args: &CompileCommandArgs) -> Outcome {
    let (model, options) = model::read(&args.model, &args.compile)?;
    let stem = args.model.file_stem().map_or_else(|| "model".into(), |s| s.to_string_lossy().into_owned());
    let graph = graph(&model.decoded, &options)?;
    let program = compile_graph(&graph, &model.decoded, &options)?;
    report(&program, &options, &args.compile)?;
    let emitted = emit::emit(&program, options.weights, options.per_step).map_err(crate::error::CompileErrors::from)?;
    let write = |suffix: &str, bytes: &[u8]| -> Outcome {
        let path = args.output.join(format!("{stem}{suffix}"));
        write_whole(&path, bytes).map_err(|e| Failure::Misuse(format!("cannot write {}: {e}", path.display())))?;
        if !args.compile.quiet {
            term::result(&format!("{} ({} bytes)", path.display(), bytes.len()));
        }
        Ok(())
    };
    write(".rs", emitted.source.as_bytes())?;
    write(".weights", &emitted.weights)?;
    if !args.compile.quiet {
        term::message(&format!("in a crate that depends on kiln:\n{}", line_of_use(&stem, &args.output)));
    }
    for plan in &args.emit {
        match plan {
            Plan::Graph => write(".graph.txt", graph_text(&graph).as_bytes())?,
            Plan::Placement => write(".placement.txt", placement(&graph, &program).as_bytes())?,
            Plan::Schedule => write(".schedule.txt", schedule(&program).as_bytes())?,
            Plan::Memory => write(".memory.txt", memory(&program).as_bytes())?,
        }
    }
    Ok(())
}

/// The line by which a crate includes what was written. A folder inside of a package is named by the package's, so that the
/// crate builds elsewhere too.
fn line_of_use(stem: &str, folder: &Path) -> String {
    let module = emit::module_name(stem);
    let folder = std::fs::canonicalize(folder).unwrap_or_else(|_| folder.to_owned());
    let is_package = |root: &&Path| {
        let manifest = std::fs::read_to_string(root.join("Cargo.toml"));
        manifest.is_ok_and(|text| text.lines().any(|line| line.trim() == "[package]"))
    };
    let within = folder.ancestors().find(is_package).and_then(|root| folder.strip_prefix(root).ok());
    let place = match within {
        Some(below) => {
            let parts = below.components().map(|part| format!("/{}", part.as_os_str().display())).collect::<String>();
            format!("concat!(env!(\"CARGO_MANIFEST_DIR\"), {parts:?})")
        }
        None => format!("{:?}", folder.display().to_string()),
    };
    format!("kiln::include_compiled!(mod {module} = {stem:?} in {place});")
}

/// One line a node: where it runs.
fn placement(graph: &Graph, program: &Program) -> String {
    if let Some(summary) = &program.placement {
        return summary.saved.clone();
    }
    graph.nodes.iter().fold(String::new(), |mut text, node| {
        let _ = writeln!(text, "cpu {} {:?}", node.full_op(), node.name);
        text
    })
}

/// One line a step: stream, number, kernel, node.
pub(super) fn schedule(program: &Program) -> String {
    program.steps.iter().enumerate().fold(String::from("stream 0 on cpu\n"), |mut text, (i, step)| {
        let _ = writeln!(text, "{i} launch {} {:?}", step.call.entry(), step.node);
        text
    })
}

/// The regions, and every operand's place in the order of the steps.
fn memory(program: &Program) -> String {
    let a = &program.arena;
    let mut text = format!(
        "arena {} bytes, lower bound {}, without reuse {}{}\nweights {} bytes\n",
        a.bytes,
        a.lower_bound_bytes,
        a.naive_bytes,
        if a.proven_optimal { ", proven optimal" } else { "" },
        program.weight_bytes
    );
    for p in &a.peak {
        let _ = writeln!(text, "peak {} {:?}", p.bytes, p.name);
    }
    for (i, step) in program.steps.iter().enumerate() {
        for o in step.call.operands() {
            let _ = writeln!(
                text,
                "step {i} {} {:?} region {} at {} bytes {}",
                o.name, o.role, o.operand.mem, o.operand.off, o.operand.bytes
            );
        }
    }
    for p in &program.outputs {
        let _ = writeln!(text, "output {:?} at {}", p.name, p.off);
    }
    text
}
