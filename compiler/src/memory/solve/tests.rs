//! Properties of the whole solver: against brute force on small random problems, and on the instances of
//! the MiniMalloc and idealloc papers where they are at hand (`KILN_SHARED`, or `shared` beside the workspace).

use super::search::{Outcome, Searcher};
use super::*;

/// xorshift64*: random cases that are the same everywhere.
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) % n
    }
}

/// A small problem in the form that the validator and brute force take.
struct Case {
    problem: Problem,
    buffers: Option<Vec<Buffer>>,
    sizes: Vec<(u64, u64)>,
    edges: Vec<(usize, usize)>,
    fixed: Vec<(usize, u64)>,
}

impl Case {
    fn check(&self, offsets: &[u64], height: u64) {
        // The height counts aligned sizes, so the validator gets them too.
        let rounded: Vec<(u64, u64)> = self.sizes.iter().map(|&(s, a)| (s.next_multiple_of(a), a)).collect();
        assert_eq!(validate::conflicts(&rounded, &self.edges, offsets, height), Ok(()));
        if let Some(buffers) = &self.buffers {
            assert_eq!(validate::intervals(buffers, offsets, height), Ok(()));
        }
        for &(i, at) in &self.fixed {
            assert_eq!(offsets[i], at, "fixed buffer {i} moved");
        }
    }

    /// The least height: of all orders, each buffer at the lowest offset that is free.
    fn brute_force(&self) -> u64 {
        let n = self.sizes.len();
        let mut meets = vec![vec![false; n]; n];
        for &(a, b) in &self.edges {
            if a != b && self.sizes[a].0 > 0 && self.sizes[b].0 > 0 {
                meets[a][b] = true;
                meets[b][a] = true;
            }
        }
        let mut at: Vec<Option<u64>> = vec![None; n];
        self.fixed.iter().for_each(|&(i, offset)| at[i] = Some(offset));
        let size = |i: usize| self.sizes[i].0.next_multiple_of(self.sizes[i].1);
        let start = self.fixed.iter().filter(|(i, _)| size(*i) > 0).map(|&(i, at)| at + size(i)).max().unwrap_or(0);
        fn go(at: &mut Vec<Option<u64>>, height: u64, best: &mut u64, case: &Case, meets: &[Vec<bool>]) {
            if height >= *best {
                return;
            }
            let mut left = false;
            for i in 0..at.len() {
                if at[i].is_some() {
                    continue;
                }
                left = true;
                let (size, align) = (case.sizes[i].0.next_multiple_of(case.sizes[i].1), case.sizes[i].1);
                let end = |j: usize| at[j].map(|o| (o, o + case.sizes[j].0.next_multiple_of(case.sizes[j].1)));
                let taken: Vec<(u64, u64)> = (0..at.len()).filter(|&j| meets[i][j]).filter_map(end).collect();
                let free = |o: u64| taken.iter().all(|&(from, to)| to <= o || o + size <= from);
                let starts = taken.iter().map(|&(_, to)| to.next_multiple_of(align)).chain([0]);
                let lowest = starts.filter(|&o| free(o)).min().unwrap_or(0);
                at[i] = Some(lowest);
                go(at, height.max(lowest + size), best, case, meets);
                at[i] = None;
            }
            if !left {
                *best = height;
            }
        }
        let mut best = u64::MAX;
        go(&mut at, start, &mut best, self, &meets);
        best
    }
}

fn sizes(random: &mut Random, n: usize, mixed: bool) -> Vec<(u64, u64)> {
    let most = 2 + random.below(9);
    (0..n)
        .map(|_| {
            let align = if mixed { [1, 2, 3, 4][random.below(4) as usize] } else { 1 };
            let size = if random.below(20) == 0 { 0 } else { 1 + random.below(most) };
            (size, align)
        })
        .collect()
}

/// Fixed offsets for some buffers, tried at random until they do not collide.
fn fix_some(random: &mut Random, mut case: Case) -> Case {
    for _ in 0..random.below(4) {
        let i = random.below(case.sizes.len() as u64) as usize;
        let offset = random.below(12) * case.sizes[i].1;
        if let Ok(problem) = case.problem.clone().with_fixed(&[(i, offset)]) {
            case.problem = problem;
            case.fixed.retain(|&(j, _)| j != i);
            case.fixed.push((i, offset));
        }
    }
    case
}

