//! Cutting a kernel call into parts that together do the same work, to the bit.
//!
//! Three ways: kernels that count units of work take a range of them (`part_begin..part_end`) or a share (`share`), and each
//! part writes its own of the whole result; kernels over independent rows get fewer rows, and narrower operands; kernels
//! over axes get less of the outermost axis. In: a call. Out: its parts, or `None` where it cannot be cut.
//! Invariant: the parts' writes are disjoint and cover the call's; no part reads what another writes.

use crate::ir::Dim;
use crate::lower::{Call, FieldText};
use kiln_kernels::{FieldMut, Role};
use std::collections::BTreeMap;

/// Kernels over independent rows: the extent that counts them, and the operands with a row (or element) for each.
const ROWS: &[(&str, &str, &[&str])] = &[
    ("Softmax", "outer", &["x", "y"]),
    ("LpNorm", "outer", &["x", "y"]),
    ("Hardmax", "outer", &["x", "y"]),
    ("Arg", "outer", &["x", "y"]),
    ("LayerNorm", "rows", &["x", "y", "sum", "mean", "inv_std_dev"]),
    ("MeanVarianceNorm", "rows", &["x", "y"]),
    ("BiasRows", "rows", &["x", "y"]),
    ("ReduceRows", "rows", &["x", "y"]),
    ("ReduceColumns", "outer", &["x", "y"]),
    ("Interpolate", "outer", &["x", "y"]),
    ("ResizeNearest", "outer", &["x", "y"]),
    ("BatchNorm", "batch", &["x", "y"]),
    ("BatchNormBlocked", "batch", &["x", "y"]),
    ("Unary", "n", &["x", "y"]),
    ("UnaryMath", "n", &["x", "y"]),
    ("UnaryInt", "n", &["x", "y"]),
    ("Clip", "n", &["x", "y"]),
    ("Cast", "n", &["x", "y"]),
];

/// Kernels over up to eight axes with a contiguous result: the operands and their strides.
const AXES: &[(&str, &[(&str, &str)])] = &[
    ("Binary", &[("a", "a_strides"), ("b", "b_strides")]),
    ("Compare", &[("a", "a_strides"), ("b", "b_strides")]),
    ("Select", &[("c", "c_strides"), ("a", "a_strides"), ("b", "b_strides")]),
];

/// Elements between two cuts of a row of elements: whole registers and cache lines on both sides.
const GRAIN: u64 = 64;

/// A call's fields by name, as far as they are constant.
#[derive(Default)]
struct Fields {
    nums: BTreeMap<&'static str, Vec<i64>>,
    share: bool,
}

impl Fields {
    fn of(call: &dyn Call) -> Self {
        let mut all = Self::default();
        call.fields(&mut |name, field| match field {
            FieldText::Num(n) => all.add(name, std::slice::from_ref(n)),
            FieldText::Nums(ns) => all.add(name, ns),
            FieldText::Param(text) => all.share |= name == "share" && text == "[0, 1]",
            FieldText::Operand(_) | FieldText::OptOperand(_) => {}
        });
        all
    }

    fn add(&mut self, name: &'static str, values: &[Dim]) {
        if let Some(values) = values.iter().map(Dim::as_const).collect() {
            self.nums.insert(name, values);
        }
    }

    fn num(&self, name: &str) -> Option<u64> {
        u64::try_from(*self.nums.get(name)?.first()?).ok()
    }
}

