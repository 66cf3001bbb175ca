//! Between the caller's typed arrays and the bytes that kernels work on.

use super::Error;
pub use kiln_kernels::Region;
use kiln_kernels::Reserved;

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
elements!([f32; 2], [f64; 2], f32, f64, i8, i16, i32, i64, u8, u16, u32, u64);

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

/// A tensor whose extents are known only at run time: elements in row-major order, and the shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TensorView<'a, T, const RANK: usize> {
    /// The elements.
    pub data: &'a [T],
    /// The extents, outermost first.
    pub shape: [usize; RANK],
}

impl<'a, T, const RANK: usize> TensorView<'a, T, RANK> {
    /// A tensor of this shape; the length is checked when a model runs on it.
    pub const fn new(data: &'a [T], shape: [usize; RANK]) -> Self {
        Self { data, shape }
    }
}

/// A tensor with room for more rows along one axis, as a state is that grows in place: its elements are not one slice but
/// one per index of the axes before.
#[derive(Clone, Copy, Debug)]
pub struct ReservedView<'a, T, const RANK: usize> {
    pub(super) data: &'a [T],
    pub(super) shape: [usize; RANK],
    pub(super) reserved: Reserved,
}

impl<'a, T, const RANK: usize> ReservedView<'a, T, RANK> {
    /// A tensor of this shape in `data`.
    pub const fn new(data: &'a [T], shape: [usize; RANK], reserved: Reserved) -> Self {
        Self { data, shape, reserved }
    }

    /// The extents, outermost first.
    pub const fn shape(&self) -> [usize; RANK] {
        self.shape
    }

    /// The contiguous pieces in order: as many as there are indices of the axes before the one that grows.
    pub fn pieces(&self) -> impl ExactSizeIterator<Item = &'a [T]> + use<'a, T, RANK> {
        let Self { data, shape, reserved: Reserved { axis, rows } } = *self;
        let axis = axis.min(RANK);
        let (outer, row) = (shape[..axis].iter().product(), shape[RANK.min(axis + 1)..].iter().product::<usize>());
        let (used, pitch) = (shape.get(axis).map_or(row, |n| n * row), rows * row);
        (0..outer).map(move |i| data.get(i * pitch..).and_then(|d| d.get(..used)).unwrap_or_default())
    }

    /// The elements in row-major order.
    pub fn iter(&self) -> impl Iterator<Item = &'a T> + use<'a, T, RANK> {
        self.pieces().flatten()
    }
}

/// Room for `rows` rows along an axis.
pub const fn reserved(axis: usize, rows: usize) -> Reserved {
    Reserved { axis, rows }
}

/// The bytes of a tensor with room between its rows, in order and behind each other.
#[cfg(feature = "alloc")]
pub fn gathered(
    bytes: &[u8],
    (reserved, shape, element): (Reserved, &[usize], usize),
) -> Result<alloc::vec::Vec<u8>, Error> {
    let mut all = alloc::vec::Vec::new();
    let done = reserved.gather(bytes, shape, element, &mut |piece| all.extend_from_slice(piece));
    done.map(|()| all).ok_or(Error::Output)
}

/// Without feature `alloc` there is no memory to put them in: an error.
#[cfg(not(feature = "alloc"))]
pub fn gathered(_: &[u8], _: (Reserved, &[usize], usize)) -> Result<&'static [u8], Error> {
    Err(Error::Output)
}

/// An input of run-time extents as a region; its length must be its shape's.
pub fn view<'a, T: Element, const RANK: usize>(
    tensor: &TensorView<'a, T, RANK>,
    input_idx: usize,
) -> Result<Region<'a>, Error> {
    let bytes = bytes_of(tensor.data);
    let expected = shape_bytes(&tensor.shape, size_of::<T>());
    if bytes.len() == expected {
        Ok(Region::read(bytes))
    } else {
        Err(Error::Input { input_idx, expected, given: bytes.len() })
    }
}

fn shape_bytes(shape: &[usize], element: usize) -> usize {
    shape.iter().fold(element, |n, &d| n.saturating_mul(d))
}

/// Bytes as a slice; `None` when length, alignment or content do not fit.
pub fn slice_of<T: Element>(bytes: &[u8]) -> Option<&[T]> {
    let fits = bytes.len().is_multiple_of(size_of::<T>()) && bytes.as_ptr().addr().is_multiple_of(align_of::<T>());
    if !fits || !T::valid(bytes) {
        return None;
    }
    // SAFETY: length and alignment are checked, and `Element` promises that valid bytes are values.
    Some(unsafe { core::slice::from_raw_parts(bytes.as_ptr().cast::<T>(), bytes.len() / size_of::<T>()) })
}

/// An input as bytes with its shape: for tools.
#[derive(Clone, Copy, Debug)]
pub struct RawInput<'a> {
    /// The elements' bytes.
    pub bytes: &'a [u8],
    /// The extents.
    pub shape: &'a [usize],
}

/// The shape of input `i` of a list of inputs.
pub fn raw_shape<'a>(inputs: &[RawInput<'a>], input_idx: usize) -> &'a [usize] {
    inputs.get(input_idx).map_or(&[], |input| input.shape)
}

/// The shape of input `i` of a list of inputs, if its rank is right and no extent exceeds its bound.
pub fn raw_state_shape<const RANK: usize>(
    inputs: &[RawInput<'_>],
    input_idx: usize,
    most: [usize; RANK],
) -> Result<[usize; RANK], Error> {
    let shape = raw_shape(inputs, input_idx);
    let shape = <[usize; RANK]>::try_from(shape).map_err(|_| Error::Rank { input_idx })?;
    within(shape, input_idx, most)
}

/// A shape of which no extent exceeds its bound.
pub fn within<const RANK: usize>(
    shape: [usize; RANK],
    input_idx: usize,
    most: [usize; RANK],
) -> Result<[usize; RANK], Error> {
    match (0..RANK).find(|&axis| shape[axis] > most[axis]) {
        None => Ok(shape),
        Some(axis) => Err(Error::Extent { input_idx, axis, least: 0, most: most[axis], given: shape[axis] }),
    }
}

/// The bytes of a state of run-time extents; their number must be the shape's.
pub fn state_bytes<'a, T: Element, const RANK: usize>(
    tensor: &TensorView<'a, T, RANK>,
    input_idx: usize,
) -> Result<&'a [u8], Error> {
    let (bytes, expected) = (bytes_of(tensor.data), shape_bytes(&tensor.shape, size_of::<T>()));
    if bytes.len() == expected { Ok(bytes) } else { Err(Error::Input { input_idx, expected, given: bytes.len() }) }
}

/// Input `i` of a list of inputs as bytes of a length known beforehand.
pub fn raw_input<'a>(inputs: &[RawInput<'a>], input_idx: usize, expected: usize) -> Result<&'a [u8], Error> {
    let data = inputs.get(input_idx).map(|i| i.bytes).unwrap_or_default();
    if data.len() == expected { Ok(data) } else { Err(Error::Input { input_idx, expected, given: data.len() }) }
}

/// Input `i` of a list of inputs as bytes of the length that its shape and this element size give.
pub fn raw_view<'a>(inputs: &[RawInput<'a>], input_idx: usize, element: usize) -> Result<&'a [u8], Error> {
    let shape = inputs.get(input_idx).map(|i| i.shape).unwrap_or_default();
    raw_input(inputs, input_idx, shape_bytes(shape, element))
}
