//! Sequences that only a run knows: SequenceEmpty, SequenceConstruct, SequenceInsert, SequenceErase, SequenceAt,
//! SequenceLength, SplitToSequence, ConcatFromSequence. Where everything is known they fold away (`passes/sequences.rs`).
//!
//! A tensor taken out has extents found at run time, within the bounds of the elements that were put in.
//! <https://onnx.ai/onnx/operators/onnx__SequenceAt.html> and its neighbours.

use super::found::slot;
use super::view::{NodeView, Result, resolve_axis, wrong};
use super::{InferCx, OpDef, tensor};
use crate::ir::{Dim, Elements, SequenceType, TensorType, Type};
use crate::lower::{LowerCx, found_slots, greatest, object_dims};
use kiln_kernels::{
    AppendElement, CountElements, Dtype, ElementAt, EmptySequence, EraseElement, InsertElement, JoinSequence, Operand,
    SplitTensor,
};

pub(super) static OPS: &[OpDef] = &[
    OpDef::new("", "SequenceEmpty", &[11], infer_empty, lower_empty),
    OpDef::new("", "SequenceConstruct", &[11], infer_construct, lower_construct),
    OpDef::new("", "SequenceInsert", &[11], infer_insert, lower_insert),
    OpDef::new("", "SequenceErase", &[11], infer_erase, lower_erase),
    OpDef::new("", "SequenceAt", &[11], infer_at, lower_at),
    OpDef::new("", "SequenceLength", &[11], infer_length, lower_length),
    OpDef::new("", "SplitToSequence", &[11, 24], infer_split, lower_split),
    OpDef::new("", "ConcatFromSequence", &[11], infer_concat, lower_concat),
];

/// An operand's sequence type.
fn sequence<'a>(cx: &NodeView<'a>, i: usize) -> Result<&'a SequenceType> {
    let ty = cx.any_ty(i)?;
    ty.sequence().ok_or_else(|| wrong(format!("expected a sequence, found {ty}")).at_input(i))
}

/// The type of a sequence of this one tensor.
fn single(ty: &TensorType) -> SequenceType {
    SequenceType { dtype: ty.dtype, elements: Elements::of(&ty.shape), most: Some(1) }
}

fn joined(cx: &NodeView<'_>, a: &SequenceType, i: usize) -> Result<SequenceType> {
    let b = single(cx.ty(i)?);
    a.join(&b)
        .ok_or_else(|| wrong(format!("expected {}, found {}", a.dtype, cx.dtype(i).unwrap_or(b.dtype))).at_input(i))
}

fn expect_position(cx: &NodeView<'_>, i: usize) -> Result<()> {
    if cx.has(i) {
        cx.expect_dtype(i, &[Dtype::I64, Dtype::I32])?;
    }
    Ok(())
}

/// A position as `i64`, if it is given.
fn place(cx: &mut LowerCx<'_>, i: usize) -> Result<Option<Operand<Dim>>> {
    if !cx.has(i) {
        return Ok(None);
    }
    super::index::as_i64(cx, i).map(Some)
}

fn infer_empty(cx: &mut InferCx<'_>) -> Result<()> {
    let number = cx.int("dtype", i64::from(Dtype::F32.to_onnx()))?;
    let dtype = i32::try_from(number).ok().and_then(Dtype::from_onnx);
    let dtype = dtype.ok_or_else(|| wrong(format!("{number} is no type")).at_attribute("dtype"))?;
    cx.set(0, Type::Sequence(SequenceType { dtype, elements: Elements::Nothing, most: Some(0) }));
    Ok(())
}

fn lower_empty(cx: &mut LowerCx<'_>) -> Result<()> {
    let y = cx.object_y(0);
    cx.call(&[], EmptySequence { y })
}

fn infer_construct(cx: &mut InferCx<'_>) -> Result<()> {
    let mut ty = single(cx.ty(0)?);
    for i in 1..cx.n_inputs() {
        ty = joined(cx, &ty, i)?;
    }
    ty.most = i64::try_from(cx.n_inputs()).ok();
    cx.set(0, Type::Sequence(ty));
    Ok(())
}

