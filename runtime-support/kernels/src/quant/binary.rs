//! Sums and products of two quantised tensors, requantised.
//!
//! Addition: `round(a · a_scale/y_scale + (b · b_scale/y_scale + fixed))`, where `fixed` holds the zero points; product:
//! `round((a − a_zero)·(b − b_zero) · (a_scale·b_scale/y_scale) + y_zero)`. Both add the result's zero point before they
//! round, with fused multiply-adds, in ONNX Runtime's order: the codes are its codes.
//! Source: <https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md> (QLinearAdd, QLinearMul).

use super::quantize::Quantised;
use crate::elementwise::walk::{Walk, checked_numel};
use crate::gemm::int8::Quantized;
use crate::simd::{F32x16, I32x16, LANES, Simd};
use crate::{Fault, Isa, kernel, param_enum, simd_fn};

param_enum! {
    /// What is done with two quantised tensors.
    pub enum QBinaryOp {
        /// Sum.
        Add,
        /// Product.
        Mul,
    }
}

kernel! {
    /// `y = a op b` with broadcast strides; scales and zero points have one element each.
    pub struct QBinary {
        operands {
            read a: Q, read b: Q, read a_scale: F, read b_scale: F, read y_scale: F,
            opt a_zero: Q, opt b_zero: Q, opt y_zero: Q, write y: Q
        }
        arrays { dims: 8, a_strides: 8, b_strides: 8 }
        params { op: QBinaryOp }
    }
    entries { qbinary_u8 { Q = u8, F = f32 } qbinary_i8 { Q = i8, F = f32 } }
    body = qbinary;
}

/// Fused on every set: the portable one computes it in software, so that all give the same codes.
#[inline(always)]
fn fma<S: Simd>(s: S, a: S::F32, b: S::F32, c: S::F32) -> S::F32 {
    if S::ISA != Isa::Scalar {
        return a.fma(b, c);
    }
    let (a, b, c) = (a.to_array(), b.to_array(), c.to_array());
    s.array(core::array::from_fn(|i| libm::fmaf(a[i], b[i], c[i])))
}

/// Both operands' numbers.
struct Numbers {
    op: QBinaryOp,
    zeros: [i32; 2],
    /// `a_scale/y_scale` and `b_scale/y_scale`, or twice the product's factor.
    factors: [f32; 2],
    /// What is added before rounding.
    fixed: f32,
}

fn qbinary<Q: Quantised + Quantized>(
    isa: Isa,
    d: &QBinary,
    a: &[Q],
    b: &[Q],
    a_scale: &[f32],
    b_scale: &[f32],
    y_scale: &[f32],
    a_zero: Option<&[Q]>,
    b_zero: Option<&[Q]>,
    y_zero: Option<&[Q]>,
    y: &mut [Q],
) -> Result<(), Fault> {
    let numel = checked_numel(&d.dims, &[(a.len(), &d.a_strides), (b.len(), &d.b_strides)]);
    let (Some(numel), [sa, ..], [sb, ..], [sy, ..]) = (numel, a_scale, b_scale, y_scale) else {
        return Err(Fault::Descriptor);
    };
    if y.len() != numel {
        return Err(Fault::Descriptor);
    }
    if numel == 0 {
        return Ok(());
    }
    let zero = |z: Option<&[Q]>| z.and_then(|z| z.first()).map_or(0, |z| z.wide());
    let (za, zb, zy) = (zero(a_zero), zero(b_zero), zero(y_zero));
    let n = match d.op {
        QBinaryOp::Add => {
            let factors = [sa / sy, sb / sy];
            let fixed = zy as f32 - libm::fmaf(factors[0], za as f32, factors[1] * zb as f32);
            Numbers { op: d.op, zeros: [za, zb], factors, fixed }
        }
        QBinaryOp::Mul => Numbers { op: d.op, zeros: [za, zb], factors: [sa * sb / sy; 2], fixed: zy as f32 },
    };
    let inner = d.dims[7];
    let (a_step, b_step) = (d.a_strides[7], d.b_strides[7]);
    let mut walk: Walk<'_, 2, 7> = Walk::new(&d.dims, [&d.a_strides, &d.b_strides]);
    for y in y.chunks_exact_mut(inner) {
        let [at, bt] = walk.at;
        row(isa, &n, (&a[at..], a_step), (&b[bt..], b_step), y);
        walk.advance();
    }
    Ok(())
}

