//! What the commands about one model share: reading, options, inputs from files or from a seed, building.

use super::args::CompileArgs;
use super::build::{self, Builder, Built, Kiln, Source};
use super::term::Progress;
use super::{Failure, npy};
use crate::Options;
use crate::artifact::{Artifact, Cache, ModelFile};
use crate::cases::read_datum;
use crate::error::{CompileError, CompileErrors, Stage};
use crate::facts::PortFact;
use crate::import::{ImportOptions, check_dims};
use crate::ir::{Datum, Tensor};
use crate::onnx;
use kiln_kernels::Dtype;
use std::path::Path;
use std::time::Instant;

/// Reads the model and makes its options; misspelt dimensions are wrong use.
pub(super) fn read(path: &Path, args: &CompileArgs) -> Result<(ModelFile, Options), Failure> {
    let stem = path.file_stem().map_or_else(|| "model".into(), |s| s.to_string_lossy().into_owned());
    let options = args.options(&crate::emit::module_name(&stem))?;
    let model = ModelFile::read(path)?;
    check_dims(&model.decoded.model, &options.import).map_err(|e| Failure::Misuse(e.to_string()))?;
    Ok((model, options))
}

/// Builds one module; also the seconds it took (cargo's part only).
pub(super) fn build(
    artifact: &Artifact,
    options: &Options,
    cache: &Cache,
    progress: &Progress,
) -> Result<(Built, f64), Failure> {
    let kiln = Kiln::find().map_err(Failure::Misuse)?;
    let jobs = super::jobs(None)?;
    let builder = Builder { cache: cache.folder(), kiln: &kiln, jobs, opt_level: 1, progress };
    let start = Instant::now();
    let built = build::build(&[Source { artifact, per_step: options.per_step }], &builder).map_err(Failure::Short)?;
    let seconds = start.elapsed().as_secs_f64();
    let built = built.into_iter().next().unwrap_or_else(|| Err("nothing was built".into()));
    Ok((built.map_err(Failure::Short)?, seconds))
}

/// An input at hand, by name.
pub(super) type Given = (String, Datum);

/// `--input NAME=FILE`, read: .npy, or .pb with a value of the input's type. Fixes the extents that they say, and refuses
/// names that no input has.
pub(super) fn given_inputs(
    texts: &[String],
    model: &onnx::Model,
    import: &mut ImportOptions,
) -> Result<Vec<Given>, Failure> {
    let names: Vec<_> = model.graph.inputs.iter().map(|i| i.name.as_str()).collect();
    let mut out = Vec::with_capacity(texts.len());
    for text in texts {
        let fail = |what: String| Failure::Misuse(format!("--input {text}: {what}"));
        let (name, path) = text.rsplit_once('=').ok_or_else(|| fail("expected NAME=FILE".into()))?;
        if out.iter().any(|(given, _): &Given| given == name) {
            return Err(fail(format!("\"{name}\" is given twice")));
        }
        let i = names.iter().position(|n| *n == name);
        let i = i.ok_or_else(|| fail(format!("the model has no such input (it has {names:?})")))?;
        let bytes = std::fs::read(path).map_err(|e| fail(e.to_string()))?;
        let datum = match &model.graph.inputs[i].ty {
            _ if path.ends_with(".npy") => npy::parse(&bytes).map_err(fail)?.into(),
            Some(ty) => read_datum(bytes, ty).map_err(|e| fail(e.to_string()))?,
            None => return Err(fail("the model does not state the input's type".into())),
        };
        match &datum {
            Datum::Tensor(t) => drop(import.input_dims.insert(i, t.dims().to_vec())),
            Datum::Object(ty, _) => drop(import.input_types.insert(i, ty.clone())),
        }
        out.push((name.to_owned(), datum));
    }
    Ok(out)
}

