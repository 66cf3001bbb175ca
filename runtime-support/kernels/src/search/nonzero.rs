//! NonZero: the coordinates of the elements that are not zero, in row-major order.
//!
//! Source: <https://onnx.ai/onnx/operators/onnx__NonZero.html>

use crate::movement::holds;
use crate::{Fault, Isa, kernel};

kernel! {
    /// `y[a, j]` = coordinate `a` of the `j`-th element that is not zero, `y` as `[rank, count]`; the last `rank` of `dims`
    /// are the extents. For floats both zeros are zero.
    pub struct NonZero {
        operands { read x: T, write y: I }
        nums { rank }
        arrays { dims: 8 }
        params { float: bool }
        found { count }
    }
    entries {
        non_zero_b8 { T = u8, I = i64 } non_zero_b16 { T = u16, I = i64 } non_zero_b32 { T = u32, I = i64 }
        non_zero_b64 { T = u64, I = i64 }
    }
    body = non_zero;
}

/// Elements by their bits.
trait Bits: Copy + PartialEq + Default {
    /// Without the highest bit.
    fn without_sign(self) -> Self;
}

macro_rules! bits {
    ($($t:ty)*) => { $(impl Bits for $t {
        #[inline(always)]
        fn without_sign(self) -> Self {
            self << 1
        }
    })* };
}
bits!(u8 u16 u32 u64);

fn non_zero<T: Bits>(_: Isa, d: &NonZero, x: &[T], y: &mut [i64]) -> Result<[usize; 1], Fault> {
    let dims = d.dims.len().checked_sub(d.rank).and_then(|at| d.dims.get(at..)).ok_or(Fault::Descriptor)?;
    if !holds(x.len(), dims) {
        return Err(Fault::Descriptor);
    }
    let x = &x[..dims.iter().product()];
    let zero = T::default();
    let counts = |v: &T| if d.float { v.without_sign() != zero } else { *v != zero };
    let count = x.iter().filter(|v| counts(v)).count();
    if !holds(y.len(), &[d.rank, count]) {
        return Err(Fault::BoundExceeded);
    }
    let found = x.iter().enumerate().filter(|(_, v)| counts(v));
    for (j, (at, _)) in found.enumerate() {
        let mut rest = at;
        for (a, n) in dims.iter().enumerate().rev() {
            y[a * count + j] = (rest % n) as i64;
            rest /= n;
        }
    }
    Ok([count])
}
