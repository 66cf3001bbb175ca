//! States that are kept in place, whichever operator makes the output of the input: stepped against the same model without
//! bound states, its outputs fed back by hand.

use kiln_compiler::cases::{self, Tolerance};
use kiln_compiler::import::{DimBound, ImportOptions};
use kiln_compiler::ir::Tensor;
use kiln_compiler::onnx::{decode, encode};
use kiln_compiler::program::{ARENA, INPUTS, Program};
use kiln_compiler::{Options, compile, exec, verify};
use kiln_fixtures::array::{Array, Dtype};
use kiln_fixtures::build::{Attr, Extent, GraphBuilder, fixed};
use kiln_kernels::isa::Isa;
use kiln_tests::models;
use kiln_tests::session::Session;
use kiln_tests::stages::stages;

const SAME: Tolerance = Tolerance { rtol: 1e-6, atol: 1e-6 };
const STEPS: usize = 9;
const OPSET: i64 = 24;

fn program(graph: &GraphBuilder, states: &[(&str, &str)]) -> Program {
    let mut model = graph.clone().model(OPSET);
    let mut microsoft = model.opset_import[0].clone();
    (microsoft.domain, microsoft.version) = ("com.microsoft".to_owned(), 1);
    model.opset_import.push(microsoft);
    for node in model.graph.iter_mut().flat_map(|g| &mut g.node) {
        if matches!(node.op_type.as_str(), "MultiHeadAttention" | "GroupQueryAttention") {
            node.domain = "com.microsoft".to_owned();
        }
    }
    let decoded = decode(encode(&model), None).unwrap();
    let dims = [("seen", DimBound::Range(0, 20)), ("batch", DimBound::Range(1, 3)), ("new", DimBound::Range(1, 1))];
    let has = |name: &str| {
        model.graph.iter().flat_map(|g| &g.input).any(|i| format!("{i:?}").contains(&format!("\"{name}\"")))
    };
    let dims = dims.into_iter().filter(|(n, _)| has(n));
    let import = ImportOptions { dims: dims.map(|(n, b)| (n.to_owned(), b)).collect(), ..Default::default() };
    let states = states.iter().map(|(a, b)| ((*a).to_owned(), (*b).to_owned())).collect();
    compile(&decoded, &Options { import, states, ..Options::default() }).unwrap()
}

fn numbers(dims: &[usize], step: usize) -> Tensor {
    let n = dims.iter().product();
    let values: Vec<f32> = (0..n).map(|i: usize| ((i * 7 + step * 13) % 17) as f32 * 0.2 - 1.6).collect();
    Tensor::from_f32s(dims, &values)
}

/// Steps the model with its states bound and by hand; every state must be kept in place if `in_place` says so.
fn check(
    graph: &GraphBuilder,
    states: &[(&str, &str)],
    first: &[Tensor],
    in_place: bool,
    input: impl Fn(usize) -> Vec<Tensor>,
) {
    let (bound, by_hand) = (program(graph, states), program(graph, &[]));
    let pairs = bound.states.clone();
    assert_eq!(pairs.len(), states.len());
    assert!(pairs.iter().all(|s| s.held.is_some() == in_place), "{pairs:?}");
    let names: Vec<String> = bound.inputs.iter().map(|p| p.name.clone()).collect();
    let mut session = Session::new(bound.clone()).unwrap();
    let mut now = first.to_vec();
    for (pair, t) in pairs.iter().zip(&now) {
        session.set(&names[pair.input_idx], t).unwrap();
    }
    for step in 0..STEPS {
        let given = input(step);
        let (mut states, mut others) = (pairs.iter().zip(&now).peekable(), given.iter());
        let feeds: Vec<Tensor> = (0..names.len())
            .map(|i| match states.next_if(|(p, _)| p.input_idx == i) {
                Some((_, t)) => t.clone(),
                None => others.next().unwrap().clone(),
            })
            .collect();
        let want = exec::run_program_on(&by_hand, &feeds, Isa::detect()).unwrap();
        let got = session.run(&given).unwrap();
        cases::compare(&got, &want, SAME).unwrap_or_else(|e| panic!("step {step}: {e}"));
        // One run on inputs that are all given takes them as what a run before left.
        let once = exec::run_program_on(&bound, &feeds, Isa::detect()).unwrap();
        cases::compare(&once, &want, SAME).unwrap_or_else(|e| panic!("step {step} alone: {e}"));
        now = pairs.iter().map(|p| want[p.output_idx].clone()).collect();
    }
}

