//! Scan as opset 8 has it: a batch of sequences, each scanned on its own.
//!
//! In: a decoded, checked graph. Out: each such Scan as a Loop over the batch, whose body takes one sequence of every operand
//! and scans it as opset 9 does. Where the lengths of the sequences are given (the first operand), every sequence is scanned to
//! its longest extent, but behind its length states stay as they are and results are zeros.
//! Source: <https://onnx.ai/onnx/operators/onnx__Scan.html#scan-8>.

use super::decode::error;
use super::model::{Attribute, Graph, Node, ONNX_DOMAIN, Type, ValueInfo};
use crate::error::CompileErrors;
use kiln_kernels::Dtype;
use std::collections::BTreeMap;

/// Rewrites every Scan of opset 8 in a graph and in the graphs in it.
pub(super) fn rewrite(graph: &mut Graph, errors: &mut CompileErrors) {
    let mut out = Vec::with_capacity(graph.nodes.len());
    for mut node in std::mem::take(&mut graph.nodes) {
        for (_, inner) in node.subgraphs_mut() {
            rewrite(inner, errors);
        }
        if node.domain != ONNX_DOMAIN || node.op_type != "Scan" || node.version >= 9 {
            out.push(node);
        } else if node.input(0).is_some() && has_reversed(&node) {
            let message = "sequences of different lengths that are scanned in reverse are not supported";
            errors.push(error(message).at_node(node.label(), &node.op_type).at_attribute("directions"));
        } else {
            out.extend(over_batch(node));
        }
    }
    graph.nodes = out;
}

fn has_reversed(node: &Node) -> bool {
    matches!(node.attributes.get("directions"), Some(Attribute::Ints(v)) if v.iter().any(|d| *d != 0))
}

fn plain(name: &str, op: &str, version: i64, inputs: &[&str], output: &str) -> Node {
    Node {
        name: name.to_owned(),
        op_type: op.to_owned(),
        version,
        inputs: inputs.iter().map(|i| (*i).to_owned()).collect(),
        outputs: vec![output.to_owned()],
        ..Node::default()
    }
}

fn info(name: &str, ty: Option<Type>) -> ValueInfo {
    ValueInfo { name: name.to_owned(), ty, doc: String::new() }
}

/// `B = Shape(operand)[0]`, then a Loop of `B` iterations whose stacked results are the node's.
fn over_batch(mut node: Node) -> Vec<Node> {
    let label = node.label().to_owned();
    // Names that no file has: ONNX's are words, and these must not hide what the scanned body captures.
    let name = |what: &str| format!("{label} (one sequence)/{what}");
    let (sizes, batch, trip, go, on) = (name("sizes"), name("batch"), name("trip"), name("go"), name("on"));
    let operands = node.inputs[1..].to_vec();
    let last = operands.last().map_or("", String::as_str);
    let mut sizes_node = plain(&label, "Shape", 15, &[last], &sizes);
    sizes_node.attributes = BTreeMap::from([("start".into(), Attribute::Int(0)), ("end".into(), Attribute::Int(1))]);
    let mut batch_node = plain(&label, "Squeeze", 11, &[&sizes], &batch);
    batch_node.attributes = BTreeMap::from([("axes".into(), Attribute::Ints(vec![0]))]);

    let mut body = Graph {
        name: label.clone(),
        inputs: vec![
            info(&trip, Some(Type::Tensor(Dtype::I64, Some(vec![])))),
            info(&go, Some(Type::Tensor(Dtype::Bool, Some(vec![])))),
        ],
        outputs: vec![info(&on, None)],
        nodes: vec![plain(&label, "Identity", 1, &[&go], &on)],
        ..Graph::default()
    };
    let mut ones = Vec::with_capacity(operands.len());
    for (i, operand) in operands.iter().enumerate() {
        let one = name(&format!("operand{i}"));
        let mut gather = plain(&label, "Gather", 11, &[operand, &trip], &one);
        gather.attributes.insert("axis".into(), Attribute::Int(0));
        body.nodes.push(gather);
        ones.push(one);
    }
    let mut before = Vec::new();
    if let Some(lengths) = node.input(0).map(str::to_owned) {
        let (length, steps) = (name("length"), name("steps"));
        let mut gather = plain(&label, "Gather", 11, &[&lengths, &trip], &length);
        gather.attributes.insert("axis".into(), Attribute::Int(0));
        body.nodes.push(gather);
        before = all_steps(&label, last, &steps, &name);
        ones.push(steps);
        node.attributes.remove("directions");
        until(&mut node, &label, &length, &name);
    }
    let results: Vec<String> = (0..node.outputs.len()).map(|i| name(&format!("result{i}"))).collect();
    let mut attributes = node.attributes.clone();
    if let Some(directions) = attributes.remove("directions") {
        attributes.insert("scan_input_directions".into(), directions);
    }
    body.outputs.extend(results.iter().map(|r| info(r, None)));
    body.nodes.push(Node { version: 9, inputs: ones, outputs: results, attributes, ..node.clone() });

    let mut over = plain(&label, "Loop", 11, &[&batch, ""], "");
    over.outputs = node.outputs;
    over.attributes.insert("body".into(), Attribute::Graph(Box::new(body)));
    over.doc = node.doc;
    before.extend([sizes_node, batch_node, over]);
    before
}

fn constant(label: &str, value: i64, output: &str) -> Node {
    let mut node = plain(label, "Constant", 12, &[], output);
    node.attributes.insert("value_int".into(), Attribute::Int(value));
    node
}

