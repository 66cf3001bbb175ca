//! Operators that take strings as well as numbers, in terms of operators on strings alone.
//!
//! In: a node whose operands are typed. Out: other nodes. Movement of strings (Gather, Concat, Transpose, Where, …) becomes
//! the same movement of their numbers, and then the strings of these numbers are taken; comparison and Cast become Kiln's
//! own; look-up of strings becomes look-up of their places in the list of keys.

use super::rewrite::{beside, fresh};
use crate::ir::{Attr, Graph, Node, Tensor, Type, ValueId};
use kiln_kernels::Dtype;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Operators that move elements without looking at them, and which operands hold elements (`usize::MAX`: all).
const MOVEMENT: &[(&str, &[usize])] = &[
    ("Compress", &[0]),
    ("Concat", &[usize::MAX]),
    ("DepthToSpace", &[0]),
    ("Expand", &[0]),
    ("Flatten", &[0]),
    ("Gather", &[0]),
    ("GatherElements", &[0]),
    ("GatherND", &[0]),
    ("Pad", &[0, 2]),
    ("Reshape", &[0]),
    ("ReverseSequence", &[0]),
    ("Scatter", &[0, 2]),
    ("ScatterElements", &[0, 2]),
    ("ScatterND", &[0, 2]),
    ("Slice", &[0]),
    ("SpaceToDepth", &[0]),
    ("Split", &[0]),
    ("Squeeze", &[0]),
    ("Tile", &[0]),
    ("Transpose", &[0]),
    ("Unsqueeze", &[0]),
    ("Where", &[1, 2]),
];

/// The nodes that do a node's work; `None` where it has nothing to do with strings, or is one of theirs.
pub(super) fn replaced(graph: &mut Graph, node: &Node) -> Option<Vec<Node>> {
    if node.domain == "ai.onnx.ml" {
        return match node.op.as_str() {
            "LabelEncoder" => label_encoder(graph, node),
            "CategoryMapper" => category_mapper(graph, node),
            "OneHotEncoder" => one_hot(graph, node),
            "LinearClassifier" | "SVMClassifier" => classifier(graph, node, "classlabels_ints"),
            "TreeEnsembleClassifier" => classifier(graph, node, "classlabels_int64s"),
            _ => None,
        };
    }
    if !node.domain.is_empty() {
        return None;
    }
    match node.op.as_str() {
        "Constant" => constant(graph, node),
        "Cast" | "CastLike" => cast(graph, node),
        "Equal" if is_strings(graph, node.input(0)?) && is_strings(graph, node.input(1)?) => {
            Some(vec![Node { domain: "kiln".into(), op: "StringEqual".into(), version: 1, ..node.clone() }])
        }
        "TfIdfVectorizer" => tf_idf(graph, node),
        _ => movement(graph, node),
    }
}

fn is_strings(graph: &Graph, v: ValueId) -> bool {
    graph.tensor_type(v).is_ok_and(|t| t.dtype == Dtype::Str)
}

/// `value_string`, `value_strings`, and strings as `value`: the node becomes a constant.
fn constant(graph: &mut Graph, node: &Node) -> Option<Vec<Node>> {
    let text = |bytes: &[u8]| std::str::from_utf8(bytes).ok().map(str::to_owned);
    let (_, attr) = node.attrs.iter().next().filter(|_| node.attrs.len() == 1)?;
    let tensor = match attr {
        Attr::Str(s) => Tensor::from_strings(&[], &[text(s)?])?,
        Attr::Strs(all) => {
            let all = all.iter().map(|s| text(s)).collect::<Option<Vec<_>>>()?;
            Tensor::from_strings(&[all.len()], &all)?
        }
        Attr::Tensor(t) if t.dtype() == Dtype::Str => (**t).clone(),
        _ => return None,
    };
    let value = graph.value_mut(node.output(0)?);
    value.ty = Some(crate::ir::TensorType::fixed(Dtype::Str, tensor.dims()).into());
    value.constant = Some(Arc::new(tensor));
    Some(Vec::new())
}

