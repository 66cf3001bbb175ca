//! Dimensions as Rust expressions.

use super::names::unique_idents;
use crate::error::{CompileError, Stage};
use crate::ir::{Atom, Dim, Symbol, SymbolSource};
use crate::program::Program;
use proc_macro2::{Ident, Literal, TokenStream};
use quote::{format_ident, quote};
use std::collections::{BTreeMap, BTreeSet};

/// The local variables that hold the extents known only at run time.
pub(super) struct Extents {
    by_slot: BTreeMap<usize, Ident>,
    slots: BTreeMap<Symbol, usize>,
    found: BTreeSet<usize>,
}

impl Extents {
    /// A variable for every symbol of the program: `n_` and the symbol's name.
    pub(super) fn of(program: &Program) -> Self {
        let names = unique_idents(program.extents.iter().map(|e| e.symbol.name.as_str()));
        let by_slot = program.extents.iter().zip(names).map(|(e, n)| (e.slot, format_ident!("n_{n}"))).collect();
        let slots = program.extents.iter().map(|e| ((*e.symbol).clone(), e.slot)).collect();
        let data = |e: &&crate::program::Extent| matches!(e.symbol.source, SymbolSource::Data { .. });
        Self { by_slot, slots, found: program.extents.iter().filter(data).map(|e| e.slot).collect() }
    }

    /// Whether kernels find this extent.
    pub(super) fn is_found(&self, slot: usize) -> bool {
        self.found.contains(&slot)
    }

    /// `let` statements that read these extents; `read` makes the expression that reads a slot.
    pub(super) fn lets(&self, slots: &BTreeSet<usize>, read: &dyn Fn(Literal) -> TokenStream) -> TokenStream {
        let each = slots.iter().filter_map(|&slot| {
            let (name, value) = (self.by_slot.get(&slot)?, read(Literal::usize_unsuffixed(slot)));
            Some(quote! { let #name = #value; })
        });
        each.collect()
    }

    /// The slots a dimension reads.
    pub(super) fn slots_in(&self, dim: &Dim, out: &mut BTreeSet<usize>) {
        dim.symbols(&mut |s| out.extend(self.slots.get(&**s)));
    }

    /// A dimension as an expression of type `usize`.
    pub(super) fn number(&self, dim: &Dim) -> Result<TokenStream, CompileError> {
        match dim.as_const() {
            Some(c) if c < 0 => {
                let c = isize::try_from(c.checked_neg().unwrap_or(i64::MAX)).unwrap_or(isize::MAX);
                let v = Literal::isize_suffixed(c);
                Ok(quote!((-#v) as usize))
            }
            Some(c) => {
                let v = Literal::i64_unsuffixed(c);
                Ok(quote!(#v))
            }
            None => {
                let e = self.signed(dim)?;
                Ok(quote!((#e) as usize))
            }
        }
    }

    /// A dimension as an expression of type `isize`.
    pub(super) fn signed(&self, dim: &Dim) -> Result<TokenStream, CompileError> {
        let mut out = TokenStream::new();
        let constant = |c: i64| Literal::i64_unsuffixed(c);
        if let Some(c) = dim.as_const() {
            let v = constant(c.checked_abs().unwrap_or(i64::MAX));
            return Ok(if c < 0 { quote!(-#v) } else { quote!(#v) });
        }
        for (i, (atoms, c)) in dim.summands().into_iter().enumerate() {
            let mut product: Vec<TokenStream> = Vec::new();
            let magnitude = c.checked_abs().unwrap_or(i64::MAX);
            if magnitude != 1 || atoms.is_empty() {
                let v = constant(magnitude);
                product.push(quote!(#v));
            }
            for atom in atoms {
                product.push(self.atom(atom)?);
            }
            let product = product.into_iter().reduce(|a, b| quote!(#a * #b)).unwrap_or_else(|| quote!(1));
            out.extend(match (i, c < 0) {
                (0, false) => product,
                (0, true) => quote!(-(#product)),
                (_, false) => quote!(+ #product),
                (_, true) => quote!(- #product),
            });
        }
        Ok(out)
    }

    fn atom(&self, atom: &Atom) -> Result<TokenStream, CompileError> {
        let pair = |a: &Dim, b: &Dim| Ok::<_, CompileError>((self.signed(a)?, self.signed(b)?));
        Ok(match atom {
            Atom::Symbol(s) => {
                let name = self.slots.get(&**s).and_then(|slot| self.by_slot.get(slot)).ok_or_else(|| {
                    CompileError::new(Stage::Emit, format!("extent {} has no place (a bug in the compiler)", s.name))
                })?;
                quote!(#name)
            }
            Atom::FloorDiv(a, b) | Atom::Quotient(a, b) => {
                let (a, b) = pair(a, b)?;
                quote!(rt::floor_div(#a, #b))
            }
            Atom::Rem(a, b) => {
                let (a, b) = pair(a, b)?;
                quote!(rt::modulo(#a, #b))
            }
            Atom::Max(a, b) => {
                let (a, b) = pair(a, b)?;
                quote!(isize::max(#a, #b))
            }
            Atom::Min(a, b) => {
                let (a, b) = pair(a, b)?;
                quote!(isize::min(#a, #b))
            }
            Atom::Broadcast(a, b) => {
                let (a, b) = pair(a, b)?;
                quote!(rt::broadcast(#a, #b))
            }
        })
    }
}
