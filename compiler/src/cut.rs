//! Exact minimum s-t cut (Dinic's algorithm): two-way labellings with pairwise costs, for layouts and placement.
//!
//! In: a flow network with integer capacities. Out: which vertices stay with the source. Deterministic: of several minimum
//! cuts it gives the one with the smallest source side.
//! Source: Boykov, Veksler, Zabih, "Fast approximate energy minimization via graph cuts" (2001).

/// A capacity that no cut crosses.
pub const INFINITE: u64 = u64::MAX / 4;

#[derive(Clone, Copy, Debug)]
struct Edge {
    to: usize,
    left: u64,
}

/// A flow network. Vertices 0 and 1 are the source and the sink.
#[derive(Clone, Debug)]
pub struct Network {
    edges: Vec<Edge>,
    out: Vec<Vec<usize>>,
}

/// The source vertex.
pub const SOURCE: usize = 0;
/// The sink vertex.
pub const SINK: usize = 1;

impl Default for Network {
    fn default() -> Self {
        Self { edges: Vec::new(), out: vec![Vec::new(), Vec::new()] }
    }
}

impl Network {
    /// Adds a vertex.
    pub fn vertex(&mut self) -> usize {
        self.out.push(Vec::new());
        self.out.len() - 1
    }

    /// Adds a directed edge: cut when `from` stays with the source and `to` goes with the sink.
    pub fn edge(&mut self, from: usize, to: usize, capacity: u64) {
        self.out[from].push(self.edges.len());
        self.edges.push(Edge { to, left: capacity });
        self.out[to].push(self.edges.len());
        self.edges.push(Edge { to: from, left: 0 });
    }

    fn levels(&self) -> Vec<u32> {
        let mut level = vec![u32::MAX; self.out.len()];
        let mut queue = std::collections::VecDeque::from([SOURCE]);
        level[SOURCE] = 0;
        while let Some(v) = queue.pop_front() {
            for &e in &self.out[v] {
                let Edge { to, left } = self.edges[e];
                if left > 0 && level[to] == u32::MAX {
                    level[to] = level[v] + 1;
                    queue.push_back(to);
                }
            }
        }
        level
    }

    /// One augmenting path along rising levels, without recursion; the flow it carries.
    fn augment(&mut self, level: &[u32], next: &mut [usize]) -> u64 {
        let mut path: Vec<usize> = Vec::new();
        let mut at = SOURCE;
        loop {
            if at == SINK {
                let flow = path.iter().map(|&e| self.edges[e].left).min().unwrap_or(0);
                for &e in &path {
                    self.edges[e].left -= flow;
                    self.edges[e ^ 1].left += flow;
                }
                return flow;
            }
            let advance = self.out[at].get(next[at]).copied();
            match advance {
                Some(e) => {
                    let Edge { to, left } = self.edges[e];
                    if left > 0 && level[to] == level[at] + 1 {
                        path.push(e);
                        at = to;
                    } else {
                        next[at] += 1;
                    }
                }
                None => {
                    // A dead end: step back.
                    let Some(e) = path.pop() else { return 0 };
                    at = self.edges[e ^ 1].to;
                    next[at] += 1;
                }
            }
        }
    }

    /// The minimum cut: its value, and for every vertex whether it stays with the source.
    pub fn min_cut(mut self) -> (u64, Vec<bool>) {
        let mut value = 0u64;
        loop {
            let level = self.levels();
            if level[SINK] == u32::MAX {
                return (value, level.into_iter().map(|l| l != u32::MAX).collect());
            }
            let mut next = vec![0; self.out.len()];
            loop {
                let flow = self.augment(&level, &mut next);
                if flow == 0 {
                    break;
                }
                value = value.saturating_add(flow);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equals_brute_force() {
        let mut seed = 7u64;
        let mut random = move |n: u64| {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (seed >> 33) % n
        };
        for _ in 0..300 {
            let n = 2 + random(6) as usize;
            let mut net = Network::default();
            for _ in 2..n {
                net.vertex();
            }
            let mut edges = Vec::new();
            for _ in 0..random(18) {
                let (a, b, c) = (random(n as u64) as usize, random(n as u64) as usize, random(10));
                if a != b {
                    net.edge(a, b, c);
                    edges.push((a, b, c));
                }
            }
            let cost = |side: &dyn Fn(usize) -> bool| -> u64 {
                edges.iter().filter(|(a, b, _)| side(*a) && !side(*b)).map(|e| e.2).sum()
            };
            let best = (0..1u32 << (n - 2))
                .map(|bits| cost(&|v| v == SOURCE || (v > 1 && bits >> (v - 2) & 1 == 1)))
                .min()
                .unwrap();
            let (value, side) = net.min_cut();
            assert_eq!(value, best);
            assert_eq!(cost(&|v| side[v]), best);
        }
    }
}
