//! Binarizer, Imputer, Scaler, Normalizer, FeatureVectorizer, ArrayFeatureExtractor, LabelEncoder, OneHotEncoder.

use super::super::cast::convert_plain;
use super::super::strided::StridedCopy;
use super::super::view::{NodeView, Result, wrong};
use super::super::{InferCx, tensor};
use super::{FEATURES, f64_weights, numbers, tensor_numbers, x64};
use crate::ir::{Dim, Tensor};
use crate::lower::{LowerCx, width_of};
use kiln_kernels::{
    Binarize, Dtype, Impute, LookUp, NormalizeRows, OneHotCategories, PickColumns, RowNorm, ScaleFeatures,
};

pub(super) fn infer_same(cx: &mut InferCx<'_>) -> Result<()> {
    cx.expect_dtype(0, &FEATURES)?;
    cx.same_as_input()
}

pub(super) fn infer_f32(cx: &mut InferCx<'_>) -> Result<()> {
    cx.expect_dtype(0, &FEATURES)?;
    let shape = cx.shape(0)?.to_vec();
    cx.set(0, tensor(Dtype::F32, shape));
    Ok(())
}

/// The last extent.
fn columns(cx: &NodeView<'_>) -> Result<Dim> {
    Ok(cx.shape(0)?.last().cloned().unwrap_or(Dim::Const(1)))
}

pub(super) fn lower_binarizer(cx: &mut LowerCx<'_>) -> Result<()> {
    let (x, y) = (cx.x(0)?, cx.y(0)?);
    let threshold = cx.float("threshold", 0.0)?;
    let dtype = cx.dtype(0)?;
    cx.call(&[dtype], Binarize { x, y, threshold })
}

pub(super) fn lower_imputer(cx: &mut LowerCx<'_>) -> Result<()> {
    let dtype = cx.dtype(0)?;
    let (replaced, values) = if dtype.is_int() {
        let values = cx.opt_ints("imputed_value_int64s")?.unwrap_or_default();
        (vec![cx.int("replaced_value_int64", 0)?], values.to_vec())
    } else {
        (Vec::new(), Vec::new())
    };
    let floats = cx.opt_floats("imputed_value_floats")?.unwrap_or_default();
    let replaced_float = cx.float("replaced_value_float", 0.0)?;
    let n_values = if dtype.is_int() { values.len() } else { floats.len() };
    if n_values == 0 || (n_values != 1 && columns(cx)?.as_const().is_some_and(|c| c as usize != n_values)) {
        return Err(wrong(format!("{n_values} values for {} columns", columns(cx)?)));
    }
    let bytes = |ints: &[i64], floats: &[f32]| -> Vec<u8> {
        match dtype {
            Dtype::I64 => ints.iter().flat_map(|v| v.to_le_bytes()).collect(),
            Dtype::I32 => ints.iter().flat_map(|&v| (v as i32).to_le_bytes()).collect(),
            Dtype::F64 => floats.iter().flat_map(|&v| f64::from(v).to_le_bytes()).collect(),
            _ => floats.iter().flat_map(|v| v.to_le_bytes()).collect(),
        }
    };
    let d = Impute {
        x: cx.x(0)?,
        replaced: cx.weights(bytes(&replaced, &[replaced_float])),
        values: cx.weights(bytes(&values, floats)),
        y: cx.y(0)?,
        n: columns(cx)?,
    };
    cx.call(&[dtype], d)
}

pub(super) fn lower_scaler(cx: &mut LowerCx<'_>) -> Result<()> {
    let list = |name: &str, default: f64| {
        Ok::<_, crate::error::CompileError>(numbers(cx, name)?.filter(|v| !v.is_empty()).unwrap_or(vec![default]))
    };
    let (offset, scale) = (list("offset", 0.0)?, list("scale", 1.0)?);
    let d = ScaleFeatures {
        x: x64(cx, 0)?,
        offset: f64_weights(cx, &offset),
        scale: f64_weights(cx, &scale),
        y: cx.y(0)?,
        n: columns(cx)?,
    };
    cx.call(&[Dtype::F64, Dtype::F32], d)
}

