//! Strided copy between two views: Transpose, Slice, Expand, Concat, Split, Tile, Pad's inner part, depth/space moves.
//!
//! In: `x` and signed element strides per dimension (0 repeats, negative reverses) from a start offset; `y` likewise.
//! Out: the elements of `y` that the view covers; others keep their bytes (so `y` is an `update` operand).
//! Invariant: dimensions are outermost first, unused ones have extent 1.

use crate::{Fault, Isa, kernel};

/// Most dimensions a strided view can have.
pub const MAX_RANK: usize = 8;

kernel! {
    /// `y[y_start + Σ i·y_strides] = x[x_start + Σ i·x_strides]` over all `i < dims`. Strides are in elements, two's complement.
    pub struct CopyNd {
        operands { read x: T, update y: T }
        nums { x_start, y_start }
        arrays { dims: 8, x_strides: 8, y_strides: 8 }
    }
    entries { copy_nd_b8 { T = u8 } copy_nd_b16 { T = u16 } copy_nd_b32 { T = u32 } copy_nd_b64 { T = u64 } copy_nd_b128 { T = [u64; 2] } }
    body = copy_nd;
}

/// What is done at each position of the outer axes.
enum Inner {
    /// Rows contiguous on both sides.
    Rows,
    /// Rows of one repeated element.
    Fill,
    /// Reads contiguous along the other inner axis, writes along axis 7.
    Transpose,
    /// Anything else.
    Strided,
}

/// The two innermost loops: extent and strides of reads and writes, of the outer and the inner one.
struct Plane {
    m: usize,
    n: usize,
    xs: [usize; 2],
    ys: [usize; 2],
}

fn copy_nd<T: Block>(isa: Isa, d: &CopyNd, x: &[T], y: &mut [T]) -> Result<(), Fault> {
    if d.dims.contains(&0) {
        return Ok(());
    }
    if !covers(x.len(), d.x_start, &d.dims, &d.x_strides) || !covers(y.len(), d.y_start, &d.dims, &d.y_strides) {
        return Err(Fault::Descriptor);
    }
    let (xs, ys) = (d.x_strides[7], d.y_strides[7]);
    let inner = match (xs, ys) {
        _ if d.dims[7] == 1 => Inner::Rows,
        (1, 1) => Inner::Rows,
        (0, 1) => Inner::Fill,
        _ => Inner::Strided,
    };
    // The second loop: for a transposition the axis along which reads are contiguous, else the innermost one left.
    let contiguous = (0..7).rev().find(|&a| d.dims[a] > 1 && d.x_strides[a] == 1);
    let (inner, second) = match (inner, contiguous) {
        (Inner::Strided, Some(a)) if ys == 1 => (Inner::Transpose, a),
        (inner, _) => (inner, (0..7).rev().find(|&a| d.dims[a] > 1).unwrap_or(6)),
    };
    let plane = Plane { m: d.dims[second], n: d.dims[7], xs: [d.x_strides[second], xs], ys: [d.y_strides[second], ys] };
    let mut dims = d.dims;
    dims[second] = 1;
    let mut idx = [0usize; 7];
    let (mut xo, mut yo) = (d.x_start, d.y_start);
    loop {
        match inner {
            Inner::Rows => rows(&plane, x, xo, y, yo),
            Inner::Fill => fills(&plane, x, xo, y, yo),
            Inner::Transpose => transpose(isa, &plane, x, xo, y, yo),
            Inner::Strided => strided(&plane, x, xo, y, yo),
        }
        let mut axis = 7;
        loop {
            if axis == 0 {
                return Ok(());
            }
            axis -= 1;
            if dims[axis] == 1 {
                continue;
            }
            idx[axis] += 1;
            xo = xo.wrapping_add(d.x_strides[axis]);
            yo = yo.wrapping_add(d.y_strides[axis]);
            if idx[axis] < dims[axis] {
                break;
            }
            xo = xo.wrapping_sub(d.x_strides[axis].wrapping_mul(idx[axis]));
            yo = yo.wrapping_sub(d.y_strides[axis].wrapping_mul(idx[axis]));
            idx[axis] = 0;
        }
    }
}

