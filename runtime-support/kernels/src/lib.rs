//! The kernels behind the modules that Kiln generates.
//!
//! In: a descriptor with baked operand locations ([`Operand`]) and a context ([`Cx`]) that knows where the regions are.
//! Out: the written operands, and at most one kept [`Fault`] per run. The same kernels run in generated code and, with
//! [`Isa::Scalar`], in the compiler when it folds constants. Nothing here allocates (feature `alloc` aside:
//! packing offline, and strings and sequences in [`objects`]), locks or prints.
//!
//! Invariant: a kernel body is a function over slices that checks its extents against them; the entry functions made by
//! [`kernel!`] check every operand first.
#![no_std]
#[cfg(feature = "alloc")]
extern crate alloc;
#[cfg(any(feature = "std", test))]
extern crate std;

pub mod activation;
#[cfg(feature = "alloc")]
mod aligned;
pub mod attention;
pub mod contract;
mod control;
pub mod conv;
mod cx;
mod descriptor;
pub mod dtype;
pub mod elementwise;
pub mod gemm;
pub mod half;
pub mod image_decode;
pub mod indexing;
pub mod isa;
pub mod loss;
pub mod ml;
pub mod movement;
pub mod norm;
#[cfg(feature = "alloc")]
pub mod objects;
mod part;
pub mod peak;
pub mod pool;
#[cfg(feature = "profile")]
pub mod profile;
pub mod quant;
pub mod random;
pub mod real;
pub mod recurrent;
pub mod reduce;
pub mod resize;
pub mod sampling;
pub mod search;
pub mod signal;
pub mod simd;
pub mod small_float;
mod trailer;
pub mod widen;

pub use activation::Activation;
#[cfg(feature = "alloc")]
pub use aligned::AlignedBytes;
pub use attention::*;
pub use contract::*;
pub use control::*;
pub use conv::*;
pub use cx::{ALIGN, Access, Cx, Events, Fault, Region, Role, RunState};
pub use descriptor::{
    Descriptor, Elem, Entry, Field, FieldMut, Literal, NO_SLOT, ObjectSlot, Operand, OperandView, WHOLE,
};
#[doc(hidden)]
pub use descriptor::{assert_static, kinds, operand_part, operand_slice, operand_slice_mut, same_place};
pub use dtype::Dtype;
pub use elementwise::*;
pub use gemm::scale_add::*;
pub use gemm::{BLayout, Gemm, GemmInt8, MatMul};
pub use gemm::{
    gemm_f32, gemm_i8_f32, gemm_i8_i8, gemm_i8_i32, gemm_i8_u8, gemm_u8_f32, gemm_u8_i8, gemm_u8_i32, gemm_u8_u8,
};
pub use gemm::{matmul_f64, matmul_i32, matmul_i64, matmul_u32, matmul_u64};
pub use half::{bf16, f16};
pub use image_decode::*;
pub use indexing::*;
pub use isa::Isa;
pub use loss::*;
pub use ml::*;
pub use movement::*;
pub use norm::*;
#[cfg(feature = "alloc")]
pub use objects::*;
pub use part::PartOut;
pub use pool::*;
pub use quant::*;
pub use random::*;
pub use recurrent::*;
pub use reduce::*;
pub use reduce::{ReduceColumns, ReduceNd, ReduceOp, ReduceRows};
pub use resize::*;
pub use sampling::*;
pub use search::*;
pub use signal::*;
pub use small_float::{PowerRounding, SmallFloat};
pub use trailer::{TRAILER_BYTES, weights_trailer};
pub use widen::*;
