//! Einsum.
//!
//! <https://onnx.ai/onnx/operators/onnx__Einsum.html>
//!
//! Operands are contracted from left to right. A step that multiplies matrices is one, after copies that bring its indices
//! into order; any other is a contraction by strides. Indices that only one operand has and nobody needs are summed first.

mod equation;

use super::strided::{StridedCopy, row_major};
use super::view::{NodeView, Result, wrong};
use super::{InferCx, OpDef, half, tensor};
use crate::ir::Dim;
use crate::lower::LowerCx;
use equation::{Equation, Label};
use kiln_kernels::gemm::tile::MAX_PANELS;
use kiln_kernels::{Activation, BLayout, Contract, Dtype, Gemm, MAX_RANK, MatMul, Operand, ReduceNd, ReduceOp};
use std::collections::BTreeMap;

pub(super) static OPS: &[OpDef] = &[OpDef::new("", "Einsum", &[12, 28], infer, lower).with_flops(flops)];

/// The equation, fitted to the operands' ranks, and every index's extent.
fn parse(cx: &NodeView<'_>) -> Result<(Equation, BTreeMap<Label, Dim>)> {
    let text = cx.opt_text("equation")?.ok_or_else(|| wrong("is missing").at_attribute("equation"))?;
    let mut shapes = Vec::new();
    for i in 0..cx.n_inputs() {
        shapes.push(cx.shape(i)?);
    }
    let ranks: Vec<usize> = shapes.iter().map(|s| s.len()).collect();
    let equation = Equation::parse(text, &ranks).map_err(|e| wrong(e).at_attribute("equation"))?;
    let mut extents: BTreeMap<Label, Dim> = BTreeMap::new();
    for (i, (labels, shape)) in equation.operands.iter().zip(&shapes).enumerate() {
        for (&label, d) in labels.iter().zip(shape.iter()) {
            let extent = extents.entry(label).or_insert_with(|| d.clone());
            if extent.is(1) {
                *extent = d.clone();
            } else if !d.is(1) && d != extent && d.as_const().is_some() && extent.as_const().is_some() {
                return Err(wrong(format!("index {label} has extents {extent} and {d}")).at_input(i));
            }
        }
    }
    Ok((equation, extents))
}

fn infer(cx: &mut InferCx<'_>) -> Result<()> {
    if cx.n_inputs() == 0 {
        return Err(wrong("no operands"));
    }
    let dtype = cx.dtype(0)?;
    let numeric =
        half::is_half(dtype) || matches!(dtype, Dtype::F32 | Dtype::F64) || (dtype.is_int() && !dtype.is_sub_byte());
    if !numeric {
        return Err(wrong(format!("{} cannot be multiplied", cx.ty(0)?)).at_input(0));
    }
    for i in 1..cx.n_inputs() {
        cx.expect_same_dtype(i, 0)?;
    }
    let (equation, extents) = parse(cx)?;
    let shape = equation.output.iter().map(|l| extents[l].clone()).collect();
    cx.set(0, tensor(dtype, shape));
    Ok(())
}

/// A multiplication and an addition for every value of all indices, per step.
fn flops(cx: &NodeView<'_>) -> Result<Dim> {
    let (equation, extents) = parse(cx)?;
    let steps = i64::try_from(equation.operands.len().saturating_sub(1).max(1)).unwrap_or(1);
    Ok(extents.into_values().product::<Dim>() * Dim::Const(2 * steps))
}

/// A tensor in memory whose indices have strides; an index it does not have repeats it.
#[derive(Clone)]
struct Term {
    at: Operand<Dim>,
    labels: Vec<Label>,
    strides: Vec<Dim>,
}

/// What the steps share.
struct Steps<'a, 'b> {
    cx: &'a mut LowerCx<'b>,
    dtype: Dtype,
    extents: BTreeMap<Label, Dim>,
}

/// A list of extents or strides at the kernels' rank, filled up in front.
fn padded(values: Vec<Dim>, fill: i64) -> Result<[Dim; MAX_RANK]> {
    let missing = MAX_RANK
        .checked_sub(values.len())
        .ok_or_else(|| wrong(format!("more than {MAX_RANK} indices of a kind")).at_attribute("equation"))?;
    Ok(std::array::from_fn(|i| i.checked_sub(missing).map_or(Dim::Const(fill), |i| values[i].clone())))
}