/// From and to strings by way of a type that texts are read as and written from.
fn cast(graph: &mut Graph, node: &Node) -> Option<Vec<Node>> {
    let from = graph.tensor_type(node.input(0)?).ok()?.dtype;
    let to = match node.op.as_str() {
        "CastLike" => graph.tensor_type(node.input(1)?).ok()?.dtype,
        _ => match node.attrs.get("to")? {
            Attr::Int(n) => Dtype::from_onnx(i32::try_from(*n).ok()?)?,
            _ => return None,
        },
    };
    let own = |d: Dtype| match d {
        Dtype::F32 | Dtype::F64 | Dtype::I64 | Dtype::U64 => d,
        Dtype::F16 | Dtype::Bf16 => Dtype::F32,
        d if d.is_float() => Dtype::F32,
        _ => Dtype::I64,
    };
    let number = |d: Dtype| ("to", Attr::Int(i64::from(d.to_onnx())));
    let own_cast = |op| ("kiln", op, 1);
    let plain_cast = ("", "Cast", node.version.max(13));
    match (from, to) {
        (Dtype::Str, Dtype::Str) => {
            Some(vec![beside(node, ("", "Identity", 13), Vec::new(), vec![node.input(0)], node.outputs.clone())])
        }
        (Dtype::Str, to) => {
            let way = own(to);
            if way == to {
                let inputs = vec![node.input(0)];
                return Some(vec![beside(
                    node,
                    own_cast("StringsToNumbers"),
                    vec![number(to)],
                    inputs,
                    node.outputs.clone(),
                )]);
            }
            let between = fresh(graph, node, "numbers");
            let (x, b) = (vec![node.input(0)], vec![Some(between)]);
            Some(vec![
                beside(node, own_cast("StringsToNumbers"), vec![number(way)], x, b.clone()),
                beside(node, plain_cast, vec![number(to)], b, node.outputs.clone()),
            ])
        }
        (from, Dtype::Str) => {
            let way = own(from);
            if way == from {
                let inputs = vec![node.input(0)];
                return Some(vec![beside(
                    node,
                    own_cast("NumbersToStrings"),
                    Vec::new(),
                    inputs,
                    node.outputs.clone(),
                )]);
            }
            let between = fresh(graph, node, "numbers");
            let (x, b) = (vec![node.input(0)], vec![Some(between)]);
            Some(vec![
                beside(node, plain_cast, vec![number(way)], x, b.clone()),
                beside(node, own_cast("NumbersToStrings"), Vec::new(), b, node.outputs.clone()),
            ])
        }
        _ => None,
    }
}

/// The same movement of the strings' numbers, and then the strings of these numbers.
fn movement(graph: &mut Graph, node: &Node) -> Option<Vec<Node>> {
    let (_, which) = MOVEMENT.iter().find(|(op, _)| *op == node.op)?;
    let places: Vec<usize> = match which {
        [usize::MAX] => (0..node.inputs.len()).collect(),
        which => which.iter().copied().filter(|&i| node.input(i).is_some()).collect(),
    };
    if !places.iter().all(|&i| node.input(i).is_some_and(|v| is_strings(graph, v))) || places.is_empty() {
        return None;
    }
    let mut out = Vec::new();
    let mut moved = node.clone();
    let mut strings = vec![None];
    for (operand, &i) in places.iter().enumerate() {
        let numbers = fresh(graph, node, "numbers");
        let attrs = vec![("operand", Attr::Int(operand as i64))];
        out.push(beside(node, ("kiln", "NumberStrings", 1), attrs, vec![node.input(i)], vec![Some(numbers)]));
        moved.inputs[i] = Some(numbers);
        strings.push(node.input(i));
    }
    let mut takes = Vec::new();
    for y in &mut moved.outputs {
        let Some(result) = *y else { continue };
        let numbers = fresh(graph, node, "numbers");
        *y = Some(numbers);
        strings[0] = Some(numbers);
        takes.push(beside(node, ("kiln", "TakeStrings", 1), Vec::new(), strings.clone(), vec![Some(result)]));
    }
    // An empty string fills what Pad without a value adds.
    if node.op == "Pad" && node.input(2).is_none() {
        let empty = graph.add_constant("empty", Tensor::from_strings(&[1], &[""])?);
        let number = graph.add_constant("empty", Tensor::from_i64s(&[], &[1 << kiln_kernels::OPERAND_SHIFT]));
        moved.inputs.resize(moved.inputs.len().max(3), None);
        moved.inputs[2] = Some(number);
        takes.iter_mut().for_each(|t| t.inputs.push(Some(empty)));
    }
    out.push(moved);
    out.append(&mut takes);
    Some(out)
}

