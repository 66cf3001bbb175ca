//! Placement of a model: policy, pins, a placement that was saved; and warnings about what stayed on a slow device.
//!
//! In: [`Tasks`] and a [`Wish`]. Out: [`Decided`], in the planner's terms.

use super::tasks::Tasks;
use crate::error::{CompileError, Stage};
use crate::plan::cost::CrossCost;
use crate::plan::graph::Shape;
use crate::plan::id::DeviceId;
use crate::plan::insert::{TaskKind, insert};
use crate::plan::placement::fallback::fallbacks;
use crate::plan::placement::optimal::{Candidate, Effort, Placed};
use crate::plan::placement::{Objective, Policy, optimal, text};
use crate::plan::schedule;
use crate::plan::target::Target;

/// How a model is to be placed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wish {
    /// The policy.
    pub policy: Policy,
    /// A placement saved before, which goes before the policy.
    pub saved: Option<String>,
    /// How hard to look.
    pub effort: Effort,
}

impl Default for Wish {
    fn default() -> Self {
        Self { policy: Policy::Optimal(Objective::Makespan), saved: None, effort: Effort::default() }
    }
}

/// A copy between devices, with its cost item by item.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Crossing {
    /// The value's name.
    pub value: String,
    /// From this device.
    pub from: String,
    /// To this one.
    pub to: String,
    /// Bytes that leave.
    pub bytes: u64,
    /// What it costs.
    pub cost: CrossCost,
}

/// A placement in words: what a person or a tool wants to know of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Devices and their numbers of nodes.
    pub devices: Vec<(String, usize)>,
    /// The device that the host's memory belongs to.
    pub host: String,
    /// The placement as text, to save.
    pub saved: String,
    /// The copies between devices.
    pub crossings: Vec<Crossing>,
    /// What each placement that was compared would take, as simulated.
    pub candidates: Vec<(String, u64)>,
    /// What this one takes, as simulated.
    pub predicted_ns: u64,
    /// One line for each heavy node on a slow device.
    pub warnings: Vec<String>,
}

/// The summary of a placed model.
pub fn summary(tasks: &Tasks, target: &Target, decided: &Decided) -> Summary {
    let placed = &decided.placed;
    let name = |d: DeviceId| target.device(d).name.clone();
    let count = |d: DeviceId| placed.placement.device.iter().filter(|at| **at == d).count();
    let mut crossings = Vec::new();
    for (_, copy) in placed.list.copies() {
        if let TaskKind::Copy { value, from, to, cost } = copy {
            let v = &tasks.graph.values[value.idx()];
            let bytes = v.forms[from.idx()].bytes;
            let (value, from, to) = (v.name.clone(), name(*from), name(*to));
            crossings.push(Crossing { value, from, to, bytes, cost: *cost });
        }
    }
    let candidate = |c: &Candidate| match c {
        Candidate::Priority => "priority".to_owned(),
        Candidate::Parallax => "parallax".to_owned(),
        Candidate::Single(d) => format!("all on {}", name(*d)),
        Candidate::Sum => "optimal, sum".to_owned(),
        Candidate::Search => "optimal, makespan".to_owned(),
    };
    Summary {
        devices: target.device_ids().map(|d| (name(d), count(d))).collect(),
        host: name(target.host),
        saved: text::save(&tasks.graph, target, &placed.placement),
        crossings,
        candidates: placed.candidates.iter().map(|(c, ns)| (candidate(c), *ns)).collect(),
        predicted_ns: placed.planned.timeline.end_ns,
        warnings: decided.warnings.clone(),
    }
}

/// A placed model.
#[derive(Clone, Debug)]
pub struct Decided {
    /// Devices, copies, schedule, and what the candidates would take.
    pub placed: Placed,
    /// One line for each heavy node on a slow device, dearest first.
    pub warnings: Vec<String>,
}

/// A node that takes at least so many thousandths of all computing time is heavy.
const HEAVY_PERMILLE: u64 = 20;

/// Places.
pub fn place(tasks: &Tasks, target: &Target, wish: &Wish) -> Result<Decided, CompileError> {
    let error = |m: String| CompileError::new(Stage::Plan, m);
    let shape = Shape::new(&tasks.graph, target).map_err(|e| error(e.to_string()))?;
    let placed = match &wish.saved {
        None => optimal::place(&tasks.graph, &shape, target, wish.policy, wish.effort),
        Some(saved) => {
            let placement = text::load(&tasks.graph, &shape, target, saved);
            let placement =
                placement.map_err(|e| CompileError::new(Stage::Options, format!("the saved placement: {e}")))?;
            let list = insert(&tasks.graph, &shape, target, &placement);
            let planned = schedule::best(&list, target, wish.effort.shards);
            let candidates = vec![(Candidate::Search, planned.timeline.end_ns)];
            Placed { placement, list, planned, from: Candidate::Search, candidates }
        }
    };
    let warnings = fallbacks(&tasks.graph, &shape, target, &placed.placement, HEAVY_PERMILLE);
    let warning = |f: &crate::plan::placement::fallback::Fallback| {
        let name = &tasks.graph.nodes[f.node.idx()].name;
        let (here, fastest) = (&target.device(f.device).name, &target.device(f.fastest).name);
        let us = |ns: u64| ns.div_ceil(1000);
        let decline = tasks.declines[f.node.idx()][f.fastest.idx()].as_ref();
        let why = decline.map_or_else(|| "it pays nowhere better".to_owned(), ToString::to_string);
        format!(
            "node \"{name}\" stays on {here} ({} us; {} us on {fastest}) and costs {} us with its crossings: {why}",
            us(f.ns),
            us(f.fastest_ns),
            us(f.cost_ns())
        )
    };
    // A node that is better off where it is warns nobody.
    let warnings = warnings.iter().filter(|f| f.unsupported || f.cost_ns() > 0).map(warning).collect();
    Ok(Decided { placed, warnings })
}
