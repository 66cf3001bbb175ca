//! Test cases in ONNX's own layout: a folder with `model.onnx` and `test_data_set_*/{input,output}_*.pb`.
//!
//! In: folders. Out: cases with their data sets, and the comparison of results with what is expected.

pub mod random;

use crate::error::{CompileError, CompileErrors, Stage};
use crate::import::{DimBound, ImportOptions, convert_tensor, convert_type, extent_name};
use crate::ir::{Datum, Tensor, narrow};
use crate::onnx::{self, Decoded, model::Type};
use crate::ops::read_ints::element_name;
use kiln_kernels::{Dtype, Object};
use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};

/// Tolerances: `|got - want| <= atol + rtol * |want|`.
#[derive(Clone, Copy, Debug)]
pub struct Tolerance {
    /// Relative.
    pub rtol: f64,
    /// Absolute.
    pub atol: f64,
}

impl Default for Tolerance {
    fn default() -> Self {
        Self { rtol: 1e-3, atol: 1e-7 }
    }
}

/// Inputs and expected outputs of one run.
#[derive(Clone, Debug)]
pub struct DataSet {
    /// Graph inputs in order; an empty tensor stands for each that is none.
    pub inputs: Vec<Tensor>,
    /// Expected outputs in order; an empty tensor stands for each that is none.
    pub outputs: Vec<Tensor>,
    /// The inputs that are sequences or optional values, by position.
    pub input_objects: BTreeMap<usize, Datum>,
    /// The outputs that are sequences or optional values, by position.
    pub output_objects: BTreeMap<usize, Datum>,
    /// For each output the law it follows, if it hangs on random numbers.
    pub random: Vec<Option<random::Law>>,
}

/// A folder with a model and data.
#[derive(Clone, Debug)]
pub struct Case {
    /// The folder's name.
    pub name: String,
    /// The folder.
    pub folder: PathBuf,
    /// From `data.json`, if it is there.
    pub tolerance: Option<Tolerance>,
}

/// The cases in a folder: itself, or the folders below it that hold a `model.onnx`, sorted.
pub fn find(folder: &Path) -> std::io::Result<Vec<Case>> {
    let mut out = Vec::new();
    find_below(folder, &mut HashSet::new(), &mut out)?;
    Ok(out)
}

/// Links may lead in circles: a folder is looked through once.
fn find_below(folder: &Path, seen: &mut HashSet<PathBuf>, out: &mut Vec<Case>) -> std::io::Result<()> {
    if folder.join("model.onnx").is_file() {
        out.push(case(folder));
        return Ok(());
    }
    if !seen.insert(folder.canonicalize()?) {
        return Ok(());
    }
    let mut below: Vec<PathBuf> = std::fs::read_dir(folder)?.map(|e| e.map(|e| e.path())).collect::<Result<_, _>>()?;
    below.sort();
    below.into_iter().filter(|p| p.is_dir()).try_for_each(|path| find_below(&path, seen, out))
}

fn case(folder: &Path) -> Case {
    let name = folder.file_name().map_or_else(|| "model".into(), |n| n.to_string_lossy().into_owned());
    Case { name, folder: folder.to_owned(), tolerance: tolerance_of(folder) }
}

/// What a folder's `data.json` says of the precision that its model allows, if it is there.
pub(crate) fn tolerance_of(folder: &Path) -> Option<Tolerance> {
    let text = std::fs::read_to_string(folder.join("data.json")).ok()?;
    let json: serde_json::Value = serde_json::from_str(&text).ok()?;
    let default = Tolerance::default();
    let number = |key: &str, d: f64| json.get(key).and_then(serde_json::Value::as_f64).unwrap_or(d);
    Some(Tolerance { rtol: number("rtol", default.rtol), atol: number("atol", default.atol) })
}

fn error(message: impl Into<String>) -> CompileErrors {
    CompileError::new(Stage::Read, message).into()
}

fn unsupported(message: impl Into<String>) -> CompileErrors {
    CompileError::new(Stage::Import, message).into()
}

impl Case {
    /// Reads the model.
    pub fn decode(&self) -> Result<Decoded, CompileErrors> {
        onnx::read(self.folder.join("model.onnx"))
    }

    /// Reads the data sets, in order.
    pub fn data_sets(&self, model: &onnx::Model) -> Result<Vec<DataSet>, CompileErrors> {
        let mut out = Vec::new();
        for i in 0.. {
            let folder = self.folder.join(format!("test_data_set_{i}"));
            if !folder.is_dir() {
                break;
            }
            let types = model.graph.inputs.iter().map(|v| v.ty.as_ref());
            let (inputs, input_objects) = read_all(&folder, "input", types)?;
            let types = model.graph.outputs.iter().map(|v| v.ty.as_ref());
            let (outputs, output_objects) = read_all(&folder, "output", types)?;
            let random = random::laws(model, &inputs);
            out.push(DataSet { inputs, outputs, input_objects, output_objects, random });
        }
        if out.is_empty() { Err(error("no test_data_set_0 beside the model")) } else { Ok(out) }
    }
}

