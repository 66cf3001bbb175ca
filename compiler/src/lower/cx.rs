//! What an operator's `lower` works with: operands as buffers, results to fill, weights to pack, calls to make.
//!
//! Before memory planning every buffer is a region of its own: an operand's `mem` is a buffer index.

use super::call::{Call, call};
use super::{Buffer, BufferKind, Lowered, Place, Step};
use crate::error::{CompileError, Stage};
use crate::ir::{Dim, Layout, Tensor, TensorType, ValueId};
use crate::ops::view::{NodeView, Result};
use kiln_kernels::{CheckExtents, Descriptor, Dtype, Operand};
use std::fmt::Debug;
use std::ops::Deref;

/// A node during lowering.
pub struct LowerCx<'a> {
    view: NodeView<'a>,
    pub(super) node_idx: usize,
    pub(super) out: &'a mut Lowered,
}

impl<'a> Deref for LowerCx<'a> {
    type Target = NodeView<'a>;
    fn deref(&self) -> &NodeView<'a> {
        &self.view
    }
}

impl<'a> LowerCx<'a> {
    pub(super) fn new(view: NodeView<'a>, node_idx: usize, out: &'a mut Lowered) -> Self {
        Self { view, node_idx, out }
    }

    /// The view alone.
    pub fn view(&self) -> NodeView<'a> {
        self.view
    }

    /// An operand's memory.
    pub fn x(&mut self, i: usize) -> Result<Operand<Dim>> {
        let id = self.view.id(i)?;
        self.operand_of(id).map_err(|e| e.at_input(i))
    }

    /// An operand's memory, if it is given.
    pub fn opt(&mut self, i: usize) -> Result<Option<Operand<Dim>>> {
        if self.view.has(i) { self.x(i).map(Some) } else { Ok(None) }
    }

    pub(super) fn operand_of(&mut self, id: ValueId) -> Result<Operand<Dim>> {
        if self.view.graph.value(id).ty.as_ref().is_some_and(crate::ir::Type::is_object) {
            return Err(CompileError::new(
                Stage::Lower,
                "strings, sequences and optional values are not supported here",
            ));
        }
        let bytes = value_bytes(self.view, id)?;
        if let Some(place) = self.out.places[id.0 as usize] {
            return Ok(Operand::at(place.buffer, place.off, self.within(place, bytes)));
        }
        let Some(t) = self.view.graph.constant(id) else {
            return Err(CompileError::new(
                Stage::Lower,
                format!("value \"{}\" has no memory", self.view.graph.value(id).name),
            ));
        };
        let buffer = self.out.add_weight(t.data().clone(), &self.view.graph.value(id).name);
        self.out.places[id.0 as usize] = Some(Place { buffer, off: 0 });
        Ok(Operand::at(buffer, 0, bytes))
    }

    /// The bytes of a view: no more than its buffer has, where bounds of extents alone would allow more.
    fn within(&self, place: Place, bytes: Dim) -> Dim {
        let room = self.out.buffers[place.buffer as usize].bytes.clone()
            - Dim::Const(i64::try_from(place.off).unwrap_or(i64::MAX));
        match (bytes.upper(), room.upper()) {
            (Some(b), Some(r)) if b > r => bytes.at_most(&room),
            _ => bytes,
        }
    }

    /// Memory for a result, in its value's layout. A result nobody wants gets memory that nobody reads, of type `ty`.
    pub fn y_or(&mut self, i: usize, ty: &TensorType) -> Result<Operand<Dim>> {
        if self.view.wants(i) { self.y(i) } else { Ok(self.scratch(ty.bytes())) }
    }

    /// Memory for a result that is wanted, in its value's layout.
    pub fn y(&mut self, i: usize) -> Result<Operand<Dim>> {
        let id = self
            .view
            .node
            .output(i)
            .ok_or_else(|| CompileError::new(Stage::Lower, "result is not wanted").at_output(i))?;
        if let Some(place) = self.out.places[id.0 as usize] {
            return Ok(Operand::at(place.buffer, place.off, value_bytes(self.view, id)?));
        }
        if self.view.graph.value(id).ty.as_ref().is_some_and(crate::ir::Type::is_object) {
            return Err(CompileError::new(Stage::Lower, "strings are not supported here").at_output(i));
        }
        let bytes = value_bytes(self.view, id)?;
        let name = self.view.graph.value(id).name.clone();
        let buffer = self.out.add_buffer(Buffer { name, bytes: bytes.clone(), kind: BufferKind::Activation });
        self.out.places[id.0 as usize] = Some(Place { buffer, off: 0 });
        Ok(Operand::at(buffer, 0, bytes))
    }

    /// Makes a result a view of an operand's memory: no call, no copy.
    pub fn view_of(&mut self, output_idx: usize, input_idx: usize) -> Result<()> {
        self.view_at(output_idx, input_idx, 0)
    }

    /// Makes a result a view of an operand's memory from a byte offset on.
    pub fn view_at(&mut self, output_idx: usize, input_idx: usize, off: u64) -> Result<()> {
        let x = self.x(input_idx)?;
        if let Some(id) = self.view.node.output(output_idx) {
            self.out.places[id.0 as usize] = Some(Place { buffer: x.mem, off: x.off + off });
        }
        Ok(())
    }

    /// The extents of an operand's memory form (see [`TensorType::physical_shape`]).
    pub fn physical(&self, i: usize) -> Result<Vec<Dim>> {
        Ok(self.view.ty(i)?.physical_shape(self.view.layout(i)?))
    }

    /// The extents of a result's memory form.
    pub fn out_physical(&self, i: usize) -> Result<Vec<Dim>> {
        let layout = self.view.node.output(i).map_or(Layout::Plain, |v| self.view.graph.value(v).layout);
        Ok(self.view.out_ty(i)?.physical_shape(layout))
    }

    /// An operand that a result is made from and the result, each with all the room it has where the result is a state kept
    /// in place: there the two are the same memory.
    pub fn held(&self, x: Option<Operand<Dim>>, y: Operand<Dim>) -> (Option<Operand<Dim>>, Operand<Dim>) {
        let buffer = |o: &Operand<Dim>| &self.out.buffers[o.mem as usize];
        let whole = |o: Operand<Dim>| Operand { bytes: buffer(&o).bytes.clone(), ..o };
        match x {
            Some(x) if matches!(buffer(&x).kind, BufferKind::Held(_)) && x.off == 0 && y.off == 0 => {
                (Some(whole(x)), whole(y))
            }
            x => (x, y),
        }
    }

    /// Memory that only this node's calls use.
    pub fn scratch(&mut self, bytes: Dim) -> Operand<Dim> {
        let name = format!("{} scratch", self.view.node.name);
        let buffer = self.out.add_buffer(Buffer { name, bytes: bytes.clone(), kind: BufferKind::Scratch });
        Operand::at(buffer, 0, bytes)
    }

    /// Constant bytes packed for a kernel; equal ones are stored once.
    pub fn weights(&mut self, data: impl Into<bytes::Bytes>) -> Operand<Dim> {
        let data = data.into();
        let bytes = Dim::from(data.len());
        let name = format!("{} weights", self.view.node.name);
        Operand::at(self.out.add_weight(data, &name), 0, bytes)
    }

    /// Constant `f32`s packed for a kernel.
    pub fn f32_weights(&mut self, values: &[f32]) -> Operand<Dim> {
        let mut data = Vec::with_capacity(values.len() * 4);
        for v in values {
            data.extend_from_slice(&v.to_le_bytes());
        }
        self.weights(data)
    }

    /// Constant `i64`s for a kernel.
    pub fn i64_weights(&mut self, values: &[i64]) -> Operand<Dim> {
        let data: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        self.weights(data)
    }

    /// A constant operand that must be there: packing needs its elements.
    pub fn need_constant(&self, i: usize) -> Result<&'a Tensor> {
        self.view
            .constant(i)
            .map(AsRef::as_ref)
            .ok_or_else(|| CompileError::new(Stage::Lower, "must be constant here").at_input(i))
    }

    /// Has it checked at run time that an operand of these extents broadcasts to the result's, as far as it is not known.
    pub fn expect_broadcast(&mut self, extents: &[Dim], result: &[Dim]) -> Result<()> {
        let last = |n: usize| result.len().saturating_sub(n);
        let pairs = extents.iter().zip(&result[last(extents.len())..]);
        self.expect(pairs.filter(|(a, b)| !a.is(1) && a != b), true)
    }

    /// Has it checked at run time that extents are equal, as far as it is not known.
    pub fn expect_equal<'d>(&mut self, pairs: impl IntoIterator<Item = (&'d Dim, &'d Dim)>) -> Result<()> {
        self.expect(pairs.into_iter().filter(|(a, b)| a != b), false)
    }

    fn expect<'d>(&mut self, pairs: impl Iterator<Item = (&'d Dim, &'d Dim)>, or_one: bool) -> Result<()> {
        let pairs: Vec<_> = pairs.collect();
        for pairs in pairs.chunks(8) {
            let of = |side: fn(&(&Dim, &Dim)) -> Dim| std::array::from_fn(|i| pairs.get(i).map_or(Dim::Const(0), side));
            let (given, wanted) = (of(|p| p.0.clone()), of(|p| p.1.clone()));
            self.call(&[], CheckExtents { n: Dim::from(pairs.len()), given, wanted, or_one })?;
        }
        Ok(())
    }

    /// Adds a kernel call for these element types.
    pub fn call<D>(&mut self, key: &[Dtype], descriptor: D) -> Result<()>
    where
        D: Descriptor<Dim> + Debug + Clone + Send + Sync + 'static,
        D::With<usize>: 'static,
    {
        let call: Box<dyn Call> = call(key, descriptor)?;
        self.out.steps.push(Step { call, node_idx: self.node_idx });
        Ok(())
    }
}

/// Bytes of a value in its layout.
pub fn value_bytes(view: NodeView<'_>, id: ValueId) -> Result<Dim> {
    Ok(view.graph.tensor_type(id)?.bytes_in(view.graph.value(id).layout))
}

/// The unsigned type of an element type's size (of 16 bytes: c128): what movement kernels are keyed by.
pub fn width_of(dtype: Dtype) -> Result<Dtype> {
    match dtype.size_bytes() {
        1 => Ok(Dtype::U8),
        2 => Ok(Dtype::U16),
        4 => Ok(Dtype::U32),
        8 => Ok(Dtype::U64),
        16 => Ok(Dtype::C128),
        _ => Err(CompileError::new(Stage::Lower, format!("no movement kernel for {dtype}"))),
    }
}
