//! The steps: one static descriptor a call, functions of at most 64 calls each, node names beside the calls.

use super::broken;
use super::dims::Extents;
use super::names::printable;
use crate::ep::npu::expand::Lane;
use crate::error::CompileError;
use crate::ir::Dim;
use crate::lower::{Call, FieldText};
use crate::program::{ARENA, PlannedStep, Program, WEIGHTS};
use kiln_kernels::Operand;
use proc_macro2::{Ident, Literal, TokenStream};
use quote::{format_ident, quote};
use std::collections::{BTreeMap, BTreeSet};
use std::str::FromStr;

/// Calls per function: keeps each function small enough that rustc stays linear.
pub(super) const CHUNK: usize = 64;
/// Marks a line that becomes a comment.
const MARK: &str = "__note!";

/// Number of step functions.
pub(super) fn n_chunks(program: &Program) -> usize {
    // With a device there is no thread that could run everything: stream 0 is the CPU's part.
    if program.device.is_some() { 0 } else { program.steps.len().div_ceil(CHUNK) }
}

/// All statics and step functions.
pub(super) fn items(program: &Program, extents: &Extents) -> Result<TokenStream, CompileError> {
    let mut out = TokenStream::new();
    let mut last_node = None;
    for (chunk, steps) in program.steps.chunks(CHUNK).enumerate() {
        let mut statics = TokenStream::new();
        let mut calls = TokenStream::new();
        let read = |slot: Literal| quote!(cx.extent(#slot));
        let (first, after) = extent_reads(steps, extents);
        calls.extend(extents.lets(&first, &read));
        for (i, step) in steps.iter().enumerate() {
            let idx = chunk * CHUNK + i;
            if program.device.as_ref().is_some_and(|d| d.lanes[idx] != Lane::Host) {
                continue;
            }
            let value = descriptor(step.call.as_ref(), extents).map_err(|e| e.at_node(&step.node, ""))?;
            if !is_dynamic(step.call.as_ref()) {
                let (name, ty) = (static_name(step, idx), format_ident!("{}", step.call.descriptor()));
                statics.extend(quote! { static #name: k::#ty = #value.checked(&REGION_BYTES); });
            }
            if last_node.as_ref() != Some(&(&step.node, &step.note)) {
                let note = printable(&format!("{}: {}", step.node, step.note));
                calls.extend(quote! { __note!(#note); });
                last_node = Some((&step.node, &step.note));
            }
            let call = call(step, idx, &value);
            calls.extend(quote! { #call; });
            calls.extend(extents.lets(&after[i], &read));
        }
        let function = format_ident!("steps_{chunk}");
        if n_chunks(program) > 0 {
            out.extend(quote! { fn #function(cx: &k::Cx<'_>) { #calls } });
        }
        out.extend(statics);
    }
    Ok(out)
}

/// Whether any extent of the call is known only at run time.
fn is_dynamic(call: &dyn Call) -> bool {
    let mut dynamic = false;
    call.dims(&mut |d| dynamic |= d.as_const().is_none());
    dynamic
}

/// The slots that a call's extents read.
fn slots_of(call: &dyn Call, extents: &Extents) -> BTreeSet<usize> {
    let mut slots = BTreeSet::new();
    call.dims(&mut |d| extents.slots_in(d, &mut slots));
    slots
}

/// Which extents a function reads at its start, and which after each of its steps, as soon as a kernel has found them.
fn extent_reads(steps: &[PlannedStep], extents: &Extents) -> (BTreeSet<usize>, Vec<BTreeSet<usize>>) {
    let used: Vec<_> = steps.iter().map(|s| slots_of(s.call.as_ref(), extents)).collect();
    let mut first = BTreeSet::new();
    let mut after = vec![BTreeSet::new(); steps.len()];
    let mut found_at: BTreeMap<usize, usize> = BTreeMap::new();
    for (i, step) in steps.iter().enumerate() {
        for &slot in &used[i] {
            match found_at.get(&slot) {
                Some(&finder) => after[finder].insert(slot),
                None => first.insert(slot),
            };
        }
        found_at.extend(step.call.found().into_iter().filter(|s| extents.is_found(*s)).map(|slot| (slot, i)));
    }
    (first, after)
}

pub(super) fn static_name(step: &PlannedStep, idx: usize) -> Ident {
    format_ident!("{}_{idx}", shouting(step.call.descriptor()))
}

fn call(step: &PlannedStep, idx: usize, value: &TokenStream) -> TokenStream {
    let entry = format_ident!("{}", step.call.entry());
    let at = Literal::usize_unsuffixed(idx);
    if is_dynamic(step.call.as_ref()) {
        return quote! { k::#entry(cx.at(#at), &#value) };
    }
    let name = static_name(step, idx);
    quote! { k::#entry(cx.at(#at), &#name) }
}

/// Every step as an expression over `cx`.
pub(super) fn calls(program: &Program, extents: &Extents) -> Result<Vec<TokenStream>, CompileError> {
    let mut out = Vec::with_capacity(program.steps.len());
    for (idx, step) in program.steps.iter().enumerate() {
        let value = descriptor(step.call.as_ref(), extents)?;
        let lets = extents.lets(&slots_of(step.call.as_ref(), extents), &|slot| quote!(cx.extent(#slot)));
        let call = call(step, idx, &value);
        out.push(if lets.is_empty() { call } else { quote!({ #lets #call }) });
    }
    Ok(out)
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

pub(super) fn descriptor(call: &dyn Call, extents: &Extents) -> Result<TokenStream, CompileError> {
    let ty = format_ident!("{}", call.descriptor());
    let mut fields = TokenStream::new();
    let mut error = None;
    call.fields(&mut |name, field| {
        let name = format_ident!("{name}");
        match field_value(field, extents) {
            Ok(value) => fields.extend(quote! { #name: #value, }),
            Err(e) => error = Some(e),
        }
    });
    match error {
        None => Ok(quote! { k::#ty { #fields } }),
        Some(e) => Err(e),
    }
}

fn operand(o: &Operand<Dim>, extents: &Extents) -> Result<TokenStream, CompileError> {
    let mem = match o.mem {
        ARENA => quote!(ARENA),
        WEIGHTS => quote!(WEIGHTS),
        m => {
            let m = Literal::u32_unsuffixed(m);
            quote!(#m)
        }
    };
    let off = Literal::u64_unsuffixed(o.off);
    let bytes = extents.number(&o.bytes)?;
    Ok(quote! { k::Operand::at(#mem, #off, #bytes) })
}

fn field_value(field: FieldText<'_>, extents: &Extents) -> Result<TokenStream, CompileError> {
    Ok(match field {
        FieldText::Operand(o) => operand(o, extents)?,
        FieldText::OptOperand(None) => quote!(None),
        FieldText::OptOperand(Some(o)) => {
            let o = operand(o, extents)?;
            quote!(Some(#o))
        }
        FieldText::Num(n) => extents.number(n)?,
        FieldText::Nums(ns) => {
            let ns = ns.iter().map(|n| extents.number(n)).collect::<Result<Vec<_>, _>>()?;
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
