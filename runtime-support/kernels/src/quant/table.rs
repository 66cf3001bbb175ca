//! A function of one byte by its table: quantised activations, and codes carried over to another scale.

use crate::{Fault, Isa, kernel};

kernel! {
    /// `y = table[x]`; signed codes index by their bits.
    pub struct ByteTable {
        operands { read x: T, read table: T, write y: T }
    }
    entries { byte_table { T = u8 } }
    body = look_up;
}

fn look_up(_: Isa, _: &ByteTable, x: &[u8], table: &[u8], y: &mut [u8]) -> Result<(), Fault> {
    let Ok(table) = <&[u8; 256]>::try_from(table) else { return Err(Fault::Descriptor) };
    if x.len() != y.len() {
        return Err(Fault::Descriptor);
    }
    for (y, &x) in y.iter_mut().zip(x) {
        *y = table[usize::from(x)];
    }
    Ok(())
}
