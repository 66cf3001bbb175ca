//! Ensembles of decision trees.
//!
//! In: rows of features; the trees as arrays. `structure` holds the roots, then five numbers per node (feature, rule, whether
//! NaN goes the true way, true child, false child), then the start of every leaf's results, then the results' targets.
//! A child below zero is leaf `!child`. Out: one value per row and target.
//! A child that does not exist, or a walk longer than there are nodes, is a fault.

use crate::{Fault, Isa, kernel, param_enum};

param_enum! {
    /// How the trees' values are joined.
    pub enum TreeAggregate {
        /// Their sum.
        Sum,
        /// Their sum over the number of trees.
        Average,
        /// The least.
        Min,
        /// The greatest.
        Max,
    }
}

kernel! {
    /// `y[row, target]` = the joined values of the leaves that the row reaches, plus `base`. A target that no leaf has is 0.
    pub struct TreeScores {
        operands { read x: X, read structure: I, read splits: X, read weights: X, opt base: X, write y: X }
        nums { rows, features, targets, n_roots, n_nodes, n_leaves }
        params { aggregate: TreeAggregate }
    }
    entries { tree_scores_f64 { X = f64, I = i32 } }
    body = tree_scores;
}

/// Rules by number: ≤, <, ≥, >, =, ≠.
fn holds(rule: i32, x: f64, split: f64) -> bool {
    match rule {
        0 => x <= split,
        1 => x < split,
        2 => x >= split,
        3 => x > split,
        4 => x == split,
        _ => x != split,
    }
}

/// The arrays of [`TreeScores`], taken apart.
struct Trees<'a> {
    roots: &'a [i32],
    nodes: &'a [[i32; 5]],
    starts: &'a [i32],
    targets: &'a [i32],
    splits: &'a [f64],
}

impl Trees<'_> {
    /// The leaf that a row reaches from a root.
    fn leaf(&self, root: i32, x: &[f64]) -> Result<usize, Fault> {
        let mut at = root;
        for _ in 0..=self.nodes.len() {
            let Ok(i) = usize::try_from(at) else { return Ok(!at as usize) };
            let [feature, rule, missing, yes, no] = *self.nodes.get(i).ok_or(Fault::IndexOutOfRange)?;
            let feature = usize::try_from(feature).ok().and_then(|f| x.get(f)).ok_or(Fault::IndexOutOfRange)?;
            let taken = holds(rule, *feature, self.splits[i]) || (missing != 0 && feature.is_nan());
            at = if taken { yes } else { no };
        }
        Err(Fault::IndexOutOfRange)
    }
}

fn tree_scores(
    _: Isa,
    d: &TreeScores,
    x: &[f64],
    structure: &[i32],
    splits: &[f64],
    weights: &[f64],
    base: Option<&[f64]>,
    y: &mut [f64],
) -> Result<(), Fault> {
    let lens = d.n_nodes.checked_mul(5).and_then(|n| n.checked_add(d.n_roots)).and_then(|n| n.checked_add(d.n_leaves));
    let ok = d.rows.checked_mul(d.features) == Some(x.len())
        && d.rows.checked_mul(d.targets) == Some(y.len())
        && lens.and_then(|n| n.checked_add(1)).and_then(|n| n.checked_add(weights.len())) == Some(structure.len())
        && splits.len() == d.n_nodes
        && base.is_none_or(|b| b.len() == d.targets);
    if !ok {
        return Err(Fault::Descriptor);
    }
    let (roots, rest) = structure.split_at(d.n_roots);
    let (nodes, rest) = rest.split_at(5 * d.n_nodes);
    let (starts, targets) = rest.split_at(d.n_leaves + 1);
    let trees = Trees { roots, nodes: nodes.as_chunks().0, starts, targets, splits };
    for row in 0..d.rows {
        let y = &mut y[row * d.targets..][..d.targets];
        score(d, &trees, weights, &x[row * d.features..][..d.features], y)?;
        if let Some(base) = base {
            y.iter_mut().zip(base).for_each(|(y, b)| *y += b);
        }
    }
    Ok(())
}

/// One row.
fn score(d: &TreeScores, trees: &Trees<'_>, weights: &[f64], x: &[f64], y: &mut [f64]) -> Result<(), Fault> {
    // NaN marks a target that no leaf has had yet.
    y.fill(f64::NAN);
    for &root in trees.roots {
        let leaf = trees.leaf(root, x)?;
        let range = trees.starts.get(leaf..).and_then(|s| s.get(..2)).ok_or(Fault::IndexOutOfRange)?;
        for i in range[0]..range[1] {
            let i = usize::try_from(i).ok().filter(|&i| i < weights.len()).ok_or(Fault::IndexOutOfRange)?;
            let target = usize::try_from(trees.targets[i]).map_err(|_| Fault::IndexOutOfRange)?;
            let (y, w) = (y.get_mut(target).ok_or(Fault::IndexOutOfRange)?, weights[i]);
            *y = match d.aggregate {
                _ if y.is_nan() => w,
                TreeAggregate::Sum | TreeAggregate::Average => *y + w,
                TreeAggregate::Min => y.min(w),
                TreeAggregate::Max => y.max(w),
            };
        }
    }
    for y in y {
        *y = if y.is_nan() { 0.0 } else { *y };
        if d.aggregate == TreeAggregate::Average {
            *y /= trees.roots.len() as f64;
        }
    }
    Ok(())
}
