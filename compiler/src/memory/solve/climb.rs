//! Hill climbing on the order of placement, as Vela (Arm's NPU compiler) does it.
//!
//! Buffers are placed one after another at the lowest offset that fits. Each placement remembers which buffer it rests on.
//! A step swaps two turns among those that lead to the buffer at the peak or to its neighbours; a placement that is not
//! higher is kept. Random choices come from a generator with a fixed seed; the budget counts neighbours looked at, and it
//! ends early when many steps brought nothing.

use super::component::Component;
use super::csr::Csr;
use super::greedy::NOWHERE;

/// The lowest placement found from `order`, starting at `offsets`' height; stops at `target` or after `budget` steps.
pub(super) fn climb(part: &Component, mut order: Vec<u32>, target: u64, budget: &mut u64) -> Option<Vec<u64>> {
    let lists = part.neighbours.as_ref().filter(|_| *budget > 0)?;
    let mut tower = Tower::new(part, lists);
    let mut random = Random(0x9E37_79B9_7F4A_7C15);
    let mut height = tower.build(&order, budget);
    let mut best = (height, tower.offsets.clone());
    let mut kept = (tower.offsets.clone(), tower.below.clone());
    let mut since_better = 0u64;
    let patience = 300 + 10 * order.len() as u64;
    while best.0 > target && *budget > 0 && since_better < patience && order.len() > 1 {
        let turns = tower.turns_to_change(&order, height);
        if turns.is_empty() {
            break;
        }
        let mut swaps = Vec::new();
        // Stuck: shake harder, as one swap no longer helps.
        for _ in 0..1 + (since_better / 200).min(3) {
            let a = turns[random.below(turns.len())];
            let b = if random.below(10) < 3 { random.below(order.len()) } else { turns[random.below(turns.len())] };
            order.swap(a, b);
            swaps.push((a, b));
        }
        let new_height = tower.build(&order, budget);
        since_better += 1;
        if new_height <= height {
            if new_height < height {
                since_better = 0;
            }
            height = new_height;
            kept.0.clone_from(&tower.offsets);
            kept.1.clone_from(&tower.below);
            if height < best.0 {
                best = (height, tower.offsets.clone());
            }
        } else {
            for &(a, b) in swaps.iter().rev() {
                order.swap(a, b);
            }
            tower.offsets.clone_from(&kept.0);
            tower.below.clone_from(&kept.1);
        }
    }
    Some(best.1)
}

/// The state of one placement.
struct Tower<'a> {
    part: &'a Component,
    lists: &'a Csr,
    offsets: Vec<u64>,
    /// The buffer it rests on, or itself on the ground.
    below: Vec<u32>,
    around: Vec<(u64, u64, u32)>,
}

impl<'a> Tower<'a> {
    fn new(part: &'a Component, lists: &'a Csr) -> Tower<'a> {
        let n = part.len();
        Tower { part, lists, offsets: vec![NOWHERE; n], below: vec![0; n], around: Vec::new() }
    }

    /// Places all buffers in `order` and returns the height.
    fn build(&mut self, order: &[u32], budget: &mut u64) -> u64 {
        for (offset, fixed) in self.offsets.iter_mut().zip(&self.part.fixed) {
            *offset = fixed.unwrap_or(NOWHERE);
        }
        let mut steps = 0;
        for &i in order {
            let (at, below) = self.lowest_gap(i as usize);
            self.offsets[i as usize] = at;
            self.below[i as usize] = below;
            steps += self.lists.row(i as usize).len() as u64 + 1;
        }
        *budget = budget.saturating_sub(steps);
        self.part.height(&self.offsets)
    }

    fn lowest_gap(&mut self, i: usize) -> (u64, u32) {
        let (size, align) = (self.part.sizes[i], self.part.alignments[i]);
        self.around.clear();
        for &j in self.lists.row(i) {
            let offset = self.offsets[j as usize];
            if offset != NOWHERE {
                self.around.push((offset, offset + self.part.sizes[j as usize], j));
            }
        }
        self.around.sort_unstable();
        let (mut floor, mut at, mut below) = (0, 0, i as u32);
        for &(from, to, j) in &self.around {
            if at + size <= from {
                break;
            }
            if to > floor {
                (floor, below) = (to, j);
                at = floor.next_multiple_of(align);
            }
        }
        (at, below)
    }

    /// The turns that led to a buffer at the peak or to one of its neighbours, ascending.
    fn turns_to_change(&self, order: &[u32], height: u64) -> Vec<usize> {
        let peak = order.iter().find(|&&i| self.offsets[i as usize] + self.part.sizes[i as usize] == height);
        let Some(&peak) = peak else { return Vec::new() };
        let mut marked = vec![false; self.part.len()];
        for &start in self.lists.row(peak as usize).iter().chain([&peak]) {
            let mut i = start as usize;
            while !marked[i] && self.part.fixed[i].is_none() {
                marked[i] = true;
                i = self.below[i] as usize;
            }
        }
        (0..order.len()).filter(|&turn| marked[order[turn] as usize]).collect()
    }
}

/// SplitMix64: the same numbers on every machine.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((z ^ (z >> 31)) % n.max(1) as u64) as usize
    }
}
