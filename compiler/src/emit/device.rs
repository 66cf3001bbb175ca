//! A device's part of a module: a queue of commands for each of its engines, and what the device is like.
//!
//! Transfers are data; a kernel's launch is a function of its own, with the node's name in it, whose descriptor points into
//! the device's memory and is checked against its size. Waits and signals name events: of stream `s`, its first `n` steps
//! are event `BASES[s] + n`.

use super::broken;
use super::names::printable;
use super::steps::{descriptor, numbers};
use crate::emit::dims::Extents;
use crate::ep::npu::expand::Lane;
use crate::ep::npu::plan::{DevicePlan, Engine};
use crate::error::CompileError;
use crate::lower::FieldText;
use crate::program::Program;
use crate::schedule::StreamStep;
use kiln_kernels::Operand;
use proc_macro2::{Literal, TokenStream};
use quote::{format_ident, quote};

/// The items; nothing for a program without a device.
pub(super) fn items(program: &Program, extents: &Extents) -> Result<TokenStream, CompileError> {
    let Some(device) = &program.device else { return Ok(TokenStream::new()) };
    let (bases, numbers) = (bases(program), numbers(program));
    let signals = program.schedule.signals();
    let mut queues: Vec<Vec<TokenStream>> = vec![Vec::new(); 3];
    let mut launches = TokenStream::new();
    for (stream, steps) in program.schedule.streams.iter().enumerate().skip(1) {
        let mut done = 0;
        for step in steps {
            match *step {
                StreamStep::Wait { stream, count } => {
                    let event = Literal::usize_unsuffixed(bases[stream] + count);
                    queues[stream_queue(stream_of(steps, device))].push(quote! { npu::Command::Wait(#event) });
                }
                StreamStep::Run(i) => {
                    let queue = &mut queues[stream_queue(device.lanes[i])];
                    let at = Literal::usize_unsuffixed(numbers[i]);
                    if device.lanes[i] == Lane::Compute {
                        let (launch, function) = launch(program, device, i, &at, extents)?;
                        launches.extend(function);
                        queue.push(launch);
                    } else {
                        queue.push(transfer(program, device, i, &at)?);
                    }
                    done += 1;
                    if signals[stream].contains(&done) {
                        let event = Literal::usize_unsuffixed(bases[stream] + done);
                        queue.push(quote! { npu::Command::Signal(#event) });
                    }
                }
            }
        }
    }
    let n_events = Literal::usize_unsuffixed(n_events(program));
    let base = |s: usize| Literal::usize_unsuffixed(bases.get(s).copied().unwrap_or(0));
    let bases = (0..4).map(base);
    let counts = queues.iter().map(|q| Literal::usize_unsuffixed(q.len()));
    let names = ["NPU_LOAD", "NPU_COMPUTE", "NPU_STORE"].map(|n| format_ident!("{n}"));
    let bytes = Literal::u64_unsuffixed(device.capacity_bytes);
    let load = rate(device.load);
    let store = device.store.map_or_else(
        || quote!(None),
        |s| {
            let s = rate(s);
            quote!(Some(#s))
        },
    );
    Ok(quote! {
        use ::kiln::npu;

        static DEVICE_BYTES: [usize; 1] = [#bytes];
        /// The device beside the CPU.
        const NPU: npu::Config =
            npu::Config { sram_bytes: #bytes, load: #load, store: #store, n_events: #n_events, paced: true };
        static NPU_PROGRAM: npu::Program<'static> =
            ::kiln::npu_program!(#n_events, [#(&#names),*]).with_bases([#(#bases),*]);
        #(static #names: [npu::Command<'static>; #counts] = [#(#queues),*];)*
        #launches
    })
}

/// For each stream the event of its first 0 steps.
fn bases(program: &Program) -> Vec<usize> {
    let mut next = 0;
    let base = |steps: &Vec<StreamStep>| {
        let own = next;
        next += 1 + steps.iter().filter(|s| matches!(s, StreamStep::Run(_))).count();
        own
    };
    program.schedule.streams.iter().map(base).collect()
}

fn n_events(program: &Program) -> usize {
    program.steps.len() + program.schedule.streams.len()
}

/// The engine of a stream.
fn stream_of(steps: &[StreamStep], device: &DevicePlan) -> Lane {
    let run = steps.iter().find_map(|s| if let StreamStep::Run(i) = s { device.lanes.get(*i) } else { None });
    run.copied().unwrap_or(Lane::Compute)
}

/// The position of an engine's queue in a program of the device.
fn stream_queue(lane: Lane) -> usize {
    match lane {
        Lane::Host | Lane::Load => 0,
        Lane::Compute => 1,
        Lane::Store => 2,
    }
}

fn rate(engine: Engine) -> TokenStream {
    let Engine { bytes_per_s, latency_ns, handshake_ns } = engine;
    let [b, l, h] = [bytes_per_s, latency_ns, handshake_ns].map(Literal::u64_unsuffixed);
    quote! { npu::DmaRate { bytes_per_s: #b, latency_ns: #l, handshake_ns: #h } }
}

/// A launch, and the function that it names.
fn launch(
    program: &Program,
    device: &DevicePlan,
    i: usize,
    at: &Literal,
    extents: &Extents,
) -> Result<(TokenStream, TokenStream), CompileError> {
    let step = &program.steps[i];
    let mut call = step.call.boxed();
    call.relocate(&mut |o| o.mem = 0);
    let value = descriptor(&*call, extents).map_err(|e| e.at_node(&step.node, ""))?;
    let (ty, entry) = (format_ident!("{}", call.descriptor()), format_ident!("{}", call.entry()));
    let (name, function) = (format_ident!("NPU_CALL_{i}"), format_ident!("npu_call_{i}"));
    let ns = Literal::u64_unsuffixed(device.ns[i]);
    let note = printable(&format!("{}: {}", step.node, step.note));
    let function_item = quote! {
        static #name: k::#ty = #value.checked(&DEVICE_BYTES);
        fn #function(cx: &k::Cx<'_>) { __note!(#note); k::#entry(cx, &#name); }
    };
    Ok((quote! { npu::Command::Launch { step: #at, run: &#function, ns: #ns } }, function_item))
}

/// A transfer's command, from its call.
fn transfer(program: &Program, device: &DevicePlan, i: usize, at: &Literal) -> Result<TokenStream, CompileError> {
    let step = &program.steps[i];
    let (mut numbers, mut ends) = (std::collections::BTreeMap::new(), Vec::new());
    step.call.fields(&mut |name, field| match field {
        FieldText::Num(n) => _ = numbers.insert(name, n.as_const().and_then(|n| u64::try_from(n).ok())),
        FieldText::Operand(o) => ends.push((name, o.clone())),
        _ => {}
    });
    let missing = || broken("a transfer without its extents").at_node(&step.node, "");
    let number = |name: &str| numbers.get(name).copied().flatten().map(Literal::u64_unsuffixed).ok_or_else(missing);
    let place = |end: &str| -> Result<TokenStream, CompileError> {
        let (_, o): &(_, Operand<_>) = ends.iter().find(|(name, _)| *name == end).ok_or_else(missing)?;
        let (mem, off) = (Literal::u32_unsuffixed(o.mem), Literal::u64_unsuffixed(o.off));
        Ok(match Some(o.mem) == program.device_region() {
            true => quote! { npu::Place::Sram(#off) },
            false => quote! { npu::Place::Host { region: #mem, off: #off } },
        })
    };
    let (from, to, rows, row_bytes) = (place("x")?, place("y")?, number("rows")?, number("row_bytes")?);
    let (from_stride, to_stride, handshake) = (number("x_stride")?, number("y_stride")?, device.handshake[i]);
    Ok(quote! {
        npu::Command::Dma(npu::Dma {
            step: #at, from: #from, to: #to, rows: #rows, row_bytes: #row_bytes, from_stride: #from_stride,
            to_stride: #to_stride, handshake: #handshake
        })
    })
}
