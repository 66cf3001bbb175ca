//! Cliques of a conflict graph: the heaviest one found (a lower bound) and a cover of all edges (the search's sections).
//!
//! Members of a clique are pairwise disjoint in memory, so the weight of any clique is a valid lower bound. Two sources:
//! maximum cardinality search (Tarjan and Yannakakis 1984), which lists all maximal cliques of a chordal graph (an
//! interval graph is one) in linear time and good ones of a nearly chordal graph; and greedy growth from every vertex or
//! edge, under a budget of steps. The same graph always gives the same answer.

use super::csr::Csr;

/// Neighbours looked at while growing cliques, at most, for one call.
const MAX_STEPS: usize = 50_000_000;

/// The weight and the members (ascending) of the heaviest clique found, the caller's `given` ones included.
pub(super) fn heaviest(neighbours: &Csr, given: &Csr, sizes: &[u64]) -> (u64, Vec<usize>) {
    let weigh = |clique: &[u32]| clique.iter().map(|&v| sizes[v as usize]).sum::<u64>();
    let mut steps = 0;
    let (found, chordal) = by_elimination(neighbours, sizes, &mut steps);
    let mut best: (u64, Vec<u32>) = (0, Vec::new());
    for clique in [given, &found].into_iter().flat_map(|table| (0..table.n_rows()).map(|row| table.row(row))) {
        let weight = weigh(clique);
        if weight > best.0 {
            best = (weight, clique.to_vec());
        }
    }
    let mut starts: Vec<u32> = (0..neighbours.n_rows() as u32).filter(|&v| sizes[v as usize] > 0).collect();
    let around = |v: u32| sizes[v as usize] + weigh(neighbours.row(v as usize));
    starts.sort_by_cached_key(|&v| (std::cmp::Reverse(around(v)), v));
    for v in starts {
        // The rest is lighter: a clique with v weighs at most v and all its neighbours.
        if chordal || steps > MAX_STEPS || around(v) <= best.0 {
            break;
        }
        for by_reach in [false, true] {
            let clique = grow(neighbours, sizes, vec![v], None, by_reach, &mut steps);
            let weight = weigh(&clique);
            if weight > best.0 {
                best = (weight, clique);
            }
        }
    }
    best.1.sort_unstable();
    (best.0, best.1.into_iter().map(|v| v as usize).collect())
}

/// In how many of the cliques of [`by_elimination`] each vertex is: what a lifetime is to intervals.
pub(super) fn widths(neighbours: &Csr, sizes: &[u64]) -> Vec<u64> {
    let (found, _) = by_elimination(neighbours, sizes, &mut 0);
    let mut widths = vec![0; neighbours.n_rows()];
    (0..found.n_rows()).flat_map(|row| found.row(row)).for_each(|&v| widths[v as usize] += 1);
    widths
}

/// Cliques such that every edge lies in one of them, as long as the step budget lasts; the given ones come first.
pub(super) fn cover(neighbours: &Csr, given: &Csr, sizes: &[u64]) -> Csr {
    let n = neighbours.n_rows();
    let mut steps = 0;
    let (found, chordal) = by_elimination(neighbours, sizes, &mut steps);
    if chordal {
        return found;
    }
    let mut covered: Vec<Vec<bool>> = (0..n).map(|v| vec![false; neighbours.row(v).len()]).collect();
    let mark = |clique: &[u32], covered: &mut Vec<Vec<bool>>| {
        for &a in clique {
            for &b in clique {
                if let Ok(at) = neighbours.row(a as usize).binary_search(&b) {
                    covered[a as usize][at] = true;
                }
            }
        }
    };
    let mut cliques = Csr::new();
    for clique in [given, &found].into_iter().flat_map(|table| (0..table.n_rows()).map(|row| table.row(row))) {
        mark(clique, &mut covered);
        cliques.push_row(clique.iter().copied());
    }
    for a in 0..n {
        for at in 0..neighbours.row(a).len() {
            let b = neighbours.row(a)[at];
            if (b as usize) < a || covered[a][at] {
                continue;
            }
            if steps > MAX_STEPS {
                return cliques;
            }
            let mut clique = grow(neighbours, sizes, vec![a as u32, b], None, false, &mut steps);
            clique.sort_unstable();
            mark(&clique, &mut covered);
            steps += clique.len() * clique.len();
            cliques.push_row(clique.into_iter());
        }
    }
    cliques
}

