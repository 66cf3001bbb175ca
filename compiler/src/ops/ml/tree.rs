//! TreeEnsemble, TreeEnsembleRegressor, TreeEnsembleClassifier.

use super::super::view::{NodeView, Result, wrong};
use super::super::{InferCx, tensor};
use super::{FEATURES, f64_weights, give_scores, i32_weights, labels, matrix, numbers, post_transform, set_classes};
use super::{tensor_numbers, x64};
use crate::ir::Dim;
use crate::lower::LowerCx;
use kiln_kernels::{Dtype, Operand, PostTransform, ScoreLabels, SecondScore, TreeAggregate, TreeScores};
use std::collections::{HashMap, HashSet};

/// Trees as the kernel reads them.
#[derive(Default)]
struct Trees {
    roots: Vec<i32>,
    nodes: Vec<[i32; 5]>,
    splits: Vec<f64>,
    starts: Vec<i32>,
    targets: Vec<i32>,
    weights: Vec<f64>,
}

fn index(i: usize) -> Result<i32> {
    i32::try_from(i).map_err(|_| wrong("too many tree nodes"))
}

impl Trees {
    /// Adds a leaf; returns it as a child.
    fn leaf(&mut self, results: impl Iterator<Item = (i64, f64)>) -> Result<i32> {
        if self.starts.is_empty() {
            self.starts.push(0);
        }
        for (target, weight) in results {
            self.targets.push(i32::try_from(target).map_err(|_| wrong(format!("target {target}")))?);
            self.weights.push(weight);
        }
        let leaf = self.starts.len() - 1;
        self.starts.push(index(self.targets.len())?);
        Ok(!index(leaf)?)
    }

    fn lower(
        self,
        cx: &mut LowerCx<'_>,
        n_targets: usize,
        base: Option<Vec<f64>>,
        aggregate: TreeAggregate,
    ) -> Result<(Operand<Dim>, Dim)> {
        let (rows, features) = matrix(cx.ty(0)?)?;
        let x = x64(cx, 0)?;
        let (n_roots, n_nodes) = (self.roots.len(), self.nodes.len());
        let starts = if self.starts.is_empty() { vec![0] } else { self.starts };
        let n_leaves = starts.len() - 1;
        let mut structure = self.roots;
        structure.extend(self.nodes.into_iter().flatten());
        structure.extend(starts);
        structure.extend(self.targets);
        let y = cx.scratch(rows.clone() * Dim::from(n_targets) * Dim::Const(8));
        let d = TreeScores {
            x,
            structure: i32_weights(cx, &structure),
            splits: f64_weights(cx, &self.splits),
            weights: f64_weights(cx, &self.weights),
            base: base.map(|b| f64_weights(cx, &b)),
            y: y.clone(),
            rows: rows.clone(),
            features,
            targets: Dim::from(n_targets),
            n_roots: Dim::from(n_roots),
            n_nodes: Dim::from(n_nodes),
            n_leaves: Dim::from(n_leaves),
            aggregate,
        };
        cx.call(&[Dtype::F64, Dtype::I32], d)?;
        Ok((y, rows))
    }
}

// TreeEnsembleRegressor, TreeEnsembleClassifier: nodes by tree and number

