//! Two indexes over sections, for intervals that are too many for lists of pairs.

/// Placed spans by their first section, to list those that overlap a given one in time proportional to their number.
#[derive(Debug)]
pub(super) struct PlacedSpans<'a> {
    spans: &'a [(u32, u32)],
    /// Buffers by first section, and where each stands in that list.
    sorted: Vec<u32>,
    rank: Vec<u32>,
    /// A tree over `sorted`: the greatest end of a placed span below each node, 0 for none.
    ends: Vec<u32>,
    n_leaves: usize,
}

impl<'a> PlacedSpans<'a> {
    pub(super) fn new(spans: &'a [(u32, u32)]) -> PlacedSpans<'a> {
        let mut sorted: Vec<u32> = (0..spans.len() as u32).collect();
        sorted.sort_by_key(|&i| (spans[i as usize].0, i));
        let mut rank = vec![0; spans.len()];
        for (at, &i) in sorted.iter().enumerate() {
            rank[i as usize] = at as u32;
        }
        let n_leaves = spans.len().next_power_of_two();
        PlacedSpans { spans, sorted, rank, ends: vec![0; 2 * n_leaves], n_leaves }
    }

    /// Enters a span.
    pub(super) fn place(&mut self, i: u32) {
        let end = self.spans[i as usize].1;
        let mut node = self.n_leaves + self.rank[i as usize] as usize;
        while node > 0 && self.ends[node] < end {
            self.ends[node] = end;
            node /= 2;
        }
    }

    /// Calls `see` for each placed span that overlaps span `i`.
    pub(super) fn each_overlapping(&self, i: u32, mut see: impl FnMut(u32)) {
        let (first, end) = self.spans[i as usize];
        let n_before = self.sorted.partition_point(|&j| self.spans[j as usize].0 < end);
        let mut open = vec![(1usize, 0usize, self.n_leaves)];
        while let Some((node, from, to)) = open.pop() {
            if from >= n_before || self.ends[node] <= first {
                continue;
            }
            if to - from == 1 {
                see(self.sorted[from]);
                continue;
            }
            let middle = from.midpoint(to);
            open.extend([(2 * node, from, middle), (2 * node + 1, middle, to)]);
        }
    }
}

/// A skyline over sections: the greatest height in a range, and raising a range to a height.
#[derive(Debug)]
pub(super) struct MaxTree {
    n_leaves: usize,
    /// The greatest height below a node, and what its whole range was raised to.
    greatest: Vec<u64>,
    raised: Vec<u64>,
}

impl MaxTree {
    pub(super) fn new(n: usize) -> MaxTree {
        let n_leaves = n.next_power_of_two();
        MaxTree { n_leaves, greatest: vec![0; 2 * n_leaves], raised: vec![0; 2 * n_leaves] }
    }

    /// The greatest height in `[first, end)`.
    pub(super) fn max(&self, first: usize, end: usize) -> u64 {
        let (mut lo, mut hi, mut best) = (first + self.n_leaves, end + self.n_leaves, 0);
        let (from, to) = (lo, hi - 1);
        while lo < hi {
            if lo % 2 == 1 {
                best = best.max(self.greatest[lo]);
                lo += 1;
            }
            if hi % 2 == 1 {
                hi -= 1;
                best = best.max(self.greatest[hi]);
            }
            lo /= 2;
            hi /= 2;
        }
        for mut node in [from, to] {
            while node > 0 {
                best = best.max(self.raised[node]);
                node /= 2;
            }
        }
        best
    }

    /// Raises `[first, end)` to at least `height`.
    pub(super) fn raise(&mut self, first: usize, end: usize, height: u64) {
        let (mut lo, mut hi) = (first + self.n_leaves, end + self.n_leaves);
        let (from, to) = (lo, hi - 1);
        while lo < hi {
            if lo % 2 == 1 {
                self.raise_node(lo, height);
                lo += 1;
            }
            if hi % 2 == 1 {
                hi -= 1;
                self.raise_node(hi, height);
            }
            lo /= 2;
            hi /= 2;
        }
        for mut node in [from, to] {
            while node > 1 {
                node /= 2;
                self.greatest[node] = self.greatest[node].max(height);
            }
        }
    }

    fn raise_node(&mut self, node: usize, height: u64) {
        self.greatest[node] = self.greatest[node].max(height);
        self.raised[node] = self.raised[node].max(height);
    }
}

#[cfg(test)]
mod tests {
    use super::{MaxTree, PlacedSpans};

    #[test]
    fn lists_exactly_the_overlapping() {
        let spans: Vec<(u32, u32)> = (0..40u32).map(|i| ((i * 7) % 23, (i * 7) % 23 + 1 + i % 5)).collect();
        let mut index = PlacedSpans::new(&spans);
        for i in 0..40u32 {
            let mut seen = Vec::new();
            index.each_overlapping(i, |j| seen.push(j));
            seen.sort_unstable();
            let meets =
                |j: &u32| spans[*j as usize].0 < spans[i as usize].1 && spans[i as usize].0 < spans[*j as usize].1;
            assert_eq!(seen, (0..i).filter(meets).collect::<Vec<u32>>());
            index.place(i);
        }
    }

    #[test]
    fn skyline_matches_a_plain_list() {
        let (n, mut tree) = (13usize, MaxTree::new(13));
        let mut plain = vec![0u64; n];
        for step in 0..200usize {
            let first = (step * 5) % n;
            let end = (first + 1 + step % 4).min(n);
            let most = plain[first..end].iter().copied().max();
            assert_eq!(Some(tree.max(first, end)), most);
            let height = (step * 37 % 101) as u64;
            tree.raise(first, end, height);
            plain[first..end].iter_mut().for_each(|h| *h = (*h).max(height));
        }
    }
}
