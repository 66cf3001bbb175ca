//! State in a module: memory that the model keeps from run to run, and how a caller sets it.

use super::dims::Extents;
use super::names::doc_code;
use super::ports::{element, idents, is_fixed};
use crate::error::CompileError;
use crate::ir::Dim;
use crate::program::Program;
use kiln_kernels::{ALIGN, Reserved};
use proc_macro2::{Literal, TokenStream};
use quote::{format_ident, quote};

/// The pieces of code for state; all empty without any.
#[derive(Default)]
pub(super) struct States {
    /// Bytes of memory beside the plan's: with the arena's, rounded up, the model's.
    pub(super) memory_bytes: u64,
    /// Fields of `Model` for shapes that change.
    pub(super) fields: TokenStream,
    /// Their values at the start.
    pub(super) init: TokenStream,
    /// The call that gives the instance its states.
    pub(super) attach: TokenStream,
    /// Statements after a run: the shapes that the states have now.
    pub(super) after: TokenStream,
    /// Statements before a raw run: the states from the raw inputs.
    pub(super) raw: TokenStream,
    /// Further items: the table, `States`, and how to set it.
    pub(super) items: TokenStream,
}

fn usize_literal(n: u64) -> Literal {
    Literal::u64_unsuffixed(n)
}

/// Room between rows as an expression of the module's.
pub(super) fn reserved(room: Reserved) -> TokenStream {
    let (axis, rows) = (Literal::usize_unsuffixed(room.axis), Literal::usize_unsuffixed(room.rows));
    quote!(rt::reserved(#axis, #rows))
}

fn most(dims: &[Dim]) -> Vec<Literal> {
    dims.iter().map(|d| usize_literal(d.upper().and_then(|u| u64::try_from(u).ok()).unwrap_or(0))).collect()
}

impl States {
    /// The code for a program's states.
    pub(super) fn of(program: &Program, extents: &Extents) -> Result<Self, CompileError> {
        let mut out = Self::default();
        if program.states.is_empty() {
            return Ok(out);
        }
        let planned = program.arena.bytes.next_multiple_of(ALIGN as u64);
        let (names, output_names) = (idents(&program.inputs), idents(&program.outputs));
        let (mut table, mut fields, mut sets, mut resets) = Default::default();
        for (k, state) in program.states.iter().enumerate() {
            out.memory_bytes += state.memory_bytes();
            let (port, output) = (&program.inputs[state.input_idx], &program.outputs[state.output_idx]);
            let (name, ty) = (&names[state.input_idx], element(port.ty.dtype)?);
            let (input, output_region) = (2 + state.input_idx, 2 + program.inputs.len() + k);
            let (input, output_region) = (Literal::usize_unsuffixed(input), Literal::usize_unsuffixed(output_region));
            let (bytes, in_place) = (usize_literal(state.bytes), state.held.is_some());
            let extend = |tokens: &mut TokenStream, more| tokens.extend::<TokenStream>(more);
            extend(
                &mut table,
                quote! {
                    rt::StateInfo { input: #input, output: #output_region, bytes: #bytes, in_place: #in_place },
                },
            );
            let (idx, at) = (Literal::usize_unsuffixed(state.input_idx), Literal::usize_unsuffixed(k));
            let doc = format!(
                " {}: `{}`; after a run what `{}` was.",
                doc_code(&port.name),
                port.ty,
                output_names[state.output_idx]
            );
            if is_fixed(port) {
                let n = usize_literal(port.ty.numel().as_const().and_then(|n| u64::try_from(n).ok()).unwrap_or(0));
                let size = usize_literal(port.ty.bytes().as_const().and_then(|n| u64::try_from(n).ok()).unwrap_or(0));
                extend(&mut fields, quote! { #[doc = #doc] pub #name: &'a [#ty; #n], });
                extend(&mut sets, quote! { self.rt.set_state(#at, rt::bytes_of(states.#name))?; });
                out.raw.extend(quote! { self.rt.set_state(#at, rt::raw_input(inputs, #idx, #size)?)?; });
                continue;
            }
            let (rank, shape) = (Literal::usize_unsuffixed(port.ty.rank()), format_ident!("shape_of_{name}"));
            let size = Literal::usize_unsuffixed(port.ty.dtype.size_bytes());
            let most = most(&port.ty.shape);
            let least = port.ty.shape.iter().map(|d| usize_literal(u64::try_from(d.lower()).unwrap_or(0)));
            let least = quote! { [#(#least),*] };
            out.fields.extend(quote! { #shape: [usize; #rank], });
            out.init.extend(quote! { #shape: #least, });
            extend(&mut resets, quote! { self.#shape = #least; });
            extend(&mut fields, quote! { #[doc = #doc] pub #name: rt::TensorView<'a, #ty, #rank>, });
            let set = |bytes: TokenStream, shape: TokenStream| match state.reserved() {
                Some(room) => {
                    let room = reserved(room);
                    quote! { self.rt.set_reserved(#at, #bytes, (#room, &#shape, #size))?; }
                }
                None => quote! { self.rt.set_state(#at, #bytes)?; },
            };
            let typed = set(quote!(rt::state_bytes(&states.#name, #idx)?), quote!(states.#name.shape));
            let raw = set(quote!(rt::raw_view(inputs, #idx, #size)?), quote!(self.#shape));
            extend(
                &mut sets,
                quote! {
                    self.#shape = rt::within(states.#name.shape, #idx, [#(#most),*])?;
                    #typed
                },
            );
            out.raw.extend(quote! {
                self.#shape = rt::raw_state_shape(inputs, #idx, [#(#most),*])?;
                #raw
            });
            let now = output.ty.shape.iter().map(|d| extents.number(d)).collect::<Result<Vec<_>, _>>()?;
            out.after.extend(quote! { self.#shape = [#(#now),*]; });
        }
        let start = usize_literal(planned);
        out.attach = quote! { .with_states(#start, STATES) };
        out.items = quote! {
            static STATES: &[rt::StateInfo] = &[#table];

            /// What the model keeps from run to run.
            #[derive(Clone, Copy, Debug)]
            pub struct States<'a> {
                #fields
            }

            impl Model<'_> {
                /// Replaces what the next run starts from.
                pub fn set_states(&mut self, states: States<'_>) -> Result<(), rt::Error> {
                    #sets
                    Ok(())
                }

                /// Begins anew: all states zero, extents that change as small as they can be.
                pub fn reset(&mut self) {
                    self.rt.clear_states();
                    #resets
                }
            }
        };
        Ok(out)
    }
}
