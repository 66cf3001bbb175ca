//! Functions of one operand: roundings, roots, exponentials, trigonometry, activations, and their integer forms.
//!
//! One row of [`RULES`] per operator. The result has the operand's type and layout.
//! <https://onnx.ai/onnx/operators/onnx__Abs.html> and the operators' own pages.

use super::binary::{INTEGERS, NUMBERS, expressions, memory_type};
use super::view::{NodeView, Result, wrong};
use super::{InferCx, LayoutRule, OpDef, flops_per_element};
use crate::ir::Dim;
use crate::lower::LowerCx;
use kiln_kernels::{Dtype, IntOp, MathOp, Operand, Unary, UnaryInt, UnaryMath, UnaryOp};

/// The real floating-point types that functions are defined on.
pub(super) const FLOATS: &[Dtype] = &[Dtype::F32, Dtype::F64, Dtype::F16, Dtype::Bf16];
const SIGNED: &[Dtype] =
    &[Dtype::F32, Dtype::F64, Dtype::F16, Dtype::Bf16, Dtype::I8, Dtype::I16, Dtype::I32, Dtype::I64];

/// A kernel operation with its two constants.
#[derive(Clone, Copy)]
pub(super) enum Function {
    /// Arithmetic only.
    Plain(UnaryOp),
    /// Transcendental.
    Math(MathOp),
    /// On integers alone.
    Int(IntOp),
    /// Arithmetic on floats, another operation on integers.
    Either(UnaryOp, IntOp),
}

