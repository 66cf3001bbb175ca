//! Mutations of decoded models: nodes, operands, attributes, types, extents, constants, external data, functions, bodies.
//!
//! In: a model's bytes and a seed. Out: the bytes of a changed model; the same for the same seed.

mod attribute;
mod tensor;

use bytes::Bytes;
use kiln_compiler::onnx::encode;
use kiln_compiler::onnx::proto::*;
use kiln_compiler::ops;
use kiln_fixtures::prng::Prng;
use prost::Message;
use std::sync::LazyLock;

static OPS: LazyLock<Vec<(&str, &str)>> = LazyLock::new(|| ops::all().iter().map(|op| (op.domain, op.name)).collect());

/// Integers at which programs break.
const EDGES: &[i64] = &[
    -1,
    0,
    1,
    2,
    3,
    4,
    5,
    7,
    8,
    16,
    31,
    64,
    127,
    255,
    1000,
    65_536,
    -2,
    -3,
    -128,
    1 << 20,
    (1 << 31) - 1,
    1 << 31,
    1 << 32,
    -(1 << 31),
    1 << 40,
    1 << 62,
    i64::MAX,
    i64::MIN,
    i64::MIN + 1,
];

fn edge(r: &mut Prng) -> i64 {
    // Small ones keep models alive.
    let n = if r.chance(0.7) { 13 } else { EDGES.len() };
    EDGES[r.below(n)]
}

fn pick<'t, T>(r: &mut Prng, from: &'t [T]) -> Option<&'t T> {
    (!from.is_empty()).then(|| &from[r.below(from.len())])
}

fn pick_mut<'t, T>(r: &mut Prng, from: &'t mut [T]) -> Option<&'t mut T> {
    (!from.is_empty()).then(|| r.below(from.len())).and_then(|i| from.get_mut(i))
}

/// Drops, doubles, swaps or inserts an element of a list.
fn list<T: Clone>(r: &mut Prng, items: &mut Vec<T>, new: impl FnOnce(&mut Prng) -> T) {
    if items.is_empty() || r.chance(0.3) {
        let at = r.below(items.len() + 1);
        let made = new(r);
        return items.insert(at, made);
    }
    let (i, k) = (r.below(items.len()), r.below(items.len()));
    match r.below(3) {
        0 => drop(items.remove(i)),
        1 => items.insert(k, items[i].clone()),
        _ => items.swap(i, k),
    }
}

fn int(r: &mut Prng, i: &mut i64) {
    *i = if r.chance(0.5) { i.wrapping_add([-1, 1][r.below(2)]) } else { edge(r) };
}

/// Every graph in an attribute of these nodes.
fn bodies<'g>(nodes: &'g mut [NodeProto], out: &mut Vec<&'g mut GraphProto>) {
    for a in nodes.iter_mut().flat_map(|n| &mut n.attribute) {
        out.extend(a.g.as_deref_mut());
        out.extend(&mut a.graphs);
    }
}

/// Names of the graph's values.
fn names(g: &GraphProto) -> Vec<String> {
    let nodes = g.node.iter().flat_map(|n| &n.output).cloned();
    let inputs = g.input.iter().map(|v| v.name.clone());
    nodes.chain(inputs).chain(g.initializer.iter().map(|t| t.name.clone())).collect()
}

fn ty(r: &mut Prng, t: &mut TypeProto) {
    match (&mut t.value, r.below(10)) {
        (value, 0) => {
            let element = Box::new(ElementTypeProto {
                elem_type: Some(Box::new(TypeProto { value: value.take(), ..TypeProto::default() })),
            });
            *value = match r.below(4) {
                0 => Some(TypeValue::Optional(element)),
                1 => Some(TypeValue::Map(Box::new(MapTypeProto { key_type: 7, value_type: element.elem_type }))),
                2 => None,
                _ => Some(TypeValue::Sequence(element)),
            };
        }
        (Some(TypeValue::Tensor(t) | TypeValue::SparseTensor(t)), 1 | 2) => t.elem_type = r.below(28) as i32,
        (Some(TypeValue::Tensor(t)), _) => match &mut t.shape {
            Some(shape) if r.chance(0.9) => extents(r, &mut shape.dim),
            shape => *shape = [None, Some(TensorShapeProto::default())][r.below(2)].clone(),
        },
        (Some(TypeValue::Sequence(e) | TypeValue::Optional(e)), _) => {
            if let Some(inner) = e.elem_type.as_deref_mut() {
                ty(r, inner);
            }
        }
        _ => t.value = Some(TypeValue::Tensor(TensorTypeProto { elem_type: 1, shape: None })),
    }
}

