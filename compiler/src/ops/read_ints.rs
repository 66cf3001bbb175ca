//! `kiln.ReadInts`: a few integers whose values the plan reckons with: sizes, axes, shapes given at run time.
//!
//! The import makes it where the user bounds the values of an input or of what a node makes (`--dim 'shape[0]=1..64'`), inference
//! where an operand's values have bounds of their own ([`own_bounds`]). Each element becomes a symbol that a
//! kernel reads at the start of the run; a value outside its bounds fails the run. The result is the operand itself.

use super::view::{NodeView, Result, wrong};
use super::{InferCx, OpDef};
use crate::ir::{Attr, Dim, Node, Symbol, SymbolSource, ValueId};
use crate::lower::LowerCx;
use kiln_kernels::{Dtype, NO_SLOT, ReadExtent};
use std::collections::BTreeMap;

/// What an element of an input is called in the options.
pub fn element_name(input: &str, i: usize) -> String {
    format!("{input}[{i}]")
}

pub(super) static OPS: &[OpDef] = &[OpDef::new("kiln", "ReadInts", &[1], infer, lower).with_dims(dims)];

/// The node that reads `x`, whose elements lie between `bounds`, into slots from `slot` on.
pub(crate) fn node(name: &str, [x, y]: [ValueId; 2], bounds: &[(i64, i64)], slot: usize) -> Node {
    let least = Attr::Ints(bounds.iter().map(|b| b.0).collect());
    let most = Attr::Ints(bounds.iter().map(|b| b.1).collect());
    let slot = Attr::Int(i64::try_from(slot).unwrap_or(i64::MAX));
    Node {
        name: name.to_owned(),
        domain: "kiln".into(),
        op: "ReadInts".into(),
        version: 1,
        attrs: BTreeMap::from([("least".into(), least), ("most".into(), most), ("slot".into(), slot)]),
        inputs: vec![Some(x)],
        outputs: vec![Some(y)],
        bodies: BTreeMap::new(),
    }
}

/// The same where the bounds are what the user said of the values: a run in which they are others fails, whatever reads them.
pub(crate) fn promised(name: &str, values: [ValueId; 2], bounds: &[(i64, i64)], slot: usize) -> Node {
    let mut node = node(name, values, bounds, slot);
    node.attrs.insert("promised".into(), Attr::Int(1));
    node
}

/// Whether a node is made by [`promised`].
pub(crate) fn is_promised(node: &Node) -> bool {
    node.is_kiln("ReadInts") && node.attrs.contains_key("promised")
}

/// Operands of few values that have bounds of their own (axes, parts of an extent): which, and the least and greatest value of
/// each element. `None` where the values are known already.
pub(crate) fn own_bounds(cx: &NodeView<'_>) -> Option<(usize, Vec<(i64, i64)>)> {
    if !cx.node.domain.is_empty() {
        return None;
    }
    let (i, least, most) = match cx.node.op.as_str() {
        "Squeeze" | "Reshape" => super::reshape::bounded_operand(cx)?,
        "Split" => super::split::bounded_operand(cx)?,
        op if op.starts_with("Reduce") => super::reduce::axes_operand(cx)?,
        _ => return None,
    };
    let ty = cx.opt_ty(i).ok()??;
    let few = ty.numel().as_const().filter(|n| (1..=MAX_READ).contains(n))?;
    let read = matches!(ty.dtype, Dtype::I64 | Dtype::I32) && ty.rank() <= 1 && cx.dims(i).is_none();
    read.then(|| (i, vec![(least, most); few as usize]))
}

/// The most elements that are read without being asked for.
const MAX_READ: i64 = 8;

/// The first slot after those that a node reads into.
pub(crate) fn slots_end(node: &Node) -> usize {
    match (node.attrs.get("slot"), node.attrs.get("least")) {
        (Some(Attr::Int(slot)), Some(Attr::Ints(v))) if node.is_kiln("ReadInts") => {
            usize::try_from(*slot).unwrap_or(0) + v.len()
        }
        _ => 0,
    }
}

