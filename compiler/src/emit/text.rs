//! A program as stable text: memory plan and calls, one line each, for `--emit memory`, snapshots and diffs.

use crate::error::Shortened;
use crate::lower::{CallOperand, FieldText};
use crate::program::{ARENA, INPUTS, Port, Program, WEIGHTS};
use std::fmt::Write;

/// The whole program as text.
pub fn program_text(program: &Program) -> String {
    let (mut out, arena) = (String::new(), &program.arena);
    let _ = writeln!(out, "program {} ({})", Shortened(&program.name), program.options);
    let optimal = if arena.proven_optimal { ", no plan is smaller" } else { "" };
    let (bytes, bound, naive) = (arena.bytes, arena.lower_bound_bytes, arena.naive_bytes);
    let _ = writeln!(out, "arena {bytes} bytes, lower bound {bound}, without sharing {naive}{optimal}");
    let peak = arena.peak.iter().map(|t| format!("\"{}\" {}", Shortened(&t.name), t.bytes));
    let _ = writeln!(out, "peak: {}", peak.collect::<Vec<_>>().join(", "));
    let _ = writeln!(out, "weights {} bytes in {} constants", program.weight_bytes, program.weights.len());
    for (i, port) in program.inputs.iter().enumerate() {
        let _ = writeln!(out, "input {i} {}", port_text(port));
    }
    for (i, step) in program.steps.iter().enumerate() {
        let operands = step.call.operands();
        let device = program.device_region();
        let places: Vec<_> = operands.iter().map(|o| operand_text(o, device)).collect();
        let _ = write!(out, "{i}: {} {}", step.call.entry(), places.join(" "));
        step.call.fields(&mut |name, field| {
            let _ = match field {
                FieldText::Operand(_) | FieldText::OptOperand(_) => Ok(()),
                FieldText::Num(n) => write!(out, " {name}={n}"),
                FieldText::Nums(ns) => {
                    let ns: Vec<_> = ns.iter().map(ToString::to_string).collect();
                    write!(out, " {name}=[{}]", ns.join(","))
                }
                FieldText::Param(p) => write!(out, " {name}={p}"),
            };
        });
        let _ = writeln!(out, "  # {}", Shortened(&step.node));
    }
    for port in &program.outputs {
        let _ = writeln!(out, "output {} at {}", port_text(port), port.off);
    }
    out
}

fn port_text(port: &Port) -> String {
    format!("\"{}\": {}", Shortened(&port.name), port.ty_text())
}

/// `y:arena[64..128]`.
fn operand_text(o: &CallOperand, device: Option<u32>) -> String {
    let place = match o.operand.mem {
        mem if Some(mem) == device => "device".to_owned(),
        ARENA => "arena".to_owned(),
        WEIGHTS => "weights".to_owned(),
        input => format!("input{}", input - INPUTS),
    };
    let start = o.operand.off;
    match o.operand.bytes.as_const() {
        Some(n) => format!("{}:{place}[{start}..{}]", o.name, start.saturating_add_signed(n)),
        None => format!("{}:{place}[{start}+{}]", o.name, o.operand.bytes),
    }
}
