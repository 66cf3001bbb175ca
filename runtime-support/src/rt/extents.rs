//! Extents known only at run time: slots that the inputs' shapes and the kernels fill in, and the checks of both.

use super::Error;
use core::ops::RangeInclusive;
use core::sync::atomic::{AtomicI64, Ordering};

/// The extents of one run, all zero.
pub const fn extents<const N: usize>() -> [AtomicI64; N] {
    [const { AtomicI64::new(0) }; N]
}

/// The extent in a slot.
pub fn extent(extents: &[AtomicI64], slot: usize) -> isize {
    extents.get(slot).map_or(0, |e| isize::try_from(e.load(Ordering::Relaxed)).unwrap_or(isize::MAX))
}

fn given(shapes: &[&[usize]], input_idx: usize, axis: usize) -> Result<usize, Error> {
    shapes.get(input_idx).and_then(|s| s.get(axis)).copied().ok_or(Error::Rank { input_idx })
}

/// Takes an extent from an axis of an input, within the bounds that were planned for.
pub fn bind(
    extents: &[AtomicI64],
    slot: usize,
    shapes: &[&[usize]],
    input_idx: usize,
    axis: usize,
    bounds: RangeInclusive<usize>,
) -> Result<(), Error> {
    let given = given(shapes, input_idx, axis)?;
    if !bounds.contains(&given) {
        return Err(Error::Extent { input_idx, axis, least: *bounds.start(), most: *bounds.end(), given });
    }
    if let Some(e) = extents.get(slot) {
        e.store(i64::try_from(given).unwrap_or(i64::MAX), Ordering::Relaxed);
    }
    Ok(())
}

/// Requires an input's rank.
pub fn expect_rank(shapes: &[&[usize]], input_idx: usize, rank: usize) -> Result<(), Error> {
    match shapes.get(input_idx) {
        Some(shape) if shape.len() == rank => Ok(()),
        _ => Err(Error::Rank { input_idx }),
    }
}

/// Requires that an axis of an input has the extent that the others imply.
pub fn expect_extent(shapes: &[&[usize]], input_idx: usize, axis: usize, expected: isize) -> Result<(), Error> {
    let given = given(shapes, input_idx, axis)?;
    let expected = usize::try_from(expected).unwrap_or(0);
    if given == expected {
        return Ok(());
    }
    Err(Error::Extent { input_idx, axis, least: expected, most: expected, given })
}

/// `floor(a / b)`; zero for a zero divisor.
pub const fn floor_div(a: isize, b: isize) -> isize {
    if b == 0 {
        return 0;
    }
    let q = a.wrapping_div(b);
    if a.wrapping_rem(b) != 0 && (a < 0) != (b < 0) { q - 1 } else { q }
}

/// `a mod b`, sign of `b`; zero for a zero divisor.
pub const fn modulo(a: isize, b: isize) -> isize {
    if b == 0 {
        return 0;
    }
    let r = a.wrapping_rem(b);
    if r != 0 && (r < 0) != (b < 0) { r + b } else { r }
}

/// What two extents broadcast to, where they do: the second one where the first is 1.
pub const fn broadcast(a: isize, b: isize) -> isize {
    if a == 1 { b } else { a }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn division_as_the_compiler_does_it() {
        for (a, b, q, r) in [(7, 2, 3, 1), (-7, 2, -4, 1), (7, -2, -4, -1), (-7, -2, 3, -1), (6, 3, 2, 0), (5, 0, 0, 0)]
        {
            assert_eq!((floor_div(a, b), modulo(a, b)), (q, r), "{a} {b}");
        }
    }

    #[test]
    fn bounds_are_checked() {
        let e = extents::<2>();
        let shapes: [&[usize]; 2] = [&[1, 7], &[7]];
        assert_eq!(bind(&e, 1, &shapes, 0, 1, 1..=8), Ok(()));
        assert_eq!(extent(&e, 1), 7);
        assert!(matches!(bind(&e, 1, &shapes, 0, 1, 1..=6), Err(Error::Extent { given: 7, most: 6, .. })));
        assert_eq!(expect_extent(&shapes, 1, 0, extent(&e, 1)), Ok(()));
        assert!(expect_extent(&shapes, 1, 0, 8).is_err());
        assert_eq!(expect_rank(&shapes, 1, 2), Err(Error::Rank { input_idx: 1 }));
        assert_eq!(bind(&e, 0, &shapes, 2, 0, 0..=1), Err(Error::Rank { input_idx: 2 }));
    }
}
