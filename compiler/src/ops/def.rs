//! What the table holds of an operator, and what its functions work with.

use super::view::{NodeView, Result, wrong};
use crate::ir::{Dim, Tensor, TensorType, Type};
use crate::lower::LowerCx;
use std::ops::Deref;
use std::sync::Arc;

/// One operator: everything the compiler knows of it.
pub struct OpDef {
    /// `""` for ai.onnx, `"ai.onnx.ml"`, `"com.microsoft"`, or `"kiln"` for operators that passes introduce.
    pub domain: &'static str,
    /// Name.
    pub name: &'static str,
    /// Opset versions in which it was introduced or changed, rising.
    pub since: &'static [i64],
    /// Types of its results.
    pub infer: fn(&mut InferCx<'_>) -> Result<()>,
    /// Its first result's elements as expressions over symbols, where the operator is shape arithmetic.
    pub dims: Option<fn(&NodeView<'_>) -> Option<Vec<Dim>>>,
    /// Kernel calls.
    pub lower: fn(&mut LowerCx<'_>) -> Result<()>,
    /// Floating-point operations (planning.md §4's formulas); movement has none.
    pub flops: fn(&NodeView<'_>) -> Result<Dim>,
    /// How it stands to the blocked layout.
    pub layout: LayoutRule,
    /// Whether equal operands give equal results without any other effect (not so for random operators).
    pub pure: bool,
}

/// How an operator stands to [`crate::ir::Layout::Blocked16`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LayoutRule {
    /// Plain operands and results only.
    Plain,
    /// Element-wise over operands of one shape (or scalars, or per-channel constants): any layout, all alike.
    Elementwise,
    /// Works channel by channel over spatial axes: takes and gives the blocked layout as well as the plain one.
    Channelwise,
    /// Joins along the channel axis: blocked when every part is a multiple of 16 channels.
    ChannelConcat,
}

const fn no_flops(_: &NodeView<'_>) -> Result<Dim> {
    Ok(Dim::Const(0))
}

/// One operation per element of the first result.
pub fn flops_per_element(cx: &NodeView<'_>) -> Result<Dim> {
    Ok(cx.out_ty(0)?.numel())
}

impl OpDef {
    /// A row of the table.
    pub const fn new(
        domain: &'static str,
        name: &'static str,
        since: &'static [i64],
        infer: fn(&mut InferCx<'_>) -> Result<()>,
        lower: fn(&mut LowerCx<'_>) -> Result<()>,
    ) -> Self {
        Self { domain, name, since, infer, dims: None, lower, flops: no_flops, layout: LayoutRule::Plain, pure: true }
    }

    /// With its arithmetic on shapes.
    pub const fn with_dims(mut self, dims: fn(&NodeView<'_>) -> Option<Vec<Dim>>) -> Self {
        self.dims = Some(dims);
        self
    }

    /// With its count of floating-point operations.
    pub const fn with_flops(mut self, flops: fn(&NodeView<'_>) -> Result<Dim>) -> Self {
        self.flops = flops;
        self
    }

    /// With its stand to the blocked layout.
    pub const fn with_layout(mut self, layout: LayoutRule) -> Self {
        self.layout = layout;
        self
    }

    /// Marked as giving other results at each call.
    pub const fn impure(mut self) -> Self {
        self.pure = false;
        self
    }
}

/// A node during inference: the view, and the results' types to fill in.
pub struct InferCx<'a> {
    view: NodeView<'a>,
    /// Types of the results, in order.
    pub types: Vec<Option<Type>>,
    /// Results that inference itself knows the elements of.
    pub(crate) constants: Vec<Option<Arc<Tensor>>>,
    /// Makes names for data-dependent extents.
    pub(crate) next_slot: &'a mut usize,
}

impl<'a> InferCx<'a> {
    pub(crate) fn new(view: NodeView<'a>, next_slot: &'a mut usize) -> Self {
        Self { view, types: vec![None; view.n_outputs()], constants: vec![None; view.n_outputs()], next_slot }
    }

    /// The view alone.
    pub fn view(&self) -> NodeView<'a> {
        self.view
    }

    /// Sets a result's type; results that are not wanted are left out.
    pub fn set(&mut self, i: usize, ty: impl Into<Type>) {
        if let Some(slot) = self.types.get_mut(i) {
            *slot = Some(ty.into());
        }
    }

    /// Sets a result's type and elements: the node disappears.
    pub fn set_constant(&mut self, i: usize, t: Arc<Tensor>) {
        self.set(i, TensorType::fixed(t.dtype(), t.dims()));
        if let Some(slot) = self.constants.get_mut(i) {
            *slot = Some(t);
        }
    }

    /// Sets result 0 to operand 0's type.
    pub fn same_as_input(&mut self) -> Result<()> {
        let ty = self.view.ty(0)?.clone();
        self.set(0, ty);
        Ok(())
    }

    /// An extent that a kernel finds at run time, between these bounds.
    pub fn data_dim(&mut self, name: &str, min: i64, max: Option<i64>) -> Dim {
        let slot = *self.next_slot;
        *self.next_slot += 1;
        let source = crate::ir::SymbolSource::Data { slot };
        Dim::symbol(crate::ir::Symbol { name: format!("{name}{slot}"), min, max, source })
    }

    /// Refuses an extent that is negative or unreasonable.
    pub(crate) fn check_types(&self) -> Result<()> {
        for (i, ty) in self.types.iter().enumerate() {
            let Some(Type::Tensor(t)) = ty else { continue };
            if let Some(d) = t.shape.iter().find(|d| d.as_const().is_some_and(|c| c < 0)) {
                return Err(wrong(format!("extent {d} of {t} is negative")).at_output(i));
            }
            if t.bytes().lower() > crate::ir::MAX_TENSOR_BYTES {
                return Err(wrong(format!("{t} is larger than a static plan accepts")).at_output(i));
            }
        }
        Ok(())
    }
}

impl<'a> Deref for InferCx<'a> {
    type Target = NodeView<'a>;
    fn deref(&self) -> &NodeView<'a> {
        &self.view
    }
}

/// A tensor type from its parts.
pub fn tensor(dtype: kiln_kernels::Dtype, shape: Vec<Dim>) -> TensorType {
    TensorType::new(dtype, shape)
}
