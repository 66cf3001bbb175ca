//! Who makes each name: single assignment, no dangling reads, topological order.
//!
//! In: a decoded graph whose nodes may stand in any order. Out: the same graph, its nodes (and
//! those of the graphs in it) in topological order, in the file's own order where that already was
//! one, else always the earliest ready node first. Every problem is recorded: names made twice,
//! reads nobody makes, outputs nobody makes, cycles by the names of their nodes.
//! Time is O((V + E) log V).
//!
//! A name is looked up in its own graph first, then in the graphs around it. A node depends on
//! whatever its graphs capture.
//! Source: docs/IR.md of onnx, "Names Within a Graph", "Nodes"; Kahn, "Topological sorting of large
//! networks", 1962.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, HashMap};

use super::decode::error;
use super::model::{Attribute, Graph, Node};
use crate::error::{CompileError, CompileErrors, Quoted};

/// Checks and sorts a graph that stands in no other.
pub(super) fn order_graph(graph: &mut Graph, errors: &mut CompileErrors) {
    order_in(graph, None, errors);
}

/// The names of one graph, and of those around it.
struct Scope<'a> {
    /// Name → the node that makes it; `None` for inputs and initializers.
    makers: HashMap<&'a str, Option<usize>>,
    outer: Option<&'a Scope<'a>>,
}

impl Scope<'_> {
    fn is_visible(&self, name: &str) -> bool {
        let mut scope = Some(self);
        while let Some(here) = scope {
            if here.makers.contains_key(name) {
                return true;
            }
            scope = here.outer;
        }
        false
    }
}

/// Returns the names of outer graphs that the graph reads.
fn order_in(graph: &mut Graph, outer: Option<&Scope<'_>>, errors: &mut CompileErrors) -> BTreeSet<String> {
    // Taken out so that the graphs in them can change while names are borrowed from the nodes.
    let mut nested: Vec<(usize, BTreeMap<String, Attribute>)> = Vec::new();
    for (i, node) in graph.nodes.iter_mut().enumerate() {
        if node.subgraphs().next().is_some() {
            nested.push((i, std::mem::take(&mut node.attributes)));
        }
    }
    let scope = Scope { makers: makers(graph, outer.is_some(), errors), outer };
    let mut captures = BTreeSet::new();
    let mut edges: Vec<(usize, usize)> = Vec::new();
    for (reader, attributes) in &mut nested {
        for inner in attributes.values_mut().flat_map(Attribute::graphs_mut) {
            for name in order_in(inner, Some(&scope), errors) {
                match scope.makers.get(name.as_str()) {
                    Some(Some(maker)) => edges.push((*maker, *reader)),
                    Some(None) => {}
                    None => {
                        captures.insert(name);
                    }
                }
            }
        }
    }
    read_inputs(graph, &scope, &mut edges, &mut captures, errors);
    read_outputs(graph, &scope, &mut captures, errors);
    let order = topological_order(graph.nodes.len(), &edges);
    drop(scope);
    match order {
        Order::AsGiven => {}
        Order::By(order) => {
            for (i, attributes) in nested.drain(..) {
                graph.nodes[i].attributes = attributes;
            }
            permute(&mut graph.nodes, &order);
        }
        Order::Cycle(cycle) => errors.push(cycle_error(graph, &cycle)),
    }
    for (i, attributes) in nested {
        graph.nodes[i].attributes = attributes;
    }
    captures
}

/// Who makes each name of a graph; names made twice or empty are recorded.
fn makers<'a>(graph: &'a Graph, is_nested: bool, errors: &mut CompileErrors) -> HashMap<&'a str, Option<usize>> {
    let mut makers: HashMap<&str, Option<usize>> = HashMap::with_capacity(graph.nodes.len());
    let title = if is_nested { format!("graph {}, ", Quoted(&graph.name)) } else { String::new() };
    for input in &graph.inputs {
        if input.name.is_empty() {
            errors.push(error("has no name").at(format!("{title}graph input")));
        } else if makers.insert(&input.name, None).is_some() {
            errors.push(error("is given twice").at(format!("{title}graph input {}", Quoted(&input.name))));
        }
    }
    for (name, _) in &graph.initializers {
        if name.is_empty() {
            errors.push(error("has no name").at(format!("{title}initializer")));
        } else if makers.insert(name, None).is_some() {
            errors.push(error("is given twice").at(format!("{title}initializer {}", Quoted(name))));
        }
    }
    for (i, node) in graph.nodes.iter().enumerate() {
        for (output_idx, name) in node.outputs.iter().enumerate().filter(|(_, name)| !name.is_empty()) {
            if let Some(first) = makers.get(name.as_str()) {
                let by = match first {
                    Some(first) if *first == i => "this node already".to_owned(),
                    Some(first) => format!("node {}", Quoted(graph.nodes[*first].label())),
                    None => "a graph input or initializer".to_owned(),
                };
                let message = format!("{} is made twice, first by {by}", Quoted(name));
                errors.push(error(message).at_output(output_idx).at_node(node.label(), &node.op_type));
            } else {
                makers.insert(name, Some(i));
            }
        }
    }
    makers
}

