//! NumPy's file format, as far as tensors need it (little-endian numbers and booleans, C or Fortran order).
//!
//! Source: numpy.lib.format, versions 1.0 to 3.0.

use crate::ir::Tensor;
use kiln_kernels::Dtype;

const MAGIC: &[u8] = b"\x93NUMPY";

const TYPES: &[(&str, Dtype)] = &[
    ("<f4", Dtype::F32),
    ("<f8", Dtype::F64),
    ("<f2", Dtype::F16),
    ("|i1", Dtype::I8),
    ("<i2", Dtype::I16),
    ("<i4", Dtype::I32),
    ("<i8", Dtype::I64),
    ("|u1", Dtype::U8),
    ("<u2", Dtype::U16),
    ("<u4", Dtype::U32),
    ("<u8", Dtype::U64),
    ("|b1", Dtype::Bool),
    ("<c8", Dtype::C64),
    ("<c16", Dtype::C128),
];

/// Reads a file's bytes.
pub(super) fn parse(bytes: &[u8]) -> Result<Tensor, String> {
    let rest = bytes.strip_prefix(MAGIC).ok_or("not an .npy file")?;
    let (&[major, _], rest) = rest.split_first_chunk::<2>().ok_or("the file is cut short")?;
    let (header_len, rest) = match major {
        1 => rest.split_first_chunk::<2>().map(|(n, rest)| (usize::from(u16::from_le_bytes(*n)), rest)),
        2 | 3 => rest.split_first_chunk::<4>().map(|(n, rest)| (u32::from_le_bytes(*n) as usize, rest)),
        _ => return Err(format!("version {major} of the .npy format is not known")),
    }
    .ok_or("the file is cut short")?;
    let (header, data) = rest.split_at_checked(header_len).ok_or("the file is cut short")?;
    let header = std::str::from_utf8(header).map_err(|_| "the header is no text")?;
    let descr = quoted_after(header, "'descr':").ok_or("the header has no descr")?;
    let descr = descr.replace('=', "<");
    let found = TYPES.iter().find(|(name, _)| *name == descr || name.replace('|', "<") == descr);
    let &(_, dtype) = found.ok_or_else(|| format!("element type {descr:?} is not supported"))?;
    let shape = after(header, "'shape':").and_then(|t| t.strip_prefix('(')).and_then(|t| t.split_once(')'));
    let (shape, _) = shape.ok_or("the header has no shape")?;
    let dims = shape.split(',').map(str::trim).filter(|d| !d.is_empty()).map(str::parse);
    let dims: Vec<usize> = dims.collect::<Result<_, _>>().map_err(|_| "the shape is not readable")?;
    let fortran = after(header, "'fortran_order':").is_some_and(|t| t.starts_with("True"));
    let n_bytes = dims.iter().try_fold(dtype.size_bytes(), |n, &d| n.checked_mul(d)).ok_or("the shape is too large")?;
    let data = data.get(..n_bytes).ok_or_else(|| format!("expected {n_bytes} bytes of data, found {}", data.len()))?;
    let data = if fortran { c_order(data, &dims, dtype.size_bytes()) } else { data.to_vec() };
    Tensor::new(dtype, dims, data.into()).ok_or_else(|| "data and shape do not agree".into())
}

fn after<'a>(header: &'a str, key: &str) -> Option<&'a str> {
    header.split_once(key).map(|(_, rest)| rest.trim_start())
}

fn quoted_after<'a>(header: &'a str, key: &str) -> Option<&'a str> {
    after(header, key)?.strip_prefix('\'')?.split_once('\'').map(|(text, _)| text)
}

/// Rows last to rows first.
fn c_order(data: &[u8], dims: &[usize], size: usize) -> Vec<u8> {
    let mut out = Vec::with_capacity(data.len());
    let n = data.len() / size.max(1);
    for i in 0..n {
        let (mut rest, mut at, mut stride) = (i, 0, 1);
        let mut index = vec![0; dims.len()];
        for (axis, &d) in dims.iter().enumerate().rev() {
            index[axis] = rest % d;
            rest /= d;
        }
        for (&i, &d) in index.iter().zip(dims) {
            at += i * stride;
            stride *= d;
        }
        out.extend_from_slice(&data[at * size..(at + 1) * size]);
    }
    out
}

/// A tensor as a file's bytes. Types that NumPy lacks are written as unsigned integers of their size.
pub(super) fn write(tensor: &Tensor) -> Vec<u8> {
    let unsigned = || match tensor.dtype().size_bytes() {
        2 => "<u2",
        4 => "<u4",
        8 => "<u8",
        _ => "|u1",
    };
    let descr = TYPES.iter().find(|(_, d)| *d == tensor.dtype()).map_or_else(unsigned, |(name, _)| name);
    let dims: String = tensor.dims().iter().map(|d| format!("{d}, ")).collect();
    let dims = if tensor.dims().len() == 1 { dims.trim_end() } else { dims.trim_end_matches(", ") };
    let mut header = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': ({dims}), }}");
    let start = MAGIC.len() + 4;
    while !(start + header.len() + 1).is_multiple_of(64) {
        header.push(' ');
    }
    header.push('\n');
    let len = u16::try_from(header.len()).unwrap_or(u16::MAX);
    let mut out = MAGIC.to_vec();
    out.extend_from_slice(&[1, 0]);
    out.extend_from_slice(&len.to_le_bytes());
    out.extend_from_slice(header.as_bytes());
    out.extend_from_slice(tensor.data());
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_and_back() {
        for t in [
            Tensor::from_f32s(&[2, 3], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]),
            Tensor::from_i64s(&[2], &[7, -8]),
            Tensor::from_f64s(&[], &[0.5]),
            Tensor::from_u8s(&[0, 3], &[]),
        ] {
            let bytes = write(&t);
            assert_eq!((bytes.len() - t.data().len()) % 64, 0);
            assert_eq!(parse(&bytes), Ok(t));
        }
    }

    #[test]
    fn numpy_s_own_header_and_fortran_order() {
        let mut bytes = b"\x93NUMPY\x01\x00\x46\x00".to_vec();
        bytes.extend_from_slice(b"{'descr': '<i4', 'fortran_order': True, 'shape': (2, 3), }            ");
        bytes.extend((1..=6).flat_map(|i: i32| i.to_le_bytes()));
        let t = parse(&bytes).unwrap();
        assert_eq!((t.dims(), t.to_i32s().unwrap()), (&[2, 3][..], vec![1, 3, 5, 2, 4, 6]));
    }

    #[test]
    fn nonsense_is_an_error() {
        let good = write(&Tensor::from_f32s(&[2], &[1.0, 2.0]));
        for n in 0..good.len() {
            assert!(parse(&good[..n]).is_err(), "{n}");
        }
        for i in 0..good.len() {
            for b in [0, b'9', 255] {
                let mut bad = good.clone();
                bad[i] = b;
                let _ = parse(&bad);
            }
        }
    }
}
