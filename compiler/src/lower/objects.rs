//! Objects in lowering: slots for strings, sequences and optional values, and the way of tensors into and out of them.
//!
//! Slots are numbered through the whole module, those of bodies too: first the graph inputs', then all others. An object
//! slot is written once, the states of a loop and what is appended to aside.

use super::call::call;
use super::control::BodyCx;
use super::{LowerCx, Lowered, Step};
use crate::error::{CompileError, Stage};
use crate::ir::{Dim, Graph, SymbolSource, TensorType, Type, ValueId};
use crate::ops::view::Result;
use kiln_kernels::{
    ConstantStrings, CopyObject, Dtype, MoveObject, NO_SLOT, OBJECT_RANK, ObjectSlot, Operand, PutTensor, TakeTensor,
};

/// A slot of an object.
pub type Slot = ObjectSlot<Dim>;

/// Extents for a kernel, and the rank.
pub fn object_dims(shape: &[Dim]) -> Result<([Dim; OBJECT_RANK], usize)> {
    if shape.len() > OBJECT_RANK {
        return Err(CompileError::new(Stage::Lower, format!("rank {} is more than {OBJECT_RANK}", shape.len())));
    }
    Ok((std::array::from_fn(|i| shape.get(i).cloned().unwrap_or(Dim::Const(1))), shape.len()))
}

impl Lowered {
    /// A fresh slot.
    pub(super) fn new_object(&mut self) -> Slot {
        self.n_objects += 1;
        Slot::at(self.n_objects - 1)
    }

    /// The slot of a value that is an object; a constant is made on the way.
    pub(super) fn object_of(&mut self, graph: &Graph, id: ValueId, node_idx: usize) -> Result<Slot> {
        if let Some(slot) = self.object_places[id.0 as usize] {
            return Ok(Slot::at(slot));
        }
        let value = graph.value(id);
        let t = value.constant.as_ref().filter(|t| t.dtype() == Dtype::Str).ok_or_else(|| {
            CompileError::new(Stage::Lower, format!("value \"{}\" has no place among the objects", value.name))
        })?;
        let buffer = self.add_weight(t.data().clone(), &value.name);
        let x = Operand::at(buffer, 0, Dim::from(t.data().len()));
        let dims: Vec<Dim> = t.dims().iter().map(|&d| Dim::from(d)).collect();
        let (dims, rank) = object_dims(&dims)?;
        let y = self.new_object();
        self.steps.push(Step { call: call(&[Dtype::U8], ConstantStrings { x, dims, rank, y })?, node_idx });
        self.object_places[id.0 as usize] = Some(y.slot);
        Ok(y)
    }
}

/// The step that puts a tensor into a slot.
fn put(x: Operand<Dim>, ty: &TensorType, y: Slot) -> Result<PutTensor<Dim>> {
    let (dims, rank) = object_dims(&ty.shape)?;
    Ok(PutTensor { x, dims, rank, dtype: ty.dtype.to_onnx(), y })
}

/// The slots of a result's extents that are found at run time.
pub fn found_slots(shape: &[Dim]) -> [usize; OBJECT_RANK] {
    std::array::from_fn(|i| match shape.get(i).and_then(Dim::as_symbol).map(|s| &s.source) {
        Some(SymbolSource::Data { slot }) => *slot,
        _ => NO_SLOT,
    })
}

/// The greatest extents.
pub fn greatest(shape: &[Dim]) -> Result<Vec<Dim>> {
    let most = |d: &Dim| d.upper().map(Dim::Const);
    shape.iter().map(|d| most(d).ok_or_else(|| CompileError::new(Stage::Lower, format!("{d} has no bound")))).collect()
}

