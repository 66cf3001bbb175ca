//! A node with its graph, read-only: typed operands and attributes with errors that name the place.
//!
//! Operator code says what is wrong; the walker adds the node.

use crate::error::{CompileError, Stage};
use crate::ir::{Attr, Dim, Graph, Layout, Node, Tensor, TensorType, Type, ValueId};
use kiln_kernels::Dtype;
use std::sync::Arc;

/// Shorthand of the operator files.
pub type Result<T, E = CompileError> = std::result::Result<T, E>;

/// An inference error with this message.
pub fn wrong(message: impl Into<String>) -> CompileError {
    CompileError::new(Stage::Infer, message)
}

/// A node in its graph.
#[derive(Clone, Copy)]
pub struct NodeView<'a> {
    /// The graph.
    pub graph: &'a Graph,
    /// The node.
    pub node: &'a Node,
}

impl<'a> NodeView<'a> {
    /// The opset version the node is read by.
    pub fn version(&self) -> i64 {
        self.node.version
    }

    /// Number of operand slots, absent ones among them included.
    pub fn n_inputs(&self) -> usize {
        self.node.inputs.len()
    }

    /// Number of result slots.
    pub fn n_outputs(&self) -> usize {
        self.node.outputs.len()
    }

    /// Whether an operand is given.
    pub fn has(&self, i: usize) -> bool {
        self.node.input(i).is_some()
    }

    /// Whether a result is wanted.
    pub fn wants(&self, i: usize) -> bool {
        self.node.output(i).is_some()
    }

    /// An operand that must be given.
    pub fn id(&self, i: usize) -> Result<ValueId> {
        self.node.input(i).ok_or_else(|| wrong("required operand is missing").at_input(i))
    }

