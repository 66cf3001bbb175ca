//! A signal processor as an execution provider of its own crate: what it runs, what that costs, how it lowers.
//!
//! The device shares the CPU's memory, so values cross for a handshake and without a copy. It runs element-wise functions
//! of one operand, two in a row as one kernel, and lowers `Erf` in its own way: to the kernel it names here.
#![forbid(unsafe_code)]

use kiln_compiler::ep::{Candidate, Decline, ExecutionProvider, Fused, Offer};
use kiln_compiler::error::CompileError;
use kiln_compiler::lower::LowerCx;
use kiln_compiler::ops::OpDef;
use kiln_kernels::{Dtype, MathOp, UnaryMath};

/// A machine with the device: the text of a target file.
pub const TARGET: &str = include_str!("../cpu+dsp.toml");

/// The provider that the target file calls `dsp`.
#[derive(Clone, Copy, Debug)]
pub struct Dsp;

/// The operators it has kernels for.
const OPERATORS: [&str; 4] = ["Erf", "Tanh", "Exp", "Sqrt"];
/// Time of a kernel for each element, in picoseconds.
const PS_PER_ELEMENT: u64 = 50;

impl Dsp {
    fn launch_ns(node: &Candidate<'_>) -> u64 {
        node.target.device(node.device).launch_ns
    }

    fn elements_ns(node: &Candidate<'_>) -> u64 {
        // Operand and result, four bytes each.
        (node.work.bytes / 8 * PS_PER_ELEMENT).div_ceil(1000)
    }
}

impl ExecutionProvider for Dsp {
    fn name(&self) -> &str {
        "dsp"
    }

    fn claim(&self, node: &Candidate<'_>) -> Result<Offer, Decline> {
        let op = node.view.node.op.as_str();
        if !OPERATORS.contains(&op) {
            return Err(Decline(format!("the signal processor has no {op}")));
        }
        if node.dtype() != Some(Dtype::F32) || !node.work.fixed {
            return Err(Decline("the signal processor takes f32 of fixed sizes".into()));
        }
        Ok(Offer { cost_ns: Self::launch_ns(node) + Self::elements_ns(node), splits: 1 })
    }

    /// A function of another's result, which nobody else reads, runs in the same kernel.
    fn fused(&self, nodes: &[Candidate<'_>]) -> Vec<Fused> {
        let mut fused = Vec::new();
        for pair in nodes.windows(2) {
            let [a, b] = pair else { continue };
            let chained = a.view.node.output(0).is_some() && a.view.node.output(0) == b.view.node.input(0);
            let readers = nodes.iter().filter(|n| n.view.node.inputs.contains(&a.view.node.output(0))).count();
            let taken = fused.last().is_some_and(|f: &Fused| f.nodes.contains(&a.node_idx));
            if chained && readers == 1 && !taken && self.claim(a).is_ok() && self.claim(b).is_ok() {
                let cost_ns = Self::launch_ns(a) + Self::elements_ns(a).max(Self::elements_ns(b));
                fused.push(Fused { nodes: vec![a.node_idx, b.node_idx], cost_ns });
            }
        }
        fused
    }

    fn lower(&self, op: &OpDef, cx: &mut LowerCx<'_>) -> Result<(), CompileError> {
        if op.name != "Erf" {
            return (op.lower)(cx);
        }
        let n = cx.out_ty(0)?.numel();
        let (x, y) = (cx.x(0)?, cx.y(0)?);
        cx.call(&[Dtype::F32], UnaryMath { x, y, n, op: MathOp::Erf, a: 0.0, b: 0.0 })
    }
}
