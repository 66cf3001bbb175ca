//! Checks a placement from first principles; shares nothing with the solver but the caller's own data.

use super::Buffer;

/// What is wrong with a placement. Numbers are positions in the caller's list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Violation {
    /// Not one offset per buffer.
    Count,
    /// An offset is not a multiple of the buffer's alignment.
    Alignment(usize),
    /// A buffer ends above the height.
    Height(usize),
    /// Two buffers that conflict share bytes.
    Overlap(usize, usize),
}

/// Checks offsets for buffers with lifetimes: every pair alive at one time is disjoint, all lie below `height`.
pub fn intervals(buffers: &[Buffer], offsets: &[u64], height: u64) -> Result<(), Violation> {
    let sizes: Vec<(u64, u64)> = buffers.iter().map(|b| (b.size, b.alignment)).collect();
    each_alone(&sizes, offsets, height)?;
    let mut by_start: Vec<usize> = (0..buffers.len()).filter(|&i| buffers[i].lower < buffers[i].upper).collect();
    by_start.sort_by_key(|&i| buffers[i].lower);
    for (at, &a) in by_start.iter().enumerate() {
        for &b in by_start[at + 1..].iter().take_while(|&&b| buffers[b].lower < buffers[a].upper) {
            disjoint(&sizes, offsets, a, b)?;
        }
    }
    Ok(())
}

/// Checks offsets for a conflict graph; `sizes` holds (size, alignment) of each buffer.
pub fn conflicts(
    sizes: &[(u64, u64)],
    edges: &[(usize, usize)],
    offsets: &[u64],
    height: u64,
) -> Result<(), Violation> {
    each_alone(sizes, offsets, height)?;
    edges.iter().filter(|(a, b)| a != b).try_for_each(|&(a, b)| disjoint(sizes, offsets, a, b))
}

fn each_alone(sizes: &[(u64, u64)], offsets: &[u64], height: u64) -> Result<(), Violation> {
    if sizes.len() != offsets.len() {
        return Err(Violation::Count);
    }
    for (i, (&(size, alignment), &at)) in sizes.iter().zip(offsets).enumerate() {
        if at % alignment != 0 {
            return Err(Violation::Alignment(i));
        }
        if size > 0 && at.checked_add(size).is_none_or(|end| end > height) {
            return Err(Violation::Height(i));
        }
    }
    Ok(())
}

fn disjoint(sizes: &[(u64, u64)], offsets: &[u64], a: usize, b: usize) -> Result<(), Violation> {
    let apart = offsets[a] + sizes[a].0 <= offsets[b] || offsets[b] + sizes[b].0 <= offsets[a];
    if apart || sizes[a].0 == 0 || sizes[b].0 == 0 { Ok(()) } else { Err(Violation::Overlap(a, b)) }
}
