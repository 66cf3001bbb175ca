//! NonMaxSuppression: of boxes that overlap, the one with the best score.
//!
//! In: boxes `[batches, n, 4]`, scores `[batches, classes, n]`. Out: rows of (batch, class, box), best first within a class.
//! Source: <https://onnx.ai/onnx/operators/onnx__NonMaxSuppression.html>

use super::order::sort;
use crate::movement::holds;
use crate::{Fault, Isa, kernel};

kernel! {
    /// `y` as `[count, 3]`. Absent operands: no box per class, a threshold of 0, any score. `order` is scratch for `n`
    /// positions. `centered`: boxes are (x, y, width, height), else (y, x, y, x) of two opposite corners.
    pub struct NonMaxSuppression {
        operands {
            read boxes: T, read scores: T, opt max_per_class: I, opt iou_threshold: T, opt score_threshold: T,
            write y: I, write order: P
        }
        nums { batches, classes, n }
        params { centered: bool }
        found { count }
    }
    entries { non_max_suppression_f32 { T = f32, I = i64, P = u32 } }
    body = non_max_suppression;
}

/// A box as (low x, low y, high x, high y).
struct Corners([f32; 4]);

impl Corners {
    fn of(b: &[f32], centered: bool) -> Self {
        let (x1, y1, x2, y2) = if centered {
            (b[0] - b[2] / 2.0, b[1] - b[3] / 2.0, b[0] + b[2] / 2.0, b[1] + b[3] / 2.0)
        } else {
            (b[1], b[0], b[3], b[2])
        };
        Self([x1.min(x2), y1.min(y2), x1.max(x2), y1.max(y2)])
    }

    fn area(&self) -> f32 {
        let [x1, y1, x2, y2] = self.0;
        (x2 - x1) * (y2 - y1)
    }

    /// Whether the intersection is more than this part of the union.
    fn overlaps(&self, other: &Self, threshold: f32) -> bool {
        let ([ax1, ay1, ax2, ay2], [bx1, by1, bx2, by2]) = (self.0, other.0);
        let (w, h) = (ax2.min(bx2) - ax1.max(bx1), ay2.min(by2) - ay1.max(by1));
        if !(w > 0.0 && h > 0.0) {
            return false;
        }
        let union = self.area() + other.area() - w * h;
        self.area() > 0.0 && other.area() > 0.0 && union > 0.0 && w * h / union > threshold
    }
}

fn non_max_suppression(
    _: Isa,
    d: &NonMaxSuppression,
    boxes: &[f32],
    scores: &[f32],
    max_per_class: Option<&[i64]>,
    iou_threshold: Option<&[f32]>,
    score_threshold: Option<&[f32]>,
    y: &mut [i64],
    order: &mut [u32],
) -> Result<[usize; 1], Fault> {
    let NonMaxSuppression { batches, classes, n, centered, .. } = *d;
    if !holds(boxes.len(), &[batches, n, 4]) || !holds(scores.len(), &[batches, classes, n]) || order.len() < n {
        return Err(Fault::Descriptor);
    }
    let most = max_per_class.and_then(|m| m.first()).map_or(0, |&m| usize::try_from(m).unwrap_or(0));
    let threshold = iou_threshold.and_then(|t| t.first()).copied().unwrap_or(0.0);
    let least = score_threshold.and_then(|t| t.first()).copied();
    let mut count = 0;
    for batch in 0..batches {
        let boxes = &boxes[batch * n * 4..(batch + 1) * n * 4];
        let corners = |i: usize| Corners::of(&boxes[4 * i..4 * i + 4], centered);
        for class in 0..classes {
            let scores = &scores[(batch * classes + class) * n..][..n];
            let mut candidates = 0;
            for (i, &s) in scores.iter().enumerate() {
                if least.is_none_or(|least| s > least) {
                    order[candidates] = i as u32;
                    candidates += 1;
                }
            }
            let order = &mut order[..candidates];
            sort(order, &|a, b| scores[b as usize].total_cmp(&scores[a as usize]).then(a.cmp(&b)));
            let first = count;
            for &i in order.iter() {
                if count - first >= most {
                    break;
                }
                let candidate = corners(i as usize);
                let kept = &y[3 * first..3 * count];
                if kept.chunks_exact(3).any(|k| corners(k[2] as usize).overlaps(&candidate, threshold)) {
                    continue;
                }
                let row = y.get_mut(3 * count..3 * count + 3).ok_or(Fault::BoundExceeded)?;
                row.copy_from_slice(&[batch as i64, class as i64, i64::from(i)]);
                count += 1;
            }
        }
    }
    Ok([count])
}
