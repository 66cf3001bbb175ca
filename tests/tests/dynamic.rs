//! One module for several sizes: a free extent takes any size within its bounds, and nothing else.

use kiln::{Error, TensorView};
use kiln_compiler::cases::{self, DataSet, Tolerance};
use kiln_compiler::ir::Tensor;
use kiln_tests::encoder::{Inputs, Model};
use std::path::Path;

fn data_sets() -> (Vec<DataSet>, Tolerance) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/models/encoder_dynamic");
    let case = cases::find(&folder).unwrap().remove(0);
    let decoded = case.decode().unwrap();
    (case.data_sets(&decoded.model).unwrap(), case.tolerance.unwrap_or_default())
}

fn shape<const RANK: usize>(t: &Tensor) -> [usize; RANK] {
    t.dims().try_into().unwrap()
}

fn tensor<const RANK: usize>(view: TensorView<'_, f32, RANK>) -> Tensor {
    Tensor::from_f32s(&view.shape, view.data)
}

/// Inputs of this size: words 1, 2, 3 …, nothing masked.
fn words(batch: usize, seq: usize) -> (Vec<i64>, Vec<i64>) {
    ((0..batch * seq).map(|i| 1 + (i % 7) as i64).collect(), vec![1; batch * seq])
}

fn inputs<'a>(words: &'a (Vec<i64>, Vec<i64>), shape: [usize; 2]) -> Inputs<'a> {
    Inputs { input_ids: TensorView::new(&words.0, shape), attention_mask: TensorView::new(&words.1, shape) }
}

#[test]
fn results_at_two_sizes_are_those_expected() {
    let (sets, tolerance) = data_sets();
    assert!(sets.len() >= 2, "data sets of several sizes");
    let mut model = Model::new().unwrap();
    // Large, small, large again: nothing of another size is left over.
    for set in sets.iter().chain(sets.iter().rev()) {
        let [ids, mask] = [0, 1].map(|i| set.inputs[i].to_i64s().unwrap());
        let (ids_shape, mask_shape) = (shape(&set.inputs[0]), shape(&set.inputs[1]));
        let out = model
            .run(Inputs {
                input_ids: TensorView::new(&ids, ids_shape),
                attention_mask: TensorView::new(&mask, mask_shape),
            })
            .unwrap();
        let got = [tensor(out.last_hidden_state), tensor(out.pooled)];
        cases::compare(&got, &set.outputs, tolerance).unwrap();
    }
}

#[test]
fn every_size_in_range_runs_and_lines_do_not_mix() {
    let mut model = Model::new().unwrap();
    for seq in 1..=16 {
        let (one, two) = (words(1, seq), words(2, seq));
        let alone = model.run(inputs(&one, [1, seq])).unwrap();
        assert_eq!(alone.last_hidden_state.shape[..2], [1, seq]);
        let alone = alone.last_hidden_state.data.to_vec();
        let both = model.run(inputs(&two, [2, seq])).unwrap();
        assert_eq!((both.last_hidden_state.shape[0], both.pooled.shape[0]), (2, 2));
        let first = &both.last_hidden_state.data[..alone.len()];
        for (a, b) in alone.iter().zip(first) {
            assert!((a - b).abs() <= 1e-5 * a.abs().max(1.0), "{seq}: {a} {b}");
        }
    }
}

#[test]
fn other_sizes_are_errors_and_the_model_goes_on() {
    let mut model = Model::new().unwrap();
    let fine = words(2, 16);
    for (batch, seq, axis, given) in [(3, 4, 0, 3), (0, 4, 0, 0), (1, 17, 1, 17), (1, 0, 1, 0)] {
        let words = words(batch, seq);
        let error = model.run(inputs(&words, [batch, seq])).err();
        let expected =
            matches!(error, Some(Error::Extent { input_idx: 0, axis: a, given: g, .. }) if (a, g) == (axis, given));
        assert!(expected, "{batch} {seq}: {error:?}");
        assert!(model.run(inputs(&fine, [2, 16])).is_ok());
    }
    // A length that is not its shape's, and inputs that contradict each other.
    let error = model.run(inputs(&words(1, 4), [1, 5])).err();
    assert!(matches!(error, Some(Error::Input { input_idx: 0, .. })), "{error:?}");
    let (four, five) = (words(1, 4), words(1, 5));
    let mixed =
        Inputs { input_ids: TensorView::new(&four.0, [1, 4]), attention_mask: TensorView::new(&five.1, [1, 5]) };
    let error = model.run(mixed).err();
    assert!(matches!(error, Some(Error::Extent { input_idx: 1, axis: 1, .. })), "{error:?}");
}

#[test]
fn no_size_allocates() {
    let mut model = Model::new().unwrap();
    for (batch, seq) in [(1, 1), (2, 16), (1, 9)] {
        let words = words(batch, seq);
        let mut run = || {
            std::hint::black_box(model.run(inputs(&words, [batch, seq])).unwrap().pooled.shape);
        };
        run();
        assert_eq!(allocation_counter::measure(run).count_total, 0);
    }
}