fn lower_construct(cx: &mut LowerCx<'_>) -> Result<()> {
    let y = cx.object_y(0);
    cx.call(&[], EmptySequence { y })?;
    for i in 0..cx.n_inputs() {
        let x = cx.object(i)?;
        cx.call(&[], AppendElement { x, y })?;
    }
    Ok(())
}

fn infer_insert(cx: &mut InferCx<'_>) -> Result<()> {
    expect_position(cx, 2)?;
    let before = sequence(cx, 0)?;
    let mut ty = joined(cx, before, 1)?;
    ty.most = before.most.map(|n| n.saturating_add(1));
    cx.set(0, Type::Sequence(ty));
    Ok(())
}

fn lower_insert(cx: &mut LowerCx<'_>) -> Result<()> {
    let at = place(cx, 2)?;
    let d = InsertElement { at, s: cx.object(0)?, x: cx.object(1)?, y: cx.object_y(0) };
    cx.call(&[Dtype::I64], d)
}

fn infer_erase(cx: &mut InferCx<'_>) -> Result<()> {
    expect_position(cx, 1)?;
    let mut ty = sequence(cx, 0)?.clone();
    ty.most = ty.most.map(|n| (n - 1).max(0));
    cx.set(0, Type::Sequence(ty));
    Ok(())
}

fn lower_erase(cx: &mut LowerCx<'_>) -> Result<()> {
    let at = place(cx, 1)?;
    let d = EraseElement { at, s: cx.object(0)?, y: cx.object_y(0) };
    cx.call(&[Dtype::I64], d)
}

/// The extents of one element: constants, or found at run time within the bounds. Without bounds, the result's declared ones.
fn element_shape(cx: &mut InferCx<'_>, ty: &SequenceType) -> Result<Vec<Dim>> {
    let bounded = |shape: &[Dim]| shape.iter().all(|d| d.upper().is_some());
    match &ty.elements {
        Elements::Ranked(shape) if bounded(shape) || ty.dtype == Dtype::Str => {
            let each = |d: &Dim| match d.as_const() {
                Some(_) => d.clone(),
                None => cx.data_dim("element", d.lower(), d.upper()),
            };
            Ok(shape.iter().map(each).collect())
        }
        elements => {
            let view = cx.view();
            let rank = match (&elements, view.node.output(0).map(|v| &view.graph.value(v).ty)) {
                (Elements::Ranked(shape), _) => Some(shape.len()),
                (_, Some(Some(Type::Tensor(t)))) => Some(t.rank()),
                _ => None,
            };
            rank.and_then(|r| view.declared(0, r)).ok_or_else(|| {
                let message = format!(
                    "the elements of {ty} have no bounds: declare the shape of the result, bound the sequence's free \
                     dimensions, or give an input of the size to compile for"
                );
                wrong(message).at_input(0)
            })
        }
    }
}

fn infer_at(cx: &mut InferCx<'_>) -> Result<()> {
    cx.id(1)?;
    expect_position(cx, 1)?;
    let ty = sequence(cx, 0)?.clone();
    let shape = element_shape(cx, &ty)?;
    cx.set(0, tensor(ty.dtype, shape));
    Ok(())
}

fn lower_at(cx: &mut LowerCx<'_>) -> Result<()> {
    let at = place(cx, 1)?.ok_or_else(|| wrong("required operand is missing").at_input(1))?;
    let element = cx.new_object();
    let s = cx.object(0)?;
    cx.call(&[Dtype::I64], ElementAt { at, s, y: element })?;
    cx.take_tensor(0, element)
}

fn infer_length(cx: &mut InferCx<'_>) -> Result<()> {
    sequence(cx, 0)?;
    cx.set(0, tensor(Dtype::I64, Vec::new()));
    Ok(())
}

fn lower_length(cx: &mut LowerCx<'_>) -> Result<()> {
    let d = CountElements { y: cx.y(0)?, s: cx.object(0)? };
    cx.call(&[Dtype::I64], d)
}

