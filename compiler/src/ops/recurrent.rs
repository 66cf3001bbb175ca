//! LSTM, GRU, RNN.
//!
//! <https://onnx.ai/onnx/operators/onnx__LSTM.html>, <https://onnx.ai/onnx/operators/onnx__GRU.html>,
//! <https://onnx.ai/onnx/operators/onnx__RNN.html>
//!
//! Each direction is one matrix product over all time steps' inputs and one call that walks the steps. Constant `f32`
//! weights are packed here; others are read as they are.

use super::strided::{StridedCopy, row_major};
use super::view::{NodeView, Result, may_equal, wrong};
use super::{InferCx, OpDef, half, tensor};
use crate::ir::Dim;
use crate::lower::LowerCx;
use kiln_kernels::gemm::{GemmParams, pack_b};
use kiln_kernels::{Activation, BLayout, CellActivation, CellFunction, Dtype, Gemm, Gru, Lstm, MatMul, Operand, Rnn};

pub(super) static OPS: &[OpDef] = &[
    OpDef::new("", "LSTM", &[1, 7, 14, 22], infer, lower).with_flops(flops),
    OpDef::new("", "GRU", &[1, 3, 7, 14, 22], infer, lower).with_flops(flops),
    OpDef::new("", "RNN", &[1, 7, 14, 22], infer, lower).with_flops(flops),
];

/// The extents of a node.
struct Extents {
    n_gates: i64,
    n_directions: i64,
    /// Batch outermost.
    batch_first: bool,
    steps: Dim,
    batch: Dim,
    input: Dim,
    hidden: i64,
}

fn is_lstm(cx: &NodeView<'_>) -> bool {
    cx.node.op == "LSTM"
}

fn extents(cx: &NodeView<'_>) -> Result<Extents> {
    let n_gates = match cx.node.op.as_str() {
        "LSTM" => 4,
        "GRU" => 3,
        _ => 1,
    };
    let n_directions = match cx.text("direction", "forward")?.to_ascii_lowercase().as_str() {
        "forward" | "reverse" => 1,
        "bidirectional" => 2,
        other => return Err(wrong(format!("unknown direction \"{other}\"")).at_attribute("direction")),
    };
    for i in 0..3 {
        cx.expect_rank(i, 3)?;
        half::expect_float(cx, i)?;
        cx.expect_same_dtype(i, 0)?;
    }
    let batch_first = cx.int("layout", 0)? != 0;
    let [a, b, input] = cx.shape(0)? else { return Err(wrong("rank 3")) };
    let (steps, batch) = if batch_first { (b, a) } else { (a, b) };
    let hidden = match (cx.shape(2)?[2].as_const(), cx.opt_int("hidden_size")?) {
        (Some(h), _) => h,
        (None, Some(h)) if (0..1 << 31).contains(&h) => h,
        _ => return Err(wrong("its last extent must be constant, or hidden_size given").at_input(2)),
    };
    if cx.opt_int("hidden_size")?.is_some_and(|h| h != hidden) {
        return Err(
            wrong(format!("{} does not fit a hidden size of {}", cx.ty(2)?, cx.int("hidden_size", 0)?)).at_input(2)
        );
    }
    let e = Extents {
        n_gates,
        n_directions,
        batch_first,
        steps: steps.clone(),
        batch: batch.clone(),
        input: input.clone(),
        hidden,
    };
    for (i, shape) in e.operand_shapes(is_lstm(cx)) {
        let Some(ty) = cx.opt_ty(i)? else { continue };
        if !may_equal(&ty.shape, &shape) {
            return Err(wrong(format!("expected {}, found {ty}", crate::ir::ShapeText(&shape))).at_input(i));
        }
        if i == 4 {
            cx.expect_dtype(4, &[Dtype::I32])?;
        } else {
            cx.expect_same_dtype(i, 0)?;
        }
    }
    Ok(e)
}

