//! Models to test with: the repository's fixtures, and larger ones where they are present.
//!
//! `KILN_MODELS` names a folder of seed networks, `KILN_SHARED` the folder that holds `models/real` (by default `shared`
//! beside the workspace). What is absent is skipped, and the test says so.

use kiln_compiler::cases::{self, Case, DataSet};
use kiln_compiler::ir::Tensor;
use kiln_fixtures::prng::Prng;
use kiln_kernels::Dtype;
use std::path::{Path, PathBuf};

/// The workspace's folder.
pub fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().map_or_else(PathBuf::new, Path::to_path_buf)
}

/// The repository's fixtures, sorted by name.
pub fn fixtures() -> Vec<Case> {
    let cases = cases::find(&kiln_fixtures::folder()).unwrap_or_default();
    assert!(cases.len() > 10, "the fixtures are missing: cargo run --release -p kiln-fixtures");
    cases
}

/// Larger networks that lie on this machine, smallest first; `KILN_ONLY` keeps those whose name contains it.
pub fn networks() -> Vec<Case> {
    let shared = std::env::var_os("KILN_SHARED").map(PathBuf::from);
    let shared = shared.or_else(|| Some(workspace().parent()?.join("shared")));
    let folders = [std::env::var_os("KILN_MODELS").map(PathBuf::from), shared.map(|s| s.join("models/real"))];
    let mut all: Vec<Case> = folders.iter().flatten().filter_map(|f| cases::find(f).ok()).flatten().collect();
    if let Ok(only) = std::env::var("KILN_ONLY") {
        all.retain(|c| c.name.contains(&only));
    }
    let bytes = |c: &Case| std::fs::metadata(c.folder.join("model.onnx")).map_or(0, |m| m.len());
    all.sort_by_key(|c| (bytes(c), c.name.clone()));
    all
}

/// Another data set of the same types and sizes: floats are drawn from the range of the given ones, integers are the
/// given ones in another order (they may be indices or a mask).
pub fn random_like(set: &DataSet, seed: u64) -> Vec<Tensor> {
    let mut prng = Prng::new(seed);
    let shuffled = |t: &Tensor, prng: &mut Prng| {
        let size = t.dtype().size_bytes().max(1);
        let mut elements: Vec<&[u8]> = t.data().chunks(size).collect();
        prng.shuffle(&mut elements);
        Tensor::new(t.dtype(), t.dims().to_vec(), elements.concat().into())
    };
    let drawn = |t: &Tensor, prng: &mut Prng| {
        let given = t.to_f32s()?;
        let (low, high) = given.iter().fold((f32::MAX, f32::MIN), |(a, b), &v| (a.min(v), b.max(v)));
        let values: Vec<f32> = given.iter().map(|_| prng.between(f64::from(low), f64::from(high)) as f32).collect();
        Some(Tensor::from_f32s(t.dims(), &values))
    };
    let another = |t: &Tensor| {
        let random = if t.dtype() == Dtype::F32 { drawn(t, &mut prng) } else { shuffled(t, &mut prng) };
        random.unwrap_or_else(|| t.clone())
    };
    set.inputs.iter().map(another).collect()
}
