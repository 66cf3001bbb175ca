//! The plan verifier against wrong programs: valid ones, changed at random. Whether a change is really wrong is decided
//! by a byte-exact run on tags ([`kiln_tests::trace`]); the verifier must refuse every change that is.

use kiln_compiler::onnx::{Decoded, decode, encode};
use kiln_compiler::{Options, verify};
use kiln_fixtures::prng::Prng;
use kiln_tests::graphs::random_graph;
use kiln_tests::models;
use kiln_tests::mutate::{KINDS, Mutation};
use kiln_tests::stages::stages;
use kiln_tests::trace::trace;
use std::collections::BTreeMap;

/// Changes tried, and of them really wrong ones, by kind.
type Counts = BTreeMap<&'static str, (usize, usize)>;

fn attack(
    name: &str,
    decoded: &Decoded,
    options: &Options,
    n_each: usize,
    counts: &mut Counts,
    missed: &mut Vec<String>,
) {
    let stages = match stages(decoded, options) {
        Ok(stages) => stages,
        Err(e) => panic!("{name}: {e}"),
    };
    let (buffers, weights) = (stages.buffers(), stages.program.weights_blob());
    let order: Vec<usize> = (0..stages.program.steps.len()).collect();
    let original = trace(&stages.program, &order, &buffers, &weights);
    assert!(!original.is_broken_by(&original), "{name}: the original is broken");
    let mut prng = Prng::of(name);
    for kind in (0..KINDS).flat_map(|k| std::iter::repeat_n(k, n_each)) {
        let Some(mutation) = Mutation::random(kind, &stages.program, &mut prng) else { continue };
        let Some((changed, order)) = mutation.apply(&stages.program) else { continue };
        let wrong = original.is_broken_by(&trace(&changed, &order, &buffers, &weights));
        let count = counts.entry(mutation.kind()).or_default();
        count.0 += 1;
        count.1 += usize::from(wrong);
        if wrong && verify::verify(&changed, &stages.expectation).is_ok() {
            missed.push(format!("{name}: {mutation:?}{}", mutation.place(&stages.program)));
        }
    }
}

fn report(counts: &Counts, missed: &[String], at_least: usize) {
    for (kind, (tried, wrong)) in counts {
        println!("{kind:<9} {tried:>6} tried, {wrong:>6} wrong");
        assert!(*wrong >= at_least, "{kind}: only {wrong} of {tried} changes were wrong: the test has no teeth");
    }
    let n = missed.len();
    assert!(missed.is_empty(), "{n} wrong programs were accepted, among them:\n{}", missed[..n.min(20)].join("\n"));
}

#[test]
fn wrong_programs_of_random_graphs_are_refused() {
    let (mut counts, mut missed) = (Counts::new(), Vec::new());
    for seed in 1000..1120 {
        let random = random_graph(seed, 4 + (seed as usize) % 12);
        let decoded = decode(encode(&random.model), None).expect("a random graph decodes");
        attack(&format!("seed {seed}"), &decoded, &Options::default(), 6, &mut counts, &mut missed);
    }
    report(&counts, &missed, 100);
}

#[test]
fn wrong_programs_of_fixtures_are_refused() {
    let (mut counts, mut missed) = (Counts::new(), Vec::new());
    for name in ["digits", "encoder_dynamic", "gru", "int8_qdq", "names", "half"] {
        let case = models::fixtures().into_iter().find(|c| c.name == name).expect("a fixture");
        let decoded = case.decode().expect("a fixture decodes");
        let set = case.data_sets(&decoded.model).expect("data sets").remove(0);
        let options = Options { import: set.import_options(), ..Options::default() };
        attack(name, &decoded, &options, 8, &mut counts, &mut missed);
    }
    report(&counts, &missed, 10);
}
