//! Cascades: chosen where they save transfers and time, the bits unchanged; not where there is nothing to save.

use super::*;
use crate::ep::npu::plan::CascadeFacts;

/// A plan run in the compiler: its bits, bytes moved by DMA, predicted time, cascades.
struct Ran {
    bits: Vec<Vec<u8>>,
    dma_bytes: i64,
    ns: u64,
    cascades: Vec<CascadeFacts>,
    program: Program,
    expected: Expectation,
}

fn input(graph: &Graph) -> Vec<u8> {
    let dims = graph.tensor_type(graph.inputs[0]).unwrap().const_dims().unwrap();
    let mut r = Random(7);
    (0..dims.iter().product()).flat_map(|_: usize| (r.below(2000) as f32 / 1000.0 - 1.0).to_le_bytes()).collect()
}

fn ran(graph: &Graph, target: &Target, cascades: bool) -> Ran {
    let (program, expected, n) = planned(graph, target, cascades).expect("runs on the device");
    assert!(n + 2 >= graph.nodes.len(), "all runs on the device but the change of layout at its borders");
    let outputs = exec::run_program(&program, &[&input(graph)], Isa::detect()).unwrap_or_else(|e| panic!("{e}"));
    let device = program.device.as_ref().unwrap();
    let region = program.device_region().unwrap();
    let moved = program.steps.iter().zip(&device.lanes).filter(|(_, l)| matches!(l, Lane::Load | Lane::Store));
    let inside = moved.flat_map(|(s, _)| s.call.operands()).filter(|o| o.operand.mem == region);
    Ran {
        bits: outputs.iter().map(|t| t.data().to_vec()).collect(),
        dma_bytes: inside.map(|o| o.operand.bytes.as_const().unwrap()).sum(),
        ns: program.schedule.predicted_ns,
        cascades: device.cascades.clone(),
        program,
        expected,
    }
}

fn on_the_cpu(graph: &Graph) -> Vec<Vec<u8>> {
    let lowered = lower::lower(graph).unwrap_or_else(|e| panic!("{e}"));
    let outputs = exec::run_unplanned(graph, &lowered, &[&input(graph)], Isa::detect());
    outputs.unwrap_or_else(|e| panic!("{e}")).iter().map(|t| t.data().to_vec()).collect()
}

/// With and without cascades: the same bits, which are the CPU's; fewer bytes moved, an earlier end.
fn pays(graph: &Graph, target: &Target, nodes: usize) -> Ran {
    let (with, without) = (ran(graph, target, true), ran(graph, target, false));
    assert!(without.cascades.is_empty());
    let most = with.cascades.iter().map(|c| c.nodes.len()).max();
    assert!(most >= Some(nodes), "{:?}", with.cascades);
    assert!(with.bits == without.bits && with.bits == on_the_cpu(graph), "other bits");
    assert!(with.dma_bytes < without.dma_bytes, "{} bytes, not {}", with.dma_bytes, without.dma_bytes);
    assert!(with.ns < without.ns, "{} ns, not {}", with.ns, without.ns);
    with
}

/// A device that computes faster than it is fed.
fn hungry(kib: u64) -> Target {
    let mut target = soc(kib << 10);
    let npu = device(&target).unwrap();
    target.devices[npu.idx()].mac_per_s.values_mut().for_each(|rate| *rate *= 10);
    target.devices[npu.idx()].launch_ns = 1_000;
    let slow = 2_000_000_000;
    target.dmas.iter_mut().for_each(|dma| dma.bytes_per_s = slow);
    target.links.iter_mut().for_each(|link| link.copy_bytes_per_s = link.copy_bytes_per_s.map(|_| slow));
    target
}

fn conv(n: &mut Net, x: ValueId, dims: [usize; 4], seed: u64, attrs: &[(&str, Attr)]) -> ValueId {
    let w = n.constant(&dims, seed);
    n.node("Conv", &[x, w], attrs)
}

