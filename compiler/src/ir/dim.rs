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
    /// What two extents broadcast to: the second one where the first is 1, else the first.
    Broadcast(Box<Dim>, Box<Dim>),
    /// `a / b`, of which it is known (or checked when run) that nothing remains: times `b` it is `a` again.
    Quotient(Box<Dim>, Box<Dim>),
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

    /// `self / d` where nothing remains, or the caller has that checked at run time; zero for a zero divisor. Multiplied by
    /// `d` it is `self` again, so that a shape with it has as many elements as what it was made from.
    pub fn quotient(&self, d: &Self) -> Self {
        if let (Self::Const(_), Self::Const(_)) | (_, Self::Const(1)) = (self, d) {
            return self.floor_div(d);
        }
        if let Some(exact) = self.exact_div(d) {
            return exact;
        }
        // What both are multiplied by goes.
        let (mut a, mut b) = (self.clone(), d.clone());
        if let [(atoms, c)] = d.summands()[..] {
            for atom in atoms {
                let atom = Self::atom(atom.clone());
                if let (Some(x), Some(y)) = (a.exact_div(&atom), b.exact_div(&atom)) {
                    (a, b) = (x, y);
                }
            }
            let common = a.summands().iter().fold(c, |g, (_, c)| gcd(g, *c));
            if common > 1 {
                let common = Self::Const(common);
                (a, b) = (a.floor_div(&common), b.floor_div(&common));
            }
        }
        if b.as_const().is_some_and(|b| b == 1) {
            return a;
        }
        Self::atom(Atom::Quotient(Box::new(a), Box::new(b)))
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

    /// The extent that two broadcast to, if they do: equal, or one of them 1. What is found at run time must be checked then.
    pub fn broadcast(&self, o: &Self) -> Option<Self> {
        match (self.as_const(), o.as_const()) {
            _ if self == o || o.is(1) => Some(self.clone()),
            _ if self.is(1) => Some(o.clone()),
            (Some(_), Some(_)) => None,
            (Some(_), None) => Some(self.clone()),
            (None, Some(_)) => Some(o.clone()),
            _ if self.lower() > 1 => Some(self.clone()),
            _ if o.lower() > 1 => Some(o.clone()),
            _ => {
                // In an order of their own, so that equal shapes compare equal.
                let (a, b) = if self < o { (self, o) } else { (o, self) };
                Some(Self::atom(Atom::Broadcast(Box::new(a.clone()), Box::new(b.clone()))))
            }
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
                (l, h) = product_range((l, h), (al, ah));
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
                    Atom::FloorDiv(a, b)
                    | Atom::Rem(a, b)
                    | Atom::Max(a, b)
                    | Atom::Min(a, b)
                    | Atom::Broadcast(a, b)
                    | Atom::Quotient(a, b) => {
                        a.symbols(f);
                        b.symbols(f);
                    }
                }
            }
        }
    }
}

/// Bounds of a product.
fn product_range(a: (i64, Option<i64>), b: (i64, Option<i64>)) -> (i64, Option<i64>) {
    if a.0 >= 0 && b.0 >= 0 {
        return (a.0.saturating_mul(b.0), a.1.zip(b.1).map(|(a, b)| a.saturating_mul(b)));
    }
    let (Some(ah), Some(bh)) = (a.1, b.1) else { return (i64::MIN, None) };
    let all = [a.0.saturating_mul(b.0), a.0.saturating_mul(bh), ah.saturating_mul(b.0), ah.saturating_mul(bh)];
    (all.into_iter().fold(i64::MAX, i64::min), Some(all.into_iter().fold(i64::MIN, i64::max)))
}

/// Where a term has a quotient and all that it is a quotient by, the dividend in their place.
fn without_quotients(term: &[Atom], c: i64) -> Option<Dim> {
    for (i, atom) in term.iter().enumerate() {
        let Atom::Quotient(a, b) = atom else { continue };
        let [(by, k)] = b.summands()[..] else { continue };
        if k == 0 || c % k != 0 {
            continue;
        }
        let mut rest = term.to_vec();
        rest.remove(i);
        let all = by.iter().all(|atom| match rest.iter().position(|r| r == atom) {
            Some(at) => {
                rest.remove(at);
                true
            }
            None => false,
        });
        if all {
            return Some(Dim::from_terms(BTreeMap::from([(rest, c / k)])) * (**a).clone());
        }
    }
    None
}

fn gcd(a: i64, b: i64) -> i64 {
    let (mut a, mut b) = (a.unsigned_abs(), b.unsigned_abs());
    while b != 0 {
        (a, b) = (b, a % b);
    }
    i64::try_from(a).unwrap_or(1)
}

