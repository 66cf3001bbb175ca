//! Constant tensors: dtype, dims and little-endian bytes in the in-memory layout of [`Dtype`].

use bytes::Bytes;
use kiln_kernels::Dtype;
use std::fmt;

/// A constant. Invariant: `data.len() == numel · dtype.size_bytes()`; strings stand one after the other, each after its
/// length (see [`kiln_kernels::encode_strings`]).
#[derive(Clone, PartialEq, Eq)]
pub struct Tensor {
    dtype: Dtype,
    dims: Vec<usize>,
    data: Bytes,
}

macro_rules! typed {
    ($($read:ident $make:ident $t:ident $d:ident;)*) => { $(
        #[doc = concat!("The elements, if they are `", stringify!($t), "`.")]
        pub fn $read(&self) -> Option<Vec<$t>> {
            (self.dtype == Dtype::$d).then(|| {
                self.data.chunks_exact(size_of::<$t>()).map(|c| $t::from_le_bytes(c.try_into().expect("invariant: exact chunks"))).collect()
            })
        }

        #[doc = concat!("A tensor of `", stringify!($t), "`; `values.len()` must be the product of `dims`.")]
        pub fn $make(dims: &[usize], values: &[$t]) -> Self {
            let data: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
            Self::new(Dtype::$d, dims.to_vec(), data.into()).expect("invariant: as many values as dims say")
        }
    )* };
}

impl Tensor {
    /// A tensor over these bytes; `None` when their count is not what dtype and dims say.
    pub fn new(dtype: Dtype, dims: Vec<usize>, data: Bytes) -> Option<Self> {
        if dtype == Dtype::Str {
            let n = dims.iter().try_fold(1usize, |n, &d| n.checked_mul(d))?;
            let strings = kiln_kernels::decode_strings(&data)?;
            return (strings.len() == n).then_some(Self { dtype, dims, data });
        }
        let bytes = dims.iter().try_fold(dtype.size_bytes(), |n, &d| n.checked_mul(d))?;
        (bytes == data.len()).then_some(Self { dtype, dims, data })
    }

    /// A tensor of strings; `None` when there are more or fewer than the extents say.
    pub fn from_strings<S: AsRef<str>>(dims: &[usize], strings: &[S]) -> Option<Self> {
        Self::new(Dtype::Str, dims.to_vec(), kiln_kernels::encode_strings(strings)?.into())
    }

    /// The strings, if it is a tensor of them.
    pub fn to_strings(&self) -> Option<Vec<String>> {
        if self.dtype == Dtype::Str { kiln_kernels::decode_strings(&self.data) } else { None }
    }

    typed! {
        to_f32s from_f32s f32 F32;
        to_f64s from_f64s f64 F64;
        to_i64s from_i64s i64 I64;
        to_i32s from_i32s i32 I32;
        to_u8s from_u8s u8 U8;
    }

    /// Element type.
    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// Extents.
    pub fn dims(&self) -> &[usize] {
        &self.dims
    }

    /// Number of elements.
    pub fn numel(&self) -> usize {
        self.dims.iter().product()
    }

    /// The elements' bytes.
    pub fn data(&self) -> &Bytes {
        &self.data
    }

    /// The same elements with other extents; `None` when the count differs.
    pub fn reshaped(&self, dims: Vec<usize>) -> Option<Self> {
        Self::new(self.dtype, dims, self.data.clone())
    }

    /// The elements of any integer or bool tensor as `i64` (`u64` beyond `i64::MAX` saturates).
    pub fn to_ints(&self) -> Option<Vec<i64>> {
        let d = &self.data;
        Some(match self.dtype {
            Dtype::I64 => return self.to_i64s(),
            Dtype::I32 => self.to_i32s()?.into_iter().map(i64::from).collect(),
            Dtype::U8 | Dtype::Bool | Dtype::U4 | Dtype::U2 => d.iter().map(|&b| i64::from(b)).collect(),
            Dtype::I8 | Dtype::I4 | Dtype::I2 => d.iter().map(|&b| i64::from(b as i8)).collect(),
            Dtype::I16 => d.chunks_exact(2).map(|c| i64::from(i16::from_le_bytes([c[0], c[1]]))).collect(),
            Dtype::U16 => d.chunks_exact(2).map(|c| i64::from(u16::from_le_bytes([c[0], c[1]]))).collect(),
            Dtype::U32 => d.chunks_exact(4).map(|c| i64::from(u32::from_le_bytes([c[0], c[1], c[2], c[3]]))).collect(),
            Dtype::U64 => d
                .chunks_exact(8)
                .map(|c| {
                    i64::try_from(u64::from_le_bytes(c.try_into().expect("invariant: exact chunks")))
                        .unwrap_or(i64::MAX)
                })
                .collect(),
            _ => return None,
        })
    }

    /// The single element of a float tensor of one element, as `f64`.
    pub fn scalar_f64(&self) -> Option<f64> {
        if self.numel() != 1 {
            return None;
        }
        match self.dtype {
            Dtype::F32 => self.to_f32s().map(|v| f64::from(v[0])),
            Dtype::F64 => self.to_f64s().map(|v| v[0]),
            _ => self.to_ints().map(|v| v[0] as f64),
        }
    }
}

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{:?}", self.dtype, self.dims)
    }
}