fn texts(attr: Option<&Attr>) -> Option<Vec<String>> {
    let Some(Attr::Strs(all)) = attr else { return None };
    all.iter().map(|s| String::from_utf8(s.clone()).ok()).collect()
}

/// A list of the attributes of LabelEncoder as a constant: of strings, integers, floats, or a tensor.
fn list(node: &Node, what: &str) -> Option<Tensor> {
    let get = |kind: &str| node.attrs.get(&format!("{what}_{kind}"));
    if let Some(all) = texts(get("strings")) {
        return Tensor::from_strings(&[all.len()], &all);
    }
    match (get("int64s"), get("floats"), get("tensor")) {
        (Some(Attr::Ints(v)), ..) => Some(Tensor::from_i64s(&[v.len()], v)),
        (_, Some(Attr::Floats(v)), _) => Some(Tensor::from_f32s(&[v.len()], v)),
        (.., Some(Attr::Tensor(t))) => t.reshaped(vec![t.numel()]),
        _ => None,
    }
}

/// What LabelEncoder gives for a key that it does not know, of the values' type.
fn default_label(node: &Node, values: &Tensor) -> Option<Tensor> {
    if let Some(Attr::Tensor(t)) = node.attrs.get("default_tensor") {
        return t.reshaped(vec![1]);
    }
    match values.dtype() {
        Dtype::Str => match node.attrs.get("default_string") {
            Some(Attr::Str(s)) => Tensor::from_strings(&[1], &[std::str::from_utf8(s).ok()?]),
            _ => Tensor::from_strings(&[1], &["_Unused"]),
        },
        Dtype::I64 => match node.attrs.get("default_int64") {
            Some(Attr::Int(v)) => Some(Tensor::from_i64s(&[1], &[*v])),
            _ => Some(Tensor::from_i64s(&[1], &[-1])),
        },
        Dtype::F32 => match node.attrs.get("default_float") {
            Some(Attr::Float(v)) => Some(Tensor::from_f32s(&[1], &[*v])),
            _ => Some(Tensor::from_f32s(&[1], &[-0.0])),
        },
        dtype => Tensor::new(dtype, vec![1], vec![0xff; dtype.size_bytes()].into()).filter(|_| dtype.is_int()),
    }
}

/// LabelEncoder from or to strings: the place among the keys, then the value of that place.
fn label_encoder(graph: &mut Graph, node: &Node) -> Option<Vec<Node>> {
    let (keys, values) = (list(node, "keys")?, list(node, "values")?);
    if keys.dtype() != Dtype::Str && values.dtype() != Dtype::Str {
        return None;
    }
    let (n, default) = (keys.numel(), default_label(node, &values)?);
    if n != values.numel() || default.dtype() != values.dtype() {
        return None;
    }
    let place = fresh(graph, node, "place");
    let look_up = match keys.to_strings() {
        Some(keys) => {
            let keys = Attr::Strs(keys.into_iter().map(String::into_bytes).collect());
            beside(node, ("kiln", "StringIndex", 1), vec![("keys", keys)], node.inputs.clone(), vec![Some(place)])
        }
        None => {
            let kept = node.attrs.iter().filter(|(name, _)| name.starts_with("keys_"));
            let mut attrs: Vec<(&str, Attr)> = kept.map(|(name, a)| (name.as_str(), a.clone())).collect();
            attrs.push(("values_int64s", Attr::Ints((0..n as i64).collect())));
            attrs.push(("default_int64", Attr::Int(n as i64)));
            beside(node, ("ai.onnx.ml", "LabelEncoder", node.version), attrs, node.inputs.clone(), vec![Some(place)])
        }
    };
    let data: Vec<u8> = values.data().iter().chain(default.data().iter()).copied().collect();
    let all = graph.add_constant("labels", Tensor::new(values.dtype(), vec![n + 1], data.into())?);
    let pick = beside(node, ("", "Gather", 13), Vec::new(), vec![Some(all), Some(place)], node.outputs.clone());
    Some(vec![look_up, pick])
}

