//! Sums over contiguous f32, vectorised in one fixed order.

use crate::simd::{F32x16, LANES, Simd};

/// Reads the first `w` lanes, zeros in the others.
///
/// # Safety
/// `w <= 16` and `p` is valid for reads of `w` f32.
#[inline(always)]
pub(crate) unsafe fn load_w<S: Simd>(s: S, p: *const f32, w: usize) -> S::F32 {
    // SAFETY: the caller's.
    unsafe { if w == LANES { s.load(p) } else { s.load_n(p, w) } }
}

/// Writes the first `w` lanes.
///
/// # Safety
/// `w <= 16` and `p` is valid for writes of `w` f32.
#[inline(always)]
pub(crate) unsafe fn store_w<V: F32x16>(v: V, p: *mut f32, w: usize) {
    // SAFETY: the caller's.
    unsafe { if w == LANES { v.store(p) } else { v.store_n(p, w) } }
}

/// `Σ f(x)` over `n` elements, `f(x, a)` added to an accumulator lane by lane. Lanes past the end must not count: `f` gets
/// whole vectors only, the rest goes through `last` one by one.
///
/// # Safety
/// `x` is valid for reads of `n` f32.
#[inline(always)]
unsafe fn total<S: Simd>(
    s: S,
    x: *const f32,
    n: usize,
    f: impl Fn(S::F32, S::F32) -> S::F32,
    last: impl Fn(f32, f32) -> f32,
) -> f32 {
    let mut acc = [s.zero(); 4];
    let mut at = 0;
    // SAFETY: every access lies below `n`.
    unsafe {
        while at + 4 * LANES <= n {
            for (v, acc) in acc.iter_mut().enumerate() {
                *acc = f(s.load(x.add(at + v * LANES)), *acc);
            }
            at += 4 * LANES;
        }
        while at + LANES <= n {
            acc[0] = f(s.load(x.add(at)), acc[0]);
            at += LANES;
        }
        let mut sum = ((acc[0] + acc[1]) + (acc[2] + acc[3])).sum();
        while at < n {
            sum = last(*x.add(at), sum);
            at += 1;
        }
        sum
    }
}

/// The mean.
///
/// # Safety
/// `x` is valid for reads of `n` f32.
#[inline(always)]
pub(super) unsafe fn mean<S: Simd>(s: S, x: *const f32, n: usize) -> f32 {
    // SAFETY: the caller's.
    let sum = unsafe {
        total(
            s,
            x,
            n,
            #[inline(always)]
            |x, a| a + x,
            |x, a| a + x,
        )
    };
    sum / n as f32
}

/// The mean of the squared distances to `center`.
///
/// # Safety
/// `x` is valid for reads of `n` f32.
#[inline(always)]
pub(super) unsafe fn mean_square<S: Simd>(s: S, x: *const f32, n: usize, center: f32) -> f32 {
    let c = s.splat(center);
    // SAFETY: the caller's.
    let sum = unsafe {
        total(
            s,
            x,
            n,
            #[inline(always)]
            |x, a| {
                let d = x - c;
                d.fma(d, a)
            },
            |x, a| a + (x - center) * (x - center),
        )
    };
    sum / n as f32
}

/// `y = x·a + b`.
///
/// # Safety
/// `x` is valid for reads, `y` for writes of `n` f32; they are equal or do not overlap.
#[inline(always)]
pub(super) unsafe fn affine<S: Simd>(s: S, x: *const f32, y: *mut f32, n: usize, a: f32, b: f32) {
    let (a, b) = (s.splat(a), s.splat(b));
    let mut at = 0;
    // SAFETY: every access lies below `n`.
    unsafe {
        while at + LANES <= n {
            s.load(x.add(at)).fma(a, b).store(y.add(at));
            at += LANES;
        }
        if at < n {
            s.load_n(x.add(at), n - at).fma(a, b).store_n(y.add(at), n - at);
        }
    }
}
