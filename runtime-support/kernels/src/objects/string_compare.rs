//! Strings compared, and looked up in a list.

use super::strings::{offsets, strings};
use super::{Object, decode_strings};
use crate::{Fault, Isa, kernel};
use alloc::collections::BTreeMap;

kernel! {
    /// `y` = whether `a` equals `b`, element by element, read by these strides.
    pub struct StringEqual {
        operands { write y: B }
        arrays { dims: 8, a_strides: 8, b_strides: 8 }
        objects { read a, read b }
    }
    entries { string_equal { B = u8 } }
    body = equal_body;
}

fn equal_body(_: Isa, d: &StringEqual, y: &mut [u8], a: &Object, b: &Object) -> Result<(), Fault> {
    let (a, b) = (strings(a)?, strings(b)?);
    let both = offsets(&d.dims, &d.a_strides)?.zip(offsets(&d.dims, &d.b_strides)?);
    for (at, (i, j)) in both.enumerate() {
        let (a, b) = (a.data().get(i).ok_or(Fault::ShapeMismatch)?, b.data().get(j).ok_or(Fault::ShapeMismatch)?);
        *y.get_mut(at).ok_or(Fault::Descriptor)? = u8::from(a == b);
    }
    Ok(())
}

kernel! {
    /// `y` = where each string of `x` stands in a list (its first place), or the list's length. `keys` holds the list as bytes
    /// (see [`super::encode_strings`]).
    pub struct FindStrings {
        operands { read keys: B, write y: I }
        objects { read x }
    }
    entries { find_strings { B = u8, I = i64 } }
    body = find_body;
}

fn find_body(_: Isa, _: &FindStrings, keys: &[u8], y: &mut [i64], x: &Object) -> Result<(), Fault> {
    let keys = decode_strings(keys).ok_or(Fault::Descriptor)?;
    let mut places = BTreeMap::new();
    for (i, key) in keys.iter().enumerate() {
        places.entry(key.as_str()).or_insert(i as i64);
    }
    let x = strings(x)?.data();
    let y = y.get_mut(..x.len()).ok_or(Fault::ShapeMismatch)?;
    for (x, y) in x.iter().zip(y) {
        *y = places.get(x.as_str()).copied().unwrap_or(keys.len() as i64);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::encode_strings;
    use super::*;
    use crate::Operand;

    #[test]
    fn equal_and_found() {
        let mut dims = [1; 8];
        dims[7] = 2;
        let mut strides = [0; 8];
        strides[7] = 1;
        let d = StringEqual {
            y: Operand::at(0, 0, 2),
            dims,
            a_strides: strides,
            b_strides: [0; 8],
            a: crate::ObjectSlot::at(0),
            b: crate::ObjectSlot::at(1),
        };
        let x = Object::strings(&[2], &["a", "b"]).unwrap();
        let mut y = [7; 2];
        equal_body(Isa::Scalar, &d, &mut y, &x, &Object::strings(&[1], &["b"]).unwrap()).unwrap();
        assert_eq!(y, [0, 1]);
        let d = FindStrings { keys: Operand::at(0, 0, 0), y: Operand::at(0, 0, 16), x: crate::ObjectSlot::at(0) };
        let mut y = [0; 2];
        find_body(Isa::Scalar, &d, &encode_strings(&["b", "c", "b"]).unwrap(), &mut y, &x).unwrap();
        assert_eq!(y, [3, 0]);
    }
}
