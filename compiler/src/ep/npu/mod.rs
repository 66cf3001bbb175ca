//! The simulated NPU's provider: a fixed set of operators over its own memory, no dynamic sizes, nothing data-dependent.
//!
//! A claim's cost is that of its kernel calls: as a whole where the operands fit the memory, else in tiles with their
//! transfers ([`fit`]); what fits neither way is declined, and the reason says by how much.

pub mod cascade;
pub mod cut;
pub mod expand;
pub mod fit;
pub mod plan;
pub mod schedule;
#[cfg(test)]
mod tests;

use super::{Candidate, Decline, ExecutionProvider, Offer};
use crate::plan::cost::ns_at;
use fit::Pad;

/// The operators, with their domains.
const OPERATORS: &[(&str, &[&str])] = &[
    (
        "",
        &[
            "Conv",
            "Gemm",
            "MatMul",
            "QLinearConv",
            "QLinearMatMul",
            "MaxPool",
            "AveragePool",
            "GlobalAveragePool",
            "GlobalMaxPool",
            "Add",
            "Sub",
            "Mul",
            "Div",
            "Min",
            "Max",
            "Relu",
            "LeakyRelu",
            "Clip",
            "Sigmoid",
            "Tanh",
            "HardSigmoid",
            "HardSwish",
            "Elu",
            "Selu",
            "Softplus",
            "Mish",
            "Gelu",
            "Neg",
            "Abs",
            "Sqrt",
            "Exp",
            "QuantizeLinear",
            "DequantizeLinear",
            "BatchNormalization",
            "Reshape",
            "Flatten",
            "Squeeze",
            "Unsqueeze",
            "Identity",
        ],
    ),
    ("kiln", &["Conv", "MatMul", "QLinearConv", "QLinearMatMul", "CodeTable", "ToBlocked", "FromBlocked"]),
    (
        "com.microsoft",
        &[
            "FusedConv",
            "QGemm",
            "QLinearAdd",
            "QLinearMul",
            "QLinearSigmoid",
            "QLinearLeakyRelu",
            "QLinearAveragePool",
            "QLinearGlobalAveragePool",
        ],
    ),
];

/// The simulated NPU.
#[derive(Clone, Copy, Debug)]
pub struct SimulatedNpu;

impl ExecutionProvider for SimulatedNpu {
    fn name(&self) -> &str {
        "npu"
    }

    fn claim(&self, node: &Candidate<'_>) -> Result<Offer, Decline> {
        let no = |why: String| Err(Decline(why));
        let (device, target) = (target_device(node), node.target);
        let known = |(domain, ops): &(&str, &[&str])| {
            node.view.node.domain == *domain && ops.contains(&node.view.node.op.as_str())
        };
        if !OPERATORS.iter().any(known) {
            return no(format!("it has no kernel for {}", node.view.node.full_op()));
        }
        if !node.work.fixed {
            return no("its sizes are not known when the model is compiled".into());
        }
        let takes =
            |d: &kiln_kernels::Dtype| target.dtype_named(&d.to_string()).is_some_and(|id| device.dtypes.contains(&id));
        if let Some(d) = node.dtypes().iter().find(|d| !takes(d)) {
            return no(format!("it does not compute in {d}"));
        }
        if node.is_view() {
            return Ok(Offer { cost_ns: 0, splits: 1 });
        }
        let Some(pad) = Pad::of(target, node.device) else {
            return no("it has no memory of its own that the host can fill".into());
        };
        let lowered = node.calls(self).map_err(|e| Decline(e.to_string()))?;
        let compute_ns = compute_ns(node) / (lowered.steps.len() as u64).max(1);
        let mut cost_ns = 0u64;
        for step in &lowered.steps {
            let fit = fit::fit(&*step.call, &lowered.buffers, &pad, compute_ns).map_err(Decline)?;
            cost_ns = cost_ns.saturating_add(fit.ns);
        }
        Ok(Offer { cost_ns, splits: 1 })
    }
}

fn target_device<'a>(node: &Candidate<'a>) -> &'a crate::plan::target::Device {
    node.target.device(node.device)
}

/// The node's time by rate and bandwidth of the device's own memory, without launches.
pub fn compute_ns(node: &Candidate<'_>) -> u64 {
    let device = target_device(node);
    let dtype = node.dtype().map_or(crate::plan::id::DtypeId(u32::MAX), |d| super::dtype_id(node.target, d));
    let moving = ns_at(node.work.bytes, node.target.memories[device.memory.idx()].bytes_per_s);
    ns_at(node.work.macs, device.rate(dtype)).max(moving)
}
