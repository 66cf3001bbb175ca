//! The device through every pass: claims, placement, lowering, plan, verifier, run; no pass knows of it.

use kiln_compiler::ep::{ExecutionProvider, Providers};
use kiln_compiler::exec;
use kiln_compiler::ir::{Graph, Layout, Node, TensorType, Value, ValueId};
use kiln_compiler::machine::Machine;
use kiln_compiler::plan::target::Target;
use kiln_compiler::program::{Meta, Program};
use kiln_compiler::{Options, passes, program_with};
use kiln_kernels::Dtype;
use kiln_kernels::isa::Isa;
use kiln_test_provider::{Dsp, TARGET};
use std::sync::Arc;

fn chain(n: usize, ops: &[&str]) -> Graph {
    let mut g = Graph::default();
    let mut v = g.add_typed("x", TensorType::fixed(Dtype::F32, &[n]), Layout::Plain);
    g.inputs.push(v);
    for (i, op) in ops.iter().enumerate() {
        v = node(&mut g, &format!("{op}{i}"), op, v);
    }
    g.outputs.push(("y".into(), v));
    passes::infer(&mut g).unwrap_or_else(|e| panic!("{e}"));
    g
}

fn node(g: &mut Graph, name: &str, op: &str, x: ValueId) -> ValueId {
    let out = g.add_value(Value { name: format!("{name}_out"), ..Value::default() });
    g.nodes.push(Node {
        name: name.into(),
        domain: String::new(),
        op: op.into(),
        version: 17,
        attrs: Default::default(),
        inputs: vec![Some(x)],
        outputs: vec![Some(out)],
        bodies: Default::default(),
    });
    out
}

fn compiled(graph: &Graph) -> Program {
    let target = Arc::new(Target::parse(TARGET, "cpu+dsp.toml").unwrap_or_else(|e| panic!("{e}")));
    let options = Options { machine: Machine { target, text: "cpu+dsp".into() }, ..Options::default() };
    let more: [&dyn ExecutionProvider; 1] = [&Dsp];
    let program = program_with(graph, &options, Meta::default(), &Providers::with(&more));
    program.unwrap_or_else(|e| panic!("{e}"))
}

fn devices(program: &Program) -> Vec<(String, usize)> {
    program.placement.as_ref().map(|p| p.devices.clone()).unwrap_or_default()
}

#[test]
fn large_work_goes_to_the_device_without_copies_and_small_work_stays() {
    let ops = ["Relu", "Erf", "Tanh", "Relu"];
    let large = compiled(&chain(1 << 20, &ops));
    assert_eq!(devices(&large), [("dsp".to_owned(), 2), ("cpu".to_owned(), 2)]);
    // Shared memory: the values are handed over, not copied.
    assert_eq!(large.placement.as_ref().map(|p| p.crossings.len()), Some(0));
    let small = compiled(&chain(64, &ops));
    assert_eq!(devices(&small), [("dsp".to_owned(), 0), ("cpu".to_owned(), 4)]);
}

#[test]
fn its_own_lowering_is_used_and_the_result_is_right() {
    let n = 1 << 20;
    let program = compiled(&chain(n, &["Relu", "Erf", "Tanh", "Relu"]));
    let erf = program.steps.iter().find(|s| s.node == "Erf1").expect("a step");
    assert_eq!(erf.call.entry(), "unary_math_f32");
    let x: Vec<f32> = (0..n).map(|i| (i % 512) as f32 / 256.0 - 1.0).collect();
    let bytes: Vec<u8> = x.iter().flat_map(|v| v.to_le_bytes()).collect();
    let y = exec::run_program(&program, &[&bytes], Isa::detect()).unwrap_or_else(|e| panic!("{e}"));
    let y = y[0].to_f32s().expect("floats");
    // erf(1) = 0.842700793, tanh of it 0.687230.
    let at = x.iter().position(|v| *v == 0.996_093_75).expect("there");
    assert!((y[at] - 0.686).abs() < 0.003, "{}", y[at]);
    assert!(x.iter().zip(&y).all(|(x, y)| (*x > 0.0) == (*y > 0.0)));
}

#[test]
fn a_target_that_names_it_needs_it() {
    let target = Target::parse(TARGET, "cpu+dsp.toml").unwrap_or_else(|e| panic!("{e}"));
    let dsp = target.device_named("dsp").expect("a device");
    assert!(Providers::default().of(&target, dsp).is_err_and(|e| e.contains("no execution provider \"dsp\"")));
    let more: [&dyn ExecutionProvider; 1] = [&Dsp];
    assert!(Providers::with(&more).of(&target, dsp).is_ok());
}
