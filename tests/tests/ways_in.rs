//! Both ways in give a module that runs, and the same bytes.

use kiln_compiler::Options;
use kiln_compiler::artifact::Cache;
use kiln_compiler::memory::Arenas;
use kiln_compiler::profile::Profile;
use kiln_tests::{affine, affine_built, affine_from_file, affine_measured, half, half_from_file, names, rows};
use std::path::{Path, PathBuf};

const X: [f32; 8] = [1.0, 2.0, 3.0, 4.0, -1.0, -2.0, 0.0, 1.0];
const Y: [f32; 6] = [7.5, 9.5, 1.25, 0.0, 0.0, 4.25];

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/models").join(name).join("model.onnx")
}

/// A folder that is gone afterwards.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("kiln-tests-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).unwrap();
        Self(folder)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn the_macro_s_module_runs() {
    let mut model = affine::Model::new().unwrap();
    assert_eq!(model.run(affine::Inputs { x: &X }).unwrap().y, &Y);
    // Again: nothing of the first run is left.
    assert_eq!(model.run(affine::Inputs { x: &[0.0; 8] }).unwrap().y, &[0.5, 0.0, 0.25, 0.5, 0.0, 0.25]);
}

#[test]
fn the_build_script_s_module_runs() {
    let mut model = affine_built::Model::new().unwrap();
    assert_eq!(model.run(affine_built::Inputs { x: &X }).unwrap().y, &Y);
    assert_eq!(affine_built::Model::ARENA_BYTES, kiln_tests::ARENA_BYTES);
}

#[test]
fn weights_from_a_file() {
    let mut model = affine_from_file::Model::new().unwrap();
    assert_eq!(model.run(affine_from_file::Inputs { x: &X }).unwrap().y, &Y);
}

/// Whose weights a file holds, and where it lies.
#[test]
fn only_the_model_s_own_weights_file_is_taken() {
    use affine_from_file::{Inputs, Model};
    use kiln::{Error, WeightsFault, WeightsPlace};
    let folder = Folder::new("weights");
    let fault = |path: &Path| match Model::with_weights(path) {
        Err(Error::Weights { place: WeightsPlace::Given, fault }) => Some(fault),
        _ => None,
    };
    let built = Path::new(Model::WEIGHTS_PATH);
    assert_eq!(built.file_name().and_then(|n| n.to_str()), Some("model.weights"));
    let shipped = folder.0.join("anywhere");
    std::fs::copy(built, &shipped).unwrap();
    assert_eq!(Model::with_weights(&shipped).unwrap().run(Inputs { x: &X }).unwrap().y, &Y);
    let mut arena = kiln_kernels::AlignedBytes::zeroed(Model::ARENA_BYTES).unwrap();
    let mut model = Model::with_weights_in(&shipped, arena.as_mut_slice()).unwrap();
    assert_eq!(model.run(Inputs { x: &X }).unwrap().y, &Y);
    assert!(matches!(Model::with_weights_and_budget(&shipped, 0), Err(Error::Budget { .. })));

    let bytes = std::fs::read(&shipped).unwrap();
    let put = |name: &str, bytes: &[u8]| {
        std::fs::write(folder.0.join(name), bytes).unwrap();
        folder.0.join(name)
    };
    let expected = (Model::WEIGHT_BYTES + 64) as u64;
    let cut = WeightsFault::Length { expected, found: expected - 1 };
    assert_eq!(fault(&put("cut", &bytes[..bytes.len() - 1])), Some(cut));
    assert_eq!(fault(&put("zeros", &vec![0; bytes.len()])), Some(WeightsFault::OtherModel));
    // Another model's file of the same length: its trailer names other weights.
    let mut other = bytes.clone();
    other[bytes.len() - 64 + 24] ^= 1;
    assert_eq!(fault(&put("other", &other)), Some(WeightsFault::OtherModel));
    assert!(matches!(fault(&folder.0.join("none")), Some(WeightsFault::Unreadable { os_error: Some(_) })));

    // On streams, within a budget.
    let x = [0.25; 384];
    let on_streams = |model: half_from_file::Model<'static>| {
        let mut model = model;
        *model.run(half_from_file::Inputs { x: &x }).unwrap().y
    };
    let embedded = *half::Model::new().unwrap().run(half::Inputs { x: &x }).unwrap().y;
    let path = half_from_file::Model::WEIGHTS_PATH;
    assert_eq!(on_streams(half_from_file::Model::with_weights(path).unwrap()), embedded);
    let narrow = half_from_file::Model::with_weights_and_budget(path, half::Model::ARENA_BYTES - 1);
    assert_eq!(on_streams(narrow.unwrap()), embedded);
}

#[test]
fn measured_times_and_a_region_for_each_branch() {
    let mut model = affine_measured::Model::new().unwrap();
    assert_eq!(model.run(affine_measured::Inputs { x: &X }).unwrap().y, &Y);
    // Its options are those of the command and of `Config`.
    let folder = Folder::new("measured");
    let profile = Profile::read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src/affine_times.json")).unwrap();
    let options = Options { arenas: Arenas::Branch, profile: Some(profile), ..Options::default() };
    let artifact = Cache::new(&folder.0).module(&fixture("affine"), &options).unwrap();
    let source = std::fs::read_to_string(artifact.source).unwrap();
    assert!(source.contains("arenas = branch, times from a file ("), "{source}");
}

