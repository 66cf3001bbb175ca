//! LinearAttention.
//!
//! <https://onnx.ai/onnx/operators/onnx__LinearAttention.html>

use super::attention::{expect_equal, scale_of};
use super::view::{NodeView, Result, wrong};
use super::{InferCx, OpDef, half, tensor};
use crate::ir::Dim;
use crate::lower::LowerCx;
use kiln_kernels::{Dtype, LinearAttention};

pub(super) static OPS: &[OpDef] = &[OpDef::new("", "LinearAttention", &[27], infer, lower).with_flops(flops)];

/// The extents of a node.
struct Shapes {
    batch: Dim,
    steps: Dim,
    q_heads: Dim,
    kv_heads: Dim,
    k_size: Dim,
    v_size: Dim,
    /// Whether states decay.
    gated: bool,
    /// Whether the written value is corrected by what the state holds.
    delta: bool,
}

fn shapes(cx: &NodeView<'_>) -> Result<Shapes> {
    for i in 0..3 {
        cx.expect_rank(i, 3)?;
        cx.expect_dtype(i, &[Dtype::F32, Dtype::F16, Dtype::Bf16])?;
    }
    let heads = |name: &str| match cx.opt_int(name)? {
        Some(n) if n > 0 => Ok(n),
        Some(n) => Err(wrong(format!("{n} heads")).at_attribute(name)),
        None => Err(wrong("is missing").at_attribute(name)),
    };
    let (q_heads, kv_heads) = (heads("q_num_heads")?, heads("kv_num_heads")?);
    if q_heads % kv_heads != 0 {
        return Err(wrong(format!("{q_heads} heads of queries do not share {kv_heads}")));
    }
    let (gated, delta) = match cx.text("update_rule", "gated_delta")? {
        "linear" => (false, false),
        "gated" => (true, false),
        "delta" => (false, true),
        "gated_delta" => (true, true),
        other => return Err(wrong(format!("unknown rule \"{other}\"")).at_attribute("update_rule")),
    };
    for (i, needed, what) in [(4, gated, "decays"), (5, delta, "update rates")] {
        if cx.has(i) != needed {
            let verb = if needed { "needs" } else { "takes no" };
            return Err(wrong(format!("this rule {verb} {what}")).at_input(i));
        }
    }
    let [batch, steps, width] = cx.shape(0)? else { return Err(wrong("rank 3")) };
    let k_size = width.floor_div(&Dim::Const(q_heads));
    let v_size = cx.shape(2)?[2].floor_div(&Dim::Const(kv_heads));
    let (q_heads, kv_heads) = (Dim::Const(q_heads), Dim::Const(kv_heads));
    let wanted = [
        (0, vec![batch, steps, width], q_heads.clone() * k_size.clone()),
        (1, vec![batch, steps], kv_heads.clone() * k_size.clone()),
        (2, vec![batch, steps], kv_heads.clone() * v_size.clone()),
    ];
    for (i, outer, last) in &wanted {
        for (a, b) in cx.shape(*i)?.iter().zip(outer) {
            expect_equal("extents", a, b).map_err(|e| e.at_input(*i))?;
        }
        expect_equal("extents", &cx.shape(*i)?[2], last).map_err(|e| e.at_input(*i))?;
    }
    let s = Shapes { batch: batch.clone(), steps: steps.clone(), q_heads, kv_heads, k_size, v_size, gated, delta };
    if let Some(past) = cx.opt_ty(3)? {
        cx.expect_rank(3, 4)?;
        half::expect_one_kernel(cx, &[3])?;
        for (a, b) in past.shape.iter().zip(s.state()) {
            expect_equal("extents", a, &b).map_err(|e| e.at_input(3))?;
        }
    }
    for i in 4..6 {
        if cx.has(i) {
            cx.expect_rank(i, 3)?;
            half::expect_float(cx, i)?;
            half::expect_one_kernel(cx, &[i])?;
        }
    }
    Ok(s)
}

impl Shapes {
    fn state(&self) -> Vec<Dim> {
        vec![self.batch.clone(), self.kv_heads.clone(), self.k_size.clone(), self.v_size.clone()]
    }
}