/// The inputs in order: those given, the others random and as large as they can be.
pub(super) fn inputs(ports: &[PortFact], given: &[Given], seed: u64) -> Result<Vec<Datum>, CompileErrors> {
    let mut random = Random(seed);
    let mut out = Vec::new();
    for port in ports {
        let wrong = |what: String| CompileError::new(Stage::Read, what).at(format!("input \"{}\"", port.name));
        let datum = match (given.iter().find(|(name, _)| *name == port.name), &port.object) {
            (Some((_, d)), Some(ty)) if d.tensor().is_some() => {
                return Err(wrong(format!("expected {ty}, the file has {}", d.ty())).into());
            }
            (Some((_, d)), None) if !d.tensor().is_some_and(|t| port.takes(t)) => {
                return Err(wrong(format!("expected {}{:?}, the file has {}", port.dtype, port.dims, d.ty())).into());
            }
            (Some((_, d)), _) => d.clone(),
            (None, Some(ty)) => {
                let message = format!("no random value is made of {ty}: give one, as in --input {}=FILE.pb", port.name);
                return Err(wrong(message).into());
            }
            (None, None) => {
                let made = random.tensor(port.dtype, &port.dims);
                made.ok_or_else(|| wrong("is too large for this machine".into()))?.into()
            }
        };
        out.push(datum);
    }
    Ok(out)
}

/// SplitMix64: the same numbers for the same seed, everywhere.
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Uniform in [-1, 1).
    fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 52) as f64 - 1.0
    }

    /// Floats in [-1, 1), small integers: 0 and 1 in wide types (indices, often into tables of two rows, and masks), from 0 to 7 in
    /// narrow ones, where the type has them.
    pub(super) fn tensor(&mut self, dtype: Dtype, dims: &[usize]) -> Option<Tensor> {
        let n = dims.iter().try_fold(1usize, |n, &d| n.checked_mul(d))?;
        if dtype == Dtype::Str {
            let mut texts: Vec<String> = Vec::new();
            texts.try_reserve_exact(n).ok()?;
            texts.extend((0..n).map(|_| format!("{:x}", self.next() & 0xfff)));
            return Tensor::from_strings(dims, &texts);
        }
        let n_bytes = n.checked_mul(dtype.size_bytes())?;
        let mut data = Vec::new();
        data.try_reserve_exact(n_bytes).ok()?;
        for _ in 0..n {
            match dtype {
                Dtype::F32 => data.extend_from_slice(&(self.unit() as f32).to_le_bytes()),
                Dtype::F64 => data.extend_from_slice(&self.unit().to_le_bytes()),
                Dtype::Bf16 => data.extend_from_slice(&((self.unit() as f32).to_bits() >> 16).to_le_bytes()[..2]),
                Dtype::F16 => data.extend_from_slice(&half_bits(self.unit()).to_le_bytes()),
                Dtype::C64 => {
                    data.extend_from_slice(&(self.unit() as f32).to_le_bytes());
                    data.extend_from_slice(&(self.unit() as f32).to_le_bytes());
                }
                Dtype::C128 => {
                    data.extend_from_slice(&self.unit().to_le_bytes());
                    data.extend_from_slice(&self.unit().to_le_bytes());
                }
                Dtype::Bool => data.push((self.next() & 1) as u8),
                _ => {
                    let most = if dtype.bits() < 4 || matches!(dtype, Dtype::I32 | Dtype::I64) { 1 } else { 7 };
                    data.push((self.next() & most) as u8);
                    data.extend(std::iter::repeat_n(0, dtype.size_bytes().saturating_sub(1)));
                }
            }
        }
        Tensor::new(dtype, dims.to_vec(), data.into())
    }
}

/// A number of magnitude below one in half precision, truncated.
fn half_bits(x: f64) -> u16 {
    let sign = if x < 0.0 { 0x8000 } else { 0 };
    // Steps of 2^-11 are exact in half precision down to 2^-1; coarser than the format for small numbers.
    let steps = (x.abs() * 2048.0) as u32;
    if steps == 0 {
        return sign;
    }
    let exponent = 31 - steps.leading_zeros();
    let mantissa = if exponent >= 10 { steps >> (exponent - 10) } else { steps << (10 - exponent) } & 0x3ff;
    sign | (((exponent + 4) << 10) | mantissa) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves() {
        for (x, want) in [(0.0, 0), (0.5, 0x3800), (-0.5, 0xb800), (1.0 - 1.0 / 2048.0, 0x3bff), (1.0 / 2048.0, 0x1000)]
        {
            assert_eq!(half_bits(x), want, "{x}");
        }
    }

    #[test]
    fn a_seed_gives_one_tensor() {
        let of = |seed| Random(seed).tensor(Dtype::F32, &[100]).unwrap().to_f32s().unwrap();
        assert_eq!(of(1), of(1));
        assert_ne!(of(1), of(2));
        assert!(of(3).iter().all(|x| (-1.0..=1.0).contains(x)));
        assert!(Random(0).tensor(Dtype::F32, &[usize::MAX, 2]).is_none());
    }
}
