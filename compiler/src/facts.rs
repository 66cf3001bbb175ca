//! Figures of a compiled module, kept beside it as text: what tools print without compiling again.
//!
//! In: a program. Out: lines `key value`; names from the model escaped, so that a line is a line.

use crate::program::{Port, Program, WEIGHTS};
use kiln_kernels::Dtype;
use std::fmt::Write;

/// Figures of a compiled module.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// Size of the arena.
    pub arena_bytes: u64,
    /// No plan for this schedule is smaller.
    pub lower_bound_bytes: u64,
    /// Size without any sharing.
    pub naive_bytes: u64,
    /// Size of the weights.
    pub weight_bytes: u64,
    /// Floating-point operations of one run.
    pub flops: u64,
    /// What the target says a run takes.
    pub predicted_ns: u64,
    /// Streams of the CPU that were planned: no more than asked for.
    pub streams: u64,
    /// The device beside the CPU that runs a part of it; empty where there is none.
    pub device: String,
    /// The inputs, in the module's order.
    pub inputs: Vec<PortFact>,
    /// The outputs, in the module's order.
    pub outputs: Vec<PortFact>,
    /// The kernel calls, in order.
    pub steps: Vec<StepFact>,
}

/// An input or output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortFact {
    /// The ONNX name.
    pub name: String,
    /// Element type.
    pub dtype: Dtype,
    /// Extents; the largest ones where they are known only at run time.
    pub dims: Vec<usize>,
    /// Its type as text where it is a sequence or an optional value; element type and extents mean nothing then.
    pub object: Option<String>,
}

/// A kernel call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StepFact {
    /// The ONNX node's name.
    pub node: String,
    /// Its operator.
    pub op: String,
    /// Floating-point operations.
    pub flops: u64,
    /// Bytes that are read and written, weights included.
    pub bytes: u64,
    /// Bytes of weights among them.
    pub weight_bytes: u64,
}

impl Facts {
    /// The figures of a program.
    pub fn of(program: &Program) -> Self {
        let ports = |ports: &[Port]| ports.iter().map(PortFact::of).collect();
        let bytes = |o: &crate::lower::CallOperand| o.operand.bytes.upper().and_then(|b| u64::try_from(b).ok());
        let steps = program.steps.iter().map(|step| StepFact {
            node: step.node.clone(),
            op: step.note.split(' ').next().unwrap_or_default().to_owned(),
            flops: step.flops,
            bytes: step.call.operands().iter().filter_map(bytes).sum(),
            weight_bytes: step.call.operands().iter().filter(|o| o.operand.mem == WEIGHTS).filter_map(bytes).sum(),
        });
        Self {
            arena_bytes: program.arena.bytes,
            lower_bound_bytes: program.arena.lower_bound_bytes,
            naive_bytes: program.arena.naive_bytes,
            weight_bytes: program.weight_bytes,
            flops: u64::try_from(program.flops).unwrap_or(0),
            predicted_ns: program.schedule.predicted_ns,
            // Beside a device the CPU has one; the others are the device's engines.
            streams: if program.device.is_some() { 1 } else { program.schedule.streams.len().max(1) as u64 },
            device: program.device.as_ref().map_or_else(String::new, |d| d.name.clone()),
            inputs: ports(&program.inputs),
            outputs: ports(&program.outputs),
            steps: steps.collect(),
        }
    }

    /// Whether the module needs the feature `image` of `kiln`.
    pub fn decodes_images(&self) -> bool {
        self.steps.iter().any(|s| s.op == "ImageDecoder")
    }

    /// Whether the module needs the feature `regex` of `kiln`.
    pub fn matches_patterns(&self) -> bool {
        self.steps.iter().any(|s| s.op == "RegexFullMatch")
    }

    /// As text.
    pub fn text(&self) -> String {
        let mut text = String::new();
        for (key, value) in [
            ("arena_bytes", self.arena_bytes),
            ("lower_bound_bytes", self.lower_bound_bytes),
            ("naive_bytes", self.naive_bytes),
            ("weight_bytes", self.weight_bytes),
            ("flops", self.flops),
            ("predicted_ns", self.predicted_ns),
            ("streams", self.streams),
        ] {
            let _ = writeln!(text, "{key}\t{value}");
        }
        let _ = writeln!(text, "device\t{}", escape(&self.device));
        for (key, ports) in [("input", &self.inputs), ("output", &self.outputs)] {
            for p in ports {
                let dims: Vec<_> = p.dims.iter().map(usize::to_string).collect();
                let _ = write!(text, "{key}\t{}\t{}\t{}", p.dtype, dims.join(","), escape(&p.name));
                text += &p.object.as_ref().map_or_else(String::new, |ty| format!("\t{}", escape(ty)));
                text.push('\n');
            }
        }
        for s in &self.steps {
            let _ = writeln!(
                text,
                "step\t{}\t{}\t{}\t{}\t{}",
                s.flops,
                s.bytes,
                s.weight_bytes,
                escape(&s.op),
                escape(&s.node)
            );
        }
        text
    }

