//! A module's border: the types of its inputs and outputs, the checks of what comes in, the places of what goes out.

use super::dims::Extents;
use super::names::{doc_code, unique_idents};
use super::narrow;
use super::states::reserved;
use crate::error::{CompileError, Stage};
use crate::ir::{Dim, SymbolSource};
use crate::program::{Port, Program};
use kiln_kernels::Dtype;
use proc_macro2::{Ident, Literal, TokenStream};
use quote::{format_ident, quote};
use std::collections::BTreeSet;

/// The pieces of code at the border.
pub(super) struct Border {
    /// Fields of `Inputs`.
    pub(super) input_fields: TokenStream,
    /// The inputs as regions, from `inputs: Inputs`.
    pub(super) regions: TokenStream,
    /// The inputs as regions, from `inputs: &[RawInput]`.
    pub(super) raw_regions: TokenStream,
    /// Sizes of the inputs' regions in bytes, the greatest ones.
    pub(super) region_bytes: Vec<TokenStream>,
    /// References to the inputs that are objects, from `inputs: Inputs`.
    pub(super) given: TokenStream,
    /// `let` statements that make these objects from `inputs: &[RawInput]`, and references to them.
    pub(super) raw_given: (TokenStream, TokenStream),
    /// Fields of `Outputs`.
    pub(super) output_fields: TokenStream,
    /// Values of these fields.
    pub(super) output_values: TokenStream,
    /// Calls that hand each output over as bytes.
    pub(super) raw_outputs: TokenStream,
    /// `let` statements for the extents of outputs.
    pub(super) output_lets: TokenStream,
    /// Statement that makes `extents` from `inputs: Inputs`, and the expression to pass on.
    pub(super) extents: (TokenStream, TokenStream),
    /// The same from `inputs: &[RawInput]`.
    pub(super) raw_extents: TokenStream,
    /// The function both call, if inputs have extents known only at run time.
    pub(super) bind: TokenStream,
}

/// The Rust type of an element at the module's border.
pub(super) fn element(dtype: Dtype) -> Result<TokenStream, CompileError> {
    Ok(match dtype {
        Dtype::F32 => quote!(f32),
        Dtype::F64 => quote!(f64),
        Dtype::C64 => quote!([f32; 2]),
        Dtype::C128 => quote!([f64; 2]),
        Dtype::I8 | Dtype::I4 | Dtype::I2 => quote!(i8),
        Dtype::I16 => quote!(i16),
        Dtype::I32 => quote!(i32),
        Dtype::I64 => quote!(i64),
        Dtype::U16 => quote!(u16),
        Dtype::U32 => quote!(u32),
        Dtype::U64 => quote!(u64),
        Dtype::Bool => quote!(bool),
        Dtype::F16 | Dtype::Bf16 => quote!(u16),
        d if d.size_bytes() == 1 => quote!(u8),
        d => return Err(CompileError::new(Stage::Emit, format!("{d} cannot stand at a model's border yet"))),
    })
}

pub(super) fn is_fixed(port: &Port) -> bool {
    port.ty.const_dims().is_some()
}

/// Elements of the port, at most.
fn most(port: &Port) -> Result<usize, CompileError> {
    let n = port.ty.numel().upper().and_then(|n| usize::try_from(n).ok());
    n.ok_or_else(|| CompileError::new(Stage::Emit, format!("the size of \"{}\", {}, has no bound", port.name, port.ty)))
}

