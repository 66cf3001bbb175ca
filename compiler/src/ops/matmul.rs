//! Matrix products: MatMul, Gemm, and the fused form that passes make (operands and result permuted, bias, residual,
//! activation).
//!
//! <https://onnx.ai/onnx/operators/onnx__MatMul.html>, `onnx__Gemm.html`; FusedMatMul:
//! <https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md>

use super::broadcast::stride;
use super::strided::{StridedCopy, row_major};
use super::view::{NodeView, Result, broadcast, resolve_axes, wrong};
use super::{InferCx, OpDef, half, tensor};
use crate::error::{CompileError, Stage};
use crate::ir::{Dim, Layout, TensorType};
use crate::lower::LowerCx;
use kiln_kernels::{Activation, BLayout, Dtype, Gemm, MatMul, Operand, ScaleAdd};

pub(super) static OPS: &[OpDef] = &[
    OpDef::new("", "MatMul", &[1, 9, 13], infer_matmul, lower_matmul).with_flops(flops),
    OpDef::new("kiln", "MatMul", &[1], infer_matmul, lower_matmul).with_flops(flops),
    OpDef::new("com.microsoft", "FusedMatMul", &[1], infer_matmul, lower_fused_matmul).with_flops(flops),
    OpDef::new("", "Gemm", &[1, 6, 7, 9, 11, 13], infer_gemm, lower_gemm).with_flops(flops),
];

const TYPES: &[Dtype] =
    &[Dtype::F32, Dtype::F64, Dtype::F16, Dtype::Bf16, Dtype::I32, Dtype::I64, Dtype::U32, Dtype::U64];

/// The permutation applied to an operand before the product: an INTS attribute, or transA/transB, or none.
fn operand_perm(cx: &NodeView<'_>, i: usize) -> Result<Vec<usize>> {
    let rank = cx.rank(i)?;
    let (name, trans, trans_batch) =
        if i == 0 { ("perm_a", "transA", "transBatchA") } else { ("perm_b", "transB", "transBatchB") };
    if let Some(p) = cx.opt_ints(name)? {
        if p.len() != rank {
            return Err(wrong("does not fit the operand").at_attribute(name));
        }
        return resolve_axes(p, rank);
    }
    let mut perm: Vec<usize> = (0..rank).collect();
    if cx.node.op == "MatMul" || rank < 2 {
        return Ok(perm);
    }
    if cx.int(trans_batch, 0)? != 0 {
        // [d0, batch…, x, y] read as [batch…, d0, y]: the first axis takes the place before the last.
        perm.remove(0);
        perm.insert(rank - 2, 0);
    }
    if cx.int(trans, 0)? != 0 {
        perm.swap(rank - 2, rank - 1);
    }
    Ok(perm)
}

/// Extents and strides of an operand as it enters the product.
fn permuted(ty: &TensorType, layout: Layout, perm: &[usize]) -> (Vec<Dim>, Vec<Dim>) {
    let strides = row_major(&ty.physical_shape(layout));
    (perm.iter().map(|&a| ty.shape[a].clone()).collect(), perm.iter().map(|&a| strides[a].clone()).collect())
}

/// A product with all operands as matrices: extents before the result is permuted.
struct Product {
    batch: Vec<Dim>,
    m: Dim,
    n: Dim,
    k: Dim,
    /// Shape of the result, its vector axes dropped.
    shape: Vec<Dim>,
}

