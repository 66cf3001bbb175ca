//! Runs kernel calls inside the compiler: constant folding, and checks of plans and kernels without a build.
//!
//! The same descriptors and kernels run here as in generated modules.

use crate::error::{CompileError, Stage};
use crate::ir::{Datum, Dim, Graph, Symbol, SymbolSource, Tensor, TensorType, Type};
use crate::lower::{BufferKind, Call, Lowered};
use crate::program::Program;
use kiln_kernels::isa::Isa;
use kiln_kernels::{AlignedBytes, Cx, Object, Objects, Region, RunState};
use std::cell::RefCell;
use std::sync::atomic::AtomicI64;

fn fail(message: impl Into<String>) -> CompileError {
    CompileError::new(Stage::Fold, message)
}

/// The slots of extents found at run time that these calls write.
fn slots<'c>(calls: impl Iterator<Item = &'c dyn Call>) -> Vec<AtomicI64> {
    let n = calls.flat_map(|c| c.found()).max().map_or(0, |last| last + 1);
    (0..n).map(|_| AtomicI64::new(0)).collect()
}

/// A symbol's value: an extent of a graph input, or one that a kernel found.
fn value_of<'c>(cx: &'c Cx<'_>, inputs: &'c [Vec<usize>]) -> impl Fn(&Symbol) -> i64 + 'c {
    |symbol| {
        let extent = match symbol.source {
            SymbolSource::Data { slot } => return cx.extent(slot) as i64,
            SymbolSource::Input { input_idx, axis } => {
                inputs.get(input_idx).and_then(|dims| dims.get(axis)).copied().unwrap_or(0)
            }
            SymbolSource::Element => 0,
        };
        i64::try_from(extent).unwrap_or(i64::MAX)
    }
}

/// The extents that a type has in this run.
fn actual_dims(ty: &TensorType, value_of: &dyn Fn(&Symbol) -> i64) -> Result<Vec<usize>, CompileError> {
    let extent = |d: &Dim| usize::try_from(d.eval(value_of)).map_err(|_| fail(format!("a negative extent {d}")));
    ty.shape.iter().map(extent).collect()
}

/// Runs a planned program here, in one arena as a generated module does. Extents must be constant or found by kernels.
pub fn run_program(program: &Program, inputs: &[&[u8]], isa: Isa) -> Result<Vec<Tensor>, CompileError> {
    let mut tensors = Vec::with_capacity(program.inputs.len());
    for (i, port) in program.inputs.iter().enumerate() {
        let dims =
            port.ty.const_dims().ok_or_else(|| fail(format!("the extents of \"{}\" are not constant", port.name)))?;
        let data = inputs.get(i).map(|d| d.to_vec().into());
        let tensor = data.and_then(|d| Tensor::new(port.ty.dtype, dims, d));
        tensors.push(tensor.ok_or_else(|| fail(format!("input \"{}\" has the wrong size", port.name)))?);
    }
    run_program_on(program, &tensors, isa)
}

/// As [`run_program`], with inputs that give free extents their sizes.
pub fn run_program_on(program: &Program, inputs: &[Tensor], isa: Isa) -> Result<Vec<Tensor>, CompileError> {
    let inputs: Vec<Datum> = inputs.iter().cloned().map(Datum::from).collect();
    let tensor = |d: Datum| d.tensor().cloned().ok_or_else(|| fail("an output is no tensor"));
    run_program_data(program, &inputs, isa)?.into_iter().map(tensor).collect()
}

/// Objects for the slots that are not given.
fn own_objects(n: usize) -> Vec<RefCell<Object>> {
    (0..n).map(|_| RefCell::default()).collect()
}

/// The object in a slot.
fn found_object(slot: usize, given: &[&Object], own: &[RefCell<Object>]) -> Result<Object, CompileError> {
    let own = |slot: usize| own.get(slot).and_then(|o| o.try_borrow().ok()).map(|o| o.clone());
    let object = slot.checked_sub(given.len()).map_or_else(|| given.get(slot).map(|o| (*o).clone()), own);
    object.ok_or_else(|| fail("an object has no slot"))
}