/// Pointwise convolutions with something element-wise between them: no halo, nothing is computed twice.
fn pointwise() -> Graph {
    let (mut n, x) = Net::new(&[1, 32, 48, 48]);
    let v = conv(&mut n, x, [64, 32, 1, 1], 1, &[]);
    let v = n.node("Softplus", &[v], &[]);
    let v = conv(&mut n, v, [48, 64, 1, 1], 2, &[]);
    let v = conv(&mut n, v, [32, 48, 1, 1], 3, &[]);
    n.done(v)
}

/// What mobile networks are made of: wide in the middle, with a halo of one row above and below.
fn inverted_residual() -> Graph {
    let (mut n, x) = Net::new(&[1, 16, 56, 56]);
    let v = conv(&mut n, x, [96, 16, 1, 1], 1, &[]);
    let v = n.node("Relu", &[v], &[]);
    let v = conv(&mut n, v, [96, 1, 3, 3], 2, &[ints("pads", &[1; 4]), ("group", Attr::Int(96))]);
    let v = n.node("Relu", &[v], &[]);
    let v = conv(&mut n, v, [16, 96, 1, 1], 3, &[]);
    let v = n.node("Add", &[v, x], &[]);
    n.done(v)
}

/// Dense windows over each other, with a stride, holes and a pool.
fn windows() -> Graph {
    let (mut n, x) = Net::new(&[1, 16, 72, 40]);
    let v = conv(&mut n, x, [32, 16, 5, 3], 1, &[ints("pads", &[2, 1, 2, 1])]);
    let v = conv(&mut n, v, [32, 32, 3, 3], 2, &[ints("pads", &[2; 4]), ints("dilations", &[2, 2])]);
    let v = conv(&mut n, v, [48, 32, 3, 3], 3, &[ints("pads", &[1; 4]), ints("strides", &[2, 2])]);
    let v = n.node("MaxPool", &[v], &[ints("kernel_shape", &[2, 2]), ints("strides", &[2, 2])]);
    n.done(v)
}

fn products() -> Graph {
    let (mut n, x) = Net::new(&[1024, 64]);
    let w = n.constant(&[64, 256], 1);
    let v = n.node("MatMul", &[x, w], &[]);
    let v = n.node("Softplus", &[v], &[]);
    let w = n.constant(&[256, 48], 2);
    let v = n.node("MatMul", &[v, w], &[]);
    n.done(v)
}

#[test]
fn pointwise_chains_cascade() {
    let with = pays(&pointwise(), &hungry(192), 4);
    assert!(with.cascades[0].n_strips > 1);
}

#[test]
fn products_with_functions_between_cascade() {
    pays(&products(), &hungry(256), 3);
}

#[test]
fn halos_are_computed_again() {
    let with = pays(&inverted_residual(), &hungry(256), 3);
    assert!(with.cascades[0].n_strips > 1);
    pays(&windows(), &hungry(256), 2);
}

/// Where transfers cost nothing, a cascade would only add the halos' rows; where all fits, there is nothing to save.
#[test]
fn not_where_it_does_not_pay() {
    let graph = windows();
    let mut target = soc(256 << 10);
    for dma in &mut target.dmas {
        (dma.bytes_per_s, dma.latency_ns) = (1 << 50, 0);
    }
    for link in &mut target.links {
        link.copy_bytes_per_s = link.copy_bytes_per_s.map(|_| 1 << 50);
    }
    let (with, without) = (ran(&graph, &target, true), ran(&graph, &target, false));
    assert!(with.cascades.is_empty(), "{:?}", with.cascades);
    assert_eq!((with.ns, with.dma_bytes), (without.ns, without.dma_bytes));
    assert!(ran(&graph, &soc(8 << 20), true).cascades.is_empty());
}