/// The axis, and whether the parts are single slices without it.
fn split_rule(cx: &NodeView<'_>) -> Result<(usize, bool)> {
    let axis = cx.axis("axis", 0, cx.rank(0)?)?;
    Ok((axis, !cx.has(1) && cx.int("keepdims", 1)? == 0))
}

fn infer_split(cx: &mut InferCx<'_>) -> Result<()> {
    expect_position(cx, 1)?;
    let (axis, drop_axis) = split_rule(cx)?;
    let ty = cx.ty(0)?;
    let extent = ty.shape[axis].upper();
    let mut shape = ty.shape.clone();
    if drop_axis {
        shape.remove(axis);
    } else if !cx.has(1) {
        shape[axis] = Dim::Const(1);
    } else {
        let most = match cx.const_ints(1) {
            Some(split) => split.iter().copied().max().zip(extent).map(|(a, b)| a.min(b)).or(extent),
            None => extent,
        };
        shape[axis] = crate::ir::bounded_extent(0, most);
    }
    let most = match cx.has(1) && cx.rank(1)? == 1 {
        true => cx.shape(1)?[0].upper(),
        false => extent,
    };
    cx.set(0, Type::Sequence(SequenceType { dtype: ty.dtype, elements: Elements::of(&shape), most }));
    Ok(())
}

fn lower_split(cx: &mut LowerCx<'_>) -> Result<()> {
    let (axis, drop_axis) = split_rule(cx)?;
    let ty = cx.ty(0)?.clone();
    let (dims, rank) = object_dims(&ty.shape)?;
    let listed = cx.has(1) && cx.rank(1)? == 1;
    let n_split = if cx.has(1) { cx.ty(1)?.numel() } else { Dim::Const(0) };
    let split = place(cx, 1)?;
    let dtype = ty.dtype.to_onnx();
    let d = SplitTensor { x: cx.x(0)?, split, n_split, dims, rank, dtype, axis, listed, drop_axis, y: cx.object_y(0) };
    cx.call(&[Dtype::U8, Dtype::I64], d)
}

/// The rank of the result and the axis that is joined along.
fn join_rule(cx: &NodeView<'_>, rank: usize) -> Result<(usize, usize, bool)> {
    let new_axis = cx.int("new_axis", 0)? != 0;
    let rank = rank + usize::from(new_axis);
    let axis = cx.opt_int("axis")?.ok_or_else(|| wrong("is missing").at_attribute("axis"))?;
    Ok((rank, resolve_axis(axis, rank).map_err(|e| e.at_attribute("axis"))?, new_axis))
}

fn infer_concat(cx: &mut InferCx<'_>) -> Result<()> {
    let ty = sequence(cx, 0)?.clone();
    if ty.dtype == Dtype::Str {
        return Err(wrong("strings are not supported").at_input(0));
    }
    let Elements::Ranked(shape) = &ty.elements else {
        return Err(wrong(format!("the elements of {ty} have no known rank")).at_input(0));
    };
    let (rank, axis, new_axis) = join_rule(cx, shape.len())?;
    let mut shape = shape.clone();
    if new_axis {
        shape.insert(axis, Dim::Const(1));
    }
    let most = shape[axis].upper().zip(ty.most).map(|(d, n)| d.saturating_mul(n));
    shape[axis] = crate::ir::bounded_extent(0, most);
    let ty = SequenceType { elements: Elements::Ranked(shape), ..ty };
    let shape = element_shape(cx, &ty)?;
    debug_assert_eq!(shape.len(), rank);
    cx.set(0, tensor(ty.dtype, shape));
    Ok(())
}

fn lower_concat(cx: &mut LowerCx<'_>) -> Result<()> {
    let view = cx.view();
    let ty = view.out_ty(0)?;
    let new_axis = view.int("new_axis", 0)? != 0;
    let (_, axis, _) = join_rule(&view, ty.rank() - usize::from(new_axis))?;
    let shape = greatest(&ty.shape)?;
    let bytes = TensorType::new(ty.dtype, shape.clone()).bytes();
    let (most, rank) = object_dims(&shape)?;
    let y = Operand { bytes, ..cx.y(0)? };
    let [dim_0, dim_1, dim_2, dim_3, dim_4, dim_5, dim_6, dim_7] = found_slots(&ty.shape);
    let dtype = ty.dtype.to_onnx();
    let s = cx.object(0)?;
    for d in ty.shape.iter().filter(|d| d.as_const().is_none()) {
        slot(d)?;
    }
    let d = JoinSequence {
        y,
        most,
        rank,
        dtype,
        axis,
        new_axis,
        dim_0,
        dim_1,
        dim_2,
        dim_3,
        dim_4,
        dim_5,
        dim_6,
        dim_7,
        s,
    };
    cx.call(&[Dtype::U8], d)
}

