//! The graph as stable text: one line a node, for `--emit graph`, snapshots and diffs.

use super::{Graph, Layout, ValueId};
use crate::error::Shortened;
use std::fmt::Write;

/// The whole graph as text.
pub fn graph_text(graph: &Graph) -> String {
    let mut out = String::new();
    write_graph(graph, 0, &mut out);
    out
}

fn value_text(graph: &Graph, v: ValueId) -> String {
    let value = graph.value(v);
    let ty = value.ty.as_ref().map_or_else(|| "?".to_owned(), ToString::to_string);
    let layout = match value.layout {
        Layout::Plain => String::new(),
        Layout::Blocked16 => "@16c".to_owned(),
        Layout::Reserved { axis, rows } => format!("@{rows} in axis {axis}"),
    };
    format!("{v}: {ty}{layout}")
}

fn write_graph(graph: &Graph, depth: usize, out: &mut String) {
    let pad = "  ".repeat(depth);
    for &v in &graph.inputs {
        let _ = writeln!(out, "{pad}input {} \"{}\"", value_text(graph, v), Shortened(&graph.value(v).name));
    }
    for (outer, inner) in &graph.captures {
        let _ = writeln!(out, "{pad}capture {} = outer {outer}", value_text(graph, *inner));
    }
    for node in &graph.nodes {
        let outputs: Vec<_> = node.outputs.iter().map(|o| o.map_or("_".into(), |v| value_text(graph, v))).collect();
        let inputs: Vec<_> = node
            .inputs
            .iter()
            .map(|i| match i {
                None => "_".to_owned(),
                Some(v) => match graph.constant(*v) {
                    Some(t) => format!("const {t:?}"),
                    None => v.to_string(),
                },
            })
            .collect();
        let _ = write!(out, "{pad}{} = {}({})", outputs.join(", "), node.full_op(), inputs.join(", "));
        for (name, attr) in &node.attrs {
            let _ = write!(out, " {name}={}", Shortened(&attr.text()));
        }
        let _ = writeln!(out, "  # {}", Shortened(&node.name));
        for (name, body) in &node.bodies {
            let _ = writeln!(out, "{pad}  {name}:");
            write_graph(body, depth + 2, out);
        }
    }
    for (name, v) in &graph.outputs {
        let what =
            if graph.constant(*v).is_some() { format!("const {}", value_text(graph, *v)) } else { v.to_string() };
        let _ = writeln!(out, "{pad}output \"{}\" = {what}", Shortened(name));
    }
}
