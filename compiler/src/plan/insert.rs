//! From a placed graph to tasks and buffers: kernels, and the copies between devices as tasks of their own.
//!
//! In: a graph and a placement. Out: a [`TaskList`]. One copy per value, destination memory, layout and type, shared by all
//! readers there; a value in shared memory and the same form is not copied, its reader only waits for the handshake; a copy
//! always starts from where the value was made if a link leads from there, so no copy is a copy of a copy without need.
//! Invariants: a buffer is written by one task, or by the caller (inputs) or nobody (constants, which have no buffer);
//! tasks are numbered in a topological order.

use super::cost::{CrossCost, Hop, hops};
use super::dag::Dag;
use super::graph::{Form, Shape, Source, TaskGraph};
use super::id::{BufferId, DeviceId, DmaId, MemoryId, NodeId, TaskId, ValueId};
use super::placement::{NEVER, Placement};
use super::target::Target;

/// What a task runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Resource {
    /// A stream of this device.
    Device(DeviceId),
    /// A channel of this engine.
    Dma(DmaId),
}

impl Resource {
    /// How many streams or channels there are.
    pub fn n_streams(self, target: &Target) -> usize {
        match self {
            Resource::Device(d) => target.devices[d.idx()].streams,
            Resource::Dma(d) => target.dmas[d.idx()].channels,
        }
    }
}

/// What a task does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TaskKind {
    /// Runs nodes as one kernel: one node, or those of a claim.
    Launch {
        /// The nodes, ascending.
        nodes: Vec<NodeId>,
        /// The claim they are run by.
        claim: Option<usize>,
    },
    /// Brings a value from one device to another.
    Copy {
        /// The value.
        value: ValueId,
        /// From this device's memory and form.
        from: DeviceId,
        /// To this device's.
        to: DeviceId,
        /// Item by item.
        cost: CrossCost,
    },
}

/// A read of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Read {
    /// The buffer.
    pub buffer: BufferId,
    /// From its writer's end until it can be read: the handshake, where no copy was needed.
    pub latency_ns: u64,
    /// Shard i of k reads only what shard i of k of the writer wrote.
    pub rowwise: bool,
}

/// One unit of work for a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Task {
    /// What it does.
    pub kind: TaskKind,
    /// What it runs on.
    pub on: Resource,
    /// How long it takes.
    pub cost_ns: u64,
    /// The part of the time that each shard pays in full.
    pub launch_ns: u64,
    /// Shards it may be cut into; 1 for none.
    pub splits: u32,
    /// What it reads, by buffer.
    pub reads: Vec<Read>,
    /// What it writes.
    pub writes: Vec<BufferId>,
}

/// One value in one memory and form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Buffer {
    /// The value.
    pub value: ValueId,
    /// Where it lies.
    pub memory: MemoryId,
    /// In which form.
    pub form: Form,
    /// Who writes it; nobody for graph inputs.
    pub writer: Option<TaskId>,
    /// The caller reads it after the run.
    pub output: bool,
}

/// Everything there is to schedule.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TaskList {
    /// Tasks in a topological order.
    pub tasks: Vec<Task>,
    /// Buffers.
    pub buffers: Vec<Buffer>,
}

impl TaskList {
    /// Which task waits for which.
    pub fn dag(&self) -> Dag {
        let edges = self.tasks.iter().enumerate().flat_map(|(i, task)| {
            let writer = move |r: &Read| self.buffers[r.buffer.idx()].writer.map(|w| (w.idx(), i));
            task.reads.iter().filter_map(writer)
        });
        // Writers come before readers by construction, so there is no cycle.
        Dag::new(self.tasks.len(), edges).unwrap_or_default()
    }

    /// The copies, in order.
    pub fn copies(&self) -> impl Iterator<Item = (TaskId, &TaskKind)> {
        let copy = |(i, t): (usize, &'_ Task)| matches!(t.kind, TaskKind::Copy { .. }).then_some(i);
        let all: Vec<usize> = self.tasks.iter().enumerate().filter_map(copy).collect();
        all.into_iter().map(|i| (TaskId::new(i), &self.tasks[i].kind))
    }
}

/// Where one device finds a value.
#[derive(Clone, Copy)]
struct Place {
    device: DeviceId,
    buffer: BufferId,
    latency_ns: u64,
}

struct Insertion<'a> {
    graph: &'a TaskGraph,
    shape: &'a Shape,
    target: &'a Target,
    placement: &'a Placement,
    list: TaskList,
    /// For each value, where the devices find it.
    places: Vec<Vec<Place>>,
    readers: Vec<DeviceId>,
    hops: Vec<Hop>,
}

