//! Cliques of a conflict graph: the heaviest one found (a lower bound) and a cover of all edges (the search's sections).
//!
//! Members of a clique are pairwise disjoint in memory, so the weight of any clique is a valid lower bound. The search
//! for the heaviest is greedy from every vertex, under a budget of steps; the same graph always gives the same answer.

use super::csr::Csr;

/// Neighbours looked at while growing cliques, at most, for one call.
const MAX_STEPS: usize = 50_000_000;

/// The weight and the members (ascending) of the heaviest clique found, the caller's `given` ones included.
pub(super) fn heaviest(neighbours: &Csr, given: &Csr, sizes: &[u64]) -> (u64, Vec<usize>) {
    let weigh = |clique: &[u32]| clique.iter().map(|&v| sizes[v as usize]).sum::<u64>();
    let mut best: (u64, Vec<u32>) = (0, Vec::new());
    for clique in (0..given.n_rows()).map(|row| given.row(row)) {
        let weight = weigh(clique);
        if weight > best.0 {
            best = (weight, clique.to_vec());
        }
    }
    let mut starts: Vec<u32> = (0..neighbours.n_rows() as u32).filter(|&v| sizes[v as usize] > 0).collect();
    let around = |v: u32| sizes[v as usize] + weigh(neighbours.row(v as usize));
    starts.sort_by_cached_key(|&v| (std::cmp::Reverse(around(v)), v));
    let mut steps = 0;
    for v in starts {
        // The rest is lighter: a clique with v weighs at most v and all its neighbours.
        if steps > MAX_STEPS || around(v) <= best.0 {
            break;
        }
        for by_reach in [false, true] {
            let clique = grow(neighbours, sizes, vec![v], by_reach, &mut steps);
            let weight = weigh(&clique);
            if weight > best.0 {
                best = (weight, clique);
            }
        }
    }
    best.1.sort_unstable();
    (best.0, best.1.into_iter().map(|v| v as usize).collect())
}

/// Cliques such that every edge lies in one of them, as long as the step budget lasts; the given ones come first.
pub(super) fn cover(neighbours: &Csr, given: &Csr, sizes: &[u64]) -> Csr {
    let n = neighbours.n_rows();
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
    for row in 0..given.n_rows() {
        mark(given.row(row), &mut covered);
        cliques.push_row(given.row(row).iter().copied());
    }
    let mut steps = 0;
    for a in 0..n {
        for at in 0..neighbours.row(a).len() {
            let b = neighbours.row(a)[at];
            if (b as usize) < a || covered[a][at] {
                continue;
            }
            if steps > MAX_STEPS {
                return cliques;
            }
            let mut clique = grow(neighbours, sizes, vec![a as u32, b], false, &mut steps);
            clique.sort_unstable();
            mark(&clique, &mut covered);
            steps += clique.len() * clique.len();
            cliques.push_row(clique.into_iter());
        }
    }
    cliques
}

/// Grows a clique to a maximal one: always by the heaviest common neighbour, or (`by_reach`) by the one that leaves
/// the most weight to choose from.
fn grow(neighbours: &Csr, sizes: &[u64], mut clique: Vec<u32>, by_reach: bool, steps: &mut usize) -> Vec<u32> {
    let mut common: Vec<u32> = neighbours.row(clique[0] as usize).to_vec();
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
