//! Axes that an operand names, also where its values are known only at run time: which axes of a tensor are meant, and the
//! extents that are left, as expressions over the values.

use super::view::{Result, resolve_axes, wrong};
use crate::ir::Dim;
use crate::lower::LowerCx;

/// For every axis of a tensor of this rank 1 if it is named, else 0. At run time that each is named once remains to be checked
/// ([`expect_distinct`]).
pub(super) fn flags(axes: &[Dim], rank: usize) -> Result<Vec<Dim>> {
    if let Some(known) = axes.iter().map(Dim::as_const).collect::<Option<Vec<_>>>() {
        let named = resolve_axes(&known, rank)?;
        return Ok((0..rank).map(|a| Dim::Const(i64::from(named.contains(&a)))).collect());
    }
    let n = i64::try_from(rank).unwrap_or(i64::MAX);
    let outside = |a: &&Dim| a.lower() < -n || a.upper().is_none_or(|most| most >= n);
    if let Some(a) = axes.iter().find(outside) {
        let range = a.upper().map_or_else(String::new, |most| format!(" is between {} and {most}, it", a.lower()));
        return Err(wrong(format!("axis {a} of a tensor of rank {rank}{range} must lie between {} and {}", -n, n - 1)));
    }
    if axes.len() > rank {
        return Err(wrong(format!("{} axes of a tensor of rank {rank}", axes.len())));
    }
    let rank_dim = Dim::from(rank);
    let named = |j: usize| axes.iter().map(|a| is(&a.rem(&rank_dim), j)).fold(Dim::Const(0), |x, y| Dim::max(&x, &y));
    Ok((0..rank).map(named).collect())
}

/// 1 where `a` is `value`, else 0.
pub(super) fn is(a: &Dim, value: usize) -> Dim {
    let apart = a.clone() - Dim::from(value);
    let distance = Dim::max(&apart, &(Dim::from(value) - a.clone()));
    // It is never negative, but only this says so to whoever asks for bounds.
    let distance = Dim::max(&distance, &Dim::Const(0));
    Dim::Const(1) - Dim::min(&distance, &Dim::Const(1))
}

/// Whether every flag is known.
pub(super) fn known(flags: &[Dim]) -> Option<Vec<bool>> {
    flags.iter().map(|f| f.as_const().map(|f| f != 0)).collect()
}

/// `one` where the flag is set, else `d`.
pub(super) fn one_if(flag: &Dim, d: &Dim) -> Dim {
    d.clone() - flag.clone() * (d.clone() - Dim::Const(1))
}

/// The extents of the `n` axes whose flags are not set, in order.
pub(super) fn rest(flags: &[Dim], shape: &[Dim], n: usize) -> Vec<Dim> {
    if let Some(known) = known(flags) {
        return shape.iter().zip(known).filter(|(_, set)| !set).map(|(d, _)| d.clone()).collect();
    }
    let most = shape.iter().fold(Dim::Const(0), |most, d| Dim::max(&most, d));
    let left: Vec<Dim> = flags.iter().map(|f| Dim::Const(1) - f.clone()).collect();
    let kth = |k: usize| {
        let mut before = Dim::Const(0);
        let mut sum = Dim::Const(0);
        for (left, d) in left.iter().zip(shape) {
            sum = sum + left.clone() * is(&before, k) * d.clone();
            before = before + left.clone();
        }
        sum.at_most(&most)
    };
    (0..n).map(kth).collect()
}

/// Extents with the last one reckoned from the others, so that they have as many elements as `all`: a view of other bounds
/// would not fit its memory. Only of what has elements.
pub(super) fn of_all(mut shape: Vec<Dim>, all: &Dim) -> Result<Vec<Dim>> {
    if all.lower() < 1 {
        return Err(wrong("axes known only at run time of what may have no elements"));
    }
    if let Some(last) = shape.pop() {
        let others: Dim = shape.iter().cloned().product();
        shape.push(if others.as_const().is_some() { last } else { all.quotient(&others.at_least(&Dim::Const(1))) });
    }
    Ok(shape)
}

/// Has it checked at run time that `n` axes are named, each once.
pub(super) fn expect_distinct(cx: &mut LowerCx<'_>, flags: &[Dim], n: usize) -> Result<()> {
    let sum: Dim = flags.iter().cloned().sum();
    cx.expect_equal([(&sum, &Dim::from(n))])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ir::{Symbol, SymbolSource};

    fn symbol(slot: usize) -> Dim {
        let source = SymbolSource::Data { slot };
        Dim::symbol(Symbol { name: format!("a{slot}"), min: -3, max: Some(2), source })
    }

    #[test]
    fn every_choice_of_axes() {
        let shape = [Dim::Const(4), Dim::Const(5), Dim::Const(6)];
        let (one, two) = (flags(&[symbol(0)], 3).unwrap(), flags(&[symbol(0), symbol(1)], 3).unwrap());
        let (left, last) = (rest(&one, &shape, 2), rest(&two, &shape, 1));
        assert!(left.iter().chain(&last).all(|d| d.upper() == Some(6)), "{left:?}");
        for a in -3..3i64 {
            let at = a.rem_euclid(3) as usize;
            let value = |v: &[Dim], b: i64| -> Vec<i64> {
                v.iter().map(|d| d.eval(&|s| if s.name == "a0" { a } else { b })).collect()
            };
            let mut want: Vec<i64> = vec![4, 5, 6];
            want.remove(at);
            assert_eq!(value(&left, 0), want, "{a}");
            for b in (-3..3).filter(|b: &i64| b.rem_euclid(3) as usize != at) {
                assert_eq!(value(&last, b), [[4, 5, 6][3 - at - b.rem_euclid(3) as usize]]);
            }
        }
    }

    #[test]
    fn what_is_left_of_all_has_a_bound() {
        let shape = [1, 3, 1, 5].map(Dim::Const);
        let drop = flags(&[symbol(0), symbol(1)], 4).unwrap();
        let left = of_all(rest(&drop, &shape, 2), &Dim::Const(15)).unwrap();
        assert!(left.iter().all(|d| d.upper().is_some_and(|most| most <= 15)), "{left:?}");
        for (a, b, want) in [(0, 2, [3, 5]), (-2, 0, [3, 5])] {
            let dims = left.iter().map(|d| d.eval(&|s| if s.name == "a0" { a } else { b }));
            assert_eq!(dims.collect::<Vec<_>>(), want);
        }
    }

    #[test]
    fn bounds_beyond_the_rank_are_refused() {
        assert!(flags(&[symbol(0)], 2).is_err() && flags(&[symbol(0), symbol(1)], 3).is_ok());
        assert!(flags(&[symbol(0), symbol(1), symbol(2), symbol(3)], 3).is_err());
        assert!(flags(&[Dim::Const(0), Dim::Const(-3)], 3).is_err());
    }
}
