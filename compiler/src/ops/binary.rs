//! Arithmetic, logic and comparison of two operands that broadcast.
//!
//! One row of [`RULES`] per operator: kernel operation, element types, shape arithmetic. Pow is in its own file.
//! <https://onnx.ai/onnx/operators/onnx__Add.html> and the operators' own pages.

use super::broadcast::{self, strides};
use super::view::{NodeView, Result, broadcast as joint_shape, wrong};
use super::{InferCx, LayoutRule, OpDef, flops_per_element, tensor};
use crate::ir::Dim;
use crate::lower::LowerCx;
use kiln_kernels::{Binary, BinaryOp, Compare, CompareOp, Dtype, Operand};

/// Every type that arithmetic is defined on.
pub(super) const NUMBERS: &[Dtype] = &[
    Dtype::F32,
    Dtype::F64,
    Dtype::F16,
    Dtype::Bf16,
    Dtype::I8,
    Dtype::I16,
    Dtype::I32,
    Dtype::I64,
    Dtype::U8,
    Dtype::U16,
    Dtype::U32,
    Dtype::U64,
];
/// Its integers.
pub(super) const INTEGERS: &[Dtype] =
    &[Dtype::I8, Dtype::I16, Dtype::I32, Dtype::I64, Dtype::U8, Dtype::U16, Dtype::U32, Dtype::U64];
const TRUTH: &[Dtype] = &[Dtype::Bool];

