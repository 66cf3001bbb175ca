//! A program on the runtime's own memory, run after run, with its states: what a generated module does, without a build.
//!
//! In: a program on one stream. Out: outputs of each run; states stay in the instance and change places there.

use kiln::rt::{Instance, Region, StateInfo, Weights, extents, gathered};
use kiln_compiler::ir::{Dim, Symbol, SymbolSource, Tensor, TensorType};
use kiln_compiler::program::Program;
use kiln_kernels::{ALIGN, AlignedBytes, Cx};
use std::cell::RefCell;
use std::rc::Rc;

/// What the steps of the current run see.
struct Current {
    program: Rc<Program>,
    shapes: Vec<Vec<usize>>,
}

thread_local! {
    static CURRENT: RefCell<Option<Current>> = const { RefCell::new(None) };
}

/// Room for the extents that kernels find.
const MAX_SLOTS: usize = 1024;

fn value(shapes: &[Vec<usize>], found: &dyn Fn(usize) -> i64, symbol: &Symbol) -> i64 {
    match symbol.source {
        SymbolSource::Data { slot } => found(slot),
        SymbolSource::Input { input_idx, axis } => {
            shapes.get(input_idx).and_then(|s| s.get(axis)).map_or(0, |&n| n as i64)
        }
        SymbolSource::Element => 0,
    }
}

fn steps(cx: &Cx<'_>) {
    CURRENT.with_borrow(|current| {
        let Some(Current { program, shapes }) = current else { return };
        for (i, step) in program.steps.iter().enumerate() {
            step.call.run(cx.at(i as u32), &|s| value(shapes, &|slot| cx.extent(slot) as i64, s));
        }
    });
}

/// A program that runs again and again.
pub struct Session {
    program: Rc<Program>,
    instance: Instance<'static>,
    /// The extents of every input; of a state those it has now.
    shapes: Vec<Vec<usize>>,
}

impl Session {
    /// Everything empty: states of the smallest size, all zero.
    pub fn new(program: Program) -> Result<Self, String> {
        let n_inputs = program.inputs.len();
        let region = |(k, s): (usize, &kiln_compiler::program::State)| StateInfo {
            input: 2 + s.input_idx,
            output: 2 + n_inputs + k,
            bytes: s.bytes as usize,
            in_place: s.held.is_some(),
        };
        let infos: Vec<StateInfo> = program.states.iter().enumerate().map(region).collect();
        let start = (program.arena.bytes as usize).next_multiple_of(ALIGN);
        let states: u64 = program.states.iter().map(kiln_compiler::program::State::memory_bytes).sum();
        let bytes = start + states as usize;
        let weights = AlignedBytes::copy_of(&program.weights_blob()).ok_or("out of memory")?;
        let instance = Instance::on_heap(bytes, Weights::Loaded(weights)).map_err(|e| e.to_string())?;
        let instance = instance.with_states(start, Box::leak(infos.into()));
        let least = |ty: &TensorType| ty.shape.iter().map(|d| d.lower().max(0) as usize).collect();
        let shapes = program.inputs.iter().map(|p| least(&p.ty)).collect();
        if program.n_slots > MAX_SLOTS {
            return Err(format!("{} extents", program.n_slots));
        }
        Ok(Self { program: Rc::new(program), instance, shapes })
    }

    /// Sets the state that the input of this name reads.
    pub fn set(&mut self, input: &str, t: &Tensor) -> Result<(), String> {
        let named = |s: &&kiln_compiler::program::State| self.program.inputs[s.input_idx].name == input;
        let k = self.program.states.iter().position(|s| named(&s)).ok_or("no such state")?;
        let set = match self.program.states[k].reserved() {
            Some(room) => self.instance.set_reserved(k, t.data(), (room, t.dims(), t.dtype().size_bytes())),
            None => self.instance.set_state(k, t.data()),
        };
        set.map_err(|e| e.to_string())?;
        self.shapes[self.program.states[k].input_idx] = t.dims().to_vec();
        Ok(())
    }

    /// Runs on the inputs that are no states, in order. Returns all outputs.
    pub fn run(&mut self, inputs: &[Tensor]) -> Result<Vec<Tensor>, String> {
        let program = self.program.clone();
        let is_state = |i: usize| program.states.iter().any(|s| s.input_idx == i);
        let mut given = inputs.iter();
        let mut data = Vec::new();
        for i in 0..program.inputs.len() {
            let t = if is_state(i) { None } else { Some(given.next().ok_or("too few inputs")?) };
            if let Some(t) = t {
                self.shapes[i] = t.dims().to_vec();
            }
            data.push(AlignedBytes::copy_of(t.map_or(&[][..], |t| t.data())).ok_or("out of memory")?);
        }
        let fits = |d: &Dim, n: usize| d.upper().is_none_or(|u| n as i64 <= u);
        for (port, dims) in program.inputs.iter().zip(&self.shapes) {
            if port.ty.shape.len() != dims.len() || !port.ty.shape.iter().zip(dims).all(|(d, &n)| fits(d, n)) {
                return Err(format!("input \"{}\": {dims:?} is no {}", port.name, port.ty));
            }
        }
        let mut regions = vec![Region::read(&[]), Region::read(&[])];
        regions.extend(data.iter().map(|d| Region::read(d.as_slice())));
        regions.extend(program.states.iter().map(|_| Region::read(&[])));
        let slots = extents::<MAX_SLOTS>();
        let current = Current { program: program.clone(), shapes: self.shapes.clone() };
        CURRENT.with_borrow_mut(|c| *c = Some(current));
        let ran = self.instance.run(&mut regions, &slots, &[(0, "a step")], steps);
        ran.map_err(|e| e.to_string())?;
        let found = |slot: usize| kiln::rt::extent(&slots, slot) as i64;
        let mut outputs = Vec::new();
        for (i, port) in program.outputs.iter().enumerate() {
            let dims: Vec<usize> = port
                .ty
                .shape
                .iter()
                .map(|d| d.eval(&|s: &Symbol| value(&self.shapes, &found, s)).max(0) as usize)
                .collect();
            let bytes = dims.iter().product::<usize>() * port.ty.dtype.size_bytes();
            let state = program.states.iter().position(|s| s.output_idx == i);
            let off = state.map_or(port.off, |k| self.instance.state(k) + port.off);
            let data = match state.and_then(|k| program.states[k].reserved()) {
                Some(room) => {
                    let all = self.instance.raw_output(off, program.states[state.unwrap_or(0)].bytes as usize);
                    gathered(all.map_err(|e| e.to_string())?, (room, &dims, port.ty.dtype.size_bytes()))
                }
                None => self.instance.raw_output(off, bytes).map(<[u8]>::to_vec),
            };
            let data = data.map_err(|e| e.to_string())?;
            outputs.push(Tensor::new(port.ty.dtype, dims, data.into()).ok_or("an output of another size")?);
        }
        for s in &program.states {
            self.shapes[s.input_idx] = outputs[s.output_idx].dims().to_vec();
        }
        Ok(outputs)
    }
}