/// A slice of `PortInfo`.
pub(super) fn infos(ports: &[Port]) -> Result<TokenStream, CompileError> {
    let mut out = TokenStream::new();
    for p in ports {
        if p.object.is_some() {
            let (name, ty) = (&p.name, p.ty_text());
            out.extend(quote! { rt::PortInfo { name: #name, dtype: #ty, dims: &[] }, });
            continue;
        }
        let (name, dtype) = (&p.name, p.ty.dtype.to_string());
        let mut dims = Vec::new();
        for d in &p.ty.shape {
            let most = d.upper().and_then(|d| usize::try_from(d).ok());
            let most = most
                .ok_or_else(|| CompileError::new(Stage::Emit, format!("the extent {d} of \"{name}\" has no bound")))?;
            dims.push(Literal::usize_unsuffixed(most));
        }
        out.extend(quote! { rt::PortInfo { name: #name, dtype: #dtype, dims: &[#(#dims),*] }, });
    }
    Ok(out)
}

pub(super) fn idents(ports: &[Port]) -> Vec<Ident> {
    unique_idents(ports.iter().map(|p| p.name.as_str())).iter().map(|n| format_ident!("{n}")).collect()
}

impl Border {
    /// The border of a program.
    pub(super) fn of(program: &Program, extents: &Extents) -> Result<Self, CompileError> {
        let mut border = Self {
            input_fields: TokenStream::new(),
            regions: TokenStream::new(),
            raw_regions: TokenStream::new(),
            region_bytes: Vec::new(),
            given: TokenStream::new(),
            raw_given: Default::default(),
            output_fields: TokenStream::new(),
            output_values: TokenStream::new(),
            raw_outputs: TokenStream::new(),
            output_lets: TokenStream::new(),
            extents: (TokenStream::new(), quote!(&[])),
            raw_extents: TokenStream::new(),
            bind: TokenStream::new(),
        };
        border.inputs(program)?;
        border.outputs(program, extents)?;
        border.bindings(program, extents)?;
        Ok(border)
    }

    fn inputs(&mut self, program: &Program) -> Result<(), CompileError> {
        for (i, (p, ident)) in program.inputs.iter().zip(idents(&program.inputs)).enumerate() {
            if p.object.is_some() {
                self.object_input(p, i, &ident);
                continue;
            }
            let (ty, size, n) = (element(p.ty.dtype)?, p.ty.dtype.size_bytes(), most(p)?);
            let bytes = Literal::usize_unsuffixed(n * size);
            self.region_bytes.push(quote!(#bytes));
            let doc = format!(" {}: `{}`.", doc_code(&p.name), p.ty);
            let idx = Literal::usize_unsuffixed(i);
            if let Some(state) = program.states.iter().find(|s| s.input_idx == i) {
                // The instance puts its own memory here, or has it as the output's.
                let bytes = Literal::u64_unsuffixed(if state.held.is_some() { 0 } else { state.bytes });
                self.region_bytes.pop();
                self.region_bytes.push(quote!(#bytes));
                self.regions.extend(quote! { rt::Region::read(&[]), });
                self.raw_regions.extend(quote! { rt::Region::read(&[]), });
            } else if is_fixed(p) {
                let n = Literal::usize_unsuffixed(n);
                self.input_fields.extend(quote! { #[doc = #doc] pub #ident: &'a [#ty; #n], });
                self.regions.extend(quote! { rt::Region::read(rt::bytes_of(inputs.#ident)), });
                self.raw_regions.extend(quote! { rt::Region::read(rt::raw_input(inputs, #idx, #bytes)?), });
            } else {
                let (rank, size) = (Literal::usize_unsuffixed(p.ty.rank()), Literal::usize_unsuffixed(size));
                self.input_fields.extend(quote! { #[doc = #doc] pub #ident: rt::TensorView<'a, #ty, #rank>, });
                self.regions.extend(quote! { rt::view(&inputs.#ident, #idx)?, });
                self.raw_regions.extend(quote! { rt::Region::read(rt::raw_view(inputs, #idx, #size)?), });
            }
        }
        for state in &program.states {
            let bytes = Literal::u64_unsuffixed(state.bytes);
            self.region_bytes.push(quote!(#bytes));
            self.regions.extend(quote! { rt::Region::read(&[]), });
            self.raw_regions.extend(quote! { rt::Region::read(&[]), });
        }
        Ok(())
    }

    /// An input that is an object: its region is empty.
    fn object_input(&mut self, p: &Port, i: usize, ident: &Ident) {
        let doc = format!(" {}: `{}`.", doc_code(&p.name), p.ty_text());
        let (idx, local) = (Literal::usize_unsuffixed(i), format_ident!("object_{i}"));
        self.region_bytes.push(quote!(0));
        self.input_fields.extend(quote! { #[doc = #doc] pub #ident: &'a ::kiln::Value, });
        self.regions.extend(quote! { rt::Region::read(&[]), });
        self.raw_regions.extend(quote! { rt::Region::read(&[]), });
        let dims = p.object.as_ref().and_then(|o| o.ty.tensor()).and_then(crate::ir::TensorType::const_dims);
        let checked = |value: TokenStream| match &dims {
            Some(dims) => {
                let dims = dims.iter().map(|&d| Literal::usize_unsuffixed(d));
                quote! { rt::strings(#value, #idx, &[#(#dims),*])?, }
            }
            None => quote! { #value, },
        };
        self.given.extend(checked(quote!(inputs.#ident)));
        self.raw_given.0.extend(quote! { let #local = rt::raw_object(inputs, #idx)?; });
        self.raw_given.1.extend(checked(quote!(&#local)));
    }

    fn outputs(&mut self, program: &Program, extents: &Extents) -> Result<(), CompileError> {
        let mut slots = BTreeSet::new();
        let n_given = program.n_given();
        for (i, (p, ident)) in program.outputs.iter().zip(idents(&program.outputs)).enumerate() {
            if let Some(o) = &p.object {
                let doc = format!(" {}: `{}`.", doc_code(&p.name), p.ty_text());
                let own = Literal::usize_unsuffixed(o.slot.saturating_sub(n_given));
                self.output_fields.extend(quote! { #[doc = #doc] pub #ident: &'m ::kiln::Value, });
                self.output_values.extend(quote! { #ident: self.rt.object(#own)?, });
                self.raw_outputs.extend(quote! {
                    each(&self.rt.object(#own)?.encoded().ok_or(rt::Error::Output)?, &[]);
                });
                continue;
            }
            let ty = element(p.ty.dtype)?;
            let state = program.states.iter().position(|s| s.output_idx == i);
            let off = match state {
                Some(k) => {
                    let k = Literal::usize_unsuffixed(k);
                    quote!(self.rt.state(#k))
                }
                None => narrow::offset(program, i, p.off),
            };
            let doc = format!(" {}: `{}`.", doc_code(&p.name), p.ty);
            let dims = p.ty.shape.iter().map(|d| extents.number(d)).collect::<Result<Vec<_>, _>>()?;
            if is_fixed(p) {
                let n = Literal::usize_unsuffixed(most(p)?);
                let bytes = Literal::usize_unsuffixed(most(p)? * p.ty.dtype.size_bytes());
                self.output_fields.extend(quote! { #[doc = #doc] pub #ident: &'m [#ty; #n], });
                self.output_values.extend(quote! { #ident: self.rt.output::<#ty, #n>(#off)?, });
                self.raw_outputs.extend(quote! { each(self.rt.raw_output(#off, #bytes)?, &[#(#dims),*]); });
            } else if let Some(room) = state.and_then(|k| program.states[k].reserved()) {
                p.ty.shape.iter().for_each(|d| extents.slots_in(d, &mut slots));
                let lines: Dim = p.ty.shape[..room.axis].iter().cloned().product();
                let row: Dim = p.ty.shape[room.axis + 1..].iter().cloned().product();
                let all = lines * Dim::from(room.rows) * row;
                let size = p.ty.dtype.size_bytes();
                let (n, bytes) = (extents.number(&all)?, extents.number(&(all * Dim::from(size)))?);
                let (rank, room) = (Literal::usize_unsuffixed(p.ty.rank()), reserved(room));
                let size = Literal::usize_unsuffixed(size);
                self.output_fields.extend(quote! { #[doc = #doc] pub #ident: rt::ReservedView<'m, #ty, #rank>, });
                self.output_values.extend(quote! {
                    #ident: rt::ReservedView::new(self.rt.output_slice::<#ty>(#off, #n)?, [#(#dims),*], #room),
                });
                self.raw_outputs.extend(quote! {{
                    let shape = [#(#dims),*];
                    each(&rt::gathered(self.rt.raw_output(#off, #bytes)?, (#room, &shape, #size))?, &shape);
                }});
            } else {
                p.ty.shape.iter().for_each(|d| extents.slots_in(d, &mut slots));
                let (n, bytes) = (extents.number(&p.ty.numel())?, extents.number(&p.ty.bytes())?);
                let rank = Literal::usize_unsuffixed(p.ty.rank());
                self.output_fields.extend(quote! { #[doc = #doc] pub #ident: rt::TensorView<'m, #ty, #rank>, });
                self.output_values.extend(quote! {
                    #ident: rt::TensorView::new(self.rt.output_slice::<#ty>(#off, #n)?, [#(#dims),*]),
                });
                self.raw_outputs.extend(quote! { each(self.rt.raw_output(#off, #bytes)?, &[#(#dims),*]); });
            }
        }
        self.output_lets = extents.lets(&slots, &|slot| quote!(rt::extent(&extents, #slot)));
        Ok(())
    }

    /// The function that takes extents from the inputs' shapes.
    fn bindings(&mut self, program: &Program, extents: &Extents) -> Result<(), CompileError> {
        if program.n_slots == 0 {
            return Ok(());
        }
        let n_slots = Literal::usize_unsuffixed(program.n_slots);
        self.extents.1 = quote!(&extents);
        if program.inputs.iter().all(is_fixed) {
            self.extents.0 = quote! { let extents = rt::extents::<#n_slots>(); };
            self.raw_extents = self.extents.0.clone();
            return Ok(());
        }
        let (mut binds, mut checks) = (TokenStream::new(), TokenStream::new());
        let mut read = BTreeSet::new();
        for (i, p) in program.inputs.iter().enumerate().filter(|(_, p)| !is_fixed(p)) {
            let input = Literal::usize_unsuffixed(i);
            let rank = Literal::usize_unsuffixed(p.ty.rank());
            binds.extend(quote! { rt::expect_rank(shapes, #input, #rank)?; });
            for (a, dim) in p.ty.shape.iter().enumerate() {
                let axis = Literal::usize_unsuffixed(a);
                if let Some((slot, least, most)) = bound_here(program, dim, i, a) {
                    binds.extend(quote! { rt::bind(&extents, #slot, shapes, #input, #axis, #least..=#most)?; });
                } else {
                    extents.slots_in(dim, &mut read);
                    let value = extents.signed(dim)?;
                    checks.extend(quote! { rt::expect_extent(shapes, #input, #axis, #value)?; });
                }
            }
        }
        let lets = extents.lets(&read, &|slot| quote!(rt::extent(&extents, #slot)));
        self.bind = quote! {
            /// Takes the extents known only at run time from the inputs' shapes, and checks the shapes.
            fn bind(shapes: &[&[usize]]) -> Result<[core::sync::atomic::AtomicI64; #n_slots], rt::Error> {
                let extents = rt::extents::<#n_slots>();
                #binds
                #lets
                #checks
                Ok(extents)
            }
        };
        let is_state = |i: usize| program.states.iter().any(|s| s.input_idx == i);
        let (mut shapes, mut raw_shapes) = (TokenStream::new(), TokenStream::new());
        for (i, (p, ident)) in program.inputs.iter().zip(idents(&program.inputs)).enumerate() {
            let idx = Literal::usize_unsuffixed(i);
            let (typed, raw) = if is_fixed(p) {
                (quote!(&[]), quote!(&[]))
            } else if is_state(i) {
                let shape = format_ident!("shape_of_{ident}");
                (quote!(&self.#shape), quote!(&self.#shape))
            } else {
                (quote!(&inputs.#ident.shape), quote!(rt::raw_shape(inputs, #idx)))
            };
            shapes.extend(quote!(#typed,));
            raw_shapes.extend(quote!(#raw,));
        }
        self.extents.0 = quote! { let extents = bind(&[#shapes])?; };
        self.raw_extents = quote! { let extents = bind(&[#raw_shapes])?; };
        Ok(())
    }
}

/// The slot and bounds of a symbol whose value this very axis gives.
fn bound_here(program: &Program, dim: &Dim, input_idx: usize, axis: usize) -> Option<(Literal, Literal, Literal)> {
    let symbol = dim.as_symbol()?;
    if symbol.source != (SymbolSource::Input { input_idx, axis }) {
        return None;
    }
    let literal = |v: i64| usize::try_from(v).ok().map(Literal::usize_unsuffixed);
    let slot = Literal::usize_unsuffixed(program.slot(symbol)?);
    Some((slot, literal(symbol.min.max(0))?, literal(symbol.max.unwrap_or(i64::MAX))?))
}
