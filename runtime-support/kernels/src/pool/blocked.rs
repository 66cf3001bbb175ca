//! Pools over the blocked layout `[N, C/16, H, W, 16]`: 16 channels to a vector, borders in place.
//!
//! In: `x`. Out: `y` as `[N, C/16, OH, OW, 16]`. Invariant: lanes never mix, so pad lanes reach nothing.

use super::root::root;
use super::{PoolKind, valid_taps};
use crate::simd::{F32x16, Simd};
use crate::{Fault, Isa, PartOut, kernel, simd_fn};

kernel! {
    /// Pool over windows. Units `part_begin..part_end` of [`pool_blocked_units`].
    pub struct PoolBlocked {
        operands { read x: T, write_parts y: T }
        nums { n, c, h, w, oh, ow, kh, kw, sy, sx, dy, dx, pt, pl, pb, pr, part_begin, part_end }
        params { kind: PoolKind, p: u32 }
    }
    entries { pool_blocked_f32 { T = f32 } }
    body = pool_blocked;
}

kernel! {
    /// Pool over whole images of `spatial` pixels. Units `part_begin..part_end` of n·⌈c/16⌉.
    pub struct GlobalPoolBlocked {
        operands { read x: T, write_parts y: T }
        nums { n, c, spatial, part_begin, part_end }
        params { kind: PoolKind, p: u32 }
    }
    entries { global_pool_blocked_f32 { T = f32 } }
    body = global_pool_blocked;
}

/// Units of work of a [`PoolBlocked`]: batch · channel blocks · output rows.
pub const fn pool_blocked_units(n: usize, c: usize, oh: usize) -> usize {
    n * c.div_ceil(16) * oh
}

/// Whether the product stays far from overflow.
pub(super) fn bounded(xs: &[usize]) -> bool {
    xs.iter().try_fold(1usize, |a, &x| a.checked_mul(x + 1)).is_some_and(|p| p < 1 << 48)
}

fn pool_blocked(isa: Isa, d: &PoolBlocked, x: &[f32], mut y: PartOut<'_, f32>) -> Result<(), Fault> {
    let steps = [d.kh, d.kw, d.sy, d.sx, d.dy, d.dx];
    let sane = steps.iter().all(|&v| (1..1 << 40).contains(&v))
        && [d.n, d.c, d.h, d.w, d.oh, d.ow, d.pt, d.pl, d.pb, d.pr].iter().all(|&v| v < 1 << 40)
        && bounded(&[d.oh, d.sy, d.kh, d.dy])
        && bounded(&[d.ow, d.sx, d.kw, d.dx])
        && bounded(&[d.n, d.c + 16, d.h, d.w])
        && bounded(&[d.n, d.c + 16, d.oh, d.ow]);
    if !sane {
        return Err(Fault::Descriptor);
    }
    let planes = d.n * d.c.div_ceil(16);
    let fits = x.len() >= planes * d.h * d.w * 16 && y.len() >= planes * d.oh * d.ow * 16;
    if !fits || d.part_begin > d.part_end || d.part_end > planes * d.oh {
        return Err(Fault::Descriptor);
    }
    // SAFETY: both operands are as long as the extents say, and the units lie in them.
    unsafe {
        match d.kind {
            PoolKind::Max => rows::<MAX>(isa, d, x.as_ptr(), y.as_mut_ptr()),
            PoolKind::Average | PoolKind::AverageWithPads => rows::<SUM>(isa, d, x.as_ptr(), y.as_mut_ptr()),
            PoolKind::Lp => rows::<POWER>(isa, d, x.as_ptr(), y.as_mut_ptr()),
        }
    }
    Ok(())
}

/// How taps combine.
const MAX: u8 = 0;
const SUM: u8 = 1;
const POWER: u8 = 2;

/// Pixels of a tile.
const Q: usize = 7;

/// One more tap.
#[inline(always)]
fn combine<S: Simd, const OP: u8>(s: S, acc: S::F32, v: S::F32, p: u32) -> S::F32 {
    match OP {
        MAX => acc.max(v),
        SUM => acc + v,
        _ => {
            let a = v.abs();
            let mut power = a;
            for _ in 1..p {
                power = power * a;
            }
            acc + if p == 0 { s.splat(1.0) } else { power }
        }
    }
}

/// The p-th root of every lane.
#[inline(always)]
fn lp<S: Simd>(s: S, sum: S::F32, p: u32) -> S::F32 {
    match p {
        1 => sum,
        2 => sum.sqrt(),
        _ => s.array(sum.to_array().map(|v| root(v, p))),
    }
}

