//! Control flow as one call: a head that decides, and bodies of further calls with memory planned inside one scratch block.
//!
//! In: a node with bodies, the places of what the bodies read and write outside. Out: a [`Control`] that planning,
//! scheduling and the verifier see as a single step with its operands. A body is planned and verified like a program of its
//! own, whose arena is the scratch block and whose inputs are the buffers around it; bodies of which only one runs share
//! the block.
//! Invariant: an operand of a body's call lies inside an operand of the step, or in the weights.

use super::call::{Call, CallOperand, FieldText, call};
use super::{BufferKind, LowerCx, Lowered, Place, Step, copy_bytes, drop_dead_steps, lower_node};
use crate::error::{CompileError, Stage};
use crate::ir::{Dim, Graph, Symbol, ValueId};
use kiln_kernels::{Cx, Descriptor, Dtype, Operand, Role};
use std::fmt::Debug;

/// Where a body's buffers lie in its memory, and how large that is.
#[derive(Clone, Debug, Default)]
pub struct BodyPlan {
    /// For every buffer its offset; `None` for memory outside, constants, and buffers nobody uses.
    pub offsets: Vec<Option<u64>>,
    /// Size in bytes.
    pub bytes: u64,
}

/// Plans the memory of a lowered body and proves the plan.
pub type PlanBody = fn(&Lowered) -> Result<BodyPlan, CompileError>;

/// What the head decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// The first body where the extent in this slot is not zero, else the second.
    If {
        /// The slot the head writes.
        holds: usize,
    },
    /// The body, as long as the extent in this slot is not zero.
    Loop {
        /// The slot the head writes.
        again: usize,
    },
}

/// A call inside a body.
#[derive(Clone, Debug)]
pub struct BodyStep {
    /// The kernel call.
    pub call: Box<dyn Call>,
    /// The node's name.
    pub node: String,
    /// Operator and types of the node.
    pub note: String,
}

/// A control-flow step.
#[derive(Clone, Debug)]
pub struct Control {
    /// What the head decides.
    pub flow: Flow,
    /// The kernel that decides.
    pub head: Box<dyn Call>,
    /// Then and else, or the loop's body.
    pub bodies: Vec<Vec<BodyStep>>,
    operands: Vec<CallOperand>,
}

impl Control {
    fn calls(&self) -> impl Iterator<Item = &dyn Call> {
        std::iter::once(self.head.as_ref()).chain(self.bodies.iter().flatten().map(|s| s.call.as_ref()))
    }

    /// The operands of the head and of all calls in the bodies, and in bodies inside of them: for the verifier, and to find the
    /// constants that are read.
    pub fn inner_operands(&self) -> Vec<CallOperand> {
        let each = |c: &dyn Call| {
            let mut all = c.operands();
            all.extend(c.control().map(Control::inner_operands).unwrap_or_default());
            all
        };
        self.calls().flat_map(each).collect()
    }
}

impl Call for Control {
    fn entry(&self) -> &'static str {
        self.head.entry()
    }

    fn descriptor(&self) -> &'static str {
        self.head.descriptor()
    }

    fn operands(&self) -> Vec<CallOperand> {
        self.operands.clone()
    }

    fn relocate(&mut self, f: &mut dyn FnMut(&mut Operand<Dim>)) {
        self.operands.iter_mut().for_each(|o| f(&mut o.operand));
        self.head.relocate(f);
        for step in self.bodies.iter_mut().flatten() {
            step.call.relocate(f);
        }
    }

    fn fields(&self, f: &mut dyn FnMut(&'static str, FieldText<'_>)) {
        for call in self.calls() {
            f("call", FieldText::Param(call.entry().to_owned()));
            call.fields(f);
        }
    }

    fn run(&self, cx: &Cx<'_>, value_of: &dyn Fn(&Symbol) -> i64) {
        let run = |body: usize| {
            for step in self.bodies.get(body).into_iter().flatten() {
                if cx.failed() {
                    return;
                }
                step.call.run(cx, value_of);
            }
        };
        let decide = |slot: usize| {
            self.head.run(cx, value_of);
            !cx.failed() && cx.dim(slot) != 0
        };
        match self.flow {
            Flow::If { holds } => run(usize::from(!decide(holds))),
            Flow::Loop { again } => {
                while decide(again) {
                    run(0);
                }
            }
        }
    }

    fn found(&self) -> Vec<usize> {
        self.calls().flat_map(|c| c.found()).collect()
    }

    /// What the bodies read before they write it themselves, and all they write.
    fn objects(&self) -> Vec<(usize, Role)> {
        let (mut reads, mut writes) = (Vec::new(), Vec::new());
        for body in &self.bodies {
            let mut written = std::collections::BTreeSet::new();
            for (slot, role) in body.iter().flat_map(|s| s.call.objects()) {
                if role != Role::Write && !written.contains(&slot) {
                    reads.push((slot, Role::Read));
                }
                if matches!(role, Role::Write | Role::Update) {
                    written.insert(slot);
                    writes.push((slot, Role::Write));
                }
            }
        }
        reads.append(&mut writes);
        reads
    }

    fn dims(&self, f: &mut dyn FnMut(&Dim)) {
        self.operands.iter().for_each(|o| f(&o.operand.bytes));
        self.calls().for_each(|c| c.dims(f));
    }

    fn control(&self) -> Option<&Control> {
        Some(self)
    }

    fn boxed(&self) -> Box<dyn Call> {
        Box::new(self.clone())
    }
}

