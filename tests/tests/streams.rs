//! Several streams: whatever order the threads run in, the result is that of one stream to the bit; and the verifier
//! refuses schedules and memory plans that allow another.
//!
//! Threads are simulated: a random one of the orders that a schedule allows is drawn and its calls are really run.

use kiln_compiler::ir::Tensor;
use kiln_compiler::lower;
use kiln_compiler::onnx::{Decoded, decode, encode};
use kiln_compiler::plan::target::Target;
use kiln_compiler::program::{self, Meta, Program};
use kiln_compiler::schedule::{Schedule, StreamStep};
use kiln_compiler::streams;
use kiln_compiler::verify::{self, Expectation};
use kiln_compiler::{Options, exec, graph, memory};
use kiln_fixtures::prng::Prng;
use kiln_kernels::isa::Isa;
use kiln_tests::graphs::random_graph;
use kiln_tests::stages::{bytes, to_tensor};

/// A machine on which nothing is too small for several streams.
fn eager(n_streams: usize) -> Target {
    let mut target = streams::host(n_streams).expect("the host target");
    let host = target.host.idx();
    target.devices[host].launch_ns = 0;
    target.devices[host].sync_ns = 0;
    target
}

struct Case {
    decoded: Decoded,
    inputs: Vec<Tensor>,
}

fn case(seed: u64) -> Case {
    let random = random_graph(seed, 4 + (seed as usize) % 14);
    let decoded = decode(encode(&random.model), None).expect("a random graph decodes");
    Case { decoded, inputs: random.inputs.iter().map(|a| to_tensor(a).expect("an input")).collect() }
}

/// The program on so many streams; with `one_order`, memory is planned as if the list of steps were the only order.
fn compile(case: &Case, n_streams: usize, one_order: bool) -> (Program, Expectation) {
    let graph = graph(&case.decoded, &Options::default()).expect("compiles");
    let lowered = lower::lower(&graph).expect("lowers");
    let (lowered, schedule) = streams::plan_for(&graph, lowered, &eager(n_streams)).expect("a schedule");
    let expectation = verify::expectation(&lowered);
    let arena = if one_order { memory::plan(&lowered) } else { memory::plan_on_streams(&lowered, &schedule) };
    let arena = arena.expect("an arena");
    let program = program::assemble(&graph, lowered, schedule, arena, &[], Meta::default()).expect("a program");
    (program, expectation)
}

/// A random one of the orders that a schedule allows; `None` for a deadlock.
fn any_order(schedule: &Schedule, prng: &mut Prng) -> Option<Vec<usize>> {
    let n = schedule.streams.len();
    let (mut next, mut done, mut order) = (vec![0; n], vec![0; n], Vec::new());
    // Some streams are slow for a whole run, so that orders far from the list come up too.
    let slow: Vec<usize> = (0..n).map(|_| prng.below(4)).collect();
    loop {
        let mut open = Vec::new();
        for s in 0..n {
            while let Some(&StreamStep::Wait { stream, count }) = schedule.streams[s].get(next[s]) {
                if done[stream] < count {
                    break;
                }
                next[s] += 1;
            }
            if let Some(StreamStep::Run(_)) = schedule.streams[s].get(next[s]) {
                open.push(s);
            }
        }
        if open.is_empty() {
            let ended = (0..n).all(|s| next[s] == schedule.streams[s].len());
            return ended.then_some(order);
        }
        let least = open.iter().map(|&s| slow[s]).min()?;
        let eager: Vec<usize> = open.iter().copied().filter(|&s| slow[s] == least).collect();
        let from = if prng.below(8) == 0 { &open } else { &eager };
        let s = from[prng.below(from.len())];
        if let StreamStep::Run(i) = schedule.streams[s][next[s]] {
            order.push(i);
        }
        (next[s], done[s]) = (next[s] + 1, done[s] + 1);
    }
}

/// Runs the steps in an order; `None` if one fails.
fn run(program: &Program, order: &[usize], inputs: &[Tensor]) -> Option<Vec<Tensor>> {
    let mut ordered = program.clone();
    ordered.steps = order.iter().map(|&i| program.steps[i].clone()).collect();
    exec::run_program(&ordered, &bytes(inputs), Isa::detect()).ok()
}

/// Whether some of the orders that a schedule allows gives another result.
fn is_wrong(program: &Program, inputs: &[Tensor], expected: &[Tensor], prng: &mut Prng) -> bool {
    let differs = |order: Option<Vec<usize>>| match order {
        None => true,
        Some(order) => run(program, &order, inputs).is_none_or(|got| bytes(&got) != bytes(expected)),
    };
    (0..12).any(|_| differs(any_order(&program.schedule, prng)))
}

fn one_stream(case: &Case) -> Vec<Tensor> {
    let (program, _) = compile(case, 1, false);
    assert_eq!(program.schedule.streams.len(), 1);
    exec::run_program(&program, &bytes(&case.inputs), Isa::detect()).expect("runs")
}

