//! MatMulNBits: the weights, packed in 2, 4 or 8 bits, as floats, and a MatMul.

use super::{add, int, plain};
use crate::ir::{Graph, Node, Tensor};
use crate::ops::quant::{const_f32s, float_tensor};
use kiln_kernels::Dtype;
use std::collections::BTreeMap;

/// A, B as `[N, blocks, bytes]` of packed codes (the first in the low bits), scales and zero points of the blocks, for each
/// row the block whose scale and zero point it has (by default the one it lies in), bias.
pub(super) fn matmul(graph: &mut Graph, node: &Node) -> Option<()> {
    let size = |name: &str| usize::try_from(int(node, name, 0)).ok();
    let (k, n, block) = (size("K")?, size("N")?, size("block_size")?);
    let bits = usize::try_from(int(node, "bits", 4)).ok()?;
    if !matches!(bits, 2 | 4 | 8) || block < 16 || k == 0 || n == 0 || k > 1 << 24 {
        return None;
    }
    let blocks = k.div_ceil(block);
    let codes = graph.constant(node.input(1)?)?.data().clone();
    let scales_tensor = graph.constant(node.input(2)?)?.clone();
    let scales = const_f32s(&scales_tensor)?;
    let per_block = (block * bits).div_ceil(8);
    if codes.len() != n.checked_mul(blocks)?.checked_mul(per_block)? || scales.len() != n * blocks {
        return None;
    }
    let code = |bytes: &[u8], i: usize| bytes[i * bits / 8] >> (i * bits % 8) & (0xffu8 >> (8 - bits));
    let middle = (1u32 << (bits - 1)) as f32;
    let zeros: Vec<f32> = match node.input(3) {
        None => vec![middle; n * blocks],
        Some(z) => {
            let z = graph.constant(z)?.clone();
            if z.dtype() == Dtype::U8 {
                let row = (blocks * bits).div_ceil(8);
                if z.data().len() != n * row {
                    return None;
                }
                (0..n * blocks).map(|i| f32::from(code(&z.data()[i / blocks * row..], i % blocks))).collect()
            } else {
                const_f32s(&z).filter(|z| z.len() == n * blocks)?
            }
        }
    };
    let groups = match node.input(4) {
        None => (0..k).map(|row| row / block).collect(),
        Some(g) => groups(graph.constant(g)?, k, blocks)?,
    };
    let mut w = vec![0.0f32; k * n];
    for column in 0..n {
        for (row, group) in groups.iter().enumerate() {
            let at = column * blocks + group;
            let value = f32::from(code(&codes[(column * blocks + row / block) * per_block..], row % block));
            w[row * n + column] = (value - zeros[at]) * scales[at];
        }
    }
    let w = graph.add_constant(format!("{}/weights", node.name), float_tensor(scales_tensor.dtype(), &[k, n], &w)?);
    let (bias, y) = (node.input(5), node.outputs.clone());
    let inputs = vec![Some(node.input(0)?), Some(w)];
    if let Some(bias) = bias {
        let product = add(graph, node, "MatMul", 13, BTreeMap::new(), inputs);
        graph.nodes.push(plain(node.name.clone(), "Add", 14, BTreeMap::new(), vec![Some(product), Some(bias)], y));
    } else {
        graph.nodes.push(plain(node.name.clone(), "MatMul", 13, BTreeMap::new(), inputs, y));
    }
    Some(())
}

/// The blocks of the first `k` rows, of which there may be more to fill the last block.
fn groups(t: &Tensor, k: usize, blocks: usize) -> Option<Vec<usize>> {
    let all = t.to_ints()?;
    all.get(..k)?.iter().map(|&g| usize::try_from(g).ok().filter(|&g| g < blocks)).collect()
}

#[cfg(test)]
mod tests {
    use crate::ir::{Attr, Tensor};
    use crate::ops::testing::case;

    fn u8s(dims: &[usize], values: &[u8]) -> Tensor {
        Tensor::from_u8s(dims, values)
    }

    /// K of 20 in blocks of 16: the last one is short.
    #[test]
    fn packed_weights() {
        let x: Vec<f32> = (0..20).map(|i| i as f32 - 7.0).collect();
        let codes: Vec<u8> = (0..2 * 2 * 8).map(|i| (i * 37 + 11) as u8).collect();
        let scales = [0.5, 0.25, 2.0, 1.0];
        for (zeros, bias) in [(None, None), (Some([0x3au8, 0xc1]), Some([1.0f32, -2.0]))] {
            let mut c = case("com.microsoft", "MatMulNBits", 1)
                .input(Tensor::from_f32s(&[1, 20], &x))
                .constant(u8s(&[2, 2, 8], &codes))
                .constant(Tensor::from_f32s(&[4], &scales));
            c = match zeros {
                None => c,
                Some(z) => c.constant(u8s(&[2, 1], &z)).absent().constant(Tensor::from_f32s(&[2], &bias.unwrap())),
            };
            for (name, v) in [("K", 20), ("N", 2), ("bits", 4), ("block_size", 16)] {
                c = c.attr(name, Attr::Int(v));
            }
            let got = c.run_f32();
            for column in 0..2 {
                let want: f32 = (0..20)
                    .map(|k| {
                        let block = column * 2 + k / 16;
                        let byte = codes[block * 8 + k % 16 / 2];
                        let code = if k % 2 == 0 { byte & 15 } else { byte >> 4 };
                        let zero = zeros.map_or(8, |z| if k / 16 == 0 { z[column] & 15 } else { z[column] >> 4 });
                        x[k] * (f32::from(code) - f32::from(zero)) * scales[block]
                    })
                    .sum::<f32>()
                    + bias.map_or(0.0, |b| b[column]);
                assert!((got[column] - want).abs() < 1e-3, "{} {want}", got[column]);
            }
        }
    }

    /// Rows take turns at the scales of two blocks.
    #[test]
    fn rows_in_groups() {
        let codes: Vec<u8> = (0..16).map(|i| (i * 37 + 11) as u8).collect();
        let node = |groups: &[i32]| {
            let c = case("com.microsoft", "MatMulNBits", 1)
                .input(Tensor::from_f32s(&[1, 32], &[1.0; 32]))
                .constant(u8s(&[1, 2, 8], &codes))
                .constant(Tensor::from_f32s(&[2], &[1.0, 0.5]))
                .constant(u8s(&[1, 1], &[0x52]))
                .constant(Tensor::from_i32s(&[groups.len()], groups));
            c.attr("K", Attr::Int(32)).attr("N", Attr::Int(1)).attr("block_size", Attr::Int(16))
        };
        let groups: Vec<i32> = (0..32).map(|i| i % 2).collect();
        let code = |i: usize| f32::from(codes[i / 2] >> (4 * (i % 2)) & 15);
        let want: f32 = (0..32).map(|i| if i % 2 == 0 { code(i) - 2.0 } else { (code(i) - 5.0) * 0.5 }).sum();
        assert_eq!(node(&groups).run_f32(), [want]);
        // A block that is not there, and too few rows.
        assert!(node(&[2; 32]).infer().is_err() && node(&[-1; 32]).infer().is_err() && node(&[0; 31]).infer().is_err());
    }
}