pub(super) fn lower_normalizer(cx: &mut LowerCx<'_>) -> Result<()> {
    let norm = match cx.text("norm", "MAX")? {
        "MAX" => RowNorm::Max,
        "L1" => RowNorm::L1,
        "L2" => RowNorm::L2,
        other => return Err(wrong(format!("unknown norm \"{other}\"")).at_attribute("norm")),
    };
    let d = NormalizeRows { x: x64(cx, 0)?, y: cx.y(0)?, n: columns(cx)?, norm };
    cx.call(&[Dtype::F64, Dtype::F32], d)
}

/// For every operand, how many of its columns there are and how many are wanted.
fn widths(cx: &NodeView<'_>) -> Result<Vec<(i64, i64)>> {
    let wanted = cx.opt_ints("inputdimensions")?.unwrap_or_default();
    (0..cx.n_inputs())
        .map(|i| {
            cx.expect_dtype(i, &FEATURES)?;
            let own = match &cx.shape(i)?[1..] {
                [] => Some(1),
                [n] => n.as_const(),
                _ => None,
            };
            let own =
                own.ok_or_else(|| wrong(format!("expected rows of features, found {:?}", cx.ty(i))).at_input(i))?;
            Ok((own, wanted.get(i).copied().filter(|&w| w >= 0).unwrap_or(own)))
        })
        .collect()
}

pub(super) fn infer_vectorizer(cx: &mut InferCx<'_>) -> Result<()> {
    for i in 0..cx.n_inputs() {
        if cx.rank(i)? == 0 {
            return Err(wrong("a scalar has no rows").at_input(i));
        }
    }
    let n: i64 = widths(cx)?.iter().fold(0, |n, w| n.saturating_add(w.1));
    let rows = cx.shape(0)?[0].clone();
    cx.set(0, tensor(Dtype::F32, vec![rows, Dim::Const(n)]));
    Ok(())
}

/// Columns past an operand's own are zero.
pub(super) fn lower_vectorizer(cx: &mut LowerCx<'_>) -> Result<()> {
    let widths = widths(cx)?;
    let y = cx.y(0)?;
    let rows = cx.shape(0)?[0].clone();
    let total: i64 = widths.iter().map(|w| w.1).sum();
    let mut start = 0;
    for (i, &(own, wanted)) in widths.iter().enumerate() {
        let ty = cx.ty(i)?;
        let mut x = cx.x(i)?;
        if ty.dtype != Dtype::F32 {
            let narrow = cx.scratch(ty.numel() * Dim::Const(4));
            convert_plain(cx, (ty.dtype, x), (Dtype::F32, narrow.clone()), &ty.numel())?;
            x = narrow;
        }
        let zeros = cx.f32_weights(&[0.0]);
        let mut copy = |x, n: i64, at: i64, strides: [i64; 2]| {
            StridedCopy {
                dims: vec![rows.clone(), Dim::Const(n)],
                x_start: Dim::Const(0),
                x_strides: strides.map(Dim::Const).to_vec(),
                y_start: Dim::Const(at),
                y_strides: vec![Dim::Const(total), Dim::Const(1)],
            }
            .lower(cx, Dtype::F32, x, y.clone())
        };
        copy(x, own.min(wanted), start, [own, 1])?;
        if wanted > own {
            copy(zeros, wanted - own, start + own, [0, 0])?;
        }
        start += wanted;
    }
    Ok(())
}

