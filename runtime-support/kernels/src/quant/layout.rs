//! Bytes between the plain layout `[N, C, spatial]` and the blocked one `[N, C/16, spatial, 16]`.
//!
//! In: one of them. Out: the other; to blocked, pad lanes become zero, from blocked, they are not read.
//! A unit is one channel block of one image; units write disjoint elements.

use crate::{Fault, Isa, PartOut, kernel};

kernel! {
    /// Plain to blocked. Units `part_begin..part_end` of n·⌈c/16⌉.
    pub struct BytesToBlocked16 {
        operands { read x: B, write_parts y: B }
        nums { n, c, spatial, part_begin, part_end }
    }
    entries { bytes_to_blocked16 { B = u8 } }
    body = to_blocked;
}

kernel! {
    /// Blocked to plain. Units `part_begin..part_end` of n·⌈c/16⌉.
    pub struct BytesFromBlocked16 {
        operands { read x: B, write_parts y: B }
        nums { n, c, spatial, part_begin, part_end }
    }
    entries { bytes_from_blocked16 { B = u8 } }
    body = from_blocked;
}

/// The extents' products if they fit the operands and the part its units.
fn check(plain: usize, blocked: usize, [n, c, spatial, begin, end]: [usize; 5]) -> Result<usize, Fault> {
    let all = n.checked_mul(c).and_then(|v| v.checked_mul(spatial));
    let units = n.checked_mul(c.div_ceil(16));
    let padded = units.and_then(|u| u.checked_mul(16)).and_then(|v| v.checked_mul(spatial));
    let fits = all.is_some_and(|v| v <= plain) && padded.is_some_and(|v| v <= blocked);
    if fits && begin <= end && units.is_some_and(|u| end <= u) { Ok(c.div_ceil(16)) } else { Err(Fault::Descriptor) }
}

fn to_blocked(_: Isa, d: &BytesToBlocked16, x: &[u8], mut y: PartOut<'_, u8>) -> Result<(), Fault> {
    let blocks = check(x.len(), y.len(), [d.n, d.c, d.spatial, d.part_begin, d.part_end])?;
    for unit in d.part_begin..d.part_end {
        let (image, block) = (unit / blocks, unit % blocks);
        let lanes = (d.c - block * 16).min(16);
        let from = &x[(image * d.c + block * 16) * d.spatial..][..lanes * d.spatial];
        // SAFETY: the unit's block of one image, which is the part's alone.
        let (to, _) = unsafe { y.own(unit * d.spatial * 16..(unit + 1) * d.spatial * 16) }.as_chunks_mut::<16>();
        let whole = if lanes == 16 { d.spatial / 16 * 16 } else { 0 };
        for p in (0..whole).step_by(16) {
            transpose(|l| &from[l * d.spatial + p..], |i, v| to[p + i] = v);
        }
        for p in whole..d.spatial {
            to[p] = core::array::from_fn(|l| if l < lanes { from[l * d.spatial + p] } else { 0 });
        }
    }
    Ok(())
}

fn from_blocked(_: Isa, d: &BytesFromBlocked16, x: &[u8], mut y: PartOut<'_, u8>) -> Result<(), Fault> {
    let blocks = check(y.len(), x.len(), [d.n, d.c, d.spatial, d.part_begin, d.part_end])?;
    for unit in d.part_begin..d.part_end {
        let (image, block) = (unit / blocks, unit % blocks);
        let lanes = (d.c - block * 16).min(16);
        let (from, _) = x[unit * d.spatial * 16..][..d.spatial * 16].as_chunks::<16>();
        let at = (image * d.c + block * 16) * d.spatial;
        // SAFETY: the unit's channels of one image, which are the part's alone.
        let to = unsafe { y.own(at..at + lanes * d.spatial) };
        let whole = d.spatial / 16 * 16;
        for p in (0..whole).step_by(16) {
            transpose(
                |i| &from[p + i][..],
                |l, v| {
                    if l < lanes {
                        to[l * d.spatial + p..][..16].copy_from_slice(&v);
                    }
                },
            );
        }
        for p in whole..d.spatial {
            for l in 0..lanes {
                to[l * d.spatial + p] = from[p][l];
            }
        }
    }
    Ok(())
}

/// Gives the columns of 16 rows of 16 bytes.
#[inline(always)]
fn transpose<'a>(row: impl Fn(usize) -> &'a [u8], mut column: impl FnMut(usize, [u8; 16])) {
    let mut m: [[u8; 16]; 16] = core::array::from_fn(|i| {
        let mut r = [0; 16];
        r.copy_from_slice(&row(i)[..16]);
        r
    });
    // Four rounds of interleaving row i with row i + 8 are the transposition.
    for _ in 0..4 {
        m = core::array::from_fn(|i| {
            let (a, b) = (&m[i / 2], &m[i / 2 + 8]);
            core::array::from_fn(|j| if j % 2 == 0 { a[i % 2 * 8 + j / 2] } else { b[i % 2 * 8 + j / 2] })
        });
    }
    for (i, v) in m.into_iter().enumerate() {
        column(i, v);
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use crate::Operand;
    use std::vec::Vec;

    #[test]
    fn there_and_back() {
        for (n, c, spatial) in [(1, 16, 16), (2, 37, 35), (1, 3, 5), (1, 32, 1), (2, 16, 0)] {
            let x: Vec<u8> = (0..n * c * spatial).map(|i| (i * 7 % 256) as u8).collect();
            let blocks = usize::div_ceil(c, 16);
            let (mut y, mut back) = (std::vec![1u8; n * blocks * 16 * spatial], std::vec![0u8; x.len()]);
            let o = Operand::at(0, 0, 0);
            let to = BytesToBlocked16 { x: o, y: o, n, c, spatial, part_begin: 0, part_end: n * blocks };
            to_blocked(Isa::Scalar, &to, &x, PartOut::whole(&mut y)).unwrap();
            for (at, &v) in y.iter().enumerate() {
                let (block, p, l) = (at / 16 / spatial % blocks, at / 16 % spatial, at % 16);
                let (image, channel) = (at / (16 * spatial * blocks), block * 16 + l);
                let want = if channel < c { x[(image * c + channel) * spatial + p] } else { 0 };
                assert_eq!(v, want);
            }
            let from = BytesFromBlocked16 { x: o, y: o, n, c, spatial, part_begin: 0, part_end: n * blocks };
            from_blocked(Isa::Scalar, &from, &y, PartOut::whole(&mut back)).unwrap();
            assert_eq!(back, x);
            assert!(
                to_blocked(
                    Isa::Scalar,
                    &BytesToBlocked16 { n: n + 1, c: 16, spatial: 99, ..to },
                    &x,
                    PartOut::whole(&mut y)
                )
                .is_err()
            );
        }
    }
}
