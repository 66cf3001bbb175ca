//! A look over the bytes before they are decoded: how much memory the messages in them would take,
//! and how deep they nest.
//!
//! In: the bytes of a model. Out: nothing, or why it is refused. An empty message is two bytes of
//! file and hundreds of bytes of memory; this keeps a file of nothing but those from taking a
//! hundred times its size. Payloads are skipped, so this costs next to nothing. Malformed bytes are
//! not reported here: decoding does that.
//! Source: <https://protobuf.dev/programming-guides/encoding/>; field numbers as in `proto`.

use super::proto;

/// Decoded memory that any file may take, and for each of its bytes.
const ALWAYS_BYTES: usize = 256 << 20;
const PER_FILE_BYTE: usize = 32;
/// Nodes in all; the largest networks there are have a tenth of it.
const MAX_NODES: usize = 1_000_000;
/// As prost's own limit.
const MAX_DEPTH: usize = 100;

/// The messages whose fields matter here.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Model,
    Graph,
    Function,
    Node,
    Attribute,
    Tensor,
    SparseTensor,
    ValueInfo,
    Type,
    ElementType,
    MapType,
    TensorType,
    Shape,
    Dimension,
    /// Messages with nothing but scalars.
    Entry,
}

impl Kind {
    /// The message in field `tag`; `None` for scalars, strings and unknown fields.
    fn child(self, tag: u64) -> Option<Kind> {
        Some(match (self, tag) {
            (Kind::Model, 7) | (Kind::Attribute, 6 | 11) => Kind::Graph,
            (Kind::Model, 8 | 14) | (Kind::Graph, 16) | (Kind::Function, 9 | 14) => Kind::Entry,
            (Kind::Node, 9) | (Kind::Tensor, 3 | 13) | (Kind::Type, 7) => Kind::Entry,
            (Kind::Model, 25) => Kind::Function,
            (Kind::Graph, 1) | (Kind::Function, 7) => Kind::Node,
            (Kind::Graph, 5) | (Kind::Attribute, 5 | 10) | (Kind::SparseTensor, 1 | 2) => Kind::Tensor,
            (Kind::Graph, 15) | (Kind::Attribute, 22 | 23) => Kind::SparseTensor,
            (Kind::Graph, 11..=13) | (Kind::Function, 12) => Kind::ValueInfo,
            (Kind::Node, 5) | (Kind::Function, 11) => Kind::Attribute,
            (Kind::ValueInfo, 2) | (Kind::Attribute, 14 | 15) => Kind::Type,
            (Kind::ElementType, 1) | (Kind::MapType, 2) => Kind::Type,
            (Kind::Type, 1 | 8) => Kind::TensorType,
            (Kind::Type, 4 | 9) => Kind::ElementType,
            (Kind::Type, 5) => Kind::MapType,
            (Kind::TensorType, 2) => Kind::Shape,
            (Kind::Shape, 1) => Kind::Dimension,
            _ => return None,
        })
    }

    fn size_bytes(self) -> usize {
        match self {
            Kind::Model => size_of::<proto::ModelProto>(),
            Kind::Graph => size_of::<proto::GraphProto>(),
            Kind::Function => size_of::<proto::FunctionProto>(),
            Kind::Node => size_of::<proto::NodeProto>(),
            Kind::Attribute => size_of::<proto::AttributeProto>(),
            Kind::Tensor => size_of::<proto::TensorProto>(),
            Kind::SparseTensor => size_of::<proto::SparseTensorProto>(),
            Kind::ValueInfo => size_of::<proto::ValueInfoProto>(),
            Kind::Type => size_of::<proto::TypeProto>(),
            Kind::ElementType => size_of::<proto::ElementTypeProto>(),
            Kind::MapType => size_of::<proto::MapTypeProto>(),
            Kind::TensorType => size_of::<proto::TensorTypeProto>(),
            Kind::Shape => size_of::<proto::TensorShapeProto>(),
            Kind::Dimension => size_of::<proto::DimensionProto>(),
            Kind::Entry => size_of::<proto::StringStringEntryProto>(),
        }
    }
}

