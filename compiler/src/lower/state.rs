//! State: an output that is an input of the next run.
//!
//! In: a lowered graph and pairs (output, input). Out: each such output in memory of its own outside the arena. A cache to
//! which a run adds rows is one piece of memory: the input *is* the output, and the rows there are stay where they are (the
//! pass `caches` says which). Any other state has two, which the module exchanges after every run. Nothing is copied from
//! run to run.

use super::{Buffer, BufferKind, Lowered, Place, Step, copy_bytes};
use crate::error::{CompileError, CompileErrors, Stage};
use crate::ir::{Dim, Graph, Layout};
use crate::names::known;
use kiln_kernels::Operand;

/// An output and the input it becomes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatePair {
    /// Index of the graph output.
    pub output_idx: usize,
    /// Index of the graph input.
    pub input_idx: usize,
    /// Where input and output are one piece of memory: how the output lies in it.
    pub held: Option<Layout>,
}

impl StatePair {
    /// The most bytes that input or output take.
    pub fn bytes(&self, graph: &Graph) -> Result<u64, CompileError> {
        let (from, to) = (graph.outputs[self.output_idx].1, graph.inputs[self.input_idx]);
        let mut most = 0;
        for v in [from, to] {
            let bytes = graph.tensor_type(v)?.bytes_in(self.held.unwrap_or_default());
            let bytes = bytes.upper().and_then(|b| u64::try_from(b).ok());
            let name = &graph.value(v).name;
            most = most.max(
                bytes.ok_or_else(|| CompileError::new(Stage::Plan, format!("the size of \"{name}\" has no bound")))?,
            );
        }
        Ok(most)
    }
}

/// Memory for a state that is kept in place: the input's buffer and the output's, which become one.
pub(super) fn hold(graph: &Graph, out: &mut Lowered, pairs: &[StatePair], k: usize) -> Result<(), CompileError> {
    let pair = &pairs[k];
    let (from, to) = (graph.outputs[pair.output_idx].1, graph.inputs[pair.input_idx]);
    let bytes = Dim::Const(i64::try_from(pair.bytes(graph)?).unwrap_or(i64::MAX));
    for (v, kind) in [(to, BufferKind::Held(k)), (from, BufferKind::State(k))] {
        let name = graph.value(v).name.clone();
        let buffer = out.add_buffer(Buffer { name, bytes: bytes.clone(), kind });
        out.places[v.0 as usize] = Some(Place { buffer, off: 0 });
    }
    Ok(())
}

fn wrong(pair: &(String, String), message: String) -> CompileError {
    CompileError::new(Stage::Options, message).at(format!("state \"{}={}\"", pair.0, pair.1))
}

/// What `*` of a pattern stands for in a name; the empty text for a pattern without one.
fn matched<'n>(pattern: &str, name: &'n str) -> Option<&'n str> {
    match pattern.split_once('*') {
        None => (pattern == name).then_some(""),
        Some((head, tail)) => name.strip_prefix(head)?.strip_suffix(tail),
    }
}

/// The pairs that patterns of names mean, as in `present.*` and `past.*`.
pub fn pairs(graph: &Graph, patterns: &[(String, String)]) -> Result<Vec<StatePair>, CompileErrors> {
    let mut out: Vec<StatePair> = Vec::new();
    let mut errors = CompileErrors::default();
    for pattern in patterns {
        let mut any = false;
        for (output_idx, (name, v)) in graph.outputs.iter().enumerate() {
            let Some(star) = matched(&pattern.0, name) else { continue };
            any = true;
            let wanted = pattern.1.replacen('*', star, 1);
            let input_idx = graph.inputs.iter().position(|i| graph.value(*i).name == wanted);
            let Some(input_idx) = input_idx else {
                let inputs: Vec<&str> = graph.inputs.iter().map(|i| graph.value(*i).name.as_str()).collect();
                let known = known(&wanted, "input", &inputs);
                let what = format!("the model has no input \"{wanted}\" for its output \"{name}\"{known}");
                errors.push(wrong(pattern, what));
                continue;
            };
            if out.iter().any(|p| p.output_idx == output_idx || p.input_idx == input_idx) {
                errors.push(wrong(pattern, format!("output \"{name}\" or input \"{wanted}\" is bound twice")));
                continue;
            }
            let (from, to) = (graph.tensor_type(*v)?, graph.tensor_type(graph.inputs[input_idx])?);
            let fits = from.dtype == to.dtype
                && from.rank() == to.rank()
                && from
                    .shape
                    .iter()
                    .zip(&to.shape)
                    .all(|(a, b)| a == b || a.as_const().is_none() || b.as_const().is_none());
            if !fits {
                errors.push(wrong(pattern, format!("output \"{name}\" is {from}, input \"{wanted}\" {to}")));
                continue;
            }
            out.push(StatePair { output_idx, input_idx, held: None });
        }
        if !any {
            let outputs: Vec<&str> = graph.outputs.iter().map(|(name, _)| name.as_str()).collect();
            let known = known(&pattern.0, "output", &outputs);
            errors.push(wrong(pattern, format!("no output has the name \"{}\"{known}", pattern.0)));
        }
    }
    errors.or_ok(out)
}

/// Moves the outputs that are states into memory of their own.
pub(super) fn bind(graph: &Graph, out: &mut Lowered, pairs: &[StatePair]) -> Result<(), CompileError> {
    for (k, pair) in pairs.iter().enumerate().filter(|(_, p)| p.held.is_none()) {
        let (name, v) = &graph.outputs[pair.output_idx];
        let bytes = graph.tensor_type(*v)?.bytes();
        let place = out.outputs[pair.output_idx];
        let buffer = &out.buffers[place.buffer as usize];
        let alone = out.outputs.iter().filter(|p| p.buffer == place.buffer).count() == 1;
        if buffer.kind == BufferKind::Activation && place.off == 0 && buffer.bytes == bytes && alone {
            out.buffers[place.buffer as usize].kind = BufferKind::State(k);
            continue;
        }
        let to = out.add_buffer(Buffer { name: name.clone(), bytes: bytes.clone(), kind: BufferKind::State(k) });
        let call = copy_bytes(Operand::at(place.buffer, place.off, bytes.clone()), Operand::at(to, 0, bytes))?;
        out.steps.push(Step { call, node_idx: usize::MAX });
        out.outputs[pair.output_idx] = Place { buffer: to, off: 0 };
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::matched;

    #[test]
    fn a_star_stands_for_any_text() {
        assert_eq!(matched("present.*", "present.0.key"), Some("0.key"));
        assert_eq!(matched("*_out", "h_out"), Some("h"));
        assert_eq!(matched("stateN", "stateN"), Some(""));
        assert_eq!(matched("stateN", "state"), None);
        assert_eq!(matched("a*b", "ab"), Some(""));
    }
}
