//! StringSplit and StringNormalizer.
//!
//! <https://onnx.ai/onnx/operators/onnx__StringSplit.html>, <https://onnx.ai/onnx/operators/onnx__StringNormalizer.html>

use super::border::dims_of;
use super::object::numel;
use super::strings::strings;
use super::{Object, Strings, decode_strings};
use crate::{Fault, Isa, kernel, param_enum};
use alloc::string::String;
use alloc::vec::Vec;

kernel! {
    /// `y` = the parts of each string of `x`, with a last axis as long as the most parts, filled up with empty strings;
    /// `lengths` = how many parts there are. The delimiter is runs of white space where its bytes are empty. At most
    /// `max_splits` splits, from the left.
    pub struct SplitStrings {
        operands { read delimiter: B, opt_write lengths: I }
        params { max_splits: usize }
        found {
            /// The most parts.
            most }
        objects { read x, write y }
    }
    entries { split_strings { B = u8, I = i64 } }
    body = split_body;
}

/// The parts of a text.
fn parts<'a>(text: &'a str, delimiter: &str, max_splits: usize) -> Vec<&'a str> {
    if !delimiter.is_empty() {
        return text.splitn(max_splits.saturating_add(1), delimiter).collect();
    }
    let mut out = Vec::new();
    let mut rest = text.trim_start();
    while !rest.is_empty() {
        let end = rest.find(char::is_whitespace).filter(|_| out.len() < max_splits).unwrap_or(rest.len());
        out.push(&rest[..end]);
        rest = rest[end..].trim_start();
    }
    out
}

fn split_body(
    _: Isa,
    d: &SplitStrings,
    delimiter: &[u8],
    lengths: Option<&mut [i64]>,
    x: &Object,
    y: &mut Object,
) -> Result<[usize; 1], Fault> {
    let delimiter = core::str::from_utf8(delimiter).map_err(|_| Fault::Descriptor)?;
    let x = strings(x)?;
    let all: Vec<Vec<&str>> = x.data().iter().map(|s| parts(s, delimiter, d.max_splits)).collect();
    let most = all.iter().map(Vec::len).max().unwrap_or(0);
    if let Some(lengths) = lengths {
        let lengths = lengths.get_mut(..all.len()).ok_or(Fault::ShapeMismatch)?;
        all.iter().zip(lengths).for_each(|(parts, n)| *n = parts.len() as i64);
    }
    let mut out: Vec<String> = Vec::with_capacity(all.len() * most);
    for parts in &all {
        out.extend(parts.iter().map(|s| String::from(*s)));
        out.extend(core::iter::repeat_n(String::new(), most - parts.len()));
    }
    let mut dims = x.dims().to_vec();
    dims.push(most);
    *y = Object::Strings(Strings::new(dims, out).ok_or(Fault::ShapeMismatch)?);
    Ok([most])
}

param_enum! {
    /// What happens to letters.
    pub enum CaseChange {
        /// They stay.
        None,
        /// They become small.
        Lower,
        /// They become capitals.
        Upper,
    }
}

kernel! {
    /// `y` = the strings of `x` (a vector, or one row of these extents) that are no stop words, in another case. Where all are
    /// stop words, one empty string. `stop` holds the words as bytes (see [`super::encode_strings`]).
    pub struct NormalizeStrings {
        operands { read stop: B }
        arrays { dims: 8 }
        params { rank: usize, case: CaseChange, case_sensitive: bool }
        found {
            /// The strings that remain.
            count }
        objects { read x, write y }
    }
    entries { normalize_strings { B = u8 } }
    body = normalize_body;
}

fn normalize_body(_: Isa, d: &NormalizeStrings, stop: &[u8], x: &Object, y: &mut Object) -> Result<[usize; 1], Fault> {
    let folded = |s: &str| if d.case_sensitive { String::from(s) } else { s.to_lowercase() };
    let stop: Vec<String> = decode_strings(stop).ok_or(Fault::Descriptor)?.iter().map(|s| folded(s)).collect();
    let mut dims = dims_of(&d.dims, d.rank)?;
    let x = strings(x)?;
    if numel(&dims) != Some(x.data().len()) {
        return Err(Fault::ShapeMismatch);
    }
    let kept = x.data().iter().filter(|s| !stop.contains(&folded(s)));
    let mut out: Vec<String> = kept
        .map(|s| match d.case {
            CaseChange::None => s.clone(),
            CaseChange::Lower => s.to_lowercase(),
            CaseChange::Upper => s.to_uppercase(),
        })
        .collect();
    if out.is_empty() {
        out.push(String::new());
    }
    let count = out.len();
    *dims.last_mut().ok_or(Fault::Descriptor)? = count;
    *y = Object::Strings(Strings::new(dims, out).ok_or(Fault::ShapeMismatch)?);
    Ok([count])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn split_as_python_does() {
        let all = usize::MAX;
        for (text, delimiter, n, want) in [
            ("a.b", ".", all, &["a", "b"][..]),
            ("o-n-n--x-", "-", all, &["o", "n", "n", "", "x", ""]),
            ("", ".", all, &[""]),
            ("", "", all, &[]),
            ("  hello  world ", "", all, &["hello", "world"]),
            (" a b  c ", "", 1, &["a", "b  c "]),
            ("a,b,c", ",", 1, &["a", "b,c"]),
        ] {
            assert_eq!(parts(text, delimiter, n), want, "{text:?}");
        }
    }
}
