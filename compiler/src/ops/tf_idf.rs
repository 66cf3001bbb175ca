//! TfIdfVectorizer over integers: a row of items becomes the counts of the n-grams in a pool.
//!
//! The pool is sorted here, so that the kernel finds an n-gram by bisection. Weights belong to n-grams, as the page says.
//! <https://onnx.ai/onnx/operators/onnx__TfIdfVectorizer.html>

use super::view::{NodeView, Result, wrong};
use super::{InferCx, OpDef, tensor};
use crate::ir::Dim;
use crate::lower::LowerCx;
use kiln_kernels::{Dtype, NGrams};

pub(super) static OPS: &[OpDef] = &[OpDef::new("", "TfIdfVectorizer", &[9], infer, lower)];

/// A row of the pool: its items, its coordinate in the result, its weight.
struct Gram<'a> {
    items: &'a [i64],
    slot: i64,
    weight: f32,
}

/// The attributes, checked.
struct Pool<'a> {
    grams: Vec<Gram<'a>>,
    min: usize,
    max: usize,
    width: i64,
    skips: u32,
    once: bool,
}

fn ints<'a>(cx: &NodeView<'a>, name: &str) -> Result<&'a [i64]> {
    cx.opt_ints(name)?.ok_or_else(|| wrong("is missing").at_attribute(name))
}

/// A length or count, of which a few million are enough.
fn size(cx: &NodeView<'_>, name: &str, min: i64) -> Result<u32> {
    let v = cx.opt_int(name)?.ok_or_else(|| wrong("is missing").at_attribute(name))?;
    let fits = (min..1 << 24).contains(&v);
    u32::try_from(v).ok().filter(|_| fits).ok_or_else(|| wrong(format!("{v} is out of range")).at_attribute(name))
}

fn pool<'a>(cx: &NodeView<'a>) -> Result<Pool<'a>> {
    let (use_weights, once) = match cx.text("mode", "")? {
        "TF" => (false, false),
        "IDF" => (true, true),
        "TFIDF" => (true, false),
        other => return Err(wrong(format!("expected TF, IDF or TFIDF, found {other:?}")).at_attribute("mode")),
    };
    let (min, max) = (size(cx, "min_gram_length", 1)? as usize, size(cx, "max_gram_length", 1)? as usize);
    let (slots, starts) = (ints(cx, "ngram_indexes")?, ints(cx, "ngram_counts")?);
    let items = ints(cx, "pool_int64s")?;
    let weights = if use_weights { cx.opt_floats("weights")? } else { None };
    if min > max || max > starts.len() {
        let message = format!("lengths {min} to {max}, the pool has {} kinds", starts.len());
        return Err(wrong(message).at_attribute("max_gram_length"));
    }
    if weights.is_some_and(|w| w.len() != slots.len()) {
        return Err(wrong("is not as long as ngram_indexes").at_attribute("weights"));
    }
    let mut grams = Vec::with_capacity(slots.len());
    for (i, &start) in starts.iter().enumerate() {
        let end = starts.get(i + 1).copied().unwrap_or(items.len() as i64);
        let part = usize::try_from(start).ok().zip(usize::try_from(end).ok()).and_then(|(s, e)| items.get(s..e));
        let part = part.filter(|p| p.len() % (i + 1) == 0);
        let part =
            part.ok_or_else(|| wrong(format!("{starts:?} do not divide the pool")).at_attribute("ngram_counts"))?;
        grams.extend(part.chunks_exact(i + 1).map(|items| Gram { items, slot: 0, weight: 1.0 }));
    }
    if grams.len() != slots.len() || slots.iter().any(|&s| !(0..1 << 31).contains(&s)) {
        return Err(wrong(format!("{} indexes for {} n-grams", slots.len(), grams.len())).at_attribute("ngram_indexes"));
    }
    for (i, gram) in grams.iter_mut().enumerate() {
        gram.slot = slots[i];
        gram.weight = weights.map_or(1.0, |w| w[i]);
    }
    grams.sort_by_key(|g| (g.items.len(), g.items));
    if let Some(twice) = grams.windows(2).find(|pair| pair[0].items == pair[1].items) {
        return Err(wrong(format!("holds {:?} twice", twice[0].items)).at_attribute("pool_int64s"));
    }
    let width = slots.iter().max().map_or(0, |m| m + 1);
    Ok(Pool { grams, min, max, width, skips: size(cx, "max_skip_count", 0)?, once })
}

fn infer(cx: &mut InferCx<'_>) -> Result<()> {
    cx.expect_dtype(0, &[Dtype::I32, Dtype::I64])?;
    if !matches!(cx.rank(0)?, 1 | 2) {
        return Err(wrong(format!("expected rank 1 or 2, found {}", cx.ty(0)?)).at_input(0));
    }
    let width = Dim::Const(pool(cx)?.width);
    let shape = cx.shape(0)?;
    let shape = shape[..shape.len() - 1].iter().cloned().chain([width]).collect();
    cx.set(0, tensor(Dtype::F32, shape));
    Ok(())
}

