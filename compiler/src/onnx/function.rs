//! Model-local functions, checked by themselves: one definition each, bodies that are sound graphs,
//! no recursion.
//!
//! In: the decoded functions. Out: a table of them that `inline` replaces calls from.
//! Source: `onnx.proto`, `FunctionProto`; docs/IR.md of onnx, "Functions".

use std::collections::{BTreeMap, HashMap};

use super::control::check_nodes;
use super::decode::{error, in_function};
use super::model::{Attribute, Graph, Node, ValueInfo};
use super::scope::order_graph;
use crate::error::{CompileError, CompileErrors, Quoted};

/// A model-local function.
pub(super) struct Function {
    /// How messages name it: `domain.name` or `domain.name:overload`.
    pub(super) title: String,
    pub(super) domain: String,
    pub(super) name: String,
    pub(super) overload: String,
    pub(super) inputs: Vec<String>,
    pub(super) outputs: Vec<String>,
    /// Attributes with a default value.
    pub(super) defaults: BTreeMap<String, Attribute>,
    pub(super) nodes: Vec<Node>,
    /// Its version of ONNX's own operators, if it imports them.
    pub(super) opset: Option<i64>,
}

impl Function {
    pub(super) fn title(domain: &str, name: &str, overload: &str) -> String {
        let mut title = String::new();
        for (part, separator) in [(domain, "."), (name, "")] {
            if !part.is_empty() {
                title.push_str(part);
                title.push_str(separator);
            }
        }
        if !overload.is_empty() {
            title.push(':');
            title.push_str(overload);
        }
        title
    }
}

/// The functions of a model, by domain, name and overload.
pub(super) struct Functions {
    pub(super) functions: Vec<Function>,
    by_key: HashMap<(String, String, String), usize>,
}

impl Functions {
    /// Checks each function by itself, that no two have one name, and that none calls itself.
    pub(super) fn check(mut functions: Vec<Function>, errors: &mut CompileErrors) -> Self {
        let mut by_key = HashMap::new();
        for (i, function) in functions.iter_mut().enumerate() {
            let key = (function.domain.clone(), function.name.clone(), function.overload.clone());
            if by_key.insert(key, i).is_some() {
                errors.push(error("is defined twice").at(format!("function {}", Quoted(&function.title))));
            }
            check_body(function, errors);
        }
        let functions = Functions { functions, by_key };
        functions.check_rings(errors);
        functions
    }

    /// The function that a node calls.
    pub(super) fn callee(&self, node: &Node) -> Option<usize> {
        if self.by_key.is_empty() {
            return None;
        }
        self.by_key.get(&(node.domain.clone(), node.op_type.clone(), node.overload.clone())).copied()
    }

    fn callees(&self, function_idx: usize) -> Vec<usize> {
        fn collect(functions: &Functions, nodes: &[Node], out: &mut Vec<usize>) {
            for node in nodes {
                out.extend(functions.callee(node));
                for (_, graph) in node.subgraphs() {
                    collect(functions, &graph.nodes, out);
                }
            }
        }
        let mut out = Vec::new();
        collect(self, &self.functions[function_idx].nodes, &mut out);
        out.sort_unstable();
        out.dedup();
        out
    }

    /// Depth first with a stack of its own: chains of calls may be long.
    fn check_rings(&self, errors: &mut CompileErrors) {
        const REPORTED: usize = 20;
        let mut n_rings = 0;
        let callees: Vec<Vec<usize>> = (0..self.functions.len()).map(|i| self.callees(i)).collect();
        let mut is_done = vec![false; callees.len()];
        let mut on_path = vec![false; callees.len()];
        for root in 0..callees.len() {
            if is_done[root] {
                continue;
            }
            // (function, how many of its callees were visited)
            let mut path = vec![(root, 0)];
            on_path[root] = true;
            while let Some((here, visited)) = path.last_mut() {
                let here = *here;
                let Some(&callee) = callees[here].get(*visited) else {
                    is_done[here] = true;
                    on_path[here] = false;
                    path.pop();
                    continue;
                };
                *visited += 1;
                if on_path[callee] {
                    n_rings += 1;
                    if n_rings > REPORTED {
                        return;
                    }
                    let start = path.iter().position(|(i, _)| *i == callee).unwrap_or(0);
                    errors.push(self.ring_error(path[start..].iter().map(|(i, _)| *i)));
                } else if !is_done[callee] {
                    on_path[callee] = true;
                    path.push((callee, 0));
                }
            }
        }
    }

    fn ring_error(&self, ring: impl Iterator<Item = usize> + Clone) -> CompileError {
        const SHOWN: usize = 10;
        let n = ring.clone().count();
        let mut titles: Vec<String> =
            ring.clone().take(SHOWN).map(|i| Quoted(&self.functions[i].title).to_string()).collect();
        if n > SHOWN {
            titles.push(format!("… ({n} functions)"));
        }
        let first = titles.first().cloned().unwrap_or_default();
        titles.push(first.clone());
        error(format!("calls itself: {}", titles.join(" → "))).at(format!("function {first}"))
    }
}

/// A body is a graph whose inputs and outputs have no types: the same rules hold.
fn check_body(function: &mut Function, errors: &mut CompileErrors) {
    let value = |name: &String| ValueInfo { name: name.clone(), ty: None, doc: String::new() };
    let mut body = Graph {
        inputs: function.inputs.iter().map(value).collect(),
        outputs: function.outputs.iter().map(value).collect(),
        nodes: std::mem::take(&mut function.nodes),
        ..Graph::default()
    };
    let before = errors.len();
    order_graph(&mut body, errors);
    check_nodes(&mut body.nodes, errors);
    for e in &mut errors.0[before..] {
        in_function(e, &function.title);
    }
    function.nodes = body.nodes;
}

/// Attribute references outside a function have nothing to refer to.
pub(super) fn check_no_references(graph: &Graph, errors: &mut CompileErrors) {
    for node in &graph.nodes {
        for reference in &node.attribute_refs {
            let message = format!("refers to {}, but stands in no function", Quoted(&reference.refers_to));
            errors.push(error(message).at_attribute(&reference.name).at_node(node.label(), &node.op_type));
        }
        for (_, inner) in node.subgraphs() {
            check_no_references(inner, errors);
        }
    }
}