/// The trees of the two older operators; `prefix` names their results' attributes, `ids` the targets'.
fn trees_by_number(cx: &NodeView<'_>, prefix: &str, ids: &str) -> Result<Trees> {
    let ints = |name: &str| cx.opt_ints(name)?.ok_or_else(|| wrong("is missing").at_attribute(name));
    let (tree_ids, node_ids) = (ints("nodes_treeids")?, ints("nodes_nodeids")?);
    let features = ints("nodes_featureids")?;
    let (yes, no) = (ints("nodes_truenodeids")?, ints("nodes_falsenodeids")?);
    let modes = cx.opt_texts("nodes_modes")?.unwrap_or_default();
    let values = numbers(cx, "nodes_values")?.unwrap_or_default();
    let missing = cx.opt_ints("nodes_missing_value_tracks_true")?.unwrap_or_default();
    let n = tree_ids.len();
    if [node_ids.len(), features.len(), yes.len(), no.len(), modes.len(), values.len()].iter().any(|&l| l != n) {
        return Err(wrong("the lists of the trees' nodes differ in length"));
    }
    let name = |part: &str| format!("{prefix}_{part}");
    let (leaf_trees, leaf_nodes, leaf_targets) = (ints(&name("treeids"))?, ints(&name("nodeids"))?, ints(ids)?);
    let weights = numbers(cx, &name("weights"))?.unwrap_or_default();
    if [leaf_nodes.len(), leaf_targets.len(), weights.len()].iter().any(|&l| l != leaf_trees.len()) {
        return Err(wrong("the lists of the leaves' results differ in length"));
    }
    let mut results: HashMap<(i64, i64), Vec<(i64, f64)>> = HashMap::new();
    for (i, &weight) in weights.iter().enumerate() {
        results.entry((leaf_trees[i], leaf_nodes[i])).or_default().push((leaf_targets[i], weight));
    }
    let mut trees = Trees::default();
    // Every node's child number: its own among the inner nodes, or its leaf's.
    let mut child: HashMap<(i64, i64), i32> = HashMap::new();
    let mut inner = Vec::new();
    let mut roots: Vec<(i64, (i64, i64))> = Vec::new();
    let mut seen = HashSet::new();
    for i in 0..n {
        let key = (tree_ids[i], node_ids[i]);
        if seen.insert(key.0) {
            roots.push((key.0, key));
        }
        let at = if modes[i] == "LEAF" {
            trees.leaf(results.remove(&key).unwrap_or_default().into_iter())?
        } else {
            inner.push(i);
            index(inner.len() - 1)?
        };
        child.insert(key, at);
    }
    let find = |tree: i64, node: i64| {
        child.get(&(tree, node)).copied().ok_or_else(|| wrong(format!("tree {tree} has no node {node}")))
    };
    for i in inner {
        let rule = match modes[i].as_str() {
            "BRANCH_LEQ" => 0,
            "BRANCH_LT" => 1,
            "BRANCH_GTE" => 2,
            "BRANCH_GT" => 3,
            "BRANCH_EQ" => 4,
            "BRANCH_NEQ" => 5,
            other => return Err(wrong(format!("unknown rule \"{other}\"")).at_attribute("nodes_modes")),
        };
        let feature = i32::try_from(features[i]).map_err(|_| wrong(format!("feature {}", features[i])))?;
        let tracks = i32::from(missing.get(i).is_some_and(|&m| m != 0));
        trees.nodes.push([feature, rule, tracks, find(tree_ids[i], yes[i])?, find(tree_ids[i], no[i])?]);
        trees.splits.push(values[i]);
    }
    roots.sort_unstable();
    trees.roots = roots.into_iter().map(|(_, key)| find(key.0, key.1)).collect::<Result<_>>()?;
    Ok(trees)
}

fn n_targets(cx: &NodeView<'_>) -> Result<usize> {
    let n = cx.int("n_targets", 1)?;
    usize::try_from(n).ok().filter(|&n| n > 0).ok_or_else(|| wrong(format!("{n} targets")).at_attribute("n_targets"))
}

pub(super) fn infer_regressor(cx: &mut InferCx<'_>) -> Result<()> {
    cx.expect_dtype(0, &FEATURES)?;
    let (rows, _) = matrix(cx.ty(0)?)?;
    let n = n_targets(cx)?;
    trees_by_number(cx, "target", "target_ids")?;
    post_transform(cx)?;
    cx.set(0, tensor(Dtype::F32, vec![rows, Dim::from(n)]));
    Ok(())
}

/// Base values for `n` targets.
fn base(cx: &NodeView<'_>, n: usize) -> Result<Option<Vec<f64>>> {
    match numbers(cx, "base_values")? {
        Some(b) if b.is_empty() => Ok(None),
        Some(b) if b.len() == n => Ok(Some(b)),
        Some(b) => Err(wrong(format!("{} values for {n} targets", b.len())).at_attribute("base_values")),
        None => Ok(None),
    }
}