pub(super) fn infer_extractor(cx: &mut InferCx<'_>) -> Result<()> {
    cx.expect_dtype(0, &FEATURES)?;
    cx.expect_dtype(1, &[Dtype::I64])?;
    let x = cx.ty(0)?;
    let n = cx.ty(1)?.numel();
    let mut shape = match &x.shape[..] {
        [] => return Err(wrong("a scalar has no columns").at_input(0)),
        [_] => vec![Dim::Const(1)],
        [outer @ .., _] => outer.to_vec(),
    };
    shape.push(n);
    let dtype = x.dtype;
    cx.set(0, tensor(dtype, shape));
    Ok(())
}

pub(super) fn lower_extractor(cx: &mut LowerCx<'_>) -> Result<()> {
    let shape = cx.shape(0)?;
    let rows = shape[..shape.len() - 1].iter().cloned().product();
    let d = PickColumns { x: cx.x(0)?, indices: cx.x(1)?, y: cx.y(0)?, rows, n: columns(cx)? };
    let width = width_of(cx.dtype(0)?)?;
    cx.call(&[width, Dtype::I64], d)
}

/// A look-up table: keys, then values with the default at the end.
struct Table {
    keys: Tensor,
    values: Tensor,
}

/// Keys or values by any of their attributes.
fn column(cx: &NodeView<'_>, part: &str) -> Result<Tensor> {
    if let Some(t) = cx.opt_tensor(&format!("{part}_tensor"))? {
        return Ok((**t).clone());
    }
    if let Some(v) = cx.opt_ints(&format!("{part}_int64s"))?.filter(|v| !v.is_empty()) {
        return Ok(Tensor::from_i64s(&[v.len()], v));
    }
    if let Some(v) = cx.opt_floats(&format!("{part}_floats"))?.filter(|v| !v.is_empty()) {
        return Ok(Tensor::from_f32s(&[v.len()], v));
    }
    Err(wrong(format!("{part} of strings, or none, are not supported")))
}

fn table(cx: &NodeView<'_>) -> Result<Table> {
    if cx.version() < 2 {
        return Err(wrong("maps from and to strings are not supported"));
    }
    let (keys, values) = (column(cx, "keys")?, column(cx, "values")?);
    if keys.numel() != values.numel() || keys.dtype() != cx.dtype(0)? {
        return Err(wrong(format!("{keys:?} to {values:?} for {}", cx.ty(0)?)));
    }
    let default: Vec<u8> = match (cx.opt_tensor("default_tensor")?, values.dtype()) {
        (Some(t), dtype) if t.dtype() == dtype && t.numel() == 1 => t.data().to_vec(),
        (Some(t), _) => return Err(wrong(format!("{t:?} is no default of {values:?}")).at_attribute("default_tensor")),
        (None, Dtype::I64) => cx.int("default_int64", -1)?.to_le_bytes().to_vec(),
        (None, Dtype::F32) => cx.float("default_float", -0.0)?.to_le_bytes().to_vec(),
        (None, Dtype::F64) => (-0.0f64).to_le_bytes().to_vec(),
        (None, dtype) => (-1i64).to_le_bytes()[..dtype.size_bytes()].to_vec(),
    };
    let data = [&values.data()[..], &default].concat();
    let values = Tensor::new(values.dtype(), vec![values.numel() + 1], data.into());
    Ok(Table { keys, values: values.ok_or_else(|| wrong("a default of another size"))? })
}

pub(super) fn infer_label_encoder(cx: &mut InferCx<'_>) -> Result<()> {
    let dtype = table(cx)?.values.dtype();
    let shape = cx.shape(0)?.to_vec();
    cx.set(0, tensor(dtype, shape));
    Ok(())
}

pub(super) fn lower_label_encoder(cx: &mut LowerCx<'_>) -> Result<()> {
    let t = table(cx)?;
    let key = [t.keys.dtype(), t.values.dtype()];
    let d = LookUp {
        x: cx.x(0)?,
        keys: cx.weights(t.keys.data().clone()),
        values: cx.weights(t.values.data().clone()),
        y: cx.y(0)?,
    };
    cx.call(&key, d)
}