/// Makes tasks and buffers of a placed graph.
pub fn insert(graph: &TaskGraph, shape: &Shape, target: &Target, placement: &Placement) -> TaskList {
    let places = vec![Vec::new(); graph.values.len()];
    let list = TaskList::default();
    let mut it = Insertion { graph, shape, target, placement, list, places, readers: Vec::new(), hops: Vec::new() };
    for (v, value) in graph.values.iter().enumerate() {
        if let Source::Input(d) = value.source {
            it.made(v, d, None);
        }
    }
    for (nodes, claim) in kernels(graph, shape, placement) {
        it.launch(nodes, claim);
    }
    it.list
}

/// Kernels in a topological order: the nodes of each, and the claim.
fn kernels(graph: &TaskGraph, shape: &Shape, placement: &Placement) -> Vec<(Vec<NodeId>, Option<usize>)> {
    let mut claim_of = vec![None; graph.nodes.len()];
    for &c in &placement.claims {
        graph.claims[c].nodes.iter().for_each(|n| claim_of[n.idx()] = Some(c));
    }
    let mut group_of_claim = std::collections::BTreeMap::new();
    let mut kernels: Vec<(Vec<NodeId>, Option<usize>)> = Vec::new();
    let mut of = vec![0; graph.nodes.len()];
    for v in shape.dag.order() {
        let fresh = kernels.len();
        let k = claim_of[v].map_or(fresh, |c| *group_of_claim.entry(c).or_insert(fresh));
        if k == fresh {
            kernels.push((Vec::new(), claim_of[v]));
        }
        kernels[k].0.push(NodeId::new(v));
        of[v] = k;
    }
    kernels.iter_mut().for_each(|(nodes, _)| nodes.sort_unstable());
    // A placement's claims leave no cycle.
    let Ok(dag) = shape.dag.contract(&of, kernels.len()) else { return kernels };
    dag.order().map(|k| std::mem::take(&mut kernels[k])).collect()
}