impl Term {
    fn stride(&self, label: Label) -> Dim {
        self.labels.iter().position(|&l| l == label).map_or(Dim::Const(0), |i| self.strides[i].clone())
    }

    fn has(&self, label: Label) -> bool {
        self.labels.contains(&label)
    }
}

impl Steps<'_, '_> {
    fn dims(&self, labels: &[Label]) -> Vec<Dim> {
        labels.iter().map(|l| self.extents[l].clone()).collect()
    }

    fn extent(&self, labels: &[Label]) -> Dim {
        self.dims(labels).into_iter().product()
    }

    fn strides(term: &Term, labels: &[Label]) -> Vec<Dim> {
        labels.iter().map(|&l| term.stride(l)).collect()
    }

    /// Dense memory with these indices in this order.
    fn room(&mut self, labels: &[Label]) -> Operand<Dim> {
        let bytes = self.extent(labels) * Dim::from(self.dtype.size_bytes());
        self.cx.scratch(bytes)
    }

    fn dense(&self, at: Operand<Dim>, labels: &[Label]) -> Term {
        Term { at, labels: labels.to_vec(), strides: row_major(&self.dims(labels)) }
    }

    /// Operand `i`: an index that is named twice walks the diagonal, one of extent 1 does not matter.
    fn operand(&mut self, i: usize, labels: &[Label]) -> Result<Term> {
        let shape = self.cx.shape(i)?.to_vec();
        let at = half::x(self.cx, i)?;
        let mut term = Term { at, labels: Vec::new(), strides: Vec::new() };
        for ((&label, d), stride) in labels.iter().zip(&shape).zip(row_major(&shape)) {
            if d.is(1) && !self.extents[&label].is(1) {
                continue;
            }
            match term.labels.iter().position(|&l| l == label) {
                Some(at) => term.strides[at] = term.strides[at].clone() + stride,
                None => {
                    term.labels.push(label);
                    term.strides.push(stride);
                }
            }
        }
        Ok(term)
    }

    /// Sums the indices that `needed` does not name.
    fn sum_out(&mut self, term: Term, needed: &dyn Fn(Label) -> bool) -> Result<Term> {
        let (kept, gone): (Vec<Label>, Vec<Label>) = term.labels.iter().partition(|&&l| needed(l));
        if gone.is_empty() {
            return Ok(term);
        }
        let y = self.room(&kept);
        let d = ReduceNd {
            x: term.at.clone(),
            y: y.clone(),
            kept: padded(self.dims(&kept), 1)?,
            kept_strides: padded(Self::strides(&term, &kept), 0)?,
            dims: padded(self.dims(&gone), 1)?,
            strides: padded(Self::strides(&term, &gone), 0)?,
            op: ReduceOp::Sum,
        };
        self.cx.call(&[self.dtype], d)?;
        Ok(self.dense(y, &kept))
    }

    /// Copies a term into `to`, or new memory, with these indices in this order; a term that lies so already stays.
    fn arranged(&mut self, term: &Term, labels: &[Label], to: Option<Operand<Dim>>) -> Result<Operand<Dim>> {
        let dims = self.dims(labels);
        let dense = row_major(&dims);
        let own = Self::strides(term, labels);
        if to.is_none() && own.iter().zip(&dense).zip(&dims).all(|((a, b), d)| d.is(1) || a == b) {
            return Ok(term.at.clone());
        }
        let y = match to {
            Some(y) => y,
            None => self.room(labels),
        };
        let copy =
            StridedCopy { dims, x_start: Dim::Const(0), x_strides: own, y_start: Dim::Const(0), y_strides: dense };
        copy.lower(self.cx, self.dtype, term.at.clone(), y.clone())?;
        Ok(y)
    }