    /// An operand's type.
    pub fn ty(&self, i: usize) -> Result<&'a TensorType> {
        self.graph.tensor_type(self.id(i)?).map_err(|e| e.at_input(i))
    }

    /// An operand's type of any kind.
    pub fn any_ty(&self, i: usize) -> Result<&'a Type> {
        let value = self.graph.value(self.id(i)?);
        value.ty.as_ref().ok_or_else(|| wrong(format!("the type of \"{}\" is not known", value.name)).at_input(i))
    }

    /// An operand's type, if it is given.
    pub fn opt_ty(&self, i: usize) -> Result<Option<&'a TensorType>> {
        if self.has(i) { self.ty(i).map(Some) } else { Ok(None) }
    }

    /// An operand's element type.
    pub fn dtype(&self, i: usize) -> Result<Dtype> {
        Ok(self.ty(i)?.dtype)
    }

    /// An operand's extents.
    pub fn shape(&self, i: usize) -> Result<&'a [Dim]> {
        Ok(&self.ty(i)?.shape)
    }

    /// An operand's number of dimensions.
    pub fn rank(&self, i: usize) -> Result<usize> {
        Ok(self.ty(i)?.rank())
    }

    /// An operand's layout.
    pub fn layout(&self, i: usize) -> Result<Layout> {
        Ok(self.graph.value(self.id(i)?).layout)
    }

    /// A result's type, once inferred.
    pub fn out_ty(&self, i: usize) -> Result<&'a TensorType> {
        let id = self.node.output(i).ok_or_else(|| wrong("result is not wanted").at_output(i))?;
        self.graph.tensor_type(id).map_err(|e| e.at_output(i))
    }

    /// A result's extents.
    pub fn out_shape(&self, i: usize) -> Result<&'a [Dim]> {
        Ok(&self.out_ty(i)?.shape)
    }

    /// An operand's elements, if it is given and constant.
    pub fn constant(&self, i: usize) -> Option<&'a Arc<Tensor>> {
        self.node.input(i).and_then(|v| self.graph.constant(v))
    }

    /// The integers of a constant operand.
    pub fn const_ints(&self, i: usize) -> Option<Vec<i64>> {
        self.constant(i)?.to_ints()
    }

    /// The elements of a small integer operand as expressions: from a constant, or from shape arithmetic.
    pub fn dims(&self, i: usize) -> Option<Vec<Dim>> {
        let value = self.graph.value(self.node.input(i)?);
        if let Some(t) = &value.constant {
            return Some(t.to_ints()?.into_iter().map(Dim::Const).collect());
        }
        if matches!(&value.ty, Some(Type::Tensor(t)) if t.dtype.is_int() && t.numel().is(0)) {
            return Some(Vec::new());
        }
        value.dims.clone()
    }

    /// As [`Self::dims`], with an error where the elements are only known at run time.
    pub fn need_dims(&self, i: usize) -> Result<Vec<Dim>> {
        self.id(i)?;
        let missing = || wrong(format!("its values must be known at compile time here{}", self.how_to_bound(i)));
        self.dims(i).ok_or_else(|| missing().at_input(i))
    }

    /// As [`Self::const_ints`], with an error where the elements are not constant.
    pub fn need_ints(&self, i: usize) -> Result<Vec<i64>> {
        self.need_dims(i)?
            .iter()
            .map(|d| d.as_const().ok_or_else(|| wrong("its values must be constant here").at_input(i)))
            .collect()
    }

    /// A result's declared extents, if they are constant and of this rank: what an operator may fall back on whose
    /// extents depend on operands known only at run time. Its kernel must check them.
    pub fn declared(&self, i: usize, rank: usize) -> Option<Vec<Dim>> {
        let Some(Type::Tensor(t)) = &self.graph.value(self.node.output(i)?).ty else { return None };
        (t.rank() == rank && t.const_dims().is_some()).then(|| t.shape.clone())
    }

    /// The bounds that the user gives a result's extent before it is inferred.
    pub fn declared_bounds(&self, i: usize, axis: usize) -> Option<(i64, i64)> {
        let Some(Type::Tensor(t)) = &self.graph.value(self.node.output(i)?).ty else { return None };
        let d = t.shape.get(axis).filter(|d| d.as_const().is_none())?;
        Some((d.lower(), d.upper()?))
    }

    /// What to say where an operand's values are needed and no declared shape stands in for them.
    pub fn unknown(&self, i: usize) -> CompileError {
        let how = self.how_to_bound(i);
        wrong(format!("its values must be known at compile time, or the result's shape declared{how}")).at_input(i)
    }

    /// How the user bounds the values of an operand of few integers.
    fn how_to_bound(&self, i: usize) -> String {
        let (Some(v), Ok(ty)) = (self.node.input(i), self.ty(i)) else { return String::new() };
        let ints = matches!(ty.dtype, Dtype::I64 | Dtype::I32) && ty.rank() <= 1;
        if !ints || self.graph.value(v).name.is_empty() {
            return String::new();
        }
        let name = super::read_ints::element_name(&self.graph.value(v).name, 0);
        format!(" (or bounds given for each of them, as in --dim '{name}=1..8')")
    }

    /// Refuses an operand whose element type is not one of these.
    pub fn expect_dtype(&self, i: usize, allowed: &[Dtype]) -> Result<()> {
        let found = self.dtype(i)?;
        if allowed.contains(&found) {
            return Ok(());
        }
        let names: Vec<_> = allowed.iter().map(ToString::to_string).collect();
        Err(wrong(format!("expected {}, found {}", names.join(" or "), self.ty(i)?)).at_input(i))
    }

    /// Refuses an operand whose element type differs from operand `j`'s.
    pub fn expect_same_dtype(&self, i: usize, j: usize) -> Result<()> {
        if self.dtype(i)? == self.dtype(j)? {
            return Ok(());
        }
        Err(wrong(format!("expected {} as input {j}, found {}", self.dtype(j)?, self.ty(i)?)).at_input(i))
    }

    /// Refuses an operand of another rank.
    pub fn expect_rank(&self, i: usize, rank: usize) -> Result<()> {
        if self.rank(i)? == rank {
            return Ok(());
        }
        Err(wrong(format!("expected rank {rank}, found {}", self.ty(i)?)).at_input(i))
    }

    fn attr(&self, name: &str) -> Option<&'a Attr> {
        self.node.attrs.get(name)
    }

    fn attr_kind(&self, name: &str, expected: &str, found: &Attr) -> CompileError {
        wrong(format!("expected {expected}, found {}", found.kind())).at_attribute(name)
    }

    /// Whether an attribute is given.
    pub fn has_attr(&self, name: &str) -> bool {
        self.attr(name).is_some()
    }

    /// An INT attribute, if given.
    pub fn opt_int(&self, name: &str) -> Result<Option<i64>> {
        match self.attr(name) {
            None => Ok(None),
            Some(Attr::Int(v)) => Ok(Some(*v)),
            Some(other) => Err(self.attr_kind(name, "INT", other)),
        }
    }

    /// An INT attribute with its default.
    pub fn int(&self, name: &str, default: i64) -> Result<i64> {
        Ok(self.opt_int(name)?.unwrap_or(default))
    }

    /// A FLOAT attribute, if given.
    pub fn opt_float(&self, name: &str) -> Result<Option<f32>> {
        match self.attr(name) {
            None => Ok(None),
            Some(Attr::Float(v)) => Ok(Some(*v)),
            Some(other) => Err(self.attr_kind(name, "FLOAT", other)),
        }
    }

    /// A FLOAT attribute with its default.
    pub fn float(&self, name: &str, default: f32) -> Result<f32> {
        Ok(self.opt_float(name)?.unwrap_or(default))
    }

    /// An INTS attribute, if given.
    pub fn opt_ints(&self, name: &str) -> Result<Option<&'a [i64]>> {
        match self.attr(name) {
            None => Ok(None),
            Some(Attr::Ints(v)) => Ok(Some(v)),
            Some(other) => Err(self.attr_kind(name, "INTS", other)),
        }
    }

    /// A FLOATS attribute, if given.
    pub fn opt_floats(&self, name: &str) -> Result<Option<&'a [f32]>> {
        match self.attr(name) {
            None => Ok(None),
            Some(Attr::Floats(v)) => Ok(Some(v)),
            Some(other) => Err(self.attr_kind(name, "FLOATS", other)),
        }
    }

    /// A STRING attribute as text, if given.
    pub fn opt_text(&self, name: &str) -> Result<Option<&'a str>> {
        match self.attr(name) {
            None => Ok(None),
            Some(Attr::Str(v)) => {
                std::str::from_utf8(v).map(Some).map_err(|_| wrong("is not UTF-8").at_attribute(name))
            }
            Some(other) => Err(self.attr_kind(name, "STRING", other)),
        }
    }

    /// A STRING attribute as text with its default.
    pub fn text(&self, name: &str, default: &'static str) -> Result<&'a str> {
        Ok(self.opt_text(name)?.unwrap_or(default))
    }

    /// A STRINGS attribute as texts, if given.
    pub fn opt_texts(&self, name: &str) -> Result<Option<Vec<String>>> {
        match self.attr(name) {
            None => Ok(None),
            Some(Attr::Strs(v)) => Ok(Some(v.iter().map(|s| String::from_utf8_lossy(s).into_owned()).collect())),
            Some(other) => Err(self.attr_kind(name, "STRINGS", other)),
        }
    }

    /// A TENSOR attribute, if given.
    pub fn opt_tensor(&self, name: &str) -> Result<Option<&'a Arc<Tensor>>> {
        match self.attr(name) {
            None => Ok(None),
            Some(Attr::Tensor(v)) => Ok(Some(v)),
            Some(other) => Err(self.attr_kind(name, "TENSOR", other)),
        }
    }

    /// The fused activation of an operator of Kiln's own domain.
    pub fn activation(&self) -> kiln_kernels::Activation {
        match self.attr("activation") {
            Some(Attr::Activation(a)) => *a,
            _ => kiln_kernels::Activation::None,
        }
    }

    /// An INT attribute that names an axis of a tensor of this rank; negative ones count from the end.
    pub fn axis(&self, name: &str, default: i64, rank: usize) -> Result<usize> {
        let axis = self.int(name, default)?;
        resolve_axis(axis, rank).map_err(|e| e.at_attribute(name))
    }
}

