//! The model on fewer streams beside that on all, in one module: which of them a model is, is chosen when it is made.
//!
//! In: a program with narrower ones ([`Program::narrow`]). Out: a module in the module with each one's calls, and the choices
//! around them: the arena's size, the run, where outputs lie. A program without any gets `with_budget` only.

use super::WeightsFrom;
use super::dims::Extents;
use super::formatted;
use super::model::node_table;
use super::ports::Border;
use super::steps::{self, Statics, n_chunks};
use super::streams;
use crate::error::CompileError;
use crate::program::Program;
use proc_macro2::{Ident, Literal, TokenStream};
use quote::{format_ident, quote};

/// The module of the narrower program with this number; the widest one's is 0.
fn name(schedule: usize) -> Ident {
    format_ident!("schedule_{schedule}")
}

/// The narrower programs with their numbers, as literals, and modules.
fn all(program: &Program) -> impl Iterator<Item = (Literal, Ident, &Program)> {
    program.narrow.iter().enumerate().map(|(i, p)| (Literal::usize_unsuffixed(i + 1), name(i + 1), p))
}

/// The field that says which program runs, and its value for the widest one.
pub(super) fn choice(program: &Program) -> (TokenStream, TokenStream) {
    match program.narrow.is_empty() {
        false => (quote! { schedule: usize, }, quote! { schedule: 0, }),
        true => (TokenStream::new(), TokenStream::new()),
    }
}

/// The weights of a constructor that is given their path.
pub(super) const GIVEN: &str = "WEIGHTS_FILE.load_from(weights.as_ref())?";