/// What an operator computes.
#[derive(Clone, Copy)]
enum Function {
    /// A value of the operands' type.
    Value(BinaryOp),
    /// As the node's attributes say.
    ByAttribute(fn(&NodeView<'_>) -> Result<BinaryOp>),
    /// A truth value; with operands exchanged where the second field says so.
    Truth(CompareOp, bool),
}

struct Rule {
    name: &'static str,
    function: Function,
    dtypes: &'static [Dtype],
    /// On expressions; `None` where the result is none.
    on_dims: fn(&Dim, &Dim) -> Option<Dim>,
}

const fn rule(
    name: &'static str,
    function: Function,
    dtypes: &'static [Dtype],
    on_dims: fn(&Dim, &Dim) -> Option<Dim>,
) -> Rule {
    Rule { name, function, dtypes, on_dims }
}

static RULES: &[Rule] = &[
    rule("Add", Function::Value(BinaryOp::Add), NUMBERS, |a, b| Some(a.clone() + b.clone())),
    rule("Sub", Function::Value(BinaryOp::Sub), NUMBERS, |a, b| Some(a.clone() - b.clone())),
    rule("Mul", Function::Value(BinaryOp::Mul), NUMBERS, |a, b| Some(a.clone() * b.clone())),
    rule("Div", Function::Value(BinaryOp::Div), NUMBERS, quotient),
    rule("Mod", Function::ByAttribute(remainder_kind), NUMBERS, remainder),
    rule("PRelu", Function::Value(BinaryOp::Prelu), NUMBERS, |_, _| None),
    rule("And", Function::Value(BinaryOp::BitAnd), TRUTH, |a, b| Some(a.at_most(b))),
    rule("Or", Function::Value(BinaryOp::BitOr), TRUTH, |a, b| Some(a.at_least(b))),
    rule("Xor", Function::Value(BinaryOp::BitXor), TRUTH, |a, b| {
        Some(Dim::Const(i64::from(a.as_const()? != b.as_const()?)))
    }),
    rule("BitwiseAnd", Function::Value(BinaryOp::BitAnd), INTEGERS, |_, _| None),
    rule("BitwiseOr", Function::Value(BinaryOp::BitOr), INTEGERS, |_, _| None),
    rule("BitwiseXor", Function::Value(BinaryOp::BitXor), INTEGERS, |_, _| None),
    rule("BitShift", Function::ByAttribute(shift), INTEGERS, |_, _| None),
    rule("Equal", Function::Truth(CompareOp::Equal, false), EQUATABLE, equal),
    rule("Less", Function::Truth(CompareOp::Less, false), NUMBERS, less),
    rule("Greater", Function::Truth(CompareOp::Less, true), NUMBERS, |a, b| less(b, a)),
    rule("LessOrEqual", Function::Truth(CompareOp::LessEqual, false), NUMBERS, |a, b| not(less(b, a)?)),
    rule("GreaterOrEqual", Function::Truth(CompareOp::LessEqual, true), NUMBERS, |a, b| not(less(a, b)?)),
];

const EQUATABLE: &[Dtype] = &[
    Dtype::Bool,
    Dtype::F32,
    Dtype::F64,
    Dtype::F16,
    Dtype::Bf16,
    Dtype::I8,
    Dtype::I16,
    Dtype::I32,
    Dtype::I64,
    Dtype::U8,
    Dtype::U16,
    Dtype::U32,
    Dtype::U64,
];

const fn op(name: &'static str, since: &'static [i64]) -> OpDef {
    OpDef::new("", name, since, infer, lower)
        .with_dims(dims)
        .with_flops(flops_per_element)
        .with_layout(LayoutRule::Elementwise)
}

pub(super) static OPS: &[OpDef] = &[
    op("Add", &[1, 6, 7, 13, 14]),
    op("Sub", &[1, 6, 7, 13, 14]),
    op("Mul", &[1, 6, 7, 13, 14]),
    op("Div", &[1, 6, 7, 13, 14]),
    op("Mod", &[10, 13, 28]),
    op("PRelu", &[1, 6, 7, 9, 16]),
    op("And", &[1, 7]),
    op("Or", &[1, 7]),
    op("Xor", &[1, 7]),
    op("BitwiseAnd", &[18]),
    op("BitwiseOr", &[18]),
    op("BitwiseXor", &[18]),
    op("BitShift", &[11, 28]),
    op("Equal", &[1, 7, 11, 13, 19]),
    op("Less", &[1, 7, 9, 13]),
    op("Greater", &[1, 7, 9, 13]),
    op("LessOrEqual", &[12, 16]),
    op("GreaterOrEqual", &[12, 16]),
];

fn rule_of(cx: &NodeView<'_>) -> Result<&'static Rule> {
    let op = cx.node.op.as_str();
    RULES.iter().find(|r| r.name == op).ok_or_else(|| wrong("no such binary operator"))
}

/// Mod's remainder: Python's, or C's with `fmod`.
fn remainder_kind(cx: &NodeView<'_>) -> Result<BinaryOp> {
    match cx.int("fmod", 0)? {
        0 => Ok(BinaryOp::Mod),
        1 => Ok(BinaryOp::Fmod),
        other => Err(wrong(format!("{other} is neither 0 nor 1")).at_attribute("fmod")),
    }
}

fn shift(cx: &NodeView<'_>) -> Result<BinaryOp> {
    match cx.opt_text("direction")? {
        Some("LEFT") => Ok(BinaryOp::ShiftLeft),
        Some("RIGHT") => Ok(BinaryOp::ShiftRight),
        other => Err(wrong(format!("expected LEFT or RIGHT, found {other:?}")).at_attribute("direction")),
    }
}

/// The operands' shapes as the result reads them.
fn shapes(cx: &NodeView<'_>) -> Result<[Vec<Dim>; 2]> {
    if cx.node.op != "PRelu" {
        return broadcast::pair(cx);
    }
    let (x, mut slope) = (cx.shape(0)?.to_vec(), cx.shape(1)?.to_vec());
    // Before opset 7 a slope of several elements is one per channel.
    if cx.version() < 7 && slope.len() == 1 && !slope[0].is(1) && x.len() > 1 {
        slope.resize(x.len() - 1, Dim::Const(1));
    }
    Ok([x, slope])
}

fn infer(cx: &mut InferCx<'_>) -> Result<()> {
    let rule = rule_of(cx)?;
    cx.expect_dtype(0, rule.dtypes)?;
    cx.expect_same_dtype(1, 0)?;
    let [a, b] = shapes(cx)?;
    let shape = joint_shape(&[&a, &b])?;
    if cx.node.op == "PRelu" && shape.len() != a.len() {
        return Err(wrong(format!("the slope {} does not fit {}", cx.ty(1)?, cx.ty(0)?)).at_input(1));
    }
    let dtype = match rule.function {
        Function::Truth(..) => Dtype::Bool,
        Function::Value(_) => cx.dtype(0)?,
        Function::ByAttribute(of) => of(cx).and_then(|_| cx.dtype(0))?,
    };
    cx.set(0, tensor(dtype, shape));
    Ok(())
}

fn lower(cx: &mut LowerCx<'_>) -> Result<()> {
    let rule = rule_of(cx)?;
    let [a_shape, b_shape] = shapes(cx)?;
    let dtype = cx.dtype(0)?;
    let (a, a_extents) = broadcast::operand(cx, 0, &a_shape)?;
    let (b, b_extents) = broadcast::operand(cx, 1, &b_shape)?;
    let y = cx.y(0)?;
    let op = match rule.function {
        Function::Value(op) => op,
        Function::ByAttribute(of) => of(cx)?,
        Function::Truth(op, exchanged) => {
            let (a, a_extents, b, b_extents) =
                if exchanged { (b, b_extents, a, a_extents) } else { (a, a_extents, b, b_extents) };
            let s = strides(&broadcast::result_extents(cx)?, [&a_extents, &b_extents])?;
            let [a_strides, b_strides] = s.of;
            let d = Compare { a, b, y, dims: s.dims, a_strides, b_strides, op };
            return cx.call(&[memory_type(dtype), Dtype::U8], d);
        }
    };
    arithmetic(cx, op, dtype, (a, &a_extents), (b, &b_extents), y)
}

/// Adds the call that makes `y`, contiguous with result 0's extents, of two operands with extents of theirs.
pub(super) fn arithmetic(
    cx: &mut LowerCx<'_>,
    op: BinaryOp,
    dtype: Dtype,
    (a, a_extents): (Operand<Dim>, &[Dim]),
    (b, b_extents): (Operand<Dim>, &[Dim]),
    y: Operand<Dim>,
) -> Result<()> {
    let s = strides(&broadcast::result_extents(cx)?, [a_extents, b_extents])?;
    let [a_strides, b_strides] = s.of;
    cx.call(&[memory_type(dtype)], Binary { a, b, y, dims: s.dims, a_strides, b_strides, op })
}

/// The type that kernels know an element type by.
pub(super) fn memory_type(dtype: Dtype) -> Dtype {
    match dtype {
        Dtype::Bool | Dtype::U4 | Dtype::U2 => Dtype::U8,
        Dtype::I4 | Dtype::I2 => Dtype::I8,
        other => other,
    }
}

fn dims(cx: &NodeView<'_>) -> Option<Vec<Dim>> {
    let rule = rule_of(cx).ok()?;
    // Constants are folded by the kernel, which wraps as the type does.
    if cx.constant(0).is_some() && cx.constant(1).is_some() {
        return None;
    }
    if matches!(rule.function, Function::ByAttribute(_)) && cx.int("fmod", 0).ok()? != 0 {
        // The signs differ from Python's for negative numbers only.
        if cx.dims(0)?.iter().any(|d| d.lower() < 0) {
            return None;
        }
    }
    zip(&expressions(cx, 0)?, &expressions(cx, 1)?, rule.on_dims)
}

/// A small operand's elements as expressions, whole numbers in a float tensor as well.
pub(super) fn expressions(cx: &NodeView<'_>, i: usize) -> Option<Vec<Dim>> {
    if cx.rank(i).ok()? > 1 {
        return None;
    }
    cx.dims(i).or_else(|| {
        let values = cx.constant(i)?.to_f32s()?;
        let whole = |v: &f32| (v.fract() == 0.0 && v.abs() < 1e7).then_some(Dim::Const(*v as i64));
        values.iter().map(whole).collect()
    })
}

/// Combines two vectors, of which one may have a single element.
pub(super) fn zip(a: &[Dim], b: &[Dim], f: fn(&Dim, &Dim) -> Option<Dim>) -> Option<Vec<Dim>> {
    let n = if a.len() == 1 { b.len() } else { a.len() };
    let at = |v: &[Dim], i: usize| if v.len() == 1 { v.first().cloned() } else { v.get(i).cloned() };
    if b.len() != n && b.len() != 1 {
        return None;
    }
    (0..n).map(|i| f(&at(a, i)?, &at(b, i)?)).collect()
}

/// Truncating and flooring division agree where neither side is negative.
fn quotient(a: &Dim, b: &Dim) -> Option<Dim> {
    (a.lower() >= 0 && b.lower() > 0).then(|| a.floor_div(b))
}

fn remainder(a: &Dim, b: &Dim) -> Option<Dim> {
    (b.lower() > 0).then(|| a.rem(b))
}

fn equal(a: &Dim, b: &Dim) -> Option<Dim> {
    if a == b {
        return Some(Dim::Const(1));
    }
    let apart = |low: &Dim, high: &Dim| low.upper().is_some_and(|u| u < high.lower());
    let differ = (a.clone() - b.clone()).as_const().is_some_and(|d| d != 0);
    if differ || apart(a, b) || apart(b, a) {
        return Some(Dim::Const(0));
    }
    let distance = a.clone() - b.clone();
    Some(Dim::Const(1) - truth(&(distance.clone() * distance)))
}

/// 1 for a positive number, else 0.
fn truth(d: &Dim) -> Dim {
    d.at_most(&Dim::Const(1)).at_least(&Dim::Const(0))
}

fn less(a: &Dim, b: &Dim) -> Option<Dim> {
    if a.upper().is_some_and(|u| u < b.lower()) {
        return Some(Dim::Const(1));
    }
    if a == b || b.upper().is_some_and(|u| u <= a.lower()) {
        return Some(Dim::Const(0));
    }
    Some(truth(&(b.clone() - a.clone())))
}

fn not(d: Dim) -> Option<Dim> {
    Some(Dim::Const(1) - d)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ir::{Attr, Tensor};
    use crate::ops::testing::case;

    fn f(dims: &[usize], v: &[f32]) -> Tensor {
        Tensor::from_f32s(dims, v)
    }

    #[test]
    fn broadcasts() {
        let a = f(&[2, 1, 2], &[1., 2., 3., 4.]);
        let b = f(&[2, 1], &[10., 20.]);
        let y = case("", "Add", 14).input(a.clone()).input(b.clone()).run().unwrap();
        assert_eq!(y[0], f(&[2, 2, 2], &[11., 12., 21., 22., 13., 14., 23., 24.]));
        let y = case("", "Sub", 14).input(b.clone()).input(a.clone()).run().unwrap();
        assert_eq!(y[0], f(&[2, 2, 2], &[9., 8., 19., 18., 7., 6., 17., 16.]));
        let y = case("", "Mul", 14).input(f(&[0, 2], &[])).input(f(&[2], &[1., 2.])).run().unwrap();
        assert_eq!(y[0].dims(), &[0, 2]);
        let y = case("", "Div", 14).input(f(&[], &[1.])).input(f(&[], &[4.])).run().unwrap();
        assert_eq!(y[0], f(&[], &[0.25]));
        assert!(case("", "Add", 14).input(a).input(f(&[3], &[1., 2., 3.])).infer().is_err());
        assert!(case("", "Add", 14).input(b.clone()).input(Tensor::from_i64s(&[1], &[1])).infer().is_err());
        assert!(case("", "Add", 14).input(b).infer().is_err());
    }

    #[test]
    fn old_broadcasting() {
        let a = f(&[1, 2, 2], &[1., 2., 3., 4.]);
        let b = f(&[2], &[10., 20.]);
        let add = || case("", "Add", 6).input(a.clone()).input(b.clone());
        assert!(add().infer().is_err());
        let on = || add().attr("broadcast", Attr::Int(1));
        assert_eq!(on().run_f32(), [11., 22., 13., 24.]);
        assert_eq!(on().attr("axis", Attr::Int(1)).run_f32(), [11., 12., 23., 24.]);
        assert!(on().attr("axis", Attr::Int(3)).infer().is_err());
        let slope = case("", "PRelu", 6).input(f(&[1, 2, 2], &[-1., 2., -3., 4.])).input(f(&[2], &[2., 3.]));
        assert_eq!(slope.run_f32(), [-2., 2., -9., 4.]);
        let slope = case("", "PRelu", 16).input(f(&[1, 2, 2], &[-1., 2., -3., -4.])).input(f(&[2], &[2., 3.]));
        assert_eq!(slope.run_f32(), [-2., 2., -6., -12.]);
        let wide = case("", "PRelu", 16).input(f(&[2], &[1., 2.])).input(f(&[3, 2], &[0.; 6]));
        assert!(wide.infer().is_err());
    }

    #[test]
    fn integers_and_truth() {
        let i = |v: &[i64]| Tensor::from_i64s(&[v.len()], v);
        let run = |op: &str, version, a: &[i64], b: &[i64]| {
            case("", op, version).input(i(a)).input(i(b)).run().unwrap().remove(0)
        };
        assert_eq!(run("Div", 14, &[7, -7, 5], &[2, 2, 0]), i(&[3, -3, 0]));
        assert_eq!(run("Mod", 13, &[7, -7, 5], &[-3, 3, 0]), i(&[-2, 2, 0]));
        let fmod = case("", "Mod", 13).input(i(&[-7])).input(i(&[3])).attr("fmod", Attr::Int(1)).run().unwrap();
        assert_eq!(fmod[0], i(&[-1]));
        assert_eq!(case("", "Mod", 13).input(f(&[1], &[-1.])).input(f(&[1], &[3.])).run_f32(), [2.]);
        let truth = |v: &[u8]| Tensor::new(Dtype::Bool, vec![v.len()], v.to_vec().into()).unwrap();
        assert_eq!(run("Greater", 13, &[1, 2, 3], &[2]), truth(&[0, 0, 1]));
        assert_eq!(run("GreaterOrEqual", 16, &[1, 2, 3], &[2]), truth(&[0, 1, 1]));
        assert_eq!(run("LessOrEqual", 16, &[1, 2, 3], &[2]), truth(&[1, 1, 0]));
        let xor = case("", "Xor", 7).input(truth(&[0, 1, 1])).input(truth(&[1, 1, 0])).run().unwrap();
        assert_eq!(xor[0], truth(&[1, 0, 1]));
        let shift =
            case("", "BitShift", 11).input(Tensor::from_u8s(&[2], &[16, 1])).input(Tensor::from_u8s(&[1], &[2]));
        assert!(shift.infer().is_err());
        assert_eq!(shift.attr("direction", Attr::Str(b"RIGHT".to_vec())).run().unwrap()[0].data()[..], [4, 0]);
    }

    /// A chain of nodes over a symbolic extent: what exporters compute shapes with.
    #[test]
    fn shape_arithmetic() {
        use crate::ir::{Graph, Node, Symbol, SymbolSource, TensorType, Value, ValueId};
        let mut g = Graph::default();
        let source = SymbolSource::Input { input_idx: 0, axis: 0 };
        let n = Dim::symbol(Symbol { name: "n".into(), min: 1, max: Some(100), source });
        let ty = TensorType::new(Dtype::F32, vec![n.clone(), Dim::Const(8)]);
        let x = g.add_value(Value { name: "x".into(), ty: Some(ty.into()), ..Value::default() });
        g.inputs.push(x);
        let node = |g: &mut Graph, op: &str, inputs: &[ValueId], attrs: &[(&str, i64)]| {
            let y = g.add_value(Value { name: format!("{op}{}", g.values.len()), ..Value::default() });
            g.nodes.push(Node {
                name: op.into(),
                domain: String::new(),
                op: op.into(),
                version: 16,
                attrs: attrs.iter().map(|&(k, v)| (k.to_owned(), Attr::Int(v))).collect(),
                inputs: inputs.iter().map(|v| Some(*v)).collect(),
                outputs: vec![Some(y)],
                bodies: Default::default(),
            });
            y
        };
        let ints = |g: &mut Graph, v: &[i64]| g.add_constant("c", Tensor::from_i64s(&[v.len()], v));
        let shape = node(&mut g, "Shape", &[x], &[]);
        let (two, minus, four) = (ints(&mut g, &[2]), ints(&mut g, &[-1]), ints(&mut g, &[4]));
        let twice = node(&mut g, "Mul", &[shape, two], &[]);
        let halved = node(&mut g, "Div", &[twice, two], &[]);
        let unknown = node(&mut g, "Equal", &[shape, minus], &[]);
        let chosen = node(&mut g, "Where", &[unknown, two, twice], &[]);
        let wide = node(&mut g, "Cast", &[twice], &[("to", 1)]);
        let half = g.add_constant("h", Tensor::from_f32s(&[], &[3.0]));
        let scaled = node(&mut g, "Mul", &[wide, half], &[]);
        let floor = node(&mut g, "Floor", &[scaled], &[]);
        let back = node(&mut g, "Cast", &[floor], &[("to", 7)]);
        let quarter = node(&mut g, "Div", &[shape, four], &[]);
        let least = node(&mut g, "Min", &[quarter, two], &[]);
        let rest = node(&mut g, "Mod", &[shape, four], &[]);
        let negative = node(&mut g, "Neg", &[shape], &[]);
        let large = node(&mut g, "Greater", &[twice, minus], &[]);
        crate::passes::infer(&mut g).unwrap();
        let c = Dim::Const;
        let of = |v: ValueId| g.value(v).dims.clone();
        assert_eq!(of(twice), Some(vec![n.clone() * c(2), c(16)]));
        assert_eq!(of(halved), Some(vec![n.clone(), c(8)]));
        assert_eq!(of(unknown), Some(vec![c(0), c(0)]));
        assert_eq!(of(chosen), of(twice));
        assert_eq!(of(back), Some(vec![n.clone() * c(6), c(48)]));
        assert_eq!(of(quarter), Some(vec![n.floor_div(&c(4)), c(2)]));
        assert_eq!(of(least), Some(vec![n.floor_div(&c(4)).at_most(&c(2)), c(2)]));
        assert_eq!(of(rest), Some(vec![n.rem(&c(4)), c(0)]));
        assert_eq!(of(negative), Some(vec![c(0) - n, c(-8)]));
        assert_eq!(of(large), Some(vec![c(1), c(1)]));
    }
}