/// How a call can be cut.
enum Cut {
    /// A range of this many units.
    Units(u64),
    /// The i-th of n shares of so many units.
    Share(u64),
    /// Rows: the extent, the operands, how many rows, and between how many of them cuts may lie.
    Rows { count: &'static str, operands: &'static [&'static str], rows: u64, grain: u64 },
    /// The outermost axis: which one, its extent, the grain, and how many bytes each operand moves on by an index.
    Axis { axis: usize, extent: u64, grain: u64, bytes: BTreeMap<&'static str, u64> },
    /// The outermost axis of a copy with a contiguous result: bytes of the result by an index, elements of the source.
    Copy { axis: usize, extent: u64, grain: u64, y_bytes: u64, x_stride: i64 },
}

fn cut(call: &dyn Call) -> Option<Cut> {
    let fields = Fields::of(call);
    if !call.found().is_empty() {
        return None;
    }
    if let (Some(begin), Some(end)) = (fields.num("part_begin"), fields.num("part_end")) {
        return (begin == 0).then_some(Cut::Units(end));
    }
    if fields.share {
        return Some(Cut::Share(shared_units(&fields)));
    }
    let name = call.descriptor();
    if let Some(&(_, count, operands)) = ROWS.iter().find(|r| r.0 == name) {
        return rows(call, &fields, count, operands);
    }
    if name == "CopyNd" {
        return copy(call, &fields);
    }
    AXES.iter().find(|a| a.0 == name).and_then(|&(_, operands)| axis(call, &fields, operands))
}

/// About how many units a kernel that takes shares has: heads of an attention, panels of 16 columns or rows of a product.
fn shared_units(fields: &Fields) -> u64 {
    let product = |names: &[&str]| names.iter().try_fold(1u64, |n, name| n.checked_mul(fields.num(name)?));
    if let Some(heads) = product(&["batch", "heads"]) {
        return heads;
    }
    let (Some(m), Some(n)) = (fields.num("m"), fields.num("n")) else { return u64::MAX };
    let panels = n.div_ceil(16);
    let batch = fields.nums.get("batch").map_or(1, |b| b.iter().fold(1u64, |n, &d| n.saturating_mul(d.max(0) as u64)));
    (if panels >= 8 || panels >= m { panels } else { m }).saturating_mul(batch)
}

fn rows(call: &dyn Call, fields: &Fields, count: &'static str, operands: &'static [&'static str]) -> Option<Cut> {
    let rows = fields.num(count).filter(|&n| n > 0)?;
    // A further operand with a row for each row stays whole only where it is the same for all rows.
    let steady = |f: &str| fields.nums.get(f).is_none_or(|v| v == &[0]);
    let skip = call.operands().iter().any(|o| o.name == "skip");
    if !steady("scale_step") || !steady("bias_step") || skip {
        return None;
    }
    let mut named = call.operands().into_iter().filter(|o| operands.contains(&o.name));
    let whole = named.all(|o| o.operand.bytes.as_const().is_some_and(|b| b > 0 && (b as u64).is_multiple_of(rows)));
    let written = call.operands().into_iter().filter(|o| o.role != Role::Read && o.role != Role::Alias);
    let all = written.into_iter().all(|o| operands.contains(&o.name));
    let grain = if count == "n" { GRAIN } else { 1 };
    (whole && all).then_some(Cut::Rows { count, operands, rows, grain })
}

/// The outermost axis with more than one index, and how many elements lie behind an index of it.
fn outermost(dims: &[i64]) -> Option<(usize, u64, u64)> {
    let axis = dims.iter().position(|&d| d > 1)?;
    let behind = dims[axis + 1..].iter().try_fold(1u64, |n, &d| n.checked_mul(u64::try_from(d).ok()?))?;
    Some((axis, u64::try_from(dims[axis]).ok()?, behind))
}

/// Cuts of an axis: at whole grains where its elements are next to each other.
fn grain_of(behind: u64) -> u64 {
    GRAIN.div_ceil(behind.max(1))
}

fn axis(call: &dyn Call, fields: &Fields, operands: &[(&'static str, &'static str)]) -> Option<Cut> {
    let (axis, extent, behind) = outermost(fields.nums.get("dims")?)?;
    let mut bytes = BTreeMap::new();
    for o in call.operands() {
        let size = o.dtype.size_bytes() as u64;
        let total = u64::try_from(o.operand.bytes.as_const()?).ok()?;
        let step = match operands.iter().find(|(name, _)| *name == o.name) {
            Some((_, strides)) => u64::try_from(*fields.nums.get(strides)?.get(axis)?).ok()?.checked_mul(size)?,
            None if o.name == "y" => behind.checked_mul(size)?,
            None => return None,
        };
        // An operand that repeats along the axis stays whole; another must be cut into equal pieces.
        if step > 0 && step.checked_mul(extent)? != total {
            return None;
        }
        bytes.insert(o.name, step);
    }
    Some(Cut::Axis { axis, extent, grain: grain_of(behind), bytes })
}

fn copy(call: &dyn Call, fields: &Fields) -> Option<Cut> {
    let dims = fields.nums.get("dims")?;
    let (axis, extent, behind) = outermost(dims)?;
    let y = call.operands().into_iter().find(|o| o.name == "y")?;
    let size = y.dtype.size_bytes() as u64;
    let y_bytes = behind.checked_mul(size)?;
    let mut stride = 1i64;
    for (d, s) in dims.iter().zip(fields.nums.get("y_strides")?).rev() {
        if *d > 1 && *s != stride {
            return None;
        }
        stride = stride.checked_mul(*d)?;
    }
    let whole = u64::try_from(y.operand.bytes.as_const()?).ok()? == y_bytes.checked_mul(extent)?;
    let x_stride = *fields.nums.get("x_strides")?.get(axis)?;
    let fits = whole && fields.num("y_start")? == 0 && fields.num("x_start").is_some();
    fits.then_some(Cut::Copy { axis, extent, grain: grain_of(behind), y_bytes, x_stride })
}

impl Cut {
    /// Pieces of about equal work that it can be cut into at most.
    fn units(&self) -> u64 {
        match *self {
            Cut::Units(n) | Cut::Share(n) => n,
            Cut::Rows { rows: n, grain, .. }
            | Cut::Axis { extent: n, grain, .. }
            | Cut::Copy { extent: n, grain, .. } => n.div_ceil(grain),
        }
    }
}

/// Into how many parts a call may be cut, at most `most`: so many that no part is much larger than the others. 1 for none.
pub fn n_parts(call: &dyn Call, most: u32) -> u32 {
    let Some(units) = cut(call).map(|c| c.units()) else { return 1 };
    let even = |k: &u32| {
        let k = u64::from(*k);
        units >= k && (units == u64::MAX || u128::from(units.div_ceil(k) * k) * 3 <= u128::from(units) * 4)
    };
    (2..=most).rev().find(even).unwrap_or(1)
}

/// Begin and end of part `i` of `n` of so many indices.
fn range(total: u64, grain: u64, i: u32, n: u32) -> (u64, u64) {
    let units = total.div_ceil(grain);
    let at = |i: u32| {
        let unit = u128::from(units) * u128::from(i) / u128::from(n.max(1));
        u64::try_from(unit).unwrap_or(u64::MAX).saturating_mul(grain).min(total)
    };
    (at(i), at(i + 1))
}

fn dim(n: u64) -> Dim {
    Dim::Const(i64::try_from(n).unwrap_or(i64::MAX))
}

/// Part `i` of `n` of a call.
pub fn part(call: &dyn Call, i: u32, n: u32) -> Option<Box<dyn Call>> {
    let mut part = call.boxed();
    if n <= 1 {
        return Some(part);
    }
    match cut(call)? {
        Cut::Units(units) => {
            let (begin, end) = range(units, 1, i, n);
            set(&mut *part, "part_begin", 0, |_| dim(begin));
            set(&mut *part, "part_end", 0, |_| dim(end));
        }
        Cut::Share(_) => part.fields_mut(&mut |name, field| {
            if let FieldMut::Param(p) = field
                && name == "share"
                && let Some(share) = p.downcast_mut::<[u32; 2]>()
            {
                *share = [i, n];
            }
        }),
        Cut::Rows { count, operands, rows, grain } => {
            let (begin, end) = range(rows, grain, i, n);
            set(&mut *part, count, 0, |_| dim(end - begin));
            narrow(&mut *part, &|name, bytes| {
                operands.contains(&name).then(|| (begin * (bytes / rows), (end - begin) * (bytes / rows)))
            });
        }
        Cut::Axis { axis, extent, grain, bytes } => {
            let (begin, end) = range(extent, grain, i, n);
            set(&mut *part, "dims", axis, |_| dim(end - begin));
            narrow(&mut *part, &|name, _| {
                let step = *bytes.get(name).filter(|s| **s > 0)?;
                Some((begin * step, (end - begin) * step))
            });
        }
        Cut::Copy { axis, extent, grain, y_bytes, x_stride } => {
            let (begin, end) = range(extent, grain, i, n);
            let first = i64::try_from(begin).ok()?.checked_mul(x_stride)?;
            set(&mut *part, "dims", axis, |_| dim(end - begin));
            set(&mut *part, "x_start", 0, |at| at.clone() + Dim::Const(first));
            narrow(&mut *part, &|name, _| (name == "y").then(|| (begin * y_bytes, (end - begin) * y_bytes)));
        }
    }
    Some(part)
}

/// Sets entry `at` of an extent or a list of them.
fn set(call: &mut dyn Call, name: &str, at: usize, value: impl Fn(&Dim) -> Dim) {
    call.fields_mut(&mut |field_name, field| {
        if let FieldMut::Nums(values) = field
            && field_name == name
            && let Some(n) = values.get_mut(at)
        {
            *n = value(n);
        }
    });
}

/// Gives operands a part of their memory: first byte and length, for a name and the whole length.
fn narrow(call: &mut dyn Call, to: &dyn Fn(&'static str, u64) -> Option<(u64, u64)>) {
    call.fields_mut(&mut |name, field| {
        if let FieldMut::Operand(o) = field
            && let Some(bytes) = o.bytes.as_const().and_then(|b| u64::try_from(b).ok())
            && let Some((first, len)) = to(name, bytes)
        {
            o.off += first;
            o.bytes = dim(len);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lower::call::call;
    use kiln_kernels::{Binary, BinaryOp, Dtype, Operand, Softmax, Unary, UnaryOp};

    fn at(mem: u32, bytes: i64) -> Operand<Dim> {
        Operand::at(mem, 0, Dim::Const(bytes))
    }

    fn binary(dims: [i64; 2], b_strides: [i64; 2], b_bytes: i64) -> Box<dyn Call> {
        let wide = |ns: [i64; 2]| std::array::from_fn(|i| Dim::Const(*ns.get(i.wrapping_sub(6)).unwrap_or(&0)));
        let mut all: [Dim; 8] = wide(dims);
        all[..6].fill(Dim::Const(1));
        let bytes = dims[0] * dims[1] * 4;
        let binary = Binary {
            a: at(0, bytes),
            b: at(1, b_bytes),
            y: at(2, bytes),
            dims: all,
            a_strides: wide([dims[1], 1]),
            b_strides: wide(b_strides),
            op: BinaryOp::Add,
        };
        call(&[Dtype::F32], binary).unwrap()
    }

    /// Offset and length of an operand in every part.
    fn ranges(call: &dyn Call, name: &str, n: u32) -> Vec<(u64, i64)> {
        let of = |i| {
            let part = part(call, i, n).unwrap();
            let o = part.operands().into_iter().find(|o| o.name == name).unwrap().operand;
            (o.off, o.bytes.as_const().unwrap())
        };
        (0..n).map(of).collect()
    }

    #[test]
    fn elements_are_cut_at_cache_lines() {
        let unary = Unary { x: at(0, 1000), y: at(1, 1000), n: Dim::Const(250), op: UnaryOp::Relu, a: 0.0, b: 0.0 };
        let unary = call(&[Dtype::F32], unary).unwrap();
        assert_eq!(n_parts(&*unary, 8), 4);
        assert_eq!(ranges(&*unary, "y", 3), [(0, 256), (256, 256), (512, 488)]);
        assert_eq!(ranges(&*unary, "x", 2), [(0, 512), (512, 488)]);
    }

    #[test]
    fn rows_stay_whole() {
        let x = || at(0, 3 * 40);
        let softmax =
            Softmax { x: x(), y: x(), outer: Dim::Const(3), n: Dim::Const(10), inner: Dim::Const(1), log: false };
        let softmax = call(&[Dtype::F32], softmax).unwrap();
        // Two parts would be of one row and of two.
        assert_eq!((n_parts(&*softmax, 2), n_parts(&*softmax, 3)), (2, 3));
        assert_eq!(ranges(&*softmax, "y", 3), [(0, 40), (40, 40), (80, 40)]);
    }

    #[test]
    fn a_broadcast_operand_stays_whole() {
        let b = binary([6, 100], [0, 1], 400);
        assert_eq!(ranges(&*b, "y", 2), [(0, 1200), (1200, 1200)]);
        assert_eq!(ranges(&*b, "a", 2), ranges(&*b, "y", 2));
        assert_eq!(ranges(&*b, "b", 2), [(0, 400), (0, 400)]);
        // One that is neither repeated nor as long as its strides say is not cut.
        assert_eq!(n_parts(&*binary([6, 100], [100, 1], 4000), 2), 1);
    }
}
