//! Maps of features: thresholds, scales, norms, replacements, look-ups.

use crate::real::Real;
use crate::{Elem, Fault, Isa, kernel, param_enum};

kernel! {
    /// `y = x > threshold ? 1 : 0`.
    pub struct Binarize {
        operands { alias x: T, write y: T }
        params { threshold: f32 }
    }
    entries { binarize_f32 { T = f32 } binarize_f64 { T = f64 } binarize_i32 { T = i32 } binarize_i64 { T = i64 } }
    body = binarize;
}

/// Types with a value to compare.
trait Number: Elem {
    fn value(self) -> f64;
    fn of(bit: bool) -> Self;
}

macro_rules! numbers {
    ($($t:ident)*) => { $(impl Number for $t {
        fn value(self) -> f64 {
            self as f64
        }
        fn of(bit: bool) -> Self {
            u8::from(bit) as Self
        }
    })* };
}
numbers!(f32 f64 i32 i64);

fn binarize<T: Number>(_: Isa, d: &Binarize, x: Option<&[T]>, y: &mut [T]) -> Result<(), Fault> {
    if let Some(x) = x {
        if x.len() != y.len() {
            return Err(Fault::Descriptor);
        }
        y.copy_from_slice(x);
    }
    y.iter_mut().for_each(|y| *y = T::of(y.value() > f64::from(d.threshold)));
    Ok(())
}

kernel! {
    /// `y = (x - offset) · scale`, offsets and scales by column, or one for all.
    pub struct ScaleFeatures {
        operands { read x: X, read offset: X, read scale: X, write y: T }
        nums { n }
    }
    entries { scale_features_f32 { X = f64, T = f32 } }
    body = scale_features;
}

fn scale_features<T: Real>(
    _: Isa,
    d: &ScaleFeatures,
    x: &[f64],
    offset: &[f64],
    scale: &[f64],
    y: &mut [T],
) -> Result<(), Fault> {
    let fits = |p: &[f64]| p.len() == 1 || (p.len() == d.n && d.n > 0);
    if x.len() != y.len() || !fits(offset) || !fits(scale) {
        return Err(Fault::Descriptor);
    }
    for (i, (x, y)) in x.iter().zip(y).enumerate() {
        *y = T::put((x - offset[i % offset.len()]) * scale[i % scale.len()]);
    }
    Ok(())
}

param_enum! {
    /// What rows are divided by.
    pub enum RowNorm {
        /// The greatest magnitude.
        Max,
        /// The sum of magnitudes.
        L1,
        /// The root of the sum of squares.
        L2,
    }
}

kernel! {
    /// Every row of `n` divided by its norm; a row of zeros stays.
    pub struct NormalizeRows {
        operands { read x: X, write y: T }
        nums { n }
        params { norm: RowNorm }
    }
    entries { normalize_rows_f32 { X = f64, T = f32 } }
    body = normalize_rows;
}

fn normalize_rows<T: Real>(_: Isa, d: &NormalizeRows, x: &[f64], y: &mut [T]) -> Result<(), Fault> {
    if x.len() != y.len() || (d.n == 0 && !x.is_empty()) {
        return Err(Fault::Descriptor);
    }
    if x.is_empty() {
        return Ok(());
    }
    for (x, y) in x.chunks(d.n).zip(y.chunks_mut(d.n)) {
        let norm = match d.norm {
            RowNorm::Max => x.iter().fold(0.0, |m: f64, x| m.max(x.abs())),
            RowNorm::L1 => x.iter().map(|x| x.abs()).sum(),
            RowNorm::L2 => libm::sqrt(x.iter().map(|x| x * x).sum()),
        };
        x.iter().zip(y).for_each(|(x, y)| *y = T::put(if norm == 0.0 { *x } else { x / norm }));
    }
    Ok(())
}

