//! Operators on strings: StringConcat, StringSplit, StringNormalizer, RegexFullMatch, and those of Kiln's own domain that
//! comparison, Cast, look-up and movement of strings become (see `passes/strings.rs`).
//!
//! <https://onnx.ai/onnx/operators/onnx__StringConcat.html>, <https://onnx.ai/onnx/operators/onnx__StringSplit.html>,
//! <https://onnx.ai/onnx/operators/onnx__StringNormalizer.html>, <https://onnx.ai/onnx/operators/onnx__RegexFullMatch.html>

use super::found::slot;
use super::view::{NodeView, Result, broadcast, wrong};
use super::{InferCx, OpDef, tensor};
use crate::ir::{Dim, Tensor};
use crate::lower::{LowerCx, object_dims};
use kiln_kernels::{
    AppendElement, CaseChange, Dtype, EmptySequence, FindStrings, MatchStrings, NO_SLOT, NormalizeStrings,
    NumbersToStrings, OBJECT_RANK, OPERAND_SHIFT, SplitStrings, StringConcat, StringEqual, StringsToNumbers,
    TakeStrings,
};
use std::sync::Arc;

const STR: &[Dtype] = &[Dtype::Str];

pub(super) static OPS: &[OpDef] = &[
    OpDef::new("", "StringConcat", &[20], infer_concat, lower_concat),
    OpDef::new("", "StringSplit", &[20], infer_split, lower_split),
    OpDef::new("", "StringNormalizer", &[10], infer_normalizer, lower_normalizer),
    OpDef::new("", "RegexFullMatch", &[20], infer_regex, lower_regex),
    OpDef::new("kiln", "StringEqual", &[1], infer_equal, lower_equal),
    OpDef::new("kiln", "StringIndex", &[1], infer_index, lower_index),
    OpDef::new("kiln", "StringsToNumbers", &[1], infer_numbers, lower_numbers),
    OpDef::new("kiln", "NumbersToStrings", &[1], infer_texts, lower_texts),
    OpDef::new("kiln", "NumberStrings", &[1], infer_numbering, lower_numbering),
    OpDef::new("kiln", "TakeStrings", &[1], infer_take, lower_take),
];

fn infer_concat(cx: &mut InferCx<'_>) -> Result<()> {
    cx.expect_dtype(0, STR)?;
    cx.expect_dtype(1, STR)?;
    let shape = broadcast(&[cx.shape(0)?, cx.shape(1)?])?;
    cx.set(0, tensor(Dtype::Str, shape));
    Ok(())
}

/// The extents of a result, aligned to the right, and the strides by which an operand of this shape is read.
fn strides(shape: &[Dim], result: &[Dim]) -> Result<[Dim; OBJECT_RANK]> {
    object_dims(result)?;
    let mut out = std::array::from_fn(|_| Dim::Const(0));
    let mut stride = Dim::Const(1);
    for (i, d) in shape.iter().enumerate().rev() {
        if !d.is(1) {
            out[OBJECT_RANK - shape.len() + i] = stride.clone();
        }
        stride = stride * d.clone();
    }
    Ok(out)
}

fn aligned_right(result: &[Dim]) -> [Dim; OBJECT_RANK] {
    let lead = OBJECT_RANK.saturating_sub(result.len());
    std::array::from_fn(|i| i.checked_sub(lead).and_then(|i| result.get(i)).cloned().unwrap_or(Dim::Const(1)))
}

fn lower_concat(cx: &mut LowerCx<'_>) -> Result<()> {
    let view = cx.view();
    let shape = view.out_shape(0)?;
    let (a, b) = (cx.object(0)?, cx.object(1)?);
    let d = StringConcat {
        dims: aligned_right(shape),
        a_strides: strides(view.shape(0)?, shape)?,
        b_strides: strides(view.shape(1)?, shape)?,
        rank: shape.len(),
        a,
        b,
        y: cx.object_y(0),
    };
    cx.call(&[], d)
}

fn infer_split(cx: &mut InferCx<'_>) -> Result<()> {
    cx.expect_dtype(0, STR)?;
    if cx.int("maxsplit", 0)? < 0 {
        return Err(wrong("is negative").at_attribute("maxsplit"));
    }
    let mut shape = cx.shape(0)?.to_vec();
    cx.set(1, tensor(Dtype::I64, shape.clone()));
    shape.push(cx.data_dim("substrings", 0, None));
    cx.set(0, tensor(Dtype::Str, shape));
    Ok(())
}

