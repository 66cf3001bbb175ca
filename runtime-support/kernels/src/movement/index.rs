//! Index operands: values that select along an axis, negative ones counting from its end.

/// An element type that indices come in.
pub trait IndexElem: Copy {
    /// The position on an axis of this extent; `None` outside it.
    fn position(self, extent: usize) -> Option<usize>;
}

impl IndexElem for i64 {
    #[inline(always)]
    fn position(self, extent: usize) -> Option<usize> {
        let extent_i = extent as i64;
        let at = if self < 0 { self.wrapping_add(extent_i) } else { self };
        if at >= 0 && at < extent_i { Some(at as usize) } else { None }
    }
}

impl IndexElem for i32 {
    #[inline(always)]
    fn position(self, extent: usize) -> Option<usize> {
        i64::from(self).position(extent)
    }
}

/// The product of extents, unless it overflows.
pub(crate) fn product(extents: &[usize]) -> Option<usize> {
    extents.iter().try_fold(1usize, |n, &d| n.checked_mul(d))
}

/// Whether a slice of this length holds the product of these extents.
pub(crate) fn holds(len: usize, extents: &[usize]) -> bool {
    product(extents).is_some_and(|n| len >= n)
}