kernel! {
    /// `y = values[i]` of the first key that equals `x` (a NaN equals a NaN), or of the default, which comes after all keys.
    pub struct LookUp {
        operands { read x: K, read keys: K, read values: V, write y: V }
    }
    entries {
        look_up_i64_i64 { K = i64, V = i64 } look_up_i64_f32 { K = i64, V = f32 }
        look_up_f32_i64 { K = f32, V = i64 } look_up_f32_f32 { K = f32, V = f32 }
        look_up_i64_f64 { K = i64, V = f64 } look_up_f64_i64 { K = f64, V = i64 }
        look_up_f64_f64 { K = f64, V = f64 } look_up_f64_f32 { K = f64, V = f32 } look_up_f32_f64 { K = f32, V = f64 }
    }
    body = look_up;
}

fn look_up<K: Elem, V: Elem>(_: Isa, _: &LookUp, x: &[K], keys: &[K], values: &[V], y: &mut [V]) -> Result<(), Fault> {
    if x.len() != y.len() || keys.len().checked_add(1) != Some(values.len()) {
        return Err(Fault::Descriptor);
    }
    for (x, y) in x.iter().zip(y) {
        #[expect(clippy::eq_op, reason = "the test for NaN")]
        let at = keys.iter().position(|k| k == x || (k != k && x != x));
        *y = values[at.unwrap_or(keys.len())];
    }
    Ok(())
}

kernel! {
    /// `y = x`, or the column's value (or the only one) where `x` equals `replaced` (a NaN equals a NaN).
    pub struct Impute {
        operands { read x: T, read replaced: T, read values: T, write y: T }
        nums { n }
    }
    entries { impute_f32 { T = f32 } impute_f64 { T = f64 } impute_i32 { T = i32 } impute_i64 { T = i64 } }
    body = impute;
}

fn impute<T: Elem>(_: Isa, d: &Impute, x: &[T], replaced: &[T], values: &[T], y: &mut [T]) -> Result<(), Fault> {
    let [replaced] = replaced else { return Err(Fault::Descriptor) };
    if x.len() != y.len() || !(values.len() == 1 || (values.len() == d.n && d.n > 0)) {
        return Err(Fault::Descriptor);
    }
    for (i, (x, y)) in x.iter().zip(y).enumerate() {
        #[expect(clippy::eq_op, reason = "the test for NaN")]
        let same = x == replaced || (x != x && replaced != replaced);
        *y = if same { values[i % values.len()] } else { *x };
    }
    Ok(())
}

kernel! {
    /// `y[row, i] = x[row, indices[i]]`.
    pub struct PickColumns {
        operands { read x: T, read indices: I, write y: T }
        nums { rows, n }
    }
    entries { pick_columns_b32 { T = u32, I = i64 } pick_columns_b64 { T = u64, I = i64 } }
    body = pick_columns;
}

fn pick_columns<T: Elem>(_: Isa, d: &PickColumns, x: &[T], indices: &[i64], y: &mut [T]) -> Result<(), Fault> {
    if d.rows.checked_mul(d.n) != Some(x.len()) || d.rows.checked_mul(indices.len()) != Some(y.len()) {
        return Err(Fault::Descriptor);
    }
    if y.is_empty() {
        return Ok(());
    }
    for (row, y) in y.chunks_exact_mut(indices.len()).enumerate() {
        for (&i, y) in indices.iter().zip(y) {
            let i = usize::try_from(i).ok().filter(|&i| i < d.n).ok_or(Fault::IndexOutOfRange)?;
            *y = x[row * d.n + i];
        }
    }
    Ok(())
}

kernel! {
    /// `y[i, category] = 1` where `x[i]` is that category. An `x` of no category gives zeros, or with `strict` a fault.
    pub struct OneHotCategories {
        operands { read x: X, read categories: X, write y: T }
        params { strict: bool }
    }
    entries { one_hot_categories_f32 { X = f64, T = f32 } }
    body = one_hot_categories;
}

fn one_hot_categories(_: Isa, d: &OneHotCategories, x: &[f64], categories: &[f64], y: &mut [f32]) -> Result<(), Fault> {
    if x.len().checked_mul(categories.len()) != Some(y.len()) {
        return Err(Fault::Descriptor);
    }
    y.fill(0.0);
    for (i, x) in x.iter().enumerate() {
        match categories.iter().position(|c| c == x) {
            Some(at) => y[i * categories.len() + at] = 1.0,
            None if d.strict => return Err(Fault::IndexOutOfRange),
            None => {}
        }
    }
    Ok(())
}