/// Refuses bytes whose messages nest too deep or would take memory out of proportion.
pub(super) fn check(bytes: &[u8]) -> Result<(), String> {
    let allowed = bytes.len().saturating_mul(PER_FILE_BYTE).saturating_add(ALWAYS_BYTES);
    Scan { left_bytes: allowed, n_nodes: 0 }.message(bytes, Kind::Model, 0)
}

struct Scan {
    left_bytes: usize,
    n_nodes: usize,
}

impl Scan {
    fn message(&mut self, mut bytes: &[u8], kind: Kind, depth: usize) -> Result<(), String> {
        if depth > MAX_DEPTH {
            return Err(format!("messages nest more than {MAX_DEPTH} deep"));
        }
        self.take(kind.size_bytes())?;
        self.n_nodes += usize::from(kind == Kind::Node);
        if self.n_nodes > MAX_NODES {
            return Err(format!("it has more than {MAX_NODES} nodes"));
        }
        while let Some(key) = varint(&mut bytes) {
            let payload_len = match key & 7 {
                0 => {
                    if varint(&mut bytes).is_none() {
                        return Ok(());
                    }
                    self.take(8)?;
                    continue;
                }
                1 => 8,
                5 => 4,
                2 => match varint(&mut bytes).map(usize::try_from) {
                    Some(Ok(len)) => len,
                    _ => return Ok(()),
                },
                _ => return Ok(()),
            };
            let Some((payload, rest)) = bytes.split_at_checked(payload_len) else {
                return Ok(());
            };
            bytes = rest;
            match kind.child(key >> 3) {
                Some(child) if key & 7 == 2 => self.message(payload, child, depth + 1)?,
                _ => self.take(size_of::<String>())?,
            }
        }
        Ok(())
    }

    fn take(&mut self, bytes: usize) -> Result<(), String> {
        match self.left_bytes.checked_sub(bytes) {
            Some(left) => {
                self.left_bytes = left;
                Ok(())
            }
            None => Err(format!("its messages would take more than {PER_FILE_BYTE} times its size")),
        }
    }
}

/// Takes a varint off the front; `None` at the end, or for one that is not.
fn varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0u64;
    for shift in (0..70).step_by(7) {
        let (byte, rest) = bytes.split_first()?;
        *bytes = rest;
        value |= u64::from(byte & 0x7f).checked_shl(shift).unwrap_or(0);
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_of_which_files_hold_many_stay_small() {
        assert!(Kind::Node.size_bytes() <= 256, "{}", Kind::Node.size_bytes());
        assert!(Kind::Attribute.size_bytes() <= 384, "{}", Kind::Attribute.size_bytes());
        assert!(Kind::ValueInfo.size_bytes() <= 160, "{}", Kind::ValueInfo.size_bytes());
        assert!(Kind::Dimension.size_bytes() <= 64, "{}", Kind::Dimension.size_bytes());
    }

    /// A graph field that holds `n` empty nodes.
    fn empty_nodes(n: usize) -> Vec<u8> {
        let mut bytes = vec![0x3a];
        let mut len = 2 * n;
        while len > 0x7f {
            bytes.push(len as u8 | 0x80);
            len >>= 7;
        }
        bytes.push(len as u8);
        bytes.extend([0x0a, 0].repeat(n));
        bytes
    }

    #[test]
    fn memory_stays_in_proportion() {
        assert_eq!(check(&empty_nodes(100_000)), Ok(()));
        assert!(check(&empty_nodes(1_000_001)).is_err_and(|why| why.contains("more than 1000000 nodes")));
        // The same, as graphs' initializers.
        let tensors: Vec<u8> = empty_nodes(2_000_000).iter().map(|b| if *b == 0x0a { 0x2a } else { *b }).collect();
        assert!(check(&tensors).is_err_and(|why| why.contains("times its size")));
    }

    #[test]
    fn malformed_bytes_are_left_to_decoding() {
        for bytes in [&[0x3a, 0xff][..], &[0x3a, 5, 1], &[0xff; 40], &[0x3d, 1], &[0x3b], &[]] {
            assert_eq!(check(bytes), Ok(()));
        }
    }
}