/// A body's calls before the memory around it is known in full.
pub struct LoweredBody {
    steps: Vec<BodyStep>,
    kinds: Vec<BufferKind>,
    offsets: Vec<Option<u64>>,
    bytes: u64,
    outer: Vec<u32>,
}

/// A body while it is lowered: values bound to memory outside, nodes lowered, results copied out.
pub struct BodyCx<'a> {
    pub(super) graph: &'a Graph,
    pub(super) inner: Lowered,
    /// The buffers outside, by position; a body's buffer of kind [`BufferKind::Outer`] names one.
    outer: Vec<u32>,
}

/// Copies to the outside come after all nodes: they belong to none.
pub(super) const NO_NODE: usize = usize::MAX;

impl<'a> BodyCx<'a> {
    /// Binds a value of the body to memory outside.
    pub fn bind(&mut self, cx: &LowerCx<'_>, value: ValueId, place: Place) {
        let place = self.inside(cx, place);
        self.inner.places[value.0 as usize] = Some(place);
    }

    /// The same memory as the body names it.
    fn inside(&mut self, cx: &LowerCx<'_>, place: Place) -> Place {
        let buffer = &cx.out.buffers[place.buffer as usize];
        if let BufferKind::Weight(data) = &buffer.kind {
            let inner = self.inner.add_weight(data.clone(), &buffer.name);
            return Place { buffer: inner, off: place.off };
        }
        let known = self.outer.iter().position(|&b| b == place.buffer);
        let at = known.unwrap_or_else(|| {
            self.outer.push(place.buffer);
            self.outer.len() - 1
        });
        let have = self.inner.buffers.iter().position(|b| b.kind == BufferKind::Outer(at));
        let inner = match have {
            Some(b) => b as u32,
            None => self.inner.add_buffer(super::Buffer {
                name: buffer.name.clone(),
                bytes: buffer.bytes.clone(),
                kind: BufferKind::Outer(at),
            }),
        };
        Place { buffer: inner, off: place.off }
    }

    /// Memory of the body's own for a value that a call of [`Self::call`] fills before the nodes run.
    pub fn allocate(&mut self, value: ValueId, bytes: Dim) -> Operand<Dim> {
        let name = self.graph.value(value).name.clone();
        let buffer = self.inner.add_buffer(super::Buffer { name, bytes: bytes.clone(), kind: BufferKind::Activation });
        self.inner.places[value.0 as usize] = Some(Place { buffer, off: 0 });
        Operand::at(buffer, 0, bytes)
    }

    /// Lowers the body's nodes.
    pub fn nodes(&mut self) -> Result<(), CompileError> {
        for i in 0..self.graph.nodes.len() {
            lower_node(self.graph, i, &mut self.inner)?;
        }
        Ok(())
    }

    /// Where a value lies, as an operand of the body.
    pub fn operand(&mut self, value: ValueId) -> Result<Operand<Dim>, CompileError> {
        let bytes = self.graph.tensor_type(value)?.bytes();
        if let Some(place) = self.inner.places[value.0 as usize] {
            return Ok(Operand::at(place.buffer, place.off, bytes));
        }
        let v = self.graph.value(value);
        let t = v.constant.as_ref().ok_or_else(|| {
            CompileError::new(Stage::Lower, format!("value \"{}\" of the body has no memory", v.name))
        })?;
        let buffer = self.inner.add_weight(t.data().clone(), &v.name);
        Ok(Operand::at(buffer, 0, bytes))
    }

