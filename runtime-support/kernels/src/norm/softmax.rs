//! Softmax and log-softmax over one axis.
//!
//! In: `x` as `[outer, n, inner]`, possibly in the memory of `y`. Out: `y`, each line of `n` elements normalised.
//! In 16-bit floats every step (difference, exponential, sum, quotient) is rounded, as the operator's function body has it.
//! In bf16 that holds of each addition, in blocks of eight: longer sums would stop growing.
//! In f32 a line is read three times (greatest, exponentials and their sum, division); lines of one row are vectorised
//! along the line, others across `inner`. A NaN makes its whole line NaN, as does a line of nothing but -∞.

use super::stats::{load_w, store_w};
use crate::simd::{F32x16, LANES, Simd, math};
use crate::{Elem, Fault, Isa, bf16, f16, kernel, simd_fn};

kernel! {
    /// `y = exp(x - max) / Σ exp(x - max)` over axis `n`, or the logarithm of that.
    pub struct Softmax {
        operands { alias x: T, write y: T }
        nums { outer, n, inner }
        params { log: bool }
    }
    entries {
        softmax_f32 { T = f32 } softmax_f64 { T = f64 }
        softmax_f16 { T = f16 } softmax_bf16 { T = bf16 }
    }
    body = softmax;
}

trait SoftmaxElem: Elem {
    fn run(isa: Isa, d: &Softmax, x: Option<&[Self]>, y: &mut [Self]);
}

fn softmax<T: SoftmaxElem>(isa: Isa, d: &Softmax, x: Option<&[T]>, y: &mut [T]) -> Result<(), Fault> {
    let numel = d.outer.checked_mul(d.n).and_then(|n| n.checked_mul(d.inner));
    if numel != Some(y.len()) || x.is_some_and(|x| x.len() != y.len()) {
        return Err(Fault::Descriptor);
    }
    if !y.is_empty() {
        T::run(isa, d, x, y);
    }
    Ok(())
}

impl SoftmaxElem for f64 {
    fn run(_: Isa, d: &Softmax, x: Option<&[Self]>, y: &mut [Self]) {
        if let Some(x) = x {
            y.copy_from_slice(x);
        }
        for y in y.chunks_exact_mut(d.n * d.inner) {
            for i in 0..d.inner {
                let line = || (0..d.n).map(|j| j * d.inner + i);
                let max = line().map(|at| y[at]).fold(Self::NEG_INFINITY, Self::max);
                let mut sum = 0.0;
                for at in line() {
                    y[at] -= max;
                    sum += libm::exp(y[at]);
                }
                let log_sum = libm::log(sum);
                line().for_each(|at| y[at] = if d.log { y[at] - log_sum } else { libm::exp(y[at]) / sum });
            }
        }
    }
}

impl SoftmaxElem for f32 {
    fn run(isa: Isa, d: &Softmax, x: Option<&[Self]>, y: &mut [Self]) {
        let to = y.as_mut_ptr();
        let from = x.map_or(to.cast_const(), <[Self]>::as_ptr);
        let (outer, n, inner) = (d.outer, d.n, d.inner);
        // SAFETY: both are valid for `outer · n · inner` f32, checked above; they are one memory or do not overlap.
        unsafe {
            match (inner, d.log) {
                (1, false) => rows::<false>(isa, from, to, outer, n),
                (1, true) => rows::<true>(isa, from, to, outer, n),
                (_, false) => columns::<false>(isa, from, to, outer, n, inner),
                (_, true) => columns::<true>(isa, from, to, outer, n, inner),
            }
        }
    }
}

/// The 16-bit floats.
trait Half: Elem {
    /// Whether every addition of a sum is rounded.
    const ROUND_SUMS: bool;
    fn widen(self) -> f32;
    fn round(x: f32) -> Self;
}