/// Bounds of each element, and the slot it is read into: none for one that has a single value.
fn elements(cx: &NodeView<'_>) -> Result<Vec<(i64, i64, usize)>> {
    let missing = || wrong("bounds are missing");
    let least = cx.opt_ints("least")?.ok_or_else(missing)?;
    let most = cx.opt_ints("most")?.ok_or_else(missing)?;
    let slot = usize::try_from(cx.int("slot", 0)?).unwrap_or(0);
    let slot_of = |i: usize, one: bool| if one { NO_SLOT } else { slot + i };
    Ok(least.iter().zip(most).enumerate().map(|(i, (&a, &b))| (a, b, slot_of(i, a == b))).collect())
}

fn infer(cx: &mut InferCx<'_>) -> Result<()> {
    cx.expect_dtype(0, &[Dtype::I64, Dtype::I32])?;
    if !cx.ty(0)?.numel().is(elements(cx)?.len() as i64) {
        return Err(wrong(format!("bounds for another number of elements than {} has", cx.ty(0)?)));
    }
    cx.same_as_input()
}

fn dims(cx: &NodeView<'_>) -> Option<Vec<Dim>> {
    let name = &cx.graph.value(cx.id(0).ok()?).name;
    let symbol = |(i, (min, max, slot)): (usize, (i64, i64, usize))| match slot {
        NO_SLOT => Dim::Const(min),
        slot => Dim::symbol(Symbol {
            name: format!("{name}[{i}]"),
            min,
            max: Some(max),
            source: SymbolSource::Data { slot },
        }),
    };
    Some(elements(cx).ok()?.into_iter().enumerate().map(symbol).collect())
}

fn lower(cx: &mut LowerCx<'_>) -> Result<()> {
    let dtype = cx.dtype(0)?;
    for (i, (least, most, value)) in elements(cx)?.into_iter().enumerate() {
        let x = cx.x(0)?;
        let (least, most) = (Dim::Const(least), Dim::Const(most));
        cx.call(&[dtype], ReadExtent { x, at: Dim::from(i), least, most, value })?;
    }
    cx.view_of(0, 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ir::{Graph, Tensor, TensorType, Value};
    use crate::{exec, lower, passes};
    use kiln_kernels::{Dtype, isa::Isa};

    /// Expand to a shape that is read at run time.
    fn expanded(shape: &[i64]) -> Result<Vec<Tensor>> {
        let mut graph = Graph::default();
        let mut value = |name: &str, ty: Option<TensorType>| {
            graph.add_value(Value { name: name.into(), ty: ty.map(Into::into), ..Value::default() })
        };
        let shape_ty = TensorType::fixed(Dtype::I64, &[2]);
        let x = value("x", Some(TensorType::fixed(Dtype::F32, &[1, 3])));
        let (s, read, y) = (value("s", Some(shape_ty)), value("read", None), value("y", None));
        graph.inputs = vec![x, s];
        graph.outputs = vec![("y".into(), y)];
        graph.nodes.push(node("s read", [s, read], &[(0, 4), (3, 3)], 0));
        graph.nodes.push(Node {
            name: "e".into(),
            domain: String::new(),
            op: "Expand".into(),
            version: 13,
            attrs: BTreeMap::new(),
            inputs: vec![Some(x), Some(read)],
            outputs: vec![Some(y)],
            bodies: BTreeMap::new(),
        });
        let first = |e: crate::error::CompileErrors| e.0.into_iter().next().expect("an error");
        passes::infer(&mut graph).map_err(first)?;
        let lowered = lower::lower(&graph).map_err(first)?;
        let (x, s) = (Tensor::from_f32s(&[1, 3], &[1., 2., 3.]), Tensor::from_i64s(&[2], shape));
        exec::run_unplanned(&graph, &lowered, &[x.data(), s.data()], Isa::Scalar)
    }

    #[test]
    fn values_become_extents() {
        for rows in [0, 1, 4] {
            let y = expanded(&[rows, 3]).unwrap();
            let want: Vec<f32> = [1., 2., 3.].repeat(rows as usize);
            assert_eq!(y[0], Tensor::from_f32s(&[rows as usize, 3], &want));
        }
        for bad in [[5, 3], [-1, 3], [2, 2]] {
            assert!(expanded(&bad).is_err(), "{bad:?}");
        }
    }
}
