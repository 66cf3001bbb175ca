//! Arrays of the crate `ndarray` at a model's border: feature `ndarray`. Nothing is copied.
//!
//! ```
//! use kiln::{TensorView, ndarray::{array, Array2}};
//! let ids: Array2<i64> = array![[1, 2, 3]];
//! let view: TensorView<'_, i64, 2> = ids.view().try_into()?;      // an input of free extents
//! let fixed: &[i64; 3] = kiln::fixed(&ids.view())?;               // an input of fixed extents
//! assert_eq!(view.array(), ids);                                  // an output of free extents
//! # let _ = fixed;
//! # Ok::<(), kiln::Error>(())
//! ```

use super::{Error, PortInfo, ReservedView, TensorView};
use kiln_kernels::Reserved;
use ndarray::{ArrayView, ArrayViewD, Dim, Dimension, IntoDimension, IxDyn, ShapeBuilder};

impl<'a, T, D: Dimension, const RANK: usize> TryFrom<ArrayView<'a, T, D>> for TensorView<'a, T, RANK> {
    type Error = Error;

    /// An error for an array of another rank, or one whose elements do not lie in row-major order.
    fn try_from(array: ArrayView<'a, T, D>) -> Result<Self, Error> {
        let shape = array.shape().try_into().map_err(|_| Error::Array)?;
        Ok(Self::new(array.to_slice().ok_or(Error::Array)?, shape))
    }
}

/// An array as an input of fixed extents; an error where it has another number of elements, or they do not lie in row-major
/// order.
pub fn fixed<'a, T, D: Dimension, const N: usize>(array: &ArrayView<'a, T, D>) -> Result<&'a [T; N], Error> {
    array.to_slice().and_then(|data| data.try_into().ok()).ok_or(Error::Array)
}

impl<'a, T, const RANK: usize> TensorView<'a, T, RANK>
where
    [usize; RANK]: IntoDimension<Dim = Dim<[usize; RANK]>>,
    Dim<[usize; RANK]>: Dimension,
{
    /// The tensor as an array.
    ///
    /// # Panics
    /// Where the shape has not as many elements as there are: never for an output.
    pub fn array(&self) -> ArrayView<'a, T, Dim<[usize; RANK]>> {
        ArrayView::from_shape(self.shape, self.data).expect("the shape has as many elements as there are")
    }
}

impl<'a, T, const RANK: usize> ReservedView<'a, T, RANK>
where
    [usize; RANK]: IntoDimension<Dim = Dim<[usize; RANK]>>,
    Dim<[usize; RANK]>: Dimension,
{
    /// The tensor as an array, with strides over the room between its rows.
    ///
    /// # Panics
    /// Where the shape does not fit the memory: never for an output.
    pub fn array(&self) -> ArrayView<'a, T, Dim<[usize; RANK]>> {
        let Reserved { axis, rows } = self.reserved;
        let extent = |a: usize| if a == axis { rows } else { self.shape[a] };
        let strides: [usize; RANK] = core::array::from_fn(|a| (a + 1..RANK).map(extent).product());
        let shape = self.shape.into_dimension().strides(strides.into_dimension());
        ArrayView::from_shape(shape, self.data).expect("the shape fits the memory")
    }
}

impl PortInfo {
    /// The data of a port of fixed extents as an array, as in `Model::OUTPUTS[0].array(out.scores)`; an error where it has
    /// another number of elements.
    pub fn array<'a, T>(&self, data: &'a [T]) -> Result<ArrayViewD<'a, T>, Error> {
        ArrayView::from_shape(IxDyn(self.dims), data).map_err(|_| Error::Array)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ndarray::{Array2, array};
    use std::vec;

    #[test]
    fn arrays_go_in_and_out() {
        let a: Array2<f32> = array![[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]];
        let view = TensorView::<f32, 2>::try_from(a.view()).unwrap();
        assert_eq!((view.shape, view.array()), ([2, 3], a.view()));
        assert!(TensorView::<f32, 3>::try_from(a.view()).is_err());
        assert_eq!(TensorView::<f32, 2>::try_from(a.t()).unwrap_err(), Error::Array);
        assert_eq!(fixed::<_, _, 6>(&a.view()).unwrap()[4], 5.0);
        assert_eq!(fixed::<_, _, 5>(&a.view()).unwrap_err(), Error::Array);
        let port = PortInfo { name: "y", dtype: "f32", dims: &[3, 2] };
        assert_eq!(port.array(view.data).unwrap()[[2, 1]], 6.0);
        assert!(port.array(&view.data[1..]).is_err());
    }

    #[test]
    fn room_between_rows_is_in_the_strides() {
        let data: std::vec::Vec<i32> = (0..12).collect();
        let view = ReservedView::new(&data, [2, 2, 2], Reserved { axis: 1, rows: 3 });
        assert_eq!(view.array(), array![[[0, 1], [2, 3]], [[6, 7], [8, 9]]]);
        let pieces: std::vec::Vec<_> = view.pieces().collect();
        assert_eq!(pieces, [&[0, 1, 2, 3], &[6, 7, 8, 9]]);
    }
}
