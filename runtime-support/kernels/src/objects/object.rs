//! What an object is: nothing, a tensor, a tensor of strings, or a sequence.
//!
//! Invariant: a tensor has as many bytes, and strings as many entries, as its extents say. Tensors are shared, never
//! changed: copying a sequence copies none of its elements' bytes.

use crate::{AlignedBytes, Dtype};
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;

/// A value of a size that only a run knows: an absent optional value, a tensor, strings, or a sequence of these.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub enum Object {
    /// An optional value that is absent.
    #[default]
    None,
    /// A tensor of numbers.
    Tensor(TensorObject),
    /// A tensor of strings.
    Strings(Strings),
    /// A sequence.
    Sequence(Vec<Object>),
}

/// A tensor of numbers: element type, extents, row-major bytes on a 64-byte boundary.
#[derive(Clone, Debug, PartialEq)]
pub struct TensorObject {
    dtype: Dtype,
    dims: Vec<usize>,
    data: Arc<AlignedBytes>,
}

/// A tensor of strings: extents and row-major elements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Strings {
    dims: Vec<usize>,
    data: Arc<Vec<String>>,
}

/// Element types of tensors of numbers, by their little-endian bytes.
pub trait Element: Copy {
    /// The type's number in ONNX.
    const DTYPE: Dtype;
    /// Appends the element's bytes.
    fn put(self, out: &mut Vec<u8>);
    /// The element of these bytes, of which there are as many as the type has.
    fn get(bytes: &[u8]) -> Option<Self>;
}

macro_rules! elements {
    ($($t:ty = $d:ident),*) => { $(impl Element for $t {
        const DTYPE: Dtype = Dtype::$d;
        fn put(self, out: &mut Vec<u8>) {
            out.extend_from_slice(&self.to_le_bytes());
        }
        fn get(bytes: &[u8]) -> Option<Self> {
            bytes.try_into().ok().map(Self::from_le_bytes)
        }
    })* };
}
elements!(f32 = F32, f64 = F64, i8 = I8, i16 = I16, i32 = I32, i64 = I64, u8 = U8, u16 = U16, u32 = U32, u64 = U64);

impl Element for bool {
    const DTYPE: Dtype = Dtype::Bool;
    fn put(self, out: &mut Vec<u8>) {
        out.push(u8::from(self));
    }
    fn get(bytes: &[u8]) -> Option<Self> {
        bytes.first().map(|b| *b != 0)
    }
}

/// The product of extents, unless it overflows.
pub(super) fn numel(dims: &[usize]) -> Option<usize> {
    dims.iter().try_fold(1usize, |n, &d| n.checked_mul(d))
}

impl TensorObject {
    /// A tensor over a copy of these bytes; `None` when their count is not what dtype and extents say, for strings, and
    /// when there is no memory.
    pub fn new(dtype: Dtype, dims: Vec<usize>, bytes: &[u8]) -> Option<Self> {
        let fits = dtype != Dtype::Str && numel(&dims)?.checked_mul(dtype.size_bytes())? == bytes.len();
        let data = if fits { AlignedBytes::copy_of(bytes)? } else { return None };
        Some(Self { dtype, dims, data: Arc::new(data) })
    }

    /// Element type.
    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// Extents, outermost first.
    pub fn dims(&self) -> &[usize] {
        &self.dims
    }

    /// The elements' bytes.
    pub fn bytes(&self) -> &[u8] {
        self.data.as_slice()
    }
}

impl Strings {
    /// Strings of these extents; `None` when there are more or fewer than the extents say.
    pub fn new(dims: Vec<usize>, data: Vec<String>) -> Option<Self> {
        (numel(&dims)? == data.len()).then(|| Self { dims, data: Arc::new(data) })
    }

    /// Extents, outermost first.
    pub fn dims(&self) -> &[usize] {
        &self.dims
    }

    /// The strings, row-major.
    pub fn data(&self) -> &[String] {
        &self.data
    }
}

impl Object {
    /// A tensor of numbers; `None` when there are more or fewer elements than the extents say, or no memory.
    pub fn tensor<T: Element>(dims: &[usize], elements: &[T]) -> Option<Self> {
        let mut bytes = Vec::with_capacity(elements.len().checked_mul(T::DTYPE.size_bytes())?);
        elements.iter().for_each(|x| x.put(&mut bytes));
        TensorObject::new(T::DTYPE, dims.to_vec(), &bytes).map(Self::Tensor)
    }

    /// A tensor of strings; `None` when there are more or fewer than the extents say.
    pub fn strings<S: AsRef<str>>(dims: &[usize], strings: &[S]) -> Option<Self> {
        let data = strings.iter().map(|s| String::from(s.as_ref())).collect();
        Strings::new(dims.to_vec(), data).map(Self::Strings)
    }

    /// The elements, if this is a tensor of them.
    pub fn elements<T: Element>(&self) -> Option<Vec<T>> {
        let tensor = self.as_tensor().filter(|t| t.dtype == T::DTYPE)?;
        tensor.bytes().chunks_exact(T::DTYPE.size_bytes()).map(T::get).collect()
    }

    /// The tensor, if it is one of numbers.
    pub fn as_tensor(&self) -> Option<&TensorObject> {
        match self {
            Self::Tensor(t) => Some(t),
            _ => None,
        }
    }

    /// The strings, if it is a tensor of them.
    pub fn as_strings(&self) -> Option<&Strings> {
        match self {
            Self::Strings(s) => Some(s),
            _ => None,
        }
    }

    /// The elements, if it is a sequence.
    pub fn as_sequence(&self) -> Option<&[Object]> {
        match self {
            Self::Sequence(s) => Some(s),
            _ => None,
        }
    }

    /// Whether it is an absent optional value.
    pub fn is_none(&self) -> bool {
        matches!(self, Self::None)
    }

    /// The extents of a tensor of numbers or strings.
    pub fn dims(&self) -> Option<&[usize]> {
        match self {
            Self::Tensor(t) => Some(&t.dims),
            Self::Strings(s) => Some(&s.dims),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_checked() {
        assert!(Object::tensor(&[2], &[1.0f32]).is_none());
        assert!(Object::strings(&[0], &["a"]).is_none());
        assert!(TensorObject::new(Dtype::Str, alloc::vec![0], &[]).is_none());
        let t = Object::tensor(&[2, 1], &[1i64, -2]).unwrap();
        assert_eq!((t.elements::<i64>().unwrap(), t.dims().unwrap()), (alloc::vec![1, -2], &[2, 1][..]));
        assert_eq!(t.elements::<i32>(), None);
    }
}