/// Both schedules of one module: what the budget is enough for, and the same bits.
#[test]
fn a_budget_chooses_the_schedule() {
    let x: Vec<f32> = (0..2 * 3 * 8 * 8).map(|i| (i % 11) as f32 / 7.0 - 0.6).collect();
    let x: &[f32; 384] = x.as_slice().try_into().unwrap();
    let run = |mut model: half::Model<'static>| *model.run(half::Inputs { x }).unwrap().y;
    let wide = run(half::Model::with_budget(half::Model::ARENA_BYTES).unwrap());
    let narrow = run(half::Model::with_budget(half::Model::ARENA_BYTES - 1).unwrap());
    assert_eq!((narrow, run(half::Model::new().unwrap())), (wide, wide));
    match half::Model::with_budget(1) {
        Err(kiln::Error::Budget { needed, given: 1 }) => assert!(needed < half::Model::ARENA_BYTES),
        other => panic!("{:?}", other.err()),
    }
}

#[test]
fn awkward_names_and_element_types() {
    let mut model = names::Model::new().unwrap();
    let inputs = names::Inputs { a_b: &[1.0, 2.0], a_b_2: &[0.5, 0.25], type_: &[7, -3], x_0: &[true, false] };
    let out = model.run(inputs).unwrap();
    assert_eq!((out.a_b_a_b, out.self_, out.x_1, out.a_b), (&[1.5, 2.25], &[14, -6], &[false, true], &[1.0, 2.0]));
    let ports: Vec<_> = names::Model::INPUTS.iter().map(|p| (p.name, p.dtype, p.dims)).collect();
    let two: &[usize] = &[2];
    assert_eq!(ports, [("a.b", "f32", two), ("a/b", "f32", two), ("type", "i64", two), ("0", "bool", two)]);
}

#[test]
fn a_free_size_that_was_fixed() {
    let mut model = rows::Model::new().unwrap();
    assert_eq!(model.run(rows::Inputs { x: &[1.0, -2.0, 3.0, 4.0] }).unwrap().y, &[-1.0, 2.0, -3.0, -4.0]);
}

#[test]
fn memory_of_the_caller() {
    static ARENA: kiln::StaticArena<{ affine::Model::ARENA_BYTES }> = kiln::StaticArena::new();
    let mut model = affine::Model::new_in(ARENA.take().unwrap()).unwrap();
    assert_eq!(model.run(affine::Inputs { x: &X }).unwrap().y, &Y);
    assert!(matches!(affine::Model::new_in(&mut []), Err(kiln::Error::Arena { given: 0, .. })));
}

#[test]
fn both_ways_give_the_same_bytes() {
    let folder = Folder::new("bytes");
    let options = Options { name: "model".into(), ..Options::default() };
    let artifact = Cache::new(&folder.0).module(&fixture("affine"), &options).unwrap();
    assert_eq!(std::fs::read_to_string(&artifact.source).unwrap(), kiln_tests::BUILT_SOURCE);
    assert_eq!(std::fs::read(&artifact.weights).unwrap(), kiln_tests::BUILT_WEIGHTS);
}

#[test]
fn bytes_do_not_depend_on_the_folder() {
    let (a, b) = (Folder::new("a"), Folder::new("b"));
    let copy = b.0.join("elsewhere.onnx");
    std::fs::copy(fixture("tiny_names"), &copy).unwrap();
    let compiled = |cache: &Folder, model: &Path| {
        let artifact = Cache::new(cache.0.join("cache")).module(model, &Options::default()).unwrap();
        let source = std::fs::read_to_string(&artifact.source).unwrap();
        assert!(!source.contains(std::env::temp_dir().to_str().unwrap()) && !source.contains("fixtures"), "{source}");
        (artifact.key, source, std::fs::read(&artifact.weights).unwrap())
    };
    assert_eq!(compiled(&a, &fixture("tiny_names")), compiled(&b, &copy));
}

#[test]
fn an_edit_is_seen_and_an_unchanged_model_is_not_read() {
    let folder = Folder::new("edit");
    let cache = Cache::new(folder.0.join("cache"));
    let model = folder.0.join("m.onnx");
    let old = std::time::SystemTime::now() - std::time::Duration::from_secs(100);
    let put = |name: &str, age: u64| {
        std::fs::copy(fixture(name), &model).unwrap();
        let file = std::fs::File::options().write(true).open(&model).unwrap();
        file.set_modified(old + std::time::Duration::from_secs(age)).unwrap();
    };
    let options = Options::default();
    put("affine", 0);
    let first = cache.module(&model, &options).unwrap();
    // Other bytes of the same length and time: only one who does not read takes it for the same.
    let mut bytes = std::fs::read(&model).unwrap();
    let len = bytes.len();
    bytes.fill(0);
    std::fs::write(&model, &bytes).unwrap();
    std::fs::File::options().write(true).open(&model).unwrap().set_modified(old).unwrap();
    assert_eq!((cache.module(&model, &options).unwrap(), bytes.len()), (first.clone(), len));
    put("tiny_names", 1);
    assert_ne!(cache.module(&model, &options).unwrap().key, first.key);
    put("affine", 2);
    assert_eq!(cache.module(&model, &options).unwrap().key, first.key);
}
