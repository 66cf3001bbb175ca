//! Pins: nodes that must run on a device, chosen by their names.
//!
//! In: `REGEX=DEVICE`. The expression is searched in the name; `^` and `$` tie it to the ends.
//! Invariant: a pin that names no device or no node is an error, never ignored.

use crate::error::{CompileError, CompileErrors, Stage};
use crate::ir::Graph;
use crate::onnx::Decoded;
use crate::plan::id::DeviceId;
use crate::plan::target::Target;
use regex_lite::Regex;

/// A pin.
#[derive(Clone, Debug)]
pub struct Pin {
    text: String,
    pattern: Regex,
    device: String,
}

impl Pin {
    /// Reads `REGEX=DEVICE`; the device comes after the last `=`. The problem in words.
    pub fn parse(text: &str) -> Result<Self, String> {
        let (pattern, device) = text
            .rsplit_once('=')
            .filter(|(p, d)| !p.is_empty() && !d.is_empty())
            .ok_or_else(|| format!("{text}: expected REGEX=DEVICE"))?;
        let pattern = Regex::new(pattern).map_err(|e| format!("{text}: {e}"))?;
        Ok(Self { text: text.to_owned(), pattern, device: device.to_owned() })
    }

    /// As it was given.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Whether it pins the node of this name.
    pub fn matches(&self, node: &str) -> bool {
        self.pattern.is_match(node)
    }

    /// Whether it pins a node of the model in the file.
    pub fn matches_any(&self, decoded: &Decoded) -> bool {
        decoded.model.graph.nodes.iter().any(|n| self.matches(n.label()))
    }

    /// The device, or the problem in words.
    pub fn device(&self, target: &Target) -> Result<DeviceId, String> {
        let none = || format!("pin {}: target \"{}\" has no device \"{}\"", self.text, target.name, self.device);
        target.device_named(&self.device).ok_or_else(none)
    }
}

/// Refuses pins to devices that the target does not have, and pins that match no node: of the file, or of those that passes made.
pub fn check(pins: &[Pin], graph: &Graph, decoded: &Decoded, target: &Target) -> Result<(), CompileErrors> {
    let mut errors = CompileErrors::default();
    for pin in pins {
        let wrong = |what: String| CompileError::new(Stage::Options, what);
        let idle = !pin.matches_any(decoded) && !graph.nodes.iter().any(|n| pin.matches(&n.name));
        match pin.device(target) {
            Err(what) => errors.push(wrong(what)),
            Ok(_) if idle => errors.push(wrong(format!("pin {}: no node of the model has such a name", pin.text))),
            Ok(_) => {}
        }
    }
    errors.or_ok(())
}

impl PartialEq for Pin {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pins_are_read_and_matched() {
        let pin = Pin::parse("^/layer[12]=npu").unwrap();
        assert!(pin.matches("/layer1/conv") && !pin.matches("x/layer1"));
        let soc = Target::shipped("soc-npu").unwrap().unwrap();
        assert_eq!(pin.device(&soc).unwrap(), soc.device_named("npu").unwrap());
        assert_eq!(Pin::parse("a=b=cpu").unwrap().device(&soc).unwrap(), soc.host);
        let missing = Pin::parse("a=gpu").unwrap().device(&soc).unwrap_err();
        assert!(missing.contains("no device \"gpu\""), "{missing}");
        for bad in ["", "npu", "=npu", "a=", "(=npu"] {
            assert!(Pin::parse(bad).is_err(), "{bad}");
        }
    }
}
