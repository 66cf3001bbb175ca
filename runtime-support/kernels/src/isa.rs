//! placeholder until merge
/// Instruction set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Isa { /// s
 Scalar, /// a
 Avx2, /// b
 Avx512, /// n
 Neon }
