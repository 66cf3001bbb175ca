//! The steps: one static descriptor a call, functions of at most 64 calls each, node names beside the calls.

use super::broken;
use super::dims::Extents;
use super::names::printable;
use crate::ep::npu::expand::Lane;
use crate::error::CompileError;
use crate::ir::Dim;
use crate::lower::control::Flow;
use crate::lower::{Call, FieldText};
use crate::program::{ARENA, Program, WEIGHTS};
use kiln_kernels::Operand;
use proc_macro2::{Ident, Literal, TokenStream};
use quote::{format_ident, quote};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt::Write;
use std::str::FromStr;

/// Calls per function: keeps each function small enough that rustc stays linear.
pub(super) const CHUNK: usize = 64;
/// Marks a line that becomes a comment.
const MARK: &str = "__note!";

/// Number of step functions. With a device there is no thread that could run everything: stream 0 is the CPU's part.
pub(super) fn n_chunks(program: &Program) -> usize {
    if program.device.is_some() { 0 } else { program.steps.len().div_ceil(CHUNK) }
}

/// A call to emit: of the program, or of a body.
struct Line<'p> {
    call: &'p dyn Call,
    node: &'p str,
    note: &'p str,
    /// Its number: calls are numbered through, those of a body after their head.
    number: usize,
}

/// Which call's static each call uses: calls with equal descriptors share the first one's.
pub(super) struct Statics {
    first: HashMap<usize, usize>,
}

impl Statics {
    /// Over all calls of the program and of its bodies.
    pub(super) fn of(program: &Program) -> Self {
        fn visit(lines: &[Line<'_>], known: &mut HashMap<String, usize>, first: &mut HashMap<usize, usize>) {
            for line in lines {
                let head = line.head();
                if !is_dynamic(head) {
                    let number =
                        *known.entry(format!("{} {}", head.descriptor(), fields_text(head))).or_insert(line.number);
                    first.insert(line.number, number);
                }
                bodies(line).iter().for_each(|(_, body)| visit(body, known, first));
            }
        }
        let mut first = HashMap::new();
        // A device's calls have statics of their own.
        if program.device.is_none() {
            visit(&lines(program), &mut HashMap::new(), &mut first);
        }
        Self { first }
    }

    /// The number that a call's static is named by.
    fn number(&self, line: &Line<'_>) -> usize {
        self.first.get(&line.number).copied().unwrap_or(line.number)
    }
}

/// All fields of a descriptor, equal for equal ones.
fn fields_text(call: &dyn Call) -> String {
    let mut text = String::new();
    call.fields(&mut |_, field| {
        let _ = match field {
            FieldText::Operand(o) => write!(text, "{o:?};"),
            FieldText::OptOperand(o) => write!(text, "{o:?};"),
            FieldText::Num(n) => write!(text, "{n};"),
            FieldText::Nums(n) => write!(text, "{n:?};"),
            FieldText::Param(p) => write!(text, "{p};"),
        };
    });
    text
}

/// How many numbers a call takes.
fn n_numbers(call: &dyn Call) -> usize {
    let bodies = call.control().map(|c| c.bodies.iter().flatten().map(|s| n_numbers(s.call.as_ref())).sum::<usize>());
    1 + bodies.unwrap_or(0)
}

fn numbered<'p>(
    calls: impl Iterator<Item = (&'p dyn Call, &'p str, &'p str)>,
    mut number: usize,
) -> (Vec<Line<'p>>, usize) {
    let mut lines = Vec::new();
    for (call, node, note) in calls {
        lines.push(Line { call, node, note, number });
        number += n_numbers(call);
    }
    (lines, number)
}

fn lines(program: &Program) -> Vec<Line<'_>> {
    let calls = program.steps.iter().map(|s| (s.call.as_ref(), s.node.as_str(), s.note.as_str()));
    numbered(calls, 0).0
}

/// The bodies of a control-flow call, in order, with their names.
fn bodies<'p>(line: &Line<'p>) -> Vec<(String, Vec<Line<'p>>)> {
    let Some(control) = line.call.control() else { return Vec::new() };
    let mut number = line.number + 1;
    let mut out = Vec::new();
    for (i, body) in control.bodies.iter().enumerate() {
        let calls = body.iter().map(|s| (s.call.as_ref(), s.node.as_str(), s.note.as_str()));
        let (lines, next) = numbered(calls, number);
        number = next;
        let what = match (control.flow, i) {
            (Flow::Loop { .. }, _) => "loop",
            (Flow::If { .. }, 0) => "then",
            (Flow::If { .. }, _) => "else",
        };
        out.push((format!("{what}_{}", line.number), lines));
    }
    out
}

/// For each call of the program and of its bodies its number and node, rising.
pub(super) fn nodes(program: &Program) -> Vec<(usize, &str)> {
    fn visit<'p>(lines: &[Line<'p>], around: &'p str, out: &mut Vec<(usize, &'p str)>) {
        for line in lines {
            // What carries states or hands results out belongs to the node around it.
            let node = if line.node.is_empty() { around } else { line.node };
            out.push((line.number, node));
            bodies(line).iter().for_each(|(_, body)| visit(body, node, out));
        }
    }
    let mut out = Vec::new();
    visit(&lines(program), "", &mut out);
    out
}

/// All step functions, each handed over with its statics.
pub(super) fn items(
    program: &Program,
    extents: &Extents,
    shared: &Statics,
    out: &mut dyn FnMut(TokenStream) -> Result<(), CompileError>,
) -> Result<(), CompileError> {
    let Some(device) = &program.device else {
        return functions(Some("steps"), &lines(program), extents, shared, out);
    };
    let lanes = lines(program).into_iter().zip(&device.lanes);
    let on_host: Vec<_> = lanes.filter(|(_, lane)| **lane == Lane::Host).map(|(line, _)| line).collect();
    functions(None, &on_host, extents, shared, out)
}

