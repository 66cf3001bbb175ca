//! Pieces of a kernel call, for a memory that the whole call does not fit in.
//!
//! In: a lowered call. Out: how far it can be cut ([`Extent`]) and its pieces: the same kernel over fewer rows and fewer
//! blocks of channels, with a [`Window`] for each operand: the rows of its buffer that the piece needs, which lie side by
//! side in the device's memory. A row of output needs the input rows that its window reaches; padding is left to the
//! pieces at the border. Results are those of the whole call, up to the order in which a kernel sums.
//! Invariant: the pieces' written windows are disjoint and cover the call's.

use crate::ir::Dim;
use crate::lower::{Call, CallOperand, FieldText};
use kiln_kernels::{self as k, ConvShape, FieldMut, Operand};
use std::collections::BTreeMap;
use std::ops::Range;

/// How far a call can be cut: blocks of 16 channels (or columns) and rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Blocks of the result.
    pub blocks: u64,
    /// Rows of the result.
    pub rows: u64,
}

/// What an operand of a piece is of its buffer: `rows` rows of `row_bytes`, `stride` bytes apart, from `off` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Window {
    /// The buffer.
    pub buffer: u32,
    /// First byte.
    pub off: u64,
    /// Rows.
    pub rows: u64,
    /// Bytes of a row.
    pub row_bytes: u64,
    /// Bytes from row to row.
    pub stride: u64,
}

impl Window {
    fn flat(buffer: u32, off: u64, bytes: u64) -> Self {
        Self { buffer, off, rows: 1, row_bytes: bytes, stride: bytes }
    }

    /// Size in the device's memory.
    pub fn bytes(&self) -> u64 {
        self.rows * self.row_bytes
    }

    /// The same bytes in as few rows as can be: rows without gaps between them are one. Windows of the same bytes in the
    /// same order are equal then, whatever they were cut for.
    pub fn dense(&self) -> Self {
        match self.rows <= 1 || self.stride == self.row_bytes {
            true => Self::flat(self.buffer, self.off, self.bytes()),
            false => *self,
        }
    }

    /// Whether the two could share a byte.
    pub fn meets(&self, other: &Self) -> bool {
        self.buffer == other.buffer && self.off < other.off + other.reach() && other.off < self.off + self.reach()
    }

    /// From the first byte to the last one, gaps included.
    pub fn reach(&self) -> u64 {
        self.rows.saturating_sub(1) * self.stride + self.row_bytes
    }
}

/// All of a call's work.
pub const WHOLE_PPM: u64 = 1_000_000;

/// A piece of a call.
#[derive(Clone, Debug)]
pub struct Piece {
    /// The call; each operand's length is its window's, its place is still to be found.
    pub call: Box<dyn Call>,
    /// A window for each operand, in order.
    pub windows: Vec<Window>,
    /// The part of the call's work in it, in millionths, at least 1.
    pub ppm: u64,
    /// It fills what it writes, so that nothing of that must be there before.
    pub fills: bool,
}

impl Piece {
    /// What the piece makes: where that stands among its operands.
    pub fn result(&self) -> Option<usize> {
        result(&*self.call)
    }
}

/// Where a call's only result stands among its operands.
fn result(call: &dyn Call) -> Option<usize> {
    let operands = call.operands();
    let mut written = operands.iter().enumerate().filter(|(_, o)| o.writes() && o.name != "scratch");
    let (first, _) = written.next()?;
    written.next().is_none().then_some(first)
}

/// A call's fields by name, as far as they are constant.
#[derive(Default)]
struct Fields {
    nums: BTreeMap<&'static str, Vec<u64>>,
    params: BTreeMap<&'static str, String>,
    operands: BTreeMap<&'static str, CallOperand>,
}