/// Tensors by position, and the values that are none.
type Values = (Vec<Tensor>, BTreeMap<usize, Datum>);

fn read_all<'a>(
    folder: &Path,
    what: &str,
    types: impl Iterator<Item = Option<&'a Type>>,
) -> Result<Values, CompileErrors> {
    let (mut out, mut objects) = (Vec::new(), BTreeMap::new());
    for (i, ty) in types.enumerate() {
        let path = folder.join(format!("{what}_{i}.pb"));
        let bytes = std::fs::read(&path).map_err(|e| error(format!("cannot read {}: {e}", path.display())))?;
        if let Some(ty) = ty.filter(|ty| !matches!(ty, Type::Tensor(..))) {
            let place = |errors: CompileErrors| -> CompileErrors {
                let mut placed = CompileErrors::default();
                placed.extend(errors.into_iter().map(|e| e.at(format!("{what} {i}"))));
                placed
            };
            objects.insert(i, read_datum(bytes, ty).map_err(place)?);
            out.push(Tensor::from_u8s(&[0], &[]));
            continue;
        }
        let (_, t) = onnx::read_tensor(bytes)?;
        out.push(convert_tensor(&t).map_err(|e| CompileError { stage: Stage::Read, ..e })?);
    }
    Ok((out, objects))
}

/// A value of this type, from the bytes of a `.pb` file of ONNX's test layout.
pub fn read_datum(bytes: Vec<u8>, ty: &Type) -> Result<Datum, CompileErrors> {
    if let Type::Tensor(..) = ty {
        let (_, t) = onnx::read_tensor(bytes)?;
        return Ok(convert_tensor(&t).map_err(|e| CompileError { stage: Stage::Read, ..e })?.into());
    }
    let known = convert_type(ty).ok_or_else(|| unsupported(format!("{ty} is not supported")))?;
    let (_, value) = onnx::read_value(bytes, ty)?;
    let object = object(&value).ok_or_else(|| unsupported("a map is not supported"))?;
    Ok(Datum::Object(narrow(&known, &object), object))
}

/// A decoded value as an object; `None` for a map, or what is too large.
fn object(value: &onnx::Value) -> Option<Object> {
    match value {
        onnx::Value::Tensor(t) => convert_tensor(t).ok()?.to_object(),
        onnx::Value::Sequence(all) => all.iter().map(object).collect::<Option<_>>().map(Object::Sequence),
        onnx::Value::Optional(None) => Some(Object::None),
        onnx::Value::Optional(Some(v)) => object(v),
        onnx::Value::Map(_) => None,
    }
}

/// Tensors by position, with the values that are none in their places.
fn data(tensors: &[Tensor], objects: &BTreeMap<usize, Datum>) -> Vec<Datum> {
    let each = |(i, t): (usize, &Tensor)| objects.get(&i).cloned().unwrap_or_else(|| t.clone().into());
    tensors.iter().enumerate().map(each).collect()
}

/// Whether values may give sizes or choose a branch.
fn are_few_ints(t: &Tensor) -> bool {
    matches!(t.dtype(), Dtype::I64 | Dtype::I32) && t.dims().len() <= 1 && t.numel() <= 64
}

impl DataSet {
    /// Import options that fix free extents to this data's.
    pub fn import_options(&self) -> ImportOptions {
        let tensors = self.inputs.iter().enumerate().filter(|(i, _)| !self.input_objects.contains_key(i));
        let input_dims = tensors.map(|(i, t)| (i, t.dims().to_vec())).collect();
        let input_types = self.input_objects.iter().map(|(i, d)| (*i, d.ty())).collect();
        ImportOptions { input_dims, input_types, ..ImportOptions::default() }
    }

    /// The same with small integer inputs as constants, for models that need their values (a sampling rate that chooses a
    /// branch); and the inputs that are left.
    pub fn import_options_with_ints(&self) -> (ImportOptions, Vec<&Tensor>) {
        let constants = self.inputs.iter().enumerate().filter(|(_, t)| are_few_ints(t));
        let input_constants = constants.map(|(i, t)| (i, t.clone())).collect();
        let left = self.inputs.iter().filter(|t| !are_few_ints(t)).collect();
        (ImportOptions { input_constants, ..self.import_options() }, left)
    }

    /// All inputs.
    pub fn input_data(&self) -> Vec<Datum> {
        data(&self.inputs, &self.input_objects)
    }