fn product(cx: &NodeView<'_>) -> Result<Product> {
    let (a, b) = (cx.ty(0)?, cx.ty(1)?);
    if a.rank() == 0 || b.rank() == 0 {
        return Err(wrong(format!("cannot multiply {a} and {b} as matrices")));
    }
    let (a_shape, _) = permuted(a, Layout::Plain, &operand_perm(cx, 0)?);
    let (b_shape, _) = permuted(b, Layout::Plain, &operand_perm(cx, 1)?);
    let (mut a_dims, mut b_dims) = (a_shape, b_shape);
    let (a_vector, b_vector) = (a_dims.len() == 1, b_dims.len() == 1);
    if a_vector {
        a_dims.insert(0, Dim::Const(1));
    }
    if b_vector {
        b_dims.push(Dim::Const(1));
    }
    let (ra, rb) = (a_dims.len(), b_dims.len());
    let (mut k, k_b) = (a_dims[ra - 1].clone(), b_dims[rb - 2].clone());
    if k != k_b && k.as_const().is_some() && k_b.as_const().is_some() {
        return Err(wrong(format!("inner extents {k} and {k_b} of {a} and {b} differ")));
    }
    if k.as_const().is_none() && k_b.as_const().is_some() {
        k = k_b;
    }
    let batch = broadcast(&[&a_dims[..ra - 2], &b_dims[..rb - 2]])?;
    let (m, n) = (a_dims[ra - 2].clone(), b_dims[rb - 1].clone());
    let mut shape = batch.clone();
    if !a_vector {
        shape.push(m.clone());
    }
    if !b_vector {
        shape.push(n.clone());
    }
    Ok(Product { batch, m, n, k, shape })
}

fn infer_matmul(cx: &mut InferCx<'_>) -> Result<()> {
    cx.expect_dtype(0, TYPES)?;
    cx.expect_same_dtype(1, 0)?;
    let p = product(cx)?;
    let shape = match cx.opt_ints("perm_y")? {
        None => p.shape,
        Some(perm) => resolve_axes(perm, p.shape.len())?.into_iter().map(|a| p.shape[a].clone()).collect(),
    };
    let dtype = cx.dtype(0)?;
    cx.set(0, tensor(dtype, shape));
    Ok(())
}

/// `2·B·M·N·K`
fn flops(cx: &NodeView<'_>) -> Result<Dim> {
    let p = product(cx)?;
    Ok(Dim::Const(2) * p.batch.into_iter().product::<Dim>() * p.m * p.n * p.k)
}

/// One level of batch: extent and the strides of a, b and the result.
#[derive(Clone)]
struct Level {
    n: Dim,
    strides: [Dim; 3],
}

/// Joins neighbouring levels that every operand steps through evenly; drops extents of 1.
fn merge_levels(levels: Vec<Level>) -> Vec<Level> {
    let mut out: Vec<Level> = Vec::new();
    for level in levels.into_iter().filter(|l| !l.n.is(1)) {
        match out.last_mut() {
            Some(outer) if (0..3).all(|i| outer.strides[i] == level.strides[i].clone() * level.n.clone()) => {
                outer.n = outer.n.clone() * level.n;
                outer.strides = level.strides;
            }
            _ => out.push(level),
        }
    }
    out
}

/// A matrix in memory: row and column strides in elements.
struct Matrix {
    at: Operand<Dim>,
    row: Dim,
    column: Dim,
}

/// What surrounds a product.
struct Epilogue {
    bias: Option<Operand<Dim>>,
    residual: Option<Operand<Dim>>,
    activation: Activation,
}

fn lower_matmul(cx: &mut LowerCx<'_>) -> Result<()> {
    let epilogue = Epilogue { bias: cx.opt(2)?, residual: cx.opt(3)?, activation: cx.view().activation() };
    let y = half::y(cx, 0)?;
    multiply(cx, y.at.clone(), epilogue)?;
    y.finish(cx)
}

/// The scaled product of FusedMatMul.
fn lower_fused_matmul(cx: &mut LowerCx<'_>) -> Result<()> {
    let view = cx.view();
    let y = half::y(cx, 0)?;
    let alpha = view.float("alpha", 1.0)?;
    let plain = || Epilogue { bias: None, residual: None, activation: Activation::None };
    if alpha == 1.0 {
        multiply(cx, y.at.clone(), plain())?;
        return y.finish(cx);
    }
    let ty = view.out_ty(0)?;
    let dtype = half::compute_dtype(ty.dtype);
    let x = cx.scratch(ty.numel() * Dim::from(dtype.size_bytes()));
    multiply(cx, x.clone(), plain())?;
    let (m, n, zero) = (Dim::Const(1), ty.numel(), Dim::Const(0));
    let scale = ScaleAdd { x, c: None, y: y.at.clone(), m, n, c_row: zero.clone(), c_column: zero, alpha, beta: 0.0 };
    cx.call(&[dtype], scale)?;
    y.finish(cx)
}