/// Cliques along a maximum cardinality search: each vertex with those of its neighbours that came before it, or, where
/// those are no clique, with a heavy clique among them. True if they always were: then the graph is chordal, and these
/// are all its maximal cliques.
fn by_elimination(neighbours: &Csr, sizes: &[u64], steps: &mut usize) -> (Csr, bool) {
    let order = cardinality_order(neighbours);
    let mut turn = vec![0; neighbours.n_rows()];
    order.iter().enumerate().for_each(|(at, &v)| turn[v as usize] = at);
    let before = |v: u32| {
        neighbours
            .row(v as usize)
            .iter()
            .copied()
            .filter(|&u| turn[u as usize] < turn[v as usize])
            .collect::<Vec<u32>>()
    };
    // Whether a vertex and its neighbours before it are a clique.
    let mut simple = vec![true; neighbours.n_rows()];
    let mut cliques: Vec<Vec<u32>> = Vec::new();
    for &v in order.iter().filter(|&&v| !neighbours.row(v as usize).is_empty()) {
        let earlier = before(v);
        *steps += 2 * earlier.len();
        let last = earlier.iter().copied().max_by_key(|&u| turn[u as usize]);
        let mut clique = earlier.clone();
        if let Some(last) = last {
            let row = neighbours.row(last as usize);
            let inside = |&u: &u32| u == last || row.binary_search(&u).is_ok();
            simple[v as usize] = simple[last as usize] && earlier.iter().all(inside);
            if !simple[v as usize] {
                clique = if *steps > MAX_STEPS {
                    vec![last]
                } else {
                    grow(neighbours, sizes, vec![v], Some(&earlier), false, steps)
                };
                clique.retain(|&u| u != v);
            }
        }
        clique.push(v);
        // In the chordal case a clique is maximal unless the next vertex extends it.
        if cliques
            .last()
            .is_some_and(|previous| previous.len() < clique.len() && previous.iter().all(|u| clique.contains(u)))
        {
            cliques.pop();
        }
        cliques.push(clique);
    }
    let mut table = Csr::new();
    for mut clique in cliques {
        clique.sort_unstable();
        table.push_row(clique.into_iter());
    }
    (table, simple.iter().all(|&simple| simple))
}

/// All vertices, always one with the most neighbours chosen before; ties go to the one that reached that count last.
fn cardinality_order(neighbours: &Csr) -> Vec<u32> {
    let n = neighbours.n_rows();
    let mut count = vec![0usize; n];
    let mut chosen = vec![false; n];
    let mut buckets: Vec<Vec<u32>> = vec![(0..n as u32).rev().collect()];
    let mut order = Vec::with_capacity(n);
    while let Some(bucket) = buckets.last_mut() {
        let Some(v) = bucket.pop() else {
            buckets.pop();
            continue;
        };
        // Stale entries: chosen already, or moved to a higher bucket since.
        if std::mem::replace(&mut chosen[v as usize], true) {
            continue;
        }
        order.push(v);
        for &u in neighbours.row(v as usize).iter().filter(|&&u| !chosen[u as usize]) {
            count[u as usize] += 1;
            let at = count[u as usize];
            if buckets.len() <= at {
                buckets.resize(at + 1, Vec::new());
            }
            buckets[at].push(u);
        }
    }
    order
}

/// Grows a clique to a maximal one (within `among`, if given): always by the heaviest common neighbour, or (`by_reach`) by the one that leaves
/// the most weight to choose from.
fn grow(
    neighbours: &Csr,
    sizes: &[u64],
    mut clique: Vec<u32>,
    among: Option<&[u32]>,
    by_reach: bool,
    steps: &mut usize,
) -> Vec<u32> {
    let mut common: Vec<u32> = among.unwrap_or(neighbours.row(clique[0] as usize)).to_vec();
    for &v in &clique[1..] {
        common = intersection(&common, neighbours.row(v as usize), steps);
    }
    while !common.is_empty() {
        let key = |&v: &u32, steps: &mut usize| {
            let reach = if by_reach && common.len() <= 256 {
                let left = intersection(&common, neighbours.row(v as usize), steps);
                left.iter().map(|&u| sizes[u as usize]).sum::<u64>()
            } else {
                0
            };
            (sizes[v as usize] + reach, std::cmp::Reverse(v))
        };
        let keyed = common.iter().map(|v| (key(v, steps), *v)).max();
        let Some((_, v)) = keyed else { break };
        clique.push(v);
        common = intersection(&common, neighbours.row(v as usize), steps);
    }
    clique
}

fn intersection(a: &[u32], b: &[u32], steps: &mut usize) -> Vec<u32> {
    *steps += a.len() + b.len();
    let mut b = b.iter().peekable();
    a.iter()
        .copied()
        .filter(|v| {
            while b.next_if(|&other| other < v).is_some() {}
            b.peek() == Some(&v)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn graph(n: usize, edges: &[(u32, u32)]) -> Csr {
        Csr::from_pairs(n, edges.iter().flat_map(|&(a, b)| [(a, b), (b, a)]).collect::<Vec<_>>().into_iter())
    }

    #[test]
    fn chordal_graphs_are_listed_exactly() {
        // Two triangles that share an edge, and a pendant vertex: three maximal cliques.
        let edges = [(0, 1), (1, 2), (0, 2), (1, 3), (2, 3), (3, 4)];
        let lists = graph(6, &edges);
        let (found, chordal) = by_elimination(&lists, &[1; 6], &mut 0);
        let mut rows: Vec<&[u32]> = (0..found.n_rows()).map(|row| found.row(row)).collect();
        rows.sort_unstable();
        assert_eq!((rows, chordal), (vec![&[0, 1, 2][..], &[1, 2, 3], &[3, 4]], true));
        assert_eq!(heaviest(&lists, &Csr::new(), &[1, 5, 5, 9, 11, 50]), (20, vec![3, 4]));
    }

    #[test]
    fn other_graphs_are_covered() {
        // A square is not chordal: each edge is a maximal clique.
        let lists = graph(4, &[(0, 1), (1, 2), (2, 3), (0, 3)]);
        let cliques = cover(&lists, &Csr::new(), &[1; 4]);
        let rows: std::collections::BTreeSet<&[u32]> = (0..cliques.n_rows()).map(|row| cliques.row(row)).collect();
        assert!([[0, 1], [1, 2], [2, 3], [0, 3]].iter().all(|edge| rows.contains(&edge[..])));
        assert_eq!(heaviest(&lists, &Csr::new(), &[1, 2, 3, 4]), (7, vec![2, 3]));
    }
}
