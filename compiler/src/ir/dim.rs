//! Dimensions: constants, symbols with bounds, and integer expressions over them.
//!
//! A [`Dim`] is a polynomial in canonical form, so that two equal shapes written in different ways (as dynamic exports do)
//! compare equal. Atoms are symbols and the operations that polynomials cannot express (division, max, min, remainder).
//! Invariant: a constant is always `Dim::Const`, never a polynomial without atoms. Overflow saturates; shapes that large are
//! refused by [`crate::ir::Shape::numel`].

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// Where a symbol's value comes from.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SymbolSource {
    /// An axis of a graph input.
    Input {
        /// Index of the graph input.
        input_idx: usize,
        /// Axis.
        axis: usize,
    },
    /// Written by a kernel into a slot of the run's extents.
    Data {
        /// Index of the slot.
        slot: usize,
    },
    /// Inside the type of a sequence: differs from element to element, has no value of its own.
    Element,
}

/// A dimension known only at run time.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Symbol {
    /// Its name in the model, or one made for it.
    pub name: String,
    /// Smallest value.
    pub min: i64,
    /// Greatest value, if one is known.
    pub max: Option<i64>,
    /// Where its value comes from.
    pub source: SymbolSource,
}

/// A factor of a polynomial's term.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Atom {
    /// A symbol.
    Symbol(Arc<Symbol>),
    /// `floor(a / b)`.
    FloorDiv(Box<Dim>, Box<Dim>),
    /// `a mod b`, sign of `b`.
    Rem(Box<Dim>, Box<Dim>),
    /// The greater one.
    Max(Box<Dim>, Box<Dim>),
    /// The smaller one.
    Min(Box<Dim>, Box<Dim>),
}

/// An integer known at compile time, or an expression over symbols.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Dim {
    /// A constant.
    Const(i64),
    /// Sum of terms, at least one with an atom.
    Poly(Arc<BTreeMap<Vec<Atom>, i64>>),
}

impl Dim {
    /// A symbol as a dimension.
    pub fn symbol(symbol: Symbol) -> Self {
        Self::atom(Atom::Symbol(Arc::new(symbol)))
    }

    fn atom(atom: Atom) -> Self {
        Self::Poly(Arc::new(BTreeMap::from([(vec![atom], 1)])))
    }

    fn terms(&self) -> BTreeMap<Vec<Atom>, i64> {
        match self {
            Self::Const(0) => BTreeMap::new(),
            Self::Const(c) => BTreeMap::from([(Vec::new(), *c)]),
            Self::Poly(p) => (**p).clone(),
        }
    }

    fn from_terms(mut terms: BTreeMap<Vec<Atom>, i64>) -> Self {
        terms.retain(|_, c| *c != 0);
        match terms.len() {
            0 => Self::Const(0),
            1 if terms.contains_key(&Vec::new()) => Self::Const(terms[&Vec::new()]),
            _ => Self::Poly(Arc::new(terms)),
        }
    }

    /// The value, if constant.
    pub fn as_const(&self) -> Option<i64> {
        match self {
            Self::Const(c) => Some(*c),
            Self::Poly(_) => None,
        }
    }

    /// The terms of the sum: the atoms multiplied, and their coefficient. Empty for zero.
    pub fn summands(&self) -> Vec<(&[Atom], i64)> {
        match self {
            Self::Const(0) => Vec::new(),
            Self::Const(c) => vec![(&[], *c)],
            Self::Poly(p) => p.iter().rev().map(|(atoms, c)| (atoms.as_slice(), *c)).collect(),
        }
    }

    /// The symbol, if it is one and nothing else.
    pub fn as_symbol(&self) -> Option<&Symbol> {
        match self.summands()[..] {
            [([Atom::Symbol(s)], 1)] => Some(s),
            _ => None,
        }
    }

    /// Whether it is this constant.
    pub fn is(&self, value: i64) -> bool {
        *self == Self::Const(value)
    }