fn interval_case(random: &mut Random, n: usize, mixed: bool) -> Case {
    let sizes = sizes(random, n, mixed);
    let span = 2 + random.below(8);
    let buffers: Vec<Buffer> = sizes
        .iter()
        .map(|&(size, alignment)| {
            let lower = random.below(span) as i64 - 3;
            Buffer { lower, upper: lower + random.below(1 + span / 2) as i64, size, alignment }
        })
        .collect();
    let overlap =
        |a: &Buffer, b: &Buffer| a.lower < a.upper && b.lower < b.upper && a.lower < b.upper && b.lower < a.upper;
    let edges =
        (0..n).flat_map(|b| (0..b).map(move |a| (a, b))).filter(|&(a, b)| overlap(&buffers[a], &buffers[b])).collect();
    let problem = Problem::from_intervals(&buffers).unwrap();
    Case { problem, buffers: Some(buffers), sizes, edges, fixed: Vec::new() }
}

fn graph_case(random: &mut Random, n: usize, mixed: bool) -> Case {
    let sizes = sizes(random, n, mixed);
    let density = 1 + random.below(9);
    let mut edges: Vec<(usize, usize)> = (0..n).flat_map(|b| (0..=b).map(move |a| (a, b))).collect();
    edges.retain(|_| random.below(10) < density);
    let (list, aligns): (Vec<u64>, Vec<u64>) = sizes.iter().copied().unzip();
    let mut problem = Problem::from_conflicts(&list, &aligns, &edges).unwrap();
    if random.below(2) == 0 {
        let cliques: Vec<Vec<usize>> = edges.iter().map(|&(a, b)| vec![b, a]).collect();
        problem = problem.with_cliques(&cliques).unwrap();
    }
    Case { problem, buffers: None, sizes, edges, fixed: Vec::new() }
}

fn each_case(rounds: u64, mut check: impl FnMut(&Case)) {
    let mut random = Random(0x5EED);
    for round in 0..rounds {
        let n = 1 + random.below(7) as usize;
        let mixed = round % 3 == 0;
        let case =
            if round % 2 == 0 { interval_case(&mut random, n, mixed) } else { graph_case(&mut random, n, mixed) };
        let case = if round % 5 < 2 { fix_some(&mut random, case) } else { case };
        check(&case);
    }
}

#[test]
fn solve_equals_brute_force() {
    let mut above_bound = 0;
    each_case(3000, |case| {
        let least = case.brute_force();
        let solution = solve(&case.problem, &Options::default());
        case.check(&solution.offsets, solution.height);
        assert!(solution.lower_bound <= least);
        assert_eq!(solution.height, least, "sizes {:?} edges {:?} fixed {:?}", case.sizes, case.edges, case.fixed);
        assert!(solution.proven_optimal);
        above_bound += u32::from(least > solution.lower_bound);
        assert!(solve_capacity(&case.problem, least, &Options::default()).is_ok_and(|s| s.height == least));
        if least > 0 {
            let unfit = solve_capacity(&case.problem, least - 1, &Options::default()).unwrap_err();
            assert!(unfit.proven && unfit.height >= least);
        }
    });
    assert!(above_bound > 50, "only {above_bound} cases above the lower bound");
}

#[test]
fn search_alone_equals_brute_force() {
    each_case(3000, |case| {
        let least = case.brute_force();
        // The least height of each component is not known: only the problem's is.
        let parts: Vec<Component> =
            component::split(&case.problem).into_iter().map(|part| part.with_lists(u64::MAX)).collect();
        let outcomes = |capacity: u64| -> Vec<Outcome> {
            parts.iter().map(|part| Searcher::new(part).unwrap().search(capacity, &mut u64::MAX.clone())).collect()
        };
        for (part, outcome) in parts.iter().zip(outcomes(least)) {
            let Outcome::Found(offsets) = outcome else { panic!("nothing within the least height") };
            assert!(part.height(&offsets) <= least);
            let mut all = vec![0; case.sizes.len()];
            case.fixed.iter().for_each(|&(i, at)| all[i] = at);
            part.ids.iter().zip(&offsets).for_each(|(&i, &at)| all[i as usize] = at);
            let inside = |e: &&(usize, usize)| [e.0, e.1].iter().all(|&i| part.ids.contains(&(i as u32)));
            let edges: Vec<(usize, usize)> = case.edges.iter().filter(inside).copied().collect();
            let rounded: Vec<(u64, u64)> = case.sizes.iter().map(|&(s, a)| (s.next_multiple_of(a), a)).collect();
            assert_eq!(validate::conflicts(&rounded, &edges, &all, u64::MAX), Ok(()));
        }
        let single = (0..case.sizes.len()).any(|i| case.problem.sizes[i] == least);
        let fixed_top = case.fixed.iter().any(|&(i, at)| at + case.problem.sizes[i] == least);
        if least > 0 && !single && !fixed_top {
            assert!(outcomes(least - 1).contains(&Outcome::Exhausted));
        }
    });
}

