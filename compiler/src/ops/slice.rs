//! Slice: every `step`-th element of each axis between two bounds. Contiguous results are views.
//!
//! <https://onnx.ai/onnx/operators/onnx__Slice.html>

use super::found::slot;
use super::index::{as_i64, last8};
use super::strided::Window;
use super::view::{NodeView, Result, resolve_axes, wrong};
use super::{InferCx, OpDef, tensor};
use crate::error::{CompileError, Stage};
use crate::ir::Dim;
use crate::lower::{LowerCx, width_of};
use kiln_kernels::{Dtype, NO_SLOT, Operand, SliceAt};

pub(super) static OPS: &[OpDef] = &[OpDef::new("", "Slice", &[1, 10, 11, 13], infer, lower).with_dims(dims)];

/// Bounds beyond this mean "to the end": no planned axis is longer, and exporters write 2^31 - 1 as well as 2^63 - 1.
const FAR: i64 = i32::MAX as i64;

/// A position on an axis: negative ones count from the end, all are clamped.
fn clamped(v: &Dim, extent: &Dim, low: &Dim, high: &Dim) -> Dim {
    let at = match v.as_const() {
        Some(c) if c >= FAR && extent.upper().is_none_or(|u| u <= c) => return high.clone(),
        Some(c) if c <= -FAR && extent.upper().is_none_or(|u| u <= c.saturating_neg()) => return low.clone(),
        Some(c) if c < 0 => v.clone() + extent.clone(),
        Some(_) => v.clone(),
        None if v.lower() >= 0 => v.clone(),
        None => {
            // 1 where v is negative, else 0.
            let negative = (Dim::Const(0) - v.clone()).at_least(&Dim::Const(0)).at_most(&Dim::Const(1));
            v.clone() + extent.clone() * negative
        }
    };
    at.at_least(low).at_most(high)
}

/// First position and number of elements of one sliced axis.
fn span(extent: &Dim, start: &Dim, end: &Dim, step: i64) -> (Dim, Dim) {
    let (zero, one) = (Dim::Const(0), Dim::Const(1));
    if step > 0 {
        let start = clamped(start, extent, &zero, extent);
        let end = clamped(end, extent, &zero, extent);
        let n = (end - start.clone()).at_least(&zero).ceil_div(&Dim::Const(step));
        (start, n)
    } else {
        let last = extent.clone() - one;
        let start = clamped(start, extent, &zero, &last);
        let end = clamped(end, extent, &Dim::Const(-1), &last);
        let n = (start.clone() - end).at_least(&zero).ceil_div(&Dim::Const(-step));
        (start, n)
    }
}

/// Whether the bounds are known only at run time.
fn at_run_time(cx: &NodeView<'_>) -> bool {
    cx.version() >= 10 && (1..5).any(|i| cx.has(i) && cx.dims(i).is_none())
}

/// The result's extents where the bounds are known only at run time: declared ones, else symbols up to the operand's.
fn run_time_extents(cx: &mut InferCx<'_>) -> Result<Vec<Dim>> {
    let x = cx.ty(0)?;
    if let Some(declared) = cx.declared(0, x.rank()) {
        return Ok(declared);
    }
    let n = cx.shape(1)?.first().and_then(|n| usize::try_from(n.as_const()?).ok());
    let axes = match (cx.has(3), cx.const_ints(3), n) {
        (true, Some(axes), _) => resolve_axes(&axes, x.rank())?,
        (false, _, Some(n)) => (0..n.min(x.rank())).collect(),
        _ => (0..x.rank()).collect(),
    };
    let mut dims = x.shape.clone();
    for a in axes {
        let most = x.shape[a].upper();
        dims[a] = cx.data_dim("sliced", 0, most);
    }
    Ok(dims)
}

/// Whether every step is known and goes forward: such a slice of an operand's own extents is the operand.
pub(crate) fn steps_forward(cx: &NodeView<'_>) -> bool {
    window(cx).is_ok_and(|w| w.steps.iter().all(|&s| s > 0))
}