    /// `floor(self / d)`; zero for a zero divisor.
    pub fn floor_div(&self, d: &Self) -> Self {
        match (self, d) {
            (_, Self::Const(1)) => self.clone(),
            (_, Self::Const(0)) => Self::Const(0),
            (Self::Const(a), Self::Const(b)) => {
                Self::Const(a.div_euclid(*b) - i64::from(*b < 0 && a.rem_euclid(*b) != 0))
            }
            _ => self.exact_div(d).unwrap_or_else(|| {
                if self == d {
                    return Self::Const(1);
                }
                Self::atom(Atom::FloorDiv(Box::new(self.clone()), Box::new(d.clone())))
            }),
        }
    }

    /// `ceil(self / d)` for positive `d`.
    pub fn ceil_div(&self, d: &Self) -> Self {
        if let (Self::Const(a), Self::Const(b)) = (self, d)
            && *b > 0
        {
            return Self::Const(a.div_euclid(*b) + i64::from(a.rem_euclid(*b) != 0));
        }
        (self.clone() + d.clone() - Self::Const(1)).floor_div(d)
    }

    /// The quotient, if the division is exact for every value of the symbols.
    pub fn exact_div(&self, d: &Self) -> Option<Self> {
        let divisor = d.terms();
        let (atoms, coefficient) = divisor.first_key_value()?;
        if divisor.len() != 1 {
            return (self == d).then_some(Self::Const(1));
        }
        let mut out = BTreeMap::new();
        for (term, c) in self.terms() {
            if c % coefficient != 0 {
                return None;
            }
            let mut rest = term.clone();
            for atom in atoms {
                let at = rest.iter().position(|a| a == atom)?;
                rest.remove(at);
            }
            out.insert(rest, c / coefficient);
        }
        Some(Self::from_terms(out))
    }

    /// `self mod d`, sign of `d`; zero for a zero divisor.
    pub fn rem(&self, d: &Self) -> Self {
        match (self, d) {
            (_, Self::Const(0)) => Self::Const(0),
            (Self::Const(a), Self::Const(b)) => {
                let r = a.rem_euclid(*b);
                Self::Const(if *b < 0 && r != 0 { r + b } else { r })
            }
            _ if self.exact_div(d).is_some() => Self::Const(0),
            _ => Self::atom(Atom::Rem(Box::new(self.clone()), Box::new(d.clone()))),
        }
    }

    /// The greater of two.
    pub fn max(&self, o: &Self) -> Self {
        match (self, o) {
            (Self::Const(a), Self::Const(b)) => Self::Const(*a.max(b)),
            _ if self == o => self.clone(),
            _ if self.is_at_least(o) => self.clone(),
            _ if o.is_at_least(self) => o.clone(),
            _ => Self::atom(Atom::Max(Box::new(self.clone()), Box::new(o.clone()))),
        }
    }

    /// The smaller of two.
    pub fn min(&self, o: &Self) -> Self {
        match (self, o) {
            (Self::Const(a), Self::Const(b)) => Self::Const(*a.min(b)),
            _ if self == o => self.clone(),
            _ if o.is_at_least(self) => self.clone(),
            _ if self.is_at_least(o) => o.clone(),
            _ => Self::atom(Atom::Min(Box::new(self.clone()), Box::new(o.clone()))),
        }
    }

    /// Whether it is at least `o` for every value of the symbols, as far as bounds tell.
    fn is_at_least(&self, o: &Self) -> bool {
        o.upper().is_some_and(|u| self.lower() >= u) || (self.clone() - o.clone()).lower() >= 0
    }

    /// [`Dim::max`] for a receiver by value, where the method of that name is `Ord`'s, which compares texts, not values.
    pub fn at_least(&self, low: &Self) -> Self {
        Dim::max(self, low)
    }

    /// [`Dim::min`] for a receiver by value, as [`Dim::at_least`].
    pub fn at_most(&self, high: &Self) -> Self {
        Dim::min(self, high)
    }

    /// A value no smaller than any the symbols' bounds allow; `None` without a bound.
    pub fn upper(&self) -> Option<i64> {
        self.range().1
    }

    /// A value no greater than any the symbols' bounds allow.
    pub fn lower(&self) -> i64 {
        self.range().0
    }