    /// Compares results of any kind with the expected ones, as [`Self::compare`].
    pub fn compare_data(&self, got: &[Datum], tolerance: Tolerance) -> Result<(), String> {
        let placeholder = || Tensor::from_u8s(&[0], &[]);
        let tensor = |(i, d): (usize, &Datum)| match self.output_objects.contains_key(&i) {
            true => Some(placeholder()),
            false => d.tensor().cloned(),
        };
        let tensors: Option<Vec<Tensor>> = got.iter().enumerate().map(tensor).collect();
        self.compare(&tensors.ok_or("an output is no tensor")?, tolerance)?;
        for (i, want) in &self.output_objects {
            let got = got.get(*i).and_then(Datum::object).ok_or("an output is missing")?;
            let want = want.object().unwrap_or_default();
            compare_objects(&got, &want, tolerance).map_err(|e| format!("output {i}: {e}"))?;
        }
        Ok(())
    }

    /// As [`Self::import_options`], with these bounds; an extent that they leave a range to is not fixed (and counts as 0).
    pub fn import_options_with(&self, model: &onnx::Model, dims: &BTreeMap<String, DimBound>) -> ImportOptions {
        let mut options = ImportOptions { dims: dims.clone(), ..self.import_options() };
        for (i, info) in model.graph.inputs.iter().enumerate() {
            let (Some(Type::Tensor(_, Some(declared))), Some(here)) = (&info.ty, options.input_dims.get_mut(&i)) else {
                continue;
            };
            for (axis, (dim, n)) in declared.iter().zip(here).enumerate() {
                let bound = extent_name(&info.name, axis, dim).and_then(|name| dims.get(&name));
                if matches!(bound, Some(DimBound::Range(..))) {
                    *n = 0;
                }
            }
        }
        options
    }

    /// Bounds for the values of inputs of few integers, by the names of `--dim`: up to those at hand where they can be sizes.
    pub fn value_bounds(&self, model: &onnx::Model) -> BTreeMap<String, DimBound> {
        let mut bounds = BTreeMap::new();
        for (info, t) in model.graph.inputs.iter().zip(&self.inputs) {
            for (i, &v) in t.to_ints().filter(|_| are_few_ints(t)).unwrap_or_default().iter().enumerate() {
                let size = (2..1 << 31).contains(&v);
                let bound = if size { DimBound::Range(1, v) } else { DimBound::Fixed(v) };
                bounds.insert(element_name(&info.name, i), bound);
            }
        }
        bounds
    }

    /// The small inputs that operators may need at compile time: shapes, axes, sizes, flags.
    pub fn small_values(&self) -> BTreeMap<usize, Tensor> {
        let small = |t: &Tensor| match t.dtype() {
            Dtype::Str => false,
            Dtype::I64 | Dtype::I32 => t.dims().len() <= 1 && t.numel() <= 256,
            // Scales of a few axes.
            Dtype::F32 => t.dims().len() <= 1 && t.numel() <= 8,
            _ => t.dims().len() <= 1 && t.numel() == 1,
        };
        self.inputs.iter().enumerate().filter(|(_, t)| small(t)).map(|(i, t)| (i, t.clone())).collect()
    }

    /// Compares results with the expected ones, random ones by their law; the reason where they differ.
    pub fn compare(&self, got: &[Tensor], tolerance: Tolerance) -> Result<(), String> {
        same_count(got, &self.outputs)?;
        for (i, (g, w)) in got.iter().zip(&self.outputs).enumerate() {
            let result = match self.random.get(i) {
                Some(Some(law)) => random::compare(g, w, law, tolerance),
                _ => compare_one(g, w, tolerance),
            };
            result.map_err(|e| format!("output {i}: {e}"))?;
        }
        Ok(())
    }

    /// What to say of a case that passed: which outputs are random.
    pub fn note(&self) -> String {
        let random: Vec<_> = self.random.iter().enumerate().filter(|(_, law)| law.is_some()).collect();
        let names: Vec<_> = random.iter().map(|(i, _)| i.to_string()).collect();
        match names.len() {
            0 => String::new(),
            1 => format!("(output {} is random: compared by its distribution)", names[0]),
            _ => format!("(outputs {} are random: compared by their distribution)", names.join(", ")),
        }
    }
}

fn same_count(got: &[Tensor], want: &[Tensor]) -> Result<(), String> {
    if got.len() == want.len() {
        return Ok(());
    }
    Err(format!("{} outputs, expected {}", got.len(), want.len()))
}

/// Compares results; the reason where they differ.
pub fn compare(got: &[Tensor], want: &[Tensor], tolerance: Tolerance) -> Result<(), String> {
    same_count(got, want)?;
    for (i, (g, w)) in got.iter().zip(want).enumerate() {
        compare_one(g, w, tolerance).map_err(|e| format!("output {i}: {e}"))?;
    }
    Ok(())
}

