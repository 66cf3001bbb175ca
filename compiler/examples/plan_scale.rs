//! How the time of a whole compile grows with the graph: generated ONNX models of 1k, 10k and 100k nodes through every stage.
//!
//! `cargo run --release -p kiln-compiler --example plan_scale [-- MOST_NODES [MODEL.onnx…]]`
//! Three kinds: chains with residuals, wide parallel branches, and both by turns. Per kind and size, on one stream and on
//! two: seconds of each stage, their sum, and how many times as long a node takes as in the smallest graph, as a number and
//! as a bar (ten marks: linear). Models given by name follow, whatever their size. Seconds are those of the processor, where
//! the system says them, so that a busy machine does not count.

use kiln_compiler::import::ImportOptions;
use kiln_compiler::onnx::proto::{
    DimensionProto, DimensionValue, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, TensorProto,
    TensorShapeProto, TensorTypeProto, TypeProto, TypeValue, ValueInfoProto,
};
use kiln_compiler::onnx::{self, Decoded};
use kiln_compiler::program::{self, Meta};
use kiln_compiler::{Options, bodies, emit, graph, lower, memory, streams, verify};
use prost::Message;
use std::time::Instant;

/// Rows and columns of every value; a weight has as many of both as these have columns.
const ROWS: i64 = 64;
const COLUMNS: i64 = 16;

/// A model that grows node by node.
#[derive(Default)]
struct Builder {
    nodes: Vec<NodeProto>,
    weights: Vec<TensorProto>,
}

impl Builder {
    fn node(&mut self, op: &str, inputs: &[&str]) -> String {
        let y = format!("v{}", self.nodes.len());
        self.nodes.push(NodeProto {
            input: inputs.iter().map(|&x| x.to_owned()).collect(),
            output: vec![y.clone()],
            name: format!("n{}", self.nodes.len()),
            op_type: op.to_owned(),
            ..NodeProto::default()
        });
        y
    }

    /// A product with a weight of its own.
    fn product(&mut self, x: &str) -> String {
        let name = format!("w{}", self.weights.len());
        let element = |i: i64| ((i * 37 + self.weights.len() as i64) % 101 - 50) as f32 / 200.0;
        self.weights.push(TensorProto {
            dims: vec![COLUMNS, COLUMNS],
            data_type: 1,
            name: name.clone(),
            float_data: (0..COLUMNS * COLUMNS).map(element).collect(),
            ..TensorProto::default()
        });
        self.node("MatMul", &[x, &name])
    }

    /// Four nodes around which the value goes a second way.
    fn residual(&mut self, x: &str) -> String {
        let a = self.product(x);
        let b = self.node("Sigmoid", &[&a]);
        let c = self.product(&b);
        self.node("Add", &[x, &c])
    }

    /// Eight branches of 1 to 4 nodes that meet again.
    fn branches(&mut self, x: &str) -> String {
        let mut ends = Vec::new();
        for i in 0..8 {
            let mut at = x.to_owned();
            for j in 0..=i % 4 {
                at = if j % 2 == 0 { self.product(&at) } else { self.node("Tanh", &[&at]) };
            }
            ends.push(at);
        }
        let ends: Vec<&str> = ends.iter().map(String::as_str).collect();
        self.node("Sum", &ends)
    }