impl Insertion<'_> {
    fn buffer(&mut self, value: usize, at: DeviceId, writer: Option<TaskId>) -> BufferId {
        let form = self.graph.values[value].forms[at.idx()];
        let memory = self.target.device(at).memory;
        self.list.buffers.push(Buffer { value: ValueId::new(value), memory, form, writer, output: false });
        BufferId::new(self.list.buffers.len() - 1)
    }

    /// A value is there: its buffer, and the copies to all who need it elsewhere.
    fn made(&mut self, v: usize, at: DeviceId, writer: Option<TaskId>) -> BufferId {
        let value = &self.graph.values[v];
        let first = self.buffer(v, at, writer);
        self.places[v].push(Place { device: at, buffer: first, latency_ns: 0 });
        self.shape.reading_devices(self.graph, &self.placement.device, v, &mut self.readers);
        let mut way = std::mem::take(&mut self.hops);
        hops(self.target, value, at, &self.readers, &mut way);
        for hop in &way {
            let Some(from) = self.places[v].iter().find(|p| p.device == hop.from).copied() else { continue };
            let place = if hop.elided {
                let latency_ns = from.latency_ns + hop.cost.handshake_ns;
                Place { device: hop.to, buffer: from.buffer, latency_ns }
            } else {
                self.copy(v, hop, from)
            };
            self.places[v].push(place);
        }
        self.hops = way;
        if let Some(place) = value.output.and_then(|d| self.places[v].iter().find(|p| p.device == d)) {
            self.list.buffers[place.buffer.idx()].output = true;
        }
        first
    }

    fn copy(&mut self, v: usize, hop: &Hop, from: Place) -> Place {
        let task = TaskId::new(self.list.tasks.len());
        let buffer = self.buffer(v, hop.to, Some(task));
        let link = self.target.link(hop.from, hop.to);
        let by = link.map_or(hop.from, |l| l.by);
        let on = link.and_then(|l| l.dma).map_or(Resource::Device(by), Resource::Dma);
        let kind = TaskKind::Copy { value: ValueId::new(v), from: hop.from, to: hop.to, cost: hop.cost };
        let cost_ns = hop.cost.total_ns();
        let reads = vec![Read { buffer: from.buffer, latency_ns: from.latency_ns, rowwise: false }];
        self.list.tasks.push(Task { kind, on, cost_ns, launch_ns: cost_ns, splits: 1, reads, writes: vec![buffer] });
        Place { device: hop.to, buffer, latency_ns: 0 }
    }

    fn launch(&mut self, nodes: Vec<NodeId>, claim: Option<usize>) {
        let Some(&first) = nodes.first() else { return };
        let device = self.placement.device[first.idx()];
        let inside = |v: ValueId| self.shape.producer[v.idx()].is_some_and(|p| nodes.binary_search(&p).is_ok());
        let mut inputs: Vec<ValueId> = Vec::new();
        for n in &nodes {
            inputs.extend(self.graph.nodes[n.idx()].inputs.iter().copied().filter(|&v| !inside(v)));
        }
        inputs.sort_unstable();
        inputs.dedup();
        // Shards of a claim: only a claim of one node can be cut.
        let alone = &self.graph.nodes[first.idx()];
        let splits = if nodes.len() == 1 { alone.splits.max(1) } else { 1 };
        let place = |v: &ValueId| {
            let place = self.places[v.idx()].iter().find(|p| p.device == device)?;
            let rowwise = nodes.len() == 1 && alone.rowwise.contains(v);
            Some(Read { buffer: place.buffer, latency_ns: place.latency_ns, rowwise })
        };
        let reads = inputs.iter().filter_map(place).collect();
        let cost_ns = match claim {
            Some(c) => self.graph.claims[c].cost_ns,
            None => alone.cost_ns[device.idx()].unwrap_or(NEVER),
        };
        let launch_ns = self.target.device(device).launch_ns.min(cost_ns);
        let task = TaskId::new(self.list.tasks.len());
        let outputs = nodes.iter().flat_map(|n| self.graph.nodes[n.idx()].outputs.iter().copied());
        // What only the claim itself reads has no buffer.
        let wanted = |v: &ValueId| {
            let readers = &self.shape.readers[v.idx()];
            let leaves = readers.iter().any(|r| nodes.binary_search(r).is_err());
            leaves || nodes.len() == 1 || self.graph.values[v.idx()].output.is_some()
        };
        let outputs: Vec<ValueId> = outputs.filter(wanted).collect();
        let kind = TaskKind::Launch { nodes, claim };
        let on = Resource::Device(device);
        self.list.tasks.push(Task { kind, on, cost_ns, launch_ns, splits, reads, writes: Vec::new() });
        for v in outputs {
            let buffer = self.made(v.idx(), device, Some(task));
            self.list.tasks[task.idx()].writes.push(buffer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::graph::Claim;
    use crate::plan::placement::{self, crossing_ns};
    use crate::plan::testing::{Kit, Random, random_graph, random_target};

    fn list(kit: &Kit, devices: &[u32]) -> TaskList {
        let p = Placement { device: devices.iter().map(|&d| DeviceId(d)).collect(), claims: vec![] };
        insert(&kit.graph, &kit.shape(), &kit.target, &p)
    }

    fn chain(n: usize) -> Kit {
        let mut kit = Kit::new(2, 100);
        let mut v = kit.input(8);
        kit.graph.values[v.idx()].source = Source::Constant;
        for _ in 0..n {
            v = kit.node(&[v], &[1, 1]);
        }
        kit
    }

    /// planning.md §3: two adjacent fallback operators pay two crossings, two separated ones four.
    #[test]
    fn copy_counts() {
        assert_eq!(list(&chain(5), &[0, 1, 0, 0, 0]).copies().count(), 2);
        assert_eq!(list(&chain(5), &[0, 1, 1, 0, 0]).copies().count(), 2);
        assert_eq!(list(&chain(5), &[0, 1, 0, 1, 0]).copies().count(), 4);
        assert_eq!(list(&chain(5), &[0, 0, 0, 0, 0]).copies().count(), 0);
    }

    #[test]
    fn the_first_and_the_last_crossing_count_for_inputs_and_outputs() {
        let mut kit = chain(2);
        kit.graph.values[0].source = Source::Input(DeviceId(1));
        kit.output(ValueId(2));
        let l = list(&kit, &[0, 0]);
        assert_eq!(l.copies().count(), 2);
        let out = l.buffers.iter().find(|b| b.output).unwrap();
        assert_eq!(out.memory, MemoryId(1));
        assert_eq!(list(&kit, &[1, 1]).copies().count(), 0);
    }

    #[test]
    fn copies_run_on_their_engine_or_device() {
        let t = Target::shipped("soc-npu").unwrap().unwrap();
        let mut kit = Kit::on(t);
        let x = kit.input(20_000);
        let y = kit.node(&[x], &[7, 9]);
        kit.output(y);
        let l = list(&kit, &[0]);
        let on: Vec<Resource> = l.tasks.iter().map(|t| t.on).collect();
        assert_eq!(on, [Resource::Dma(DmaId(0)), Resource::Device(DeviceId(0)), Resource::Dma(DmaId(1))]);
        // 150 us handshake, 1 us of the engine, 1 us of bytes.
        assert_eq!(l.tasks[0].cost_ns, 152_000);
        assert_eq!(l.tasks[1].launch_ns, 7);
    }

    #[test]
    fn a_value_in_shared_memory_is_not_copied_but_waited_for() {
        let mut kit = chain(2);
        kit.target.devices[0].memory = kit.target.devices[1].memory;
        kit.target.links.iter_mut().for_each(|l| l.copy_bytes_per_s = None);
        let l = list(&kit, &[0, 1]);
        assert_eq!((l.tasks.len(), l.buffers.len()), (2, 2));
        assert_eq!(l.tasks[1].reads, [Read { buffer: BufferId(0), latency_ns: 100, rowwise: false }]);
    }

    #[test]
    fn what_a_claim_keeps_to_itself_has_no_buffer() {
        let mut kit = chain(3);
        let nodes = vec![NodeId(0), NodeId(1)];
        kit.graph.claims.push(Claim { device: DeviceId(0), nodes: nodes.clone(), cost_ns: 1 });
        let p = Placement { device: vec![DeviceId(0); 3], claims: vec![0] };
        let l = insert(&kit.graph, &kit.shape(), &kit.target, &p);
        assert_eq!(l.tasks[0].kind, TaskKind::Launch { nodes, claim: Some(0) });
        assert_eq!(l.buffers.iter().map(|b| b.value.0).collect::<Vec<_>>(), [2, 3]);
    }

    /// Copies and handshakes in the list are the crossings that placement counted; every read finds its buffer.
    #[test]
    fn tasks_cost_what_placement_counted() {
        let mut r = Random(11);
        for at in 0..300 {
            let target = random_target(&mut r, 2 + at % 3);
            let kit = random_graph(&mut r, target, 15);
            let shape = kit.shape();
            let p = placement::priority::place(&kit.graph, &shape, &kit.target);
            let l = insert(&kit.graph, &shape, &kit.target, &p);
            let copies: u64 = l.copies().map(|(t, _)| l.tasks[t.idx()].cost_ns).sum();
            let mut waits: Vec<_> = Vec::new();
            for t in &l.tasks {
                if let Resource::Device(d) = t.on {
                    waits.extend(t.reads.iter().filter(|r| r.latency_ns > 0).map(|r| (r.buffer, d, r.latency_ns)));
                }
            }
            waits.sort_unstable();
            waits.dedup();
            let handshakes: u64 = waits.iter().map(|w| w.2).sum();
            assert!(copies <= crossing_ns(&kit.graph, &shape, &kit.target, &p.device));
            if kit.target.links.iter().all(|l| !l.shared()) {
                assert_eq!(copies, crossing_ns(&kit.graph, &shape, &kit.target, &p.device), "{at}");
                assert_eq!(handshakes, 0);
            }
            for t in &l.tasks {
                if let TaskKind::Launch { nodes, .. } = &t.kind {
                    let node = &kit.graph.nodes[nodes[0].idx()];
                    let mut want: Vec<_> =
                        node.inputs.iter().filter(|v| kit.graph.values[v.idx()].source != Source::Constant).collect();
                    want.sort_unstable();
                    want.dedup();
                    assert_eq!(t.reads.len(), want.len());
                }
            }
            let dag = l.dag();
            assert_eq!(dag.order().collect::<Vec<_>>(), (0..l.tasks.len()).collect::<Vec<_>>());
            // Producers and readers of each buffer agree on memory and form.
            assert!(l.buffers.iter().all(|b| b.form.bytes > 0));
        }
    }
}