/// Adds the calls that compute the node's product into `y`.
fn multiply(cx: &mut LowerCx<'_>, y: Operand<Dim>, epilogue: Epilogue) -> Result<()> {
    let view = cx.view();
    let (a_ty, b_ty) = (view.ty(0)?, view.ty(1)?);
    let dtype = half::compute_dtype(a_ty.dtype);
    let p = product(&view)?;
    let matrix_strides = |ty: &TensorType, i: usize| -> Result<(Vec<Dim>, Vec<Dim>)> {
        let (mut dims, mut strides) = permuted(ty, view.layout(i)?, &operand_perm(&view, i)?);
        if dims.len() == 1 {
            // A vector: one row on the left, one column on the right.
            let at = if i == 0 { 0 } else { 1 };
            dims.insert(at, Dim::Const(1));
            strides.insert(at, Dim::Const(0));
        }
        Ok((dims, strides))
    };
    let (a_dims, a_strides) = matrix_strides(a_ty, 0)?;
    let (b_dims, b_strides) = matrix_strides(b_ty, 1)?;
    let (ra, rb, rank) = (a_dims.len(), b_dims.len(), p.batch.len());
    cx.expect_equal([(&a_dims[ra - 1], &p.k), (&b_dims[rb - 2], &p.k)])?;
    cx.expect_broadcast(&a_dims[..ra - 2], &p.batch)?;
    cx.expect_broadcast(&b_dims[..rb - 2], &p.batch)?;
    // Where the result's axes lie: the product's shape, permuted, is what is stored.
    let stored = match view.opt_ints("perm_y")? {
        None => row_major(&p.shape),
        Some(perm) => {
            let perm = resolve_axes(perm, p.shape.len())?;
            let strides = row_major(&perm.iter().map(|&a| p.shape[a].clone()).collect::<Vec<_>>());
            let mut stored = vec![Dim::Const(0); perm.len()];
            for (s, &axis) in strides.into_iter().zip(&perm) {
                stored[axis] = s;
            }
            stored
        }
    };
    let a_vector = a_ty.rank() == 1;
    let b_vector = b_ty.rank() == 1;
    let y_row = if a_vector { Dim::Const(0) } else { stored[rank].clone() };
    let y_column = if b_vector { Dim::Const(1) } else { stored[rank + usize::from(!a_vector)].clone() };
    let level = |i: usize| {
        let of = |dims: &[Dim], strides: &[Dim], r: usize| {
            (i + r).checked_sub(rank + 2).map_or(Dim::Const(0), |j| stride(&strides[j], &dims[j], &p.batch[i]))
        };
        Level {
            n: p.batch[i].clone(),
            strides: [of(&a_dims, &a_strides, ra), of(&b_dims, &b_strides, rb), stored[i].clone()],
        }
    };
    let mut levels = merge_levels((0..rank).map(level).collect());
    let mut a = Matrix { at: half::x(cx, 0)?, row: a_strides[ra - 2].clone(), column: a_strides[ra - 1].clone() };
    let mut b = Matrix { at: half::x(cx, 1)?, row: b_strides[rb - 2].clone(), column: b_strides[rb - 1].clone() };
    let (mut m, n, k) = (p.m, p.n, p.k);
    // One B for all rows: the innermost batch level becomes rows.
    if let Some(last) = levels.last()
        && last.strides[1].is(0)
        && last.strides[0] == a.row.clone() * m.clone()
        && last.strides[2] == y_row.clone() * m.clone()
        && !m.is(1)
    {
        m = m * last.n.clone();
        levels.pop();
    } else if let Some(last) = levels.last()
        && last.strides[1].is(0)
        && m.is(1)
    {
        let last = last.clone();
        m = last.n;
        a.row = last.strides[0].clone();
        levels.pop();
        let c = Matrix { at: y, row: last.strides[2].clone(), column: y_column };
        return products(cx, dtype, (a, b, c), (m, n, k), levels, epilogue);
    }
    if m.is(1) {
        a.row = k.clone();
    }
    let c_row = if m.is(1) { n.clone() } else { y_row };
    if n.is(1) && !b.column.is(1) {
        b.column = Dim::Const(1);
    }
    let c = Matrix { at: y, row: c_row, column: if n.is(1) { Dim::Const(1) } else { y_column } };
    products(cx, dtype, (a, b, c), (m, n, k), levels, epilogue)
}

