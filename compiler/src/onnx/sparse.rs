//! A `SparseTensorProto` to a dense [`Tensor`].
//!
//! In: the message. Out: the dense tensor, zeros where no element is given. The dense size is
//! checked against a budget before memory is taken: a few bytes of file may name petabytes.
//! Source: `onnx.proto`, `SparseTensorProto`: indices are `[NNZ]` linear or `[NNZ, rank]`, in
//! ascending order, without duplicates.

use bytes::Bytes;
use kiln_kernels::Dtype;

use super::external::ExternalFiles;
use super::model::{Tensor, TensorData};
use super::proto::SparseTensorProto;
use super::tensor::{decode_dims, decode_tensor, show};
use crate::error::{CompileError, Stage};

/// Bytes that all dense forms of a model's sparse tensors may take.
pub(super) struct DenseBudget {
    left_bytes: usize,
}

impl DenseBudget {
    /// What any model may take, and for each byte of file.
    const ALWAYS_BYTES: usize = 64 << 20;
    const PER_FILE_BYTE: usize = 64;

    pub(super) fn for_file(file_bytes: usize) -> Self {
        let left_bytes = file_bytes.saturating_mul(Self::PER_FILE_BYTE).saturating_add(Self::ALWAYS_BYTES);
        DenseBudget { left_bytes }
    }

    fn take(&mut self, numel: usize, dtype: Dtype) -> Result<usize, CompileError> {
        let len_bytes = numel.checked_mul(dtype.size_bytes()).filter(|len| *len <= self.left_bytes);
        let len_bytes = len_bytes.ok_or_else(|| {
            error(format!(
                "sparse tensor of {numel} elements of {dtype} is too large to make dense ({} bytes are left for a file of this size)",
                self.left_bytes
            ))
        })?;
        self.left_bytes -= len_bytes;
        Ok(len_bytes)
    }
}

/// Decodes a sparse tensor to a dense one.
pub(super) fn decode_sparse(
    proto: SparseTensorProto,
    files: &mut ExternalFiles,
    budget: &mut DenseBudget,
) -> Result<Tensor, CompileError> {
    let (Some(values), Some(indices)) = (proto.values, proto.indices) else {
        return Err(error("sparse tensor lacks its values or its indices"));
    };
    let values = decode_tensor(values, files).map_err(|e| e.at("values of a sparse tensor"))?;
    let indices = decode_tensor(indices, files).map_err(|e| e.at("indices of a sparse tensor"))?;
    let (dims, numel) = decode_dims(&proto.dims)?;
    let TensorData::Bytes(elements) = &values.data else {
        return Err(error("sparse tensors of strings are not supported"));
    };
    let places = linear_places(&indices, &values, &dims, numel)?;
    let mut dense = vec![0u8; budget.take(numel, values.dtype)?];
    let size = values.dtype.size_bytes();
    for (place, element) in places.iter().zip(elements.chunks_exact(size)) {
        dense[place * size..][..size].copy_from_slice(element);
    }
    Ok(Tensor { dtype: values.dtype, dims, data: TensorData::Bytes(Bytes::from(dense)) })
}

/// Row-major places of the given elements, checked: in range, ascending, as many as values.
fn linear_places(indices: &Tensor, values: &Tensor, dims: &[usize], numel: usize) -> Result<Vec<usize>, CompileError> {
    let n_values = match values.dims[..] {
        [n] => n,
        _ => {
            return Err(error(format!("values of a sparse tensor have dims {}, want [NNZ]", show(&values.dims))));
        }
    };
    if indices.dtype != Dtype::I64 {
        return Err(error(format!("indices of a sparse tensor are {}, want i64", indices.dtype)));
    }
    let rank = dims.len();
    let per_value = match indices.dims[..] {
        [n] if n == n_values => None,
        [n, r] if n == n_values && r == rank => Some(r),
        _ => {
            return Err(error(format!(
                "indices of a sparse tensor have dims {}, want [{n_values}] or [{n_values},{rank}]",
                show(&indices.dims)
            )));
        }
    };
    if numel == 0 && n_values > 0 {
        return Err(error("sparse tensor without room has values"));
    }
    let flat = indices.to_i64s().unwrap_or_default();
    let places = match per_value {
        None => flat.iter().map(|&index| in_range(index, numel)).collect::<Result<Vec<_>, _>>()?,
        Some(0) => vec![0; n_values],
        Some(rank) => flat
            .chunks_exact(rank)
            .map(|index| {
                index.iter().zip(dims).try_fold(0usize, |sum, (&i, &extent)| {
                    // No overflow: the product of dims was checked, and sum stays below it.
                    Ok(sum * extent + in_range(i, extent)?)
                })
            })
            .collect::<Result<Vec<_>, _>>()?,
    };
    if let Some(pair) = places.windows(2).find(|pair| pair[0] >= pair[1]) {
        return Err(error(format!(
            "indices of a sparse tensor must ascend: element {} is followed by {}",
            pair[0], pair[1]
        )));
    }
    Ok(places)
}

