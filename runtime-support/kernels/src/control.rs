//! Heads of control flow: the conditions of If and Loop, decided from memory.
//!
//! <https://onnx.ai/onnx/operators/onnx__If.html>, <https://onnx.ai/onnx/operators/onnx__Loop.html>

use crate::{Cx, Fault, Isa, kernel};

kernel! {
    /// Whether the condition holds.
    pub struct IfHead {
        operands { read cond: B }
        found { /// One where it holds.
            holds }
    }
    entries { if_head { B = u8 } }
    body = if_body;
}

fn if_body(_: Isa, _: &IfHead, cond: &[u8]) -> Result<[usize; 1], Fault> {
    let cond = cond.first().ok_or(Fault::Descriptor)?;
    Ok([usize::from(*cond != 0)])
}

kernel! {
    /// Whether a loop runs once more. `cell` counts: it starts at -1 and holds the number of the present iteration.
    /// The loop ends after `trips` iterations, after `limit` (the trip count as an operand), or when `cond` is false; one
    /// that wants more than `most` iterations, for which memory was planned, fails.
    pub struct LoopHead {
        operands { update cell: I, opt limit: I, opt cond: B }
        nums { trips, most }
        found {
            /// Number of the present iteration.
            iteration,
            /// Iterations done, once the loop ends.
            count,
            /// One where there is a further iteration.
            again }
    }
    entries { loop_head { I = i64, B = u8 } }
    body = loop_body;
}

fn loop_body(
    _: Isa,
    d: &LoopHead,
    cell: &mut [i64],
    limit: Option<&[i64]>,
    cond: Option<&[u8]>,
) -> Result<[usize; 3], Fault> {
    let cell = cell.first_mut().ok_or(Fault::Descriptor)?;
    let next = cell.checked_add(1).ok_or(Fault::BoundExceeded)?;
    let n = usize::try_from(next).map_err(|_| Fault::Descriptor)?;
    let ended = n >= d.trips
        || limit.is_some_and(|l| l.first().is_none_or(|l| *l <= next))
        || cond.is_some_and(|c| c.first().is_none_or(|c| *c == 0));
    if ended {
        return Ok([n, n, 0]);
    }
    if n >= d.most {
        return Err(Fault::BoundExceeded);
    }
    *cell = next;
    Ok([n, n, 1])
}

/// Runs [`if_head`]; false after a fault too.
pub fn if_holds(cx: &Cx<'_>, d: &IfHead) -> bool {
    if_head(cx, d);
    !cx.failed() && cx.dim(d.holds) != 0
}

/// Runs [`loop_head`]; false after a fault too.
pub fn loop_again(cx: &Cx<'_>, d: &LoopHead) -> bool {
    if cx.failed() {
        return false;
    }
    loop_head(cx, d);
    !cx.failed() && cx.dim(d.again) != 0
}

kernel! {
    /// Gives up to eight extents their values, all at once.
    pub struct SetExtents {
        operands { }
        arrays { values: 8 }
        found { slot_0, slot_1, slot_2, slot_3, slot_4, slot_5, slot_6, slot_7 }
    }
    entries { set_extents { } }
    body = set_body;
}

fn set_body(_: Isa, d: &SetExtents) -> Result<[usize; 8], Fault> {
    Ok(d.values)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loop_counts_and_ends() {
        let head = |trips, most| LoopHead {
            cell: crate::Operand::at(0, 0, 8),
            limit: None,
            cond: None,
            trips,
            most,
            iteration: 0,
            count: 1,
            again: 2,
        };
        let mut cell = [-1i64];
        for n in 0..3 {
            assert_eq!(loop_body(Isa::Scalar, &head(usize::MAX, 9), &mut cell, Some(&[3]), Some(&[1])), Ok([n, n, 1]));
            assert_eq!(cell, [n as i64]);
        }
        assert_eq!(loop_body(Isa::Scalar, &head(usize::MAX, 9), &mut cell, Some(&[3]), Some(&[1])), Ok([3, 3, 0]));
        assert_eq!(loop_body(Isa::Scalar, &head(usize::MAX, 9), &mut cell, Some(&[4]), Some(&[0])), Ok([3, 3, 0]));
        assert_eq!(
            loop_body(Isa::Scalar, &head(usize::MAX, 3), &mut cell, Some(&[4]), Some(&[1])),
            Err(Fault::BoundExceeded)
        );
        assert_eq!(loop_body(Isa::Scalar, &head(3, 3), &mut cell, None, None), Ok([3, 3, 0]));
        assert_eq!(loop_body(Isa::Scalar, &head(3, 3), &mut [-1], Some(&[-5]), None), Ok([0, 0, 0]));
    }
}
