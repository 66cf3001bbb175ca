//! The operator table: one row per operator, one file per operator or family.
//!
//! A row says how an operator infers types, lowers to kernel calls, what it costs and which layouts it takes. Adding an
//! operator touches its file and one line here.

mod def;
#[cfg(test)]
pub(crate) mod testing;
pub mod view;

mod append;
mod arg;
mod attention;
mod axes;
mod batch_norm;
mod binary;
mod broadcast;
mod cache;
mod cast;
mod causal_conv;
mod classify;
mod clip;
mod concat;
mod constant;
mod contrib_attention;
mod contrib_gelu;
pub(crate) mod control;
pub(crate) mod conv;
pub(crate) mod conv_transpose;
mod deform_conv;
mod depth_space;
mod det;
mod dropout;
mod dynamic_quantize;
mod einsum;
mod expand;
mod expect;
mod found;
mod fused_attention;
mod gather;
mod gather_nd;
mod grid_sample;
mod group_norm;
mod half;
mod identity;
mod image;
mod index;
pub(crate) mod int_conv;
mod int_matmul;
mod layer_norm;
pub(crate) mod layout;
mod linear_attention;
mod loss;
mod lp_norm;
pub(crate) mod matmul;
mod ml;
mod number;
mod one_hot;
mod optimizer;
mod optional;
mod pad;
pub(crate) mod pool;
mod pow;
mod qlinear;
pub(crate) mod quant;
mod quantize_linear;
mod random;
mod range;
pub(crate) mod read_ints;
mod recurrent;
mod reduce;
mod reshape;
mod resize;
mod roi;
mod rotary;
mod run_time;
mod scatter;
mod select;
mod sequence;
mod sequence_axis;
mod shape;
mod signal;
pub(crate) mod slice;
mod softmax;
mod split;
mod strided;
mod strings;
mod swiglu;
mod tf_idf;
mod top_k;
pub(crate) mod transpose;
mod triangle;
mod unary;
mod unpool;
mod variadic;
pub(crate) mod window;

pub use def::{InferCx, LayoutRule, OpDef, flops_per_element, tensor};

use crate::error::{CompileError, Stage};
use crate::ir::Node;
use std::collections::HashMap;
use std::sync::LazyLock;

/// All rows, by family.
static FAMILIES: &[&[OpDef]] = &[
    append::OPS,
    arg::OPS,
    attention::OPS,
    batch_norm::OPS,
    binary::OPS,
    cache::OPS,
    cast::OPS,
    causal_conv::OPS,
    classify::OPS,
    clip::OPS,
    concat::OPS,
    constant::OPS,
    contrib_attention::OPS,
    contrib_gelu::OPS,
    control::BRANCH,
    control::REPEAT,
    control::SCAN,
    conv::OPS,
    conv_transpose::OPS,
    deform_conv::OPS,
    depth_space::OPS,
    det::OPS,
    dropout::OPS,
    dynamic_quantize::OPS,
    einsum::OPS,
    expand::OPS,
    expect::OPS,
    found::OPS,
    fused_attention::OPS,
    gather::OPS,
    gather_nd::OPS,
    grid_sample::OPS,
    group_norm::OPS,
    identity::OPS,
    image::OPS,
    int_conv::OPS,
    int_matmul::OPS,
    layer_norm::OPS,
    layout::OPS,
    linear_attention::OPS,
    loss::OPS,
    lp_norm::OPS,
    matmul::OPS,
    ml::OPS,
    one_hot::OPS,
    optimizer::OPS,
    optional::OPS,
    pad::OPS,
    pool::OPS,
    pow::OPS,
    qlinear::OPS,
    quantize_linear::OPS,
    random::OPS,
    range::OPS,
    read_ints::OPS,
    recurrent::OPS,
    reduce::OPS,
    reshape::OPS,
    resize::OPS,
    roi::OPS,
    rotary::OPS,
    scatter::OPS,
    select::OPS,
    sequence_axis::OPS,
    shape::OPS,
    sequence::OPS,
    signal::OPS,
    slice::OPS,
    softmax::OPS,
    split::OPS,
    strings::OPS,
    swiglu::OPS,
    tf_idf::OPS,
    top_k::OPS,
    transpose::OPS,
    triangle::OPS,
    unary::OPS,
    unpool::OPS,
    variadic::OPS,
];

static TABLE: LazyLock<HashMap<(&'static str, &'static str), &'static OpDef>> =
    LazyLock::new(|| FAMILIES.iter().copied().flatten().map(|op| ((op.domain, op.name), op)).collect());

/// Every operator, sorted by domain and name.
pub fn all() -> Vec<&'static OpDef> {
    let mut ops: Vec<_> = FAMILIES.iter().copied().flatten().collect();
    ops.sort_by_key(|op| (op.domain, op.name));
    ops
}

/// The row of a node's operator; an error where there is none, or where the operator is newer than the node's opset.
pub fn find(node: &Node) -> Result<&'static OpDef, CompileError> {
    let domain = if node.domain == "ai.onnx" { "" } else { node.domain.as_str() };
    let op = TABLE
        .get(&(domain, node.op.as_str()))
        .copied()
        .ok_or_else(|| CompileError::new(Stage::Infer, format!("operator {} is not supported", node.full_op())))?;
    let first = op.since.first().copied().unwrap_or(1);
    if node.version < first {
        let message =
            format!("operator {} exists since opset {first}, the model imports opset {}", op.name, node.version);
        return Err(CompileError::new(Stage::Infer, message));
    }
    Ok(op)
}
