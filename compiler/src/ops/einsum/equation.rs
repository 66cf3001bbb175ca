//! The equation of an Einsum: which index every axis of every operand has, and those of the result.

use std::fmt;

/// An index: a letter, or an axis that an ellipsis stands for (counted from the last).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Label {
    /// The n-th axis from the end of an ellipsis.
    Ellipsis(usize),
    /// A letter.
    Letter(char),
}

impl fmt::Display for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ellipsis(n) => write!(f, "...{n}"),
            Self::Letter(c) => write!(f, "{c}"),
        }
    }
}

/// An equation for operands of known ranks.
#[derive(Debug, PartialEq, Eq)]
pub struct Equation {
    /// One index for every axis of every operand.
    pub operands: Vec<Vec<Label>>,
    /// The result's indices, each once.
    pub output: Vec<Label>,
}

/// Letters, and where an ellipsis stands among them.
struct Pattern {
    letters: Vec<char>,
    ellipsis: Option<usize>,
}

fn pattern(text: &str) -> Result<Pattern, String> {
    let mut p = Pattern { letters: Vec::new(), ellipsis: None };
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        if let Some(after) = rest.strip_prefix("...") {
            if p.ellipsis.replace(p.letters.len()).is_some() {
                return Err(format!("two ellipses in \"{text}\""));
            }
            rest = after;
            continue;
        }
        rest = &rest[c.len_utf8()..];
        match c {
            c if c.is_ascii_alphabetic() => p.letters.push(c),
            c if c.is_whitespace() => {}
            c => return Err(format!("\"{c}\" is no index")),
        }
    }
    Ok(p)
}

impl Pattern {
    /// The labels of an operand or result with `n` axes under the ellipsis.
    fn labels(&self, n: usize) -> Vec<Label> {
        let letter = |&c: &char| Label::Letter(c);
        let at = self.ellipsis.unwrap_or(self.letters.len());
        let dots = (0..if self.ellipsis.is_some() { n } else { 0 }).rev().map(Label::Ellipsis);
        self.letters[..at].iter().map(letter).chain(dots).chain(self.letters[at..].iter().map(letter)).collect()
    }
}

impl Equation {
    /// Reads an equation.
    pub fn parse(text: &str, ranks: &[usize]) -> Result<Self, String> {
        let (left, right) = match text.split_once("->") {
            Some((left, right)) => (left, Some(right)),
            None => (text, None),
        };
        let patterns = left.split(',').map(pattern).collect::<Result<Vec<_>, _>>()?;
        if patterns.len() != ranks.len() {
            return Err(format!("{} terms for {} operands", patterns.len(), ranks.len()));
        }
        let mut widest = 0;
        let mut operands = Vec::new();
        for (p, &rank) in patterns.iter().zip(ranks) {
            let under = rank
                .checked_sub(p.letters.len())
                .filter(|&n| n == 0 || p.ellipsis.is_some())
                .ok_or_else(|| format!("{} indices for a tensor of rank {rank}", p.letters.len()))?;
            widest = widest.max(if p.ellipsis.is_some() { under } else { 0 });
            operands.push(p.labels(under));
        }
        let output = match right {
            Some(right) => pattern(right)?.labels(widest),
            None => {
                // Letters that stand once, in alphabetical order, after the ellipsis.
                let mut letters: Vec<char> = patterns.iter().flat_map(|p| p.letters.iter().copied()).collect();
                letters.sort_unstable();
                let once = |c: &char| letters.iter().filter(|&l| l == c).count() == 1;
                let single: Vec<char> = letters.iter().copied().filter(once).collect();
                Pattern { letters: single, ellipsis: Some(0) }.labels(widest)
            }
        };
        for (i, l) in output.iter().enumerate() {
            if output[..i].contains(l) {
                return Err(format!("index {l} twice in the result"));
            }
            if !operands.iter().any(|o| o.contains(l)) {
                return Err(format!("index {l} of the result is in no operand"));
            }
        }
        Ok(Self { operands, output })
    }
}