impl Extents {
    /// The shapes of the operands from the weights on.
    fn operand_shapes(&self, lstm: bool) -> Vec<(usize, Vec<Dim>)> {
        let (width, hidden, directions) = (self.width(), Dim::Const(self.hidden), Dim::Const(self.n_directions));
        let mut all = vec![
            (1, vec![directions.clone(), width.clone(), self.input.clone()]),
            (2, vec![directions.clone(), width.clone(), hidden.clone()]),
            (3, vec![directions.clone(), width * Dim::Const(2)]),
            (4, vec![self.batch.clone()]),
            (5, self.state_shape()),
        ];
        if lstm {
            all.push((6, self.state_shape()));
            all.push((7, vec![directions, hidden * Dim::Const(3)]));
        }
        all
    }

    fn state_shape(&self) -> Vec<Dim> {
        let (d, h) = (Dim::Const(self.n_directions), Dim::Const(self.hidden));
        if self.batch_first { vec![self.batch.clone(), d, h] } else { vec![d, self.batch.clone(), h] }
    }

    fn y_shape(&self) -> Vec<Dim> {
        let (d, h) = (Dim::Const(self.n_directions), Dim::Const(self.hidden));
        let (t, b) = (self.steps.clone(), self.batch.clone());
        if self.batch_first { vec![b, t, d, h] } else { vec![t, d, b, h] }
    }

    /// Rows of W and R.
    fn width(&self) -> Dim {
        Dim::Const(self.n_gates) * Dim::Const(self.hidden)
    }
}

fn infer(cx: &mut InferCx<'_>) -> Result<()> {
    let e = extents(cx)?;
    activations(cx, &e)?;
    clip(cx)?;
    let dtype = cx.dtype(0)?;
    cx.set(0, tensor(dtype, e.y_shape()));
    cx.set(1, tensor(dtype, e.state_shape()));
    if is_lstm(cx) {
        cx.set(2, tensor(dtype, e.state_shape()));
    }
    Ok(())
}

/// Two operations per weight, step and batch entry.
fn flops(cx: &NodeView<'_>) -> Result<Dim> {
    let e = extents(cx)?;
    let weights = e.width() * (e.input.clone() + Dim::Const(e.hidden)) * Dim::Const(e.n_directions);
    Ok(weights * e.steps * e.batch * Dim::Const(2))
}

/// The bound on what goes into the activations; infinite without one.
fn clip(cx: &NodeView<'_>) -> Result<f32> {
    match cx.opt_float("clip")? {
        None => Ok(f32::INFINITY),
        Some(c) if c > 0.0 => Ok(c),
        Some(c) => Err(wrong(format!("{c} is not positive")).at_attribute("clip")),
    }
}

/// The activations of all directions, with their parameters: those are listed only for functions that have them.
fn activations(cx: &NodeView<'_>, e: &Extents) -> Result<Vec<CellActivation>> {
    use CellFunction as F;
    let defaults: &[&str] = match cx.node.op.as_str() {
        "LSTM" => &["Sigmoid", "Tanh", "Tanh"],
        "GRU" => &["Sigmoid", "Tanh"],
        _ => &["Tanh"],
    };
    let n = defaults.len() * usize::try_from(e.n_directions).unwrap_or(1);
    let names: Vec<String> = match cx.opt_texts("activations")? {
        Some(names) if !names.is_empty() => names,
        _ => (0..n).map(|i| defaults[i % defaults.len()].to_owned()).collect(),
    };
    if names.len() != n {
        return Err(wrong(format!("expected {n} names, found {}", names.len())).at_attribute("activations"));
    }
    let mut alphas = cx.opt_floats("activation_alpha")?.unwrap_or_default().iter().copied();
    let mut betas = cx.opt_floats("activation_beta")?.unwrap_or_default().iter().copied();
    let mut out = Vec::new();
    for name in names {
        let (function, alpha, beta) = match name.to_ascii_lowercase().as_str() {
            "relu" => (F::Relu, None, None),
            "tanh" => (F::Tanh, None, None),
            "sigmoid" => (F::Sigmoid, None, None),
            "affine" => (F::Affine, Some(1.0), Some(0.0)),
            "leakyrelu" => (F::LeakyRelu, Some(0.01), None),
            "thresholdedrelu" => (F::ThresholdedRelu, Some(1.0), None),
            "scaledtanh" => (F::ScaledTanh, Some(1.0), Some(1.0)),
            "hardsigmoid" => (F::HardSigmoid, Some(0.2), Some(0.5)),
            "elu" => (F::Elu, Some(1.0), None),
            "softsign" => (F::Softsign, None, None),
            "softplus" => (F::Softplus, None, None),
            _ => return Err(wrong(format!("unknown activation \"{name}\"")).at_attribute("activations")),
        };
        let take = |given: &mut dyn Iterator<Item = f32>, default: Option<f32>| match default {
            None => 0.0,
            Some(default) => given.next().unwrap_or(default),
        };
        out.push(CellActivation { function, alpha: take(&mut alphas, alpha), beta: take(&mut betas, beta) });
    }
    Ok(out)
}

