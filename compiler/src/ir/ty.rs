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
    /// Row-major with room for `rows` along `axis`: a cache that grows in place. What is behind the rows there are holds
    /// anything.
    Reserved {
        /// The axis that grows.
        axis: u8,
        /// Rows that there is room for.
        rows: u32,
    },
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

    /// Size in bytes in a layout.
    pub fn bytes_in(&self, layout: Layout) -> Dim {
        self.physical_shape(layout).into_iter().product::<Dim>() * Dim::from(self.dtype.size_bytes())
    }

    /// The extents, if all are constant.
    pub fn const_dims(&self) -> Option<Vec<usize>> {
        self.shape.iter().map(|d| d.as_const().and_then(|c| usize::try_from(c).ok())).collect()
    }

    /// The extents of the memory form: the shape itself, `[N, ceil(C/16), spatial…, 16]`, or the shape with room in one axis.
    pub fn physical_shape(&self, layout: Layout) -> Vec<Dim> {
        match layout {
            Layout::Plain => self.shape.clone(),
            Layout::Blocked16 => {
                let mut dims = self.shape.clone();
                dims[1] = dims[1].ceil_div(&Dim::Const(16));
                dims.push(Dim::Const(16));
                dims
            }
            Layout::Reserved { axis, rows } => {
                let mut dims = self.shape.clone();
                dims[usize::from(axis)] = Dim::from(rows as usize);
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
    /// A sequence of tensors.
    Sequence(SequenceType),
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

impl Type {
    /// Whether its values lie in an object's slot, not in the arena: strings, sequences, optional values.
    pub fn is_object(&self) -> bool {
        self.tensor().is_none_or(|t| t.dtype == Dtype::Str)
    }

    /// The sequence type, if it is one.
    pub fn sequence(&self) -> Option<&SequenceType> {
        match self {
            Self::Sequence(s) => Some(s),
            _ => None,
        }
    }

    /// What holds of values of either type; `None` where they do not go together.
    pub fn join(&self, other: &Self) -> Option<Self> {
        Some(match (self, other) {
            (Self::Tensor(a), Self::Tensor(b)) if a == b => self.clone(),
            (Self::Sequence(a), Self::Sequence(b)) => Self::Sequence(a.join(b)?),
            (Self::Optional(a), Self::Optional(b)) => Self::Optional(Box::new(a.join(b)?)),
            (Self::Optional(a), b) | (b, Self::Optional(a)) => Self::Optional(Box::new(a.join(b)?)),
            _ => return None,
        })
    }
}

/// What is known of the tensors in a sequence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Elements {
    /// There are none yet.
    Nothing,
    /// All have this rank and extents within these bounds (constants, or symbols of [`super::SymbolSource::Element`]).
    Ranked(Vec<Dim>),
    /// Their ranks differ or are not known.
    Any,
}

/// The type of a sequence: its elements' type, and how many there can be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SequenceType {
    /// Element type of the tensors.
    pub dtype: Dtype,
    /// Their extents.
    pub elements: Elements,
    /// The greatest length, if there is one.
    pub most: Option<i64>,
}

/// An extent within bounds, inside a sequence's type.
pub fn bounded_extent(min: i64, max: Option<i64>) -> Dim {
    if max == Some(min) {
        return Dim::Const(min);
    }
    let name = max.map_or_else(|| format!("{min}.."), |max| format!("{min}..{max}"));
    Dim::symbol(super::Symbol { name, min, max, source: super::SymbolSource::Element })
}

impl Elements {
    /// The extents of one tensor, as bounds.
    pub fn of(shape: &[Dim]) -> Self {
        Self::Ranked(shape.iter().map(|d| bounded_extent(d.lower().max(0), d.upper())).collect())
    }

    /// What holds of the elements of both.
    pub fn join(&self, other: &Self) -> Self {
        match (self, other) {
            (Self::Nothing, x) | (x, Self::Nothing) => x.clone(),
            (Self::Ranked(a), Self::Ranked(b)) if a.len() == b.len() => {
                let both = a.iter().zip(b).map(|(a, b)| {
                    let most = a.upper().zip(b.upper()).map(|(a, b)| a.max(b));
                    bounded_extent(a.lower().min(b.lower()), most)
                });
                Self::Ranked(both.collect())
            }
            _ => Self::Any,
        }
    }
}

impl SequenceType {
    /// What holds of both; `None` where their element types differ (one without elements goes with any).
    pub fn join(&self, other: &Self) -> Option<Self> {
        let dtype = match (&self.elements, &other.elements) {
            (Elements::Nothing, _) => other.dtype,
            (_, Elements::Nothing) => self.dtype,
            _ if self.dtype == other.dtype => self.dtype,
            _ => return None,
        };
        let most = self.most.zip(other.most).map(|(a, b)| a.max(b));
        Some(Self { dtype, elements: self.elements.join(&other.elements), most })
    }
}

impl fmt::Display for SequenceType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "seq({}", self.dtype)?;
        if let Elements::Ranked(shape) = &self.elements {
            write!(f, "{}", ShapeText(shape))?;
        }
        match self.most {
            Some(most) => write!(f, ", at most {most})"),
            None => write!(f, ")"),
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
            Self::Sequence(t) => write!(f, "{t}"),
            Self::Optional(t) => write!(f, "optional({t})"),
        }
    }
}
