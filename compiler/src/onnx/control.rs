//! Control flow: If, Loop, Scan and SequenceMap have the graphs they need, with as many inputs and
//! outputs as the node asks for.
//!
//! In: a decoded graph. Out: the same; a node that lists fewer outputs than its graph makes is
//! filled up with `""` (not wanted), so that later stages can count on equal numbers.
//! Source: the operators' pages, <https://onnx.ai/onnx/operators/>.

use super::decode::error;
use super::model::{Attribute, Graph, Node, ONNX_DOMAIN};
use crate::error::{CompileError, CompileErrors};

/// Checks every control-flow node of a graph and of the graphs in it.
pub(super) fn check_control(graph: &mut Graph, errors: &mut CompileErrors) {
    check_nodes(&mut graph.nodes, errors);
}

/// The same for the nodes of a function's body.
pub(super) fn check_nodes(nodes: &mut [Node], errors: &mut CompileErrors) {
    for node in nodes {
        if let Err(e) = check_node(node) {
            errors.push(e.at_node(node.label(), &node.op_type));
        }
        for (_, inner) in node.subgraphs_mut() {
            check_control(inner, errors);
        }
    }
}

fn check_node(node: &mut Node) -> Result<(), CompileError> {
    if node.domain != ONNX_DOMAIN {
        return Ok(());
    }
    match node.op_type.as_str() {
        "If" => check_if(node),
        "Loop" => check_loop(node),
        "Scan" => check_scan(node),
        "SequenceMap" => check_sequence_map(node),
        _ => Ok(()),
    }
}

/// The graph of an attribute; `None` where a function's caller gives it.
fn body<'a>(node: &'a Node, name: &str) -> Result<Option<&'a Graph>, CompileError> {
    match node.attributes.get(name) {
        Some(Attribute::Graph(graph)) => Ok(Some(graph)),
        Some(other) => Err(error(format!("is {}, want GRAPH", other.kind())).at_attribute(name)),
        None if node.attribute_refs.iter().any(|r| r.name == name) => Ok(None),
        None => Err(error("is missing").at_attribute(name)),
    }
}

fn check_if(node: &mut Node) -> Result<(), CompileError> {
    let (then_graph, else_graph) = (body(node, "then_branch")?, body(node, "else_branch")?);
    for (graph, name) in [(then_graph, "then_branch"), (else_graph, "else_branch")] {
        if let Some(graph) = graph {
            expect_inputs(graph, name, 0)?;
        }
    }
    let (Some(then_graph), Some(else_graph)) = (then_graph, else_graph) else {
        return Ok(());
    };
    let (n_then, n_else) = (then_graph.outputs.len(), else_graph.outputs.len());
    if n_then != n_else {
        return Err(error(format!("then_branch makes {n_then} outputs, else_branch {n_else}")));
    }
    fill_outputs(node, n_then)
}

fn check_loop(node: &mut Node) -> Result<(), CompileError> {
    let n_states = node.inputs.len().saturating_sub(2);
    let Some(graph) = body(node, "body")? else {
        return Ok(());
    };
    expect_inputs(graph, "body", n_states + 2)?;
    let n_outputs = graph.outputs.len();
    if n_outputs < n_states + 1 {
        return Err(error(format!(
            "makes {n_outputs} outputs, want at least {} (the condition and {n_states} states)",
            n_states + 1
        ))
        .at_attribute("body"));
    }
    fill_outputs(node, n_outputs - 1)
}

fn check_scan(node: &mut Node) -> Result<(), CompileError> {
    // Opset 8 has the lengths of the sequences as first input.
    let n_inputs = node.inputs.len().saturating_sub(usize::from(node.version < 9));
    let n_scans = match node.attributes.get("num_scan_inputs") {
        Some(Attribute::Int(n)) => usize::try_from(*n).ok().filter(|n| (1..=n_inputs).contains(n)),
        Some(other) => {
            return Err(error(format!("is {}, want INT", other.kind())).at_attribute("num_scan_inputs"));
        }
        None if node.attribute_refs.iter().any(|r| r.name == "num_scan_inputs") => {
            return Ok(());
        }
        None => return Err(error("is missing").at_attribute("num_scan_inputs")),
    };
    let n_scans = n_scans.ok_or_else(|| {
        error(format!("is out of range, the node has {n_inputs} inputs")).at_attribute("num_scan_inputs")
    })?;
    let n_states = n_inputs - n_scans;
    let Some(graph) = body(node, "body")? else {
        return Ok(());
    };
    expect_inputs(graph, "body", n_inputs)?;
    let n_outputs = graph.outputs.len();
    if n_outputs < n_states {
        return Err(
            error(format!("makes {n_outputs} outputs, want at least {n_states} (the states)")).at_attribute("body")
        );
    }
    fill_outputs(node, n_outputs)
}

