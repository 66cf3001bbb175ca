//! The typed graph IR: values with dtype, symbolic shape and layout; nodes; constants; its text form.

mod attr;
mod datum;
mod dim;
mod graph;
mod tensor;
pub mod text;
mod ty;

pub use attr::Attr;
pub use datum::{Datum, narrow};
pub use dim::{Atom, Dim, Symbol, SymbolSource};
pub use graph::{Graph, Node, Value, ValueId};
pub use tensor::Tensor;
pub use ty::{Elements, Layout, MAX_TENSOR_BYTES, SequenceType, ShapeText, TensorType, Type, bounded_extent};