#[test]
fn larger_random_problems_are_valid_and_repeatable() {
    let mut random = Random(77);
    for round in 0..20 {
        let n = 20 + random.below(60) as usize;
        let case = if round % 2 == 0 { interval_case(&mut random, n, true) } else { graph_case(&mut random, n, true) };
        let case = if round % 4 < 2 { fix_some(&mut random, case) } else { case };
        let options = Options { climb_steps: 100_000, search_steps: 300_000 };
        let solution = solve(&case.problem, &options);
        case.check(&solution.offsets, solution.height);
        assert!(solution.height >= solution.lower_bound);
        assert_eq!(solution, solve(&case.problem, &options));
        // Greedy without lists, as for very many buffers.
        if case.buffers.is_some() {
            for part in component::split(&case.problem) {
                let (offsets, _) = greedy_best(&part, part.n_pairs(), 0);
                let mut all = solution.offsets.clone();
                part.ids.iter().zip(offsets).for_each(|(&i, at)| all[i as usize] = at);
                case.check(&all, u64::MAX);
            }
        }
    }
}

#[test]
fn every_greedy_way_is_valid() {
    each_case(400, |case| {
        for part in component::split(&case.problem) {
            let bare = component::split(&case.problem).into_iter().find(|p| p.ids == part.ids).unwrap();
            let listed = part.with_lists(u64::MAX);
            let order: Vec<u32> = listed.free().collect();
            for part in [&listed, &bare] {
                let ways = [
                    greedy::by_time(part),
                    Some(greedy::best_gap(part, &order)),
                    greedy::lowest_first(part, &order),
                    climb::climb(part, order.clone(), 0, &mut 1000),
                ];
                for offsets in ways.into_iter().flatten() {
                    let mut all = solve(&case.problem, &Options::default()).offsets;
                    part.ids.iter().zip(&offsets).for_each(|(&i, &at)| all[i as usize] = at);
                    case.check(&all, u64::MAX);
                }
            }
        }
    });
}

#[test]
fn edge_cases() {
    let empty = Problem::from_intervals(&[]).unwrap();
    let solution = solve(&empty, &Options::default());
    assert_eq!((solution.height, solution.proven_optimal, solution.method), (0, true, Method::Trivial));
    assert!(solve_capacity(&empty, 0, &Options::default()).is_ok());
    let graph = Problem::from_conflicts(&[], &[], &[]).unwrap();
    assert_eq!(solve(&graph, &Options::default()).offsets, Vec::<u64>::new());

    // A buffer of no bytes and one that is never alive share with everything.
    let odd = [Buffer::new(0, 5, 0), Buffer::new(2, 2, 100), Buffer::new(0, 5, 64), Buffer::new(0, 5, 1)];
    let problem = Problem::from_intervals(&odd).unwrap();
    let solution = solve(&problem, &Options::default());
    assert_eq!((solution.height, solution.lower_bound, solution.proven_optimal), (128, 128, true));
    assert_eq!(problem.aligned_sizes(), &[0, 128, 64, 64]);
    assert_eq!((problem.naive_bytes(), problem.n_buffers()), (256, 4));

    let at = |lower, upper, size| Buffer { lower, upper, size, alignment: 1 };
    for (buffers, error) in [
        (vec![at(3, 2, 1)], ProblemError::Lifetime { buffer: 0 }),
        (vec![at(0, 1, 1), at(0, 1, 1).aligned(0)], ProblemError::Alignment { buffer: 1 }),
        (vec![at(0, 1, u64::MAX), at(0, 1, 1)], ProblemError::TooLarge),
        (vec![at(0, 1, 1).aligned(u64::MAX)], ProblemError::TooLarge),
    ] {
        assert_eq!(Problem::from_intervals(&buffers).unwrap_err(), error);
    }
    let pair = || Problem::from_conflicts(&[4, 4], &[4, 4], &[(0, 1), (1, 0)]).unwrap();
    assert_eq!(pair().with_fixed(&[(0, 2)]).unwrap_err(), ProblemError::FixedAlignment { buffer: 0 });
    assert_eq!(pair().with_fixed(&[(2, 0)]).unwrap_err(), ProblemError::NoSuchBuffer { buffer: 2 });
    assert_eq!(pair().with_fixed(&[(0, 8), (1, 8)]).unwrap_err(), ProblemError::FixedOverlap { a: 0, b: 1 });
    assert_eq!(pair().with_fixed(&[(0, 1 << 62)]).unwrap_err(), ProblemError::TooLarge);
    assert_eq!(pair().with_cliques(&[vec![0, 7]]).unwrap_err(), ProblemError::NoSuchBuffer { buffer: 7 });
    let apart = Problem::from_conflicts(&[4, 4], &[4, 4], &[]).unwrap();
    assert_eq!(apart.with_cliques(&[vec![0, 1]]).unwrap_err(), ProblemError::NotAClique { a: 0, b: 1 });
    assert_eq!(Problem::from_conflicts(&[1], &[1], &[(0, 1)]).unwrap_err(), ProblemError::NoSuchBuffer { buffer: 1 });
    let fixed = pair().with_fixed(&[(0, 8)]).unwrap();
    let solution = solve(&fixed, &Options::default());
    assert_eq!((solution.offsets, solution.height, solution.proven_optimal), (vec![8, 0], 12, true));
    let both = Problem::from_intervals(&[at(0, 4, 4), at(2, 6, 4)]).unwrap().with_fixed(&[(0, 0), (1, 2)]);
    assert_eq!(both.unwrap_err(), ProblemError::FixedOverlap { a: 0, b: 1 });
}