macro_rules! halves {
    ($($t:ident: $round:literal)*) => { $(
        impl Half for $t {
            const ROUND_SUMS: bool = $round;
            #[inline(always)]
            fn widen(self) -> f32 {
                self.to_f32()
            }
            #[inline(always)]
            fn round(x: f32) -> Self {
                Self::from_f32(x)
            }
        }

        impl SoftmaxElem for $t {
            fn run(isa: Isa, d: &Softmax, x: Option<&[Self]>, y: &mut [Self]) {
                if let Some(x) = x {
                    y.copy_from_slice(x);
                }
                for y in y.chunks_exact_mut(d.n * d.inner) {
                    for i in 0..d.inner {
                        half_line(isa, &mut y[i..], d.n, d.inner, d.log);
                    }
                }
            }
        }
    )* };
}
halves!(f16: false bf16: true);

simd_fn! {
    /// A line of `n` elements that lie `stride` apart, in place.
    fn half_line<S>[T: Half][T](s, y: &mut [T], n: usize, stride: usize, log: bool) {
        let max = (0..n).map(|j| y[j * stride].widen()).fold(f32::NEG_INFINITY, |a, x| if a > x { a } else { x });
        let (mut sum, mut block) = (0.0, 0.0);
        for at in (0..n).step_by(LANES) {
            let mut lanes = [f32::NEG_INFINITY; LANES];
            let w = LANES.min(n - at);
            for (l, lane) in lanes[..w].iter_mut().enumerate() {
                *lane = T::round(y[(at + l) * stride].widen() - max).widen();
            }
            let e = math::exp_flushed(s.array(lanes)).to_array();
            for l in 0..w {
                let e_l = T::round(e[l]);
                block += e_l.widen();
                if T::ROUND_SUMS {
                    block = T::round(block).widen();
                }
                if l % 8 == 7 {
                    (sum, block) = (sum + block, 0.0);
                }
                y[(at + l) * stride] = if log { T::round(lanes[l]) } else { e_l };
            }
        }
        sum += block;
        let total = T::round(sum).widen();
        let log_total = math::scalar::log(sum);
        for j in 0..n {
            let v = y[j * stride].widen();
            y[j * stride] = T::round(if log { v - log_total } else { v / total });
        }
    }
}

simd_fn! {
    /// # Safety
    /// `x` is valid for reads, `y` for writes of `rows · n` f32; they are equal or do not overlap.
    unsafe fn rows<S>[const LOG: bool][LOG](s, x: *const f32, y: *mut f32, rows: usize, n: usize) {
        for i in 0..rows {
            // SAFETY: the caller vouches for the row.
            unsafe { row::<S, LOG>(s, x.add(i * n), y.add(i * n), n) }
        }
    }
}

