//! Inlining: every call of a model-local function becomes a copy of its body.
//!
//! In: the checked functions and a graph. Out: the graph without calls. Formal inputs and outputs
//! take the caller's names, every other name (those of graphs in the body included) gets a fresh one,
//! attribute references take the caller's value, else the function's default, else the attribute is
//! left out. Nodes keep the operator versions of the function they come from.
//!
//! Invariants: recursion was refused before; what inlining makes is bounded in nodes, bytes and
//! depth, because a short chain of functions that call each other twice grows as 2^n.
//! Source: `onnx.proto`, `FunctionProto`; docs/IR.md of onnx, "Functions".

use std::collections::{HashMap, HashSet};

use super::decode::error;
use super::function::{Function, Functions};
use super::model::{Attribute, Graph, Node};
use crate::error::{CompileError, CompileErrors, Quoted};

/// Replaces every call in a graph, and in the graphs in it, by the callee's body. False when it
/// could not: calls are then missing from the graph.
pub(super) fn inline(functions: &Functions, graph: &mut Graph, onnx_version: i64, errors: &mut CompileErrors) -> bool {
    if functions.functions.is_empty() {
        return true;
    }
    let before = errors.len();
    let mut taken = HashSet::new();
    collect_names(graph, &mut taken);
    let mut inliner = Inliner { functions, onnx_version, taken, n_suffixes: 0, n_nodes: 0, n_bytes: 0, errors };
    if let Err(e) = inliner.graph(graph, 0) {
        inliner.errors.push(e);
    }
    errors.len() == before
}

fn collect_names(graph: &Graph, names: &mut HashSet<String>) {
    names.extend(graph.inputs.iter().map(|input| input.name.clone()));
    names.extend(graph.initializers.iter().map(|(name, _)| name.clone()));
    for node in &graph.nodes {
        names.extend(node.outputs.iter().cloned());
        for (_, inner) in node.subgraphs() {
            collect_names(inner, names);
        }
    }
}

struct Inliner<'a> {
    functions: &'a Functions,
    /// The model's version of ONNX's own operators.
    onnx_version: i64,
    /// Every name of a value in the model.
    taken: HashSet<String>,
    n_suffixes: usize,
    n_nodes: usize,
    n_bytes: usize,
    errors: &'a mut CompileErrors,
}

/// The names of a body (or of a graph in it) → their names at the call.
struct Renames<'a> {
    names: HashMap<String, String>,
    outer: Option<&'a Renames<'a>>,
}

impl Renames<'_> {
    fn apply(&self, name: &mut String) {
        let mut renames = Some(self);
        while let Some(here) = renames {
            if let Some(new) = here.names.get(name.as_str()) {
                new.clone_into(name);
                return;
            }
            renames = here.outer;
        }
    }
}

/// A call that is being replaced.
struct Call<'a> {
    node: &'a Node,
    function: &'a Function,
}