    fn range(&self) -> (i64, Option<i64>) {
        let terms = match self {
            Self::Const(c) => return (*c, Some(*c)),
            Self::Poly(p) => p,
        };
        let (mut low, mut high) = (0i64, Some(0i64));
        for (atoms, &c) in terms.iter() {
            let (mut l, mut h) = (1i64, Some(1i64));
            for atom in atoms {
                let (al, ah) = atom.range();
                // Extents are non-negative, so products of bounds are bounds of products.
                l = l.saturating_mul(al.max(0));
                h = h.zip(ah).map(|(a, b)| a.saturating_mul(b.max(0)));
            }
            if c >= 0 {
                low = low.saturating_add(l.saturating_mul(c));
                high = high.zip(h).map(|(a, b)| a.saturating_add(b.saturating_mul(c)));
            } else {
                low = h.map_or(i64::MIN, |h| low.saturating_add(h.saturating_mul(c)));
                high = high.map(|a| a.saturating_add(l.saturating_mul(c)));
            }
        }
        (low, high)
    }

    /// The value for given values of the symbols.
    pub fn eval(&self, value_of: &dyn Fn(&Symbol) -> i64) -> i64 {
        match self {
            Self::Const(c) => *c,
            Self::Poly(p) => p.iter().fold(0i64, |sum, (atoms, c)| {
                sum.saturating_add(atoms.iter().fold(*c, |x, a| x.saturating_mul(a.eval(value_of))))
            }),
        }
    }

    /// Visits every symbol in it.
    pub fn symbols(&self, f: &mut dyn FnMut(&Arc<Symbol>)) {
        if let Self::Poly(p) = self {
            for atom in p.keys().flatten() {
                match atom {
                    Atom::Symbol(s) => f(s),
                    Atom::FloorDiv(a, b) | Atom::Rem(a, b) | Atom::Max(a, b) | Atom::Min(a, b) => {
                        a.symbols(f);
                        b.symbols(f);
                    }
                }
            }
        }
    }
}

impl Atom {
    fn range(&self) -> (i64, Option<i64>) {
        match self {
            Self::Symbol(s) => (s.min, s.max),
            Self::FloorDiv(a, b) => {
                let (al, ah) = a.range();
                let (bl, bh) = b.range();
                if bl < 1 {
                    return (i64::MIN, None);
                }
                (bh.map_or(al.min(0), |bh| al.div_euclid(if al < 0 { bl } else { bh })), ah.map(|ah| ah.div_euclid(bl)))
            }
            Self::Rem(_, b) => (0, b.upper().map(|u| (u - 1).max(0))),
            Self::Max(a, b) => (a.lower().max(b.lower()), a.upper().zip(b.upper()).map(|(a, b)| a.max(b))),
            Self::Min(a, b) => {
                let high = match (a.upper(), b.upper()) {
                    (Some(a), Some(b)) => Some(a.min(b)),
                    (one, other) => one.or(other),
                };
                (a.lower().min(b.lower()), high)
            }
        }
    }

    fn eval(&self, value_of: &dyn Fn(&Symbol) -> i64) -> i64 {
        let pair = |a: &Dim, b: &Dim| (Dim::Const(a.eval(value_of)), Dim::Const(b.eval(value_of)));
        let constant = |d: Dim| d.as_const().unwrap_or(0);
        match self {
            Self::Symbol(s) => value_of(s),
            Self::FloorDiv(a, b) => {
                let (a, b) = pair(a, b);
                constant(a.floor_div(&b))
            }
            Self::Rem(a, b) => {
                let (a, b) = pair(a, b);
                constant(a.rem(&b))
            }
            Self::Max(a, b) => a.eval(value_of).max(b.eval(value_of)),
            Self::Min(a, b) => a.eval(value_of).min(b.eval(value_of)),
        }
    }
}

impl std::ops::Add for Dim {
    type Output = Self;
    fn add(self, o: Self) -> Self {
        if let (Self::Const(a), Self::Const(b)) = (&self, &o) {
            return Self::Const(a.saturating_add(*b));
        }
        let mut terms = self.terms();
        for (atoms, c) in o.terms() {
            let slot = terms.entry(atoms).or_insert(0);
            *slot = slot.saturating_add(c);
        }
        Self::from_terms(terms)
    }
}

impl std::ops::Sub for Dim {
    type Output = Self;
    fn sub(self, o: Self) -> Self {
        self + o * Self::Const(-1)
    }
}

