//! Dimensions as Rust expressions.

use crate::ir::Dim;
use proc_macro2::{Literal, TokenStream};
use quote::quote;

/// A constant extent; a negative one (a backward stride) in two's complement.
pub(super) fn constant(value: i64) -> TokenStream {
    if value < 0 {
        let v = Literal::i64_unsuffixed(value.checked_neg().unwrap_or(i64::MAX));
        quote!((-#v isize) as usize)
    } else {
        let v = Literal::i64_unsuffixed(value);
        quote!(#v)
    }
}

/// An extent; `None` where it is known only at run time.
pub(super) fn expression(dim: &Dim) -> Option<TokenStream> {
    dim.as_const().map(|c| {
        if c < 0 {
            let v = Literal::isize_suffixed(isize::try_from(c.checked_neg().unwrap_or(i64::MAX)).unwrap_or(isize::MAX));
            quote!((-#v) as usize)
        } else {
            constant(c)
        }
    })
}