fn read_inputs(
    graph: &Graph,
    scope: &Scope<'_>,
    edges: &mut Vec<(usize, usize)>,
    captures: &mut BTreeSet<String>,
    errors: &mut CompileErrors,
) {
    for (reader, node) in graph.nodes.iter().enumerate() {
        for (input_idx, name) in node.inputs.iter().enumerate().filter(|(_, name)| !name.is_empty()) {
            match scope.makers.get(name.as_str()) {
                Some(Some(maker)) => edges.push((*maker, reader)),
                Some(None) => {}
                None if scope.is_visible(name) => {
                    captures.insert(name.clone());
                }
                None => {
                    let message = format!("nothing makes {}", Quoted(name));
                    errors.push(error(message).at_input(input_idx).at_node(node.label(), &node.op_type));
                }
            }
        }
    }
}

fn read_outputs(graph: &Graph, scope: &Scope<'_>, captures: &mut BTreeSet<String>, errors: &mut CompileErrors) {
    for output in &graph.outputs {
        if output.name.is_empty() {
            errors.push(error("has no name").at("graph output"));
        } else if !scope.is_visible(&output.name) {
            errors.push(error("nothing makes it").at(format!("graph output {}", Quoted(&output.name))));
        } else if !scope.makers.contains_key(output.name.as_str()) {
            captures.insert(output.name.clone());
        }
    }
}

enum Order {
    AsGiven,
    By(Vec<usize>),
    Cycle(Vec<usize>),
}

/// Orders `n` nodes so that every edge (from, to) goes forward.
fn topological_order(n: usize, edges: &[(usize, usize)]) -> Order {
    if edges.iter().all(|(from, to)| from < to) {
        return Order::AsGiven;
    }
    let mut starts = vec![0usize; n + 1];
    let mut n_unready = vec![0usize; n];
    for &(from, to) in edges {
        starts[from + 1] += 1;
        n_unready[to] += 1;
    }
    for i in 0..n {
        starts[i + 1] += starts[i];
    }
    let mut next = starts.clone();
    let mut readers = vec![0usize; edges.len()];
    for &(from, to) in edges {
        readers[next[from]] = to;
        next[from] += 1;
    }
    let mut ready: BinaryHeap<Reverse<usize>> = (0..n).filter(|i| n_unready[*i] == 0).map(Reverse).collect();
    let mut order = Vec::with_capacity(n);
    while let Some(Reverse(node)) = ready.pop() {
        order.push(node);
        for &reader in &readers[starts[node]..starts[node + 1]] {
            n_unready[reader] -= 1;
            if n_unready[reader] == 0 {
                ready.push(Reverse(reader));
            }
        }
    }
    if order.len() == n { Order::By(order) } else { Order::Cycle(find_cycle(edges, &n_unready)) }
}

/// One cycle among the nodes that never became ready, in the order of the data.
fn find_cycle(edges: &[(usize, usize)], n_unready: &[usize]) -> Vec<usize> {
    let mut maker_of = vec![usize::MAX; n_unready.len()];
    for &(from, to) in edges {
        if n_unready[from] > 0 && n_unready[to] > 0 {
            maker_of[to] = from;
        }
    }
    // Each such node waits for another such node: walking back ends in a cycle.
    let mut seen_at = vec![usize::MAX; n_unready.len()];
    let mut walk = Vec::new();
    let mut here = n_unready.iter().position(|n| *n > 0).unwrap_or(0);
    while seen_at[here] == usize::MAX {
        seen_at[here] = walk.len();
        walk.push(here);
        here = maker_of[here];
    }
    let mut cycle = walk.split_off(seen_at[here]);
    cycle.reverse();
    let first = (0..cycle.len()).min_by_key(|i| cycle[*i]).unwrap_or(0);
    cycle.rotate_left(first);
    cycle
}

