//! Greatest codes of windows over the blocked layout: MaxPool of quantised tensors.
//!
//! In: `x` as `[N, C/16, H, W, 16]`. Out: `y` as `[N, C/16, OH, OW, 16]`. Every window meets the image (a tap outside it
//! counts as the type's least value). Invariant: lanes never mix, so pad lanes reach nothing.

use super::quantize::Quantised;
use crate::{Fault, Isa, PartOut, kernel, simd_fn};

kernel! {
    /// Units `part_begin..part_end` of n·⌈c/16⌉·oh.
    pub struct QMaxPool {
        operands { read x: T, write_parts y: T }
        nums { n, c, h, w, oh, ow, kh, kw, sy, sx, dy, dx, pt, pl, part_begin, part_end }
        params { least: i32 }
    }
    entries { qmax_pool_u8 { T = u8 } qmax_pool_i8 { T = i8 } }
    body = qmax_pool;
}

fn qmax_pool<T: Quantised + Ord>(isa: Isa, d: &QMaxPool, x: &[T], mut y: PartOut<'_, T>) -> Result<(), Fault> {
    let bounded = |xs: &[usize]| {
        xs.iter().try_fold(1usize, |a, &v| a.checked_mul(v.checked_add(1)?)).is_some_and(|p| p < 1 << 48)
    };
    let planes = d.n.checked_mul(d.c.div_ceil(16)).ok_or(Fault::Descriptor)?;
    let sane = [d.kh, d.kw, d.sy, d.sx, d.dy, d.dx].iter().all(|&v| v >= 1)
        && bounded(&[planes, d.h, d.w, 16])
        && bounded(&[planes, d.oh, d.ow, 16])
        && bounded(&[d.oh, d.sy, d.kh, d.dy])
        && bounded(&[d.ow, d.sx, d.kw, d.dx])
        && bounded(&[d.pt, d.pl]);
    if !sane || d.part_begin > d.part_end || d.part_end > planes * d.oh {
        return Err(Fault::Descriptor);
    }
    if x.len() < planes * d.h * d.w * 16 || y.len() < planes * d.oh * d.ow * 16 {
        return Err(Fault::Descriptor);
    }
    for unit in d.part_begin..d.part_end {
        let (plane, row) = (unit / d.oh, unit % d.oh);
        let x = &x[plane * d.h * d.w * 16..][..d.h * d.w * 16];
        // SAFETY: the unit's row, which is the part's alone.
        one_row(isa, d, x, row, unsafe { y.own(unit * d.ow * 16..(unit + 1) * d.ow * 16) });
    }
    Ok(())
}

simd_fn! {
    fn one_row<S>[T: Quantised + Ord][T](_s, d: &QMaxPool, x: &[T], row: usize, y: &mut [T]) {
        let (x, _) = x.as_chunks::<16>();
        let (y, _) = y.as_chunks_mut::<16>();
        y.fill([T::narrow(d.least); 16]);
        for ky in 0..d.kh {
            let Some(r) = (row * d.sy + ky * d.dy).checked_sub(d.pt).filter(|&r| r < d.h) else { continue };
            let x = &x[r * d.w..][..d.w];
            for kx in 0..d.kw {
                let tap = kx * d.dx;
                let first = d.pl.saturating_sub(tap).div_ceil(d.sx).min(y.len());
                let last = (d.w + d.pl).saturating_sub(tap).div_ceil(d.sx).clamp(first, y.len());
                if first == last {
                    continue;
                }
                let from = x[first * d.sx + tap - d.pl..].iter().step_by(d.sx);
                for (y, x) in y[first..last].iter_mut().zip(from) {
                    for l in 0..16 {
                        y[l] = y[l].max(x[l]);
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Operand;

    #[test]
    fn windows_at_the_border() {
        let o = Operand::at(0, 0, 0);
        let d = QMaxPool {
            x: o,
            y: o,
            n: 1,
            c: 16,
            h: 3,
            w: 4,
            oh: 2,
            ow: 2,
            kh: 3,
            kw: 3,
            sy: 2,
            sx: 2,
            dy: 1,
            dx: 1,
            pt: 1,
            pl: 1,
            part_begin: 0,
            part_end: 2,
            least: -128,
        };
        let x: [i8; 192] = core::array::from_fn(|i| (i / 16) as i8 - 20 + (i % 16) as i8);
        for isa in Isa::supported() {
            let mut y = [0i8; 64];
            qmax_pool(isa, &d, &x, PartOut::whole(&mut y)).unwrap();
            for (at, &v) in y.iter().enumerate() {
                let pixel = [5, 7, 9, 11][at / 16];
                assert_eq!(v, pixel - 20 + (at % 16) as i8);
            }
            assert!(qmax_pool(isa, &d, &x[1..], PartOut::whole(&mut y)).is_err());
        }
    }
}