fn batch() -> Extent {
    Extent::from("batch")
}

#[test]
fn several_tensors_behind_a_cache() {
    for (axis, read_twice) in [(0, false), (1, false), (2, false), (2, true)] {
        let mut g = GraphBuilder::new("joined");
        let dims = |rows: Extent| {
            let mut dims: Vec<Extent> = vec![batch(), 2.into(), 3.into()];
            dims[axis] = rows;
            dims
        };
        let name = |i: usize| format!("new {i}");
        (0..2).for_each(|i| _ = g.input(&name(i), Dtype::F32, &dims(1.into())));
        g.input("past", Dtype::F32, &dims("seen".into()));
        g.node("Concat", &["past", &name(0), &name(1)], "present", &[("axis", Attr::I(axis as i64))]);
        g.node("Tanh", &[if read_twice { "past" } else { "present" }], "read", &[]);
        g.output("read", Dtype::F32, &dims("read rows".into()));
        g.output("present", Dtype::F32, &dims("seen now".into()));
        let real = |rows: usize| {
            let mut dims = [if axis == 0 { 0 } else { 2 }, 2, 3];
            dims[axis] = rows;
            dims
        };
        let new = |step: usize| vec![numbers(&real(1), step), numbers(&real(1), step + 5)];
        check(&g, &[("present", "past")], &[numbers(&real(2), 3)], !read_twice, new);
    }
}

#[test]
fn outputs_that_are_views_of_a_state() {
    for op in ["Identity", "Unsqueeze", "Slice", "Transpose"] {
        let mut g = GraphBuilder::new("viewed");
        let rows = |name: &'static str| [Extent::from(name), 3.into()];
        for (k, name) in ["first", "second"].into_iter().enumerate() {
            let (past, present, view) = (format!("past {name}"), format!("present {name}"), format!("view {name}"));
            g.input(&past, Dtype::F32, &rows("seen"));
            let new = g.input(&format!("new {name}"), Dtype::F32, &rows("new"));
            g.node("Concat", &[&past, &new], &present, &[("axis", Attr::I(0))]);
            let ints =
                |g: &mut GraphBuilder, what: &str, v: i64| g.weight(&format!("{what} {name}"), &Array::ints(&[v]));
            match op {
                "Unsqueeze" => {
                    let axis = ints(&mut g, "axis", 0);
                    g.node(op, &[&present, &axis], &view, &[]);
                }
                "Slice" => {
                    let (from, to) = (ints(&mut g, "from", k as i64 + 1), ints(&mut g, "to", 99));
                    g.node(op, &[&present, &from, &to], &view, &[]);
                }
                _ => _ = g.node(op, &[&present], &view, &[]),
            }
            let dims: Vec<Extent> = match op {
                "Unsqueeze" => vec!["one".into(), "seen now".into(), 3.into()],
                "Transpose" => vec![3.into(), "seen now".into()],
                _ => vec!["rows".into(), 3.into()],
            };
            g.output(&view, Dtype::F32, &dims);
            g.output(&present, Dtype::F32, &rows("seen now"));
        }
        let states = [("present first", "past first"), ("present second", "past second")];
        let first = [numbers(&[2, 3], 1), numbers(&[2, 3], 2)];
        check(&g, &states, &first, true, |step| vec![numbers(&[1, 3], step), numbers(&[1, 3], step + 7)]);
    }
}

/// Inputs of an attention operator over a cache, heads apart.
fn cache(g: &mut GraphBuilder, heads: usize, size: usize) {
    for past in ["past.key", "past.value"] {
        g.input(past, Dtype::F32, &[batch(), heads.into(), "seen".into(), size.into()]);
    }
}

fn presents(g: &mut GraphBuilder, heads: usize, size: usize) {
    g.output("y", Dtype::F32, &[batch(), 1.into(), "width".into()]);
    for present in ["present.key", "present.value"] {
        g.output(present, Dtype::F32, &[batch(), heads.into(), "seen now".into(), size.into()]);
    }
}