    /// Contracts two terms to the indices `out`; into `to` where that is given and the order allows.
    fn contract(&mut self, a: Term, b: Term, out: &[Label], to: Option<&Operand<Dim>>) -> Result<Term> {
        let is_out = |l: Label| out.contains(&l);
        let a = {
            let b = b.clone();
            self.sum_out(a, &move |l| b.has(l) || is_out(l))?
        };
        let b = {
            let a = a.clone();
            self.sum_out(b, &move |l| a.has(l) || is_out(l))?
        };
        let pick =
            |f: &dyn Fn(Label) -> bool, from: &[Label]| from.iter().copied().filter(|&l| f(l)).collect::<Vec<_>>();
        let batch = pick(&|l| a.has(l) && b.has(l), out);
        let rows = pick(&|l| a.has(l) && !b.has(l), out);
        let columns = pick(&|l| !a.has(l) && b.has(l), out);
        let summed = pick(&|l| !is_out(l), &a.labels);
        let product_type =
            matches!(self.dtype, Dtype::F32 | Dtype::F64 | Dtype::I32 | Dtype::I64 | Dtype::U32 | Dtype::U64);
        if product_type && !summed.is_empty() && !(rows.is_empty() && columns.is_empty()) {
            return self.multiply(&a, &b, [batch, rows, columns, summed], out, to);
        }
        let y = match to {
            Some(to) => to.clone(),
            None => self.room(out),
        };
        let d = Contract {
            a: a.at.clone(),
            b: b.at.clone(),
            c: y.clone(),
            kept: padded(self.dims(out), 1)?,
            a_kept: padded(Self::strides(&a, out), 0)?,
            b_kept: padded(Self::strides(&b, out), 0)?,
            dims: padded(self.dims(&summed), 1)?,
            a_strides: padded(Self::strides(&a, &summed), 0)?,
            b_strides: padded(Self::strides(&b, &summed), 0)?,
        };
        self.cx.call(&[self.dtype], d)?;
        Ok(self.dense(y, out))
    }

    /// A step as matrix products: `[batch, rows, summed]` times `[batch, summed, columns]`.
    fn multiply(
        &mut self,
        a: &Term,
        b: &Term,
        [batch, rows, columns, summed]: [Vec<Label>; 4],
        out: &[Label],
        to: Option<&Operand<Dim>>,
    ) -> Result<Term> {
        let join = |parts: &[&Vec<Label>]| parts.iter().flat_map(|p| p.iter().copied()).collect::<Vec<_>>();
        let a_at = self.arranged(a, &join(&[&batch, &rows, &summed]), None)?;
        // B may come with its columns outermost where it lies so already.
        let transposed = join(&[&batch, &columns, &summed]);
        let lies = Self::strides(b, &transposed) == row_major(&self.dims(&transposed)) && self.dtype == Dtype::F32;
        let order = if lies { transposed } else { join(&[&batch, &summed, &columns]) };
        let b_at = self.arranged(b, &order, None)?;
        let (m, n, k) = (self.extent(&rows), self.extent(&columns), self.extent(&summed));
        let result = join(&[&batch, &rows, &columns]);
        let in_order = result == out;
        let y = match to {
            Some(to) if in_order => to.clone(),
            _ => self.room(&result),
        };
        let ldb = if lies { k.clone() } else { n.clone() };
        let zero = || Dim::Const(0);
        let count = [self.extent(&batch), Dim::Const(1)];
        let strides = |x: &Dim, y: &Dim| [x.clone() * y.clone(), zero()];
        let (a_batch, b_batch, c_batch) = (strides(&m, &k), strides(&k, &n), strides(&m, &n));
        if self.dtype == Dtype::F32 {
            // Room for packed panels of B.
            let scratch = self.cx.scratch(k.clone() * Dim::from(MAX_PANELS * 16 * 4));
            let d = Gemm {
                a: a_at,
                b: b_at,
                bias: None,
                residual: None,
                c: y.clone(),
                scratch: Some(scratch),
                m,
                n: n.clone(),
                k: k.clone(),
                lda: k,
                ldb,
                ldc: n,
                ld_residual: zero(),
                batch: count,
                a_batch,
                b_batch,
                c_batch,
                residual_batch: [zero(), zero()],
                b_layout: if lies { BLayout::Transposed } else { BLayout::Rows },
                activation: Activation::None,
                share: [0, 1],
            };
            self.cx.call(&[self.dtype], d)?;
        } else {
            let d = MatMul {
                a: a_at,
                b: b_at,
                c: y.clone(),
                m,
                n: n.clone(),
                k: k.clone(),
                lda: k,
                ldb,
                ldc: n,
                batch: count,
                a_batch,
                b_batch,
                c_batch,
            };
            self.cx.call(&[self.dtype], d)?;
        }
        Ok(self.dense(y, &result))
    }
}

