//! Times a case on one stream and on several, on the runtime's own threads, without building modules:
//! `instreams FOLDER [STREAMS [ROUNDS [without-waits]]]`. Runs alternate, so that a busy machine disturbs both alike; outputs
//! are compared bit by bit. `without-waits`: no stream waits for another, and nothing is compared: what a race check must
//! find (`tests/races.sh` runs both).

use kiln::rt::{Instance, Region, Stream, Weights};
use kiln_compiler::ir::Symbol;
use kiln_compiler::program::{Port, Program};
use kiln_compiler::schedule::StreamStep;
use kiln_compiler::{Options, cases, compile};
use kiln_kernels::{AlignedBytes, Cx};
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

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let number = |i: usize, default: usize| args.get(i).and_then(|a| a.parse().ok()).unwrap_or(default);
    let (n_streams, rounds) = (number(2, 2).min(STREAMS.len()), number(3, 30));
    let case = cases::find(Path::new(&args[1])).expect("folder").remove(0);
    let decoded = case.decode().expect("model");
    let set = case.data_sets(&decoded.model).expect("data").remove(0);
    for (slot, streams) in PROGRAMS.iter().zip([1, n_streams]) {
        let options = Options { import: set.import_options(), streams, ..Options::default() };
        slot.get_or_init(|| compile(&decoded, &options).expect("compiles"));
    }
    let [one, many] = PROGRAMS.each_ref().map(|p| p.get().expect("compiled"));
    println!(
        "{}: {} streams, {} steps, {} waits; arena {} -> {} bytes ({:.3}); predicted {} -> {} us ({:.2} times as fast)",
        case.name,
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
    let weights = |p: &Program| Weights::Loaded(AlignedBytes::copy_of(&p.weights_blob()).expect("memory"));
    let streams: &'static [Stream] = &STREAMS[..many.schedule.streams.len()];
    let mut a = Instance::on_heap(one.arena.bytes as usize, weights(one)).expect("memory");
    let mut b = Instance::on_streams(many.arena.bytes as usize, weights(many), streams).expect("memory");
    let inputs: Vec<_> = set.inputs.iter().map(|t| AlignedBytes::copy_of(t.data()).expect("memory")).collect();
    let (mut times, mut ratios) = ([Vec::new(), Vec::new()], Vec::new());
    if args.get(4).is_some_and(|a| a == "without-waits") {
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
