//! Kernels that write or read single elements by index: scatter, gather along an axis, one-hot, diagonals, running sums.

mod cumulate;
mod gather_elements;
mod index_cast;
mod one_hot;
mod reverse_sequence;
mod scatter_elements;
mod scatter_nd;
mod tensor_scatter;
mod trilu;
mod update;

pub use cumulate::*;
pub use gather_elements::*;
pub use index_cast::*;
pub use one_hot::*;
pub use reverse_sequence::*;
pub use scatter_elements::*;
pub use scatter_nd::*;
pub use tensor_scatter::*;
pub use trilu::*;
pub use update::*;
