//! The end of a weights file: which weights it holds. The compiler writes it, a module that reads its weights from a file
//! compares it.
//!
//! Layout, all numbers little-endian: 8 bytes magic, u32 version, u32 zero, u64 bytes of weights before it, 32 bytes
//! SHA-256 of these, 8 bytes zero.

/// Size of the trailer.
pub const TRAILER_BYTES: usize = 64;

const MAGIC: [u8; 8] = *b"KILNWGHT";
const VERSION: u32 = 1;

/// The trailer behind so many bytes of weights with this SHA-256.
pub fn weights_trailer(bytes: u64, sha256: [u8; 32]) -> [u8; TRAILER_BYTES] {
    let mut out = [0; TRAILER_BYTES];
    out[..8].copy_from_slice(&MAGIC);
    out[8..12].copy_from_slice(&VERSION.to_le_bytes());
    out[16..24].copy_from_slice(&bytes.to_le_bytes());
    out[24..56].copy_from_slice(&sha256);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_has_its_place() {
        let t = weights_trailer(0x0102_0304, [7; 32]);
        assert_eq!(&t[..16], b"KILNWGHT\x01\0\0\0\0\0\0\0");
        assert_eq!(t[16..24], [4, 3, 2, 1, 0, 0, 0, 0]);
        assert_eq!((&t[24..56], &t[56..]), (&[7; 32][..], &[0; 8][..]));
    }
}