impl Fields {
    fn of(call: &dyn Call) -> Option<Self> {
        let mut all = Self::default();
        let mut fixed = true;
        let mut number = |d: &Dim| {
            let n = d.as_const().and_then(|n| u64::try_from(n).ok());
            fixed &= n.is_some();
            n.unwrap_or(0)
        };
        call.fields(&mut |name, field| match field {
            FieldText::Num(n) => _ = all.nums.insert(name, vec![number(n)]),
            FieldText::Nums(ns) => _ = all.nums.insert(name, ns.iter().map(&mut number).collect()),
            FieldText::Param(text) => _ = all.params.insert(name, text),
            FieldText::Operand(_) | FieldText::OptOperand(_) => {}
        });
        all.operands = call.operands().into_iter().map(|o| (o.name, o)).collect();
        fixed.then_some(all)
    }

    fn num(&self, name: &str) -> Option<u64> {
        self.nums.get(name)?.first().copied()
    }

    fn num_or(&self, name: &str, default: u64) -> u64 {
        self.num(name).unwrap_or(default)
    }
}

/// How the channels of a windowed kernel's operands are cut with its result's.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Channels {
    /// Every output channel reads all input channels.
    All,
    /// Channel by channel.
    Each,
}

/// What a windowed kernel's units and scratch hang on besides its shape.
#[derive(Clone, Copy)]
struct Form {
    /// Input codes are signed.
    flip: bool,
    /// Output pixels a side of a tile of Winograd's.
    tile: usize,
}

/// A windowed kernel over images: how it names and lays out things.
struct Windowed {
    name: &'static str,
    channels: Channels,
    /// Input channels side by side in memory: 16, or 1 for a plain one.
    lane: u64,
    /// Units of work, and scratch in bytes, of a shape.
    units: fn(ConvShape, Form) -> usize,
    scratch: fn(ConvShape, Form) -> usize,
}

const WINDOWED: &[Windowed] = &[
    Windowed {
        name: "ConvBlocked",
        channels: Channels::All,
        lane: 16,
        units: |s, _| k::conv_blocked_units(s),
        scratch: |s, _| k::conv_blocked_scratch_bytes(s),
    },
    Windowed {
        name: "ConvFirst",
        channels: Channels::All,
        lane: 1,
        units: |s, _| k::conv_first_units(s),
        scratch: |s, _| k::conv_first_scratch_bytes(s),
    },
    Windowed {
        name: "ConvWinograd",
        channels: Channels::All,
        lane: 16,
        units: |s, form| k::conv_winograd_units(s, form.tile),
        scratch: |s, form| k::conv_winograd_scratch_bytes(s, form.tile),
    },
    Windowed {
        name: "Depthwise",
        channels: Channels::Each,
        lane: 16,
        units: |s, _| k::depthwise_units(s.n, s.ic, s.oh),
        scratch: |_, _| 0,
    },
    Windowed {
        name: "PoolBlocked",
        channels: Channels::Each,
        lane: 16,
        units: |s, _| k::pool_blocked_units(s.n, s.ic, s.oh),
        scratch: |_, _| 0,
    },
    Windowed {
        name: "QConvBlocked",
        channels: Channels::All,
        lane: 16,
        units: |s, form| k::qconv_units(s, form.flip),
        scratch: |s, form| k::qconv_scratch_bytes(s, form.flip),
    },
    Windowed {
        name: "QConvFirst",
        channels: Channels::All,
        lane: 1,
        units: |s, _| k::qconv_first_units(s),
        scratch: |s, _| k::qconv_first_scratch_bytes(s),
    },
    Windowed {
        name: "QDepthwise",
        channels: Channels::Each,
        lane: 16,
        units: |s, _| k::qdepthwise_units(s),
        scratch: |s, _| k::qdepthwise_scratch_bytes(s),
    },
    Windowed {
        name: "QMaxPool",
        channels: Channels::Each,
        lane: 16,
        units: |s, _| s.n * s.ic.div_ceil(16) * s.oh,
        scratch: |_, _| 0,
    },
];