/// The part of an operand that belongs to direction `d` of `n`, where directions are outermost.
fn of_direction(x: &Operand<Dim>, d: i64, n: i64) -> Result<Operand<Dim>> {
    if n == 1 {
        return Ok(x.clone());
    }
    let bytes = x.bytes.as_const().ok_or_else(|| wrong("the weights' shapes must be constant"))? / n.max(1);
    Ok(Operand::at(x.mem, x.off + u64::try_from(bytes * d).unwrap_or(0), Dim::Const(bytes)))
}

fn usizes<const N: usize>(dims: [&Dim; N]) -> Option<[usize; N]> {
    let mut out = [0; N];
    for (o, d) in out.iter_mut().zip(dims) {
        *o = usize::try_from(d.as_const()?).ok()?;
    }
    Some(out)
}

/// Rows `rows` (of all directions together) of a constant `f32` operand of `columns` columns, packed.
fn packed(cx: &mut LowerCx<'_>, i: usize, first_row: usize, rows: usize, columns: usize) -> Option<Vec<f32>> {
    let values = cx.constant(i)?.to_f32s()?;
    let part = values.get(first_row * columns..(first_row + rows) * columns)?;
    Some(pack_b(part, columns, rows, true))
}

/// The inputs of all steps times W of a direction.
fn input_product(
    cx: &mut LowerCx<'_>,
    e: &Extents,
    d: i64,
    x: &Operand<Dim>,
    w: &Operand<Dim>,
) -> Result<Operand<Dim>> {
    for (i, shape) in e.operand_shapes(is_lstm(&cx.view())) {
        if cx.has(i) {
            let found = cx.shape(i)?;
            cx.expect_equal(found.iter().zip(&shape))?;
        }
    }
    let dtype = half::compute_dtype(cx.dtype(0)?);
    let size = Dim::from(dtype.size_bytes());
    let rows = e.steps.clone() * e.batch.clone();
    let y = cx.scratch(rows.clone() * e.width() * size.clone());
    let [one, zero] = [|| [Dim::Const(1), Dim::Const(1)], || [Dim::Const(0), Dim::Const(0)]];
    if dtype == Dtype::F64 {
        let w = of_direction(w, d, e.n_directions)?;
        let transposed = cx.scratch(w.bytes.clone());
        let dims = vec![e.input.clone(), e.width()];
        let copy = StridedCopy {
            x_start: Dim::Const(0),
            x_strides: vec![Dim::Const(1), e.input.clone()],
            y_start: Dim::Const(0),
            y_strides: row_major(&dims),
            dims,
        };
        copy.lower(cx, dtype, w, transposed.clone())?;
        let d = MatMul {
            a: x.clone(),
            b: transposed,
            c: y.clone(),
            m: rows,
            n: e.width(),
            k: e.input.clone(),
            lda: e.input.clone(),
            ldb: e.width(),
            ldc: e.width(),
            batch: one(),
            a_batch: zero(),
            b_batch: zero(),
            c_batch: zero(),
        };
        cx.call(&[dtype], d)?;
        return Ok(y);
    }
    let width = usize::try_from(e.n_gates * e.hidden).unwrap_or(0);
    let row = width * usize::try_from(d).unwrap_or(0);
    let own = usizes([&e.input]).and_then(|[k]| packed(cx, 1, row, width, k));
    let (b, b_layout, scratch) = match own {
        Some(w) => (cx.f32_weights(&w), BLayout::Packed, None),
        None => {
            let panels = width.div_ceil(16).min(kiln_kernels::gemm::tile::MAX_PANELS);
            let scratch = cx.scratch(Dim::from(panels * 16 * 4) * e.input.clone());
            (of_direction(w, d, e.n_directions)?, BLayout::Transposed, Some(scratch))
        }
    };
    let d = Gemm {
        a: x.clone(),
        b,
        bias: None,
        residual: None,
        c: y.clone(),
        scratch,
        m: rows,
        n: e.width(),
        k: e.input.clone(),
        lda: e.input.clone(),
        ldb: e.input.clone(),
        ldc: e.width(),
        ld_residual: Dim::Const(0),
        batch: one(),
        a_batch: zero(),
        b_batch: zero(),
        c_batch: zero(),
        residual_batch: zero(),
        b_layout,
        activation: Activation::None,
        share: [0, 1],
    };
    cx.call(&[dtype], d)?;
    Ok(y)
}