impl Inliner<'_> {
    /// What inlining may make in all.
    const MAX_NODES: usize = 250_000;
    const MAX_BYTES: usize = 512 << 20;
    /// How deep calls, and graphs in graphs, may nest in all.
    const MAX_DEPTH: usize = 100;

    /// An `Err` ends the inlining; other problems are recorded.
    fn graph(&mut self, graph: &mut Graph, depth: usize) -> Result<(), CompileError> {
        if depth >= Self::MAX_DEPTH {
            return Err(error(format!("functions and graphs nest more than {} deep", Self::MAX_DEPTH)));
        }
        let nodes = std::mem::take(&mut graph.nodes);
        graph.nodes.reserve(nodes.len());
        for node in nodes {
            self.node(node, &mut graph.nodes, depth)?;
        }
        Ok(())
    }

    fn node(&mut self, mut node: Node, out: &mut Vec<Node>, depth: usize) -> Result<(), CompileError> {
        for (_, inner) in node.subgraphs_mut() {
            self.graph(inner, depth + 1)?;
        }
        match self.functions.callee(&node) {
            None => out.push(node),
            Some(callee) => {
                let functions = self.functions;
                let call = Call { node: &node, function: &functions.functions[callee] };
                self.call(&call, out, depth).map_err(|e| e.at_node(node.label(), &node.op_type))?;
            }
        }
        Ok(())
    }

    fn call(&mut self, call: &Call<'_>, out: &mut Vec<Node>, depth: usize) -> Result<(), CompileError> {
        if depth >= Self::MAX_DEPTH {
            return Err(error(format!("functions and graphs nest more than {} deep", Self::MAX_DEPTH)));
        }
        let (node, function) = (call.node, call.function);
        for (what, given, formal) in [
            ("inputs", node.inputs.len(), function.inputs.len()),
            ("outputs", node.outputs.len(), function.outputs.len()),
        ] {
            if given > formal {
                let message = format!("function {} has {formal} {what}, the call {given}", Quoted(&function.title));
                self.errors.push(error(message).at_node(node.label(), &node.op_type));
                return Ok(());
            }
        }
        let (names, copies) = self.bind(call);
        let renames = Renames { names, outer: None };
        for body_node in &function.nodes {
            let mut copy = body_node.clone();
            self.rename_node(&mut copy, &renames, call)?;
            self.charge(node_cost(&copy))?;
            self.node(copy, out, depth + 1)?;
        }
        for (from, to) in copies {
            let identity = Node {
                name: format!("{}/{to}", short(node.label())),
                op_type: "Identity".to_owned(),
                version: function.opset.unwrap_or(self.onnx_version),
                inputs: vec![from],
                outputs: vec![to],
                ..Node::default()
            };
            self.charge(node_cost(&identity))?;
            out.push(identity);
        }
        Ok(())
    }

    /// Names of the body at the call; and the (from, to) that a copy must make, because an output
    /// is an input of the function or is listed twice.
    fn bind(&mut self, call: &Call<'_>) -> (HashMap<String, String>, Vec<(String, String)>) {
        let (node, function) = (call.node, call.function);
        let mut names = HashMap::new();
        for (i, formal) in function.inputs.iter().enumerate() {
            names.insert(formal.clone(), node.inputs.get(i).cloned().unwrap_or_default());
        }
        let mut copies = Vec::new();
        for (i, formal) in function.outputs.iter().enumerate() {
            let actual = node.outputs.get(i).filter(|name| !name.is_empty());
            match (names.get(formal), actual) {
                (Some(from), Some(_)) if from.is_empty() => {
                    let message = format!("is an input of function {} that is absent here", Quoted(&function.title));
                    self.errors.push(error(message).at_output(i).at_node(node.label(), &node.op_type));
                }
                (Some(from), Some(to)) => copies.push((from.clone(), to.clone())),
                (Some(_), None) => {}
                (None, Some(to)) => {
                    names.insert(formal.clone(), to.clone());
                }
                (None, None) => {
                    let fresh = self.fresh(call, formal);
                    names.insert(formal.clone(), fresh);
                }
            }
        }
        for made in function.nodes.iter().flat_map(|node| &node.outputs) {
            if !made.is_empty() && !names.contains_key(made) {
                let fresh = self.fresh(call, made);
                names.insert(made.clone(), fresh);
            }
        }
        (names, copies)
    }

    /// A name that nothing in the model has.
    fn fresh(&mut self, call: &Call<'_>, name: &str) -> String {
        let base = format!("{}/{name}", short(call.node.label()));
        let mut fresh = base.clone();
        while self.taken.contains(&fresh) {
            self.n_suffixes += 1;
            fresh = format!("{base}_{}", self.n_suffixes);
        }
        self.n_bytes = self.n_bytes.saturating_add(2 * fresh.len());
        self.taken.insert(fresh.clone());
        fresh
    }

    fn rename_node(&mut self, node: &mut Node, renames: &Renames<'_>, call: &Call<'_>) -> Result<(), CompileError> {
        for name in node.inputs.iter_mut().chain(&mut node.outputs).filter(|name| !name.is_empty()) {
            renames.apply(name);
        }
        for (_, inner) in node.subgraphs_mut() {
            self.rename_graph(inner, renames, call)?;
        }
        if !node.name.is_empty() {
            node.name = format!("{}/{}", short(call.node.label()), node.name);
        }
        for reference in std::mem::take(&mut node.attribute_refs) {
            let given = call.node.attributes.get(&reference.refers_to);
            let Some(value) = given.or_else(|| call.function.defaults.get(&reference.refers_to)) else {
                continue;
            };
            if let Some(kind) = reference.kind.filter(|kind| *kind != value.kind()) {
                let message =
                    format!("refers to {}, which is {}, want {kind}", Quoted(&reference.refers_to), value.kind());
                self.errors.push(error(message).at_attribute(&reference.name).at_node(node.label(), &node.op_type));
            }
            self.charge(attribute_cost(value))?;
            node.attributes.insert(reference.name, value.clone());
        }
        Ok(())
    }

    fn rename_graph(&mut self, graph: &mut Graph, outer: &Renames<'_>, call: &Call<'_>) -> Result<(), CompileError> {
        let mut renames = Renames { names: HashMap::new(), outer: Some(outer) };
        let inputs = graph.inputs.iter_mut().map(|input| &mut input.name);
        let constants = graph.initializers.iter_mut().map(|(name, _)| name);
        for name in inputs.chain(constants) {
            let fresh = self.fresh(call, name);
            renames.names.insert(std::mem::replace(name, fresh.clone()), fresh);
        }
        for made in graph.nodes.iter().flat_map(|node| &node.outputs).filter(|name| !name.is_empty()) {
            let fresh = self.fresh(call, made);
            renames.names.insert(made.clone(), fresh);
        }
        graph.value_infos.retain(|value| renames.names.contains_key(&value.name));
        for value in graph.outputs.iter_mut().chain(&mut graph.value_infos) {
            renames.apply(&mut value.name);
        }
        for node in &mut graph.nodes {
            self.rename_node(node, &renames, call)?;
        }
        Ok(())
    }

    /// Counts what inlining makes.
    fn charge(&mut self, (n_nodes, n_bytes): (usize, usize)) -> Result<(), CompileError> {
        self.n_nodes = self.n_nodes.saturating_add(n_nodes);
        self.n_bytes = self.n_bytes.saturating_add(n_bytes);
        if self.n_nodes > Self::MAX_NODES || self.n_bytes > Self::MAX_BYTES {
            return Err(error(format!(
                "inlining functions makes more than {} nodes or {} bytes",
                Self::MAX_NODES,
                Self::MAX_BYTES
            )));
        }
        Ok(())
    }
}

