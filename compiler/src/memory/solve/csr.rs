//! Compressed rows: one flat list of `u32` items cut into rows. Holds adjacency lists and cliques.

/// Rows of `u32` items, stored back to back.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Csr {
    start: Vec<usize>,
    item: Vec<u32>,
}

impl Csr {
    /// An empty table without rows.
    pub(super) fn new() -> Csr {
        Csr { start: vec![0], item: Vec::new() }
    }

    /// Rows from pairs `(row, item)`; each row comes out sorted and without repeats.
    pub(super) fn from_pairs(n_rows: usize, pairs: impl Iterator<Item = (u32, u32)> + Clone) -> Csr {
        let mut start = vec![0usize; n_rows + 1];
        for (row, _) in pairs.clone() {
            start[row as usize + 1] += 1;
        }
        for row in 0..n_rows {
            start[row + 1] += start[row];
        }
        let mut next = start.clone();
        let mut item = vec![0; start[n_rows]];
        for (row, it) in pairs {
            item[next[row as usize]] = it;
            next[row as usize] += 1;
        }
        let mut rows = Csr::new();
        for row in 0..n_rows {
            let list = &mut item[start[row]..start[row + 1]];
            list.sort_unstable();
            rows.push_row(list.iter().copied());
            let (from, to) = (rows.start[row], rows.start[row + 1]);
            let mut kept = from;
            for at in from..to {
                if at == from || rows.item[at] != rows.item[kept - 1] {
                    rows.item[kept] = rows.item[at];
                    kept += 1;
                }
            }
            rows.item.truncate(kept);
            rows.start[row + 1] = kept;
        }
        rows
    }

    /// Appends one row.
    pub(super) fn push_row(&mut self, row: impl Iterator<Item = u32>) {
        self.item.extend(row);
        self.start.push(self.item.len());
    }

    /// The items of row `row`.
    pub(super) fn row(&self, row: usize) -> &[u32] {
        &self.item[self.start[row]..self.start[row + 1]]
    }

    /// How many rows there are.
    pub(super) fn n_rows(&self) -> usize {
        self.start.len() - 1
    }

    /// How many items all rows hold together.
    pub(super) fn n_items(&self) -> usize {
        self.item.len()
    }

    /// The transposed table: row `i` lists the rows of `self` that hold `i`, ascending.
    pub(super) fn transposed(&self, n_rows: usize) -> Csr {
        let pairs = (0..self.n_rows()).flat_map(|row| self.row(row).iter().map(move |&it| (it, row as u32)));
        Csr::from_pairs(n_rows, pairs)
    }
}

#[cfg(test)]
mod tests {
    use super::Csr;

    #[test]
    fn rows_are_sorted_and_unique() {
        let pairs = [(1, 5), (0, 2), (1, 3), (1, 5), (1, 0)];
        let rows = Csr::from_pairs(3, pairs.iter().copied());
        assert_eq!((rows.row(0), rows.row(1), rows.row(2)), (&[2][..], &[0, 3, 5][..], &[][..]));
        let back = rows.transposed(6);
        assert_eq!((back.row(0), back.row(5), back.row(4)), (&[1][..], &[1][..], &[][..]));
        assert_eq!((back.n_rows(), back.n_items()), (6, 4));
    }
}
