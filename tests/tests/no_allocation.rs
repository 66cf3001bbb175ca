//! `run` allocates nothing.

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
