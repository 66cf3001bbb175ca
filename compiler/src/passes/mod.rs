//! Device-independent passes over the graph: infer and fold, then simplify and fuse.

mod infer;

pub use infer::infer;