impl std::ops::Mul for Dim {
    type Output = Self;
    fn mul(self, o: Self) -> Self {
        if let (Self::Const(a), Self::Const(b)) = (&self, &o) {
            return Self::Const(a.saturating_mul(*b));
        }
        let mut out: BTreeMap<Vec<Atom>, i64> = BTreeMap::new();
        for (a, ca) in self.terms() {
            for (b, cb) in o.terms() {
                let mut atoms = a.clone();
                atoms.extend(b);
                atoms.sort();
                let slot = out.entry(atoms).or_insert(0);
                *slot = slot.saturating_add(ca.saturating_mul(cb));
            }
        }
        Self::from_terms(out)
    }
}

impl From<i64> for Dim {
    fn from(c: i64) -> Self {
        Self::Const(c)
    }
}

impl From<usize> for Dim {
    fn from(c: usize) -> Self {
        Self::Const(i64::try_from(c).unwrap_or(i64::MAX))
    }
}

impl std::iter::Product for Dim {
    fn product<I: Iterator<Item = Self>>(dims: I) -> Self {
        dims.fold(Self::Const(1), |a, b| a * b)
    }
}

impl std::iter::Sum for Dim {
    fn sum<I: Iterator<Item = Self>>(dims: I) -> Self {
        dims.fold(Self::Const(0), |a, b| a + b)
    }
}

impl fmt::Display for Atom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Symbol(s) => f.write_str(&s.name),
            Self::FloorDiv(a, b) => write!(f, "floor({a} / {b})"),
            Self::Rem(a, b) => write!(f, "({a} mod {b})"),
            Self::Max(a, b) => write!(f, "max({a}, {b})"),
            Self::Min(a, b) => write!(f, "min({a}, {b})"),
        }
    }
}

impl fmt::Display for Dim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let terms = match self {
            Self::Const(c) => return write!(f, "{c}"),
            Self::Poly(p) => p,
        };
        for (i, (atoms, c)) in terms.iter().rev().enumerate() {
            if i > 0 {
                f.write_str(if *c < 0 { " - " } else { " + " })?;
            } else if *c < 0 {
                f.write_str("-")?;
            }
            let c = c.unsigned_abs();
            if atoms.is_empty() || c != 1 {
                write!(f, "{c}")?;
            }
            for (j, atom) in atoms.iter().enumerate() {
                if j > 0 || c != 1 {
                    f.write_str("*")?;
                }
                write!(f, "{atom}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn d(c: i64) -> Dim {
        Dim::Const(c)
    }

    fn sym(name: &str, max: i64) -> Dim {
        let source = SymbolSource::Input { input_idx: 0, axis: 0 };
        Dim::symbol(Symbol { name: name.into(), min: 1, max: Some(max), source })
    }

    #[test]
    fn equal_expressions_compare_equal() {
        let (n, s) = (sym("n", 4), sym("seq", 128));
        assert_eq!(n.clone() * s.clone() * d(768), s.clone() * d(64) * d(12) * n.clone());
        assert_eq!((s.clone() * d(768)).floor_div(&d(64)), s.clone() * d(12));
        assert_eq!((s.clone() + d(1)) - s.clone(), d(1));
        assert_eq!((s.clone() * n.clone()).exact_div(&n), Some(s.clone()));
        assert_eq!((s.clone() * d(2)).rem(&d(2)), d(0));
    }

    #[test]
    fn bounds_and_values() {
        let s = sym("seq", 128);
        let half = (s.clone() + d(1)).floor_div(&d(2));
        assert_eq!((half.lower(), half.upper()), (1, Some(64)));
        assert_eq!(half.eval(&|_| 7), 4);
        assert_eq!((half * d(3) - d(2)).to_string(), "3*floor(seq + 1 / 2) - 2");
        assert_eq!((s.clone() - d(1)).at_most(&s), s.clone() - d(1));
        assert_eq!((s.clone() - d(1)).at_least(&s), s);
        assert_eq!(Dim::Const(-7).floor_div(&d(2)), d(-4));
        assert_eq!(Dim::Const(7).floor_div(&d(-2)), d(-4));
    }
}
