//! Baseline JPEG to RGB, with the rounding that the operator's page asks for: the accurate integer transform and the smooth
//! upsampling of libjpeg. Other kinds (progressive, arithmetic coding, other colour spaces) are left to the crate `image`.
//!
//! In: the file, and the size it must have. Out: RGB, row by row; `None` where the file is of another kind, size, or broken.
//! Source: ITU-T T.81; <https://onnx.ai/onnx/operators/onnx__ImageDecoder.html> on upsampling.

use super::samples::{transform, upsampled};
use std::vec;
use std::vec::Vec;

/// Places of the coefficients in the order in which they are coded.
const ZIGZAG: [u8; 64] = [
    0, 1, 8, 16, 9, 2, 3, 10, 17, 24, 32, 25, 18, 11, 4, 5, 12, 19, 26, 33, 40, 48, 41, 34, 27, 20, 13, 6, 7, 14, 21,
    28, 35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23, 30, 37, 44, 51, 58, 59, 52, 45, 38, 31, 39, 46, 53, 60, 61, 54,
    47, 55, 62, 63,
];

/// One colour component.
#[derive(Clone, Default)]
struct Component {
    id: u8,
    /// Samples in each direction, of those of the finest component.
    h: usize,
    v: usize,
    /// Quantisation table, and Huffman tables of the first and of the other coefficients.
    quant: usize,
    tables: [usize; 2],
    /// Extents without padding, and the length of a row in `plane`.
    width: usize,
    height: usize,
    stride: usize,
    plane: Vec<u8>,
}

/// A canonical Huffman code.
#[derive(Clone, Default)]
struct Huffman {
    /// Codes of each length.
    counts: [u8; 16],
    symbols: Vec<u8>,
}

/// What the segments before the scan say.
struct Decoder {
    quant: [[u16; 64]; 4],
    huffman: [[Huffman; 4]; 2],
    components: Vec<Component>,
    restart: usize,
}

/// The image as RGB.
pub(super) fn decode(file: &[u8], width: usize, height: usize) -> Option<Vec<u8>> {
    let mut d = Decoder { quant: [[0; 64]; 4], huffman: Default::default(), components: Vec::new(), restart: 0 };
    let mut at = file.starts_with(&[0xff, 0xd8]).then_some(2)?;
    loop {
        let &[0xff, marker] = file.get(at..at + 2)? else { return None };
        if marker == 0xff {
            at += 1;
            continue;
        }
        let length = usize::from(u16_at(file, at + 2)?);
        let segment = file.get(at + 4..at + 2 + length)?;
        at += 2 + length;
        match marker {
            0xdb => d.quantisation(segment)?,
            0xc4 => d.codes(segment)?,
            0xc0 | 0xc1 => d.frame(segment, width, height)?,
            0xdd => d.restart = usize::from(u16_at(segment, 0)?),
            0xda => {
                d.start(segment)?;
                d.scan(file.get(at..)?, width, height)?;
                return d.rgb(width, height);
            }
            // Another kind of frame, or colours stated otherwise.
            0xc2..=0xcf | 0xee => return None,
            _ => {}
        }
    }
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(bytes.get(at..at.checked_add(2)?)?.try_into().ok()?))
}

impl Decoder {
    fn quantisation(&mut self, mut segment: &[u8]) -> Option<()> {
        while let [head, rest @ ..] = segment {
            let wide = head >> 4 != 0;
            let size = if wide { 2 } else { 1 };
            let values = rest.get(..64 * size)?;
            let table = self.quant.get_mut(usize::from(head & 15))?;
            for (i, &place) in ZIGZAG.iter().enumerate() {
                let value = if wide { u16_at(values, 2 * i)? } else { u16::from(values[i]) };
                table[usize::from(place)] = value;
            }
            segment = rest.get(64 * size..)?;
        }
        Some(())
    }