fn extents(r: &mut Prng, dims: &mut Vec<DimensionProto>) {
    let new = |r: &mut Prng| {
        let value = match r.below(5) {
            0 => None,
            1 => Some(DimensionValue::DimParam(["n", "m", "?", ""][r.below(4)].to_owned())),
            _ => Some(DimensionValue::DimValue(edge(r))),
        };
        DimensionProto { value, denotation: String::new() }
    };
    match pick_mut(r, dims) {
        Some(d) if r.chance(0.7) => *d = new(r),
        _ => list(r, dims, new),
    }
}

fn new_node(r: &mut Prng, known: &[String], n: usize) -> NodeProto {
    let (domain, op) = OPS[r.below(OPS.len())];
    let n_inputs = 1 + r.below(4);
    NodeProto {
        op_type: op.to_owned(),
        domain: domain.to_owned(),
        input: (0..n_inputs).map(|_| pick(r, known).cloned().unwrap_or_default()).collect(),
        output: (0..1 + r.below(2)).map(|i| format!("new{n}_{i}")).collect(),
        ..NodeProto::default()
    }
}

fn node(r: &mut Prng, n: &mut NodeProto, known: &[String]) {
    let any = |r: &mut Prng| if r.chance(0.2) { String::new() } else { pick(r, known).cloned().unwrap_or_default() };
    match r.below(10) {
        0 => n.op_type = OPS[r.below(OPS.len())].1.to_owned(),
        1 | 2 => {
            let new = any(r);
            if let Some(input) = pick_mut(r, &mut n.input) {
                *input = new;
            }
        }
        3 => list(r, &mut n.input, any),
        4 => list(r, &mut n.output, |r| format!("out{}", r.below(1000))),
        5 => n.domain = ["", "ai.onnx", "ai.onnx.ml", "com.microsoft", "own", "kiln"][r.below(6)].to_owned(),
        6 => list(r, &mut n.attribute, attribute::new),
        _ => match pick_mut(r, &mut n.attribute) {
            Some(a) => attribute::mutate(r, a),
            None => n.attribute.push(attribute::new(r)),
        },
    }
}

/// Puts a piece of the nodes into the body of an If or a Loop, in their place.
fn wrap(r: &mut Prng, g: &mut GraphProto) {
    if g.node.is_empty() {
        return;
    }
    let i = r.below(g.node.len());
    let inner = g.node[i].clone();
    let outputs: Vec<ValueInfoProto> =
        inner.output.iter().map(|o| ValueInfoProto { name: o.clone(), ..ValueInfoProto::default() }).collect();
    let body =
        GraphProto { name: "body".to_owned(), node: vec![inner.clone()], output: outputs, ..GraphProto::default() };
    let graph = |name: &str, g: GraphProto| AttributeProto {
        name: name.to_owned(),
        r#type: AttributeType::Graph as i32,
        g: Some(Box::new(g)),
        ..AttributeProto::default()
    };
    let known = names(g);
    let any = |r: &mut Prng| pick(r, &known).cloned().unwrap_or_default();
    let (op_type, input, attribute) = if r.chance(0.5) {
        ("If", vec![any(r)], vec![graph("then_branch", body.clone()), graph("else_branch", body)])
    } else {
        let mut body = body;
        body.input = vec![crate::seeds::value("trip", 7, Some(&[])), crate::seeds::value("go", 9, Some(&[]))];
        body.output.insert(0, ValueInfoProto { name: "go".to_owned(), ..ValueInfoProto::default() });
        ("Loop", vec![any(r), String::new()], vec![graph("body", body)])
    };
    let output = inner.output.iter().map(|o| format!("{o}_around")).collect();
    g.node[i] = NodeProto { op_type: op_type.to_owned(), input, output, attribute, ..NodeProto::default() };
}