/// `steps`: the numbers of the iterations over the second axis of `operand`.
fn all_steps(label: &str, operand: &str, steps: &str, name: &dyn Fn(&str) -> String) -> Vec<Node> {
    let (sizes, longest, zero, one) = (name("step sizes"), name("longest"), name("zero"), name("one"));
    let mut shape = plain(label, "Shape", 15, &[operand], &sizes);
    shape.attributes = BTreeMap::from([("start".into(), Attribute::Int(1)), ("end".into(), Attribute::Int(2))]);
    let mut squeeze = plain(label, "Squeeze", 11, &[&sizes], &longest);
    squeeze.attributes = BTreeMap::from([("axes".into(), Attribute::Ints(vec![0]))]);
    let range = plain(label, "Range", 11, &[&zero, &longest, &one], steps);
    vec![shape, squeeze, constant(label, 0, &zero), constant(label, 1, &one), range]
}

/// Makes the scanned body look at the number of its iteration, a further scanned operand: from `length` on, states stay as they are
/// and results are zeros.
fn until(node: &mut Node, label: &str, length: &str, name: &dyn Fn(&str) -> String) {
    let n_scanned = match node.attributes.get("num_scan_inputs") {
        Some(Attribute::Int(n)) => *n,
        _ => 0,
    };
    node.attributes.insert("num_scan_inputs".into(), Attribute::Int(n_scanned.saturating_add(1)));
    let Some(Attribute::Graph(body)) = node.attributes.get_mut("body") else { return };
    let n_states = body.inputs.len().saturating_sub(usize::try_from(n_scanned).unwrap_or(0));
    let (step, within, zero) = (name("step"), name("within"), name("no result"));
    body.inputs.push(info(&step, Some(Type::Tensor(Dtype::I64, Some(vec![])))));
    body.nodes.push(plain(label, "Less", 9, &[&step, length], &within));
    let states: Vec<String> = body.inputs.iter().take(n_states).map(|i| i.name.clone()).collect();
    body.nodes.push(constant(label, 0, &zero));
    for (i, output) in body.outputs.iter_mut().enumerate() {
        let (made, kept) = (output.name.clone(), name(&format!("kept{i}")));
        let other = match states.get(i) {
            Some(state) => state.clone(),
            None => {
                let none = name(&format!("none{i}"));
                body.nodes.push(plain(label, "CastLike", 15, &[&zero, &made], &none));
                none
            }
        };
        body.nodes.push(plain(label, "Where", 9, &[&within, &made, &other], &kept));
        *output = info(&kept, None);
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::*;
    use crate::exec;
    use crate::ir::Tensor;
    use crate::onnx::proto::ModelProto;
    use crate::{Options, compile};
    use kiln_kernels::isa::Isa;

    /// Sums along the sequences: `state + x` is the next state and the result of an iteration.
    fn running_sum(lengths: &str) -> ModelProto {
        let step = vec![node("Add", &["state", "x_one"], &["sum"]), node("Identity", &["sum"], &["seen"])];
        let mut inner = graph(&["state", "x_one"], &["sum", "seen"], step);
        inner.value_info.clear();
        let scan = node("Scan", &[lengths, "start", "x"], &["last", "all"]).with(body("body", inner));
        let mut g = graph(&[], &["last", "all"], vec![scan.with(int("num_scan_inputs", 1))]);
        g.input = vec![value("start", &[2, 2]), value("x", &[2, 3, 2])];
        g.output = vec![value("last", &[2, 2]), value("all", &[2, 3, 2])];
        ModelProto { opset_import: vec![opset("", 8)], ..model(g) }
    }

    #[test]
    fn each_sequence_of_a_batch_is_scanned() {
        let program = compile(&decoded(&running_sum("")).unwrap(), &Options::default()).unwrap();
        let start = Tensor::from_f32s(&[2, 2], &[0., 0., 100., 200.]);
        let x = Tensor::from_f32s(&[2, 3, 2], &(1..=12).map(|v| v as f32).collect::<Vec<_>>());
        let got = exec::run_program_on(&program, &[start, x], Isa::detect()).unwrap();
        assert_eq!(got[0], Tensor::from_f32s(&[2, 2], &[9., 12., 127., 230.]));
        let all = [1., 2., 4., 6., 9., 12., 107., 208., 116., 218., 127., 230.];
        assert_eq!(got[1], Tensor::from_f32s(&[2, 3, 2], &all));
    }

    #[test]
    fn lengths_end_sequences_early() {
        let mut m = running_sum("lengths");
        let g = m.graph.as_mut().unwrap();
        g.input.insert(0, typed(value("lengths", &[2]), 7));
        let program = compile(&decoded(&m).unwrap(), &Options::default()).unwrap();
        let start = Tensor::from_f32s(&[2, 2], &[0., 0., 100., 200.]);
        let x = Tensor::from_f32s(&[2, 3, 2], &(1..=12).map(|v| v as f32).collect::<Vec<_>>());
        let lengths = Tensor::from_i64s(&[2], &[3, 1]);
        let got = exec::run_program_on(&program, &[lengths, start, x], Isa::detect()).unwrap();
        assert_eq!(got[0], Tensor::from_f32s(&[2, 2], &[9., 12., 107., 208.]));
        assert_eq!(got[1], Tensor::from_f32s(&[2, 3, 2], &[1., 2., 4., 6., 9., 12., 107., 208., 0., 0., 0., 0.]));
    }

    #[test]
    fn lengths_in_reverse_are_refused() {
        let mut m = running_sum("x");
        let directions = ints("directions", &[1]);
        m.graph.as_mut().unwrap().node[0].attribute.push(directions);
        let wanted = "node \"last\" (Scan), attribute \"directions\": sequences of different lengths that are scanned in \
                      reverse are not supported";
        assert_eq!(problems(&m), wanted);
    }
}