fn rows<T: Copy>(p: &Plane, x: &[T], mut xo: usize, y: &mut [T], mut yo: usize) {
    for _ in 0..p.m {
        let (from, to) = (&x[xo..xo + p.n], &mut y[yo..yo + p.n]);
        if p.n < 8 {
            // Shorter than a call of memcpy is worth.
            for (y, x) in to.iter_mut().zip(from) {
                *y = *x;
            }
        } else {
            to.copy_from_slice(from);
        }
        xo = xo.wrapping_add(p.xs[0]);
        yo = yo.wrapping_add(p.ys[0]);
    }
}

fn fills<T: Copy>(p: &Plane, x: &[T], mut xo: usize, y: &mut [T], mut yo: usize) {
    for _ in 0..p.m {
        y[yo..yo + p.n].fill(x[xo]);
        xo = xo.wrapping_add(p.xs[0]);
        yo = yo.wrapping_add(p.ys[0]);
    }
}

fn strided<T: Copy>(p: &Plane, x: &[T], mut xo: usize, y: &mut [T], mut yo: usize) {
    for _ in 0..p.m {
        if p.ys[1] == 1 {
            let mut from = xo;
            for y in &mut y[yo..yo + p.n] {
                *y = x[from];
                from = from.wrapping_add(p.xs[1]);
            }
        } else {
            let (mut from, mut to) = (xo, yo);
            for _ in 0..p.n {
                y[to] = x[from];
                from = from.wrapping_add(p.xs[1]);
                to = to.wrapping_add(p.ys[1]);
            }
        }
        xo = xo.wrapping_add(p.xs[0]);
        yo = yo.wrapping_add(p.ys[0]);
    }
}

/// Writes `m` rows of `n`, reading `n` rows of `m`, in blocks of which both sides stay in the nearest cache.
fn transpose<T: Block>(isa: Isa, p: &Plane, x: &[T], xo: usize, y: &mut [T], yo: usize) {
    const B: usize = 8;
    for i in (0..p.m).step_by(2 * B) {
        for j in (0..p.n).step_by(B) {
            for i in (i..p.m.min(i + 2 * B)).step_by(B) {
                let (m, n) = (B.min(p.m - i), B.min(p.n - j));
                let xo = xo.wrapping_add(i).wrapping_add(j.wrapping_mul(p.xs[1]));
                let yo = yo.wrapping_add(i.wrapping_mul(p.ys[0])).wrapping_add(j);
                if m == B && n == B && T::transpose_8x8(isa, x, xo, p.xs[1], y, yo, p.ys[0]) {
                    continue;
                }
                for i in 0..m {
                    let row = yo.wrapping_add(i.wrapping_mul(p.ys[0]));
                    let mut from = xo + i;
                    for y in &mut y[row..row + n] {
                        *y = x[from];
                        from = from.wrapping_add(p.xs[1]);
                    }
                }
            }
        }
    }
}

/// Elements with a fast way to transpose a block.
trait Block: Copy {
    /// `y[yo + i·ys + j] = x[xo + j·xs + i]` for `i, j < 8`, if there is such a way and all of it is in bounds.
    #[inline(always)]
    fn transpose_8x8(_: Isa, _x: &[Self], _xo: usize, _xs: usize, _y: &mut [Self], _yo: usize, _ys: usize) -> bool {
        false
    }
}

impl Block for u8 {}
impl Block for u16 {}
impl Block for u64 {}
impl Block for [u64; 2] {}
impl Block for u32 {
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    fn transpose_8x8(isa: Isa, x: &[u32], xo: usize, xs: usize, y: &mut [u32], yo: usize, ys: usize) -> bool {
        let last = |at: usize, stride: usize, len: usize| {
            (stride as isize) >= 0
                && stride.checked_mul(7).and_then(|s| s.checked_add(at)?.checked_add(8)).is_some_and(|e| e <= len)
        };
        if !matches!(isa, Isa::Avx2 | Isa::Avx512) || !last(xo, xs, x.len()) || !last(yo, ys, y.len()) {
            return false;
        }
        // SAFETY: the instruction set is there; all eight rows of eight lie in the slices on both sides.
        unsafe { transpose_8x8_avx2(x.as_ptr().add(xo), xs, y.as_mut_ptr().add(yo), ys) };
        true
    }
}

