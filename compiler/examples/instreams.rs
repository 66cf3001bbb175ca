//! Times a case on one stream and on several, on the runtime's own threads, without building modules:
//! `instreams FOLDER [STREAMS [ROUNDS [without-waits]]]`. Runs alternate, so that a busy machine disturbs both alike; outputs
//! are compared bit by bit. `without-waits`: no stream waits for another, and nothing is compared: what a race check must
//! find (`tests/races.sh` runs both).
//!
//! `instreams FOLDER STREAMS serve` is for `tests/peers/compare.py`: for every line of standard input, a number, it runs the case
//! so many times on that many streams and prints nanoseconds, one run a line. Where a model needs the values of small integer
//! inputs (a sampling rate that chooses a branch), those at hand are baked in.

use kiln::rt::{Instance, Region, Stream, Weights};
use kiln_compiler::import::ImportOptions;
use kiln_compiler::ir::Symbol;
use kiln_compiler::program::{Port, Program};
use kiln_compiler::schedule::StreamStep;
use kiln_compiler::{Options, cases, compile};
use kiln_kernels::{AlignedBytes, Cx};
use std::io::BufRead;
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// A model with one stream, and the same with several.
static PROGRAMS: [OnceLock<Program>; 2] = [const { OnceLock::new() }; 2];

/// Whether streams wait for each other.
static WAITS: AtomicBool = AtomicBool::new(true);

fn run_step(program: &Program, i: usize, cx: &Cx<'_>) {
    program.steps[i].call.run(cx.at(i as u32), &|_: &Symbol| 0);
}

fn merged<const P: usize>(cx: &Cx<'_>) {
    let Some(program) = PROGRAMS[P].get() else { return };
    (0..program.steps.len()).for_each(|i| run_step(program, i, cx));
}

fn stream<const S: usize>(cx: &Cx<'_>) -> Option<()> {
    let program = PROGRAMS[1].get()?;
    let mut done = 0;
    for step in program.schedule.streams.get(S)? {
        match *step {
            StreamStep::Wait { stream, count } if WAITS.load(Ordering::Relaxed) => {
                cx.wait(stream as u32, count as u32)?
            }
            StreamStep::Wait { .. } => {}
            StreamStep::Run(i) => {
                run_step(program, i, cx);
                done += 1;
                cx.signal(done);
            }
        }
    }
    Some(())
}

static STREAMS: [Stream; 8] =
    [stream::<0>, stream::<1>, stream::<2>, stream::<3>, stream::<4>, stream::<5>, stream::<6>, stream::<7>];
static NODES: &[(u32, &str)] = &[(0, "a step")];

/// One run: its time in nanoseconds and the outputs.
fn timed(
    model: &mut Instance<'_>,
    program: &Program,
    inputs: &[AlignedBytes],
    steps: fn(&Cx<'_>),
) -> (u64, Vec<Vec<u8>>) {
    let mut regions = vec![Region::read(&[]), Region::read(&[])];
    regions.extend(inputs.iter().map(|i| Region::read(i.as_slice())));
    let start = Instant::now();
    model.run(&mut regions, &[], NODES, steps).expect("runs");
    let ns = start.elapsed().as_nanos() as u64;
    let bytes = |p: &Port| p.ty.bytes().as_const().expect("constant sizes") as usize;
    let output = |p: &Port| model.raw_output(p.off, bytes(p)).expect("an output").to_vec();
    (ns, program.outputs.iter().map(output).collect())
}

/// A case on `streams` streams, and the inputs that are left to it.
fn compiled(folder: &str, streams: usize) -> Result<(String, Program, Vec<AlignedBytes>), Box<dyn std::error::Error>> {
    let case = cases::find(Path::new(folder))?.into_iter().next().ok_or("no case in this folder")?;
    let decoded = case.decode()?;
    let set = case.data_sets(&decoded.model)?.into_iter().next().ok_or("the case has no data")?;
    let with = |import: ImportOptions| compile(&decoded, &Options { import, streams, ..Options::default() });
    let (program, left) = match with(set.import_options()) {
        Ok(program) => (program, set.inputs.iter().collect()),
        Err(_) => {
            let (import, left) = set.import_options_with_ints();
            (with(import)?, left)
        }
    };
    let inputs = left.iter().map(|t| AlignedBytes::copy_of(t.data()).expect("memory")).collect();
    Ok((case.name, program, inputs))
}

/// The program on its streams, with its weights.
fn instance(program: &Program) -> Instance<'static> {
    let weights = Weights::Loaded(AlignedBytes::copy_of(&program.weights_blob()).expect("memory"));
    let bytes = program.arena.bytes as usize;
    let made = match program.schedule.streams.len() {
        0 | 1 => Instance::on_heap(bytes, weights),
        n => Instance::on_streams(bytes, weights, &STREAMS[..n]),
    };
    made.expect("memory")
}

