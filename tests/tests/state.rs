//! State from run to run: outputs that are the next run's inputs, of fixed and of growing extents.

use kiln::{Error, TensorView};
use kiln_tests::cache;
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

/// Keys and values of every step so far, heads apart, in the order of `[batch, heads, rows, size]`.
fn gathered(steps: &[Vec<f32>], batch: usize) -> Vec<f32> {
    let head = |b: usize, h: usize| steps.iter().flat_map(move |s| s[(b * 2 + h) * 4..][..4].to_vec());
    (0..batch).flat_map(|b| (0..2).flat_map(move |h| head(b, h))).collect()
}

#[test]
fn a_cache_with_its_rows_inside_grows_in_place() {
    let mut model = cache::Model::new().unwrap();
    // One piece of memory for each of two states: 2 entries, 2 heads, 25 rows of 4 elements.
    let pieces = 2 * (2 * 2 * 25 * 4 * 4_usize).next_multiple_of(64);
    assert!((pieces..pieces + 8192).contains(&cache::Model::ARENA_BYTES), "{}", cache::Model::ARENA_BYTES);
    for batch in [2, 1] {
        let (mut keys, mut values, mut by_hand) = (Vec::new(), Vec::new(), cache::Model::new().unwrap());
        let zeros: Vec<f32> = Vec::new();
        let empty = || TensorView::new(&zeros[..], [batch, 2, 0, 4]);
        model.set_states(cache::States { past_key: empty(), past_value: empty() }).unwrap();
        for step in 0..25 {
            let x: Vec<f32> = (0..batch * 8).map(|i| ((i * 7 + step * 5) % 11) as f32 * 0.3 - 1.5).collect();
            let x = TensorView::new(&x[..], [batch, 1, 8]);
            // The same from a new start, with all rows given.
            let (k, v) = (gathered(&keys, batch), gathered(&values, batch));
            let given = |data| TensorView::new(data, [batch, 2, step, 4]);
            by_hand.set_states(cache::States { past_key: given(&k[..]), past_value: given(&v[..]) }).unwrap();
            let want = by_hand.run(cache::Inputs { x }).unwrap();
            let got = model.run(cache::Inputs { x }).unwrap();
            assert_eq!((got.y.data, got.mean.data), (want.y.data, want.mean.data), "step {step}");
            assert_eq!(got.present_value.shape(), [batch, 2, step + 1, 4]);
            assert_eq!(got.present_key.pieces().len(), batch * 2);
            let last = |view: kiln::ReservedView<'_, f32, 4>| {
                view.pieces().flat_map(|head| head[step * 4..].to_vec()).collect::<Vec<f32>>()
            };
            keys.push(last(got.present_key));
            values.push(last(got.present_value));
            let all: Vec<f32> = got.present_value.iter().copied().collect();
            assert_eq!(all, gathered(&values, batch));
            for (i, mean) in got.mean.data.iter().enumerate() {
                let wanted = values.iter().map(|v| v[i]).sum::<f32>() / values.len() as f32;
                assert!((mean - wanted).abs() < 1e-5, "step {step}: {mean}, expected {wanted}");
            }
        }
        let x = vec![0.0; batch * 8];
        let full = model.run(cache::Inputs { x: TensorView::new(&x, [batch, 1, 8]) }).map(|_| ());
        assert!(matches!(full, Err(Error::Extent { given: 25, most: 24, .. })), "{full:?}");
    }
}