/// An attribute that becomes a constant of the call, with its default.
type Constant = Option<(&'static str, f32)>;

struct Rule {
    name: &'static str,
    function: Function,
    dtypes: &'static [Dtype],
    constants: [Constant; 2],
}

const fn plain(name: &'static str, op: UnaryOp) -> Rule {
    Rule { name, function: Function::Plain(op), dtypes: FLOATS, constants: [None, None] }
}

const fn math(name: &'static str, op: MathOp) -> Rule {
    Rule { name, function: Function::Math(op), dtypes: FLOATS, constants: [None, None] }
}

const fn either(name: &'static str, op: UnaryOp, int: IntOp, dtypes: &'static [Dtype]) -> Rule {
    Rule { name, function: Function::Either(op, int), dtypes, constants: [None, None] }
}

impl Rule {
    const fn with(mut self, a: (&'static str, f32)) -> Self {
        self.constants[0] = Some(a);
        self
    }

    const fn and(mut self, b: (&'static str, f32)) -> Self {
        self.constants[1] = Some(b);
        self
    }
}

static RULES: &[Rule] = &[
    either("Abs", UnaryOp::Abs, IntOp::Abs, NUMBERS),
    either("Neg", UnaryOp::Neg, IntOp::Neg, SIGNED),
    either("Sign", UnaryOp::Sign, IntOp::Sign, NUMBERS),
    either("Relu", UnaryOp::Relu, IntOp::Relu, SIGNED),
    either("Shrink", UnaryOp::Shrink, IntOp::Shrink, NUMBERS).with(("lambd", 0.5)).and(("bias", 0.0)),
    Rule { name: "BitwiseNot", function: Function::Int(IntOp::BitNot), dtypes: INTEGERS, constants: [None, None] },
    Rule { name: "Not", function: Function::Int(IntOp::Not), dtypes: &[Dtype::Bool], constants: [None, None] },
    plain("Ceil", UnaryOp::Ceil),
    plain("Floor", UnaryOp::Floor),
    plain("Round", UnaryOp::Round),
    plain("Sqrt", UnaryOp::Sqrt),
    plain("Reciprocal", UnaryOp::Reciprocal),
    plain("LeakyRelu", UnaryOp::LeakyRelu).with(("alpha", 0.01)),
    plain("HardSigmoid", UnaryOp::HardSigmoid).with(("alpha", 0.2)).and(("beta", 0.5)),
    plain("HardSwish", UnaryOp::HardSwish),
    plain("Softsign", UnaryOp::Softsign),
    plain("ThresholdedRelu", UnaryOp::ThresholdedRelu).with(("alpha", 1.0)),
    math("Exp", MathOp::Exp),
    math("Log", MathOp::Log),
    math("Sigmoid", MathOp::Sigmoid),
    math("Tanh", MathOp::Tanh),
    math("Elu", MathOp::Elu).with(("alpha", 1.0)),
    math("Celu", MathOp::Celu).with(("alpha", 1.0)),
    math("Mish", MathOp::Mish),
    math("Softplus", MathOp::Softplus),
    math("Swish", MathOp::Swish).with(("alpha", 1.0)),
    math("Sin", MathOp::Sin),
    math("Cos", MathOp::Cos),
    math("Tan", MathOp::Tan),
    math("Asin", MathOp::Asin),
    math("Acos", MathOp::Acos),
    math("Atan", MathOp::Atan),
    math("Sinh", MathOp::Sinh),
    math("Cosh", MathOp::Cosh),
    math("Asinh", MathOp::Asinh),
    math("Acosh", MathOp::Acosh),
    math("Atanh", MathOp::Atanh),
];

const fn op(name: &'static str, since: &'static [i64]) -> OpDef {
    OpDef::new("", name, since, infer, lower).with_flops(flops_per_element).with_layout(LayoutRule::Elementwise)
}

pub(super) static OPS: &[OpDef] = &[
    op("Abs", &[1, 6, 13]).with_dims(abs_dims),
    op("Neg", &[1, 6, 13]).with_dims(neg_dims),
    op("Sign", &[9, 13]),
    op("Relu", &[1, 6, 13, 14]),
    op("Shrink", &[9]),
    op("BitwiseNot", &[18]),
    op("Not", &[1]).with_dims(not_dims),
    op("Ceil", &[1, 6, 13]).with_dims(same_dims),
    op("Floor", &[1, 6, 13]).with_dims(same_dims),
    op("Round", &[11, 22]).with_dims(same_dims),
    op("Sqrt", &[1, 6, 13]),
    op("Reciprocal", &[1, 6, 13]),
    op("LeakyRelu", &[1, 6, 16]),
    op("HardSigmoid", &[1, 6, 22]),
    op("HardSwish", &[14, 22]),
    op("Softsign", &[1, 22]),
    op("ThresholdedRelu", &[10, 22]),
    op("Exp", &[1, 6, 13]),
    op("Log", &[1, 6, 13]),
    op("Sigmoid", &[1, 6, 13]),
    op("Tanh", &[1, 6, 13]),
    op("Erf", &[9, 13]),
    op("Elu", &[1, 6, 22]),
    op("Celu", &[12, 28]),
    op("Selu", &[1, 6, 22]),
    op("Mish", &[18, 22]),
    op("Softplus", &[1, 22]),
    op("Swish", &[24]),
    op("Gelu", &[20]),
    op("Sin", &[7, 22]),
    op("Cos", &[7, 22]),
    op("Tan", &[7, 22]),
    op("Asin", &[7, 22]),
    op("Acos", &[7, 22]),
    op("Atan", &[7, 22]),
    op("Sinh", &[9, 22]),
    op("Cosh", &[9, 22]),
    op("Asinh", &[9, 22]),
    op("Acosh", &[9, 22]),
    op("Atanh", &[9, 22]),
];

/// What a node computes: the operation, its constants, and the element types it is defined on.
fn function(cx: &NodeView<'_>) -> Result<(Function, f32, f32, &'static [Dtype])> {
    match cx.node.op.as_str() {
        "Selu" => {
            // The defaults gained digits in opset 6.
            let (alpha, gamma) = if cx.version() < 6 { (1.6732, 1.0507) } else { (1.673_263_2, 1.050_701) };
            return Ok((Function::Math(MathOp::Selu), cx.float("alpha", alpha)?, cx.float("gamma", gamma)?, FLOATS));
        }
        "Erf" if cx.dtype(0)?.is_int() && cx.version() < 13 => {
            return Ok((Function::Int(IntOp::Erf), 0.0, 0.0, INTEGERS));
        }
        "Erf" => return Ok((Function::Math(MathOp::Erf), 0.0, 0.0, FLOATS)),
        "Gelu" => {
            let op = match cx.text("approximate", "none")? {
                "none" => MathOp::Gelu,
                "tanh" => MathOp::GeluTanh,
                other => return Err(wrong(format!("expected none or tanh, found {other}")).at_attribute("approximate")),
            };
            return Ok((Function::Math(op), 0.0, 0.0, FLOATS));
        }
        _ => {}
    }
    let op = cx.node.op.as_str();
    let rule = RULES.iter().find(|r| r.name == op).ok_or_else(|| wrong("no such unary operator"))?;
    let value = |c: Constant| c.map_or(Ok(0.0), |(name, default)| cx.float(name, default));
    Ok((rule.function, value(rule.constants[0])?, value(rule.constants[1])?, rule.dtypes))
}

fn infer(cx: &mut InferCx<'_>) -> Result<()> {
    let (_, a, _, dtypes) = function(cx)?;
    cx.expect_dtype(0, dtypes)?;
    if cx.node.op == "Celu" && a == 0.0 {
        return Err(wrong("must not be 0").at_attribute("alpha"));
    }
    cx.same_as_input()
}

fn lower(cx: &mut LowerCx<'_>) -> Result<()> {
    let (function, a, b, _) = function(cx)?;
    let dtype = cx.dtype(0)?;
    let (x, y) = (cx.x(0)?, cx.y(0)?);
    apply(cx, function, dtype, a, b, x, y)
}

/// Adds the call that computes a function of all elements of `x`, padding included.
pub(super) fn apply(
    cx: &mut LowerCx<'_>,
    function: Function,
    dtype: Dtype,
    a: f32,
    b: f32,
    x: Operand<Dim>,
    y: Operand<Dim>,
) -> Result<()> {
    let n = super::broadcast::result_extents(cx)?.into_iter().product();
    let key = [memory_type(dtype)];
    match function {
        Function::Either(_, op) if !dtype.is_float() => cx.call(&key, UnaryInt { x, y, n, op, a, b }),
        Function::Int(op) => cx.call(&key, UnaryInt { x, y, n, op, a, b }),
        Function::Plain(op) | Function::Either(op, _) => cx.call(&key, Unary { x, y, n, op, a, b }),
        Function::Math(op) => cx.call(&key, UnaryMath { x, y, n, op, a, b }),
    }
}

fn same_dims(cx: &NodeView<'_>) -> Option<Vec<Dim>> {
    if cx.constant(0).is_some() { None } else { expressions(cx, 0) }
}

fn abs_dims(cx: &NodeView<'_>) -> Option<Vec<Dim>> {
    same_dims(cx)?.into_iter().map(|d| (d.lower() >= 0).then_some(d)).collect()
}

fn neg_dims(cx: &NodeView<'_>) -> Option<Vec<Dim>> {
    Some(same_dims(cx)?.into_iter().map(|d| Dim::Const(0) - d).collect())
}

fn not_dims(cx: &NodeView<'_>) -> Option<Vec<Dim>> {
    Some(same_dims(cx)?.into_iter().map(|d| Dim::Const(1) - d).collect())
}

#[cfg(test)]
mod tests {
    use crate::ir::{Attr, Tensor};
    use crate::ops::testing::case;
    use kiln_kernels::Dtype;

    #[test]
    fn values() {
        let x = Tensor::from_f32s(&[3], &[-1.0, 0.0, 2.5]);
        for (op, version, want) in [
            ("Abs", 13, [1.0, 0.0, 2.5]),
            ("Neg", 13, [1.0, -0.0, -2.5]),
            ("Round", 11, [-1.0, 0.0, 2.0]),
            ("Relu", 14, [0.0, 0.0, 2.5]),
            ("LeakyRelu", 16, [-0.01, 0.0, 2.5]),
            ("Exp", 13, [0.367_879_4, 1.0, 12.182_494]),
            ("Selu", 6, [-1.111_330_7, 0.0, 2.626_752_5]),
            ("Elu", 6, [-0.632_120_55, 0.0, 2.5]),
            ("HardSigmoid", 6, [0.3, 0.5, 1.0]),
            ("Gelu", 20, [-0.158_655_26, 0.0, 2.484_475_8]),
            ("Softplus", 1, [0.313_261_7, core::f32::consts::LN_2, 2.578_889_8]),
            ("Swish", 24, [-0.268_941_43, 0.0, 2.310_354_5]),
            ("Shrink", 9, [-1.0, 0.0, 2.5]),
            ("Sign", 13, [-1.0, 0.0, 1.0]),
        ] {
            let y = case("", op, version).input(x.clone()).run_f32();
            assert!(y.iter().zip(&want).all(|(y, w)| (y - w).abs() < 1e-6), "{op}: {y:?}");
        }
        let y = case("", "Celu", 12).input(x.clone()).attr("alpha", Attr::Float(2.0)).run_f32();
        assert!((y[0] + 0.786_938_67).abs() < 1e-6);
        assert!(case("", "Celu", 12).input(x.clone()).attr("alpha", Attr::Float(0.0)).infer().is_err());
        assert!(case("", "Exp", 13).input(Tensor::from_i64s(&[1], &[1])).infer().is_err());
        assert!(case("", "Gelu", 20).input(x).attr("approximate", Attr::Str(b"x".to_vec())).infer().is_err());
    }

    #[test]
    fn integers() {
        let y = case("", "Neg", 13).input(Tensor::from_i32s(&[2], &[i32::MIN, 5])).run().unwrap();
        assert_eq!(y[0], Tensor::from_i32s(&[2], &[i32::MIN, -5]));
        let y = case("", "BitwiseNot", 18).input(Tensor::from_u8s(&[1], &[5])).run().unwrap();
        assert_eq!(y[0], Tensor::from_u8s(&[1], &[250]));
        let t = Tensor::new(Dtype::Bool, vec![2], vec![0u8, 1].into()).unwrap();
        assert_eq!(case("", "Not", 1).input(t).run().unwrap()[0].data()[..], [1, 0]);
    }
}
