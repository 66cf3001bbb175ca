//! Errors of the compiler: what is wrong, and where in the model.
//!
//! Operator code says what is wrong ([`CompileError::new`]); the walker that knows the place adds
//! it ([`CompileError::at_node`], [`CompileError::at_input`]). Import and inference collect every
//! problem into one [`CompileErrors`], not only the first.

use std::fmt;

/// The stage of the pipeline that found the problem.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Stage {
    /// Whether the options fit the model: wrong use, where the other stages find fault with the model.
    Options,
    /// Reading the file and its external data.
    Read,
    /// Decoding bytes to a model, and the checks of its structure.
    Decode,
    /// Building the typed graph.
    Import,
    /// Types and shapes.
    Infer,
    /// Constant folding.
    Fold,
    /// Choosing kernels and layouts.
    Lower,
    /// Placement, schedule and memory.
    Plan,
    /// The independent check of the plan.
    Verify,
    /// Writing the module.
    Emit,
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Stage::Options => "options",
            Stage::Read => "read",
            Stage::Decode => "decode",
            Stage::Import => "import",
            Stage::Infer => "infer",
            Stage::Fold => "fold",
            Stage::Lower => "lower",
            Stage::Plan => "plan",
            Stage::Verify => "verify",
            Stage::Emit => "emit",
        })
    }
}

/// One problem. Display: `node "c1" (Conv), input 1: expected rank 4, found f32[8,3]`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CompileError {
    /// The stage that found it.
    pub stage: Stage,
    /// The ONNX node's name (or its first output, where it has none).
    pub node: Option<String>,
    /// The node's operator.
    pub op: Option<String>,
    /// The place within the node or the model: `input 1`, `attribute "pads"`, `initializer "w"`.
    pub operand: Option<String>,
    /// What is wrong there.
    pub message: String,
}

impl CompileError {
    /// A problem whose place is not known (yet).
    pub fn new(stage: Stage, message: impl Into<String>) -> Self {
        CompileError { stage, node: None, op: None, operand: None, message: message.into() }
    }

    /// Adds the node, unless an inner walker has already named one. (Names of over a thousand bytes
    /// are cut: many errors may carry the same one.)
    pub fn at_node(mut self, name: &str, op: &str) -> Self {
        self.place_at_node(name, op);
        self
    }

    /// The same for an error that is already listed.
    pub(crate) fn place_at_node(&mut self, name: &str, op: &str) {
        if self.node.is_none() {
            self.node = Some(cut(name).to_owned());
            self.op = Some(cut(op).to_owned());
        }
    }

    /// Adds the operand or other place, unless one is named already.
    pub fn at(mut self, operand: impl Into<String>) -> Self {
        self.operand.get_or_insert_with(|| operand.into());
        self
    }

    /// Adds `input I` as the place.
    pub fn at_input(self, input_idx: usize) -> Self {
        self.at(format!("input {input_idx}"))
    }

    /// Adds `output I` as the place.
    pub fn at_output(self, output_idx: usize) -> Self {
        self.at(format!("output {output_idx}"))
    }

    /// Adds `attribute "NAME"` as the place.
    pub fn at_attribute(self, name: &str) -> Self {
        self.at(format!("attribute {}", Quoted(name)))
    }
}

impl fmt::Display for CompileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(node) = &self.node {
            write!(f, "node {}", Quoted(node))?;
        }
        if let Some(op) = &self.op {
            write!(f, "{}({})", if self.node.is_some() { " " } else { "" }, Shortened(op))?;
        }
        let placed = self.node.is_some() || self.op.is_some();
        if let Some(operand) = &self.operand {
            write!(f, "{}{operand}", if placed { ", " } else { "" })?;
        }
        if placed || self.operand.is_some() {
            f.write_str(": ")?;
        }
        f.write_str(&self.message)
    }
}

impl std::error::Error for CompileError {}

impl From<CompileError> for CompileErrors {
    fn from(error: CompileError) -> Self {
        CompileErrors(vec![error])
    }
}