#[test]
fn unfit_names_the_culprits() {
    let at = |lower, upper, size| Buffer { lower, upper, size, alignment: 1 };
    let problem = Problem::from_intervals(&[at(0, 2, 5), at(2, 9, 5), at(1, 3, 7), at(2, 5, 8)]).unwrap();
    let unfit = solve_capacity(&problem, 19, &Options::default()).unwrap_err();
    assert_eq!((unfit.lower_bound, unfit.proven, unfit.culprits), (20, true, vec![1, 2, 3]));
    // A ring of five: each pair of neighbours weighs 2, but no placement is lower than 3.
    let ring: Vec<(usize, usize)> = (0..5).map(|i| (i, (i + 1) % 5)).collect();
    let problem = Problem::from_conflicts(&[1; 5], &[1; 5], &ring).unwrap();
    let solution = solve(&problem, &Options::default());
    assert_eq!((solution.height, solution.lower_bound, solution.proven_optimal), (3, 2, true));
    let unfit = solve_capacity(&problem, 2, &Options::default()).unwrap_err();
    assert_eq!((unfit.proven, unfit.height, unfit.culprits.len()), (true, 3, 2));
    assert!(unfit.to_string().contains("no placement fits"));
}

#[test]
fn components_and_cheap_cases_need_no_search() {
    // A chain of 100,000 layers, each alive with the next: no quadratic step may hide here.
    let chain: Vec<Buffer> = (0..100_000).map(|i| Buffer::new(i, i + 2, 64 * (1 + i as u64 % 7))).collect();
    let problem = Problem::from_intervals(&chain).unwrap();
    let solution = solve(&problem, &Options::greedy());
    assert_eq!(validate::intervals(&chain, &solution.offsets, solution.height), Ok(()));
    // 100,000 buffers alive at once: listing pairs is out of the question.
    let all: Vec<Buffer> = (0..100_000).map(|i| Buffer::new(0, 9, 1 + i % 100)).collect();
    let solution = solve(&Problem::from_intervals(&all).unwrap(), &Options::default());
    assert_eq!((solution.proven_optimal, solution.method), (true, Method::Greedy));
}

fn shared(path: &str) -> Option<std::path::PathBuf> {
    let beside = concat!(env!("CARGO_MANIFEST_DIR"), "/../../shared");
    let root = std::env::var("KILN_SHARED").unwrap_or_else(|_| beside.to_string());
    let path = std::path::Path::new(&root).join(path);
    if !path.exists() {
        eprintln!("skipped: the packing instances are not at hand");
        return None;
    }
    Some(path)
}

#[test]
fn minimalloc_instances_fit() {
    let Some(folder) = shared("minimalloc/challenging") else { return };
    // Unoptimised builds try those that take few steps.
    let names = if cfg!(debug_assertions) { "EGJK" } else { "ABCDEFGHIJK" };
    for name in names.chars() {
        let text = std::fs::read_to_string(folder.join(format!("{name}.1048576.csv"))).unwrap();
        let options = Options { climb_steps: 0, ..Options::default() };
        let (rows, solution) = csv::pack(&text, 1_048_576, &options).unwrap();
        let written = csv::write(&rows, &solution.offsets);
        let buffers: Vec<Buffer> = csv::parse(&written).unwrap().iter().map(|row| row.buffer).collect();
        assert_eq!(validate::intervals(&buffers, &solution.offsets, 1_048_576), Ok(()), "{name}");
    }
}

#[test]
fn large_networks_come_within_one_percent() {
    let Some(folder) = shared("minimalloc/extra") else { return };
    let names: &[&str] = if cfg!(debug_assertions) { &["G_1"] } else { &["G_1", "resnet50", "S_1"] };
    for name in names {
        let rows = csv::parse(&std::fs::read_to_string(folder.join(format!("{name}.csv"))).unwrap()).unwrap();
        let buffers: Vec<Buffer> = rows.iter().map(|row| row.buffer).collect();
        let solution = solve(&Problem::from_intervals(&buffers).unwrap(), &Options::default());
        assert_eq!(validate::intervals(&buffers, &solution.offsets, solution.height), Ok(()));
        assert!(solution.height <= solution.lower_bound + solution.lower_bound / 100, "{name}");
    }
}