fn lower_split(cx: &mut LowerCx<'_>) -> Result<()> {
    let most = match cx.wants(0) {
        true => slot(cx.out_shape(0)?.last().unwrap_or(&Dim::Const(0)))?,
        false => NO_SLOT,
    };
    let max_splits = cx.opt_int("maxsplit")?.and_then(|n| usize::try_from(n).ok());
    let delimiter = cx.text("delimiter", "")?.as_bytes().to_vec();
    let d = SplitStrings {
        delimiter: cx.weights(delimiter),
        lengths: if cx.wants(1) { Some(cx.y(1)?) } else { None },
        max_splits: max_splits.unwrap_or(u32::MAX as usize),
        most,
        x: cx.object(0)?,
        y: cx.object_y(0),
    };
    cx.call(&[Dtype::U8, Dtype::I64], d)
}

fn infer_normalizer(cx: &mut InferCx<'_>) -> Result<()> {
    cx.expect_dtype(0, STR)?;
    let mut shape = cx.shape(0)?.to_vec();
    let row = shape.len() == 1 || (shape.len() == 2 && shape[0].is(1));
    let Some(last) = shape.last_mut().filter(|_| row) else {
        return Err(wrong(format!("expected [C] or [1,C], found {}", cx.ty(0)?)).at_input(0));
    };
    let n = last.upper().map(|n| n.max(1));
    *last = cx.data_dim("strings", 1, n);
    case_change(cx)?;
    cx.set(0, tensor(Dtype::Str, shape));
    Ok(())
}

fn case_change(cx: &NodeView<'_>) -> Result<CaseChange> {
    match cx.text("case_change_action", "NONE")? {
        "NONE" => Ok(CaseChange::None),
        "LOWER" => Ok(CaseChange::Lower),
        "UPPER" => Ok(CaseChange::Upper),
        other => Err(wrong(format!("unknown action {other:?}")).at_attribute("case_change_action")),
    }
}

/// Strings as bytes for a kernel.
fn encoded(strings: &[String]) -> Result<Vec<u8>> {
    kiln_kernels::encode_strings(strings).ok_or_else(|| wrong("a string is too long"))
}

fn lower_normalizer(cx: &mut LowerCx<'_>) -> Result<()> {
    let stop = encoded(&cx.opt_texts("stopwords")?.unwrap_or_default())?;
    let (dims, rank) = object_dims(cx.shape(0)?)?;
    let count = cx.out_shape(0)?.last().map(slot).transpose()?.unwrap_or(NO_SLOT);
    let d = NormalizeStrings {
        stop: cx.weights(stop),
        dims,
        rank,
        case: case_change(cx)?,
        case_sensitive: cx.int("is_case_sensitive", 0)? != 0,
        count,
        x: cx.object(0)?,
        y: cx.object_y(0),
    };
    cx.call(&[Dtype::U8], d)
}

fn infer_regex(cx: &mut InferCx<'_>) -> Result<()> {
    cx.expect_dtype(0, STR)?;
    let pattern = cx.opt_text("pattern")?.ok_or_else(|| wrong("is missing").at_attribute("pattern"))?;
    if let Some(fault) = kiln_kernels::pattern_fault(pattern) {
        return Err(wrong(format!("{pattern:?}: {fault}")).at_attribute("pattern"));
    }
    let shape = cx.shape(0)?.to_vec();
    cx.set(0, tensor(Dtype::Bool, shape));
    Ok(())
}

fn lower_regex(cx: &mut LowerCx<'_>) -> Result<()> {
    let pattern = cx.text("pattern", "")?.as_bytes().to_vec();
    let d = MatchStrings { pattern: cx.weights(pattern), y: cx.y(0)?, x: cx.object(0)? };
    cx.call(&[Dtype::U8], d)
}

fn infer_equal(cx: &mut InferCx<'_>) -> Result<()> {
    let shape = broadcast(&[cx.shape(0)?, cx.shape(1)?])?;
    cx.set(0, tensor(Dtype::Bool, shape));
    Ok(())
}

fn lower_equal(cx: &mut LowerCx<'_>) -> Result<()> {
    let view = cx.view();
    let shape = view.out_shape(0)?;
    let d = StringEqual {
        y: cx.y(0)?,
        dims: aligned_right(shape),
        a_strides: strides(view.shape(0)?, shape)?,
        b_strides: strides(view.shape(1)?, shape)?,
        a: cx.object(0)?,
        b: cx.object(1)?,
    };
    cx.call(&[Dtype::U8], d)
}