    fn codes(&mut self, mut segment: &[u8]) -> Option<()> {
        while let [head, rest @ ..] = segment {
            let counts: [u8; 16] = rest.get(..16)?.try_into().ok()?;
            let n = counts.iter().map(|&c| usize::from(c)).sum::<usize>();
            let symbols = rest.get(16..16 + n)?.to_vec();
            *self.huffman.get_mut(usize::from(head >> 4))?.get_mut(usize::from(head & 15))? =
                Huffman { counts, symbols };
            segment = rest.get(16 + n..)?;
        }
        Some(())
    }

    fn frame(&mut self, segment: &[u8], width: usize, height: usize) -> Option<()> {
        let size = [usize::from(u16_at(segment, 3)?), usize::from(u16_at(segment, 1)?)];
        let n = usize::from(*segment.get(5)?);
        if segment[0] != 8 || size != [width, height] || width == 0 || height == 0 || !matches!(n, 1 | 3) {
            return None;
        }
        self.components = (0..n).map_while(|i| segment.get(6 + 3 * i..9 + 3 * i)).map(Component::of).collect();
        let [h, v] = self.finest();
        // Whole steps only, as files have them.
        let fits = |c: &Component| c.h > 0 && c.v > 0 && h % c.h == 0 && v % c.v == 0 && h / c.h <= 2 && v / c.v <= 2;
        if self.components.len() != n || !self.components.iter().all(fits) {
            return None;
        }
        if n == 1 {
            // A single component is coded block by block, whatever it says of its sampling.
            (self.components[0].h, self.components[0].v) = (1, 1);
        }
        let [h, v] = self.finest();
        let (columns, rows) = (width.div_ceil(8 * h), height.div_ceil(8 * v));
        for c in &mut self.components {
            (c.width, c.height) = ((width * c.h).div_ceil(h), (height * c.v).div_ceil(v));
            c.stride = columns * 8 * c.h;
            c.plane = vec![0; c.stride * rows * 8 * c.v];
        }
        Some(())
    }

    fn finest(&self) -> [usize; 2] {
        let most = |f: fn(&Component) -> usize| self.components.iter().map(f).max().unwrap_or(1);
        [most(|c| c.h), most(|c| c.v)]
    }

    /// The scan's head: all components in one scan, all coefficients.
    fn start(&mut self, segment: &[u8]) -> Option<()> {
        let n = self.components.len();
        if n == 0 || usize::from(*segment.first()?) != n || segment.len() < 4 + 2 * n {
            return None;
        }
        for (c, entry) in self.components.iter_mut().zip(segment[1..].chunks_exact(2)) {
            if entry[0] != c.id {
                return None;
            }
            c.tables = [usize::from(entry[1] >> 4), usize::from(entry[1] & 15)];
        }
        (segment[1 + 2 * n..4 + 2 * n] == [0, 63, 0]).then_some(())
    }

    fn scan(&mut self, data: &[u8], width: usize, height: usize) -> Option<()> {
        let [h, v] = self.finest();
        let (columns, rows) = (width.div_ceil(8 * h), height.div_ceil(8 * v));
        let mut bits = Bits { data, at: 0, byte: 0, n: 0 };
        let mut last = [0i32; 3];
        let Self { quant, huffman, components, restart } = self;
        for unit in 0..columns * rows {
            if *restart > 0 && unit > 0 && unit % *restart == 0 {
                bits.restart()?;
                last = [0; 3];
            }
            for (c, last) in components.iter_mut().zip(&mut last) {
                let (dc, ac) = (huffman[0].get(c.tables[0])?, huffman[1].get(c.tables[1])?);
                for block in 0..c.h * c.v {
                    let coefficients = bits.block(dc, ac, quant.get(c.quant)?, last)?;
                    let x = (unit % columns * c.h + block % c.h) * 8;
                    let y = (unit / columns * c.v + block / c.h) * 8;
                    for (i, row) in transform(&coefficients).chunks_exact(8).enumerate() {
                        c.plane.get_mut((y + i) * c.stride + x..)?.get_mut(..8)?.copy_from_slice(row);
                    }
                }
            }
        }
        Some(())
    }

