//! The task graph: what placement and scheduling need to know of a model, and nothing else.
//!
//! In: nodes with their cost on every device, values with their bytes in every device's form. [`Shape`] checks it and
//! derives who makes and who reads what.
//! Invariants once a [`Shape`] exists: ids are in range; a value has one producer or is an input; no cycles; lists of
//! per-device facts have one entry for each device; the host can run every node that is not pinned elsewhere.

use super::dag::{Cycle, Dag};
use super::id::{DeviceId, DtypeId, LayoutId, NodeId, ValueId};
use super::target::Target;
use std::fmt;

/// How a value lies in memory at a device's border.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Form {
    /// Layout.
    pub layout: LayoutId,
    /// Element type.
    pub dtype: DtypeId,
    /// Size in this form.
    pub bytes: u64,
}

/// Where a value comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// A node makes it.
    Node,
    /// The caller hands it over in this device's memory and form (the host's, for graph inputs).
    Input(DeviceId),
    /// A constant, laid down offline wherever it is needed: never copied at run time.
    Constant,
}

/// A value.
#[derive(Clone, Debug)]
pub struct Value {
    /// Name.
    pub name: String,
    /// Number of elements.
    pub elements: u64,
    /// Its form at each device's border.
    pub forms: Vec<Form>,
    /// Where it comes from.
    pub source: Source,
    /// The device in whose memory the caller reads it (the host, for graph outputs).
    pub output: Option<DeviceId>,
}

/// A node: one operator.
#[derive(Clone, Debug)]
pub struct Node {
    /// Name.
    pub name: String,
    /// What it reads; repeats are allowed.
    pub inputs: Vec<ValueId>,
    /// What it makes.
    pub outputs: Vec<ValueId>,
    /// Multiply-accumulates.
    pub macs: u64,
    /// Time on each device, launch included; `None` where it cannot run.
    pub cost_ns: Vec<Option<u64>>,
    /// The device it must run on.
    pub pin: Option<DeviceId>,
    /// If, Loop, Scan.
    pub control_flow: bool,
    /// Shards of equal work it may be cut into; 1 for none.
    pub splits: u32,
    /// Inputs of which shard i of k reads only what shard i of k of their producer writes.
    pub rowwise: Vec<ValueId>,
}

/// Several nodes that one device can run as one kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// The device.
    pub device: DeviceId,
    /// The nodes, at least two.
    pub nodes: Vec<NodeId>,
    /// Time, launch included.
    pub cost_ns: u64,
}

/// A model as the planner sees it.
#[derive(Clone, Debug, Default)]
pub struct TaskGraph {
    /// Nodes.
    pub nodes: Vec<Node>,
    /// Values.
    pub values: Vec<Value>,
    /// Alternatives to running the nodes one by one.
    pub claims: Vec<Claim>,
}

/// Why a task graph makes no sense.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GraphError(pub String);

impl fmt::Display for GraphError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for GraphError {}

/// A checked graph's structure.
#[derive(Clone, Debug)]
pub struct Shape {
    /// Nodes and their dependencies.
    pub dag: Dag,
    /// Who makes each value.
    pub producer: Vec<Option<NodeId>>,
    /// Who reads each value, ascending, without repeats.
    pub readers: Vec<Vec<NodeId>>,
}