fn lower(cx: &mut LowerCx<'_>) -> Result<()> {
    let view = cx.view();
    let pool = pool(&view)?;
    let ty = view.ty(0)?;
    let (mut items, mut levels) = (Vec::new(), Vec::new());
    for length in 1..=pool.max {
        let first = pool.grams.partition_point(|g| g.items.len() < length);
        let own = pool.grams[first..].iter().take_while(|g| g.items.len() == length);
        levels.extend([items.len() as i64, first as i64, own.clone().count() as i64]);
        own.for_each(|g| items.extend_from_slice(g.items));
    }
    let d = NGrams {
        x: cx.x(0)?,
        grams: cx.i64_weights(&items),
        levels: cx.i64_weights(&levels),
        slots: cx.i64_weights(&pool.grams.iter().map(|g| g.slot).collect::<Vec<_>>()),
        weights: cx.f32_weights(&pool.grams.iter().map(|g| g.weight).collect::<Vec<_>>()),
        y: cx.y(0)?,
        rows: ty.shape[..ty.rank() - 1].iter().cloned().product(),
        n: ty.shape[ty.rank() - 1].clone(),
        width: Dim::Const(pool.width),
        min: pool.min as u32,
        skips: pool.skips,
        once: pool.once,
    };
    cx.call(&[ty.dtype, Dtype::I64, Dtype::F32], d)
}

#[cfg(test)]
mod tests {
    use crate::ir::{Attr, Tensor};
    use crate::ops::testing::{Case, case};

    /// The page's own pool: 2, 3, 5, 4 alone, and the pairs 5 6, 7 8, 6 7.
    fn node(x: Tensor, mode: &str, lengths: [i64; 2], skips: i64) -> Case {
        case("", "TfIdfVectorizer", 9)
            .input(x)
            .attr("mode", Attr::Str(mode.into()))
            .attr("min_gram_length", Attr::Int(lengths[0]))
            .attr("max_gram_length", Attr::Int(lengths[1]))
            .attr("max_skip_count", Attr::Int(skips))
            .attr("ngram_counts", Attr::Ints(vec![0, 4]))
            .attr("ngram_indexes", Attr::Ints(vec![0, 1, 2, 3, 4, 5, 6]))
            .attr("pool_int64s", Attr::Ints(vec![2, 3, 5, 4, 5, 6, 7, 8, 6, 7]))
    }

    #[test]
    fn counts_with_and_without_skips() {
        let x = Tensor::from_i32s(&[12], &[1, 1, 3, 3, 3, 7, 8, 6, 7, 5, 6, 8]);
        assert_eq!(node(x.clone(), "TF", [2, 2], 0).run_f32(), [0., 0., 0., 0., 1., 1., 1.]);
        assert_eq!(node(x.clone(), "TF", [2, 2], 5).run_f32(), [0., 0., 0., 0., 1., 3., 1.]);
        assert_eq!(node(x, "TF", [1, 2], 5).run_f32(), [0., 3., 1., 0., 1., 3., 1.]);
        let rows = Tensor::from_i64s(&[2, 3], &[3, 3, 2, 5, 6, 7]);
        let y = node(rows, "TF", [1, 2], 0).run().unwrap();
        assert_eq!(y[0].dims(), [2, 7]);
        assert_eq!(y[0].to_f32s().unwrap(), [1., 2., 0., 0., 0., 0., 0., 0., 0., 1., 0., 1., 0., 1.]);
    }

    #[test]
    fn weights() {
        let x = Tensor::from_i64s(&[3], &[3, 3, 2]);
        let weights = || Attr::Floats(vec![0.5, 2.0, 1.0, 1.0, 1.0, 1.0, 1.0]);
        let y = |mode| node(x.clone(), mode, [1, 1], 0).attr("weights", weights()).run_f32();
        assert_eq!(y("TF")[..2], [1., 2.]);
        assert_eq!(y("IDF")[..2], [0.5, 2.]);
        assert_eq!(y("TFIDF")[..2], [0.5, 4.]);
    }

    #[test]
    fn refusals() {
        let x = || Tensor::from_i64s(&[3], &[3, 3, 2]);
        assert!(node(x(), "XX", [1, 1], 0).infer().is_err());
        assert!(node(x(), "TF", [1, 3], 0).infer().is_err());
        assert!(node(x(), "TF", [1, 2], 0).attr("ngram_counts", Attr::Ints(vec![0, 3])).infer().is_err());
        assert!(node(x(), "TF", [1, 2], 0).attr("pool_int64s", Attr::Ints(vec![2; 10])).infer().is_err());
        assert!(node(x(), "TF", [1, 2], 0).attr("ngram_indexes", Attr::Ints(vec![-1; 7])).infer().is_err());
    }
}