    fn model(self, y: &str) -> ModelProto {
        let dim = |d: i64| DimensionProto { value: Some(DimensionValue::DimValue(d)), ..DimensionProto::default() };
        let shape = TensorShapeProto { dim: vec![dim(ROWS), dim(COLUMNS)] };
        let tensor = TensorTypeProto { elem_type: 1, shape: Some(shape) };
        let ty = TypeProto { value: Some(TypeValue::Tensor(tensor)), ..TypeProto::default() };
        let value =
            |name: &str| ValueInfoProto { name: name.into(), r#type: Some(ty.clone()), ..ValueInfoProto::default() };
        let graph = GraphProto {
            node: self.nodes,
            name: "generated".into(),
            initializer: self.weights,
            input: vec![value("x")],
            output: vec![value(y)],
            ..GraphProto::default()
        };
        let opset = OperatorSetIdProto { domain: String::new(), version: 17 };
        ModelProto { ir_version: 8, opset_import: vec![opset], graph: Some(graph), ..ModelProto::default() }
    }
}

/// A kind of graph with at least `n` nodes.
fn generated(kind: &str, n: usize) -> ModelProto {
    let mut b = Builder::default();
    let mut x = "x".to_owned();
    let mut round = 0usize;
    while b.nodes.len() < n {
        let wide = kind == "wide" || (kind == "mixed" && round % 4 == 3);
        x = if wide { b.branches(&x) } else { b.residual(&x) };
        round += 1;
    }
    b.model(&x)
}

const STAGES: [&str; 8] = ["decode", "passes", "lower", "streams", "memory", "program", "verify", "emit"];

/// Seconds that this thread has run, or the time of day.
fn now(start: Instant) -> f64 {
    let ran = std::fs::read_to_string("/proc/thread-self/schedstat").ok();
    let ns = ran.and_then(|text| text.split(' ').next()?.parse::<f64>().ok());
    ns.map_or_else(|| start.elapsed().as_secs_f64(), |ns| ns / 1e9)
}

/// Seconds of each stage, the nodes of the file and the steps of the program.
fn compile(decode: impl FnOnce() -> Decoded, streams: usize) -> ([f64; 8], usize, usize) {
    let mut seconds = [0.0; 8];
    let mut at = 0;
    let begin = Instant::now();
    let mut start = now(begin);
    let mut done = || {
        seconds[at] = now(begin) - start;
        at += 1;
        start = now(begin);
    };
    let decoded = decode();
    done();
    let options = Options { import: ImportOptions::default(), streams, ..Options::default() };
    let typed = graph(&decoded, &options).expect("a valid graph");
    done();
    let lowered = lower::lower_whole(&typed, &[], bodies::plan).expect("lowers");
    done();
    let (lowered, schedule) = streams::plan(&typed, lowered, streams).expect("a schedule");
    done();
    let expected = verify::expectation(&lowered);
    let arena = memory::plan_on_streams(&lowered, &schedule).expect("an arena");
    done();
    let meta = Meta { name: "model".into(), sha256: String::new(), options: options.text() };
    let program = program::assemble(&typed, lowered, schedule, arena, &[], meta).expect("a program");
    done();
    verify::verify(&program, &expected).expect("a right plan");
    done();
    let emitted = emit::emit(&program, options.weights, false).expect("a module");
    done();
    assert!(!emitted.source.is_empty());
    (seconds, decoded.model.graph.nodes.len(), program.steps.len())
}

fn head() {
    print!("{:<22} {:>7} {:>7} {:>7}", "graph", "nodes", "steps", "streams");
    STAGES.iter().for_each(|s| print!(" {s:>8}"));
    println!(" {:>8} {:>6}", "seconds", "ratio");
}

/// Prints a line; the time per node in nanoseconds. `first` is that of the smallest graph.
fn line(name: &str, streams: usize, result: ([f64; 8], usize, usize), first: Option<f64>) -> f64 {
    let (seconds, nodes, steps) = result;
    let all: f64 = seconds.iter().sum();
    let per_node = all * 1e9 / nodes as f64;
    print!("{name:<22} {nodes:>7} {steps:>7} {streams:>7}");
    seconds.iter().for_each(|s| print!(" {s:>8.3}"));
    let ratio = per_node / first.unwrap_or(per_node);
    let bar = "#".repeat((ratio * 10.0).round().min(60.0) as usize);
    println!(" {all:>8.3} {ratio:>6.2} {bar}");
    per_node
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let most: usize = args.first().and_then(|a| a.parse().ok()).unwrap_or(100_000);
    head();
    for kind in ["chain", "wide", "mixed"] {
        for streams in [1, 2] {
            let mut first = None;
            for n in [1_000, 10_000, 100_000].into_iter().filter(|n| *n <= most) {
                let bytes = generated(kind, n).encode_to_vec();
                let result = compile(|| onnx::decode(bytes, None).expect("a model"), streams);
                let per_node = line(kind, streams, result, first);
                first = first.or(Some(per_node));
            }
        }
    }
    for path in args.iter().skip(1) {
        for streams in [1, 2] {
            let name: String = path.rsplit('/').find(|p| *p != "model.onnx").unwrap_or(path).chars().take(22).collect();
            line(&name, streams, compile(|| onnx::read(path).expect("a model"), streams), None);
        }
    }
}