impl Shape {
    /// Checks the graph against the target.
    pub fn new(graph: &TaskGraph, target: &Target) -> Result<Shape, GraphError> {
        let (n, n_values, n_devices) = (graph.nodes.len(), graph.values.len(), target.n_devices());
        let mut producer = vec![None; n_values];
        let mut readers: Vec<Vec<NodeId>> = vec![Vec::new(); n_values];
        for (i, node) in graph.nodes.iter().enumerate() {
            check_node(node, target, n_values)?;
            for v in &node.outputs {
                if producer[v.idx()].replace(NodeId::new(i)).is_some() {
                    return wrong(format!("value \"{}\" is made twice", graph.values[v.idx()].name));
                }
            }
            for v in &node.inputs {
                if readers[v.idx()].last() != Some(&NodeId::new(i)) {
                    readers[v.idx()].push(NodeId::new(i));
                }
            }
        }
        for (value, made) in graph.values.iter().zip(&producer) {
            let devices_ok = |d: DeviceId| d.idx() < n_devices;
            let at_input = if let Source::Input(d) = value.source { devices_ok(d) } else { true };
            if value.forms.len() != n_devices || !value.output.is_none_or(devices_ok) || !at_input {
                return wrong(format!("value \"{}\": devices that are not the target's", value.name));
            }
            if made.is_some() != (value.source == Source::Node) {
                return wrong(format!("value \"{}\": its source and its producer disagree", value.name));
            }
        }
        let from = |v: &ValueId| producer[v.idx()].map(NodeId::idx);
        let edges = graph.nodes.iter().enumerate().flat_map(|(i, node)| {
            let sources: Vec<usize> = node.inputs.iter().filter_map(from).collect();
            sources.into_iter().map(move |p| (p, i))
        });
        let own_input = graph.nodes.iter().find(|node| node.inputs.iter().any(|v| node.outputs.contains(v)));
        if let Some(node) = own_input {
            return wrong(format!("node \"{}\" reads its own result", node.name));
        }
        let dag = Dag::new(n, edges).map_err(|Cycle(on)| {
            let name = on.first().map_or("", |&i| graph.nodes[i].name.as_str());
            GraphError(format!("the nodes form a cycle, with \"{name}\" on it or behind it"))
        })?;
        let shape = Shape { dag, producer, readers };
        for claim in &graph.claims {
            shape.check_claim(claim, n, n_devices)?;
        }
        Ok(shape)
    }

    /// In range, without repeats, and convex: no way leaves the claim and comes back, or it could not run as one.
    fn check_claim(&self, claim: &Claim, n: usize, n_devices: usize) -> Result<(), GraphError> {
        let mut nodes = claim.nodes.clone();
        nodes.sort_unstable();
        nodes.dedup();
        if nodes.len() != claim.nodes.len() || nodes.len() < 2 || claim.device.idx() >= n_devices {
            return wrong("a claim needs two different nodes and a device");
        }
        if nodes.iter().any(|v| v.idx() >= n) {
            return wrong("a claim names a node that is not there");
        }
        if !self.is_convex(&nodes) {
            return wrong(format!("the claim with node {} has a way out of it and back in", nodes[0]));
        }
        Ok(())
    }

    /// Whether no way leads out of the set (ascending) and back in.
    fn is_convex(&self, nodes: &[NodeId]) -> bool {
        let inside = |v: usize| nodes.binary_search(&NodeId::new(v)).is_ok();
        let mut seen = std::collections::BTreeSet::new();
        let outside = |v: usize| self.dag.succs(v).iter().map(|&w| w as usize);
        let mut todo: Vec<usize> = nodes.iter().flat_map(|v| outside(v.idx())).filter(|&w| !inside(w)).collect();
        // Nothing behind the last level of the set can come back.
        let mut order = vec![0; 0];
        if !todo.is_empty() {
            order = vec![0u32; self.dag.len()];
            self.dag.order().enumerate().for_each(|(at, v)| order[v] = at as u32);
        }
        let last = nodes.iter().filter_map(|v| order.get(v.idx())).max().copied().unwrap_or(0);
        while let Some(v) = todo.pop() {
            if order[v] > last || !seen.insert(v) {
                continue;
            }
            for w in outside(v) {
                if inside(w) {
                    return false;
                }
                todo.push(w);
            }
        }
        true
    }

    /// The device a value starts on, given the nodes' devices; `None` for constants.
    pub fn origin(&self, graph: &TaskGraph, device: &[DeviceId], value: usize) -> Option<DeviceId> {
        match graph.values[value].source {
            Source::Constant => None,
            Source::Input(d) => Some(d),
            Source::Node => self.producer[value].map(|n| device[n.idx()]),
        }
    }

    /// The devices that read a value, ascending: its readers' and, for an output, the caller's.
    pub fn reading_devices(&self, graph: &TaskGraph, device: &[DeviceId], value: usize, out: &mut Vec<DeviceId>) {
        out.clear();
        out.extend(self.readers[value].iter().map(|n| device[n.idx()]));
        out.extend(graph.values[value].output);
        out.sort_unstable();
        out.dedup();
    }
}

