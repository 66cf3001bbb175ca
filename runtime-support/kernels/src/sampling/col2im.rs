//! Col2Im: columns of blocks added up to the image they were cut from.
//!
//! In: `x` as `[n, Π block, Π cols]`. Out: `y` as `[n, image…]`. Source: <https://onnx.ai/onnx/operators/onnx__Col2Im.html>

use crate::indexing::{Join, Update};
use crate::movement::holds;
use crate::{Fault, Isa, bf16, f16, kernel};

kernel! {
    /// `y[n, cols·strides + block·dilations - pads] += x[n, block, cols]`. Unused axes in front have extent 1 everywhere.
    pub struct Col2Im {
        operands { read x: T, write y: T }
        nums { n }
        arrays { image: 4, block: 4, cols: 4, strides: 4, dilations: 4, pads: 4 }
    }
    entries {
        col2im_f32 { T = f32 } col2im_f64 { T = f64 } col2im_f16 { T = f16 } col2im_bf16 { T = bf16 }
        col2im_i8 { T = i8 } col2im_i16 { T = i16 } col2im_i32 { T = i32 } col2im_i64 { T = i64 }
        col2im_u8 { T = u8 } col2im_u16 { T = u16 } col2im_u32 { T = u32 } col2im_u64 { T = u64 }
    }
    body = col2im;
}

/// Counts an index up, last axis first; false after the last one.
fn next(at: &mut [usize; 4], dims: &[usize; 4]) -> bool {
    for a in (0..4).rev() {
        at[a] += 1;
        if at[a] < dims[a] {
            return true;
        }
        at[a] = 0;
    }
    false
}

fn col2im<T: Join + Default>(_: Isa, d: &Col2Im, x: &[T], y: &mut [T]) -> Result<(), Fault> {
    let Col2Im { n, image, block, cols, .. } = d;
    let sizes = [image, block, cols].map(|e| e.iter().try_fold(1usize, |p, &d| p.checked_mul(d)));
    let [Some(pixels), Some(places), Some(columns)] = sizes else { return Err(Fault::Descriptor) };
    if !holds(x.len(), &[*n, places, columns]) || !holds(y.len(), &[*n, pixels]) {
        return Err(Fault::Descriptor);
    }
    y[..n * pixels].fill(T::default());
    if n * pixels * places * columns == 0 {
        return Ok(());
    }
    for (x, y) in x.chunks_exact(places * columns).zip(y.chunks_exact_mut(pixels)).take(*n) {
        let mut from = x.iter();
        let mut place = [0; 4];
        loop {
            let mut col = [0; 4];
            loop {
                let Some(&v) = from.next() else { return Err(Fault::Descriptor) };
                let position = |a: usize| {
                    let at = (col[a] * d.strides[a] + place[a] * d.dilations[a]).checked_sub(d.pads[a])?;
                    (at < image[a]).then_some(at)
                };
                let at = (0..4).try_fold(0, |sum, a| Some(sum * image[a] + position(a)?));
                if let Some(at) = at {
                    y[at] = y[at].join(Update::Add, v);
                }
                if !next(&mut col, cols) {
                    break;
                }
            }
            if !next(&mut place, block) {
                break;
            }
        }
    }
    Ok(())
}