/// Every problem that a stage found, in the model's order. Display: one line each.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CompileErrors(pub Vec<CompileError>);

impl CompileErrors {
    /// Problems that are kept; a broken model may have millions, nobody reads more.
    pub const MAX: usize = 1000;

    /// Lines that Display prints before it only counts the rest.
    pub const SHOWN: usize = 50;

    /// No problem found.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How many problems there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Adds one problem, as long as there are fewer than [`CompileErrors::MAX`].
    pub fn push(&mut self, error: CompileError) {
        if self.0.len() < Self::MAX {
            self.0.push(error);
        }
    }

    /// The problems in order.
    pub fn iter(&self) -> std::slice::Iter<'_, CompileError> {
        self.0.iter()
    }

    /// `Ok(value)` when no problem was found, else all of them.
    pub fn or_ok<T>(self, value: T) -> Result<T, CompileErrors> {
        if self.is_empty() { Ok(value) } else { Err(self) }
    }
}

impl Extend<CompileError> for CompileErrors {
    fn extend<I: IntoIterator<Item = CompileError>>(&mut self, errors: I) {
        errors.into_iter().for_each(|error| self.push(error));
    }
}

impl IntoIterator for CompileErrors {
    type Item = CompileError;
    type IntoIter = std::vec::IntoIter<CompileError>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

impl fmt::Display for CompileErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, error) in self.0.iter().take(Self::SHOWN).enumerate() {
            write!(f, "{}{error}", if i > 0 { "\n" } else { "" })?;
        }
        if self.0.len() > Self::SHOWN {
            write!(f, "\nand {} more", self.0.len() - Self::SHOWN)?;
        }
        Ok(())
    }
}

impl std::error::Error for CompileErrors {}

/// At most the first thousand bytes of a name.
fn cut(name: &str) -> &str {
    const MAX_BYTES: usize = 1000;
    &name[..name.floor_char_boundary(MAX_BYTES)]
}

/// A name from a model as it may be printed: in quotes, escaped, and cut when it is very long.
pub(crate) struct Quoted<'a>(pub &'a str);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", Shortened(self.0))
    }
}

/// Text from a model, escaped, and cut when it is very long; without quotes.
pub(crate) struct Shortened<'a>(pub &'a str);

impl Shortened<'_> {
    const MAX_CHARS: usize = 120;
}

impl fmt::Display for Shortened<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for c in self.0.chars().take(Self::MAX_CHARS) {
            match c {
                '"' | '\\' => write!(f, "{}", c.escape_default())?,
                c if c.is_control() => write!(f, "{}", c.escape_default())?,
                c => write!(f, "{c}")?,
            }
        }
        if self.0.chars().nth(Self::MAX_CHARS).is_some() {
            f.write_str("…")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn display_names_the_place() {
        let found = || CompileError::new(Stage::Infer, "expected rank 4, found f32[8,3]");
        for (error, text) in [
            (found().at_input(1).at_node("c1", "Conv"), "node \"c1\" (Conv), input 1: expected rank 4, found f32[8,3]"),
            (found().at_node("c1", "Conv"), "node \"c1\" (Conv): expected rank 4, found f32[8,3]"),
            (found().at("initializer \"w\""), "initializer \"w\": expected rank 4, found f32[8,3]"),
            (found(), "expected rank 4, found f32[8,3]"),
            (
                found().at_node("a\"\n", "Op").at_node("outer", "If"),
                "node \"a\\\"\\n\" (Op): expected rank 4, found f32[8,3]",
            ),
        ] {
            assert_eq!(error.to_string(), text);
        }
    }

    #[test]
    fn long_lists_are_counted() {
        let errors = CompileErrors(vec![CompileError::new(Stage::Decode, "x"); 53]);
        let text = errors.to_string();
        assert_eq!(text.lines().count(), 51);
        assert!(text.ends_with("and 3 more"));
    }
}