#[test]
fn every_order_gives_the_bits_of_one_stream() {
    let (mut n_streams, mut n_waits, mut n_parts) = (0, 0, 0);
    for seed in 0..80 {
        let case = case(seed);
        let expected = one_stream(&case);
        let mut prng = Prng::new(seed);
        for streams in [2, 3, 5] {
            let (program, expectation) = compile(&case, streams, false);
            verify::verify(&program, &expectation).unwrap_or_else(|e| panic!("seed {seed}, {streams} streams: {e}"));
            assert!(!is_wrong(&program, &case.inputs, &expected, &mut prng), "seed {seed}, {streams} streams");
            n_streams += usize::from(program.schedule.streams.len() > 1);
            n_waits += program.schedule.n_waits();
            n_parts += program.steps.windows(2).filter(|w| w[0].node == w[1].node).count();
        }
    }
    println!("{n_streams} of 240 programs have several streams, {n_waits} waits, {n_parts} parts");
    assert!(n_streams > 150 && n_waits > 300 && n_parts > 300, "the test has no teeth");
}

#[test]
fn memory_that_fits_only_one_order_is_refused() {
    let (mut refused, mut wrong) = (0, 0);
    for seed in 100..200 {
        let case = case(seed);
        let expected = one_stream(&case);
        let mut prng = Prng::new(seed);
        for streams in [2, 4] {
            let (program, expectation) = compile(&case, streams, true);
            let accepted = verify::verify(&program, &expectation).is_ok();
            let is_wrong = is_wrong(&program, &case.inputs, &expected, &mut prng);
            assert!(!(accepted && is_wrong), "seed {seed}, {streams} streams: accepted, but wrong in some order");
            refused += usize::from(!accepted);
            wrong += usize::from(is_wrong);
        }
    }
    println!("{refused} plans refused, {wrong} of all seen to go wrong");
    assert!(wrong > 10, "the test has no teeth");
}

/// A schedule made wrong, perhaps.
fn mutate(program: &Program, kind: usize, prng: &mut Prng) -> Option<Program> {
    let mut changed = program.clone();
    let all = &mut changed.schedule.streams;
    let at = |all: &[Vec<StreamStep>], wait: bool, prng: &mut Prng| {
        let is = |s: &StreamStep| matches!(s, StreamStep::Wait { .. }) == wait;
        let places: Vec<(usize, usize)> = (0..all.len())
            .flat_map(|s| (0..all[s].len()).map(move |i| (s, i)))
            .filter(|&(s, i)| is(&all[s][i]))
            .collect();
        (!places.is_empty()).then(|| places[prng.below(places.len())])
    };
    match kind {
        // A wait is lost.
        0 => {
            let (s, i) = at(all, true, prng)?;
            all[s].remove(i);
        }
        // A wait ends too early, or never.
        1 => {
            let (s, i) = at(all, true, prng)?;
            let StreamStep::Wait { count, .. } = &mut all[s][i] else { return None };
            *count = if prng.below(4) == 0 { *count + 1 } else { *count - 1 };
        }
        // Two steps change places, on one stream or on two.
        2 => {
            let ((s, i), (t, j)) = (at(all, false, prng)?, at(all, false, prng)?);
            (all[s][i], all[t][j]) = (all[t][j], all[s][i]);
        }
        // A step moves to another stream, which counts one more then.
        3 => {
            let ((s, i), (t, j)) = (at(all, false, prng)?, at(all, false, prng)?);
            let step = all[s].remove(i);
            let j = j.min(all[t].len());
            all[t].insert(j, step);
        }
        // A result lies elsewhere.
        _ => {
            let step = prng.below(changed.steps.len());
            let by = [64, 128, 1024, -64][prng.below(4)];
            let mut ok = true;
            changed.steps[step].call.relocate(&mut |o| match o.off.checked_add_signed(by) {
                Some(off) if o.mem == program::ARENA => o.off = off,
                Some(_) => {}
                None => ok = false,
            });
            if !ok {
                return None;
            }
        }
    }
    Some(changed)
}

#[test]
fn wrong_schedules_are_refused() {
    let names = ["drop a wait", "change a wait", "swap steps", "move a step", "shift a step's memory"];
    let mut counts = [(0, 0, 0); 5];
    for seed in 200..280 {
        let case = case(seed);
        let expected = one_stream(&case);
        let mut prng = Prng::new(seed);
        for streams in [2, 4] {
            let (program, expectation) = compile(&case, streams, false);
            if program.schedule.streams.len() < 2 {
                continue;
            }
            for kind in (0..5).flat_map(|k| [k; 4]) {
                let Some(changed) = mutate(&program, kind, &mut prng) else { continue };
                let accepted = verify::verify(&changed, &expectation).is_ok();
                let wrong = is_wrong(&changed, &case.inputs, &expected, &mut prng);
                assert!(!(accepted && wrong), "seed {seed}, {streams} streams, {}: accepted", names[kind]);
                let c = &mut counts[kind];
                *c = (c.0 + 1, c.1 + usize::from(wrong), c.2 + usize::from(!accepted));
            }
        }
    }
    for (name, (tried, wrong, refused)) in names.iter().zip(counts) {
        println!("{name}: {tried} tried, {wrong} seen to go wrong, {refused} refused");
        assert!(wrong > 20, "{name}: the test has no teeth");
    }
}