/// Where each string stands in the attribute `keys`; its length where nowhere.
fn infer_index(cx: &mut InferCx<'_>) -> Result<()> {
    cx.expect_dtype(0, STR)?;
    let shape = cx.shape(0)?.to_vec();
    cx.set(0, tensor(Dtype::I64, shape));
    Ok(())
}

fn lower_index(cx: &mut LowerCx<'_>) -> Result<()> {
    let keys = encoded(&cx.opt_texts("keys")?.unwrap_or_default())?;
    let d = FindStrings { keys: cx.weights(keys), y: cx.y(0)?, x: cx.object(0)? };
    cx.call(&[Dtype::U8, Dtype::I64], d)
}

/// The number type that texts are read as and written from.
fn number_type(cx: &NodeView<'_>) -> Result<Dtype> {
    let dtype = Dtype::from_onnx(i32::try_from(cx.int("to", 0)?).unwrap_or(0));
    dtype.ok_or_else(|| wrong("is no type").at_attribute("to"))
}

fn infer_numbers(cx: &mut InferCx<'_>) -> Result<()> {
    let (dtype, shape) = (number_type(cx)?, cx.shape(0)?.to_vec());
    cx.set(0, tensor(dtype, shape));
    Ok(())
}

fn lower_numbers(cx: &mut LowerCx<'_>) -> Result<()> {
    let d = StringsToNumbers { y: cx.y(0)?, x: cx.object(0)? };
    cx.call(&[cx.out_ty(0)?.dtype], d)
}

fn infer_texts(cx: &mut InferCx<'_>) -> Result<()> {
    let shape = cx.shape(0)?.to_vec();
    cx.set(0, tensor(Dtype::Str, shape));
    Ok(())
}

fn lower_texts(cx: &mut LowerCx<'_>) -> Result<()> {
    let ty = cx.ty(0)?.clone();
    let (dims, rank) = object_dims(&ty.shape)?;
    let d = NumbersToStrings { x: cx.x(0)?, n: ty.numel(), dims, rank, y: cx.object_y(0) };
    cx.call(&[ty.dtype], d)
}

/// More strings than this are not numbered.
const MOST_NUMBERED: usize = 1 << 20;

/// The numbers of an operand's strings: what [`TakeStrings`] takes. `operand` says which of its operands it will be.
fn infer_numbering(cx: &mut InferCx<'_>) -> Result<()> {
    let n = cx.ty(0)?.numel().upper().and_then(|n| usize::try_from(n).ok());
    let dims = cx.ty(0)?.const_dims();
    let (Some(n), Some(dims)) = (n.filter(|n| *n <= MOST_NUMBERED), dims) else {
        let message = "the number of strings must be known at compile time to move them";
        return Err(wrong(message).at_input(0));
    };
    let base = cx.int("operand", 0)? << OPERAND_SHIFT;
    let numbers: Vec<i64> = (0..n as i64).map(|i| base + i).collect();
    cx.set_constant(0, Arc::new(Tensor::from_i64s(&dims, &numbers)));
    Ok(())
}

fn lower_numbering(_: &mut LowerCx<'_>) -> Result<()> {
    Err(wrong("numbers of strings are constant (a bug in the compiler)"))
}

/// Operand 0: numbers; the others: strings.
fn infer_take(cx: &mut InferCx<'_>) -> Result<()> {
    cx.expect_dtype(0, &[Dtype::I64])?;
    let shape = cx.shape(0)?.to_vec();
    cx.set(0, tensor(Dtype::Str, shape));
    Ok(())
}

fn lower_take(cx: &mut LowerCx<'_>) -> Result<()> {
    let ty = cx.ty(0)?.clone();
    let (dims, rank) = object_dims(&ty.shape)?;
    let x = if cx.n_inputs() == 2 {
        cx.object(1)?
    } else {
        let all = cx.new_object();
        cx.call(&[], EmptySequence { y: all })?;
        for i in 1..cx.n_inputs() {
            let x = cx.object(i)?;
            cx.call(&[], AppendElement { x, y: all })?;
        }
        all
    };
    let d = TakeStrings { numbers: cx.x(0)?, n: ty.numel(), dims, rank, x, y: cx.object_y(0) };
    cx.call(&[Dtype::I64], d)
}

