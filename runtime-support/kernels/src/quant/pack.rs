//! Offline packing of 8-bit convolution weights into blocks of 16 output channels, zero-padded.

use alloc::vec;
use alloc::vec::Vec;

/// ONNX weights `[OC, IC/groups, kh·kw]` as `[OC/16][IC/lane][kh·kw][lane/4][16 oc][4 ic]`, blocks counted within each
/// group; `lane` is 16, or 4 for [`QConvFirst`](super::QConvFirst). `None` where the lengths do not fit together.
pub fn pack_qconv_weights(w: &[i8], oc: usize, icg: usize, taps: usize, groups: usize, lane: usize) -> Option<Vec<i8>> {
    if groups == 0 || !oc.is_multiple_of(groups) || w.len() != oc.checked_mul(icg)?.checked_mul(taps)? {
        return None;
    }
    if !matches!(lane, 4 | 16) {
        return None;
    }
    let ocg = oc / groups;
    let (oc_blocks, ic_blocks) = (ocg.div_ceil(16), icg.div_ceil(lane));
    let tap = lane * 16;
    let block = taps.checked_mul(tap)?;
    let len = groups.checked_mul(oc_blocks)?.checked_mul(ic_blocks)?.checked_mul(block)?;
    let mut packed = vec![0; len];
    for o in 0..oc {
        let (g, o_in) = (o / ocg, o % ocg);
        for i in 0..icg {
            let c = i % lane;
            let at = ((g * oc_blocks + o_in / 16) * ic_blocks + i / lane) * block;
            let within = c / 4 * 64 + o_in % 16 * 4 + c % 4;
            for t in 0..taps {
                packed[at + t * tap + within] = w[(o * icg + i) * taps + t];
            }
        }
    }
    Some(packed)
}

/// Depthwise ONNX weights `[C, 1, kh, kw]` as `[C/16][kh][⌈kw/4⌉][16][4 kw]`. `None` where the lengths do not fit together.
pub fn pack_qdepthwise_weights(w: &[i8], channels: usize, kh: usize, kw: usize) -> Option<Vec<i8>> {
    if w.len() != channels.checked_mul(kh)?.checked_mul(kw)? {
        return None;
    }
    let fours = kw.div_ceil(4);
    let row = fours.checked_mul(64)?;
    let mut packed = vec![0; channels.div_ceil(16).checked_mul(kh)?.checked_mul(row)?];
    for c in 0..channels {
        for (t, &v) in w[c * kh * kw..][..kh * kw].iter().enumerate() {
            let (y, x) = (t / kw, t % kw);
            packed[(c / 16 * kh + y) * row + x / 4 * 64 + c % 16 * 4 + x % 4] = v;
        }
    }
    Some(packed)
}