/// Nodes and roughly the bytes of a node and of the graphs in it. (A tensor's bytes are shared.)
fn node_cost(node: &Node) -> (usize, usize) {
    let names = node.inputs.iter().chain(&node.outputs).chain([&node.name, &node.doc]);
    let own = size_of::<Node>() + names.map(|name| size_of::<String>() + name.len()).sum::<usize>();
    node.attributes.iter().fold((1, own), |(n_nodes, n_bytes), (name, value)| {
        let (inner_nodes, inner_bytes) = attribute_cost(value);
        (n_nodes + inner_nodes, n_bytes + name.len() + inner_bytes)
    })
}

fn attribute_cost(value: &Attribute) -> (usize, usize) {
    const ITEM_BYTES: usize = 80;
    let own = size_of::<Attribute>() + size_of::<String>();
    let list = match value {
        Attribute::Floats(values) => values.len() * 4,
        Attribute::Ints(values) => values.len() * 8,
        Attribute::Strings(values) => values.len() * size_of::<bytes::Bytes>(),
        Attribute::Tensors(values) | Attribute::SparseTensors(values) => values.len() * ITEM_BYTES,
        Attribute::Tensor(tensor) | Attribute::SparseTensor(tensor) => tensor.dims.len() * 8,
        Attribute::Types(values) => values.len() * ITEM_BYTES,
        _ => 0,
    };
    value.graphs().iter().fold((0, own + list), |(n_nodes, n_bytes), graph| {
        let values = graph.inputs.len() + graph.outputs.len() + graph.value_infos.len() + graph.initializers.len();
        let here = (n_nodes, n_bytes + size_of::<Graph>() + values * ITEM_BYTES);
        graph.nodes.iter().map(node_cost).fold(here, |sum, cost| (sum.0 + cost.0, sum.1 + cost.1))
    })
}

