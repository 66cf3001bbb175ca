//! What must hold of any file: it ends in a module or in errors. libFuzzer turns a panic, ten seconds or two gigabytes
//! into a finding.

use kiln_compiler::emit::{self, WeightsFrom};
use kiln_compiler::import::{DimBound, extent_name};
use kiln_compiler::onnx::model::{Model, Type};
use kiln_compiler::{Options, compile as whole, onnx};
use std::path::PathBuf;
use std::sync::LazyLock;

/// Where external data is looked for: a folder with one file of 4 KiB, `data`.
static FOLDER: LazyLock<PathBuf> = LazyLock::new(|| {
    let folder = std::env::temp_dir().join("kiln-fuzz-data");
    let bytes: Vec<u8> = (0..4096u32).map(|i| (i * 31 % 251) as u8).collect();
    std::fs::create_dir_all(&folder).and_then(|()| std::fs::write(folder.join("data"), bytes)).expect("a folder");
    folder
});

/// Bounds for every free extent, so that models with free extents get beyond the import.
fn bounds(model: &Model, options: &mut Options) {
    for input in &model.graph.inputs {
        let Some(Type::Tensor(_, Some(dims))) = &input.ty else { continue };
        let names = dims.iter().enumerate().filter_map(|(axis, d)| extent_name(&input.name, axis, d));
        options.import.dims.extend(names.map(|name| (name, DimBound::Range(1, 8))));
    }
}

/// From bytes to a module's source, as far as it goes; the errors are read, too.
pub fn compile(data: &[u8]) {
    let decoded = match onnx::decode(data.to_vec(), Some(&FOLDER)) {
        Ok(decoded) => decoded,
        Err(e) => return drop(e.to_string()),
    };
    let mut options = Options { streams: 1 + data.len() % 2, ..Options::default() };
    bounds(&decoded.model, &mut options);
    match whole(&decoded, &options) {
        Ok(program) => drop(emit::emit(&program, WeightsFrom::File, false).map_err(|e| e.to_string())),
        Err(e) => drop(e.to_string()),
    }
}
