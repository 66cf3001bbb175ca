//! Col2Im: columns of blocks added up to the image they were cut from.
//!
//! In: `x` as `[n, places of a block, columns]`. Out: `y` as `[n, image…]`. Source: <https://onnx.ai/onnx/operators/onnx__Col2Im.html>

use crate::indexing::{Join, Update};
use crate::movement::{holds, product};
use crate::{Fault, Isa, bf16, f16, kernel};

kernel! {
    /// `y[n, cols·strides + block·dilations - before] += x[n, block, cols]`. The last `rank` axes count; those in front have
    /// extent 1 everywhere. A `stated` block replaces the planned one.
    pub struct Col2Im {
        operands { read x: T, opt stated: I, write y: T }
        nums { n, places, columns, rank }
        arrays { image: 4, block: 4, strides: 4, dilations: 4, before: 4, after: 4 }
    }
    entries {
        col2im_f32 { T = f32, I = i64 } col2im_f64 { T = f64, I = i64 } col2im_f16 { T = f16, I = i64 } col2im_bf16 { T = bf16, I = i64 }
        col2im_i8 { T = i8, I = i64 } col2im_i16 { T = i16, I = i64 } col2im_i32 { T = i32, I = i64 } col2im_i64 { T = i64, I = i64 }
        col2im_u8 { T = u8, I = i64 } col2im_u16 { T = u16, I = i64 } col2im_u32 { T = u32, I = i64 } col2im_u64 { T = u64, I = i64 }
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

fn col2im<T: Join + Default>(_: Isa, d: &Col2Im, x: &[T], stated: Option<&[i64]>, y: &mut [T]) -> Result<(), Fault> {
    let Col2Im { n, places, columns, image, .. } = *d;
    let pixels = product(&image).ok_or(Fault::Descriptor)?;
    if !holds(x.len(), &[n, places, columns]) || !holds(y.len(), &[n, pixels]) {
        return Err(Fault::Descriptor);
    }
    let mut block = d.block;
    if let Some(stated) = stated {
        let missing = 4usize.checked_sub(d.rank).ok_or(Fault::Descriptor)?;
        for (b, &s) in block[missing..].iter_mut().zip(stated) {
            *b = usize::try_from(s).ok().filter(|&s| s > 0).ok_or(Fault::ShapeMismatch)?;
        }
    }
    let mut cols = [0; 4];
    for a in 0..4 {
        let reach = block[a].checked_sub(1).and_then(|b| b.checked_mul(d.dilations[a])).ok_or(Fault::Descriptor)?;
        let room = (image[a] + d.before[a] + d.after[a]).checked_sub(reach + 1).ok_or(Fault::ShapeMismatch)?;
        cols[a] = room.checked_div(d.strides[a]).ok_or(Fault::Descriptor)? + 1;
    }
    if product(&block) != Some(places) || product(&cols) != Some(columns) {
        return Err(Fault::ShapeMismatch);
    }
    y[..n * pixels].fill(T::default());
    if n * pixels * places * columns == 0 {
        return Ok(());
    }
    for (x, y) in x.chunks_exact(places * columns).zip(y.chunks_exact_mut(pixels)).take(n) {
        let mut from = x.iter();
        let mut place = [0; 4];
        loop {
            let mut col = [0; 4];
            loop {
                let Some(&v) = from.next() else { return Err(Fault::Descriptor) };
                let position = |a: usize| {
                    let at = (col[a] * d.strides[a] + place[a] * d.dilations[a]).checked_sub(d.before[a])?;
                    (at < image[a]).then_some(at)
                };
                let at = (0..4).try_fold(0, |sum, a| Some(sum * image[a] + position(a)?));
                if let Some(at) = at {
                    y[at] = y[at].join(Update::Add, v);
                }
                if !next(&mut col, &cols) {
                    break;
                }
            }
            if !next(&mut place, &block) {
                break;
            }
        }
    }
    Ok(())
}