/// An axis of a tensor of this rank; negative ones count from the end.
pub fn resolve_axis(axis: i64, rank: usize) -> Result<usize> {
    let rank_i = i64::try_from(rank).unwrap_or(i64::MAX);
    let a = if axis < 0 { axis.saturating_add(rank_i) } else { axis };
    usize::try_from(a)
        .ok()
        .filter(|&a| a < rank)
        .ok_or_else(|| wrong(format!("axis {axis} of a tensor of rank {rank}")))
}

/// Axes of a tensor of this rank, each once, in the order given.
pub fn resolve_axes(axes: &[i64], rank: usize) -> Result<Vec<usize>> {
    let mut out = Vec::with_capacity(axes.len());
    for &a in axes {
        let a = resolve_axis(a, rank)?;
        if out.contains(&a) {
            return Err(wrong(format!("axis {a} given twice")));
        }
        out.push(a);
    }
    Ok(out)
}

/// Whether two shapes may be the same, as far as it is known. Lowering has the rest checked at run time
/// ([`crate::lower::LowerCx::expect_equal`]).
pub fn may_equal(a: &[Dim], b: &[Dim]) -> bool {
    let apart = |(a, b): (&Dim, &Dim)| a != b && a.as_const().is_some() && b.as_const().is_some();
    a.len() == b.len() && !a.iter().zip(b).any(apart)
}

/// The broadcast shape of several shapes (ONNX multidirectional broadcasting). Where extents are known only at run time,
/// lowering has them checked ([`crate::lower::LowerCx::expect_broadcast`]).
pub fn broadcast(shapes: &[&[Dim]]) -> Result<Vec<Dim>> {
    let rank = shapes.iter().map(|s| s.len()).max().unwrap_or(0);
    let mut out = vec![Dim::Const(1); rank];
    for shape in shapes {
        for (o, d) in out[rank - shape.len()..].iter_mut().zip(shape.iter()) {
            *o = o.broadcast(d).ok_or_else(|| {
                let texts: Vec<_> = shapes.iter().map(|s| crate::ir::ShapeText(s).to_string()).collect();
                wrong(format!("shapes {} do not broadcast", texts.join(" and ")))
            })?;
        }
    }
    Ok(out)
}
