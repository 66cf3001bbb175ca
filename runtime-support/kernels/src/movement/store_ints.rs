//! Extents known only at run time, written as a tensor: Shape and Size of dynamic values.

use crate::{Fault, Isa, kernel};

kernel! {
    /// `y[i] = values[i]` for `i < n`, two's complement.
    pub struct StoreInts {
        operands { write y: T }
        nums { n }
        arrays { values: 8 }
    }
    entries { store_ints_i64 { T = i64 } store_ints_i32 { T = i32 } }
    body = store_ints;
}

/// An integer that an extent is stored as.
trait FromExtent {
    fn from_extent(v: usize) -> Self;
}

impl FromExtent for i64 {
    fn from_extent(v: usize) -> Self {
        v as i64
    }
}

impl FromExtent for i32 {
    fn from_extent(v: usize) -> Self {
        v as i32
    }
}

fn store_ints<T: FromExtent>(_: Isa, d: &StoreInts, y: &mut [T]) -> Result<(), Fault> {
    if d.n > d.values.len() || d.n > y.len() {
        return Err(Fault::Descriptor);
    }
    for (y, &v) in y.iter_mut().zip(&d.values[..d.n]) {
        *y = T::from_extent(v);
    }
    Ok(())
}