const PRESENT: [(&str, &str); 2] = [("present.key", "past.key"), ("present.value", "past.value")];

#[test]
fn attention_appends_to_its_cache() {
    let heads = |n: i64| [("q_num_heads", Attr::I(n)), ("kv_num_heads", Attr::I(2))];
    for op in ["Attention", "MultiHeadAttention"] {
        let n = if op == "Attention" { 4 } else { 2 };
        let mut g = GraphBuilder::new("attention");
        let widths = [n * 4, 8, 8];
        for (name, width) in ["q", "k", "v"].into_iter().zip(widths) {
            g.input(name, Dtype::F32, &[batch(), 1.into(), width.into()]);
        }
        cache(&mut g, 2, 4);
        let outputs = ["y", "present.key", "present.value"];
        if op == "Attention" {
            g.nodes(op, &["q", "k", "v", "", "past.key", "past.value"], &outputs, &heads(4));
        } else {
            let inputs = ["q", "k", "v", "", "", "", "past.key", "past.value"];
            g.nodes(op, &inputs, &outputs, &[("num_heads", Attr::I(2))]);
        }
        presents(&mut g, 2, 4);
        for batch in [1, 3] {
            let new = |step: usize| widths.map(|w| numbers(&[batch, 1, w], step + w)).to_vec();
            for seen in [0, 4] {
                let first = [numbers(&[batch, 2, seen, 4], 1), numbers(&[batch, 2, seen, 4], 2)];
                check(&g, &PRESENT, &first, true, new);
            }
        }
    }
}

#[test]
fn grouped_attention_appends_to_a_growing_cache_and_writes_into_a_full_one() {
    for shared in [false, true] {
        let mut g = GraphBuilder::new("grouped");
        for (name, width) in [("q", 16), ("k", 8), ("v", 8)] {
            g.input(name, Dtype::F32, &[batch(), 1.into(), width.into()]);
        }
        let rows = || if shared { Extent::from(12) } else { "seen".into() };
        for past in ["past.key", "past.value"] {
            g.input(past, Dtype::F32, &[batch(), 2.into(), rows(), 4.into()]);
        }
        g.input("last", Dtype::I32, &[batch()]);
        if shared {
            g.weight("total", &Array::new(Dtype::I32, &[], vec![12.0]));
        } else {
            let (at, one) = (Array::scalar(Dtype::I64, 2.0), Array::scalar(Dtype::I64, 1.0));
            g.weight("at", &at);
            g.weight("one", &one);
            g.node("Shape", &["past.key"], "shape", &[]);
            g.node("Gather", &["shape", "at"], "seen rows", &[("axis", Attr::I(0))]);
            g.node("Add", &["seen rows", "one"], "total64", &[]);
            g.node("Cast", &["total64"], "total", &[("to", Attr::I(6))]);
        }
        let attrs = [("num_heads", Attr::I(4)), ("kv_num_heads", Attr::I(2))];
        let inputs = ["q", "k", "v", "past.key", "past.value", "last", "total"];
        g.nodes("GroupQueryAttention", &inputs, &["y", "present.key", "present.value"], &attrs);
        presents(&mut g, 2, 4);
        for batch in [1, 3] {
            let seen = if shared { 12 } else { 2 };
            let first = [numbers(&[batch, 2, seen, 4], 1), numbers(&[batch, 2, seen, 4], 2)];
            check(&g, &PRESENT, &first, true, |step| {
                let last: Vec<u8> = (0..batch).flat_map(|_| (2 + step as i32).to_le_bytes()).collect();
                let last = Tensor::new(kiln_kernels::Dtype::I32, vec![batch], last.into()).unwrap();
                let new = [16, 8, 8].map(|w| numbers(&[batch, 1, w], step + w));
                [&new[..], &[last]].concat()
            });
        }
    }
}

