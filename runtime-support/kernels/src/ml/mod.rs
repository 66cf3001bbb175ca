//! Classical machine learning (`ai.onnx.ml`): trees, linear and support vector models, scores, labels. All compute in f64.

mod features;
mod linear;
mod scores;
mod tree;

pub use features::*;
pub use linear::*;
pub use scores::*;
pub use tree::*;