impl Atom {
    fn range(&self) -> (i64, Option<i64>) {
        match self {
            Self::Symbol(s) => (s.min, s.max),
            Self::FloorDiv(a, b) | Self::Quotient(a, b) => {
                let (al, ah) = a.range();
                let (bl, bh) = b.range();
                if bl < 1 {
                    // Division by zero gives zero.
                    return if al >= 0 && bl >= 0 { (0, ah) } else { (i64::MIN, None) };
                }
                (bh.map_or(al.min(0), |bh| al.div_euclid(if al < 0 { bl } else { bh })), ah.map(|ah| ah.div_euclid(bl)))
            }
            Self::Rem(_, b) => (0, b.upper().map(|u| (u - 1).max(0))),
            Self::Max(a, b) => (a.lower().max(b.lower()), a.upper().zip(b.upper()).map(|(a, b)| a.max(b))),
            Self::Broadcast(a, b) => (a.lower().min(b.lower()), a.upper().zip(b.upper()).map(|(a, b)| a.max(b))),
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
            Self::FloorDiv(a, b) | Self::Quotient(a, b) => {
                let (a, b) = pair(a, b);
                constant(a.floor_div(&b))
            }
            Self::Rem(a, b) => {
                let (a, b) = pair(a, b);
                constant(a.rem(&b))
            }
            Self::Max(a, b) => a.eval(value_of).max(b.eval(value_of)),
            Self::Broadcast(a, b) => match a.eval(value_of) {
                1 => b.eval(value_of),
                a => a,
            },
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
        let mut whole = Self::Const(0);
        for (a, ca) in self.terms() {
            for (b, cb) in o.terms() {
                let mut atoms = a.clone();
                atoms.extend(b);
                atoms.sort();
                if let Some(d) = without_quotients(&atoms, ca.saturating_mul(cb)) {
                    whole = whole + d;
                    continue;
                }
                let slot = out.entry(atoms).or_insert(0);
                *slot = slot.saturating_add(ca.saturating_mul(cb));
            }
        }
        Self::from_terms(out) + whole
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
            Self::Quotient(a, b) => write!(f, "({a} / {b})"),
            Self::Rem(a, b) => write!(f, "({a} mod {b})"),
            Self::Max(a, b) => write!(f, "max({a}, {b})"),
            Self::Min(a, b) => write!(f, "min({a}, {b})"),
            Self::Broadcast(a, b) => write!(f, "broadcast({a}, {b})"),
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
    fn broadcast_extents() {
        let (a, b) = (sym("a", 8), sym("b", 4));
        let joint = a.broadcast(&b).unwrap();
        assert_eq!(Some(&joint), b.broadcast(&a).as_ref());
        assert_eq!((joint.lower(), joint.upper()), (1, Some(8)));
        for (x, y, want) in [(1, 4, 4), (8, 1, 8), (3, 3, 3), (0, 1, 0), (1, 0, 0)] {
            assert_eq!(joint.eval(&|s| if s.name == "a" { x } else { y }), want);
        }
        assert_eq!(a.broadcast(&d(1)), Some(a.clone()));
        assert_eq!(a.broadcast(&d(5)), Some(d(5)));
        assert_eq!(d(4).broadcast(&d(5)), None);
        assert_eq!(d(4).broadcast(&d(1)), Some(d(4)));
    }

    #[test]
    fn quotients_multiply_back() {
        let (n, s, e) = (sym("n", 4), sym("seq", 128), sym("e", 64));
        let all = n.clone() * s.clone() * e.clone();
        let head = all.quotient(&(n.clone() * s.clone() * d(3)));
        assert_eq!(head.to_string(), "(e / 3)");
        assert_eq!(n.clone() * s.clone() * d(3) * head.clone(), all);
        assert_eq!(head.clone() * d(3) * s.clone() * n.clone(), all);
        assert_eq!((head.eval(&|_| 48), head.upper()), (16, Some(21)));
        assert_eq!(d(24).quotient(&s) * s.clone(), d(24));
        assert_eq!(d(24).quotient(&d(8)), d(3));
    }

    #[test]
    fn negative_numbers_have_bounds() {
        let source = SymbolSource::Data { slot: 0 };
        let from_end = Dim::symbol(Symbol { name: "start".into(), min: -4, max: Some(3), source });
        assert_eq!((from_end.lower(), from_end.upper()), (-4, Some(3)));
        let twice = from_end.clone() * sym("n", 5) * d(-2);
        assert_eq!((twice.lower(), twice.upper()), (-30, Some(40)));
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