/// As [`run_program_on`], with strings, sequences and optional values.
pub fn run_program_data(program: &Program, inputs: &[Datum], isa: Isa) -> Result<Vec<Datum>, CompileError> {
    let to_usize = |b: u64| usize::try_from(b).map_err(|_| fail("too large for this machine"));
    let no_memory = || fail("out of memory");
    let mut arena = AlignedBytes::zeroed(to_usize(program.arena.bytes)?).ok_or_else(no_memory)?;
    let weights = AlignedBytes::copy_of(&program.weights_blob()).ok_or_else(no_memory)?;
    let empty = Tensor::from_u8s(&[0], &[]);
    let mut tensors = Vec::with_capacity(inputs.len());
    let mut objects = Vec::new();
    for (i, port) in program.inputs.iter().enumerate() {
        let datum = inputs.get(i).ok_or_else(|| fail(format!("input \"{}\" is not given", port.name)))?;
        match &port.object {
            Some(_) => {
                objects.push(datum.object().ok_or_else(no_memory)?);
                tensors.push(&empty);
            }
            None => {
                let wrong = || fail(format!("input \"{}\" is given as no tensor", port.name));
                tensors.push(datum.tensor().ok_or_else(wrong)?);
            }
        }
    }
    let objects: Vec<&Object> = objects.iter().collect();
    let own = own_objects(program.n_objects.saturating_sub(objects.len()));
    let extents: Vec<Vec<usize>> = tensors.iter().map(|t| t.dims().to_vec()).collect();
    let mut given = Vec::with_capacity(program.inputs.len());
    for (i, port) in program.inputs.iter().enumerate() {
        let t = tensors.get(i).filter(|t| t.dtype() == port.ty.dtype);
        let t = t.ok_or_else(|| fail(format!("input \"{}\" is not given as {}", port.name, port.ty.dtype)))?;
        given.push(AlignedBytes::copy_of(t.data()).ok_or_else(no_memory)?);
    }
    let dims = slots(program.steps.iter().map(|s| s.call.as_ref()));
    let state = RunState::new();
    let mut regions = vec![Region::write(arena.as_mut_slice()), Region::read(weights.as_slice())];
    regions.extend(given.iter().map(|g| Region::read(g.as_slice())));
    let mut states = Vec::with_capacity(program.states.len());
    for state in &program.states {
        let mut memory = AlignedBytes::zeroed(to_usize(state.bytes)?).ok_or_else(no_memory)?;
        if state.held.is_some() {
            // What the caller gives is what a run before would have left there.
            let t = tensors[state.input_idx];
            let to = memory.as_mut_slice();
            let fits = match state.reserved() {
                Some(room) => room.spread(t.data(), t.dims(), t.dtype().size_bytes(), to),
                None => to.get_mut(..t.data().len()).map(|to| to.copy_from_slice(t.data())),
            };
            let name = &program.inputs[state.input_idx].name;
            fits.ok_or_else(|| fail(format!("input \"{name}\": {:?} is more than there is room for", t.dims())))?;
        }
        states.push(memory);
    }
    regions.extend(states.iter_mut().map(|s| Region::write(s.as_mut_slice())));
    let device_bytes = program.device.as_ref().map_or(0, |d| d.capacity_bytes);
    let mut device = AlignedBytes::zeroed(to_usize(device_bytes)?).ok_or_else(no_memory)?;
    let device_region = Region::write(device.as_mut_slice());
    regions.extend(program.device.iter().map(|_| device_region));
    let cx = Cx::new(&regions, isa, &state, &dims).with_objects(Objects { given: &objects, own: &own });
    for (port, dims) in program.inputs.iter().zip(&extents) {
        let within = |(d, &n): (&Dim, &usize)| d.upper().is_none_or(|u| usize::try_from(u).is_ok_and(|u| n <= u));
        if actual_dims(&port.ty, &value_of(&cx, &extents))? != *dims || !port.ty.shape.iter().zip(dims).all(within) {
            return Err(fail(format!("input \"{}\": {dims:?} is no {}", port.name, port.ty)));
        }
    }
    for (i, step) in program.steps.iter().enumerate() {
        cx.at(u32::try_from(i).unwrap_or(u32::MAX));
        step.call.run(&cx, &value_of(&cx, &extents));
        if let Some((_, fault)) = state.fault() {
            return Err(fail(fault.message()).at_node(&step.node, ""));
        }
    }
    let shapes: Vec<_> = program.outputs.iter().map(|p| actual_dims(&p.ty, &value_of(&cx, &extents))).collect();
    let mut out = Vec::with_capacity(program.outputs.len());
    for (i, (port, dims)) in program.outputs.iter().zip(shapes).enumerate() {
        let dims = dims?;
        if let Some(o) = &port.object {
            let found = Datum::found(&o.ty, found_object(o.slot, &objects, &own)?);
            out.push(found.ok_or_else(|| fail(format!("output \"{}\" is no {}", port.name, o.ty)))?);
            continue;
        }
        let state = program.states.iter().position(|s| s.output_idx == i);
        let memory = state.map_or(arena.as_slice(), |k| states[k].as_slice());
        let size = port.ty.dtype.size_bytes();
        let bytes = dims.iter().product::<usize>() * size;
        let off = to_usize(port.off)?;
        let data = match state.and_then(|k| program.states[k].reserved()) {
            Some(room) => {
                let mut data = Vec::with_capacity(bytes);
                room.gather(memory, &dims, size, &mut |line| data.extend_from_slice(line)).map(|()| data)
            }
            None => memory.get(off..off + bytes).map(<[u8]>::to_vec),
        };
        let data = data.ok_or_else(|| fail("an output lies outside its memory"))?;
        let tensor = Tensor::new(port.ty.dtype, dims, data.into()).ok_or_else(|| fail("size"))?;
        out.push(Datum::Tensor(tensor));
    }
    Ok(out)
}