/// The number of each step of the program.
pub(super) fn numbers(program: &Program) -> Vec<usize> {
    lines(program).iter().map(|l| l.number).collect()
}

/// The functions of one list of calls (without a name for them only the statics), and then those of the bodies in it.
fn functions(
    prefix: Option<&str>,
    lines: &[Line<'_>],
    extents: &Extents,
    shared: &Statics,
    out: &mut dyn FnMut(TokenStream) -> Result<(), CompileError>,
) -> Result<(), CompileError> {
    let mut last_node = None;
    for (chunk, lines) in lines.chunks(CHUNK).enumerate() {
        let mut statics = TokenStream::new();
        let mut calls = TokenStream::new();
        let read = |slot: Literal| quote!(cx.extent(#slot));
        let (first, after) = extent_reads(lines, extents);
        calls.extend(extents.lets(&first, &read));
        for (line, after) in lines.iter().zip(&after) {
            let head = line.head();
            let named = |e: CompileError| e.at_node(line.node, "");
            if !is_dynamic(head) && shared.number(line) == line.number {
                let value = descriptor(head, extents).map_err(named)?;
                let (name, ty) = (line.static_name(line.number), format_ident!("{}", head.descriptor()));
                statics.extend(quote! { static #name: k::#ty = #value.checked(&REGION_BYTES); });
            }
            if last_node != Some((line.node, line.note)) {
                let note = printable(&if line.node.is_empty() {
                    line.note.to_owned()
                } else {
                    format!("{}: {}", line.node, line.note)
                });
                calls.extend(quote! { __note!(#note); });
                last_node = Some((line.node, line.note));
            }
            let statement = line.statement(extents, shared).map_err(named)?;
            calls.extend(quote! { #statement; });
            calls.extend(extents.lets(after, &read));
        }
        let function = prefix.map(|prefix| format_ident!("{prefix}_{chunk}"));
        let function = function.map(|name| quote! { fn #name(cx: &k::Cx<'_>) { #calls } });
        out(quote! { #function #statics })?;
    }
    for (prefix, body) in lines.iter().flat_map(bodies) {
        functions(Some(&prefix), &body, extents, shared, out)?;
    }
    Ok(())
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
fn extent_reads(lines: &[Line<'_>], extents: &Extents) -> (BTreeSet<usize>, Vec<BTreeSet<usize>>) {
    let used: Vec<_> = lines.iter().map(|l| slots_of(l.head(), extents)).collect();
    let mut first = BTreeSet::new();
    let mut after = vec![BTreeSet::new(); lines.len()];
    let mut found_at: BTreeMap<usize, usize> = BTreeMap::new();
    for (i, line) in lines.iter().enumerate() {
        for &slot in &used[i] {
            match found_at.get(&slot) {
                Some(&finder) => after[finder].insert(slot),
                None => first.insert(slot),
            };
        }
        found_at.extend(line.call.found().into_iter().filter(|s| extents.is_found(*s)).map(|slot| (slot, i)));
    }
    (first, after)
}

impl Line<'_> {
    /// The call itself, or the head of control flow.
    fn head(&self) -> &dyn Call {
        self.call.control().map_or(self.call, |c| c.head.as_ref())
    }

    fn static_name(&self, number: usize) -> Ident {
        format_ident!("{}_{number}", shouting(self.head().descriptor()))
    }

    /// The statement, with the descriptor's value where it is no static.
    fn statement(&self, extents: &Extents, shared: &Statics) -> Result<TokenStream, CompileError> {
        let at = Literal::usize_unsuffixed(self.number);
        let descriptor = if is_dynamic(self.head()) {
            descriptor(self.head(), extents)?
        } else {
            let name = self.static_name(shared.number(self));
            quote!(#name)
        };
        let Some(control) = self.call.control() else {
            let entry = format_ident!("{}", self.call.entry());
            return Ok(quote! { k::#entry(cx.at(#at), &#descriptor) });
        };
        let calls = |(name, lines): &(String, Vec<Line<'_>>)| {
            let functions = (0..lines.len().div_ceil(CHUNK)).map(|i| format_ident!("{name}_{i}"));
            quote! { #(#functions(cx);)* }
        };
        let blocks: Vec<_> = bodies(self).iter().map(calls).collect();
        Ok(match (control.flow, &blocks[..]) {
            (Flow::If { .. }, [then, other]) if other.is_empty() => {
                quote! { if k::if_holds(cx.at(#at), &#descriptor) { #then } }
            }
            (Flow::If { .. }, [then, other]) => {
                quote! { if k::if_holds(cx.at(#at), &#descriptor) { #then } else { #other } }
            }
            _ => quote! { while k::loop_again(cx.at(#at), &#descriptor) { #(#blocks)* } },
        })
    }
}

/// Every step as an expression over `cx`.
pub(super) fn calls(program: &Program, extents: &Extents, shared: &Statics) -> Result<Vec<TokenStream>, CompileError> {
    let mut out = Vec::with_capacity(program.steps.len());
    for line in lines(program) {
        let lets = extents.lets(&slots_of(line.head(), extents), &|slot| quote!(cx.extent(#slot)));
        let statement = line.statement(extents, shared)?;
        let plain = lets.is_empty() && line.call.control().is_none();
        out.push(if plain { statement } else { quote!({ #lets #statement }) });
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
