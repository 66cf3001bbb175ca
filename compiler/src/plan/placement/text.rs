//! A placement as text, to save and load: one line a node, `device<TAB>node`.
//!
//! Invariant: loading what was saved gives the same devices. Lines that begin with `#` are comments. Tabs, line ends and
//! backslashes in names are written `\t`, `\n`, `\r`, `\\`. Nodes of one name are matched in order.

use super::{Placement, choose_claims, is_legal};
use crate::plan::graph::{GraphError, Shape, TaskGraph};
use crate::plan::target::Target;
use std::collections::BTreeMap;
use std::fmt::Write;

/// The placement as text.
pub fn save(graph: &TaskGraph, target: &Target, placement: &Placement) -> String {
    let mut text = format!("# placement on {}\n", target.name);
    for (node, d) in graph.nodes.iter().zip(&placement.device) {
        let name = escape(&node.name);
        let _ = writeln!(text, "{}\t{name}", target.device(*d).name);
    }
    text
}

/// Reads a placement. Every node must be named, and able to run where it is put; claims are chosen anew.
pub fn load(graph: &TaskGraph, shape: &Shape, target: &Target, text: &str) -> Result<Placement, GraphError> {
    let mut open: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    for (i, node) in graph.nodes.iter().enumerate().rev() {
        open.entry(escape(&node.name)).or_default().push(i);
    }
    let mut device = vec![None; graph.nodes.len()];
    for (at, line) in text.lines().enumerate().filter(|(_, l)| !l.is_empty() && !l.starts_with('#')) {
        let wrong = |message: String| GraphError(format!("line {}: {message}", at + 1));
        let (d, name) = line.split_once('\t').ok_or_else(|| wrong("expected a device, a tab and a node".into()))?;
        let d = target.device_named(d).ok_or_else(|| wrong(format!("there is no device \"{d}\"")))?;
        let node = open.get_mut(name).and_then(Vec::pop);
        let node = node.ok_or_else(|| wrong(format!("there is no node \"{name}\", or it was placed already")))?;
        device[node] = Some(d);
    }
    if let Some(i) = device.iter().position(Option::is_none) {
        return Err(GraphError(format!("node \"{}\" is not placed", graph.nodes[i].name)));
    }
    let device: Vec<_> = device.into_iter().flatten().collect();
    let claims = choose_claims(graph, shape, &device);
    let placement = Placement { device, claims };
    if is_legal(graph, shape, &placement) {
        return Ok(placement);
    }
    let cannot = |i: &usize| {
        let (node, d) = (&graph.nodes[*i], placement.device[*i]);
        node.cost_ns[d.idx()].is_none() || node.pin.is_some_and(|pin| pin != d)
    };
    let name = (0..graph.nodes.len()).find(cannot).map_or("?", |i| &graph.nodes[i].name);
    Err(GraphError(format!("node \"{name}\" cannot run where it is placed")))
}

fn escape(name: &str) -> String {
    name.replace('\\', "\\\\").replace('\t', "\\t").replace('\n', "\\n").replace('\r', "\\r")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::placement::sum;
    use crate::plan::testing::{Kit, Random, random_graph, random_target};

    #[test]
    fn what_is_saved_is_loaded() {
        let mut r = Random(3);
        for _ in 0..50 {
            let target = random_target(&mut r, 3);
            let mut kit = random_graph(&mut r, target, 8);
            kit.graph.nodes[0].name = "odd\tname\\\n".into();
            kit.graph.nodes[2].name = kit.graph.nodes[1].name.clone();
            let shape = kit.shape();
            let p = sum::place(&kit.graph, &shape, &kit.target);
            let text = save(&kit.graph, &kit.target, &p);
            assert_eq!(load(&kit.graph, &shape, &kit.target, &text).unwrap(), p);
        }
    }

    #[test]
    fn errors_say_what_is_wrong() {
        let kit = Kit::sandwich(0, 0);
        let shape = kit.shape();
        let cases = [
            ("d9\tnode0", "line 1: there is no device \"d9\""),
            ("# x\nd0 node0", "line 2: expected"),
            ("d0\tnode0\nd0\tnode0", "line 2: there is no node \"node0\", or"),
            ("d0\tnode0", "node \"node1\" is not placed"),
            ("d0\tnode0\nd0\tnode1\nd0\tnode2", "node \"node1\" cannot run"),
        ];
        for (text, want) in cases {
            let e = load(&kit.graph, &shape, &kit.target, text).unwrap_err();
            assert!(e.0.contains(want), "{e}");
        }
    }
}