/// The graph inputs that are strings, as objects.
fn given_strings(graph: &Graph, inputs: &[&[u8]]) -> Result<Vec<Object>, CompileError> {
    let mut out = Vec::new();
    for (i, v) in graph.inputs.iter().enumerate() {
        let Some(ty) = graph.value(*v).ty.as_ref().filter(|t| t.is_object()) else { continue };
        let dims = ty.tensor().and_then(TensorType::const_dims);
        let data = inputs.get(i).map(|d| d.to_vec().into());
        let object = dims.zip(data).and_then(|(dims, d)| Tensor::new(kiln_kernels::Dtype::Str, dims, d)?.to_object());
        out.push(object.ok_or_else(|| fail("strings as an input are not what their type says"))?);
    }
    Ok(out)
}

/// Runs the steps with every buffer in memory of its own, as large as it can become. Extents must be constant or found by
/// kernels; outputs have the extents found.
///
/// Returns the graph outputs in order. `inputs` are the graph inputs' bytes.
pub fn run_unplanned(
    graph: &Graph,
    lowered: &Lowered,
    inputs: &[&[u8]],
    isa: Isa,
) -> Result<Vec<Tensor>, CompileError> {
    let mut memory = Vec::with_capacity(lowered.buffers.len());
    for buffer in &lowered.buffers {
        let bytes = buffer.bytes.upper().and_then(|b| usize::try_from(b).ok());
        let bytes = bytes.ok_or_else(|| fail(format!("the size of {} has no bound", buffer.name)))?;
        let block = match &buffer.kind {
            BufferKind::Weight(data) => AlignedBytes::copy_of(data),
            BufferKind::Input(_) if bytes == 0 => AlignedBytes::zeroed(0),
            BufferKind::Input(i) => {
                let data = inputs.get(*i).filter(|d| d.len() == bytes);
                AlignedBytes::copy_of(data.ok_or_else(|| fail(format!("input {} has the wrong size", buffer.name)))?)
            }
            BufferKind::Activation
            | BufferKind::Scratch
            | BufferKind::State(_)
            | BufferKind::Held(_)
            | BufferKind::OnDevice => AlignedBytes::zeroed(bytes),
            BufferKind::Outer(_) => return Err(fail("a body runs only inside its node")),
        };
        memory.push(block.ok_or_else(|| fail("out of memory"))?);
    }
    let regions: Vec<_> = memory.iter_mut().map(|m| Region::write(m.as_mut_slice())).collect();
    let state = RunState::new();
    let dims = slots(lowered.steps.iter().map(|s| s.call.as_ref()));
    let given = given_strings(graph, inputs)?;
    let given: Vec<&Object> = given.iter().collect();
    let own = own_objects(lowered.n_objects.saturating_sub(given.len()));
    let cx = Cx::new(&regions, isa, &state, &dims).with_objects(Objects { given: &given, own: &own });
    for (i, step) in lowered.steps.iter().enumerate() {
        cx.at(u32::try_from(i).unwrap_or(u32::MAX));
        step.call.run(&cx, &value_of(&cx, &[]));
        if let Some((_, fault)) = state.fault() {
            let error = fail(fault.message());
            return Err(match graph.nodes.get(step.node_idx) {
                Some(node) => error.at_node(&node.name, &node.full_op()),
                None => error,
            });
        }
    }
    let empty = TensorType::fixed(kiln_kernels::Dtype::U8, &[0]);
    let is_object = |v| graph.value(v).ty.as_ref().is_some_and(Type::is_object);
    let ty = |v| if is_object(v) { Ok(&empty) } else { graph.tensor_type(v) };
    let types = graph.outputs.iter().map(|(_, v)| ty(*v)).collect::<Result<Vec<_>, _>>()?;
    let mut strings = std::collections::BTreeMap::new();
    for (i, &slot) in &lowered.output_objects {
        let tensor = Tensor::from_object(&found_object(slot, &given, &own)?);
        strings.insert(*i, tensor.ok_or_else(|| fail("an output is no tensor"))?);
    }
    let shapes: Vec<_> = types.iter().map(|ty| actual_dims(ty, &value_of(&cx, &[]))).collect();
    let mut out = Vec::with_capacity(graph.outputs.len());
    let places = graph.outputs.iter().zip(&lowered.outputs);
    for (i, (((name, _), place), (ty, dims))) in places.zip(types.iter().zip(shapes)).enumerate() {
        if let Some(t) = strings.remove(&i) {
            out.push(t);
            continue;
        }
        let dims = dims?;
        let bytes = dims.iter().product::<usize>() * ty.dtype.size_bytes();
        let off = usize::try_from(place.off).map_err(|_| fail("offset"))?;
        let data = memory[place.buffer as usize].as_slice().get(off..off + bytes);
        let data = data.ok_or_else(|| fail(format!("output \"{name}\" lies outside its buffer")))?;
        out.push(Tensor::new(ty.dtype, dims, data.to_vec().into()).ok_or_else(|| fail("size"))?);
    }
    Ok(out)
}