pub(super) fn lower_regressor(cx: &mut LowerCx<'_>) -> Result<()> {
    let n = n_targets(cx)?;
    let aggregate = match cx.text("aggregate_function", "SUM")? {
        "SUM" => TreeAggregate::Sum,
        "AVERAGE" => TreeAggregate::Average,
        "MIN" => TreeAggregate::Min,
        "MAX" => TreeAggregate::Max,
        other => return Err(wrong(format!("unknown function \"{other}\"")).at_attribute("aggregate_function")),
    };
    let base = base(cx, n)?;
    let trees = trees_by_number(cx, "target", "target_ids")?;
    let (y, rows) = trees.lower(cx, n, base, aggregate)?;
    let post = post_transform(cx)?;
    give_scores(cx, 0, y, (rows, n), post, SecondScore::None)
}

/// How scores become labels.
struct Classes {
    labels: Vec<i64>,
    trees: Trees,
    /// All results belong to one of two classes: a single raw score.
    binary: bool,
    positive: bool,
}

fn classes(cx: &NodeView<'_>) -> Result<Classes> {
    let mut labels = labels(cx, "classlabels_int64s", "classlabels_strings")?.to_vec();
    let mut trees = trees_by_number(cx, "class", "class_ids")?;
    let one = trees.targets.windows(2).all(|w| w[0] == w[1]) && !trees.targets.is_empty();
    let binary = labels.len() <= 2 && one;
    if binary {
        trees.targets.fill(0);
        if let [only] = labels[..] {
            labels = vec![0, only];
        }
    }
    let positive = trees.weights.iter().all(|&w| w >= 0.0);
    Ok(Classes { labels, trees, binary, positive })
}

pub(super) fn infer_classifier(cx: &mut InferCx<'_>) -> Result<()> {
    let c = classes(cx)?;
    let single = c.binary && post_transform(cx)? == PostTransform::Probit;
    set_classes(cx, if single { 1 } else { c.labels.len() })
}

pub(super) fn lower_classifier(cx: &mut LowerCx<'_>) -> Result<()> {
    let c = classes(cx)?;
    let n = if c.binary { 1 } else { c.labels.len() };
    let base = match numbers(cx, "base_values")? {
        Some(b) if c.binary && b.len() == 2 => Some(vec![b[1]]),
        _ => base(cx, n)?,
    };
    let positive = c.positive && base.as_ref().is_none_or(|b| b.iter().all(|&b| b >= 0.0));
    let (y, rows) = c.trees.lower(cx, n, base, TreeAggregate::Sum)?;
    let post = post_transform(cx)?;
    if cx.wants(0) {
        let threshold = if positive { 0.5 } else { 0.0 };
        let (labels, out) = (cx.i64_weights(&c.labels), cx.y(0)?);
        let d = ScoreLabels { x: y.clone(), labels, y: out, rows: rows.clone(), n: Dim::from(n), threshold };
        cx.call(&[Dtype::F64, Dtype::I64], d)?;
    }
    let second = match (c.binary, post, positive) {
        (false, ..) | (_, PostTransform::Probit, _) => SecondScore::None,
        (_, _, true) => SecondScore::Complement,
        _ => SecondScore::Negative,
    };
    // The complement of a score is taken as it is: only negative ones go through the transform.
    let post = if second == SecondScore::Complement { PostTransform::None } else { post };
    give_scores(cx, 1, y, (rows, n), post, second)
}

// TreeEnsemble: nodes by index, leaves apart