    fn rgb(&self, width: usize, height: usize) -> Option<Vec<u8>> {
        let [h, v] = self.finest();
        let plane = |c: &Component| {
            let rows: Vec<&[u8]> = c.plane.chunks_exact(c.stride).take(c.height).map(|r| &r[..c.width]).collect();
            upsampled(&rows, h / c.h, v / c.v, width, height)
        };
        let planes: Vec<Vec<u8>> = self.components.iter().map(plane).collect();
        match &planes[..] {
            [grey] => Some(grey.iter().flat_map(|&g| [g; 3]).collect()),
            [y, cb, cr] => Some(y.iter().zip(cb).zip(cr).flat_map(|((&y, &cb), &cr)| colour(y, cb, cr)).collect()),
            _ => None,
        }
    }
}

impl Component {
    fn of(entry: &[u8]) -> Self {
        let [id, sampling, quant] = [entry[0], entry[1], entry[2]];
        Self {
            id,
            h: usize::from(sampling >> 4),
            v: usize::from(sampling & 15),
            quant: usize::from(quant),
            ..Self::default()
        }
    }
}

/// RGB of a sample, in 16-bit fixed point.
fn colour(y: u8, cb: u8, cr: u8) -> [u8; 3] {
    let (y, cb, cr) = (i32::from(y), i32::from(cb) - 128, i32::from(cr) - 128);
    let half = 1 << 15;
    let r = y + ((91881 * cr + half) >> 16);
    let g = y + ((-22554 * cb - 46802 * cr + half) >> 16);
    let b = y + ((116130 * cb + half) >> 16);
    [r, g, b].map(|v| v.clamp(0, 255) as u8)
}

/// The scan's bits; a zero byte behind 0xff is no data.
struct Bits<'a> {
    data: &'a [u8],
    at: usize,
    byte: u8,
    n: u32,
}

impl Bits<'_> {
    fn bit(&mut self) -> Option<u32> {
        if self.n == 0 {
            self.byte = *self.data.get(self.at)?;
            self.at += 1;
            if self.byte == 0xff {
                if *self.data.get(self.at)? != 0 {
                    return None;
                }
                self.at += 1;
            }
            self.n = 8;
        }
        self.n -= 1;
        Some(u32::from(self.byte >> self.n & 1))
    }

    /// A number of so many bits, those below half the range standing for negative ones.
    fn signed(&mut self, bits: u8) -> Option<i32> {
        if bits > 16 {
            return None;
        }
        let value = (0..bits).try_fold(0i32, |v, _| Some(v << 1 | self.bit()? as i32))?;
        Some(if bits > 0 && value < 1 << (bits - 1) { value - (1 << bits) + 1 } else { value })
    }

    fn symbol(&mut self, code: &Huffman) -> Option<u8> {
        let (mut value, mut first, mut index) = (0u32, 0u32, 0u32);
        for &count in &code.counts {
            value |= self.bit()?;
            let count = u32::from(count);
            if value < first + count {
                return code.symbols.get((index + value.checked_sub(first)?) as usize).copied();
            }
            index += count;
            first = (first + count) << 1;
            value <<= 1;
        }
        None
    }

    /// The dequantised coefficients of a block.
    fn block(&mut self, dc: &Huffman, ac: &Huffman, quant: &[u16; 64], last: &mut i32) -> Option<[i32; 64]> {
        let mut out = [0i32; 64];
        let bits = self.symbol(dc)?;
        *last = last.checked_add(self.signed(bits)?)?;
        out[0] = last.checked_mul(i32::from(quant[0]))?;
        let mut k = 1;
        while k < 64 {
            let symbol = self.symbol(ac)?;
            let (run, bits) = (usize::from(symbol >> 4), symbol & 15);
            if bits == 0 {
                if run < 15 {
                    break;
                }
                k += 16;
                continue;
            }
            let place = usize::from(*ZIGZAG.get(k + run)?);
            out[place] = self.signed(bits)?.checked_mul(i32::from(quant[place]))?;
            k += run + 1;
        }
        Some(out)
    }

    /// Passes the marker between two intervals.
    fn restart(&mut self) -> Option<()> {
        let &[0xff, 0xd0..=0xd7] = self.data.get(self.at..self.at + 2)? else { return None };
        self.at += 2;
        self.n = 0;
        Some(())
    }
}