fn cycle_error(graph: &Graph, cycle: &[usize]) -> CompileError {
    const SHOWN: usize = 10;
    let mut names: Vec<String> =
        cycle.iter().take(SHOWN).map(|i| Quoted(graph.nodes[*i].label()).to_string()).collect();
    if cycle.len() > SHOWN {
        names.push(format!("… ({} nodes)", cycle.len()));
    }
    let first = &graph.nodes[cycle[0]];
    names.push(Quoted(first.label()).to_string());
    error(format!("nodes wait for each other in a cycle: {}", names.join(" → "))).at_node(first.label(), &first.op_type)
}

fn permute(nodes: &mut Vec<Node>, order: &[usize]) {
    let mut old: Vec<Option<Node>> = std::mem::take(nodes).into_iter().map(Some).collect();
    nodes.extend(order.iter().filter_map(|i| old[*i].take()));
}

#[cfg(test)]
mod tests {
    use super::super::testing::*;

    #[test]
    fn the_files_order_is_kept_where_it_is_one() {
        let nodes = vec![node("Neg", &["x"], &["b"]), node("Abs", &["x"], &["a"]), node("Add", &["b", "a"], &["y"])];
        let graph = decoded(&model(graph(&["x"], &["y"], nodes))).unwrap().model.graph;
        assert_eq!(text(&graph), "b = Neg@18(x)\na = Abs@18(x)\ny = Add@18(b a)\n");
    }

    #[test]
    fn nodes_in_any_order_are_sorted_captures_counted() {
        let branch = |name: &str| body(name, graph(&[], &["r"], vec![node("Neg", &["late"], &["r"])]));
        let nodes = vec![
            node("Add", &["i", "x"], &["y"]),
            node("If", &["c"], &["i"]).with(branch("then_branch")).with(branch("else_branch")),
            node("Abs", &["x"], &["late"]),
        ];
        let graph = decoded(&model(graph(&["x", "c"], &["y"], nodes))).unwrap().model.graph;
        let order: Vec<&str> = graph.nodes.iter().map(|node| node.op_type.as_str()).collect();
        assert_eq!(order, ["Abs", "If", "Add"]);
        assert_eq!(graph.nodes[1].subgraphs().count(), 2);
    }

    #[test]
    fn problems_of_names() {
        let neg = |from, to| node("Neg", &[from], &[to]);
        for (inputs, outputs, nodes, wanted) in [
            (&["x"][..], &["y"][..], vec![neg("x", "y")], "none"),
            (&["x"], &["x", "x"], vec![], "none"),
            (&["x"], &["y"], vec![], "graph output \"y\": nothing makes it"),
            (&["x"], &["y"], vec![neg("z", "y")], "node \"y\" (Neg), input 0: nothing makes \"z\""),
            (
                &["x"],
                &["y"],
                vec![neg("x", "y"), neg("x", "y").named("n")],
                "node \"n\" (Neg), output 0: \"y\" is made twice, first by node \"y\"",
            ),
            (
                &["x"],
                &["x"],
                vec![neg("x", "x")],
                "node \"x\" (Neg), output 0: \"x\" is made twice, first by a graph input or initializer",
            ),
            (&["x", "x"], &["x"], vec![], "graph input \"x\": is given twice"),
            (
                &["x"],
                &["a"],
                vec![neg("b", "a"), neg("c", "b"), neg("a", "c")],
                "node \"a\" (Neg): nodes wait for each other in a cycle: \"a\" → \"c\" → \"b\" → \"a\"",
            ),
        ] {
            assert_eq!(problems(&model(graph(inputs, outputs, nodes))), wanted);
        }
    }

    #[test]
    fn all_problems_are_reported() {
        let nodes = vec![node("Neg", &["p"], &["a"]), node("Neg", &["q"], &["b"])];
        assert_eq!(problems(&model(graph(&["x"], &["z"], nodes))).lines().count(), 3);
    }

    #[test]
    fn a_node_whose_graph_captures_its_own_output_is_a_cycle() {
        let branch = |name: &str| body(name, graph(&[], &["r"], vec![node("Neg", &["y"], &["r"])]));
        let nodes = vec![node("If", &["c"], &["y"]).with(branch("then_branch")).with(branch("else_branch"))];
        let text = problems(&model(graph(&["c"], &["y"], nodes)));
        assert!(text.contains("in a cycle: \"y\" → \"y\""), "{text}");
    }

    #[test]
    fn a_long_reversed_chain_is_sorted_quickly() {
        let n = 100_000;
        let nodes = (0..n).rev().map(|i| node("Neg", &[&format!("v{i}")], &[&format!("v{}", i + 1)])).collect();
        let graph = decoded(&model(graph(&["v0"], &[&format!("v{n}")], nodes))).unwrap().model.graph;
        assert_eq!(graph.nodes[0].inputs, ["v0"]);
        assert_eq!(graph.nodes.len(), n);
    }
}