/// Element-wise kernels over `n` elements.
const FLAT: &[&str] = &["Unary", "UnaryMath", "Clip"];
/// Elements of a row of those.
const FLAT_ROW: u64 = 1024;

/// How a call is cut.
enum Cut {
    Windowed(&'static Windowed, ConvShape),
    Flat(u64),
    Gemm,
}

fn cut(call: &dyn Call, f: &Fields) -> Option<(Cut, Extent)> {
    let name = call.descriptor();
    if let Some(kind) = WINDOWED.iter().find(|w| w.name == name) {
        let shape = shape(f)?;
        // A batch would be a third stride, groups of channels another cut.
        let cut_up = shape.n == 1 && (kind.channels == Channels::Each || shape.groups == 1);
        let blocks = shape.oc.div_ceil(16) as u64;
        return cut_up.then_some((Cut::Windowed(kind, shape), Extent { blocks, rows: shape.oh as u64 }));
    }
    if FLAT.contains(&name) {
        let n = f.num("n")?;
        return Some((Cut::Flat(n), Extent { blocks: 1, rows: n.div_ceil(FLAT_ROW) }));
    }
    let packed = f.params.get("b_layout").is_none_or(|l| l.ends_with("Packed"));
    let one = f.nums.get("batch").is_none_or(|b| b.iter().all(|&n| n == 1));
    let whole = f.params.get("share").is_some_and(|s| s == "[0, 1]");
    let scratch = f.operands.contains_key("scratch");
    if matches!(name, "Gemm" | "GemmInt8") && packed && one && whole && !scratch {
        return Some((Cut::Gemm, Extent { blocks: f.num("n")?.div_ceil(16), rows: f.num("m")? }));
    }
    None
}

/// The extents of a windowed kernel; what a descriptor leaves out is what Winograd's form means.
fn shape(f: &Fields) -> Option<ConvShape> {
    let get = |name: &str| f.num(name).map(|n| n as usize);
    let or = |name: &str, default: u64| f.num_or(name, default) as usize;
    let ic = get("ic").or_else(|| get("c"))?;
    let each = f.num("c").is_some();
    let oc = get("oc").unwrap_or(ic);
    let (n, h, w, oh, ow) = (get("n")?, get("h")?, get("w")?, get("oh")?, get("ow")?);
    let (kh, kw, sy, sx, dy, dx) = (or("kh", 3), or("kw", 3), or("sy", 1), or("sx", 1), or("dy", 1), or("dx", 1));
    let groups = if each { ic } else { or("groups", 1) };
    Some(ConvShape { n, ic, oc, h, w, oh, ow, kh, kw, sy, sx, dy, dx, pt: get("pt")?, pl: get("pl")?, groups })
}

/// How far a call can be cut; `None` where it runs as a whole only.
pub fn extent(call: &dyn Call) -> Option<Extent> {
    cut(call, &Fields::of(call)?).map(|(_, extent)| extent)
}

/// The call as one piece. `None` where its sizes are not fixed, or a written operand lies over another one.
pub fn whole(call: &dyn Call) -> Option<Piece> {
    Fields::of(call)?;
    let operands = call.operands();
    let window = |o: &CallOperand| {
        let bytes = o.operand.bytes.as_const().and_then(|b| u64::try_from(b).ok())?;
        Some(Window::flat(o.operand.mem, o.operand.off, bytes))
    };
    let windows = operands.iter().map(window).collect::<Option<Vec<_>>>()?;
    for (i, a) in windows.iter().enumerate().filter(|(i, _)| operands[*i].writes()) {
        if windows.iter().enumerate().any(|(j, b)| j != i && a.meets(b)) {
            return None;
        }
    }
    Some(Piece { call: call.boxed(), windows, ppm: WHOLE_PPM, fills: false })
}

/// The piece with these blocks and rows of the result.
pub fn piece(call: &dyn Call, blocks: Range<u64>, rows: Range<u64>) -> Option<Piece> {
    let f = Fields::of(call)?;
    let (cut, extent) = cut(call, &f)?;
    if blocks.start >= blocks.end || rows.start >= rows.end || blocks.end > extent.blocks || rows.end > extent.rows {
        return None;
    }
    if blocks == (0..extent.blocks) && rows == (0..extent.rows) {
        return whole(call);
    }
    let mut out = match cut {
        Cut::Windowed(kind, shape) => windowed(call, &f, kind, shape, &blocks, &rows),
        Cut::Flat(n) => flat(call, n, &rows),
        Cut::Gemm => gemm(call, &f, &blocks, &rows),
    }?;
    let part = (blocks.end - blocks.start) * (rows.end - rows.start) * WHOLE_PPM;
    out.ppm = part.div_ceil(extent.blocks * extent.rows).max(1);
    Some(out)
}

/// A copy of the call with other numbers, and with the windows' lengths.
fn rebuilt(call: &dyn Call, nums: &[(&str, u64)], window: impl Fn(&CallOperand) -> Option<Window>) -> Option<Piece> {
    let mut copy = call.boxed();
    copy.fields_mut(&mut |name, field| {
        if let FieldMut::Nums(values) = field
            && let Some((_, n)) = nums.iter().find(|(field, _)| *field == name)
            && let [value] = values
        {
            *value = Dim::Const(*n as i64);
        }
    });
    let windows = call.operands().iter().map(window).collect::<Option<Vec<_>>>()?;
    let mut sizes = windows.iter();
    copy.relocate(&mut |o: &mut Operand<Dim>| {
        o.bytes = Dim::Const(sizes.next().map_or(0, Window::bytes) as i64);
    });
    Some(Piece { call: copy, windows, ppm: WHOLE_PPM, fills: true })
}

/// The piece that makes this part of the call's result, with all its blocks: rows of it, or of an element-wise kernel
/// whatever elements they are. `None` where no piece makes just that.
pub fn piece_for(call: &dyn Call, wanted: &Window) -> Option<Piece> {
    let f = Fields::of(call)?;
    let (cut, extent) = cut(call, &f)?;
    let at = result(call)?;
    let piece = match cut {
        Cut::Flat(n) => same_elements(call, n, at, wanted)?,
        _ if extent.rows == 1 => whole(call)?,
        _ => {
            let row = |r: u64| piece(call, 0..extent.blocks, r..r + 1).map(|p| p.windows[at]);
            let (first, second) = (row(0)?, row(1)?);
            let start = wanted.off.checked_sub(first.off)? / (second.off - first.off).max(1);
            let n = wanted.bytes() / first.bytes().max(1);
            piece(call, 0..extent.blocks, start..start + n)?
        }
    };
    (piece.windows[at].dense() == wanted.dense()).then_some(piece)
}

/// Those elements of an element-wise kernel's `n`, wherever they lie; operand `at` is its result.
fn same_elements(call: &dyn Call, n: u64, at: usize, wanted: &Window) -> Option<Piece> {
    let y = call.operands().into_iter().nth(at)?;
    let of = y.dtype.size_bytes() as u64;
    let before = wanted.off.checked_sub(y.operand.off)?;
    let fits = wanted.buffer == y.operand.mem && before + wanted.reach() <= n * of;
    let whole = [before, wanted.row_bytes, wanted.stride].iter().all(|bytes| bytes % of == 0);
    let window = |o: &CallOperand| {
        let bytes = o.operand.bytes.as_const().and_then(|b| u64::try_from(b).ok())?;
        let element = o.dtype.size_bytes() as u64;
        if bytes != n * element {
            return Some(Window::flat(o.operand.mem, o.operand.off, bytes));
        }
        let scaled = |bytes: u64| bytes / of * element;
        let (row_bytes, stride) = (scaled(wanted.row_bytes), scaled(wanted.stride));
        Some(Window {
            buffer: o.operand.mem,
            off: o.operand.off + scaled(before),
            rows: wanted.rows,
            row_bytes,
            stride,
        })
    };
    let count = wanted.bytes() / of;
    let piece = (fits && whole && count > 0).then(|| rebuilt(call, &[("n", count)], window))??;
    Some(Piece { ppm: (count * WHOLE_PPM).div_ceil(n).max(1), ..piece })
}

/// Input rows of output rows: the first, one past the last, and the padding above them; `None` where all is padding.
fn input_rows(s: &ConvShape, rows: &Range<u64>) -> Option<(u64, u64, u64)> {
    let top = rows.start as i64 * s.sy as i64 - s.pt as i64;
    let bottom = (rows.end as i64 - 1) * s.sy as i64 - s.pt as i64 + (s.kh as i64 - 1) * s.dy as i64 + 1;
    let (a, b) = (top.max(0), bottom.min(s.h as i64));
    (a < b).then_some((a as u64, b as u64, (a - top) as u64))
}

fn windowed(
    call: &dyn Call,
    f: &Fields,
    kind: &Windowed,
    s: ConvShape,
    blocks: &Range<u64>,
    rows: &Range<u64>,
) -> Option<Piece> {
    let (first, end, pt) = input_rows(&s, rows)?;
    let n_blocks = s.oc.div_ceil(16) as u64;
    let oc = (s.oc as u64).min(blocks.end * 16) - blocks.start * 16;
    let each = kind.channels == Channels::Each;
    let ic = if each { oc } else { s.ic as u64 };
    let (h, oh) = (end - first, rows.end - rows.start);
    let part = ConvShape {
        ic: ic as usize,
        oc: oc as usize,
        h: h as usize,
        oh: oh as usize,
        pt: pt as usize,
        groups: if each { ic as usize } else { s.groups },
        ..s
    };
    let form =
        Form { flip: f.params.get("x_flip").is_some_and(|flip| flip != "0"), tile: f.num_or("tile", 2) as usize };
    let (units, scratch) = ((kind.units)(part, form) as u64, (kind.scratch)(part, form) as u64);
    // Below the last row the padding is the call's own; other pieces end in the image, or as far outside as they reach.
    let below = (rows.end as i64 - 1) * s.sy as i64 + (s.kh as i64 - 1) * s.dy as i64 + 1 - s.pt as i64 - s.h as i64;
    let pb = if rows.end == s.oh as u64 { f.num_or("pb", 0) } else { below.max(0) as u64 };
    let mut nums = vec![("h", h), ("oh", oh), ("pt", pt), ("pb", pb), ("part_begin", 0), ("part_end", units)];
    nums.extend(if each { vec![("c", oc)] } else { vec![("oc", oc), ("ic", ic)] });
    // Rows of one plane of an image in a buffer.
    let plane = |o: &CallOperand, planes: Range<u64>, lines: (u64, u64), height: usize, width: usize, lane: u64| {
        let line = width as u64 * lane * o.dtype.size_bytes() as u64;
        let stride = height as u64 * line;
        let off = o.operand.off + planes.start * stride + lines.0 * line;
        let count = planes.end - planes.start;
        Window { buffer: o.operand.mem, off, rows: count, row_bytes: (lines.1 - lines.0) * line, stride }
    };
    let input_planes = match kind.lane {
        16 if each => blocks.clone(),
        16 => 0..s.ic.div_ceil(16) as u64,
        _ => 0..s.ic as u64,
    };
    let window = |o: &CallOperand| {
        let bytes = o.operand.bytes.as_const().and_then(|b| u64::try_from(b).ok())?;
        let lines = (rows.start, rows.end);
        Some(match o.name {
            "x" => plane(o, input_planes.clone(), (first, end), s.h, s.w, kind.lane),
            "y" | "residual" => plane(o, blocks.clone(), lines, s.oh, s.ow, 16),
            "scratch" => Window::flat(o.operand.mem, o.operand.off, scratch),
            // Positions, each with all blocks of output channels.
            "weights" if kind.name == "ConvWinograd" => {
                by_block(o, (form.tile as u64 + 2).pow(2), bytes, n_blocks, blocks)?
            }
            "weights" | "bias" | "factor" => by_block(o, 1, bytes, n_blocks, blocks)?,
            _ => return None,
        })
    };
    rebuilt(call, &nums, window)
}

/// The blocks' share of an operand of `rows` rows that each hold all blocks, one after the other.
fn by_block(o: &CallOperand, rows: u64, bytes: u64, n_blocks: u64, blocks: &Range<u64>) -> Option<Window> {
    let block = bytes / (rows * n_blocks);
    if block * rows * n_blocks != bytes {
        return None;
    }
    Some(Window {
        buffer: o.operand.mem,
        off: o.operand.off + blocks.start * block,
        rows,
        row_bytes: (blocks.end - blocks.start) * block,
        stride: n_blocks * block,
    })
}

fn flat(call: &dyn Call, n: u64, rows: &Range<u64>) -> Option<Piece> {
    let (start, end) = (rows.start * FLAT_ROW, (rows.end * FLAT_ROW).min(n));
    let window = |o: &CallOperand| {
        let bytes = o.operand.bytes.as_const().and_then(|b| u64::try_from(b).ok())?;
        let element = o.dtype.size_bytes() as u64;
        // Bounds and the like are one element for all.
        let (from, bytes) = if bytes == n * element { (start * element, (end - start) * element) } else { (0, bytes) };
        Some(Window::flat(o.operand.mem, o.operand.off + from, bytes))
    };
    rebuilt(call, &[("n", end - start)], window)
}

fn gemm(call: &dyn Call, f: &Fields, blocks: &Range<u64>, rows: &Range<u64>) -> Option<Piece> {
    let (n, lda, ldc) = (f.num("n")?, f.num("lda")?, f.num("ldc")?);
    let ld_residual = f.num_or("ld_residual", 0);
    let n_blocks = n.div_ceil(16);
    let (first, columns) = (blocks.start * 16, n.min(blocks.end * 16) - blocks.start * 16);
    let (row, m) = (rows.start, rows.end - rows.start);
    // One row for all (a stride of 0) stays one row.
    let residual = (ld_residual > 0, if ld_residual > 0 { columns } else { 0 });
    let nums = [("m", m), ("n", columns), ("ldc", columns), ("ld_residual", residual.1)];
    let window = |o: &CallOperand| {
        let bytes = o.operand.bytes.as_const().and_then(|b| u64::try_from(b).ok())?;
        let element = o.dtype.size_bytes() as u64;
        let matrix = |ld: u64, one_row: bool| Window {
            buffer: o.operand.mem,
            off: o.operand.off + (if one_row { 0 } else { row * ld } + first) * element,
            rows: if one_row { 1 } else { m },
            row_bytes: columns * element,
            stride: ld.max(columns) * element,
        };
        // One value for each column, perhaps filled up to whole blocks; or one for all.
        let columns_of = |bytes: u64| match bytes / element {
            1 => Some(Window::flat(o.operand.mem, o.operand.off, bytes)),
            count if count == n => {
                Some(Window::flat(o.operand.mem, o.operand.off + first * element, columns * element))
            }
            _ => by_block(o, 1, bytes, n_blocks, blocks),
        };
        Some(match o.name {
            "a" => Window::flat(
                o.operand.mem,
                o.operand.off + row * lda * element,
                (bytes - row * lda * element).min(m * lda * element),
            ),
            "b" => by_block(o, 1, bytes, n_blocks, blocks)?,
            "c" => matrix(ldc, false),
            "residual" => matrix(ld_residual, !residual.0),
            "bias" | "b_sums" | "b_scale" | "bias_f32" | "b_zero" => columns_of(bytes)?,
            "a_zero" | "a_scale" | "c_scale" | "c_zero" => Window::flat(o.operand.mem, o.operand.off, bytes),
            _ => return None,
        })
    };
    rebuilt(call, &nums, window)
}