/// Transposes 8×8 elements of 4 bytes.
///
/// # Safety
/// AVX2 runs here; eight rows of eight elements, `xs` and `ys` apart, are readable at `x` and writable at `y`.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn transpose_8x8_avx2(x: *const u32, xs: usize, y: *mut u32, ys: usize) {
    use core::arch::x86_64::*;
    // SAFETY: the caller's promise.
    unsafe {
        // Rows r and r+4 share a register, so that only in-lane shuffles follow.
        let pair = |c: usize, r: usize| {
            let low = _mm_loadu_ps(x.add(r * xs + c).cast());
            let high = _mm_loadu_ps(x.add((r + 4) * xs + c).cast());
            _mm256_insertf128_ps::<1>(_mm256_castps128_ps256(low), high)
        };
        for c in [0, 4] {
            let (a, b, d, e) = (pair(c, 0), pair(c, 1), pair(c, 2), pair(c, 3));
            let (ab_lo, ab_hi) = (_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));
            let (de_lo, de_hi) = (_mm256_unpacklo_ps(d, e), _mm256_unpackhi_ps(d, e));
            for (k, v) in [
                _mm256_shuffle_ps::<0x44>(ab_lo, de_lo),
                _mm256_shuffle_ps::<0xee>(ab_lo, de_lo),
                _mm256_shuffle_ps::<0x44>(ab_hi, de_hi),
                _mm256_shuffle_ps::<0xee>(ab_hi, de_hi),
            ]
            .into_iter()
            .enumerate()
            {
                _mm256_storeu_ps(y.add((c + k) * ys).cast(), v);
            }
        }
    }
}

/// Whether every element the view reaches lies in a slice of `len` elements.
fn covers(len: usize, start: usize, dims: &[usize; MAX_RANK], strides: &[usize; MAX_RANK]) -> bool {
    let (mut low, mut high) = (start as i128, start as i128);
    for (&n, &s) in dims.iter().zip(strides) {
        let reach = (n as i128 - 1) * i128::from(s as isize as i64);
        if reach < 0 { low += reach } else { high += reach }
    }
    low >= 0 && high < len as i128
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Cx, Operand, Region, RunState};

    #[test]
    fn transposes_and_reverses() {
        let x = [1u8, 2, 3, 4, 5, 6];
        let mut y = [0u8; 6];
        let state = RunState::new();
        let regions = [Region::read(&x), Region::write(&mut y)];
        let cx = Cx::new(&regions, Isa::Scalar, &state, &[]);
        let d = CopyNd {
            x: Operand::at(0, 0, 6),
            y: Operand::at(1, 0, 6),
            x_start: 2,
            y_start: 0,
            dims: [1, 1, 1, 1, 1, 1, 3, 2],
            x_strides: [0, 0, 0, 0, 0, 0, 1usize.wrapping_neg(), 3],
            y_strides: [0, 0, 0, 0, 0, 0, 2, 1],
        };
        copy_nd_b8(&cx, &d);
        assert_eq!(state.fault(), None);
        assert_eq!(y, [3, 6, 2, 5, 1, 4]);
    }

    /// Every inner loop, at sizes around the block, against the definition.
    #[test]
    fn agrees_with_the_definition() {
        let mut ran = 0;
        for (m, n) in [(1, 1), (3, 17), (8, 8), (16, 24), (19, 33), (40, 7)] {
            for (xs, ys) in [([1, m], [n, 1]), ([n, 1], [n, 1]), ([1, 0], [n, 1]), ([0, 1], [n, 1]), ([n, 1], [1, m])] {
                let len = 2 * m * n + 1;
                let x: std::vec::Vec<u32> = (0..len as u32).collect();
                let d = CopyNd {
                    x: Operand::at(0, 0, len * 4),
                    y: Operand::at(1, 0, len * 4),
                    x_start: 1,
                    y_start: 0,
                    dims: [1, 1, 2, 1, m, 1, 1, n],
                    x_strides: [0, 0, m * n, 0, xs[0], 0, 0, xs[1]],
                    y_strides: [0, 0, m * n, 0, ys[0], 0, 0, ys[1]],
                };
                let mut want = std::vec![0u32; len];
                for (b, i, j) in (0..2).flat_map(|b| (0..m).flat_map(move |i| (0..n).map(move |j| (b, i, j)))) {
                    want[b * m * n + i * ys[0] + j * ys[1]] = x[1 + b * m * n + i * xs[0] + j * xs[1]];
                }
                for isa in Isa::supported() {
                    let mut y = std::vec![0u32; len];
                    copy_nd(isa, &d, &x, &mut y).unwrap();
                    assert_eq!(y, want, "{m}x{n} {xs:?} {ys:?} {}", isa.name());
                    ran += 1;
                }
            }
        }
        assert!(ran >= 30);
    }
}
