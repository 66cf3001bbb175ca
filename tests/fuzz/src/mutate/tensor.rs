//! Changes of a constant: its extents, its type, its bytes, where they lie.

use super::{edge, int, list, pick_mut};
use kiln_compiler::onnx::proto::{EXTERNAL, StringStringEntryProto, TensorProto};
use kiln_fixtures::prng::Prng;

const TYPES: &[i32] = &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 16, 17, 18, 21, 22, 23];

/// Bytes per element, where that is whole.
fn size(data_type: i32) -> usize {
    match data_type {
        7 | 11 | 13 => 8,
        1 | 6 | 12 => 4,
        4 | 5 | 10 | 16 => 2,
        _ => 1,
    }
}

/// Elements of this number and type as raw bytes: mostly small integers.
fn filled(r: &mut Prng, data_type: i32, n: usize) -> Vec<u8> {
    let size = size(data_type);
    let mut out = Vec::with_capacity(n * size);
    for _ in 0..n {
        let v = if r.chance(0.9) { r.below(4) as i64 } else { edge(r) };
        let bytes = match data_type {
            1 => (v as f32).to_le_bytes().to_vec(),
            11 => (v as f64).to_le_bytes().to_vec(),
            _ => v.to_le_bytes()[..size].to_vec(),
        };
        out.extend(bytes);
    }
    out
}

/// One change.
pub(super) fn mutate(r: &mut Prng, t: &mut TensorProto) {
    match r.below(10) {
        // Other extents or another type, with the elements they need.
        0..=2 => {
            if r.chance(0.4) {
                t.data_type = TYPES[r.below(TYPES.len())];
            } else if let (Some(d), true) = (pick_mut(r, &mut t.dims), r.chance(0.6)) {
                *d = 1 + ((d.unsigned_abs() % 7) as i64 + r.below(3) as i64) % 7;
            } else {
                list(r, &mut t.dims, |r| r.below(4) as i64);
            }
            let n = t.dims.iter().try_fold(1i64, |n, d| n.checked_mul(*d)).filter(|n| (0..=4096).contains(n));
            let data = filled(r, t.data_type, n.unwrap_or(1) as usize);
            let name = std::mem::take(&mut t.name);
            *t = TensorProto { name, dims: t.dims.clone(), data_type: t.data_type, ..TensorProto::default() };
            t.raw_data = Some(data.into());
        }
        // Extents that the elements do not fit.
        3 => match pick_mut(r, &mut t.dims) {
            Some(d) => int(r, d),
            None => t.dims.push(edge(r)),
        },
        4 => t.data_type = r.below(28) as i32,
        // Other elements.
        5 | 6 => match &mut t.raw_data {
            Some(raw) => {
                let n = raw.len() / size(t.data_type);
                *raw = filled(r, t.data_type, n).into();
            }
            None => {
                let v = edge(r);
                pick_mut(r, &mut t.int64_data).into_iter().for_each(|x| *x = v);
                pick_mut(r, &mut t.int32_data).into_iter().for_each(|x| *x = v as i32);
                pick_mut(r, &mut t.float_data)
                    .into_iter()
                    .for_each(|x| *x = [0.0, -1.0, f32::NAN, 1e30][(v & 3) as usize]);
            }
        },
        7 => list(r, &mut t.int64_data, edge),
        _ => external(r, t),
    }
}

fn external(r: &mut Prng, t: &mut TensorProto) {
    let location = ["data", "data", "data", "absent", "../data", "/etc/passwd", "", "data/"][r.below(8)].to_owned();
    let entry = |key: &str, value: String| StringStringEntryProto { key: key.to_owned(), value };
    (t.raw_data, t.data_location) = (None, EXTERNAL);
    t.external_data = vec![entry("location", location)];
    for key in ["offset", "length", "checksum"] {
        if r.chance(0.5) {
            let value = if r.chance(0.8) { edge(r).to_string() } else { "x".to_owned() };
            list(r, &mut t.external_data, |_| entry(key, value));
        }
    }
}