/// Lays the operands out as the kernels want them and adds one call, or one for each step of the outer batch levels.
fn products(
    cx: &mut LowerCx<'_>,
    dtype: Dtype,
    (mut a, mut b, c): (Matrix, Matrix, Matrix),
    (m, n, k): (Dim, Dim, Dim),
    mut levels: Vec<Level>,
    epilogue: Epilogue,
) -> Result<()> {
    let zero = Dim::Const(0);
    let fast = dtype == Dtype::F32;
    let size = Dim::from(dtype.size_bytes());
    if !a.column.is(1) && !k.is(1) {
        a = gathered(cx, dtype, a, (&m, &k), &mut levels, 0)?;
    }
    let packable =
        fast && levels.iter().all(|l| l.strides[1].is(0)) && cx.constant(1).is_some_and(|t| t.dtype() == Dtype::F32);
    let mut b_layout = BLayout::Rows;
    let mut ldb = b.row.clone();
    if let (true, Some(k), Some(n)) = (packable, k.as_const(), n.as_const()) {
        b.at = packed_weights(cx, &b, (k, n))?;
        b_layout = BLayout::Packed;
        ldb = zero.clone();
    } else if b.column.is(1) || n.is(1) && b.row.is(1) {
    } else if fast && b.row.is(1) {
        b_layout = BLayout::Transposed;
        ldb = b.column.clone();
    } else {
        b = gathered(cx, dtype, b, (&k, &n), &mut levels, 1)?;
        ldb = b.row.clone();
    }
    // A result whose columns are apart is computed densely and moved.
    let apart = !c.column.is(1) && !n.is(1);
    let (mut at, mut ldc) = (c.at.clone(), c.row.clone());
    let mut c_strides: Vec<Dim> = levels.iter().map(|l| l.strides[2].clone()).collect();
    if apart {
        let extents: Vec<Dim> = levels.iter().map(|l| l.n.clone()).chain([m.clone(), n.clone()]).collect();
        at = cx.scratch(extents.iter().cloned().product::<Dim>() * size.clone());
        let dense = row_major(&extents);
        c_strides = dense[..levels.len()].to_vec();
        ldc = n.clone();
    }
    let residual_apart = epilogue.residual.is_some() && apart;
    if residual_apart {
        return Err(CompileError::new(Stage::Lower, "a residual beside a result whose columns are apart"));
    }
    let outer = levels.len().saturating_sub(2);
    let batch_of = |i: usize| (i + levels.len()).checked_sub(2).filter(|_| levels.len() > 1 || i == 1);
    let pick = |f: &dyn Fn(usize) -> Dim, fill: i64| -> [Dim; 2] {
        std::array::from_fn(|i| batch_of(i).map_or(Dim::Const(fill), f))
    };
    let batch = pick(&|l| levels[l].n.clone(), 1);
    let a_batch = pick(&|l| levels[l].strides[0].clone(), 0);
    let b_batch = pick(&|l| levels[l].strides[1].clone(), 0);
    let c_batch = pick(&|l| c_strides[l].clone(), 0);
    for offsets in outer_steps(&levels[..outer], &c_strides)? {
        let shift = |o: &Operand<Dim>, elements: u64| {
            let bytes = elements * dtype.size_bytes() as u64;
            Operand::at(o.mem, o.off + bytes, o.bytes.clone() - Dim::Const(bytes as i64))
        };
        let (a_at, b_at, c_at) = (shift(&a.at, offsets[0]), shift(&b.at, offsets[1]), shift(&at, offsets[2]));
        let (m, n, k, lda, ldb, ldc) = (m.clone(), n.clone(), k.clone(), a.row.clone(), ldb.clone(), ldc.clone());
        let (batch, a_batch, b_batch, c_batch) = (batch.clone(), a_batch.clone(), b_batch.clone(), c_batch.clone());
        if fast {
            let mut call = Gemm {
                a: a_at,
                b: b_at,
                bias: epilogue.bias.clone(),
                residual: epilogue.residual.as_ref().map(|r| shift(r, offsets[2])),
                c: c_at,
                scratch: None,
                ld_residual: ldc.clone(),
                residual_batch: c_batch.clone(),
                m,
                n,
                k,
                lda,
                ldb,
                ldc,
                batch,
                a_batch,
                b_batch,
                c_batch,
                b_layout,
                activation: epilogue.activation,
                share: [0, 1],
            };
            call.scratch = gemm_scratch(cx, &call);
            cx.call(&[dtype], call)?;
        } else {
            cx.call(
                &[dtype],
                MatMul { a: a_at, b: b_at, c: c_at, m, n, k, lda, ldb, ldc, batch, a_batch, b_batch, c_batch },
            )?;
        }
    }
    if apart {
        let dims: Vec<Dim> = levels.iter().map(|l| l.n.clone()).chain([m, n]).collect();
        let x_strides = row_major(&dims);
        let y_strides = levels.iter().map(|l| l.strides[2].clone()).chain([c.row, c.column]).collect();
        StridedCopy { dims, x_start: zero.clone(), x_strides, y_start: zero, y_strides }.lower(cx, dtype, at, c.at)?;
    }
    Ok(())
}

