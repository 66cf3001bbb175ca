//! Plain directed acyclic graphs: successors and predecessors without repeats, and a topological order.
//!
//! In: a number of vertices and edges. Out: compressed adjacency both ways. Everything here is O(V+E).
//! Invariant: a [`Dag`] has no cycle, no loop and no repeated edge; its order is the given one where that is topological
//! already, so that plans follow the model.

/// Compressed rows of `u32`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Rows {
    start: Vec<u32>,
    item: Vec<u32>,
}

impl Rows {
    /// Rows from pairs `(row, item)`, in the pairs' order, repeats kept.
    fn from_pairs(n: usize, pairs: impl Iterator<Item = (u32, u32)> + Clone) -> Rows {
        let mut start = vec![0u32; n + 1];
        for (row, _) in pairs.clone() {
            start[row as usize + 1] += 1;
        }
        for row in 0..n {
            start[row + 1] += start[row];
        }
        let mut next = start.clone();
        let mut item = vec![0; start[n] as usize];
        for (row, it) in pairs {
            item[next[row as usize] as usize] = it;
            next[row as usize] += 1;
        }
        Rows { start, item }
    }

    fn row(&self, row: usize) -> &[u32] {
        &self.item[self.start[row] as usize..self.start[row + 1] as usize]
    }
}

/// A directed acyclic graph.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Dag {
    succs: Rows,
    preds: Rows,
    order: Vec<u32>,
}

/// The edges form a cycle; the vertices on it or behind it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cycle(pub Vec<usize>);

impl Dag {
    /// A graph of `n` vertices. Loops are ignored, repeated edges count once.
    pub fn new(n: usize, edges: impl IntoIterator<Item = (usize, usize)>) -> Result<Dag, Cycle> {
        let mut pairs: Vec<(u32, u32)> = Vec::new();
        pairs.extend(edges.into_iter().filter(|(a, b)| a != b).map(|(a, b)| (a as u32, b as u32)));
        // Two counting passes sort the edges by (source, target) in linear time.
        let by_target = Rows::from_pairs(n, pairs.iter().map(|&(a, b)| (b, a)));
        let flipped = |rows: &Rows| -> Vec<(u32, u32)> {
            let mut all = Vec::with_capacity(rows.item.len());
            (0..n as u32).for_each(|row| all.extend(rows.row(row as usize).iter().map(|&it| (it, row))));
            all
        };
        let by_source = Rows::from_pairs(n, flipped(&by_target).into_iter());
        let mut pairs: Vec<(u32, u32)> = Vec::with_capacity(by_source.item.len());
        for a in 0..n as u32 {
            pairs.extend(by_source.row(a as usize).iter().map(|&b| (a, b)));
        }
        pairs.dedup();
        let succs = Rows::from_pairs(n, pairs.iter().copied());
        let preds = Rows::from_pairs(n, pairs.iter().map(|&(a, b)| (b, a)));
        let order = order(n, &succs, &preds)?;
        Ok(Dag { succs, preds, order })
    }

    /// Number of vertices.
    pub fn len(&self) -> usize {
        self.order.len()
    }

    /// Whether there are no vertices.
    pub fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    /// Successors, ascending.
    pub fn succs(&self, v: usize) -> &[u32] {
        self.succs.row(v)
    }

    /// Predecessors, ascending.
    pub fn preds(&self, v: usize) -> &[u32] {
        self.preds.row(v)
    }

    /// A topological order: ascending numbers where they are one.
    pub fn order(&self) -> impl DoubleEndedIterator<Item = usize> + ExactSizeIterator + '_ {
        self.order.iter().map(|&v| v as usize)
    }

    /// The graph whose vertices are groups of this one's: `group[v]` below `n_groups`.
    pub fn contract(&self, group: &[usize], n_groups: usize) -> Result<Dag, Cycle> {
        let edges = (0..self.len()).flat_map(|v| self.succs(v).iter().map(move |&w| (group[v], group[w as usize])));
        Dag::new(n_groups, edges)
    }

    /// Level of each vertex: 0 without predecessors, else one more than the highest predecessor (Kahn, level by level).
    pub fn levels(&self) -> Vec<u32> {
        let mut level = vec![0; self.len()];
        for v in self.order() {
            level[v] = self.preds(v).iter().map(|&p| level[p as usize] + 1).max().unwrap_or(0);
        }
        level
    }
}

fn order(n: usize, succs: &Rows, preds: &Rows) -> Result<Vec<u32>, Cycle> {
    if (0..n).all(|v| preds.row(v).last().is_none_or(|&p| (p as usize) < v)) {
        return Ok((0..n as u32).collect());
    }
    let mut left: Vec<u32> = (0..n).map(|v| preds.row(v).len() as u32).collect();
    let mut order: Vec<u32> = (0..n as u32).filter(|&v| left[v as usize] == 0).collect();
    let mut at = 0;
    while at < order.len() {
        for &w in succs.row(order[at] as usize) {
            left[w as usize] -= 1;
            if left[w as usize] == 0 {
                order.push(w);
            }
        }
        at += 1;
    }
    if order.len() < n {
        return Err(Cycle((0..n).filter(|&v| left[v] > 0).collect()));
    }
    Ok(order)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adjacency_order_and_levels() {
        let dag = Dag::new(5, [(3, 1), (1, 0), (3, 1), (4, 4), (3, 0), (0, 2)]).unwrap();
        assert_eq!(dag.succs(3), [0, 1]);
        assert_eq!(dag.preds(0), [1, 3]);
        assert_eq!(dag.order().collect::<Vec<_>>(), [3, 4, 1, 0, 2]);
        assert_eq!(dag.levels(), [2, 1, 3, 0, 0]);
        let small = dag.contract(&[0, 0, 1, 0, 1], 2).unwrap();
        assert_eq!(small.succs(0), [1]);
        assert_eq!(dag.contract(&[0, 1, 1, 0, 1], 2).unwrap_err(), Cycle(vec![0, 1]));
    }

    #[test]
    fn given_order_is_kept_and_cycles_are_named() {
        let dag = Dag::new(4, [(0, 3), (1, 2)]).unwrap();
        assert_eq!(dag.order().collect::<Vec<_>>(), [0, 1, 2, 3]);
        assert_eq!(Dag::new(4, [(1, 2), (2, 1), (2, 3)]).unwrap_err(), Cycle(vec![1, 2, 3]));
        assert!(Dag::new(0, []).unwrap().is_empty());
    }
}