/// R of a direction, packed if it is constant (GRU's in two parts).
fn recurrent_matrix(cx: &mut LowerCx<'_>, e: &Extents, d: i64, r: &Operand<Dim>) -> Result<(Operand<Dim>, BLayout)> {
    let hidden = usize::try_from(e.hidden).unwrap_or(0);
    let n_gates = usize::try_from(e.n_gates).unwrap_or(0);
    let row = n_gates * hidden * usize::try_from(d).unwrap_or(0);
    let parts: &[usize] = match n_gates {
        3 => &[2, 1],
        _ => &[n_gates],
    };
    let mut all = Some(Vec::new());
    let mut first = row;
    for part in parts {
        let more = packed(cx, 2, first, part * hidden, hidden);
        first += part * hidden;
        all = all.zip(more).map(|(mut all, more)| {
            all.extend(more);
            all
        });
    }
    Ok(match all {
        Some(all) => (cx.f32_weights(&all), BLayout::Packed),
        None => (of_direction(r, d, e.n_directions)?, BLayout::Transposed),
    })
}

fn lower(cx: &mut LowerCx<'_>) -> Result<()> {
    let e = extents(cx)?;
    let activations = activations(cx, &e)?;
    let clip = clip(cx)?;
    let dtype = half::compute_dtype(cx.dtype(0)?);
    let size = Dim::from(dtype.size_bytes());
    let (x, w, r) = (half::x(cx, 0)?, half::x(cx, 1)?, half::x(cx, 2)?);
    let bias = half::opt(cx, 3)?;
    let lens = cx.opt(4)?;
    let initial_h = half::opt(cx, 5)?;
    let (initial_c, peepholes) = if is_lstm(cx) { (half::opt(cx, 6)?, half::opt(cx, 7)?) } else { (None, None) };
    let mut outputs = Vec::new();
    let mut places = Vec::new();
    for (i, shape) in [e.y_shape(), e.state_shape(), e.state_shape()].into_iter().enumerate() {
        let output = if i < 2 || is_lstm(cx) { half::opt_y(cx, i)? } else { None };
        let bytes = shape.into_iter().product::<Dim>() * size.clone();
        places.push(match &output {
            Some(o) => o.at.clone(),
            None => cx.scratch(bytes),
        });
        outputs.push(output);
    }
    let hidden = Dim::Const(e.hidden);
    let directions = Dim::Const(e.n_directions);
    let width = e.width();
    let (gate_step, gate_batch) = if e.batch_first {
        (width.clone(), e.steps.clone() * width.clone())
    } else {
        (e.batch.clone() * width.clone(), width.clone())
    };
    let own_rows = match e.n_gates {
        1 => 1,
        3 => 4,
        _ => 5,
    };
    for d in 0..e.n_directions {
        let gates = input_product(cx, &e, d, &x, &w)?;
        let (r, layout) = recurrent_matrix(cx, &e, d, &r)?;
        let params = GemmParams {
            b_layout: layout,
            ..GemmParams::packed(
                1,
                usize::try_from(e.n_gates * e.hidden).unwrap_or(0),
                usize::try_from(e.hidden).unwrap_or(0),
            )
        };
        let scratch_len = e.batch.clone() * hidden.clone() * Dim::Const(own_rows) + Dim::from(params.scratch_len());
        let scratch = cx.scratch(scratch_len * size.clone());
        let part = |o: &Option<Operand<Dim>>| o.as_ref().map(|o| of_direction(o, d, e.n_directions)).transpose();
        let reverse = d == 1 || cx.text("direction", "forward")?.eq_ignore_ascii_case("reverse");
        let per_direction = activations.len() / usize::try_from(e.n_directions).unwrap_or(1);
        let f = &activations[usize::try_from(d).unwrap_or(0) * per_direction..];
        let d = Dim::Const(d);
        let d_state =
            if e.batch_first { d.clone() * hidden.clone() } else { d.clone() * e.batch.clone() * hidden.clone() };
        let (y_step, y_batch) = if e.batch_first {
            (directions.clone() * hidden.clone(), e.steps.clone() * directions.clone() * hidden.clone())
        } else {
            (directions.clone() * e.batch.clone() * hidden.clone(), hidden.clone())
        };
        let h_batch = if e.batch_first { directions.clone() * hidden.clone() } else { hidden.clone() };
        let (y, y_h, y_c) = (places[0].clone(), places[1].clone(), places[2].clone());
        let (steps, batch) = (e.steps.clone(), e.batch.clone());
        let bias = part(&bias)?;
        macro_rules! descriptor {
            ($name:ident { $($own:tt)* }) => {
                $name {
                    gates, r, bias,
                    initial_h: initial_h.clone(),
                    lens: lens.clone(),
                    y, y_h, scratch, steps, batch,
                    hidden: hidden.clone(),
                    gate_step: gate_step.clone(),
                    gate_batch: gate_batch.clone(),
                    y_start: d_state.clone(),
                    y_step, y_batch,
                    h_start: d_state,
                    h_batch, layout, reverse, clip,
                    f: f[0],
                    $($own)*
                }
            };
        }
        let key = [dtype, Dtype::I32];
        match e.n_gates {
            1 => cx.call(&key, descriptor!(Rnn {}))?,
            3 => {
                let linear_before_reset = cx.int("linear_before_reset", 0)? != 0;
                cx.call(&key, descriptor!(Gru { linear_before_reset, g: f[1] }))?;
            }
            _ => {
                let input_forget = cx.int("input_forget", 0)? != 0;
                let d = descriptor!(Lstm {
                    peepholes: part_of(&peepholes, &e, reverse)?,
                    initial_c: initial_c.clone(),
                    y_c,
                    input_forget,
                    g: f[1],
                    h: f[2],
                });
                cx.call(&key, d)?;
            }
        }
    }
    for output in outputs.into_iter().flatten() {
        output.finish(cx)?;
    }
    Ok(())
}