/// Scratch that the kernel needs for this problem, at the extents' upper bounds.
pub(super) fn gemm_scratch(cx: &mut LowerCx<'_>, call: &Gemm<Dim>) -> Option<Operand<Dim>> {
    use kiln_kernels::Descriptor;
    let fixed: Gemm = call.map(&mut |d: &Dim| d.upper().and_then(|u| usize::try_from(u).ok()).unwrap_or(0));
    let mut elements = fixed.problem().scratch_len();
    if call.n.as_const().is_none() && call.b_layout == BLayout::Rows {
        // The greatest width may be whole panels, others are not.
        elements = 16usize.saturating_mul(fixed.k);
    }
    (elements > 0).then(|| cx.scratch(Dim::from(elements * 4)))
}

/// Element offsets of a, b and c for every step of the outer batch levels.
fn outer_steps(levels: &[Level], c_strides: &[Dim]) -> Result<Vec<[u64; 3]>> {
    const MOST: i64 = 1 << 12;
    let mut steps = vec![[0u64; 3]];
    for (i, level) in levels.iter().enumerate() {
        let fixed = |d: &Dim| d.as_const().filter(|c| *c >= 0);
        let strides = [&level.strides[0], &level.strides[1], &c_strides[i]];
        let strides: Option<Vec<i64>> = strides.into_iter().map(fixed).collect();
        let (Some(n), Some(strides)) = (fixed(&level.n), strides) else {
            return Err(CompileError::new(Stage::Lower, "more than two levels of batch need fixed extents"));
        };
        if n.saturating_mul(steps.len() as i64) > MOST {
            return Err(CompileError::new(Stage::Lower, "too many separate products"));
        }
        let mut next = Vec::with_capacity(steps.len() * n as usize);
        for s in &steps {
            for j in 0..n {
                next.push(std::array::from_fn(|o| s[o] + (j * strides[o]) as u64));
            }
        }
        steps = next;
    }
    Ok(steps)
}

/// A dense row-major copy of an operand with all its batch levels.
fn gathered(
    cx: &mut LowerCx<'_>,
    dtype: Dtype,
    x: Matrix,
    (rows, columns): (&Dim, &Dim),
    levels: &mut [Level],
    which: usize,
) -> Result<Matrix> {
    // Levels that share the operand are not copied.
    let own: Vec<usize> = (0..levels.len()).filter(|&l| !levels[l].strides[which].is(0)).collect();
    let dims: Vec<Dim> = own.iter().map(|&l| levels[l].n.clone()).chain([rows.clone(), columns.clone()]).collect();
    let x_strides = own.iter().map(|&l| levels[l].strides[which].clone()).chain([x.row, x.column]).collect();
    let y_strides = row_major(&dims);
    let at = cx.scratch(dims.iter().cloned().product::<Dim>() * Dim::from(dtype.size_bytes()));
    for (i, &l) in own.iter().enumerate() {
        levels[l].strides[which] = y_strides[i].clone();
    }
    let zero = Dim::Const(0);
    let copy = StridedCopy { dims, x_start: zero.clone(), x_strides, y_start: zero, y_strides };
    copy.lower(cx, dtype, x.at, at.clone())?;
    Ok(Matrix { at, row: columns.clone(), column: Dim::Const(1) })
}