/// One change inside a graph or, more often the deeper it is nested, inside a body.
fn graph(r: &mut Prng, g: &mut GraphProto, depth: usize) {
    if depth < 6 && r.chance(0.4) {
        let mut inner = Vec::new();
        bodies(&mut g.node, &mut inner);
        if !inner.is_empty() {
            let i = r.below(inner.len());
            return graph(r, inner.swap_remove(i), depth + 1);
        }
    }
    let known = names(g);
    match r.below(16) {
        0 => {
            let n = g.node.len();
            list(r, &mut g.node, |r| new_node(r, &known, n));
        }
        1 => wrap(r, g),
        2 | 3 => match pick_mut(r, &mut g.initializer) {
            Some(t) => tensor::mutate(r, t),
            None => g.initializer.push(TensorProto { name: "x0".to_owned(), data_type: 1, ..TensorProto::default() }),
        },
        4 => {
            let values = [&mut g.input, &mut g.output, &mut g.value_info];
            let [input, output, info] = values;
            let v = match r.below(4) {
                0 => pick_mut(r, output),
                1 => pick_mut(r, info),
                _ => pick_mut(r, input),
            };
            if let Some(v) = v {
                ty(r, v.r#type.get_or_insert_default());
            }
        }
        5 | 6 => {
            if let Some(t) = pick_mut(r, &mut g.input).and_then(|v| v.r#type.as_mut()) {
                ty(r, t);
            }
        }
        7 => {
            let name = pick(r, &known).cloned().unwrap_or_default();
            list(r, &mut g.output, |_| ValueInfoProto { name, ..ValueInfoProto::default() });
        }
        8 => list(r, &mut g.input, |r| crate::seeds::value(&format!("in{}", r.below(9)), 1, Some(&[2, 3]))),
        // A constant becomes an input, or the other way.
        9 if !g.initializer.is_empty() => {
            let t = g.initializer.remove(r.below(g.initializer.len()));
            g.input.push(crate::seeds::value(&t.name, t.data_type, Some(&t.dims)));
        }
        10 => match pick_mut(r, &mut g.sparse_initializer) {
            Some(s) if r.chance(0.4) => {
                let new = edge(r);
                list(r, &mut s.dims, |_| new);
            }
            Some(s) => {
                let t = if r.chance(0.5) { &mut s.values } else { &mut s.indices };
                tensor::mutate(r, t.get_or_insert_default());
            }
            None => {}
        },
        _ => match pick_mut(r, &mut g.node) {
            Some(n) => node(r, n, &known),
            None => g.node.push(new_node(r, &known, 0)),
        },
    }
}

fn function(r: &mut Prng, f: &mut FunctionProto) {
    let mut known: Vec<String> = f.node.iter().flat_map(|n| n.output.clone()).collect();
    known.extend(f.input.iter().cloned());
    match r.below(6) {
        0 => list(r, &mut f.input, |r| format!("in{}", r.below(9))),
        1 => list(r, &mut f.output, |r| pick(r, &known).cloned().unwrap_or_default()),
        2 => list(r, &mut f.node, |r| new_node(r, &known, 0)),
        3 => list(r, &mut f.attribute, |r| attribute::name(r).to_owned()),
        _ => {
            if let Some(n) = pick_mut(r, &mut f.node) {
                node(r, n, &known);
            }
        }
    }
}

fn model(r: &mut Prng, m: &mut ModelProto) {
    match r.below(30) {
        0 => m.ir_version = 1 + r.below(15) as i64,
        1 | 2 => match pick_mut(r, &mut m.opset_import) {
            Some(o) => o.version = 1 + r.below(30) as i64,
            None => m.opset_import.push(OperatorSetIdProto { domain: String::new(), version: 21 }),
        },
        3 | 4 if !m.functions.is_empty() => {
            if r.chance(0.2) {
                let copy = m.functions[0].clone();
                list(r, &mut m.functions, |_| copy);
            } else if let Some(f) = pick_mut(r, &mut m.functions) {
                function(r, f);
            }
        }
        _ => graph(r, m.graph.get_or_insert_default(), 0),
    }
}

/// A model with one to four changes; nothing where the bytes are no model.
pub fn mutate(data: &[u8], seed: u64) -> Option<Vec<u8>> {
    let mut m = ModelProto::decode(Bytes::copy_from_slice(data)).ok()?;
    let mut r = Prng::new(seed);
    for _ in 0..1 + r.below(4) {
        model(&mut r, &mut m);
    }
    Some(encode(&m))
}

/// The first model with the nodes, constants and inputs of the second behind its own; the second reads a value of the first.
pub fn cross(a: &[u8], b: &[u8], seed: u64) -> Option<Vec<u8>> {
    let mut a = ModelProto::decode(Bytes::copy_from_slice(a)).ok()?;
    let b = ModelProto::decode(Bytes::copy_from_slice(b)).ok()?;
    let (mut r, from, mut other) = (Prng::new(seed), a.graph.as_mut()?, b.graph?);
    let renamed = |name: &mut String| {
        if !name.is_empty() {
            name.push('\'');
        }
    };
    for n in &mut other.node {
        n.input.iter_mut().chain(&mut n.output).for_each(renamed);
    }
    other.input.iter_mut().chain(&mut other.output).for_each(|v| renamed(&mut v.name));
    other.initializer.iter_mut().for_each(|t| renamed(&mut t.name));
    let (known, gone) = (names(from), pick(&mut r, &other.input).map(|v| v.name.clone()).unwrap_or_default());
    if let Some(instead) = pick(&mut r, &known) {
        other.input.retain(|v| v.name != gone);
        for n in &mut other.node {
            n.input.iter_mut().filter(|i| **i == gone).for_each(|i| i.clone_from(instead));
        }
    }
    from.node.extend(other.node);
    from.input.extend(other.input);
    from.output.extend(other.output);
    from.initializer.extend(other.initializer);
    Some(encode(&a))
}