#[cfg(test)]
mod tests {
    use crate::ir::{Attr, Tensor};
    use crate::ops::testing::case;

    fn strings(dims: &[usize], s: &[&str]) -> Tensor {
        Tensor::from_strings(dims, s).unwrap()
    }

    #[test]
    fn concat_and_equal() {
        let x = strings(&[2, 1], &["a", "b"]);
        let c = case("", "StringConcat", 20).input(x.clone()).constant(strings(&[2], &["x", "y"]));
        assert_eq!(c.run().unwrap()[0], strings(&[2, 2], &["ax", "ay", "bx", "by"]));
        let y = case("", "Equal", 19).input(x).constant(strings(&[2], &["b", "a"])).run().unwrap();
        assert_eq!((y[0].dims(), &y[0].data()[..]), (&[2, 2][..], &[0, 1, 1, 0][..]));
    }

    #[test]
    fn movement() {
        let x = || strings(&[2, 2], &["a", "b", "c", "d"]);
        let y = case("", "Transpose", 13).input(x()).run().unwrap();
        assert_eq!(y[0], strings(&[2, 2], &["a", "c", "b", "d"]));
        let y = case("", "Gather", 13).input(x()).input(Tensor::from_i64s(&[1], &[-1])).run().unwrap();
        assert_eq!(y[0], strings(&[1, 2], &["c", "d"]));
        let c = case("", "Concat", 13).input(x()).constant(strings(&[1, 2], &["e", "f"])).attr("axis", Attr::Int(0));
        assert_eq!(c.run().unwrap()[0], strings(&[3, 2], &["a", "b", "c", "d", "e", "f"]));
        let condition = Tensor::new(kiln_kernels::Dtype::Bool, vec![2], vec![1, 0].into()).unwrap();
        let y = case("", "Where", 16).input(condition).input(x()).input(strings(&[], &["-"])).run().unwrap();
        assert_eq!(y[0], strings(&[2, 2], &["a", "-", "c", "-"]));
        let bad = case("", "Gather", 13).input(x()).input(Tensor::from_i64s(&[1], &[2]));
        assert!(bad.run().is_err());
    }

    #[test]
    fn cast_there_and_back() {
        let to = |t: i64| Attr::Int(t);
        let x = Tensor::from_f32s(&[3], &[0.5, -2.0, f32::INFINITY]);
        let y = case("", "Cast", 13).input(x.clone()).attr("to", to(8)).run().unwrap();
        assert_eq!(y[0], strings(&[3], &["0.5", "-2", "INF"]));
        assert_eq!(case("", "Cast", 13).input(y[0].clone()).attr("to", to(1)).run().unwrap()[0], x);
        let ints = case("", "Cast", 13).input(strings(&[2], &["7", "-1e2"])).attr("to", to(6)).run().unwrap();
        assert_eq!(ints[0], Tensor::from_i32s(&[2], &[7, -100]));
        assert!(case("", "Cast", 13).input(strings(&[1], &["x"])).attr("to", to(1)).run().is_err());
    }

    #[test]
    fn labels_of_strings() {
        let texts = |s: &[&str]| Attr::Strs(s.iter().map(|s| s.as_bytes().to_vec()).collect());
        let c = case("ai.onnx.ml", "LabelEncoder", 4).input(strings(&[3], &["b", "x", "a"]));
        let c = c.attr("keys_strings", texts(&["a", "b"]));
        let y = c.attr("values_strings", texts(&["one", "two"])).attr("default_string", Attr::Str(b"?".to_vec()));
        assert_eq!(y.run().unwrap()[0], strings(&[3], &["two", "?", "one"]));
        let c = case("ai.onnx.ml", "LabelEncoder", 4).input(Tensor::from_i64s(&[2], &[5, 9]));
        let c = c.attr("keys_int64s", Attr::Ints(vec![9])).attr("values_strings", texts(&["nine"]));
        assert_eq!(c.run().unwrap()[0], strings(&[2], &["_Unused", "nine"]));
    }

    #[test]
    fn refusals() {
        let x = || strings(&[2, 2], &["a", "b", "c", "d"]);
        assert!(case("", "Relu", 14).input(x()).run().is_err());
        assert!(case("", "StringNormalizer", 10).input(x()).run().is_err());
        let c = case("", "RegexFullMatch", 20).input(x()).attr("pattern", Attr::Str(b"(a".to_vec()));
        assert!(c.infer().unwrap_err().to_string().contains("pattern"));
    }
}