/// The start of a long label: nested calls add one each.
fn short(label: &str) -> &str {
    const MAX_BYTES: usize = 200;
    &label[..label.floor_char_boundary(MAX_BYTES)]
}

#[cfg(test)]
mod tests {
    use super::super::testing::*;

    fn with(functions: Vec<super::super::proto::FunctionProto>, graph: super::super::proto::GraphProto) -> String {
        let mut model = model(graph);
        model.functions = functions;
        match decoded(&model) {
            Ok(decoded) => text(&decoded.model.graph),
            Err(errors) => errors.to_string(),
        }
    }

    #[test]
    fn calls_become_bodies_with_fresh_names() {
        let twice = function("Twice", &["a"], &["b"], vec![node("Neg", &["a"], &["t"]), node("Neg", &["t"], &["b"])]);
        let calls = vec![
            node("Twice", &["x"], &["call/t"]).of("f").named("call"),
            node("Twice", &["call/t"], &["y"]).of("f").named("call"),
        ];
        assert_eq!(
            with(vec![twice], graph(&["x"], &["y"], calls)),
            "call/t_1 = Neg@17(x)\ncall/t = Neg@17(call/t_1)\ncall/t_2 = Neg@17(call/t)\ny = Neg@17(call/t_2)\n"
        );
    }

    #[test]
    fn attributes_come_from_the_call_then_the_default_then_not_at_all() {
        let mut leaf = function(
            "Leaf",
            &["a"],
            &["b"],
            vec![node("LeakyRelu", &["a"], &["b"]).with(reference("alpha", "slope", 1))],
        );
        leaf.attribute = vec!["slope".to_owned()];
        let mut outer = function(
            "Outer",
            &["a"],
            &["b"],
            vec![node("Leaf", &["a"], &["b"]).of("f").with(reference("slope", "s", 1))],
        );
        outer.attribute_proto = vec![float("s", 0.5)];
        let calls = vec![
            node("Outer", &["x"], &["p"]).of("f").with(float("s", 0.25)),
            node("Outer", &["p"], &["q"]).of("f"),
            node("Leaf", &["q"], &["y"]).of("f"),
        ];
        assert_eq!(
            with(vec![leaf, outer], graph(&["x"], &["y"], calls)),
            "p = LeakyRelu@17(x) alpha=Float(0.25)\nq = LeakyRelu@17(p) alpha=Float(0.5)\ny = LeakyRelu@17(q)\n"
        );
    }

    #[test]
    fn absent_operands_stay_absent_and_passed_through_ones_are_copied() {
        let f = function("F", &["a", "lo", "hi"], &["b", "a", "b"], vec![node("Clip", &["a", "lo", "hi"], &["b"])]);
        let calls = vec![node("F", &["x", "", "x"], &["y", "z", "w"]).of("f").named("c")];
        assert_eq!(
            with(vec![f], graph(&["x"], &["y", "z", "w"], calls)),
            "y = Clip@17(x  x)\nz = Identity@17(x)\nw = Identity@17(y)\n"
        );
    }

