//! State from run to run: outputs that are the next run's inputs, of fixed and of growing extents.

use kiln::{Error, TensorView};
use kiln_tests::running::{Inputs, Model, States};

/// The input of step `k`.
fn row(k: usize) -> [f32; 4] {
    std::array::from_fn(|i| (k * 4 + i) as f32 * 0.25 - 3.0)
}

/// Runs the steps `from..to` and checks each against sums made here; `before` are the rows seen, `h` the decaying sum.
fn check(model: &mut Model<'static>, steps: std::ops::Range<usize>, before: &mut Vec<[f32; 4]>, h: &mut [f32; 4]) {
    for k in steps {
        let x = row(k);
        before.push(x);
        *h = std::array::from_fn(|i| h[i] * 0.5 + x[i]);
        let out = model.run(Inputs { x: &x }).unwrap();
        let flat: Vec<f32> = before.iter().flatten().copied().collect();
        assert_eq!((out.present.shape, out.present.data), ([before.len(), 4], &flat[..]), "step {k}");
        assert_eq!(out.h_next, h, "step {k}");
        for (i, mean) in out.mean.iter().enumerate() {
            let wanted = before.iter().map(|r| r[i]).sum::<f32>() / before.len() as f32;
            assert!((mean - wanted).abs() < 1e-4, "step {k}: {mean}, expected {wanted}");
        }
    }
}

#[test]
fn thirty_two_steps_and_a_new_start() {
    let mut model = Model::new().unwrap();
    let (mut rows, mut h) = (Vec::new(), [0.0; 4]);
    check(&mut model, 0..32, &mut rows, &mut h);
    model.reset();
    let (mut rows, mut h) = (Vec::new(), [0.0; 4]);
    check(&mut model, 5..9, &mut rows, &mut h);
}

#[test]
fn states_can_be_set() {
    let mut model = Model::new().unwrap();
    let past = [row(1), row(2), row(3)];
    let flat: Vec<f32> = past.iter().flatten().copied().collect();
    model.set_states(States { past: TensorView::new(&flat, [3, 4]), h: &[8.0; 4] }).unwrap();
    check(&mut model, 4..8, &mut past.to_vec(), &mut [8.0; 4]);
    let short = States { past: TensorView::new(&flat, [2, 4]), h: &[0.0; 4] };
    assert!(matches!(model.set_states(short), Err(Error::Input { .. })));
}

#[test]
fn what_grows_beyond_its_bound_is_an_error_and_no_state_is_lost() {
    let mut model = Model::new().unwrap();
    let (mut rows, mut h) = (Vec::new(), [0.0; 4]);
    check(&mut model, 0..41, &mut rows, &mut h);
    for _ in 0..2 {
        let result = model.run(Inputs { x: &row(41) }).map(|_| ());
        assert!(matches!(result, Err(Error::Extent { given: 41, most: 40, .. })), "{result:?}");
    }
    model.reset();
    check(&mut model, 0..3, &mut Vec::new(), &mut [0.0; 4]);
}

#[test]
fn no_step_allocates() {
    let mut model = Model::new().unwrap();
    let x = row(0);
    model.run(Inputs { x: &x }).unwrap();
    let mut steps = || {
        for _ in 0..8 {
            std::hint::black_box(model.run(Inputs { x: &x }).unwrap().mean);
        }
    };
    steps();
    assert_eq!(allocation_counter::measure(steps).count_total, 0);
}
