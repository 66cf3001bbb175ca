//! Between the caller's typed arrays and the bytes that kernels work on.

use super::Error;
pub use kiln_kernels::Region;

mod sealed {
    pub trait Sealed {}
}

/// Element types at a model's border.
///
/// # Safety
/// `N` elements are `N * size_of::<Self>()` initialised bytes without padding, and every byte string of that length for
/// which `valid` holds is a value.
pub unsafe trait Element: Copy + 'static + sealed::Sealed {
    /// Whether these bytes are elements of this type.
    fn valid(bytes: &[u8]) -> bool;
}

macro_rules! elements {
    ($($t:ty),*) => { $(
        impl sealed::Sealed for $t {}
        // SAFETY: a plain number: no padding, every bit pattern is a value.
        unsafe impl Element for $t {
            fn valid(_: &[u8]) -> bool {
                true
            }
        }
    )* };
}
elements!(f32, f64, i8, i16, i32, i64, u8, u16, u32, u64);

impl sealed::Sealed for bool {}
// SAFETY: one byte without padding; `valid` admits the two bit patterns of `bool` only.
unsafe impl Element for bool {
    fn valid(bytes: &[u8]) -> bool {
        bytes.iter().all(|&b| b <= 1)
    }
}

/// An array's bytes.
pub const fn bytes_of<T: Element>(values: &[T]) -> &[u8] {
    // SAFETY: `Element` promises initialised bytes without padding.
    unsafe { core::slice::from_raw_parts(values.as_ptr().cast(), size_of_val(values)) }
}

/// Bytes as an array; `None` when length, alignment or content do not fit.
pub fn array_of<T: Element, const N: usize>(bytes: &[u8]) -> Option<&[T; N]> {
    let fits = bytes.len() == N * size_of::<T>() && bytes.as_ptr().addr().is_multiple_of(align_of::<T>());
    if !fits || !T::valid(bytes) {
        return None;
    }
    // SAFETY: length and alignment are checked, and `Element` promises that valid bytes are values.
    Some(unsafe { &*bytes.as_ptr().cast::<[T; N]>() })
}

/// Input `i` of a list of inputs as bytes.
pub fn raw_input<'a>(inputs: &[&'a [u8]], input_idx: usize, expected: usize) -> Result<&'a [u8], Error> {
    let data = inputs.get(input_idx).copied().unwrap_or_default();
    if data.len() == expected { Ok(data) } else { Err(Error::Input { input_idx, expected, given: data.len() }) }
}