/// `new` and `with_budget`, and `with_weights` where they lie in a file. `whole` makes the widest model with weights.
pub(super) fn constructors(
    program: &Program,
    docs: &str,
    from: WeightsFrom,
    whole: &dyn Fn(&TokenStream) -> TokenStream,
    weights: &TokenStream,
) -> TokenStream {
    let given: TokenStream = GIVEN.parse().unwrap_or_default();
    if program.narrow.is_empty() {
        let (own, given) = (whole(weights), whole(&given));
        let with_weights = match from {
            WeightsFrom::Embed => quote!(),
            WeightsFrom::File => quote! {
                /// As [`Self::new`], with the weights file at this path.
                pub fn with_weights(weights: impl AsRef<rt::Path>) -> Result<Self, rt::Error> {
                    Ok(#given)
                }

                /// As [`Self::with_budget`], with the weights file at this path.
                pub fn with_weights_and_budget(weights: impl AsRef<rt::Path>, bytes: usize) -> Result<Self, rt::Error> {
                    rt::widest_within(&[Self::ARENA_BYTES], bytes)?;
                    Self::with_weights(weights)
                }
            },
        };
        return quote! {
            #[doc = #docs]
            pub fn new() -> Result<Self, rt::Error> {
                Ok(#own)
            }

            /// As [`Self::new`], with at most so many bytes for the arena; with fewer than [`Self::ARENA_BYTES`] it fails
            /// with [`rt::Error::Budget`], and nothing is allocated.
            pub fn with_budget(bytes: usize) -> Result<Self, rt::Error> {
                rt::widest_within(&[Self::ARENA_BYTES], bytes)?;
                Self::new()
            }

            #with_weights
        };
    }
    let docs = format!("{docs} What the system has free decides how many streams: see [`Self::with_budget`].");
    let sizes = all(program).map(|(_, module, _)| quote!(#module::ARENA_BYTES));
    let sizes: Vec<_> = sizes.collect();
    let choose = |weights: &TokenStream| {
        let narrow = all(program).map(|(number, module, narrow)| {
            let instance = match narrow.schedule.streams.len() {
                0 | 1 => quote!(rt::Instance::on_heap(#module::ARENA_BYTES, #weights)?),
                _ => quote!(rt::Instance::on_streams(#module::ARENA_BYTES, #weights, #module::STREAMS)?),
            };
            quote! { #number => Ok(Self { rt: #instance, schedule: #number }) }
        });
        let whole = whole(weights);
        quote! {
            match rt::widest_within(&[Self::ARENA_BYTES, #(#sizes),*], bytes)? {
                #(#narrow,)*
                _ => Ok(#whole),
            }
        }
    };
    let sizes_docs =
        program.narrow.iter().map(|p| format!("{} on {}", p.memory_bytes(), p.schedule.streams.len().max(1)));
    let sizes_docs: Vec<String> = sizes_docs.collect();
    let which = format!(
        " As [`Self::new`], with at most so many bytes for the arena: on all streams where they are enough for \
         [`Self::ARENA_BYTES`], on fewer where they are enough for that ({}); else [`rt::Error::Budget`], and nothing is \
         allocated.",
        sizes_docs.join(", ")
    );
    let (own, given) = (choose(weights), choose(&given));
    let with_weights = match from {
        WeightsFrom::Embed => quote!(),
        WeightsFrom::File => quote! {
            /// As [`Self::new`], with the weights file at this path.
            pub fn with_weights(weights: impl AsRef<rt::Path>) -> Result<Self, rt::Error> {
                Self::with_weights_and_budget(weights, rt::free_budget_bytes())
            }

            /// As [`Self::with_budget`], with the weights file at this path.
            pub fn with_weights_and_budget(weights: impl AsRef<rt::Path>, bytes: usize) -> Result<Self, rt::Error> {
                #given
            }
        },
    };
    quote! {
        #[doc = #docs]
        pub fn new() -> Result<Self, rt::Error> {
            Self::with_budget(rt::free_budget_bytes())
        }

        #[doc = #which]
        pub fn with_budget(bytes: usize) -> Result<Self, rt::Error> {
            #own
        }

        #with_weights
    }
}

/// The call that runs the steps of the program chosen; `wide` runs the widest one's.
pub(super) fn run(program: &Program, extents: &TokenStream, wide: TokenStream) -> TokenStream {
    if program.narrow.is_empty() {
        return wide;
    }
    let narrow = all(program).map(|(number, module, _)| {
        quote! { #number => self.rt.run(&mut regions, #extents, #module::NODES, #module::steps) }
    });
    quote! {
        match self.schedule {
            #(#narrow,)*
            _ => #wide,
        }
    }
}

/// Where an output lies in the arena.
pub(super) fn offset(program: &Program, output_idx: usize, wide: u64) -> TokenStream {
    let to = |off: u64| Literal::u64_unsuffixed(off);
    let others = all(program).filter_map(|(number, _, p)| {
        let off = p.outputs.get(output_idx).map(|o| o.off).filter(|off| *off != wide)?;
        let off = to(off);
        Some(quote!(#number => #off))
    });
    let (others, wide): (Vec<_>, _) = (others.collect(), to(wide));
    match others.is_empty() {
        true => quote!(#wide),
        false => quote!(match self.schedule { #(#others,)* _ => #wide }),
    }
}

/// The narrower programs' calls, each as a module.
pub(super) fn modules(program: &Program) -> Result<String, CompileError> {
    program.narrow.iter().enumerate().map(|(i, narrow)| module(narrow, &name(i + 1))).collect()
}

/// A narrower program's calls, as a module.
fn module(narrow: &Program, name: &Ident) -> Result<String, CompileError> {
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
    let streams = streams::items(narrow, &extents, &shared, &quote!(pub(super)))?;
    inner.push_str(&steps::comments(&formatted(streams)?));
    steps::items(narrow, &extents, &shared, &mut |function| {
        inner.push_str(&steps::comments(&formatted(function)?));
        Ok(())
    })?;
    let streams = match narrow.schedule.streams.len() {
        0 | 1 => "one stream".to_owned(),
        n => format!("{n} streams"),
    };
    let mut out = format!("/// The same model on {streams}, in less memory.\nmod {name} {{\n");
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
