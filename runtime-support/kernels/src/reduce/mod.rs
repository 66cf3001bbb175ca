//! Reductions: the ten ONNX `Reduce*` operators over any set of axes.

mod lines;
mod nd;

pub use lines::*;
pub use nd::*;
pub(crate) use nd::{Odometer, product, reach};

use crate::param_enum;

param_enum! {
    /// What a reduction computes of its elements.
    pub enum ReduceOp {
        /// Σ x
        Sum,
        /// Σ x / n
        Mean,
        /// The greatest; NaN if any is.
        Max,
        /// The least; NaN if any is.
        Min,
        /// Π x
        Prod,
        /// Σ |x|
        L1,
        /// √Σ x²
        L2,
        /// ln Σ x
        LogSum,
        /// ln Σ e^x
        LogSumExp,
        /// Σ x²
        SumSquare,
    }
}