fn lower(cx: &mut LowerCx<'_>) -> Result<()> {
    let (equation, extents) = parse(cx)?;
    let dtype = half::compute_dtype(cx.dtype(0)?);
    let y = half::y(cx, 0)?;
    let mut steps = Steps { cx, dtype, extents };
    let n = equation.operands.len();
    let mut term = steps.operand(0, &equation.operands[0])?;
    for i in 1..n {
        let next = steps.operand(i, &equation.operands[i])?;
        // What the operands to come or the result need; the last step may come out in the result's order.
        let later =
            |l: Label| equation.output.contains(&l) || equation.operands[i + 1..].iter().any(|o| o.contains(&l));
        let mut out: Vec<Label> = Vec::new();
        let all = equation.output.iter().chain(&term.labels).chain(&next.labels);
        for &l in all {
            if (term.has(l) || next.has(l)) && later(l) && !out.contains(&l) {
                out.push(l);
            }
        }
        let to = (i + 1 == n && out == equation.output).then_some(&y.at);
        term = steps.contract(term, next, &out, to)?;
    }
    let wanted = equation.output.clone();
    term = steps.sum_out(term, &|l| wanted.contains(&l))?;
    if (term.at.mem, term.at.off) != (y.at.mem, y.at.off) {
        steps.arranged(&term, &equation.output, Some(y.at.clone()))?;
    }
    y.finish(cx)
}

#[cfg(test)]
mod tests {
    use crate::ir::{Attr, Tensor};
    use crate::ops::testing::case;

    fn ramp(dims: &[usize], step: usize) -> Tensor {
        let n: usize = dims.iter().product();
        Tensor::from_f32s(dims, &(0..n).map(|i| ((i * step) % 11) as f32 - 4.0).collect::<Vec<_>>())
    }

    /// By the definition, over explicit lower-case indices.
    fn reference(equation: &str, operands: &[Tensor]) -> Vec<f32> {
        let (left, right) = equation.split_once("->").unwrap();
        let terms: Vec<&[u8]> = left.split(',').map(str::as_bytes).collect();
        let mut extent = std::collections::BTreeMap::new();
        for (t, o) in terms.iter().zip(operands) {
            for (&l, &d) in t.iter().zip(o.dims()) {
                let e = extent.entry(l).or_insert(d);
                *e = (*e).max(d);
            }
        }
        let labels: Vec<u8> = extent.keys().copied().collect();
        let n: usize = extent.values().product();
        let size: usize = right.bytes().map(|l| extent[&l]).product();
        let mut out = vec![0.0; size];
        for mut i in 0..n {
            let mut at = std::collections::BTreeMap::new();
            for &l in labels.iter().rev() {
                at.insert(l, i % extent[&l]);
                i /= extent[&l];
            }
            let index = |labels: &[u8], dims: &[usize]| {
                labels.iter().zip(dims).fold(0, |x, (l, &d)| x * d + if d == 1 { 0 } else { at[l] })
            };
            let value: f32 =
                terms.iter().zip(operands).map(|(t, o)| o.to_f32s().unwrap()[index(t, o.dims())]).product();
            let dims: Vec<usize> = right.bytes().map(|l| extent[&l]).collect();
            out[index(right.as_bytes(), &dims)] += value;
        }
        out
    }