    #[test]
    fn graphs_in_bodies_are_renamed_and_calls_in_graphs_inlined() {
        let branch = |name: &str| body(name, graph(&[], &["r"], vec![node("Add", &["a", "t"], &["r"])]));
        let f = function(
            "F",
            &["a", "c"],
            &["b"],
            vec![
                node("Neg", &["a"], &["t"]),
                node("If", &["c"], &["b"]).with(branch("then_branch")).with(branch("else_branch")),
            ],
        );
        let inner =
            |name: &str| body(name, graph(&[], &["r"], vec![node("F", &["x", "c"], &["r"]).of("f").named("k")]));
        let calls = vec![node("If", &["c"], &["y"]).with(inner("then_branch")).with(inner("else_branch"))];
        let text = with(vec![f], graph(&["x", "c"], &["y"], calls));
        assert!(text.contains("    r = If@17(c)\n      else_branch() -> k/r\n        k/r = Add@17(x k/t)\n"), "{text}");
        assert!(!text.contains("F@"), "{text}");
    }

    #[test]
    fn problems() {
        let neg = || vec![node("Neg", &["a"], &["b"])];
        let call = |to: &str| vec![node(to, &["a"], &["b"]).of("f")];
        let main = || graph(&["x"], &["y"], vec![node("A", &["x"], &["y"]).of("f")]);
        let f = |name: &str, nodes| function(name, &["a"], &["b"], nodes);
        for (functions, wanted) in [
            (vec![f("A", neg())], "y = Neg@17(x)\n"),
            (vec![f("A", neg()), f("A", neg())], "function \"f.A\": is defined twice"),
            (vec![f("A", call("A"))], "function \"f.A\": calls itself: \"f.A\" → \"f.A\""),
            (
                vec![f("A", call("B")), f("B", call("C")), f("C", call("B"))],
                "function \"f.B\": calls itself: \"f.B\" → \"f.C\" → \"f.B\"",
            ),
            (
                vec![f("A", vec![node("Neg", &["x"], &["b"])])],
                "node \"b\" (Neg), input 0: nothing makes \"x\" (in function \"f.A\")",
            ),
            (
                vec![function("A", &[], &["b"], neg())],
                "node \"b\" (Neg), input 0: nothing makes \"a\" (in function \"f.A\")",
            ),
            (
                vec![function("A", &[], &["b"], vec![node("Neg", &[""], &["b"])])],
                "node \"y\" (A): function \"f.A\" has 0 inputs, the call 1",
            ),
        ] {
            assert_eq!(with(functions, main()), wanted);
        }
    }

    #[test]
    fn growth_without_end_is_refused() {
        // Each of 40 functions calls the next twice: 2^40 nodes.
        let twice = |i: usize| {
            let next = format!("F{}", i + 1);
            function(
                &format!("F{i}"),
                &["a"],
                &["b"],
                vec![node(&next, &["a"], &["t"]).of("f"), node(&next, &["t"], &["b"]).of("f")],
            )
        };
        let mut functions: Vec<_> = (0..40).map(twice).collect();
        functions.push(function("F40", &["a"], &["b"], vec![node("Neg", &["a"], &["b"])]));
        let text = with(functions, graph(&["x"], &["y"], vec![node("F0", &["x"], &["y"]).of("f")]));
        assert!(text.contains("inlining functions makes more than"), "{text}");
    }

    #[test]
    fn long_chains_of_calls_are_refused_without_overflow() {
        let call = |i: usize| {
            let next = node(&format!("F{}", i + 1), &["a"], &["b"]).of("f");
            function(&format!("F{i}"), &["a"], &["b"], vec![next])
        };
        let mut functions: Vec<_> = (0..20_000).map(call).collect();
        functions.push(function("F20000", &["a"], &["b"], vec![node("Neg", &["a"], &["b"])]));
        let text = with(functions, graph(&["x"], &["y"], vec![node("F0", &["x"], &["y"]).of("f")]));
        assert!(text.contains("nest more than 100 deep"), "{text}");
    }

    #[test]
    fn references_outside_a_function_are_refused() {
        let made = node("LeakyRelu", &["x"], &["y"]).with(reference("alpha", "slope", 1));
        assert_eq!(
            with(vec![], graph(&["x"], &["y"], vec![made])),
            "node \"y\" (LeakyRelu), attribute \"alpha\": refers to \"slope\", but stands in no function"
        );
    }
}
