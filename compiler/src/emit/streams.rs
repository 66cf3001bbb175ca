//! One function per stream: its calls in order, where it waits for others, and where it tells them how far it is.
//!
//! The descriptors are those of the list of steps ([`super::steps`]), which runs all streams merged where there are no
//! threads. A wait that finds the run failed ends the stream early.

use super::dims::Extents;
use super::names::printable;
use super::steps::{CHUNK, Statics, calls};
use crate::error::CompileError;
use crate::program::Program;
use crate::schedule::StreamStep;
use proc_macro2::{Literal, TokenStream};
use quote::{format_ident, quote};

/// The functions and their table, as visible as asked; nothing for one stream.
pub(super) fn items(
    program: &Program,
    extents: &Extents,
    shared: &Statics,
    vis: &TokenStream,
) -> Result<TokenStream, CompileError> {
    let streams = &program.schedule.streams;
    if streams.len() < 2 {
        return Ok(TokenStream::new());
    }
    let calls = calls(program, extents, shared)?;
    let signals = program.schedule.signals();
    let mut out = TokenStream::new();
    // A device's engines have queues of commands instead.
    let n_functions = if program.device.is_some() { 1 } else { streams.len() };
    for (s, steps) in streams.iter().enumerate().take(n_functions) {
        let mut done = 0;
        let (mut chunks, mut last_node) = (Vec::new(), None);
        for steps in steps.chunks(CHUNK) {
            let mut body = TokenStream::new();
            for step in steps {
                match *step {
                    StreamStep::Wait { stream, count } => {
                        let (stream, count) = (Literal::usize_unsuffixed(stream), Literal::usize_unsuffixed(count));
                        body.extend(quote! { cx.wait(#stream, #count)?; });
                    }
                    StreamStep::Run(i) => {
                        let node = &program.steps[i].node;
                        if last_node != Some(node) {
                            let note = printable(node);
                            body.extend(quote! { __note!(#note); });
                            last_node = Some(node);
                        }
                        let call = &calls[i];
                        done += 1;
                        body.extend(quote! { #call; });
                        if signals[s].contains(&done) {
                            let count = Literal::usize_unsuffixed(done);
                            body.extend(quote! { cx.signal(#count); });
                        }
                    }
                }
            }
            chunks.push(body);
        }
        let names: Vec<_> = (0..chunks.len()).map(|c| format_ident!("stream_{s}_{c}")).collect();
        let name = format_ident!("stream_{s}");
        out.extend(quote! {
            fn #name(cx: &k::Cx<'_>) -> Option<()> { #(#names(cx)?;)* Some(()) }
            #(fn #names(cx: &k::Cx<'_>) -> Option<()> { #chunks Some(()) })*
        });
    }
    if program.device.is_some() {
        return Ok(out);
    }
    let names = (0..streams.len()).map(|s| format_ident!("stream_{s}"));
    Ok(quote! {
        /// What each thread runs; [`steps`] is all of it merged.
        #vis static STREAMS: &[rt::Stream] = &[#(#names),*];
        #out
    })
}