#[test]
fn rows_are_written_into_a_cache_of_fixed_size() {
    let ints = |dims: &[usize], values: &[i64]| Tensor::from_i64s(dims, values);
    for (op, attrs, in_place) in [
        ("TensorScatter", vec![("axis", Attr::I(1))], true),
        ("ScatterElements", vec![("axis", Attr::I(1))], true),
        ("ScatterND", vec![], true),
        ("ScatterND", vec![("reduction", Attr::S("add"))], false),
    ] {
        let (indices, update): (Vec<usize>, Vec<usize>) = match op {
            "TensorScatter" => (vec![2], vec![2, 1, 3]),
            "ScatterElements" => (vec![2, 1, 3], vec![2, 1, 3]),
            _ => (vec![1, 2], vec![1, 3]),
        };
        let mut g = GraphBuilder::new("written");
        g.input("cache", Dtype::F32, &fixed(&[2, 12, 3]));
        g.input("at", Dtype::I64, &fixed(&indices));
        g.input("rows", Dtype::F32, &fixed(&update));
        let inputs = if op == "TensorScatter" { ["cache", "rows", "at"] } else { ["cache", "at", "rows"] };
        g.node(op, &inputs, "cache now", &attrs);
        g.node("Neg", &["cache now"], "y", &[]);
        g.output("y", Dtype::F32, &fixed(&[2, 12, 3]));
        g.output("cache now", Dtype::F32, &fixed(&[2, 12, 3]));
        check(&g, &[("cache now", "cache")], &[numbers(&[2, 12, 3], 4)], in_place, |step| {
            let n: usize = indices.iter().product();
            let at: Vec<i64> = if n == 2 && op == "ScatterND" { vec![1, step as i64] } else { vec![step as i64; n] };
            vec![ints(&indices, &at), numbers(&update, step)]
        });
    }
}

/// The verifier follows a cache from what the run before left to what this run makes of it.
#[test]
fn wrong_programs_are_refused() {
    let case = models::fixtures().into_iter().find(|c| c.name == "cache").unwrap();
    let decoded = case.decode().unwrap();
    let dims = [("seen", DimBound::Range(0, 20)), ("batch", DimBound::Range(1, 3))];
    let import = ImportOptions { dims: dims.map(|(n, b)| (n.to_owned(), b)).into(), ..Default::default() };
    let states = vec![("present.*".to_owned(), "past.*".to_owned())];
    let stages = stages(&decoded, &Options { import, states, ..Options::default() }).unwrap();
    let first = INPUTS + stages.program.inputs.len() as u32;
    let in_state = |mem: u32| mem >= first;
    let mut tried = 0;
    let mut refuse = |what: String, changed: &Program| {
        tried += 1;
        assert!(verify::verify(changed, &stages.expectation).is_err(), "accepted: {what}");
    };
    for step in 0..stages.program.steps.len() {
        let operands = stages.program.steps[step].call.operands();
        let touched = operands.iter().filter(|o| in_state(o.operand.mem)).count();
        for at in 0..touched {
            // Elsewhere in the state, in the other state, in the arena.
            for (to, off) in [("the same", 64), ("the other", 0), ("the arena", 0)] {
                let mut changed = stages.program.clone();
                let mut seen = 0;
                changed.steps[step].call.relocate(&mut |o| {
                    if in_state(o.mem) {
                        if seen == at {
                            o.off += off;
                            o.mem = match to {
                                "the same" => o.mem,
                                "the other" => first + (1 - (o.mem - first)),
                                _ => ARENA,
                            };
                        }
                        seen += 1;
                    }
                });
                refuse(format!("step {step}, operand {at} moved to {to} + {off}"), &changed);
            }
        }
        if touched > 0 {
            let mut changed = stages.program.clone();
            changed.states.iter_mut().for_each(|s| s.held = None);
            refuse("a state that is not kept".into(), &changed);
        }
    }
    // A reader before the rows are appended.
    let appends =
        |i: &usize| stages.program.steps[*i].call.operands().iter().any(|o| o.writes() && in_state(o.operand.mem));
    for append in (0..stages.program.steps.len()).filter(appends) {
        let mem = stages.program.steps[append].call.operands()[0].operand.mem;
        let reads = |s: usize| stages.program.steps[s].call.operands().iter().any(|o| o.operand.mem == mem);
        let reader = (append + 1..stages.program.steps.len()).find(|&s| reads(s)).unwrap();
        let mut changed = stages.program.clone();
        let (a, b) = (changed.steps[append].clone(), changed.steps[reader].clone());
        (changed.steps[append], changed.steps[reader]) = (b, a);
        refuse(format!("steps {append} and {reader} exchanged"), &changed);
    }
    assert!(tried > 20, "{tried}");
}
