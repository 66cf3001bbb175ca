//! What the commands about one model share: reading, options, inputs from files or from a seed, building.

use super::args::CompileArgs;
use super::build::{self, Builder, Built, Kiln, Source};
use super::term::Progress;
use super::{Failure, npy};
use crate::Options;
use crate::artifact::{Artifact, Cache, ModelFile};
use crate::error::{CompileError, CompileErrors, Stage};
use crate::facts::PortFact;
use crate::import::{ImportOptions, check_dims, convert_tensor};
use crate::ir::Tensor;
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

/// `NAME=FILE`, read: .npy, or a TensorProto.
pub(super) fn given_input(text: &str) -> Result<(String, Tensor), Failure> {
    let fail = |what: String| Failure::Misuse(format!("--input {text}: {what}"));
    let (name, path) = text.rsplit_once('=').ok_or_else(|| fail("expected NAME=FILE".into()))?;
    let bytes = std::fs::read(path).map_err(|e| fail(e.to_string()))?;
    if path.ends_with(".npy") {
        return Ok((name.to_owned(), npy::parse(&bytes).map_err(fail)?));
    }
    let (_, t) = onnx::read_tensor(bytes).map_err(|e| fail(e.to_string()))?;
    let tensor = convert_tensor(&t).map_err(|e| fail(e.to_string()))?;
    Ok((name.to_owned(), tensor))
}

/// Fixes the free extents of the inputs that are given, and refuses names that no input has.
pub(super) fn fix_extents(
    import: &mut ImportOptions,
    model: &onnx::Model,
    given: &[(String, Tensor)],
) -> Result<(), Failure> {
    let names: Vec<_> = model.graph.inputs.iter().map(|i| i.name.as_str()).collect();
    for (name, tensor) in given {
        let Some(i) = names.iter().position(|n| n == name) else {
            return Err(Failure::Misuse(format!("--input {name}: the model has no such input (it has {names:?})")));
        };
        import.input_dims.insert(i, tensor.dims().to_vec());
    }
    Ok(())
}

/// The inputs in order: those given, the others random and as large as they can be.
pub(super) fn inputs(ports: &[PortFact], given: &[(String, Tensor)], seed: u64) -> Result<Vec<Tensor>, CompileErrors> {
    let mut random = Random(seed);
    let mut out = Vec::new();
    for port in ports {
        let tensor = match given.iter().find(|(name, _)| *name == port.name) {
            Some((_, t)) if !port.takes(t) => {
                let message = format!("expected {}{:?}, the file has {t:?}", port.dtype, port.dims);
                return Err(CompileError::new(Stage::Read, message).at(format!("input \"{}\"", port.name)).into());
            }
            Some((_, t)) => t.clone(),
            None => random.tensor(port.dtype, &port.dims).ok_or_else(|| {
                CompileError::new(Stage::Read, "is too large for this machine").at(format!("input \"{}\"", port.name))
            })?,
        };
        out.push(tensor);
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