/// The peepholes of a direction: the second one only where there are two.
fn part_of(p: &Option<Operand<Dim>>, e: &Extents, reverse: bool) -> Result<Option<Operand<Dim>>> {
    let d = i64::from(reverse && e.n_directions == 2);
    p.as_ref().map(|p| of_direction(p, d, e.n_directions)).transpose()
}

#[cfg(test)]
mod tests {
    use crate::ir::{Attr, Tensor};
    use crate::ops::testing::case;

    fn ramp(dims: &[usize], step: usize) -> Tensor {
        let n: usize = dims.iter().product();
        Tensor::from_f32s(dims, &(0..n).map(|i| ((i * step) % 23) as f32 * 0.05 - 0.5).collect::<Vec<_>>())
    }

    fn sigmoid(x: f32) -> f32 {
        1.0 / (1.0 + (-x).exp())
    }

    /// One direction of an LSTM without peepholes over `lens[b]` steps, from the definition.
    fn lstm(
        x: &[f32],
        w: &[f32],
        r: &[f32],
        bias: &[f32],
        [t, b, i, h]: [usize; 4],
        lens: &[usize],
        reverse: bool,
    ) -> Vec<f32> {
        let mut y = vec![0.0; t * b * h];
        for e in 0..b {
            let (mut hs, mut c) = (vec![0.0; h], vec![0.0; h]);
            for s in 0..lens[e] {
                let at = if reverse { lens[e] - 1 - s } else { s };
                let gate = |g: usize, j: usize| {
                    let row = g * h + j;
                    let wx: f32 = (0..i).map(|k| w[row * i + k] * x[(at * b + e) * i + k]).sum();
                    let rh: f32 = (0..h).map(|k| r[row * h + k] * hs[k]).sum();
                    wx + rh + bias[row] + bias[4 * h + row]
                };
                let next: Vec<(f32, f32)> = (0..h)
                    .map(|j| {
                        let cell = sigmoid(gate(2, j)) * c[j] + sigmoid(gate(0, j)) * gate(3, j).tanh();
                        (sigmoid(gate(1, j)) * cell.tanh(), cell)
                    })
                    .collect();
                for (j, (hj, cj)) in next.into_iter().enumerate() {
                    (hs[j], c[j]) = (hj, cj);
                    y[(at * b + e) * h + j] = hj;
                }
            }
        }
        y
    }