fn trees(cx: &NodeView<'_>) -> Result<Trees> {
    let ints = |name: &str| cx.opt_ints(name)?.ok_or_else(|| wrong("is missing").at_attribute(name));
    let values = |name: &str| match cx.opt_tensor(name)? {
        Some(t) => tensor_numbers(t).map_err(|e| e.at_attribute(name)),
        None => Ok(Vec::new()),
    };
    let (features, splits, modes) = (ints("nodes_featureids")?, values("nodes_splits")?, values("nodes_modes")?);
    let (yes, no) = (ints("nodes_truenodeids")?, ints("nodes_falsenodeids")?);
    let (yes_leaf, no_leaf) = (ints("nodes_trueleafs")?, ints("nodes_falseleafs")?);
    let missing = cx.opt_ints("nodes_missing_value_tracks_true")?.unwrap_or_default();
    let n = features.len();
    if [splits.len(), modes.len(), yes.len(), no.len(), yes_leaf.len(), no_leaf.len()].iter().any(|&l| l != n) {
        return Err(wrong("the lists of the nodes differ in length"));
    }
    let (targets, weights) = (ints("leaf_targetids")?, values("leaf_weights")?);
    if targets.len() != weights.len() {
        return Err(wrong("the lists of the leaves differ in length"));
    }
    let mut t = Trees::default();
    for (&target, &weight) in targets.iter().zip(&weights) {
        t.leaf(std::iter::once((target, weight)))?;
    }
    let child = |id: i64, is_leaf: i64| {
        let limit = if is_leaf != 0 { targets.len() } else { n };
        let id = usize::try_from(id).ok().filter(|&i| i < limit).ok_or_else(|| wrong(format!("no node {id}")))?;
        Ok::<_, crate::error::CompileError>(if is_leaf != 0 { !index(id)? } else { index(id)? })
    };
    let members = values("membership_values")?;
    let mut sets = members.split(|v| v.is_nan());
    // Members of a set are compared one after the other, by nodes after the given ones.
    let mut more: Vec<([i32; 5], f64)> = Vec::new();
    for i in 0..n {
        let feature = i32::try_from(features[i]).map_err(|_| wrong(format!("feature {}", features[i])))?;
        let tracks = i32::from(missing.get(i).is_some_and(|&m| m != 0));
        let (yes, no) = (child(yes[i], yes_leaf[i])?, child(no[i], no_leaf[i])?);
        let mode = modes[i];
        if mode != 6.0 {
            if !(0.0..6.0).contains(&mode) {
                return Err(wrong(format!("unknown rule {mode}")).at_attribute("nodes_modes"));
            }
            t.nodes.push([feature, mode as i32, tracks, yes, no]);
            t.splits.push(splits[i]);
            continue;
        }
        let set = sets.next().ok_or_else(|| wrong("too few sets").at_attribute("membership_values"))?;
        // Nothing equals NaN: the rule of an empty set.
        let first = set.first().copied().unwrap_or(f64::NAN);
        let next = |k: usize| if k + 1 < set.len() { index(n + more.len() + k) } else { Ok(no) };
        t.nodes.push([feature, 4, tracks, yes, next(0)?]);
        t.splits.push(first);
        let rest =
            (1..set.len()).map(|k| Ok(([feature, 4, tracks, yes, next(k)?], set[k]))).collect::<Result<Vec<_>>>()?;
        more.extend(rest);
    }
    for (node, split) in more {
        t.nodes.push(node);
        t.splits.push(split);
    }
    t.roots = ints("tree_roots")?.iter().map(|&r| child(r, 0)).collect::<Result<_>>()?;
    Ok(t)
}

pub(super) fn infer(cx: &mut InferCx<'_>) -> Result<()> {
    cx.expect_dtype(0, &[Dtype::F32, Dtype::F64, Dtype::F16])?;
    let (rows, _) = matrix(cx.ty(0)?)?;
    let n = n_targets(cx)?;
    trees(cx)?;
    let dtype = cx.dtype(0)?;
    cx.set(0, tensor(dtype, vec![rows, Dim::from(n)]));
    Ok(())
}

