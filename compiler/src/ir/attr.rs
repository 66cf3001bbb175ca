//! Attributes of nodes, typed.

use super::{Tensor, Type};
use kiln_kernels::Literal;
use std::sync::Arc;

/// An attribute's value. Subgraphs are not here: they are a node's `bodies`.
#[derive(Clone, Debug, PartialEq)]
pub enum Attr {
    /// INT
    Int(i64),
    /// FLOAT
    Float(f32),
    /// STRING, bytes as in the file.
    Str(Vec<u8>),
    /// TENSOR
    Tensor(Arc<Tensor>),
    /// INTS
    Ints(Vec<i64>),
    /// FLOATS
    Floats(Vec<f32>),
    /// STRINGS
    Strs(Vec<Vec<u8>>),
    /// TENSORS
    Tensors(Vec<Arc<Tensor>>),
    /// TYPE_PROTO
    Type(Type),
    /// The epilogue of a fused operator (Kiln's own domain).
    Activation(kiln_kernels::Activation),
}

impl Attr {
    /// ONNX's name of its kind.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Int(_) => "INT",
            Self::Float(_) => "FLOAT",
            Self::Str(_) => "STRING",
            Self::Tensor(_) => "TENSOR",
            Self::Ints(_) => "INTS",
            Self::Floats(_) => "FLOATS",
            Self::Strs(_) => "STRINGS",
            Self::Tensors(_) => "TENSORS",
            Self::Type(_) => "TYPE_PROTO",
            Self::Activation(_) => "activation",
        }
    }

    /// Its value as short text.
    pub fn text(&self) -> String {
        match self {
            Self::Int(v) => v.to_string(),
            Self::Float(v) => format!("{v:?}"),
            Self::Str(v) => format!("{:?}", String::from_utf8_lossy(v)),
            Self::Tensor(t) => format!("{t:?}"),
            Self::Ints(v) => format!("{v:?}"),
            Self::Floats(v) => format!("{v:?}"),
            Self::Strs(v) => format!("{:?}", v.iter().map(|s| String::from_utf8_lossy(s)).collect::<Vec<_>>()),
            Self::Tensors(v) => format!("{v:?}"),
            Self::Type(t) => t.to_string(),
            Self::Activation(a) => {
                let mut s = String::new();
                let _ = a.literal(&mut s);
                s
            }
        }
    }
}
