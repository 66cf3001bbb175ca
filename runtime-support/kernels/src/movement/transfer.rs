//! A transfer between two memories: rows of bytes, apart on either side. What a DMA engine does.

use crate::{Fault, Isa, kernel};

kernel! {
    /// `rows` rows of `row_bytes` bytes, `x_stride` apart in `x` and `y_stride` apart in `y`; both begin with the first row
    /// and end with the last one. `y` is `update`: what lies between its rows stays.
    pub struct Transfer {
        operands { read x: B, update y: B }
        nums { rows, row_bytes, x_stride, y_stride }
    }
    entries { transfer_u8 { B = u8 } }
    body = transfer;
}

fn transfer(_: Isa, d: &Transfer, x: &[u8], y: &mut [u8]) -> Result<(), Fault> {
    let reach = |stride: usize| d.rows.saturating_sub(1).checked_mul(stride)?.checked_add(d.row_bytes);
    let fits = reach(d.x_stride).is_some_and(|n| n <= x.len()) && reach(d.y_stride).is_some_and(|n| n <= y.len());
    if !fits {
        return Err(Fault::Descriptor);
    }
    for row in 0..d.rows {
        y[row * d.y_stride..][..d.row_bytes].copy_from_slice(&x[row * d.x_stride..][..d.row_bytes]);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Operand;

    #[test]
    fn rows_move_and_what_lies_between_stays() {
        let at = |bytes| Operand::at(0, 0, bytes);
        let d = Transfer { x: at(11), y: at(7), rows: 3, row_bytes: 3, x_stride: 4, y_stride: 2 };
        let x: [u8; 11] = core::array::from_fn(|i| i as u8 + 1);
        let mut y = [0; 7];
        assert_eq!(transfer(Isa::Scalar, &d, &x, &mut y), Ok(()));
        assert_eq!(y, [1, 2, 5, 6, 9, 10, 11]);
        let apart = Transfer { y_stride: 4, y: at(11), ..d.clone() };
        let mut y = [99; 11];
        assert_eq!(transfer(Isa::Scalar, &apart, &x, &mut y), Ok(()));
        assert_eq!(y, [1, 2, 3, 99, 5, 6, 7, 99, 9, 10, 11]);
        for wrong in [Transfer { rows: 4, ..d.clone() }, Transfer { x_stride: usize::MAX, ..d }] {
            assert_eq!(transfer(Isa::Scalar, &wrong, &x, &mut y), Err(Fault::Descriptor));
        }
    }
}