/// In memories of all sizes: never later than without, the same bits.
#[test]
fn never_slower_than_without() {
    let mut chosen = 0;
    for graph in [pointwise(), inverted_residual(), windows(), products()] {
        let cpu = on_the_cpu(&graph);
        for kib in [128, 256, 640] {
            let target = hungry(kib);
            if on_npu(&graph, &target).is_none_or(|(_, _, n)| n + 2 < graph.nodes.len()) {
                continue;
            }
            let (with, without) = (ran(&graph, &target, true), ran(&graph, &target, false));
            assert!(with.ns <= without.ns && with.bits == cpu && without.bits == cpu, "{kib} KiB");
            chosen += usize::from(!with.cascades.is_empty());
        }
    }
    assert!(chosen > 4, "{chosen}");
}

/// A value between that is read elsewhere too is stored, not loaded for the cascade.
#[test]
fn a_value_that_others_read_is_stored_as_well() {
    let (mut n, x) = Net::new(&[1, 32, 48, 48]);
    let a = conv(&mut n, x, [64, 32, 1, 1], 1, &[]);
    let b = conv(&mut n, a, [32, 64, 1, 1], 2, &[]);
    let c = conv(&mut n, b, [64, 32, 1, 1], 3, &[]);
    let v = n.node("Add", &[c, a], &[]);
    let graph = n.done(v);
    pays(&graph, &hungry(160), 2);
}

/// A read of what another strip left in the buffer is a fault that the verifier sees.
#[test]
fn a_strip_that_reads_another_strip_s_rows_is_refused() {
    let with = pays(&inverted_residual(), &hungry(256), 3);
    let region = with.program.device_region().unwrap();
    let lanes = &with.program.device.as_ref().unwrap().lanes;
    let computes: Vec<usize> = (0..lanes.len()).filter(|&i| lanes[i] == Lane::Compute).collect();
    for b in computes {
        let mut program = with.program.clone();
        let mut first = true;
        program.steps[b].call.relocate(&mut |o| {
            if std::mem::take(&mut first) && o.mem == region {
                o.off = if o.off == 0 { 64 } else { 0 };
            }
        });
        assert!(verify::verify(&program, &with.expected).is_err(), "step {b} reads other bytes");
    }
}

/// Chains of random windows, depthwise and pointwise convolutions, pools and functions, in random memories: every plan is
/// proven when it is made, the results are the CPU's.
#[test]
fn random_chains() {
    let mut r = Random(29);
    let mut chosen = 0;
    for at in 0..24 {
        let mut c = [16, 24, 48][r.below(3) as usize] as usize;
        let (mut n, mut v) = Net::new(&[1, c, 20 + r.below(40) as usize, 12 + r.below(20) as usize]);
        for layer in 0..2 + r.below(4) {
            let seed = 100 * at + layer;
            let k = [1, 3, 5][r.below(3) as usize];
            let stride = 1 + r.below(2) as i64;
            let around = ints("pads", &[k / 2; 4]);
            let side = k as usize;
            v = match r.below(5) {
                0 => n.node("Softplus", &[v], &[]),
                1 => n.node("MaxPool", &[v], &[ints("kernel_shape", &[3, 3]), ints("pads", &[1; 4])]),
                2 => conv(&mut n, v, [c, 1, side, side], seed, &[around, ("group", Attr::Int(c as i64))]),
                _ => {
                    let oc = [16, 40, 64][r.below(3) as usize] as usize;
                    let dims = [oc, std::mem::replace(&mut c, oc), side, side];
                    conv(&mut n, v, dims, seed, &[around, ints("strides", &[stride, stride])])
                }
            };
        }
        let graph = n.done(v);
        let target = hungry(64 + r.below(300));
        if same_as_the_cpu(&graph, &target).is_some() {
            let (program, ..) = planned(&graph, &target, true).expect("as before");
            chosen += program.device.map_or(0, |d| d.cascades.len());
        }
    }
    assert!(chosen > 3, "{chosen} cascades in 24 networks");
}