    #[test]
    fn lstm_directions_lengths_layouts_and_weights() {
        let [t, b, i, h] = [5, 3, 7, 19];
        let x = ramp(&[t, b, i], 7);
        let (w, r, bias) = (ramp(&[2, 4 * h, i], 5), ramp(&[2, 4 * h, h], 11), ramp(&[2, 8 * h], 3));
        let values = |t: &Tensor| t.to_f32s().unwrap();
        let lens = [5usize, 2, 0];
        let mut want = vec![0.0; t * 2 * b * h];
        for d in 0..2 {
            let half = |v: Vec<f32>| v[v.len() / 2 * d..][..v.len() / 2].to_vec();
            let (w, r, bias) = (half(values(&w)), half(values(&r)), half(values(&bias)));
            let y = lstm(&values(&x), &w, &r, &bias, [t, b, i, h], &lens, d == 1);
            for (n, v) in y.into_iter().enumerate() {
                let (at, e) = (n / (b * h), n % (b * h));
                want[(at * 2 + d) * b * h + e] = v;
            }
        }
        let lens = Tensor::from_i32s(&[3], &[5, 2, 0]);
        for constant in [false, true] {
            let put = |c: crate::ops::testing::Case, t: &Tensor| {
                if constant { c.constant(t.clone()) } else { c.input(t.clone()) }
            };
            let c = case("", "LSTM", 14).input(x.clone());
            let c = put(put(put(c, &w), &r), &bias).input(lens.clone());
            let y = c.attr("direction", Attr::Str(b"bidirectional".to_vec())).outputs(3).run().unwrap();
            let got = values(&y[0]);
            assert!(got.iter().zip(&want).all(|(g, w)| (g - w).abs() < 1e-5), "{got:?} {want:?}");
            // The last states: forward at the last step of each length, backward at step 0.
            let last = values(&y[1]);
            for j in 0..h {
                assert_eq!(last[j], got[(4 * 2 * b) * h + j]);
                assert_eq!(last[(b + 1) * h + j], got[(b + 1) * h + j]);
                assert_eq!(last[2 * h + j], 0.0);
            }
        }
        // Batch first: the same values, transposed.
        let xv = values(&x);
        let mut swapped = vec![0.0; xv.len()];
        for (n, v) in xv.iter().enumerate() {
            swapped[((n / i % b) * t + n / (b * i)) * i + n % i] = *v;
        }
        let c =
            case("", "LSTM", 14).input(Tensor::from_f32s(&[b, t, i], &swapped)).constant(w).constant(r).constant(bias);
        let c = c.input(lens).attr("layout", Attr::Int(1)).attr("direction", Attr::Str(b"bidirectional".to_vec()));
        let y = c.run().unwrap();
        assert_eq!(y[0].dims(), [b, t, 2, h]);
        let got = values(&y[0]);
        for (n, w) in want.iter().enumerate() {
            let (at, d, e, j) = (n / (2 * b * h), n / (b * h) % 2, n / h % b, n % h);
            assert!((got[((e * t + at) * 2 + d) * h + j] - w).abs() < 1e-5);
        }
    }

