//! Types of values: element type, shape, layout.

use super::Dim;
use kiln_kernels::Dtype;
use std::fmt;

/// How a tensor's elements lie in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Layout {
    /// Row-major, as ONNX defines tensors.
    #[default]
    Plain,
    /// `[N, ceil(C/16), spatial…, 16]`: axis 1 in blocks of 16, the last block padded. Pad lanes hold anything;
    /// no kernel lets them reach another lane.
    Blocked16,
}

/// Element type and shape of a tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorType {
    /// Element type.
    pub dtype: Dtype,
    /// Extents, outermost first.
    pub shape: Vec<Dim>,
}

/// The largest tensor a plan accepts, in bytes: beyond it, a size in a file is taken for a mistake or an attack.
pub const MAX_TENSOR_BYTES: i64 = 1 << 33;

impl TensorType {
    /// A tensor type.
    pub fn new(dtype: Dtype, shape: Vec<Dim>) -> Self {
        Self { dtype, shape }
    }

    /// A tensor type with constant extents.
    pub fn fixed(dtype: Dtype, dims: &[usize]) -> Self {
        Self { dtype, shape: dims.iter().map(|&d| Dim::from(d)).collect() }
    }

    /// Number of dimensions.
    pub fn rank(&self) -> usize {
        self.shape.len()
    }

    /// Number of elements.
    pub fn numel(&self) -> Dim {
        self.shape.iter().cloned().product()
    }

    /// Size in bytes (plain layout).
    pub fn bytes(&self) -> Dim {
        self.numel() * Dim::from(self.dtype.size_bytes())
    }

    /// The extents, if all are constant.
    pub fn const_dims(&self) -> Option<Vec<usize>> {
        self.shape.iter().map(|d| d.as_const().and_then(|c| usize::try_from(c).ok())).collect()
    }

    /// The extents of the memory form: the shape itself, or `[N, ceil(C/16), spatial…, 16]`.
    pub fn physical_shape(&self, layout: Layout) -> Vec<Dim> {
        match layout {
            Layout::Plain => self.shape.clone(),
            Layout::Blocked16 => {
                let mut dims = self.shape.clone();
                dims[1] = dims[1].ceil_div(&Dim::Const(16));
                dims.push(Dim::Const(16));
                dims
            }
        }
    }
}

/// The type of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Type {
    /// A tensor.
    Tensor(TensorType),
    /// A sequence of values of one type.
    Sequence(Box<Type>),
    /// A value that may be absent.
    Optional(Box<Type>),
}

impl Type {
    /// The tensor type, if it is one.
    pub fn tensor(&self) -> Option<&TensorType> {
        match self {
            Self::Tensor(t) => Some(t),
            _ => None,
        }
    }
}

impl From<TensorType> for Type {
    fn from(t: TensorType) -> Self {
        Self::Tensor(t)
    }
}

/// Shapes as text: `[1,3,seq]`.
pub struct ShapeText<'a>(pub &'a [Dim]);

impl fmt::Display for ShapeText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[")?;
        for (i, d) in self.0.iter().enumerate() {
            write!(f, "{}{d}", if i > 0 { "," } else { "" })?;
        }
        f.write_str("]")
    }
}

impl fmt::Display for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.dtype, ShapeText(&self.shape))
    }
}

impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tensor(t) => write!(f, "{t}"),
            Self::Sequence(t) => write!(f, "seq({t})"),
            Self::Optional(t) => write!(f, "optional({t})"),
        }
    }
}