    /// Memory outside as an operand of the body.
    pub fn outside(&mut self, cx: &LowerCx<'_>, o: &Operand<Dim>) -> Operand<Dim> {
        let place = self.inside(cx, Place { buffer: o.mem, off: o.off });
        Operand::at(place.buffer, place.off, o.bytes.clone())
    }

    /// Whether an operand of the body is memory outside that can be written.
    pub fn is_outside(&self, o: &Operand<Dim>) -> bool {
        matches!(self.inner.buffers[o.mem as usize].kind, BufferKind::Outer(_))
    }

    /// A copy of an operand in memory of the body's own.
    pub fn staged(&mut self, x: &Operand<Dim>) -> Result<Operand<Dim>, CompileError> {
        let kind = BufferKind::Scratch;
        let buffer = self.inner.add_buffer(super::Buffer { name: "state".into(), bytes: x.bytes.clone(), kind });
        let y = Operand::at(buffer, 0, x.bytes.clone());
        self.copy(x.clone(), y.clone())?;
        Ok(y)
    }

    /// Copies an operand onto another.
    pub fn copy(&mut self, x: Operand<Dim>, y: Operand<Dim>) -> Result<(), CompileError> {
        if x != y {
            self.inner.steps.push(Step { call: copy_bytes(x, y)?, node_idx: NO_NODE });
        }
        Ok(())
    }

    /// A call that belongs to no node of the body.
    pub fn call<D>(&mut self, key: &[Dtype], descriptor: D) -> Result<(), CompileError>
    where
        D: Descriptor<Dim> + Debug + Clone + Send + Sync + 'static,
        D::With<usize>: 'static,
    {
        self.inner.steps.push(Step { call: call(key, descriptor)?, node_idx: NO_NODE });
        Ok(())
    }

    /// Plans the body's memory and verifies the plan.
    fn plan(mut self) -> Result<LoweredBody, CompileError> {
        drop_dead_steps(&mut self.inner);
        let plan = self.inner.plan_body.ok_or_else(|| {
            CompileError::new(Stage::Lower, "control flow cannot be lowered here (a bug in the compiler)")
        })?;
        let BodyPlan { offsets, bytes } = plan(&self.inner)?;
        let mut steps = Vec::with_capacity(self.inner.steps.len());
        for step in self.inner.steps {
            let (node, note) = match self.graph.nodes.get(step.node_idx) {
                Some(n) => (n.name.clone(), self.graph.note(n)),
                None => (String::new(), "carried by the loop, or handed out".to_owned()),
            };
            steps.push(BodyStep { call: step.call, node, note });
        }
        let kinds = self.inner.buffers.into_iter().map(|b| b.kind).collect();
        Ok(LoweredBody { steps, kinds, offsets, bytes, outer: self.outer })
    }
}

