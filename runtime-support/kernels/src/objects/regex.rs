//! RegexFullMatch, by the crate `regex-lite` (feature `regex`): the syntax of RE2 without Unicode classes; `\w`, `\d`, `\s`
//! and `\b` are ASCII, as in RE2.
//!
//! <https://onnx.ai/onnx/operators/onnx__RegexFullMatch.html>, <https://github.com/google/re2/wiki/Syntax>

use super::Object;
use super::strings::strings;
use crate::{Fault, Isa, kernel};

kernel! {
    /// `y` = whether each string of `x` as a whole matches the pattern.
    pub struct MatchStrings {
        operands { read pattern: B, write y: B }
        objects { read x }
    }
    entries { match_strings { B = u8 } }
    body = match_body;
}

/// What is wrong with a pattern, in words; `None` where nothing is, or where feature `regex` is off.
pub fn pattern_fault(pattern: &str) -> Option<alloc::string::String> {
    #[cfg(feature = "regex")]
    return compiled(pattern).err().map(|e| alloc::format!("{e}"));
    #[cfg(not(feature = "regex"))]
    return Some(pattern).and(None);
}

#[cfg(feature = "regex")]
fn compiled(pattern: &str) -> Result<regex_lite::Regex, regex_lite::Error> {
    // A pattern that closes a group it has not opened must not escape from ours.
    regex_lite::Regex::new(pattern)?;
    regex_lite::Regex::new(&alloc::format!(r"\A(?:{pattern})\z"))
}

#[cfg(feature = "regex")]
fn match_body(_: Isa, _: &MatchStrings, pattern: &[u8], y: &mut [u8], x: &Object) -> Result<(), Fault> {
    let pattern = core::str::from_utf8(pattern).map_err(|_| Fault::Descriptor)?;
    let regex = compiled(pattern).map_err(|_| Fault::Descriptor)?;
    let x = strings(x)?.data();
    let y = y.get_mut(..x.len()).ok_or(Fault::ShapeMismatch)?;
    x.iter().zip(y).for_each(|(x, y)| *y = u8::from(regex.is_match(x)));
    Ok(())
}

#[cfg(not(feature = "regex"))]
fn match_body(_: Isa, _: &MatchStrings, _: &[u8], _: &mut [u8], x: &Object) -> Result<(), Fault> {
    strings(x)?;
    Err(Fault::Unsupported)
}

#[cfg(all(test, feature = "regex"))]
mod tests {
    use super::*;
    use crate::Operand;

    #[test]
    fn whole_strings_match() {
        let d = MatchStrings { pattern: Operand::at(0, 0, 0), y: Operand::at(0, 0, 0), x: crate::ObjectSlot::at(0) };
        let x = Object::strings(&[3], &["ab", "abab", "xab"]).unwrap();
        let mut y = [9; 3];
        match_body(Isa::Scalar, &d, b"ab|abab", &mut y, &x).unwrap();
        assert_eq!(y, [1, 1, 0]);
        assert!(pattern_fault("a)(b").is_some() && pattern_fault("(a").is_some() && pattern_fault("a{2}").is_none());
    }
}
