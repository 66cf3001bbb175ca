//! Device-independent passes over the graph: infer and fold, then simplify and fuse.

mod affine;
mod attention;
mod bodies;
mod broadcast;
mod caches;
mod dead;
mod epilogue;
mod expand;
mod flex;
mod infer;
mod layout;
mod one_hot;
mod pad;
mod patterns;
mod permute;
mod qdq;
mod recode;
mod rewrite;
mod sequences;
mod strings;
#[cfg(test)]
mod testing;

pub use attention::fuse_attention;
pub use caches::keep_in_place;
pub use expand::EXPANDED;
pub use infer::infer;
pub use qdq::fuse_qdq;

use crate::error::CompileErrors;
use crate::ir::Graph;

/// Everything after inference, in order.
pub fn simplify(graph: &mut Graph) -> Result<(), CompileErrors> {
    qdq::fuse_qdq(graph);
    dead::remove_dead(graph);
    recode::to_unsigned(graph);
    infer::fold(graph)?;
    dead::remove_dead(graph);
    dead::bypass(graph);
    broadcast::into_readers(graph);
    dead::merge_equal(graph);
    dead::remove_dead(graph);
    permute::merge_chains(graph);
    patterns::recognise(graph);
    dead::remove_dead(graph);
    pad::into_conv(graph);
    affine::fold_into_conv(graph);
    epilogue::fuse(graph);
    epilogue::fold_scales(graph);
    one_hot::into_gathers(graph);
    permute::into_products(graph);
    dead::remove_dead(graph);
    layout::assign(graph);
    let mut errors = CompileErrors::default();
    for body in graph.nodes.iter_mut().flat_map(|n| n.bodies.values_mut()) {
        if let Err(e) = simplify(body) {
            e.0.into_iter().for_each(|e| errors.push(e));
        }
    }
    errors.or_ok(())
}
