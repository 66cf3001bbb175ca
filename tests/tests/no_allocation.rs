//! `run` allocates nothing.

use kiln::kernels as k;
use kiln::rt;
use kiln_tests::{affine, names, rows};

fn allocations(mut f: impl FnMut()) -> u64 {
    f();
    allocation_counter::measure(f).count_total
}

#[test]
fn run_allocates_nothing() {
    let mut model = affine::Model::new().unwrap();
    assert_eq!(
        allocations(|| {
            let _ = model.run(affine::Inputs { x: &[1.0; 8] }).unwrap();
        }),
        0
    );
    let mut model = names::Model::new().unwrap();
    let inputs = names::Inputs { a_b: &[1.0; 2], a_b_2: &[2.0; 2], type_: &[3; 2], x_0: &[true; 2] };
    assert_eq!(
        allocations(|| {
            let _ = model.run(inputs).unwrap();
        }),
        0
    );
    let mut model = rows::Model::new().unwrap();
    assert_eq!(
        allocations(|| {
            let _ = model.run(rows::Inputs { x: &[1.0; 4] }).unwrap();
        }),
        0
    );
    assert!(allocations(|| drop(Box::new(1))) > 0, "the counter counts");
}

/// Two streams that wait for each other; each step adds one to the stream's own numbers.
fn stream<const S: u64>(cx: &k::Cx<'_>) -> Option<()> {
    for step in 0..100 {
        let own = k::Operand::at(0, S * 64, 64);
        k::unary_f32(cx.at(step), &k::Unary { x: own, y: own, n: 16, op: k::UnaryOp::Neg, a: 0.0, b: 0.0 });
        cx.signal(step + 1);
        cx.wait(1 - S as u32, step + 1)?;
    }
    Some(())
}

#[test]
fn several_streams_allocate_nothing() {
    static STREAMS: &[rt::Stream] = &[stream::<0>, stream::<1>];
    static NODES: &[(u32, &str)] = &[(0, "all")];
    fn merged(cx: &k::Cx<'_>) {
        let _ = (stream::<0>(cx), stream::<1>(cx));
    }
    let mut model = rt::Instance::on_streams(128, rt::Weights::Embedded(&[]), STREAMS).unwrap();
    let mut run = || {
        let mut regions = [rt::Region::read(&[]), rt::Region::read(&[])];
        model.run(&mut regions, &[], NODES, merged).unwrap();
    };
    assert_eq!(allocations(|| (0..50).for_each(|_| run())), 0);
}