fn infer(cx: &mut InferCx<'_>) -> Result<()> {
    let s = shapes(cx)?;
    let dtype = cx.dtype(0)?;
    let state_dtype = cx.opt_ty(3)?.map_or(dtype, |t| t.dtype);
    cx.set(0, tensor(dtype, vec![s.batch.clone(), s.steps.clone(), s.q_heads.clone() * s.v_size.clone()]));
    cx.set(1, tensor(state_dtype, s.state()));
    Ok(())
}

fn flops(cx: &NodeView<'_>) -> Result<Dim> {
    let s = shapes(cx)?;
    let state: Dim = s.state().into_iter().product();
    let passes = Dim::Const(2 + i64::from(s.gated) + 2 * i64::from(s.delta));
    let reads = s.batch * s.q_heads * s.k_size * s.v_size * Dim::Const(2);
    Ok((state * passes + reads) * s.steps)
}

fn lower(cx: &mut LowerCx<'_>) -> Result<()> {
    let s = shapes(cx)?;
    let y = half::y(cx, 0)?;
    let state = half::opt_y(cx, 1)?;
    let width =
        |i: usize| Ok::<_, crate::error::CompileError>(cx.opt_ty(i)?.map_or(Dim::Const(0), |t| t.shape[2].clone()));
    let (decay_width, beta_width) = (width(4)?, width(5)?);
    let state_bytes = s.state().into_iter().product::<Dim>() * Dim::Const(4);
    let d = LinearAttention {
        q: half::x(cx, 0)?,
        k: half::x(cx, 1)?,
        v: half::x(cx, 2)?,
        past: half::opt(cx, 3)?,
        decay: half::opt(cx, 4)?,
        beta: half::opt(cx, 5)?,
        y: y.at.clone(),
        state: match &state {
            Some(state) => state.at.clone(),
            None => cx.scratch(state_bytes),
        },
        scratch: cx.scratch(s.v_size.clone() * Dim::Const(4)),
        scale: scale_of(cx, &s.k_size, true)?,
        batch: s.batch,
        steps: s.steps,
        q_heads: s.q_heads,
        kv_heads: s.kv_heads,
        k_size: s.k_size,
        v_size: s.v_size,
        decay_width,
        beta_width,
        delta: s.delta,
    };
    cx.call(&[Dtype::F32], d)?;
    y.finish(cx)?;
    match state {
        Some(state) => state.finish(cx),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use crate::ir::{Attr, Tensor};
    use crate::ops::testing::case;

    #[test]
    fn rules() {
        let t = |dims: &[usize], v: &[f32]| Tensor::from_f32s(dims, v);
        let (q, k, v) = (t(&[1, 2, 1], &[1., 2.]), t(&[1, 2, 1], &[2., 3.]), t(&[1, 2, 1], &[5., 7.]));
        let (decay, beta) = (t(&[1, 2, 1], &[0.0, -2f32.ln()]), t(&[1, 2, 1], &[1.0, 0.5]));
        for (rule, want) in [
            // States 10, 31.
            ("linear", [10., 62.]),
            // 10, then 10/2 + 21.
            ("gated", [10., 52.]),
            // 10, then 10 + 3·(7 - 30)/2.
            ("delta", [10., -49.]),
            // 10, then 5 + 3·(7 - 15)/2.
            ("gated_delta", [10., -14.]),
        ] {
            let mut c = case("", "LinearAttention", 27).input(q.clone()).input(k.clone()).input(v.clone()).absent();
            c = if rule.starts_with("gated") { c.input(decay.clone()) } else { c.absent() };
            if rule.ends_with("delta") {
                c = c.input(beta.clone());
            }
            let c = c.attr("update_rule", Attr::Str(rule.into())).attr("scale", Attr::Float(1.0));
            let c = c.attr("q_num_heads", Attr::Int(1)).attr("kv_num_heads", Attr::Int(1)).outputs(2);
            let y = c.run().unwrap();
            let got = y[0].to_f32s().unwrap();
            assert!(got.iter().zip(want).all(|(g, w): (&f32, f32)| (g - w).abs() < 1e-4), "{rule}: {got:?}");
        }
    }
}
