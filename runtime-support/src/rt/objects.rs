//! Objects at the border, for tools.

use super::{Error, RawInput};
use kiln_kernels::Object;

/// Input `i` of a list of inputs as an object, from its bytes.
pub fn raw_object(inputs: &[RawInput<'_>], input_idx: usize) -> Result<Object, Error> {
    let bytes = inputs.get(input_idx).map(|i| i.bytes).unwrap_or_default();
    Object::decode(bytes).ok_or(Error::Input { input_idx, expected: 0, given: bytes.len() })
}

/// An input of strings, which must have these extents.
pub fn strings<'v>(value: &'v Object, input_idx: usize, dims: &[usize]) -> Result<&'v Object, Error> {
    match value.as_strings() {
        Some(s) if s.dims() == dims => Ok(value),
        given => {
            let numel = |dims: &[usize]| dims.iter().product();
            Err(Error::Input { input_idx, expected: numel(dims), given: given.map_or(0, |s| s.data().len()) })
        }
    }
}