    /// From text; `None` when it is none of ours.
    pub fn parse(text: &str) -> Option<Self> {
        let mut facts = Self::default();
        for line in text.lines() {
            let fields: Vec<&str> = line.split('\t').collect();
            match fields[..] {
                ["arena_bytes", n] => facts.arena_bytes = n.parse().ok()?,
                ["lower_bound_bytes", n] => facts.lower_bound_bytes = n.parse().ok()?,
                ["naive_bytes", n] => facts.naive_bytes = n.parse().ok()?,
                ["weight_bytes", n] => facts.weight_bytes = n.parse().ok()?,
                ["flops", n] => facts.flops = n.parse().ok()?,
                ["predicted_ns", n] => facts.predicted_ns = n.parse().ok()?,
                ["streams", n] => facts.streams = n.parse().ok()?,
                ["device", name] => facts.device = unescape(name),
                ["input", dtype, dims, name, ref ty @ ..] => facts.inputs.push(PortFact::parse(dtype, dims, name, ty)?),
                ["output", dtype, dims, name, ref ty @ ..] => {
                    facts.outputs.push(PortFact::parse(dtype, dims, name, ty)?);
                }
                ["step", flops, bytes, weight_bytes, op, node] => facts.steps.push(StepFact {
                    node: unescape(node),
                    op: unescape(op),
                    flops: flops.parse().ok()?,
                    bytes: bytes.parse().ok()?,
                    weight_bytes: weight_bytes.parse().ok()?,
                }),
                _ => return None,
            }
        }
        Some(facts)
    }
}

impl PortFact {
    /// Whether a tensor is of this type and no larger than planned for.
    pub fn takes(&self, t: &crate::ir::Tensor) -> bool {
        if self.object.is_some() {
            return false;
        }
        let fits = |(given, most): (&usize, &usize)| given <= most;
        t.dtype() == self.dtype && t.dims().len() == self.dims.len() && t.dims().iter().zip(&self.dims).all(fits)
    }

    fn of(port: &Port) -> Self {
        let extent = |d: &crate::ir::Dim| d.upper().and_then(|n| usize::try_from(n).ok()).unwrap_or(0);
        let ty = port.object.as_ref().and_then(|o| o.ty.tensor()).unwrap_or(&port.ty);
        let object = port.object.as_ref().filter(|o| o.ty.tensor().is_none()).map(|o| o.ty.to_string());
        Self { name: port.name.clone(), dtype: ty.dtype, dims: ty.shape.iter().map(extent).collect(), object }
    }

    fn parse(dtype: &str, dims: &str, name: &str, object: &[&str]) -> Option<Self> {
        let dims = if dims.is_empty() { Some(vec![]) } else { dims.split(',').map(|d| d.parse().ok()).collect() };
        let object = match object {
            [] => None,
            [ty] => Some(unescape(ty)),
            _ => return None,
        };
        Some(Self { name: unescape(name), dtype: dtype_named(dtype)?, dims: dims?, object })
    }
}

/// The element type of this name.
pub fn dtype_named(name: &str) -> Option<Dtype> {
    (0..64).filter_map(Dtype::from_onnx).find(|d| d.name() == name)
}

fn escape(text: &str) -> String {
    text.replace('\\', "\\\\").replace('\t', "\\t").replace('\n', "\\n").replace('\r', "\\r")
}

fn unescape(text: &str) -> String {
    let mut out = String::new();
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        out.push(match c {
            '\\' => match chars.next() {
                Some('t') => '\t',
                Some('n') => '\n',
                Some('r') => '\r',
                Some(other) => other,
                None => '\\',
            },
            c => c,
        });
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_back() {
        let of = |name: &str, dims: &[usize], object| PortFact {
            name: name.into(),
            dtype: Dtype::I64,
            dims: dims.to_vec(),
            object,
        };
        let port = |name: &str, dims: &[usize]| of(name, dims, None);
        let step = StepFact { node: "a\n\t\\n".into(), op: "Conv".into(), flops: 7, bytes: 8, weight_bytes: 3 };
        let facts = Facts {
            arena_bytes: 1,
            lower_bound_bytes: 2,
            naive_bytes: 3,
            weight_bytes: 4,
            flops: 5,
            predicted_ns: 6,
            streams: 2,
            device: "n p\tu".into(),
            inputs: vec![port("x", &[1, 2]), port("", &[])],
            outputs: vec![port("\\t", &[0]), of("s", &[0], Some("sequence(f32[2])".into()))],
            steps: vec![step],
        };
        assert_eq!(Facts::parse(&facts.text()), Some(facts));
        assert_eq!(Facts::parse("arena_bytes\tx\n"), None);
    }
}