fn categories<'a>(cx: &NodeView<'a>) -> Result<&'a [i64]> {
    cx.opt_ints("cats_int64s")?
        .filter(|c| !c.is_empty())
        .ok_or_else(|| wrong("categories of strings, or none, are not supported").at_attribute("cats_int64s"))
}

pub(super) fn infer_one_hot(cx: &mut InferCx<'_>) -> Result<()> {
    cx.expect_dtype(0, &FEATURES)?;
    let mut shape = cx.shape(0)?.to_vec();
    shape.push(Dim::from(categories(cx)?.len()));
    cx.set(0, tensor(Dtype::F32, shape));
    Ok(())
}

pub(super) fn lower_one_hot(cx: &mut LowerCx<'_>) -> Result<()> {
    let t = Tensor::from_i64s(&[categories(cx)?.len()], categories(cx)?);
    let categories = tensor_numbers(&t)?;
    let strict = cx.int("zeros", 1)? == 0;
    let d = OneHotCategories { x: x64(cx, 0)?, categories: f64_weights(cx, &categories), y: cx.y(0)?, strict };
    cx.call(&[Dtype::F64, Dtype::F32], d)
}

#[cfg(test)]
mod tests {
    use crate::ir::{Attr, Tensor};
    use crate::ops::testing::{Case, case};

    fn ml(op: &str, version: i64, dims: &[usize], x: &[f32]) -> Case {
        case("ai.onnx.ml", op, version).input(Tensor::from_f32s(dims, x))
    }

    #[test]
    fn maps_of_features() {
        let x = [1., -2., 0., 3.];
        assert_eq!(ml("Binarizer", 1, &[2, 2], &x).attr("threshold", Attr::Float(0.5)).run_f32(), [1., 0., 0., 1.]);
        let node = ml("Scaler", 1, &[2, 2], &x).attr("offset", Attr::Floats(vec![1., 0.]));
        assert_eq!(node.attr("scale", Attr::Floats(vec![2.])).run_f32(), [0., -4., -2., 6.]);
        for (norm, want) in [("MAX", [0.5, -1., 0., 1.]), ("L1", [1. / 3., -2. / 3., 0., 1.])] {
            assert_eq!(ml("Normalizer", 1, &[2, 2], &x).attr("norm", Attr::Str(norm.into())).run_f32(), want);
        }
        let node = ml("Imputer", 1, &[2, 2], &[1., f32::NAN, f32::NAN, 3.]);
        let node = node.attr("replaced_value_float", Attr::Float(f32::NAN));
        assert_eq!(node.attr("imputed_value_floats", Attr::Floats(vec![7., 8.])).run_f32(), [1., 8., 7., 3.]);
        let node = ml("OneHotEncoder", 1, &[2], &[5., 9.]).attr("cats_int64s", Attr::Ints(vec![4, 5]));
        assert_eq!(node.run_f32(), [0., 1., 0., 0.]);
        let node = ml("FeatureVectorizer", 1, &[2, 2], &x).input(Tensor::from_i64s(&[2], &[5, 6]));
        let node = node.attr("inputdimensions", Attr::Ints(vec![1, 2]));
        assert_eq!(node.run_f32(), [1., 5., 0., 0., 6., 0.]);
        let node = ml("ArrayFeatureExtractor", 1, &[2, 2], &x).input(Tensor::from_i64s(&[1], &[1]));
        assert_eq!(node.run_f32(), [-2., 3.]);
    }

    #[test]
    fn labels_of_numbers() {
        let node =
            ml("LabelEncoder", 2, &[3], &[1., f32::NAN, 4.]).attr("keys_floats", Attr::Floats(vec![f32::NAN, 1.]));
        let y = node.attr("values_int64s", Attr::Ints(vec![7, 8])).run().unwrap();
        assert_eq!(y[0].to_i64s().unwrap(), [8, 7, -1]);
    }
}