/// Constant B in panels, whatever its strides.
fn packed_weights(cx: &mut LowerCx<'_>, b: &Matrix, (k, n): (i64, i64)) -> Result<Operand<Dim>> {
    let odd = || CompileError::new(Stage::Lower, "weights with unusual strides").at_input(1);
    let values = cx.need_constant(1)?.to_f32s().ok_or_else(odd)?;
    let (row, column) = b.row.as_const().zip(b.column.as_const()).ok_or_else(odd)?;
    let (k, n) = (k as usize, n as usize);
    let packed = if column == 1 && row == n as i64 {
        kiln_kernels::gemm::pack_b(&values, k, n, false)
    } else if row == 1 && column == k as i64 {
        kiln_kernels::gemm::pack_b(&values, k, n, true)
    } else {
        let mut dense = vec![0f32; k * n];
        for i in 0..k {
            for j in 0..n {
                let at = i as i64 * row + j as i64 * column;
                dense[i * n + j] = usize::try_from(at).ok().and_then(|at| values.get(at)).copied().ok_or_else(odd)?;
            }
        }
        kiln_kernels::gemm::pack_b(&dense, k, n, false)
    };
    Ok(cx.f32_weights(&packed))
}

fn infer_gemm(cx: &mut InferCx<'_>) -> Result<()> {
    cx.expect_dtype(0, TYPES)?;
    cx.expect_same_dtype(1, 0)?;
    cx.expect_rank(0, 2)?;
    cx.expect_rank(1, 2)?;
    let p = product(cx)?;
    if let Some(c) = cx.opt_ty(2)? {
        cx.expect_same_dtype(2, 0)?;
        let fits = broadcast(&[&c.shape, &p.shape]).map_err(|e| e.at_input(2))?;
        let same = |(a, b): (&Dim, &Dim)| a == b || a.as_const().is_none() || b.as_const().is_none();
        if fits.len() != p.shape.len() || !fits.iter().zip(&p.shape).all(same) {
            return Err(wrong(format!("{c} does not broadcast to {}", crate::ir::ShapeText(&p.shape))).at_input(2));
        }
    }
    let dtype = cx.dtype(0)?;
    cx.set(0, tensor(dtype, p.shape));
    Ok(())
}

fn lower_gemm(cx: &mut LowerCx<'_>) -> Result<()> {
    let view = cx.view();
    let (alpha, beta) = (view.float("alpha", 1.0)?, view.float("beta", 1.0)?);
    let activation = Activation::None;
    let ty = view.out_ty(0)?;
    let dtype = half::compute_dtype(ty.dtype);
    let y = half::y(cx, 0)?;
    let (m, n) = (ty.shape[0].clone(), ty.shape[1].clone());
    let c_ty = view.opt_ty(2)?;
    let row_vector = c_ty.is_none_or(|c| c.rank() >= 1 && c.shape[c.rank() - 1] == n && c.numel() == n);
    if alpha == 1.0 && (beta == 1.0 || c_ty.is_none()) && row_vector && dtype == Dtype::F32 {
        let bias = half::opt(cx, 2)?;
        multiply(cx, y.at.clone(), Epilogue { bias, residual: None, activation })?;
        return y.finish(cx);
    }
    let x = cx.scratch(ty.numel() * Dim::from(dtype.size_bytes()));
    multiply(cx, x.clone(), Epilogue { bias: None, residual: None, activation })?;
    let c = half::opt(cx, 2)?;
    let c_shape = c_ty.map_or(&[][..], |c| &c.shape);
    cx.expect_broadcast(c_shape, &ty.shape)?;
    let c_stride = |from_end: usize, step: Dim| match c_shape.len().checked_sub(from_end + 1) {
        Some(axis) => stride(&step, &c_shape[axis], &ty.shape[1 - from_end]),
        None => Dim::Const(0),
    };
    let columns = c_shape.last().cloned().unwrap_or(Dim::Const(1));
    let (c_row, c_column) = (c_stride(1, columns), c_stride(0, Dim::Const(1)));
    cx.call(&[dtype], ScaleAdd { x, c, y: y.at.clone(), m, n, c_row, c_column, alpha, beta })?;
    y.finish(cx)
}