/// Compares objects; the reason where they differ.
fn compare_objects(got: &Object, want: &Object, tolerance: Tolerance) -> Result<(), String> {
    match (got, want) {
        (Object::None, Object::None) => Ok(()),
        (Object::Sequence(got), Object::Sequence(want)) if got.len() == want.len() => {
            let mut both = got.iter().zip(want).enumerate();
            let each = |(i, (g, w))| compare_objects(g, w, tolerance).map_err(|e| format!("element {i}: {e}"));
            both.try_for_each(each)
        }
        (Object::Sequence(got), Object::Sequence(want)) => {
            Err(format!("{} elements, expected {}", got.len(), want.len()))
        }
        (got, want) => match (Tensor::from_object(got), Tensor::from_object(want)) {
            (Some(g), Some(w)) => compare_one(&g, &w, tolerance),
            _ => Err("values of different kinds".into()),
        },
    }
}

fn compare_one(got: &Tensor, want: &Tensor, tolerance: Tolerance) -> Result<(), String> {
    if got.dtype() != want.dtype() || got.dims() != want.dims() {
        return Err(format!("{got:?}, expected {want:?}"));
    }
    if let (Some(g), Some(w)) = (got.to_strings(), want.to_strings()) {
        let differ = g.iter().zip(&w).position(|(g, w)| g != w);
        return differ.map_or(Ok(()), |i| Err(format!("at {i} {:?}, expected {:?}", g[i], w[i])));
    }
    let (Some(g), Some(w)) = (to_f64s(got), to_f64s(want)) else {
        if got.data() == want.data() {
            return Ok(());
        }
        let size = got.dtype().size_bytes().max(1);
        let wrong = got.data().chunks(size).zip(want.data().chunks(size)).filter(|(a, b)| a != b).count();
        let at = got.data().chunks(size).zip(want.data().chunks(size)).position(|(a, b)| a != b).unwrap_or(0);
        let show = |t: &Tensor| t.to_ints().map_or_else(|| "other bytes".into(), |v| v[at].to_string());
        return Err(format!(
            "{wrong} of {} elements differ; at {at} {}, expected {}",
            got.numel(),
            show(got),
            show(want)
        ));
    };
    let mut worst = (0.0f64, 0usize);
    let mut wrong = 0usize;
    for (i, (&g, &w)) in g.iter().zip(&w).enumerate() {
        let excess = if g == w || (g.is_nan() && w.is_nan()) {
            continue;
        } else if g.is_finite() && w.is_finite() {
            (g - w).abs() - (tolerance.atol + tolerance.rtol * w.abs())
        } else {
            f64::INFINITY
        };
        if excess > 0.0 {
            wrong += 1;
            if excess > worst.0 {
                worst = (excess, i);
            }
        }
    }
    if wrong == 0 {
        return Ok(());
    }
    let i = worst.1;
    Err(format!("{wrong} of {} elements differ; worst at {i}: {}, expected {}", g.len(), g[i], w[i]))
}

/// The elements as numbers, of any type but a complex one's pairs.
pub fn values(t: &Tensor) -> Option<Vec<f64>> {
    to_f64s(t).or_else(|| t.to_ints().map(|v| v.into_iter().map(|i| i as f64).collect()))
}

/// The elements of a float tensor (real and imaginary parts of a complex one).
fn to_f64s(t: &Tensor) -> Option<Vec<f64>> {
    let halves = |f: fn(u16) -> f64| t.data().chunks_exact(2).map(|c| f(u16::from_le_bytes([c[0], c[1]]))).collect();
    Some(match t.dtype() {
        Dtype::F32 => t.to_f32s()?.into_iter().map(f64::from).collect(),
        Dtype::F64 => t.to_f64s()?,
        Dtype::C64 => {
            t.data().chunks_exact(4).map(|c| f64::from(f32::from_le_bytes([c[0], c[1], c[2], c[3]]))).collect()
        }
        Dtype::Bf16 => halves(|b| f64::from(f32::from_bits(u32::from(b) << 16))),
        Dtype::F16 => halves(f16_value),
        _ => return None,
    })
}

fn f16_value(bits: u16) -> f64 {
    let (sign, exponent, mantissa) = (bits >> 15, (bits >> 10) & 31, f64::from(bits & 1023));
    let magnitude = match exponent {
        0 => mantissa * 2f64.powi(-24),
        31 if mantissa == 0.0 => f64::INFINITY,
        31 => f64::NAN,
        e => (1024.0 + mantissa) * 2f64.powi(i32::from(e) - 25),
    };
    if sign == 1 { -magnitude } else { magnitude }
}