#[cfg(test)]
mod tests {
    use crate::ir::{Graph, Node, Tensor, TensorType, Value, ValueId};
    use crate::{exec, lower, passes};
    use kiln_kernels::isa::Isa;

    /// A graph with these inputs; each node is an operator with its operands and gives one value.
    fn graph(inputs: &[&Tensor], nodes: &[(&str, &[u32])]) -> Graph {
        let mut graph = Graph::default();
        for (i, t) in inputs.iter().enumerate() {
            let ty = TensorType::fixed(t.dtype(), t.dims());
            let id = graph.add_value(Value { name: format!("x{i}"), ty: Some(ty.into()), ..Value::default() });
            graph.inputs.push(id);
        }
        for (op, operands) in nodes {
            let y = graph.add_value(Value { name: format!("{op} result"), ..Value::default() });
            graph.nodes.push(Node {
                name: (*op).into(),
                domain: String::new(),
                op: (*op).into(),
                version: 13,
                attrs: Default::default(),
                inputs: operands.iter().map(|&v| Some(ValueId(v))).collect(),
                outputs: vec![Some(y)],
                bodies: Default::default(),
            });
            graph.outputs = vec![("y".into(), y)];
        }
        graph
    }

    fn run(graph: &Graph, inputs: &[&Tensor]) -> Result<Tensor, String> {
        let lowered = lower::lower(graph).map_err(|e| e.to_string())?;
        let bytes: Vec<&[u8]> = inputs.iter().map(|t| &t.data()[..]).collect();
        let mut out = exec::run_unplanned(graph, &lowered, &bytes, Isa::Scalar).map_err(|e| e.to_string())?;
        Ok(out.remove(0))
    }

    #[test]
    fn taken_by_a_position_of_the_run() {
        let (x, y) = (Tensor::from_i64s(&[2], &[1, 2]), Tensor::from_i64s(&[3], &[3, 4, 5]));
        for (at, want) in [(0, Some(&x)), (1, Some(&y)), (-1, Some(&y)), (2, None)] {
            let at = Tensor::from_i64s(&[], &[at]);
            let inputs = [&x, &y, &at];
            let mut g = graph(&inputs, &[("SequenceConstruct", &[0, 1]), ("SequenceAt", &[3, 2])]);
            passes::infer(&mut g).unwrap();
            let ty = g.tensor_type(g.outputs[0].1).unwrap();
            assert_eq!((ty.shape[0].lower(), ty.shape[0].upper()), (2, Some(3)));
            assert_eq!(run(&g, &inputs).ok().as_ref(), want);
        }
    }

    #[test]
    fn known_elements_need_no_sequence() {
        let x = Tensor::from_i64s(&[2], &[1, 2]);
        let mut g = graph(&[&x], &[("SequenceConstruct", &[0]), ("SequenceInsert", &[1, 0]), ("SequenceLength", &[2])]);
        passes::infer(&mut g).unwrap();
        assert_eq!(g.constant(g.outputs[0].1).unwrap().to_i64s().unwrap(), [2]);
        passes::simplify(&mut g).unwrap();
        assert!(g.nodes.is_empty());
    }

    #[test]
    fn refusals() {
        let (x, y) = (Tensor::from_i64s(&[2], &[1, 2]), Tensor::from_f32s(&[2], &[1., 2.]));
        assert!(passes::infer(&mut graph(&[&x, &y], &[("SequenceConstruct", &[0, 1])])).is_err());
        assert!(passes::infer(&mut graph(&[&x], &[("SequenceLength", &[0])])).is_err());
    }
}
