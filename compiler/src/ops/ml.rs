//! Classical machine learning: the domain `ai.onnx.ml`. Strings become numbers before (`passes/strings.rs`).
//!
//! <https://github.com/onnx/onnx/blob/main/docs/Operators-ml.md>

mod features;
mod linear;
mod tree;

use super::cast::convert_plain;
use super::view::{NodeView, Result, wrong};
use super::{InferCx, OpDef, half, tensor};
use crate::ir::{Dim, TensorType};
use crate::lower::LowerCx;
use kiln_kernels::{Dtype, Operand, PostScores, PostTransform, SecondScore};

const ML: &str = "ai.onnx.ml";

pub(super) static OPS: &[OpDef] = &[
    OpDef::new(ML, "TreeEnsemble", &[5], tree::infer, tree::lower),
    OpDef::new(ML, "TreeEnsembleRegressor", &[1, 3, 5], tree::infer_regressor, tree::lower_regressor),
    OpDef::new(ML, "TreeEnsembleClassifier", &[1, 3, 5], tree::infer_classifier, tree::lower_classifier),
    OpDef::new(ML, "LinearRegressor", &[1], linear::infer_regressor, linear::lower_regressor),
    OpDef::new(ML, "LinearClassifier", &[1], linear::infer_classifier, linear::lower_classifier),
    OpDef::new(ML, "SVMRegressor", &[1], linear::infer_svm_regressor, linear::lower_svm_regressor),
    OpDef::new(ML, "SVMClassifier", &[1], linear::infer_svm_classifier, linear::lower_svm_classifier),
    OpDef::new(ML, "Binarizer", &[1], features::infer_same, features::lower_binarizer),
    OpDef::new(ML, "Imputer", &[1], features::infer_same, features::lower_imputer),
    OpDef::new(ML, "Scaler", &[1], features::infer_f32, features::lower_scaler),
    OpDef::new(ML, "Normalizer", &[1], features::infer_f32, features::lower_normalizer),
    OpDef::new(ML, "FeatureVectorizer", &[1], features::infer_vectorizer, features::lower_vectorizer),
    OpDef::new(ML, "ArrayFeatureExtractor", &[1], features::infer_extractor, features::lower_extractor),
    OpDef::new(ML, "LabelEncoder", &[1, 2, 4], features::infer_label_encoder, features::lower_label_encoder),
    OpDef::new(ML, "OneHotEncoder", &[1], features::infer_one_hot, features::lower_one_hot),
];

/// The types of features.
const FEATURES: [Dtype; 4] = [Dtype::F32, Dtype::F64, Dtype::I64, Dtype::I32];

/// Rows and columns of features: a vector is one row.
fn matrix(ty: &TensorType) -> Result<(Dim, Dim)> {
    match &ty.shape[..] {
        [n] => Ok((Dim::Const(1), n.clone())),
        [rows, n] => Ok((rows.clone(), n.clone())),
        _ => Err(wrong(format!("expected rows of features, found {ty}")).at_input(0)),
    }
}

/// An operand as `f64`.
fn x64(cx: &mut LowerCx<'_>, i: usize) -> Result<Operand<Dim>> {
    let ty = cx.ty(i)?;
    let x = cx.x(i)?;
    if ty.dtype == Dtype::F64 {
        return Ok(x);
    }
    let y = cx.scratch(ty.numel() * Dim::Const(8));
    convert_plain(cx, (ty.dtype, x), (Dtype::F64, y.clone()), &ty.numel())?;
    Ok(y)
}

fn f64_weights(cx: &mut LowerCx<'_>, values: &[f64]) -> Operand<Dim> {
    cx.weights(values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>())
}

fn i32_weights(cx: &mut LowerCx<'_>, values: &[i32]) -> Operand<Dim> {
    cx.weights(values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>())
}

/// Numbers of the attribute `name`, or of the tensor `name_as_tensor`.
fn numbers(cx: &NodeView<'_>, name: &str) -> Result<Option<Vec<f64>>> {
    if let Some(t) = cx.opt_tensor(&format!("{name}_as_tensor"))? {
        return tensor_numbers(t).map(Some).map_err(|e| e.at_attribute(name));
    }
    Ok(cx.opt_floats(name)?.map(|v| v.iter().map(|&x| f64::from(x)).collect()))
}

/// The elements of a constant of numbers.
fn tensor_numbers(t: &crate::ir::Tensor) -> Result<Vec<f64>> {
    if let Some(v) = t.to_f32s() {
        return Ok(v.into_iter().map(f64::from).collect());
    }
    if let Some(v) = t.to_f64s() {
        return Ok(v);
    }
    if t.dtype() == Dtype::F16 {
        let bits = t.data().as_chunks::<2>().0;
        return Ok(bits.iter().map(|b| kiln_kernels::f16::from_bits(u16::from_le_bytes(*b)).into()).collect());
    }
    let ints = t.to_ints().ok_or_else(|| wrong(format!("numbers of type {} are not supported", t.dtype())))?;
    Ok(ints.into_iter().map(|v| v as f64).collect())
}

fn post_transform(cx: &NodeView<'_>) -> Result<PostTransform> {
    Ok(match cx.text("post_transform", "NONE")? {
        "NONE" => PostTransform::None,
        "SOFTMAX" => PostTransform::Softmax,
        "LOGISTIC" => PostTransform::Logistic,
        "SOFTMAX_ZERO" => PostTransform::SoftmaxZero,
        "PROBIT" => PostTransform::Probit,
        other => return Err(wrong(format!("unknown transform \"{other}\"")).at_attribute("post_transform")),
    })
}

/// The classes' labels, which must be integers.
fn labels<'a>(cx: &NodeView<'a>, ints: &str, strings: &str) -> Result<&'a [i64]> {
    if cx.opt_texts(strings)?.is_some_and(|s| !s.is_empty()) {
        return Err(wrong("labels of strings are not supported").at_attribute(strings));
    }
    cx.opt_ints(ints)?.filter(|l| !l.is_empty()).ok_or_else(|| wrong("is missing").at_attribute(ints))
}

/// Result 0: a label per row; result 1: `n` scores per row.
fn set_classes(cx: &mut InferCx<'_>, n: usize) -> Result<()> {
    cx.expect_dtype(0, &FEATURES)?;
    let (rows, _) = matrix(cx.ty(0)?)?;
    cx.set(0, tensor(Dtype::I64, vec![rows.clone()]));
    cx.set(1, tensor(Dtype::F32, vec![rows, Dim::from(n)]));
    Ok(())
}

/// Raw scores, transformed, into result `i`.
fn give_scores(
    cx: &mut LowerCx<'_>,
    i: usize,
    x: Operand<Dim>,
    (rows, n): (Dim, usize),
    post: PostTransform,
    second: SecondScore,
) -> Result<()> {
    if !cx.wants(i) {
        return Ok(());
    }
    let y = half::y(cx, i)?;
    let dtype = half::compute_dtype(cx.out_ty(i)?.dtype);
    cx.call(&[Dtype::F64, dtype], PostScores { x, y: y.at.clone(), rows, n: Dim::from(n), post, second })?;
    y.finish(cx)
}