/// # Safety
/// `x` is valid for reads, `y` for writes of `n` f32; they are equal or do not overlap.
#[inline(always)]
unsafe fn row<S: Simd, const LOG: bool>(s: S, x: *const f32, y: *mut f32, n: usize) {
    let full = n - n % LANES;
    let rest = n - full;
    // SAFETY: every access lies below `n`; `y[i]` is written after `x[i]` was read for the last time before it is needed.
    unsafe {
        let lowest = s.splat(f32::NEG_INFINITY);
        let mut max = [lowest; 4];
        let mut at = 0;
        while at + 4 * LANES <= full {
            for (v, max) in max.iter_mut().enumerate() {
                *max = max.max(s.load(x.add(at + v * LANES)));
            }
            at += 4 * LANES;
        }
        while at < full {
            max[0] = max[0].max(s.load(x.add(at)));
            at += LANES;
        }
        let mut m = max[0].max(max[1]).max(max[2].max(max[3])).max_lane();
        for i in full..n {
            let v = *x.add(i);
            m = if m > v { m } else { v };
        }
        let m_all = s.splat(m);
        let mut sum = [s.zero(); 2];
        at = 0;
        while at + 2 * LANES <= full {
            for (v, sum) in sum.iter_mut().enumerate() {
                let e = math::exp_flushed(s.load(x.add(at + v * LANES)) - m_all);
                if !LOG {
                    e.store(y.add(at + v * LANES));
                }
                *sum = *sum + e;
            }
            at += 2 * LANES;
        }
        if at < full {
            let e = math::exp_flushed(s.load(x.add(at)) - m_all);
            if !LOG {
                e.store(y.add(at));
            }
            sum[0] = sum[0] + e;
        }
        let mut total = (sum[0] + sum[1]).sum();
        if rest > 0 {
            let e = math::exp_flushed(s.load_n(x.add(full), rest) - m_all);
            let e_lanes = e.to_array();
            total += e_lanes[..rest].iter().sum::<f32>();
            if !LOG {
                e.store_n(y.add(full), rest);
            }
        }
        let scale = s.splat(if LOG { math::scalar::log(total) } else { 1.0 / total });
        at = 0;
        while at < full {
            if LOG { s.load(x.add(at)) - m_all - scale } else { s.load(y.add(at)) * scale }.store(y.add(at));
            at += LANES;
        }
        if rest > 0 {
            let v = if LOG { s.load_n(x.add(full), rest) - m_all - scale } else { s.load_n(y.add(full), rest) * scale };
            v.store_n(y.add(full), rest);
        }
    }
}

simd_fn! {
    /// # Safety
    /// `x` is valid for reads, `y` for writes of `outer · n · inner` f32; they are equal or do not overlap.
    unsafe fn columns<S>[const LOG: bool][LOG](s, x: *const f32, y: *mut f32, outer: usize, n: usize, inner: usize) {
        for o in 0..outer {
            let mut at = 0;
            // SAFETY: the strips lie inside `inner`.
            unsafe {
                let (x, y) = (x.add(o * n * inner), y.add(o * n * inner));
                while at + 2 * LANES <= inner {
                    strip::<S, LOG, 2>(s, x.add(at), y.add(at), n, inner, 2 * LANES);
                    at += 2 * LANES;
                }
                while at < inner {
                    let w = LANES.min(inner - at);
                    strip::<S, LOG, 1>(s, x.add(at), y.add(at), n, inner, w);
                    at += w;
                }
            }
        }
    }
}

/// One strip of `V` vectors across columns.
///
/// # Safety
/// `w` f32 at each of `n` rows, `inner` apart, are valid for reads from `x` and writes to `y`; `w` is `16 · V`, or less with
/// `V` = 1.
#[inline(always)]
unsafe fn strip<S: Simd, const LOG: bool, const V: usize>(
    s: S,
    x: *const f32,
    y: *mut f32,
    n: usize,
    inner: usize,
    w: usize,
) {
    let w = w.min(LANES);
    let mut max = [s.splat(f32::NEG_INFINITY); V];
    let mut sum = [s.zero(); V];
    // SAFETY: the caller vouches for the strip's elements.
    unsafe {
        for i in 0..n {
            for (v, max) in max.iter_mut().enumerate() {
                *max = max.max(load_w(s, x.add(i * inner + v * LANES), w));
            }
        }
        for i in 0..n {
            for v in 0..V {
                let at = i * inner + v * LANES;
                let e = math::exp_flushed(load_w(s, x.add(at), w) - max[v]);
                sum[v] = sum[v] + e;
                if !LOG {
                    store_w(e, y.add(at), w);
                }
            }
        }
        let mut scale = sum;
        for scale in &mut scale {
            *scale = if LOG { math::log(*scale) } else { s.splat(1.0) / *scale };
        }
        for i in 0..n {
            for v in 0..V {
                let at = i * inner + v * LANES;
                let out =
                    if LOG { load_w(s, x.add(at), w) - max[v] - scale[v] } else { load_w(s, y.add(at), w) * scale[v] };
                store_w(out, y.add(at), w);
            }
        }
    }
}