/// The operand's window that the node selects.
fn window(cx: &NodeView<'_>) -> Result<Window> {
    let shape = cx.shape(0)?;
    let ints = |name: &str| -> Result<Option<Vec<Dim>>> {
        Ok(cx.opt_ints(name)?.map(|v| v.iter().map(|&d| Dim::Const(d)).collect()))
    };
    let missing = |name: &str| wrong(format!("attribute {name} is missing"));
    let (starts, ends, axes, steps);
    if cx.version() < 10 {
        starts = ints("starts")?.ok_or_else(|| missing("starts"))?;
        ends = ints("ends")?.ok_or_else(|| missing("ends"))?;
        axes = cx.opt_ints("axes")?.map(<[i64]>::to_vec);
        steps = None;
    } else {
        starts = cx.need_dims(1)?;
        ends = cx.need_dims(2)?;
        axes = if cx.has(3) { Some(cx.need_ints(3)?) } else { None };
        steps = if cx.has(4) { Some(cx.need_ints(4)?) } else { None };
    }
    let n = starts.len();
    let axes = axes.unwrap_or_else(|| (0..).take(n).collect());
    let steps = steps.unwrap_or_else(|| vec![1; n]);
    if ends.len() != n || axes.len() != n || steps.len() != n {
        let counts = format!("{n} starts, {} ends, {} axes, {} steps", ends.len(), axes.len(), steps.len());
        return Err(wrong(counts));
    }
    let mut window = Window::whole(shape);
    for (i, a) in resolve_axes(&axes, shape.len())?.into_iter().enumerate() {
        if steps[i] == 0 {
            return Err(wrong("a step of 0"));
        }
        // Longer steps than any axis select one element, whatever they are.
        let step = steps[i].clamp(-FAR, FAR);
        (window.starts[a], window.dims[a]) = span(&shape[a], &starts[i], &ends[i], step);
        window.steps[a] = step;
    }
    Ok(window)
}

fn infer(cx: &mut InferCx<'_>) -> Result<()> {
    let dims = if at_run_time(cx) {
        for i in 1..5 {
            if cx.has(i) {
                cx.expect_dtype(i, &[Dtype::I32, Dtype::I64])?;
            }
        }
        run_time_extents(cx)?
    } else {
        window(cx)?.dims
    };
    let dtype = cx.dtype(0)?;
    cx.set(0, tensor(dtype, dims));
    Ok(())
}

fn dims(cx: &NodeView<'_>) -> Option<Vec<Dim>> {
    let all = cx.dims(0)?;
    let w = window(cx).ok()?;
    let shape = cx.ty(0).ok()?.const_dims()?;
    let mut axes = Vec::with_capacity(shape.len());
    for ((start, n), &step) in w.starts.iter().zip(&w.dims).zip(&w.steps) {
        axes.push((start.as_const()?, n.as_const()?, step));
    }
    // Positions axis by axis, outermost first.
    let mut places = vec![0i64];
    for ((start, n, step), &extent) in axes.into_iter().zip(&shape) {
        let extent = i64::try_from(extent).ok()?;
        let mut next = Vec::new();
        for place in places {
            for i in 0..n {
                let at = i.checked_mul(step)?.checked_add(start)?;
                next.push(place.checked_mul(extent)?.checked_add(at)?);
            }
        }
        places = next;
    }
    places.into_iter().map(|at| all.get(usize::try_from(at).ok()?).cloned()).collect()
}

fn lower(cx: &mut LowerCx<'_>) -> Result<()> {
    if at_run_time(cx) {
        return lower_at(cx);
    }
    window(cx)?.lower(cx, 0, 0)
}

/// A slice whose bounds are read at run time.
fn lower_at(cx: &mut LowerCx<'_>) -> Result<()> {
    let (x, y) = (cx.ty(0)?, cx.out_ty(0)?);
    let too_many = || CompileError::new(Stage::Lower, format!("rank {}, the kernel takes 8", x.rank()));
    // An extent that is a symbol of this node's own is bounded by the operand's.
    let own = |d: &Dim, e: &Dim| if d == e { None } else { slot(d).ok() };
    let missing = 8usize.checked_sub(x.rank()).ok_or_else(too_many)?;
    let slots: [usize; 8] =
        std::array::from_fn(|i| i.checked_sub(missing).and_then(|a| own(&y.shape[a], &x.shape[a])).unwrap_or(NO_SLOT));
    let most: Vec<Dim> =
        y.shape.iter().zip(&x.shape).map(|(d, e)| if own(d, e).is_some() { e.clone() } else { d.clone() }).collect();
    let exact = slots.iter().all(|&s| s == NO_SLOT);
    let bytes = most.iter().cloned().product::<Dim>() * Dim::from(x.dtype.size_bytes());
    let opt = |cx: &mut LowerCx<'_>, i| if cx.has(i) { as_i64(cx, i).map(Some) } else { Ok(None) };
    let [n0, n1, n2, n3, n4, n5, n6, n7] = slots;
    let d = SliceAt {
        x: cx.x(0)?,
        starts: as_i64(cx, 1)?,
        ends: as_i64(cx, 2)?,
        axes: opt(cx, 3)?,
        steps: opt(cx, 4)?,
        y: Operand { bytes, ..cx.y(0)? },
        rank: Dim::from(x.rank()),
        dims: last8(&x.shape, 1).ok_or_else(too_many)?,
        planned: last8(&most, 1).ok_or_else(too_many)?,
        exact,
        n0,
        n1,
        n2,
        n3,
        n4,
        n5,
        n6,
        n7,
    };
    cx.call(&[width_of(x.dtype)?, Dtype::I64], d)
}

#[cfg(test)]
mod tests {
    use super::span;
    use crate::ir::{Attr, Dim, Symbol, SymbolSource, Tensor};
    use crate::ops::testing::case;