/// 16 elements, or fewer with zeros after them.
#[inline(always)]
fn lanes<S: Simd, Q: Quantised>(s: S, (x, step): (&[Q], usize), at: usize, n: usize) -> S::I32 {
    if step == 1
        && let Some(whole) = x.get(at..at + LANES)
    {
        let whole: [Q; LANES] = core::array::from_fn(|i| whole[i]);
        return s.array_i32(whole.map(Q::wide));
    }
    s.array_i32(core::array::from_fn(|i| if i < n { x[(at + i) * step].wide() } else { 0 }))
}

simd_fn! {
    fn row<S>[Q: Quantised + Quantized][Q](s, n: &Numbers, a: (&[Q], usize), b: (&[Q], usize), y: &mut [Q]) {
        let (fa, fb, fixed) = (s.splat(n.factors[0]), s.splat(n.factors[1]), s.splat(n.fixed));
        let (za, zb) = (s.splat_i32(n.zeros[0]), s.splat_i32(n.zeros[1]));
        let mul = n.op == QBinaryOp::Mul;
        for (i, y) in y.chunks_mut(LANES).enumerate() {
            let (x, w) = (lanes(s, a, i * LANES, y.len()), lanes(s, b, i * LANES, y.len()));
            let v = if mul {
                fma(s, ((x - za) * (w - zb)).to_f32(), fa, fixed)
            } else {
                fma(s, x.to_f32(), fa, fma(s, w.to_f32(), fb, fixed))
            };
            let q = Q::from_scaled(s, v, 0);
            match <&mut [Q; LANES]>::try_from(&mut *y) {
                Ok(y) => *y = q,
                Err(_) => y.copy_from_slice(&q[..y.len()]),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use crate::Operand;

    fn descriptor(op: QBinaryOp, dims: [usize; 8], a_strides: [usize; 8], b_strides: [usize; 8]) -> QBinary {
        let o = Operand::at(0, 0, 0);
        let (a, b, a_scale, b_scale, y_scale, y) = (o, o, o, o, o, o);
        let zeros = (Some(o), Some(o), Some(o));
        let (a_zero, b_zero, y_zero) = zeros;
        QBinary { a, b, a_scale, b_scale, y_scale, a_zero, b_zero, y_zero, y, dims, a_strides, b_strides, op }
    }

    #[test]
    fn sums_and_products_of_all_codes() {
        let a: [u8; 256] = core::array::from_fn(|i| i as u8);
        let b: [u8; 256] = core::array::from_fn(|i| (i * 77 % 256) as u8);
        for isa in Isa::supported() {
            for op in [QBinaryOp::Add, QBinaryOp::Mul] {
                let unit = [0, 0, 0, 0, 0, 0, 0, 1];
                let d = descriptor(op, [1, 1, 1, 1, 1, 1, 1, 250], unit, unit);
                let mut y = [0u8; 250];
                let zeros = (Some(&[100u8][..]), Some(&[7u8][..]), Some(&[30u8][..]));
                qbinary(isa, &d, &a, &b, &[0.1], &[0.03], &[0.2], zeros.0, zeros.1, zeros.2, &mut y).unwrap();
                for i in 0..250 {
                    let (x, w) = ((f64::from(a[i]) - 100.0) * 0.1, (f64::from(b[i]) - 7.0) * 0.03);
                    let exact = if op == QBinaryOp::Add { x + w } else { x * w } / 0.2 + 30.0;
                    let want = exact.round().clamp(0.0, 255.0);
                    assert!(
                        (f64::from(y[i]) - want).abs() <= f64::from(u8::from((exact.fract().abs() - 0.5).abs() < 1e-3))
                    );
                }
            }
        }
    }

    #[test]
    fn broadcasts_and_checks() {
        let d =
            descriptor(QBinaryOp::Add, [1, 1, 1, 1, 1, 1, 2, 20], [0, 0, 0, 0, 0, 0, 20, 1], [0, 0, 0, 0, 0, 0, 1, 0]);
        let a: [i8; 40] = core::array::from_fn(|i| i as i8);
        for isa in Isa::supported() {
            let mut y = [0i8; 40];
            qbinary(isa, &d, &a, &[1, 2], &[1.0], &[10.0], &[1.0], None, None, None, &mut y).unwrap();
            for i in 0..40 {
                assert_eq!(y[i], i as i8 + if i < 20 { 10 } else { 20 });
            }
            assert!(qbinary(isa, &d, &a, &[1], &[1.0], &[10.0], &[1.0], None, None, None, &mut y).is_err());
            assert!(qbinary(isa, &d, &a, &[1, 2], &[], &[10.0], &[1.0], None, None, None, &mut y).is_err());
        }
    }
}