/// CategoryMapper: a LabelEncoder from strings to integers, or the other way, by what it is given.
fn category_mapper(graph: &mut Graph, node: &Node) -> Option<Vec<Node>> {
    let [to, from] = match is_strings(graph, node.input(0)?) {
        true => ["values_int64s", "keys_strings"],
        false => ["keys_int64s", "values_strings"],
    };
    let mut encoder = Node { op: "LabelEncoder".into(), version: 2, ..node.clone() };
    encoder.attrs.insert(to.into(), encoder.attrs.get("cats_int64s")?.clone());
    encoder.attrs.insert(from.into(), encoder.attrs.get("cats_strings")?.clone());
    label_encoder(graph, &encoder)
}

/// OneHotEncoder of strings: of their places among the categories.
fn one_hot(graph: &mut Graph, node: &Node) -> Option<Vec<Node>> {
    let keys = texts(node.attrs.get("cats_strings")).filter(|k| !k.is_empty())?;
    let n = keys.len() as i64;
    let places = fresh(graph, node, "places");
    let keys = Attr::Strs(keys.into_iter().map(String::into_bytes).collect());
    let look_up =
        beside(node, ("kiln", "StringIndex", 1), vec![("keys", keys)], node.inputs.clone(), vec![Some(places)]);
    let mut encoder = Node { inputs: vec![Some(places)], ..node.clone() };
    encoder.attrs.remove("cats_strings");
    encoder.attrs.insert("cats_int64s".into(), Attr::Ints((0..n).collect()));
    Some(vec![look_up, encoder])
}

/// A classifier with labels of strings: one with their places as labels, and then the strings of these places.
fn classifier(graph: &mut Graph, node: &Node, ints: &str) -> Option<Vec<Node>> {
    let labels = texts(node.attrs.get("classlabels_strings")).filter(|l| !l.is_empty())?;
    let places = fresh(graph, node, "places");
    let mut numbered = node.clone();
    numbered.attrs.remove("classlabels_strings");
    numbered.attrs.insert(ints.into(), Attr::Ints((0..labels.len() as i64).collect()));
    let label = (*numbered.outputs.first()?)?;
    numbered.outputs[0] = Some(places);
    let all = graph.add_constant("labels", Tensor::from_strings(&[labels.len()], &labels)?);
    let pick = beside(node, ("", "Gather", 13), Vec::new(), vec![Some(all), Some(places)], vec![Some(label)]);
    Some(vec![numbered, pick])
}

/// TfIdfVectorizer over strings: over their places in the list of all strings of the pool.
fn tf_idf(graph: &mut Graph, node: &Node) -> Option<Vec<Node>> {
    let pool = texts(node.attrs.get("pool_strings"))?;
    let Some(Type::Tensor(_)) = graph.value(node.input(0)?).ty else { return None };
    let mut keys: Vec<String> = Vec::new();
    let mut numbers = Vec::with_capacity(pool.len());
    let mut known: BTreeMap<&str, i64> = BTreeMap::new();
    for s in &pool {
        let next = keys.len() as i64;
        let number = *known.entry(s).or_insert(next);
        if number == next {
            keys.push(s.clone());
        }
        numbers.push(number);
    }
    let places = fresh(graph, node, "places");
    let keys = Attr::Strs(keys.into_iter().map(String::into_bytes).collect());
    let look_up =
        beside(node, ("kiln", "StringIndex", 1), vec![("keys", keys)], node.inputs.clone(), vec![Some(places)]);
    let mut count = Node { inputs: vec![Some(places)], ..node.clone() };
    count.attrs.remove("pool_strings");
    count.attrs.insert("pool_int64s".into(), Attr::Ints(numbers));
    Some(vec![look_up, count])
}
