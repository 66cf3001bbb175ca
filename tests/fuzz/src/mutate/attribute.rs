//! Changes of an attribute: its value, its kind, another one.

use super::{edge, int, list, pick_mut, tensor, ty};
use bytes::Bytes;
use kiln_compiler::onnx::proto::{AttributeProto, AttributeType, GraphProto, TensorProto, TypeProto};
use kiln_fixtures::prng::Prng;

/// Names that operators read.
const NAMES: &[&str] = &[
    "activation",
    "activation_alpha",
    "activations",
    "align_corners",
    "allowzero",
    "alpha",
    "antialias",
    "auto_pad",
    "axes",
    "axis",
    "batch_axis",
    "batch_dims",
    "beta",
    "bias",
    "bits",
    "block_size",
    "blocksize",
    "body",
    "ceil_mode",
    "center_point_box",
    "clip",
    "coordinate_transformation_mode",
    "count_include_pad",
    "cubic_coeff_a",
    "detect_negative",
    "dilations",
    "direction",
    "dtype",
    "else_branch",
    "epsilon",
    "equation",
    "exclude_outside",
    "exclusive",
    "fmod",
    "group",
    "hidden_size",
    "interleaved",
    "is_causal",
    "K",
    "k",
    "keepdims",
    "kernel_shape",
    "kv_num_heads",
    "largest",
    "layout",
    "linear_before_reset",
    "mode",
    "N",
    "nearest_mode",
    "new_axis",
    "noop_with_empty_axes",
    "num_groups",
    "num_heads",
    "num_outputs",
    "num_scan_inputs",
    "onesided",
    "output_height",
    "output_padding",
    "output_shape",
    "p",
    "pads",
    "perm",
    "pooled_shape",
    "q_num_heads",
    "qk_matmul_output_mode",
    "reduction",
    "reverse",
    "rotary_embedding_dim",
    "sample_size",
    "sampling_ratio",
    "saturate",
    "scale",
    "scales",
    "seed",
    "select_last_index",
    "shape",
    "size",
    "softcap",
    "sorted",
    "spatial_scale",
    "split",
    "start",
    "end",
    "storage_order",
    "strides",
    "then_branch",
    "to",
    "transA",
    "transB",
    "upper",
    "value",
    "value_float",
    "value_ints",
    "value_strings",
];
const WORDS: &[&str] = &[
    "",
    "Relu",
    "Tanh",
    "Sigmoid",
    "SAME_UPPER",
    "SAME_LOWER",
    "VALID",
    "NOTSET",
    "linear",
    "nearest",
    "cubic",
    "constant",
    "reflect",
    "edge",
    "wrap",
    "zeros",
    "border",
    "reflection",
    "add",
    "mul",
    "none",
    "max",
    "min",
    "mean",
    "sum",
    "forward",
    "reverse",
    "bidirectional",
    "DCR",
    "CRD",
    "half_pixel",
    "asymmetric",
    "tf_crop_and_resize",
    "pytorch_half_pixel",
    "floor",
    "ceil",
    "ij,jk->ik",
    "ii->i",
    "...ij->...ji",
    "a,b",
    "->",
    "i->ij",
    "tanh",
    "LEFT",
    "avg",
    "[a-z]+(",
    "(x*)*$",
    "SOFTMAX",
    "BRANCH_LEQ",
    "LEAF",
];

/// The name of an attribute.
pub(super) fn name(r: &mut Prng) -> &'static str {
    NAMES[r.below(NAMES.len())]
}

/// An attribute of any name and kind.
pub(super) fn new(r: &mut Prng) -> AttributeProto {
    let mut a = AttributeProto { name: name(r).to_owned(), ..AttributeProto::default() };
    fill(r, &mut a);
    a
}

fn word(r: &mut Prng) -> Bytes {
    Bytes::from_static(WORDS[r.below(WORDS.len())].as_bytes())
}

fn float(r: &mut Prng) -> f32 {
    [0.0, 1.0, 0.5, 2.0, -1.0, -0.0, 1e-5, 1e30, f32::NAN, f32::INFINITY][r.below(10)]
}

/// A value of a kind drawn anew.
fn fill(r: &mut Prng, a: &mut AttributeProto) {
    let kind = match r.below(12) {
        0..=3 => AttributeType::Int,
        4..=6 => AttributeType::Ints,
        7 => AttributeType::Float,
        8 => AttributeType::String,
        9 => AttributeType::Floats,
        10 => AttributeType::Tensor,
        _ => [AttributeType::Strings, AttributeType::Graph, AttributeType::TypeProto][r.below(3)],
    };
    *a = AttributeProto { name: std::mem::take(&mut a.name), r#type: kind as i32, ..AttributeProto::default() };
    match kind {
        AttributeType::Int => a.i = Some(edge(r)),
        AttributeType::Ints => a.ints = (0..r.below(5)).map(|_| edge(r)).collect(),
        AttributeType::Float => a.f = Some(float(r)),
        AttributeType::Floats => a.floats = (0..r.below(5)).map(|_| float(r)).collect(),
        AttributeType::String => a.s = Some(word(r)),
        AttributeType::Strings => a.strings = (0..r.below(3)).map(|_| word(r)).collect(),
        AttributeType::Tensor => a.t = Some(Box::new(TensorProto { data_type: 1, ..TensorProto::default() })),
        AttributeType::Graph => a.g = Some(Box::new(GraphProto::default())),
        _ => a.tp = Some(Box::new(TypeProto::default())),
    }
}

/// One change.
pub(super) fn mutate(r: &mut Prng, a: &mut AttributeProto) {
    if r.chance(0.05) {
        a.r#type = r.below(16) as i32;
        return;
    }
    if r.chance(0.08) {
        return fill(r, a);
    }
    if r.chance(0.05) {
        a.name = name(r).to_owned();
        return;
    }
    a.i.iter_mut().for_each(|i| int(r, i));
    if let (Some(i), true) = (pick_mut(r, &mut a.ints), r.chance(0.7)) {
        int(r, i);
    } else if !a.ints.is_empty() {
        list(r, &mut a.ints, edge);
    }
    a.f.iter_mut().for_each(|f| *f = float(r));
    if let (Some(f), true) = (pick_mut(r, &mut a.floats), r.chance(0.7)) {
        *f = float(r);
    } else if !a.floats.is_empty() {
        list(r, &mut a.floats, float);
    }
    a.s.iter_mut().for_each(|s| *s = word(r));
    if !a.strings.is_empty() {
        list(r, &mut a.strings, word);
    }
    if let Some(t) = a.t.as_deref_mut() {
        tensor::mutate(r, t);
    }
    if let Some(t) = a.tp.as_deref_mut() {
        ty(r, t);
    }
}