impl LowerCx<'_> {
    /// Begins a body: values captured from outside are bound to their places.
    pub fn body<'b>(&mut self, graph: &'b Graph) -> Result<BodyCx<'b>, CompileError> {
        let places = vec![None; graph.values.len()];
        let n_objects = self.out.n_objects;
        let inner = Lowered {
            places,
            n_slots: self.out.n_slots,
            plan_body: self.out.plan_body,
            n_objects,
            outer_objects: n_objects,
            object_places: vec![None; graph.values.len()],
            ..Lowered::default()
        };
        let mut body = BodyCx { graph, inner, outer: Vec::new() };
        for &(outer, inner) in &graph.captures {
            if graph.constant(inner).is_some() {
                continue;
            }
            if graph.value(inner).ty.as_ref().is_some_and(crate::ir::Type::is_object) {
                body.bind_object(inner, self.object_of(outer)?);
                continue;
            }
            let o = self.operand_of(outer)?;
            body.bind(self, inner, Place { buffer: o.mem, off: o.off });
        }
        Ok(body)
    }

    /// Plans a body whose calls are complete.
    pub fn finish_body(&mut self, body: BodyCx<'_>) -> Result<LoweredBody, CompileError> {
        self.out.n_slots = self.out.n_slots.max(body.inner.n_slots);
        self.out.n_objects = self.out.n_objects.max(body.inner.n_objects);
        body.plan()
    }

    /// A fresh slot for an extent found at run time.
    pub fn slot(&mut self) -> usize {
        self.out.n_slots += 1;
        self.out.n_slots - 1
    }

    /// Copies an operand onto another.
    pub fn copy(&mut self, x: Operand<Dim>, y: Operand<Dim>) -> Result<(), CompileError> {
        let call = copy_bytes(x, y)?;
        self.out.steps.push(Step { call, node_idx: self.node_idx });
        Ok(())
    }

    /// Adds the control-flow step. `writes` are the operands that the bodies write outside, with their roles.
    pub fn control<D>(
        &mut self,
        flow: Flow,
        key: &[Dtype],
        head: D,
        bodies: Vec<LoweredBody>,
        writes: Vec<(Operand<Dim>, Role)>,
    ) -> Result<(), CompileError>
    where
        D: Descriptor<Dim> + Debug + Clone + Send + Sync + 'static,
        D::With<usize>: 'static,
    {
        let head: Box<dyn Call> = call(key, head)?;
        let most = bodies.iter().map(|b| b.bytes).max().unwrap_or(0);
        let most = usize::try_from(most).map_err(|_| CompileError::new(Stage::Plan, "a body's memory is too large"))?;
        let scratch = self.scratch(Dim::from(most));
        let mut placed = Vec::with_capacity(bodies.len());
        for body in bodies {
            placed.push(self.place(body, &scratch)?);
        }
        let operand = |name, role, operand| CallOperand { name, role, dtype: Dtype::U8, operand };
        let mut operands: Vec<CallOperand> = writes.into_iter().map(|(o, role)| operand("result", role, o)).collect();
        if most > 0 {
            operands.push(operand("scratch", Role::Write, scratch.clone()));
        }
        let inner = placed.iter().flatten().flat_map(|s| s.call.operands());
        for o in head.operands().into_iter().chain(inner) {
            let weight = matches!(self.out.buffers[o.operand.mem as usize].kind, BufferKind::Weight(_));
            if weight || operands.iter().any(|known| covers(&known.operand, &o.operand)) {
                continue;
            }
            if o.writes() {
                let message = format!("a body writes {} outside what it declares (a bug in the compiler)", o.name);
                return Err(CompileError::new(Stage::Lower, message));
            }
            operands.push(operand("read", Role::Read, o.operand));
        }
        let call = Box::new(Control { flow, head, bodies: placed, operands });
        self.out.steps.push(Step { call, node_idx: self.node_idx });
        Ok(())
    }

    /// Names a body's operands as the graph around it does.
    fn place(&mut self, body: LoweredBody, scratch: &Operand<Dim>) -> Result<Vec<BodyStep>, CompileError> {
        let mut base = Vec::with_capacity(body.kinds.len());
        for (kind, offset) in body.kinds.iter().zip(&body.offsets) {
            base.push(match kind {
                BufferKind::Weight(data) => Some((self.out.add_weight(data.clone(), "body weights"), 0)),
                BufferKind::Outer(i) => Some((body.outer[*i], 0)),
                BufferKind::Activation | BufferKind::Scratch => offset.map(|o| (scratch.mem, scratch.off + o)),
                BufferKind::Input(_) | BufferKind::State(_) | BufferKind::Held(_) | BufferKind::OnDevice => None,
            });
        }
        let mut missing = false;
        let mut steps = body.steps;
        for step in &mut steps {
            step.call.relocate(&mut |o| match base[o.mem as usize] {
                Some((mem, off)) => {
                    o.mem = mem;
                    o.off += off;
                }
                None => missing = true,
            });
        }
        if missing {
            return Err(CompileError::new(Stage::Plan, "a body's buffer has no place (a bug in the compiler)"));
        }
        Ok(steps)
    }
}

/// Whether every byte of `o` is one of `whole`, at the greatest extents.
pub(crate) fn covers(whole: &Operand<Dim>, o: &Operand<Dim>) -> bool {
    let end = |o: &Operand<Dim>| o.bytes.upper().and_then(|b| u64::try_from(b).ok()).and_then(|b| o.off.checked_add(b));
    whole.mem == o.mem && whole.off <= o.off && end(o).zip(end(whole)).is_some_and(|(e, w)| e <= w)
}
