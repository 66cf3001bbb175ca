//! Device-independent passes over the graph: infer and fold, then simplify and fuse.

mod dead;
mod expand;
mod infer;

pub use infer::infer;

use crate::error::CompileErrors;
use crate::ir::Graph;

/// Everything after inference, in order.
pub fn simplify(graph: &mut Graph) -> Result<(), CompileErrors> {
    dead::remove_dead(graph);
    dead::merge_equal(graph);
    dead::remove_dead(graph);
    Ok(())
}
