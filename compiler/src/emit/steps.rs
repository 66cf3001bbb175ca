//! The steps: one static descriptor a call, functions of at most 64 calls each, node names beside the calls.

use super::broken;
use super::dims::expression;
use super::names::printable;
use crate::error::{CompileError, Stage};
use crate::ir::Dim;
use crate::lower::{Call, FieldText};
use crate::program::{ARENA, PlannedStep, Program, WEIGHTS};
use kiln_kernels::Operand;
use proc_macro2::{Ident, Literal, TokenStream};
use quote::{format_ident, quote};
use std::str::FromStr;

/// Calls per function: keeps each function small enough that rustc stays linear.
const CHUNK: usize = 64;
/// Marks a line that becomes a comment.
const MARK: &str = "__note!";

/// Number of step functions.
pub(super) fn n_chunks(program: &Program) -> usize {
    program.steps.len().div_ceil(CHUNK)
}

/// All step functions, each handed over with its statics.
pub(super) fn items(
    program: &Program,
    out: &mut dyn FnMut(TokenStream) -> Result<(), CompileError>,
) -> Result<(), CompileError> {
    let mut last_node = None;
    for (chunk, steps) in program.steps.chunks(CHUNK).enumerate() {
        let mut statics = TokenStream::new();
        let mut calls = TokenStream::new();
        for (i, step) in steps.iter().enumerate() {
            let idx = chunk * CHUNK + i;
            let name = static_name(step, idx);
            let ty = format_ident!("{}", step.call.descriptor());
            let value = descriptor(step.call.as_ref()).map_err(|e| e.at_node(&step.node, ""))?;
            statics.extend(quote! { static #name: k::#ty = #value.checked(&REGION_BYTES); });
            if last_node.as_ref() != Some(&(&step.node, &step.note)) {
                let note = printable(&format!("{}: {}", step.node, step.note));
                calls.extend(quote! { __note!(#note); });
                last_node = Some((&step.node, &step.note));
            }
            let call = call(step, idx);
            calls.extend(quote! { #call; });
        }
        let function = format_ident!("steps_{chunk}");
        out(quote! { fn #function(cx: &k::Cx<'_>) { #calls } #statics })?;
    }
    Ok(())
}

fn static_name(step: &PlannedStep, idx: usize) -> Ident {
    format_ident!("{}_{idx}", shouting(step.call.descriptor()))
}

fn call(step: &PlannedStep, idx: usize) -> TokenStream {
    let (entry, name) = (format_ident!("{}", step.call.entry()), static_name(step, idx));
    let at = Literal::usize_unsuffixed(idx);
    quote! { k::#entry(cx.at(#at), &#name) }
}

/// Every step as an expression over `cx`.
pub(super) fn calls(program: &Program) -> Vec<TokenStream> {
    program.steps.iter().enumerate().map(|(idx, step)| call(step, idx)).collect()
}

fn shouting(name: &str) -> String {
    let mut out = String::new();
    for (i, c) in name.chars().enumerate() {
        if i > 0 && c.is_ascii_uppercase() {
            out.push('_');
        }
        out.push(c.to_ascii_uppercase());
    }
    out
}

fn descriptor(call: &dyn Call) -> Result<TokenStream, CompileError> {
    let ty = format_ident!("{}", call.descriptor());
    let mut fields = TokenStream::new();
    let mut error = None;
    call.fields(&mut |name, field| {
        let name = format_ident!("{name}");
        match field_value(field) {
            Ok(value) => fields.extend(quote! { #name: #value, }),
            Err(e) => error = Some(e),
        }
    });
    match error {
        None => Ok(quote! { k::#ty { #fields } }),
        Some(e) => Err(e),
    }
}

fn number(dim: &Dim) -> Result<TokenStream, CompileError> {
    expression(dim).ok_or_else(|| CompileError::new(Stage::Emit, format!("the extent {dim} is not constant")))
}

fn operand(o: &Operand<Dim>) -> Result<TokenStream, CompileError> {
    let mem = match o.mem {
        ARENA => quote!(ARENA),
        WEIGHTS => quote!(WEIGHTS),
        m => {
            let m = Literal::u32_unsuffixed(m);
            quote!(#m)
        }
    };
    let off = Literal::u64_unsuffixed(o.off);
    let bytes = number(&o.bytes)?;
    Ok(quote! { k::Operand::at(#mem, #off, #bytes) })
}

fn field_value(field: FieldText<'_>) -> Result<TokenStream, CompileError> {
    Ok(match field {
        FieldText::Operand(o) => operand(o)?,
        FieldText::OptOperand(None) => quote!(None),
        FieldText::OptOperand(Some(o)) => {
            let o = operand(o)?;
            quote!(Some(#o))
        }
        FieldText::Num(n) => number(n)?,
        FieldText::Nums(ns) => {
            let ns = ns.iter().map(number).collect::<Result<Vec<_>, _>>()?;
            quote!([#(#ns),*])
        }
        FieldText::Param(text) => TokenStream::from_str(&text).map_err(|e| broken(&e.to_string()))?,
    })
}

/// Turns the marked statements of formatted source into comments.
pub(super) fn comments(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut lines = source.lines();
    while let Some(line) = lines.next() {
        let trimmed = line.trim_start();
        let Some(rest) = trimmed.strip_prefix(MARK) else {
            out.push_str(line);
            out.push('\n');
            continue;
        };
        // A long note is broken over lines by the formatter: join up to the closing parenthesis.
        let mut text = rest.to_owned();
        while !text.ends_with(");") {
            let Some(next) = lines.next() else { break };
            text.push_str(next.trim());
        }
        let literal =
            text.trim_start_matches('(').trim_end_matches(';').trim_end_matches(')').trim().trim_end_matches(',');
        let note = syn::parse_str::<syn::LitStr>(literal).map(|l| l.value()).unwrap_or_default();
        let indent = &line[..line.len() - trimmed.len()];
        out.push_str(indent);
        out.push_str("// ");
        out.push_str(&note);
        out.push('\n');
    }
    out
}
