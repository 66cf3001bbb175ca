//! Execution providers: what a device can run, what that costs, what it wants at its border, and how it lowers.
//!
//! In: a node of the typed graph as a [`Candidate`]. Out: an [`Offer`], or a [`Decline`] with its reason. The CPU's provider
//! ([`cpu`]) claims every operator; [`npu`] is the simulated accelerator's. A crate outside can add one: implement
//! [`ExecutionProvider`], name it in a target file's `ep`, and hand it over in [`Providers`]. No pass knows any of them.
//! [`tasks`] makes the planner's graph from the claims, [`place`] decides.
//! Invariant: an offer's cost is in nanoseconds and follows from the target file and the node alone.

pub mod cpu;
pub mod npu;
pub mod pin;
pub mod place;
pub mod tasks;
#[cfg(test)]
mod tests;

use crate::error::CompileError;
use crate::ir::{Dim, Layout, TensorType};
use crate::lower::{self, LowerCx, Lowered};
use crate::ops::OpDef;
use crate::ops::view::NodeView;
use crate::plan::cost::kernel_ns;
use crate::plan::id::{DeviceId, DtypeId};
use crate::plan::target::Target;
use kiln_kernels::Dtype;
use std::fmt;

/// What a node's work amounts to, at the upper bounds of its sizes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Multiply-accumulates: half its floating-point operations.
    pub macs: u64,
    /// Bytes of operands and results, constants included.
    pub bytes: u64,
    /// Bytes of constant operands.
    pub weight_bytes: u64,
    /// Whether every size is known when the model is compiled.
    pub fixed: bool,
}

/// A node that a provider is asked about.
#[derive(Clone, Copy)]
pub struct Candidate<'a> {
    /// The node in its graph.
    pub view: NodeView<'a>,
    /// Its position among the graph's nodes.
    pub node_idx: usize,
    /// Its operator's row.
    pub op: &'static OpDef,
    /// The machine.
    pub target: &'a Target,
    /// The device that is asked for.
    pub device: DeviceId,
    /// The node's work.
    pub work: Work,
}

impl Candidate<'_> {
    /// The element type that its arithmetic is done in: its first operand's, or its result's.
    pub fn dtype(&self) -> Option<Dtype> {
        let first = (0..self.view.n_inputs()).find_map(|i| self.view.ty(i).ok());
        first.or_else(|| self.view.out_ty(0).ok()).map(|t| t.dtype)
    }

    /// Whether its result is its operand's memory, seen in another shape.
    pub fn is_view(&self) -> bool {
        let node = self.view.node;
        node.domain.is_empty()
            && matches!(node.op.as_str(), "Reshape" | "Flatten" | "Squeeze" | "Unsqueeze" | "Identity")
    }

    /// The element types of its tensors that are not constant.
    pub fn dtypes(&self) -> Vec<Dtype> {
        let node = self.view.node;
        let values = node.inputs.iter().chain(&node.outputs).flatten();
        let moving = values.filter(|v| self.view.graph.constant(**v).is_none());
        moving.filter_map(|v| self.view.graph.tensor_type(*v).ok()).map(|t| t.dtype).collect()
    }

    /// Time by the roofline of the device: its launch, then computing or moving bytes, whatever takes longer.
    pub fn roofline_ns(&self) -> u64 {
        if self.is_view() {
            return 0;
        }
        let dtype = self.dtype().map_or(DtypeId(u32::MAX), |d| dtype_id(self.target, d));
        kernel_ns(self.target, self.device, dtype, self.work.macs, self.work.bytes)
    }

    /// The kernel calls that a provider lowers it to, over buffers of their own.
    pub fn calls(&self, ep: &dyn ExecutionProvider) -> Result<Lowered, CompileError> {
        lower::isolated(self.view.graph, self.node_idx, &|_, op, cx| ep.lower(op, cx))
    }
}

/// What a device asks for a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer {
    /// Time, launch included.
    pub cost_ns: u64,
    /// Shards of equal work that the device may cut it into; 1 for none.
    pub splits: u32,
}

/// Several nodes that a device runs as one kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fused {
    /// Positions of the nodes, at least two.
    pub nodes: Vec<usize>,
    /// Time, launch included.
    pub cost_ns: u64,
}

/// Why a device does not run a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decline(pub String);

impl fmt::Display for Decline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// How a device wants a value at its border.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Border {
    /// Layout.
    pub layout: Layout,
    /// Element type.
    pub dtype: Dtype,
}

/// A provider: serves all devices of a target whose `ep` is its name.
pub trait ExecutionProvider: fmt::Debug + Send + Sync {
    /// The name by which target files ask for it.
    fn name(&self) -> &str;

    /// Whether the device runs this node, and what it asks for that.
    fn claim(&self, node: &Candidate<'_>) -> Result<Offer, Decline>;

    /// Groups of nodes that the device can run as one kernel each, beside running them one by one.
    fn fused(&self, nodes: &[Candidate<'_>]) -> Vec<Fused> {
        let _ = nodes;
        Vec::new()
    }

    /// How it wants a value at its border; as the graph has it, unless the provider says otherwise.
    fn border(&self, ty: &TensorType, layout: Layout) -> Border {
        Border { layout, dtype: ty.dtype }
    }

    /// Lowers a claimed node to kernel calls: by the operator's own rule, unless the provider has another one.
    fn lower(&self, op: &OpDef, cx: &mut LowerCx<'_>) -> Result<(), CompileError> {
        (op.lower)(cx)
    }
}

/// The providers at hand.
#[derive(Clone, Copy, Debug, Default)]
pub struct Providers<'a> {
    more: &'a [&'a dyn ExecutionProvider],
}

static SHIPPED: [&dyn ExecutionProvider; 2] = [&cpu::Cpu, &npu::SimulatedNpu];

impl<'a> Providers<'a> {
    /// The shipped ones and these; one of these goes before a shipped one of the same name.
    pub fn with(more: &'a [&'a dyn ExecutionProvider]) -> Self {
        Self { more }
    }

    /// The provider of a device, or the problem in words.
    pub fn of(&self, target: &Target, device: DeviceId) -> Result<&'a dyn ExecutionProvider, String> {
        let device = target.device(device);
        let named = |ep: &&'a dyn ExecutionProvider| ep.name() == device.ep;
        let shipped = SHIPPED.iter().copied();
        self.more.iter().copied().chain(shipped).find(|ep| named(ep)).ok_or_else(|| {
            format!(
                "target \"{}\": there is no execution provider \"{}\" for device \"{}\"",
                target.name, device.ep, device.name
            )
        })
    }
}

/// An element type's number in a target; one that no table names gets a number behind all of them.
pub(crate) fn dtype_id(target: &Target, dtype: Dtype) -> DtypeId {
    let behind = || DtypeId::new(target.dtypes.len() + dtype as usize);
    target.dtype_named(&dtype.to_string()).unwrap_or_else(behind)
}

/// A size's upper bound in bytes; 0 where it has none (lowering refuses it where that matters).
pub(crate) fn upper(size: &Dim) -> u64 {
    size.upper().and_then(|b| u64::try_from(b).ok()).unwrap_or(0)
}