fn check_node(node: &Node, target: &Target, n_values: usize) -> Result<(), GraphError> {
    if node.cost_ns.len() != target.n_devices() {
        return wrong(format!(
            "node \"{}\": {} costs for {} devices",
            node.name,
            node.cost_ns.len(),
            target.n_devices()
        ));
    }
    if node.inputs.iter().chain(&node.outputs).any(|v| v.idx() >= n_values) {
        return wrong(format!("node \"{}\" names a value that is not there", node.name));
    }
    let at = node.pin.unwrap_or(target.host);
    let name = target.devices.get(at.idx()).map_or("?", |d| &d.name);
    match node.cost_ns.get(at.idx()) {
        Some(Some(_)) => Ok(()),
        _ if node.pin.is_some() => wrong(format!("node \"{}\" is pinned to {name}, which cannot run it", node.name)),
        _ => wrong(format!("node \"{}\": the host \"{name}\" cannot run it", node.name)),
    }
}

fn wrong<T>(message: impl Into<String>) -> Result<T, GraphError> {
    Err(GraphError(message.into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::testing::Kit;

    #[test]
    fn structure_of_a_diamond() {
        let mut kit = Kit::new(2, 100);
        let x = kit.input(8);
        let a = kit.node(&[x], &[1, 2]);
        let b = kit.node(&[a, a], &[1, 2]);
        let c = kit.node(&[a], &[1, 2]);
        kit.node(&[b, c], &[1, 2]);
        let shape = kit.shape();
        assert_eq!(shape.readers[a.idx()], [NodeId(1), NodeId(2)]);
        assert_eq!(shape.dag.preds(3), [1, 2]);
        let device = [DeviceId(0), DeviceId(1), DeviceId(0), DeviceId(0)];
        let mut out = Vec::new();
        shape.reading_devices(&kit.graph, &device, a.idx(), &mut out);
        assert_eq!(out, [DeviceId(0), DeviceId(1)]);
        assert_eq!(shape.origin(&kit.graph, &device, x.idx()), Some(kit.target.host));
    }

    #[test]
    fn senseless_graphs_are_errors() {
        let base = || {
            let mut kit = Kit::new(2, 100);
            let x = kit.input(8);
            let a = kit.node(&[x], &[1, 2]);
            let b = kit.node(&[a], &[1, 2]);
            kit.node(&[a, b], &[1, 2]);
            kit
        };
        let edits: [(&dyn Fn(&mut TaskGraph), &str); 11] = [
            (&|g| g.nodes[0].inputs[0] = ValueId(99), "not there"),
            (&|g| g.nodes[0].inputs[0] = g.nodes[2].outputs[0], "cycle"),
            (&|g| g.nodes[0].inputs[0] = g.nodes[0].outputs[0], "own result"),
            (&|g| g.nodes[1].outputs[0] = g.nodes[0].outputs[0], "made twice"),
            (&|g| g.nodes[1].cost_ns = vec![Some(1)], "1 costs for 2 devices"),
            (&|g| g.nodes[1].cost_ns[1] = None, "the host"),
            (&|g| (g.nodes[1].pin, g.nodes[1].cost_ns[0]) = (Some(DeviceId(0)), None), "pinned"),
            (&|g| g.nodes[1].pin = Some(DeviceId(7)), "pinned"),
            (&|g| g.values[1].forms.clear(), "devices"),
            (&|g| g.values[1].source = Source::Constant, "disagree"),
            (
                &|g| {
                    let nodes = vec![NodeId(0), NodeId(2)];
                    g.claims.push(Claim { device: DeviceId(0), nodes, cost_ns: 1 });
                },
                "back in",
            ),
        ];
        for (edit, part) in edits {
            let mut kit = base();
            edit(&mut kit.graph);
            let e = Shape::new(&kit.graph, &kit.target).unwrap_err();
            assert!(e.0.contains(part), "{e}, wanted {part}");
        }
        let mut kit = base();
        kit.graph.claims.push(Claim { device: DeviceId(0), nodes: vec![NodeId(1), NodeId(2)], cost_ns: 1 });
        assert!(Shape::new(&kit.graph, &kit.target).is_ok());
    }
}