    fn ints(v: &[i64]) -> Tensor {
        Tensor::from_i64s(&[v.len()], v)
    }

    #[test]
    fn one_axis() {
        let x = ints(&[0, 1, 2, 3, 4]);
        for (start, end, step, want) in [
            (1, 3, 1, vec![1, 2]),
            (0, i64::MAX, 2, vec![0, 2, 4]),
            (-2, i64::MAX, 1, vec![3, 4]),
            (i64::MIN, -1, 1, vec![0, 1, 2, 3]),
            (-1, i64::MIN, -1, vec![4, 3, 2, 1, 0]),
            (20, 0, -2, vec![4, 2]),
            (4, -6, -3, vec![4, 1]),
            (3, 1, 1, vec![]),
            (5, 9, 1, vec![]),
            (0, 5, i64::MAX, vec![0]),
            (9, i64::MIN, i64::MIN, vec![4]),
        ] {
            let c = case("", "Slice", 13).input(x.clone()).constant(ints(&[start])).constant(ints(&[end]));
            let y = c.constant(ints(&[0])).constant(ints(&[step])).run().unwrap();
            assert_eq!(y[0].to_i64s().unwrap(), want, "{start}..{end} by {step}");
        }
    }

    #[test]
    fn axes_and_old_form() {
        let x = Tensor::from_u8s(&[2, 3], &[0, 1, 2, 3, 4, 5]);
        let c = case("", "Slice", 1).input(x.clone()).attr("starts", Attr::Ints(vec![1]));
        let y = c.attr("ends", Attr::Ints(vec![1000])).attr("axes", Attr::Ints(vec![1])).run().unwrap();
        assert_eq!(y[0], Tensor::from_u8s(&[2, 2], &[1, 2, 4, 5]));
        let c = case("", "Slice", 11).input(x.clone()).constant(ints(&[1])).constant(ints(&[2]));
        assert_eq!(c.run().unwrap()[0], Tensor::from_u8s(&[1, 3], &[3, 4, 5]));
        let zero_step = case("", "Slice", 11).input(x.clone()).constant(ints(&[0])).constant(ints(&[1]));
        assert!(zero_step.constant(ints(&[0])).constant(ints(&[0])).infer().is_err());
        let twice = case("", "Slice", 11).input(x).constant(ints(&[0, 0])).constant(ints(&[1, 1]));
        assert!(twice.constant(ints(&[1, -1])).infer().is_err());
    }

    #[test]
    fn bounds_at_run_time() {
        let x = Tensor::from_u8s(&[2, 3], &[0, 1, 2, 3, 4, 5]);
        for (start, end, step, dims, want) in [
            (0, 2, 1, [2, 2], vec![0, 1, 3, 4]),
            (-1, i64::MIN, -2, [2, 2], vec![2, 0, 5, 3]),
            (5, 9, 1, [2, 0], vec![]),
            (i64::MAX, 0, -1, [2, 2], vec![2, 1, 5, 4]),
        ] {
            let c = case("", "Slice", 13).input(x.clone()).input(ints(&[start])).input(ints(&[end]));
            let y = c.constant(ints(&[1])).input(ints(&[step])).run().unwrap();
            assert_eq!(y[0], Tensor::from_u8s(&dims, &want), "{start}..{end} by {step}");
        }
        let c = case("", "Slice", 13).input(x).input(ints(&[0])).input(ints(&[1])).input(ints(&[2]));
        assert!(c.run().is_err());
    }

    #[test]
    fn symbolic_bounds() {
        let source = SymbolSource::Input { input_idx: 0, axis: 0 };
        let n = Dim::symbol(Symbol { name: "n".into(), min: 0, max: None, source });
        let value = |d: &Dim, v: i64| d.eval(&|_| v);
        for v in [0, 1, 2, 5, 9] {
            for (start, end, step) in [(0, i64::MAX, 1), (0, 4, 1), (-3, i64::MAX, 1), (1, -1, 2), (-1, i64::MIN, -1)] {
                let (s, len) = span(&n, &Dim::Const(start), &Dim::Const(end), step);
                let (s2, len2) = span(&Dim::Const(v), &Dim::Const(start), &Dim::Const(end), step);
                assert_eq!(value(&len, v), value(&len2, 0), "{start}..{end} by {step} of {v}");
                assert!(value(&len, v) == 0 || value(&s, v) == value(&s2, 0));
            }
        }
        let (start, len) = span(&n, &Dim::Const(0), &Dim::Const(i64::MAX), 1);
        assert_eq!((start, len), (Dim::Const(0), n.clone()));
        // A bound whose sign is known only at run time.
        let (start, _) = span(&Dim::Const(8), &(n.clone() - Dim::Const(3)), &Dim::Const(8), 1);
        assert_eq!((value(&start, 1), value(&start, 5)), (6, 2));
    }
}