    #[test]
    fn gru_before_and_after_reset() {
        let (i, h) = (3, 2);
        let x = ramp(&[2, 1, i], 7);
        let (w, r, bias) = (ramp(&[1, 3 * h, i], 5), ramp(&[1, 3 * h, h], 11), ramp(&[1, 6 * h], 3));
        let v = |t: &Tensor| t.to_f32s().unwrap();
        let (xv, wv, rv, bv) = (v(&x), v(&w), v(&r), v(&bias));
        for linear in [0, 1] {
            let mut hs = vec![0.0f32; h];
            for t in 0..2 {
                let wx = |g: usize, j: usize| {
                    (0..i).map(|k| wv[(g * h + j) * i + k] * xv[t * i + k]).sum::<f32>() + bv[g * h + j]
                };
                let rh = |g: usize, j: usize, s: &[f32]| (0..h).map(|k| rv[(g * h + j) * h + k] * s[k]).sum::<f32>();
                let z: Vec<f32> = (0..h).map(|j| sigmoid(wx(0, j) + rh(0, j, &hs) + bv[3 * h + j])).collect();
                let reset: Vec<f32> = (0..h).map(|j| sigmoid(wx(1, j) + rh(1, j, &hs) + bv[4 * h + j])).collect();
                let gated: Vec<f32> = hs.iter().zip(&reset).map(|(a, b)| a * b).collect();
                let next: Vec<f32> = (0..h)
                    .map(|j| {
                        let inner = if linear == 1 {
                            reset[j] * (rh(2, j, &hs) + bv[5 * h + j])
                        } else {
                            rh(2, j, &gated) + bv[5 * h + j]
                        };
                        (1.0 - z[j]) * (wx(2, j) + inner).tanh() + z[j] * hs[j]
                    })
                    .collect();
                hs = next;
            }
            for wide in [false, true] {
                let to = |t: &Tensor| {
                    let values: Vec<f64> = v(t).into_iter().map(f64::from).collect();
                    if wide { Tensor::from_f64s(t.dims(), &values) } else { t.clone() }
                };
                let c = case("", "GRU", 14).input(to(&x)).constant(to(&w)).constant(to(&r)).constant(to(&bias));
                let y = c.attr("linear_before_reset", Attr::Int(linear)).outputs(2).run().unwrap();
                let got: Vec<f32> =
                    y[1].to_f32s().unwrap_or_else(|| y[1].to_f64s().unwrap().iter().map(|&v| v as f32).collect());
                assert!(got.iter().zip(&hs).all(|(g, w)| (g - w).abs() < 1e-6), "{got:?} {hs:?}");
            }
        }
    }

    #[test]
    fn refuses() {
        let node = |w: &[usize]| {
            case("", "RNN", 14).input(ramp(&[2, 1, 3], 1)).constant(ramp(w, 1)).constant(ramp(&[1, 4, 4], 1))
        };
        assert!(node(&[1, 4, 3]).infer().is_ok());
        assert!(node(&[1, 4, 2]).infer().is_err());
        assert!(node(&[2, 4, 3]).infer().is_err());
        assert!(node(&[1, 4, 3]).attr("activations", Attr::Strs(vec![b"Sine".to_vec()])).infer().is_err());
        assert!(node(&[1, 4, 3]).attr("clip", Attr::Float(-1.0)).infer().is_err());
        let lens = node(&[1, 4, 3]).absent().input(Tensor::from_i32s(&[1], &[3]));
        assert!(lens.run().is_err());
    }
}