pub(super) fn lower(cx: &mut LowerCx<'_>) -> Result<()> {
    let n = n_targets(cx)?;
    let aggregate = match cx.int("aggregate_function", 1)? {
        0 => TreeAggregate::Average,
        1 => TreeAggregate::Sum,
        2 => TreeAggregate::Min,
        3 => TreeAggregate::Max,
        other => return Err(wrong(format!("unknown function {other}")).at_attribute("aggregate_function")),
    };
    let post = match cx.int("post_transform", 0)? {
        0 => PostTransform::None,
        1 => PostTransform::Softmax,
        2 => PostTransform::Logistic,
        3 => PostTransform::SoftmaxZero,
        4 => PostTransform::Probit,
        other => return Err(wrong(format!("unknown transform {other}")).at_attribute("post_transform")),
    };
    let trees = trees(cx)?;
    let (y, rows) = trees.lower(cx, n, None, aggregate)?;
    give_scores(cx, 0, y, (rows, n), post, SecondScore::None)
}

#[cfg(test)]
mod tests {
    use crate::ir::{Attr, Tensor};
    use crate::ops::testing::{Case, case};

    fn stump(mode: &str, extra: &[(&str, Attr)]) -> Case {
        let mut c = case("ai.onnx.ml", "TreeEnsembleRegressor", 3)
            .input(Tensor::from_f32s(&[3, 2], &[0., 1., 0., 2., 0., f32::NAN]))
            .attr("nodes_treeids", Attr::Ints(vec![0, 0, 0]))
            .attr("nodes_nodeids", Attr::Ints(vec![0, 1, 2]))
            .attr("nodes_featureids", Attr::Ints(vec![1, 0, 0]))
            .attr("nodes_modes", Attr::Strs([mode, "LEAF", "LEAF"].iter().map(|s| s.as_bytes().to_vec()).collect()))
            .attr("nodes_values", Attr::Floats(vec![1.0, 0.0, 0.0]))
            .attr("nodes_truenodeids", Attr::Ints(vec![1, 0, 0]))
            .attr("nodes_falsenodeids", Attr::Ints(vec![2, 0, 0]))
            .attr("target_treeids", Attr::Ints(vec![0, 0]))
            .attr("target_nodeids", Attr::Ints(vec![1, 2]))
            .attr("target_ids", Attr::Ints(vec![0, 0]))
            .attr("target_weights", Attr::Floats(vec![10.0, 20.0]))
            .attr("n_targets", Attr::Int(1));
        for (name, value) in extra {
            c = c.attr(name, value.clone());
        }
        c
    }

    #[test]
    fn rules_and_missing_values() {
        for (mode, want) in [
            ("BRANCH_LEQ", [10., 20., 20.]),
            ("BRANCH_LT", [20., 20., 20.]),
            ("BRANCH_GTE", [10., 10., 20.]),
            ("BRANCH_GT", [20., 10., 20.]),
            ("BRANCH_EQ", [10., 20., 20.]),
            ("BRANCH_NEQ", [20., 10., 10.]),
        ] {
            assert_eq!(stump(mode, &[]).run_f32(), want, "{mode}");
        }
        let tracks = ("nodes_missing_value_tracks_true", Attr::Ints(vec![1, 0, 0]));
        assert_eq!(stump("BRANCH_LEQ", &[tracks]).run_f32(), [10., 20., 10.]);
        let base = ("base_values", Attr::Floats(vec![0.5]));
        assert_eq!(stump("BRANCH_LEQ", &[base]).run_f32(), [10.5, 20.5, 20.5]);
    }

    #[test]
    fn refuses_broken_trees() {
        assert!(stump("BRANCH_LEQ", &[("nodes_falsenodeids", Attr::Ints(vec![7, 0, 0]))]).infer().is_err());
        assert!(stump("BRANCH", &[]).infer().is_err());
        assert!(stump("BRANCH_LEQ", &[("nodes_values", Attr::Floats(vec![1.0]))]).infer().is_err());
        // A node that leads to itself is a fault, not a hang.
        assert!(stump("BRANCH_LEQ", &[("nodes_truenodeids", Attr::Ints(vec![0, 0, 0]))]).run().is_err());
        assert!(stump("BRANCH_LEQ", &[("nodes_featureids", Attr::Ints(vec![5, 0, 0]))]).run().is_err());
    }
}