/// Runs the case as often as each line of standard input says, after one run that brings it back into the caches.
fn serve(program: &Program, inputs: &[AlignedBytes]) {
    let mut model = instance(program);
    for line in std::io::stdin().lock().lines() {
        let Ok(n) = line.expect("a line").trim().parse::<usize>() else { return };
        timed(&mut model, program, inputs, merged::<1>);
        for _ in 0..n {
            println!("{}", timed(&mut model, program, inputs, merged::<1>).0);
        }
    }
}

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let number = |i: usize, default: usize| args.get(i).and_then(|a| a.parse().ok()).unwrap_or(default);
    let (n_streams, rounds) = (number(2, 2).min(STREAMS.len()), number(3, 30));
    let mode = |i: usize, name: &str| args.get(i).is_some_and(|a| a == name);
    let (name, program, inputs) = compiled(&args[1], n_streams).expect("compiles");
    let many = PROGRAMS[1].get_or_init(|| program);
    if mode(3, "serve") {
        return serve(many, &inputs);
    }
    let one = PROGRAMS[0].get_or_init(|| compiled(&args[1], 1).expect("compiles").1);
    println!(
        "{}: {} streams, {} steps, {} waits; arena {} -> {} bytes ({:.3}); predicted {} -> {} us ({:.2} times as fast)",
        name,
        many.schedule.streams.len(),
        many.steps.len(),
        many.schedule.n_waits(),
        one.arena.bytes,
        many.arena.bytes,
        many.arena.bytes as f64 / one.arena.bytes.max(1) as f64,
        one.schedule.predicted_ns / 1000,
        many.schedule.predicted_ns / 1000,
        one.schedule.predicted_ns as f64 / many.schedule.predicted_ns.max(1) as f64
    );
    let (mut a, mut b) = (instance(one), instance(many));
    let (mut times, mut ratios) = ([Vec::new(), Vec::new()], Vec::new());
    if mode(4, "without-waits") {
        WAITS.store(false, Ordering::Relaxed);
        (0..rounds).for_each(|_| drop(timed(&mut b, many, &inputs, merged::<1>)));
        return;
    }
    for round in 0..rounds + 3 {
        let (t1, y1) = timed(&mut a, one, &inputs, merged::<0>);
        let (t2, y2) = timed(&mut b, many, &inputs, merged::<1>);
        assert_eq!(y1, y2, "other bits on several streams");
        if round >= 3 {
            times[0].push(t1);
            times[1].push(t2);
            ratios.push(t1 as f64 / t2 as f64);
        }
    }
    times.iter_mut().for_each(|t| t.sort_unstable());
    ratios.sort_by(f64::total_cmp);
    let us = |t: &[u64], at: usize| t[at] / 1000;
    println!(
        "  one stream best {} median {} us; several best {} median {} us; times as fast: best/best {:.2}, median of pairs {:.2}",
        us(&times[0], 0),
        us(&times[0], rounds / 2),
        us(&times[1], 0),
        us(&times[1], rounds / 2),
        times[0][0] as f64 / times[1][0] as f64,
        ratios[rounds / 2]
    );
}