fn in_range(index: i64, extent: usize) -> Result<usize, CompileError> {
    usize::try_from(index)
        .ok()
        .filter(|index| *index < extent)
        .ok_or_else(|| error(format!("index {index} of a sparse tensor is out of range, the extent is {extent}")))
}

fn error(message: impl Into<String>) -> CompileError {
    CompileError::new(Stage::Decode, message)
}

#[cfg(test)]
mod tests {
    use super::super::proto::TensorProto;
    use super::*;

    fn sparse(dims: &[i64], values: &[f32], index_dims: &[i64], indices: &[i64]) -> SparseTensorProto {
        let values = TensorProto {
            data_type: 1,
            dims: vec![values.len() as i64],
            float_data: values.to_vec(),
            ..TensorProto::default()
        };
        let indices = TensorProto {
            data_type: 7,
            dims: index_dims.to_vec(),
            int64_data: indices.to_vec(),
            ..TensorProto::default()
        };
        SparseTensorProto { values: Some(values), indices: Some(indices), dims: dims.to_vec() }
    }

    fn decode(proto: SparseTensorProto) -> Result<Vec<f32>, String> {
        let tensor = decode_sparse(proto, &mut ExternalFiles::new(None), &mut DenseBudget::for_file(0));
        let bytes = tensor.map_err(|e| e.message)?.bytes().cloned().unwrap_or_default();
        Ok(bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect())
    }

    #[test]
    fn both_forms_of_indices() {
        assert_eq!(decode(sparse(&[2, 2], &[5.0, 6.0], &[2], &[1, 2])), Ok(vec![0.0, 5.0, 6.0, 0.0]));
        assert_eq!(decode(sparse(&[2, 2], &[5.0, 6.0], &[2, 2], &[0, 1, 1, 0])), Ok(vec![0.0, 5.0, 6.0, 0.0]));
        assert_eq!(decode(sparse(&[3], &[], &[0], &[])), Ok(vec![0.0; 3]));
        assert_eq!(decode(sparse(&[], &[7.0], &[1, 0], &[])), Ok(vec![7.0]));
        assert_eq!(decode(sparse(&[0, 1 << 62], &[], &[0], &[])), Ok(vec![]));
    }

    #[test]
    fn refused() {
        for (proto, wanted) in [
            (sparse(&[6], &[1.0], &[1], &[6]), "index 6 of a sparse tensor is out of range, the extent is 6"),
            (sparse(&[6], &[1.0], &[1], &[-1]), "index -1 of a sparse tensor is out of range, the extent is 6"),
            (sparse(&[2, 3], &[1.0], &[1, 2], &[1, 3]), "index 3 of a sparse tensor is out of range, the extent is 3"),
            (
                sparse(&[6], &[1.0, 2.0], &[2], &[3, 3]),
                "indices of a sparse tensor must ascend: element 3 is followed by 3",
            ),
            (sparse(&[6], &[1.0], &[2], &[1, 2]), "indices of a sparse tensor have dims [2], want [1] or [1,1]"),
            (sparse(&[0, 1 << 62, 1 << 62], &[1.0], &[1, 3], &[0, 9, 9]), "sparse tensor without room has values"),
            (
                sparse(&[1 << 40], &[1.0], &[1], &[0]),
                "sparse tensor of 1099511627776 elements of f32 is too large to make dense (67108864 bytes are left for a file of this size)",
            ),
        ] {
            assert_eq!(decode(proto), Err(wanted.to_owned()));
        }
    }
}
