//! The importer over the shared model collections: hostile files end as they should, everything
//! else decodes. The collections are not part of the repository (`KILN_SHARED`, or `../shared`
//! beside the workspace); a test that lacks its data says so and passes.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use kiln_compiler::onnx::model::Type;
use kiln_compiler::onnx::{self, Decoded};

/// Hostile files whose fault is one of structure: this stage must refuse them. The others are left
/// to inference (operators, types, shapes, sizes), and must decode.
const LEFT_TO_INFERENCE: [&str; 27] = [
    "attr_wrong_type.onnx",
    "bomb_constantofshape.onnx",
    "bomb_range.onnx",
    "broadcast_bad.onnx",
    "conv_channels.onnx",
    "conv_group_zero.onnx",
    "conv_stride_zero.onnx",
    "doc_injection.onnx",
    "domain_not_imported.onnx",
    "einsum_rank.onnx",
    "gather_index_bad.onnx",
    "input_dim_huge.onnx",
    "matmul_inner.onnx",
    "name_injection.onnx",
    "nodes_200k.onnx",
    "op_newer_than_opset.onnx",
    "opset_twice.onnx",
    "pool_kernel_huge.onnx",
    "reshape_bad_size.onnx",
    "reshape_two_minus1.onnx",
    "scan_lengths_differ.onnx",
    "scatternd_index_bad.onnx",
    "sparse_valid.onnx",
    "split_sum_bad.onnx",
    "type_mismatch.onnx",
    "unknown_op.onnx",
    "unknown_op_many.onnx",
];

/// The shared folder's `part`, if it is there.
fn shared(part: &str) -> Option<PathBuf> {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).parent()?;
    let root = std::env::var_os("KILN_SHARED").map_or_else(|| workspace.join("../shared"), PathBuf::from);
    let path = root.join(part);
    if path.exists() {
        return Some(path);
    }
    println!("skipped: {part} is not in the shared folder");
    None
}

/// A folder of this process's own, removed at the end.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("kiln-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a temporary folder");
        Scratch(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn run(command: &mut Command) -> bool {
    command.status().is_ok_and(|status| status.success())
}

/// Every file named `*.extension` below `folder`, sorted.
fn files(folder: &Path, extension: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            found.extend(files(&path, extension));
        } else if path.extension().is_some_and(|e| e == extension) {
            found.push(path);
        }
    }
    found.sort();
    found
}

#[test]
fn hostile_files_are_refused() {
    let Some(hostile) = shared("cases/hostile") else { return };
    let scratch = Scratch::new("hostile");
    let copied = run(Command::new("cp").arg("-r").arg(&hostile).arg(&scratch.0))
        && run(Command::new("chmod").args(["-R", "u+w"]).arg(&scratch.0))
        && run(Command::new("sh").arg(scratch.0.join("hostile/make_links.sh")));
    assert!(copied, "cannot copy the hostile files");
    let models = files(&scratch.0, "onnx");
    assert!(models.len() > 80);
    for path in models {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let start = Instant::now();
        let decoded = onnx::read(&path);
        assert!(start.elapsed() < Duration::from_secs(10), "{name} took {:?}", start.elapsed());
        match decoded {
            Ok(_) => assert!(LEFT_TO_INFERENCE.contains(&name), "{name} was not refused"),
            Err(errors) => {
                println!("{name}: {errors}");
                assert!(!LEFT_TO_INFERENCE.contains(&name), "{name}: {errors}");
            }
        }
    }
}

/// Decodes a model and every data file beside it, read as the model's types say.
fn decode_case(model: &Path) -> Result<Decoded, String> {
    let decoded = onnx::read(model).map_err(|errors| format!("{}: {errors}", model.display()))?;
    for data in files(model.parent().unwrap_or(Path::new(".")), "pb") {
        let name = data.file_stem().and_then(|name| name.to_str()).unwrap_or_default();
        let Some((side, number)) = name.split_once('_') else { continue };
        let graph = &decoded.model.graph;
        let values = if side == "input" { &graph.inputs } else { &graph.outputs };
        let ty = number.parse().ok().and_then(|i: usize| values.get(i)).and_then(|value| value.ty.as_ref());
        let ty = ty.ok_or_else(|| format!("{}: the model has no such value", data.display()))?;
        let bytes = std::fs::read(&data).map_err(|e| format!("{}: {e}", data.display()))?;
        let (_, value) = onnx::read_value(bytes, ty).map_err(|e| format!("{}: {e}", data.display()))?;
        if let (onnx::Value::Tensor(tensor), Type::Tensor(dtype, _)) = (&value, ty)
            && tensor.dtype != *dtype
        {
            return Err(format!("{}: is {}, the model says {dtype}", data.display(), tensor.dtype));
        }
    }
    Ok(decoded)
}

/// All models below `folder` decode, and there are at least `n`.
fn all_decode(folder: &Path, n: usize) {
    let models = files(folder, "onnx");
    assert!(models.len() >= n, "{} models in {}", models.len(), folder.display());
    let faults: Vec<String> = models.iter().filter_map(|model| decode_case(model).err()).collect();
    assert!(faults.is_empty(), "{} of {} fail:\n{}", faults.len(), models.len(), faults.join("\n"));
}

#[test]
fn reported_cases_decode() {
    if let Some(folder) = shared("cases/handed") {
        all_decode(&folder, 80);
    }
}

#[test]
fn trained_networks_decode() {
    if let Some(folder) = shared("models/real") {
        all_decode(&folder, 8);
    }
}

#[test]
fn the_onnx_suite_decodes() {
    let Some(archive) = shared("onnx-suite/data.tar.xz") else { return };
    let scratch = Scratch::new("suite");
    if !run(Command::new("tar").arg("xf").arg(&archive).arg("-C").arg(&scratch.0)) {
        println!("skipped: no tar that unpacks {}", archive.display());
        return;
    }
    all_decode(&scratch.0, 2000);
}