    #[test]
    fn explicit_equations() {
        for (equation, shapes) in [
            ("ij,jk->ik", vec![vec![3, 4], vec![4, 5]]),
            ("ij,kj->ki", vec![vec![3, 4], vec![5, 4]]),
            ("bij,bjk->bik", vec![vec![2, 3, 4], vec![2, 4, 5]]),
            ("bhid,bhjd->bhij", vec![vec![2, 2, 3, 4], vec![2, 2, 5, 4]]),
            ("bihd,bjhd->bhij", vec![vec![2, 3, 2, 4], vec![2, 5, 2, 4]]),
            ("ij->ji", vec![vec![3, 4]]),
            ("ij->", vec![vec![3, 4]]),
            ("ii->i", vec![vec![3, 3]]),
            ("iji->j", vec![vec![3, 2, 3]]),
            ("i,i->", vec![vec![4], vec![4]]),
            ("i,j->ij", vec![vec![4], vec![3]]),
            ("i,j->ji", vec![vec![4], vec![3]]),
            ("bi,bi->bi", vec![vec![2, 3], vec![2, 3]]),
            ("bi,bi->b", vec![vec![2, 3], vec![2, 3]]),
            ("ij,jk,kl->il", vec![vec![2, 3], vec![3, 4], vec![4, 2]]),
            ("ij,k->i", vec![vec![2, 3], vec![4]]),
            ("ij,ij,i->j", vec![vec![2, 3], vec![2, 3], vec![2]]),
            ("ij,jk->k", vec![vec![2, 3], vec![3, 4]]),
            ("ij,jk->ik", vec![vec![3, 1], vec![4, 5]]),
            (",i->i", vec![vec![], vec![3]]),
            ("ik,jkl,il->ij", vec![vec![2, 3], vec![4, 3, 5], vec![2, 5]]),
        ] {
            let operands: Vec<Tensor> = shapes.iter().enumerate().map(|(i, d)| ramp(d, 3 + 2 * i)).collect();
            let mut c = case("", "Einsum", 12).attr("equation", Attr::Str(equation.into()));
            for o in &operands {
                c = c.input(o.clone());
            }
            assert_eq!(c.run_f32(), reference(equation, &operands), "{equation}");
            let mut c = case("", "Einsum", 12).attr("equation", Attr::Str(equation.into()));
            for o in &operands {
                let ints: Vec<i64> = o.to_f32s().unwrap().into_iter().map(|v| v as i64).collect();
                c = c.input(Tensor::from_i64s(o.dims(), &ints));
            }
            let ints: Vec<f32> = c.run().unwrap()[0].to_i64s().unwrap().into_iter().map(|v| v as f32).collect();
            assert_eq!(ints, reference(equation, &operands), "{equation}");
        }
    }

    #[test]
    fn implicit_outputs_and_ellipses() {
        for (equation, same, shapes, dims) in [
            ("ij,jk", "ij,jk->ik", vec![vec![2, 3], vec![3, 4]], vec![2, 4]),
            ("ba", "ba->ab", vec![vec![2, 3]], vec![3, 2]),
            (" i j , j ", "ij,j->i", vec![vec![2, 3], vec![3]], vec![2]),
            ("...ij,...jk->...ik", "xij,xjk->xik", vec![vec![2, 2, 3], vec![2, 3, 4]], vec![2, 2, 4]),
            ("...ij,jk", "xij,jk->xik", vec![vec![2, 2, 3], vec![3, 4]], vec![2, 2, 4]),
            ("i...->...", "ixy->xy", vec![vec![2, 3, 4]], vec![3, 4]),
            ("...ii->...i", "xii->xi", vec![vec![2, 3, 3]], vec![2, 3]),
            ("...,...->...", "xy,xy->xy", vec![vec![2, 3], vec![1, 3]], vec![2, 3]),
        ] {
            let operands: Vec<Tensor> = shapes.iter().enumerate().map(|(i, d)| ramp(d, 3 + 2 * i)).collect();
            let mut c = case("", "Einsum", 12).attr("equation", Attr::Str(equation.into()));
            for o in &operands {
                c = c.input(o.clone());
            }
            let y = c.run().unwrap();
            assert_eq!(y[0].dims(), dims, "{equation}");
            assert_eq!(y[0].to_f32s().unwrap(), reference(same, &operands), "{equation}");
        }
    }

    #[test]
    fn refuses() {
        for (equation, shapes) in [
            ("ij,jk->ik", vec![vec![2, 3], vec![4, 4]]),
            ("ij->ijk", vec![vec![2, 3]]),
            ("ij->ii", vec![vec![2, 3]]),
            ("ijk->i", vec![vec![2, 3]]),
            ("i->i", vec![vec![2, 3]]),
            ("ij,jk->ik", vec![vec![2, 3]]),
            ("i...j...->i", vec![vec![2, 3]]),
            ("i.j->i", vec![vec![2, 3]]),
            ("i1->i", vec![vec![2, 3]]),
        ] {
            let mut c = case("", "Einsum", 12).attr("equation", Attr::Str(equation.into()));
            for d in &shapes {
                c = c.input(ramp(d, 1));
            }
            assert!(c.infer().is_err(), "{equation}");
        }
    }
}