fn check_sequence_map(node: &mut Node) -> Result<(), CompileError> {
    let Some(graph) = body(node, "body")? else {
        return Ok(());
    };
    expect_inputs(graph, "body", node.inputs.len())?;
    let n_outputs = graph.outputs.len();
    fill_outputs(node, n_outputs)
}

fn expect_inputs(graph: &Graph, name: &str, wanted: usize) -> Result<(), CompileError> {
    let found = graph.inputs.len();
    if found == wanted {
        Ok(())
    } else {
        Err(error(format!("its graph takes {found} inputs, the node gives it {wanted}")).at_attribute(name))
    }
}

/// Adds unwanted outputs up to `n`; more than that is an error.
fn fill_outputs(node: &mut Node, n: usize) -> Result<(), CompileError> {
    if node.outputs.len() > n {
        return Err(error(format!("lists {} outputs, its graph makes {n}", node.outputs.len())));
    }
    node.outputs.resize(n, String::new());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::testing::*;

    #[test]
    fn arity() {
        let inner = |inputs: &[&str], outputs: &[&str]| {
            graph(inputs, outputs, outputs.iter().map(|name| node("Neg", &["x"], &[name])).collect())
        };
        let branch = |name: &str, outputs: &[&str]| body(name, inner(&[], outputs));
        for (made, wanted) in [
            (
                node("If", &["c"], &["y"]).with(branch("then_branch", &["a"])).with(branch("else_branch", &["b"])),
                "none",
            ),
            (
                node("If", &["c"], &["y"]).with(branch("then_branch", &["a"])),
                "node \"y\" (If), attribute \"else_branch\": is missing",
            ),
            (
                node("If", &["c"], &["y"]).with(branch("then_branch", &["a"])).with(int("else_branch", 1)),
                "node \"y\" (If), attribute \"else_branch\": is INT, want GRAPH",
            ),
            (
                node("If", &["c"], &["y"]).with(branch("then_branch", &["a", "b"])).with(branch("else_branch", &["b"])),
                "node \"y\" (If): then_branch makes 2 outputs, else_branch 1",
            ),
            (
                node("If", &["c"], &["y", "z"]).with(branch("then_branch", &["a"])).with(branch("else_branch", &["b"])),
                "node \"y\" (If): lists 2 outputs, its graph makes 1",
            ),
            (node("Loop", &["c", "c", "x"], &["y"]).with(body("body", inner(&["i", "k", "s"], &["q", "r"]))), "none"),
            (
                node("Loop", &["c", "c", "x"], &["y"]).with(body("body", inner(&["i", "k"], &["q", "r"]))),
                "node \"y\" (Loop), attribute \"body\": its graph takes 2 inputs, the node gives it 3",
            ),
            (
                node("Loop", &["c", "c", "x"], &["y"]).with(body("body", inner(&["i", "k", "s"], &["q"]))),
                "node \"y\" (Loop), attribute \"body\": makes 1 outputs, want at least 2 (the condition and 1 states)",
            ),
            (
                node("Scan", &["c", "x"], &["y"])
                    .with(body("body", inner(&["i", "k"], &["q"])))
                    .with(int("num_scan_inputs", 1)),
                "none",
            ),
            (
                node("Scan", &["c", "x"], &["y"])
                    .with(body("body", inner(&["i", "k"], &["q"])))
                    .with(int("num_scan_inputs", 3)),
                "node \"y\" (Scan), attribute \"num_scan_inputs\": is out of range, the node has 2 inputs",
            ),
        ] {
            assert_eq!(problems(&model(graph(&["x", "c"], &["y"], vec![made]))), wanted);
        }
    }

    #[test]
    fn outputs_that_are_not_listed_are_filled_up() {
        let inner =
            graph(&["i", "k", "s"], &["k", "q", "r"], vec![node("Neg", &["s"], &["q"]), node("Neg", &["q"], &["r"])]);
        let made = node("Loop", &["c", "c", "x"], &["y"]).with(body("body", inner));
        let graph = decoded(&model(graph(&["x", "c"], &["y"], vec![made]))).unwrap().model.graph;
        assert_eq!(graph.nodes[0].outputs, ["y", ""]);
    }
}
