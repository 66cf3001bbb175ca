//! The model on one stream beside the one on several, in one module: which of them a model is, is chosen when it is made.
//!
//! In: a program with a narrow one ([`Program::narrow`]). Out: a module in the module with that one's calls, and the choices
//! around it: the arena's size, the run, where outputs lie. A program without one gets `with_budget` only.

use super::dims::Extents;
use super::formatted;
use super::model::node_table;
use super::ports::Border;
use super::steps::{self, Statics, n_chunks};
use crate::error::CompileError;
use crate::program::Program;
use proc_macro2::{Literal, TokenStream};
use quote::{format_ident, quote};

/// The field that says which program runs, and its value for the wide one.
pub(super) fn choice(program: &Program) -> (TokenStream, TokenStream) {
    match program.narrow {
        Some(_) => (quote! { on_one_stream: bool, }, quote! { on_one_stream: false, }),
        None => (TokenStream::new(), TokenStream::new()),
    }
}

/// `new` and `with_budget`. `whole` makes the wide model.
pub(super) fn constructors(program: &Program, docs: &str, whole: &TokenStream, weights: &TokenStream) -> TokenStream {
    if program.narrow.is_none() {
        return quote! {
            #[doc = #docs]
            pub fn new() -> Result<Self, rt::Error> {
                Ok(#whole)
            }

            /// As [`Self::new`], with at most so many bytes for the arena; with fewer than [`Self::ARENA_BYTES`] it fails
            /// with [`rt::Error::Budget`], and nothing is allocated.
            pub fn with_budget(bytes: usize) -> Result<Self, rt::Error> {
                rt::widest_within(&[Self::ARENA_BYTES], bytes)?;
                Self::new()
            }
        };
    }
    let docs = format!("{docs} What the system has free decides how many streams: see [`Self::with_budget`].");
    quote! {
        #[doc = #docs]
        pub fn new() -> Result<Self, rt::Error> {
            Self::with_budget(rt::free_budget_bytes())
        }

        /// As [`Self::new`], with at most so many bytes for the arena: on all streams where they are enough for
        /// [`Self::ARENA_BYTES`], on one where they are enough for that; else [`rt::Error::Budget`], and nothing is
        /// allocated.
        pub fn with_budget(bytes: usize) -> Result<Self, rt::Error> {
            match rt::widest_within(&[Self::ARENA_BYTES, one_stream::ARENA_BYTES], bytes)? {
                0 => Ok(#whole),
                _ => Ok(Self { rt: rt::Instance::on_heap(one_stream::ARENA_BYTES, #weights)?, on_one_stream: true }),
            }
        }
    }
}

/// The call that runs the steps of the program chosen; `wide` runs the wide one's.
pub(super) fn run(program: &Program, extents: &TokenStream, wide: TokenStream) -> TokenStream {
    match program.narrow {
        None => wide,
        Some(_) => quote! {
            if self.on_one_stream {
                self.rt.run(&mut regions, #extents, one_stream::NODES, one_stream::steps)
            } else {
                #wide
            }
        },
    }
}

/// Where an output lies in the arena.
pub(super) fn offset(program: &Program, output_idx: usize, wide: u64) -> TokenStream {
    match program.narrow.as_ref().and_then(|n| n.outputs.get(output_idx)).map(|p| p.off) {
        Some(narrow) if narrow != wide => {
            let (narrow, wide) = (Literal::u64_unsuffixed(narrow), Literal::u64_unsuffixed(wide));
            quote!(if self.on_one_stream { #narrow } else { #wide })
        }
        _ => {
            let wide = Literal::u64_unsuffixed(wide);
            quote!(#wide)
        }
    }
}

/// The narrow program's calls, as a module.
pub(super) fn module(narrow: &Program) -> Result<String, CompileError> {
    let extents = Extents::of(narrow);
    let shared = Statics::of(narrow);
    let arena_bytes = Literal::u64_unsuffixed(narrow.memory_bytes());
    let mut regions = vec![quote!(ARENA_BYTES), quote!(Model::WEIGHT_BYTES)];
    regions.extend(Border::of(narrow, &extents)?.region_bytes);
    let n_regions = Literal::usize_unsuffixed(regions.len());
    let nodes = node_table(narrow);
    let chunks = (0..n_chunks(narrow)).map(|i| format_ident!("steps_{i}"));
    let mut inner = formatted(quote! {
        use super::*;
        pub(super) const ARENA_BYTES: usize = #arena_bytes;
        static REGION_BYTES: [usize; #n_regions] = [#(#regions),*];
        pub(super) #nodes
        pub(super) fn steps(cx: &k::Cx<'_>) {
            #(#chunks(cx);)*
        }
    })?;
    steps::items(narrow, &extents, &shared, &mut |function| {
        inner.push_str(&steps::comments(&formatted(function)?));
        Ok(())
    })?;
    let mut out = String::from("/// The same model on one stream, in less memory.\nmod one_stream {\n");
    for line in inner.lines() {
        if !line.is_empty() {
            out.push_str("    ");
            out.push_str(line);
        }
        out.push('\n');
    }
    out.push_str("}\n");
    Ok(out)
}