simd_fn! {
    /// # Safety
    /// The operands are as long as the extents say, and the parts lie in them.
    unsafe fn rows<S>[const OP: u8][OP](s, d: &PoolBlocked, x: *const f32, y: *mut f32) {
        for unit in d.part_begin..d.part_end {
            let (plane, row) = (unit / d.oh, unit % d.oh);
            let top = row * d.sy;
            let (first, last) = valid_taps(top, d.kh, d.dy, d.pt, d.pt + d.h);
            let (pad_first, pad_last) = valid_taps(top, d.kh, d.dy, 0, d.pt + d.h + d.pb);
            let x = x.wrapping_add(plane * d.h * d.w * 16);
            let y = y.wrapping_add(unit * d.ow * 16);
            let mut done = 0;
            while done < d.ow {
                // The last tile of a row computes some pixels again rather than some beside the row.
                let at = done.min(d.ow.saturating_sub(Q));
                let n = Q.min(d.ow - at);
                let left = at * d.sx;
                let mut acc = [s.splat(if OP == MAX { f32::NEG_INFINITY } else { 0.0 }); Q];
                for ky in first..last {
                    let row = x.wrapping_add((top + ky * d.dy - d.pt) * d.w * 16);
                    for kx in 0..d.kw {
                        // Columns left of the image wrap to huge ones.
                        let col = (left + kx * d.dx).wrapping_sub(d.pl);
                        let all_inside = col < d.w && col + (Q - 1) * d.sx < d.w;
                        let mut p = row.wrapping_add(col.wrapping_mul(16));
                        for q in 0..Q {
                            if all_inside || col.wrapping_add(q * d.sx) < d.w {
                                // SAFETY: the caller's promise; the column lies in the image.
                                acc[q] = combine::<S, OP>(s, acc[q], unsafe { s.load(p) }, d.p);
                            }
                            p = p.wrapping_add(d.sx * 16);
                        }
                    }
                }
                for q in 0..n {
                    let left = left + q * d.sx;
                    let v = match d.kind {
                        PoolKind::Max => acc[q],
                        PoolKind::Lp => lp(s, acc[q], d.p),
                        PoolKind::Average => {
                            let (a, b) = valid_taps(left, d.kw, d.dx, d.pl, d.pl + d.w);
                            acc[q] / s.splat(((b - a) * (last - first)) as f32)
                        }
                        PoolKind::AverageWithPads => {
                            let (a, b) = valid_taps(left, d.kw, d.dx, 0, d.pl + d.w + d.pr);
                            acc[q] / s.splat(((b - a) * (pad_last - pad_first)) as f32)
                        }
                    };
                    // SAFETY: pixel `at + q` lies in the row.
                    unsafe { v.store(y.add((at + q) * 16)) };
                }
                done = at + n;
            }
        }
    }
}

fn global_pool_blocked(isa: Isa, d: &GlobalPoolBlocked, x: &[f32], mut y: PartOut<'_, f32>) -> Result<(), Fault> {
    if !bounded(&[d.n, d.c.saturating_add(16), d.spatial]) {
        return Err(Fault::Descriptor);
    }
    let planes = d.n * d.c.div_ceil(16);
    let fits = x.len() >= planes * d.spatial * 16 && y.len() >= planes * 16;
    if !fits || d.part_begin > d.part_end || d.part_end > planes {
        return Err(Fault::Descriptor);
    }
    // SAFETY: 16 elements for each of the part's units, which are the part's alone.
    let y = unsafe { y.own(d.part_begin * 16..d.part_end * 16) };
    match d.kind {
        PoolKind::Max => global::<MAX>(isa, d, x, y),
        PoolKind::Average | PoolKind::AverageWithPads => global::<SUM>(isa, d, x, y),
        PoolKind::Lp => global::<POWER>(isa, d, x, y),
    }
    Ok(())
}

simd_fn! {
    /// `y` begins with the first unit's pixels.
    fn global<S>[const OP: u8][OP](s, d: &GlobalPoolBlocked, x: &[f32], y: &mut [f32]) {
        for unit in d.part_begin..d.part_end {
            let image = &x[unit * d.spatial * 16..][..d.spatial * 16];
            let neutral = s.splat(if OP == MAX { f32::NEG_INFINITY } else { 0.0 });
            let mut acc = [neutral; Q];
            let (tiles, rest) = image.as_chunks::<{ Q * 16 }>();
            for tile in tiles {
                for q in 0..Q {
                    acc[q] = combine::<S, OP>(s, acc[q], s.load_slice(tile, q * 16), d.p);
                }
            }
            for at in (0..rest.len()).step_by(16) {
                acc[0] = combine::<S, OP>(s, acc[0], s.load_slice(rest, at), d.p);
            }
            let mut all = acc[0];
            for &v in &acc[1..] {
                all = if OP == MAX { all.max(v) } else { all + v };
            }
            let v = match d.kind {
                PoolKind::Max => all,
                PoolKind::Average | PoolKind::AverageWithPads => all / s.splat(d.spatial as f32),
                PoolKind::Lp => lp(s, all, d.p),
            };
            v.store_slice(y, (unit - d.part_begin) * 16);
        }
    }
}
