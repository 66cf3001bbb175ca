//! Objects as bytes, for constants in the weights and for tools that pass values between processes.
//!
//! A word is a `u32`, little-endian. Strings alone: for each its length and its UTF-8 bytes. An object: a kind (0 none,
//! 1 tensor, 2 strings, 3 sequence); a tensor has its type's number, rank, extents and bytes, strings their rank, extents
//! and themselves, a sequence its length and its elements.

use super::object::{Object, Strings, TensorObject, numel};
use crate::Dtype;
use alloc::string::String;
use alloc::vec::Vec;

/// Sequences in sequences beyond this depth are taken for an attack.
const MAX_DEPTH: usize = 8;

fn word(out: &mut Vec<u8>, n: usize) -> Option<()> {
    out.extend_from_slice(&u32::try_from(n).ok()?.to_le_bytes());
    Some(())
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, n: usize) -> Option<&'a [u8]> {
        let (head, tail) = self.0.split_at_checked(n)?;
        self.0 = tail;
        Some(head)
    }

    fn word(&mut self) -> Option<usize> {
        usize::try_from(u32::from_le_bytes(self.take(4)?.try_into().ok()?)).ok()
    }

    fn dims(&mut self) -> Option<Vec<usize>> {
        let rank = self.word()?;
        (0..rank).map(|_| self.word()).collect()
    }

    fn string(&mut self) -> Option<String> {
        let n = self.word()?;
        core::str::from_utf8(self.take(n)?).ok().map(String::from)
    }

    fn object(&mut self, depth: usize) -> Option<Object> {
        match self.word()? {
            0 => Some(Object::None),
            1 => {
                let dtype = Dtype::from_onnx(i32::try_from(self.word()?).ok()?)?;
                let dims = self.dims()?;
                let bytes = self.take(numel(&dims)?.checked_mul(dtype.size_bytes())?)?;
                TensorObject::new(dtype, dims, bytes).map(Object::Tensor)
            }
            2 => {
                let dims = self.dims()?;
                let n = numel(&dims)?;
                let data = (0..n).map(|_| self.string()).collect::<Option<_>>()?;
                Strings::new(dims, data).map(Object::Strings)
            }
            3 if depth < MAX_DEPTH => {
                let n = self.word()?;
                (0..n).map(|_| self.object(depth + 1)).collect::<Option<_>>().map(Object::Sequence)
            }
            _ => None,
        }
    }
}

impl Object {
    /// As bytes; `None` for what is too large for this form.
    pub fn encoded(&self) -> Option<Vec<u8>> {
        let mut out = Vec::new();
        self.encode(&mut out)?;
        Some(out)
    }

    fn encode(&self, out: &mut Vec<u8>) -> Option<()> {
        let dims = |out: &mut Vec<u8>, dims: &[usize]| {
            word(out, dims.len())?;
            dims.iter().try_for_each(|&d| word(out, d))
        };
        match self {
            Self::None => word(out, 0),
            Self::Tensor(t) => {
                word(out, 1)?;
                word(out, usize::try_from(t.dtype().to_onnx()).ok()?)?;
                dims(out, t.dims())?;
                out.extend_from_slice(t.bytes());
                Some(())
            }
            Self::Strings(s) => {
                word(out, 2)?;
                dims(out, s.dims())?;
                out.extend(encode_strings(s.data())?);
                Some(())
            }
            Self::Sequence(s) => {
                word(out, 3)?;
                word(out, s.len())?;
                s.iter().try_for_each(|o| o.encode(out))
            }
        }
    }

    /// From bytes; `None` when they are no object.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let mut reader = Reader(bytes);
        let object = reader.object(0)?;
        reader.0.is_empty().then_some(object)
    }
}

/// Strings alone, as bytes.
pub fn encode_strings<S: AsRef<str>>(strings: &[S]) -> Option<Vec<u8>> {
    let mut out = Vec::new();
    for s in strings {
        word(&mut out, s.as_ref().len())?;
        out.extend_from_slice(s.as_ref().as_bytes());
    }
    Some(out)
}

/// Strings alone, from bytes.
pub fn decode_strings(bytes: &[u8]) -> Option<Vec<String>> {
    let mut reader = Reader(bytes);
    let mut out = Vec::new();
    while !reader.0.is_empty() {
        out.push(reader.string()?);
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_and_back() {
        let strings = Object::strings(&[2], &["", "Größe"]).unwrap();
        let tensor = Object::tensor(&[1, 2], &[1.5f32, -0.0]).unwrap();
        let all = Object::Sequence(alloc::vec![strings, tensor, Object::None, Object::Sequence(alloc::vec![])]);
        let bytes = all.encoded().unwrap();
        assert_eq!(Object::decode(&bytes), Some(all));
        for n in 0..bytes.len() {
            assert_eq!(Object::decode(&bytes[..n]), None);
        }
        let list = ["a", "", "b c"];
        assert_eq!(decode_strings(&encode_strings(&list).unwrap()).unwrap(), list);
    }

    #[test]
    fn hostile_bytes() {
        let nested: Vec<u8> = [3u32, 1].repeat(100).into_iter().flat_map(u32::to_le_bytes).collect();
        assert_eq!(Object::decode(&nested), None);
        let huge: Vec<u8> = [1u32, 1, 2, u32::MAX, u32::MAX].into_iter().flat_map(u32::to_le_bytes).collect();
        assert_eq!(Object::decode(&huge), None);
    }
}