impl LowerCx<'_> {
    /// Whether an operand is an object.
    pub fn is_object(&self, i: usize) -> Result<bool> {
        Ok(self.view().any_ty(i)?.is_object())
    }

    /// An operand as an object; a tensor of numbers is put into a slot first.
    pub fn object(&mut self, i: usize) -> Result<Slot> {
        let id = self.view().id(i)?;
        if self.is_object(i)? {
            let (graph, node_idx) = (self.view().graph, self.node_idx);
            return self.out.object_of(graph, id, node_idx).map_err(|e| e.at_input(i));
        }
        let x = self.x(i)?;
        let y = self.new_object();
        let d = put(x, self.view().ty(i)?, y)?;
        self.call(&[Dtype::U8], d)?;
        Ok(y)
    }

    /// A captured or carried value as an object.
    pub fn object_of(&mut self, id: ValueId) -> Result<Slot> {
        let (graph, node_idx) = (self.view().graph, self.node_idx);
        self.out.object_of(graph, id, node_idx)
    }

    /// A slot that only this node's calls use.
    pub fn new_object(&mut self) -> Slot {
        self.out.new_object()
    }

    /// A slot for a result; one that nobody reads where the result is not wanted.
    pub fn object_y(&mut self, i: usize) -> Slot {
        let Some(id) = self.view().node.output(i) else { return self.new_object() };
        if let Some(slot) = self.out.object_places[id.0 as usize] {
            return Slot::at(slot);
        }
        let y = self.new_object();
        self.out.object_places[id.0 as usize] = Some(y.slot);
        y
    }

    /// Makes a result the object in this slot: no call, no copy.
    pub fn same_object(&mut self, i: usize, x: Slot) {
        if let Some(id) = self.view().node.output(i) {
            self.out.object_places[id.0 as usize] = Some(x.slot);
        }
    }

    /// Takes result `i`, a tensor, out of a slot.
    pub fn take_tensor(&mut self, i: usize, x: Slot) -> Result<()> {
        let ty = self.view().out_ty(i)?.clone();
        if ty.dtype == Dtype::Str {
            self.same_object(i, x);
            return Ok(());
        }
        let shape = greatest(&ty.shape)?;
        let bytes = TensorType::new(ty.dtype, shape.clone()).bytes();
        let (most, rank) = object_dims(&shape)?;
        let y = Operand { bytes, ..self.y(i)? };
        let [dim_0, dim_1, dim_2, dim_3, dim_4, dim_5, dim_6, dim_7] = found_slots(&ty.shape);
        let dtype = ty.dtype.to_onnx();
        let d = TakeTensor { y, most, rank, dtype, dim_0, dim_1, dim_2, dim_3, dim_4, dim_5, dim_6, dim_7, x };
        self.call(&[Dtype::U8], d)
    }

    /// Copies an object.
    pub fn copy_object(&mut self, x: Slot, y: Slot) -> Result<()> {
        if x == y { Ok(()) } else { self.call(&[], CopyObject { x, y }) }
    }
}

impl BodyCx<'_> {
    /// Binds a value of the body to a slot outside.
    pub fn bind_object(&mut self, value: ValueId, slot: Slot) {
        self.inner.object_places[value.0 as usize] = Some(slot.slot);
    }

    /// A value of the body as an object, a tensor put into a slot first.
    pub fn object(&mut self, value: ValueId) -> Result<Slot> {
        let graph = self.graph;
        match &graph.value(value).ty {
            Some(Type::Tensor(ty)) if ty.dtype != Dtype::Str => {
                let x = self.operand(value)?;
                let y = self.inner.new_object();
                self.call(&[Dtype::U8], put(x, ty, y)?)?;
                Ok(y)
            }
            _ => self.inner.object_of(graph, value, super::control::NO_NODE),
        }
    }

    /// A copy of an object in a slot of the body's own.
    pub fn staged_object(&mut self, x: Slot) -> Result<Slot> {
        let y = self.inner.new_object();
        self.call(&[], CopyObject { x, y })?;
        Ok(y)
    }

    /// Copies an object of the body to a slot outside.
    pub fn copy_object(&mut self, x: Slot, y: Slot) -> Result<()> {
        if x == y { Ok(()) } else { self.call(&[], CopyObject { x, y }) }
    }

    /// Moves an object of the body's own to a slot outside.
    pub fn move_object(&mut self, x: Slot, y: Slot) -> Result<()> {
        self.call(&[], MoveObject { x, y })
    }

    /// Whether a slot exists outside the body.
    pub fn is_outside_object(&self, x: Slot) -> bool {
        x.slot < self.inner.outer_objects
    }
}
