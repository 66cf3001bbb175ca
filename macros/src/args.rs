//! The macro's arguments: `[vis] [mod NAME =] "PATH" [, key = value | key(…)]…`.
//!
//! Out: values with the spans that errors about them point at.

use kiln_compiler::emit::{WeightsFrom, module_name};
use kiln_compiler::import::DimBound;
use kiln_compiler::memory::Arenas;
use proc_macro2::Span;
use std::path::Path;
use syn::parse::{Parse, ParseStream};
use syn::spanned::Spanned;
use syn::{Error, Ident, LitInt, LitStr, Result, Token, Visibility, parenthesized};

/// A value and where it stands.
pub(crate) struct Given<T> {
    pub(crate) value: T,
    pub(crate) span: Span,
}

/// What was written between the parentheses.
pub(crate) struct Arguments {
    pub(crate) vis: Visibility,
    name: Option<String>,
    pub(crate) name_span: Option<Span>,
    pub(crate) path: Given<String>,
    pub(crate) target: Option<Given<String>>,
    pub(crate) streams: Option<Given<usize>>,
    pub(crate) dims: Vec<(Given<String>, Given<DimBound>)>,
    pub(crate) states: Vec<(Given<String>, Given<String>)>,
    pub(crate) weights: Option<Given<WeightsFrom>>,
    pub(crate) budget_bytes: Option<Given<u64>>,
    pub(crate) arenas: Arenas,
    pub(crate) profile: Option<Given<String>>,
}

impl Arguments {
    /// The module's name: as given, or the model's.
    pub(crate) fn module_name(&self) -> String {
        self.name.clone().unwrap_or_else(|| self.model_name())
    }

    /// The model's name, from its file's. (What a module is called where it is included does not change its bytes.)
    pub(crate) fn model_name(&self) -> String {
        let stem = Path::new(&self.path.value).file_stem().map(|s| s.to_string_lossy().into_owned());
        module_name(&stem.unwrap_or_default())
    }
}

impl Parse for Arguments {
    fn parse(input: ParseStream<'_>) -> Result<Self> {
        if input.is_empty() {
            return Err(input.error("expected the model's path, as in include_model!(\"models/net.onnx\")"));
        }
        let vis: Visibility = input.parse()?;
        let (mut name, mut name_span) = (None, None);
        if input.peek(Token![mod]) {
            input.parse::<Token![mod]>()?;
            let ident: Ident = input.parse()?;
            input.parse::<Token![=]>()?;
            name_span = Some(ident.span());
            name = Some(ident.to_string());
        } else if !matches!(vis, Visibility::Inherited) {
            return Err(input.error("expected `mod NAME = \"PATH\"` after the visibility"));
        }
        let path: LitStr = input.parse().map_err(|e| Error::new(e.span(), "expected the model's path, a string"))?;
        let path = Given { value: path.value(), span: path.span() };
        let mut args = Self {
            vis,
            name,
            name_span,
            path,
            target: None,
            streams: None,
            dims: vec![],
            states: vec![],
            weights: None,
            budget_bytes: None,
            arenas: Arenas::Shared,
            profile: None,
        };
        let mut seen: Vec<String> = Vec::new();
        while !input.is_empty() {
            input.parse::<Token![,]>()?;
            if input.is_empty() {
                break;
            }
            let key: Ident = input.parse()?;
            if seen.contains(&key.to_string()) {
                return Err(Error::new(key.span(), format!("`{key}` is given twice")));
            }
            args.option(&key, input)?;
            seen.push(key.to_string());
        }
        Ok(args)
    }
}

impl Arguments {
    fn option(&mut self, key: &Ident, input: ParseStream<'_>) -> Result<()> {
        match key.to_string().as_str() {
            "target" => {
                input.parse::<Token![=]>()?;
                let text: LitStr = input.parse()?;
                self.target = Some(Given { value: text.value(), span: text.span() });
            }
            "streams" => {
                input.parse::<Token![=]>()?;
                let n: LitInt = input.parse()?;
                self.streams = Some(Given { value: n.base10_parse()?, span: n.span() });
            }
            "budget" => {
                input.parse::<Token![=]>()?;
                let n: LitInt = input.parse()?;
                self.budget_bytes = Some(Given { value: n.base10_parse()?, span: n.span() });
            }
            "weights" => {
                input.parse::<Token![=]>()?;
                let word: Ident = input.parse().map_err(|e| Error::new(e.span(), "expected `file` or `embed`"))?;
                let value = match word.to_string().as_str() {
                    "file" => WeightsFrom::File,
                    "embed" => WeightsFrom::Embed,
                    _ => return Err(Error::new(word.span(), "expected `file` or `embed`")),
                };
                self.weights = Some(Given { value, span: word.span() });
            }
            "arenas" => {
                input.parse::<Token![=]>()?;
                let word: Ident = input.parse().map_err(|e| Error::new(e.span(), "expected `shared` or `branch`"))?;
                self.arenas = match word.to_string().as_str() {
                    "shared" => Arenas::Shared,
                    "branch" => Arenas::Branch,
                    _ => return Err(Error::new(word.span(), "expected `shared` or `branch`")),
                };
            }
            "profile" => {
                input.parse::<Token![=]>()?;
                let file: LitStr =
                    input.parse().map_err(|e| Error::new(e.span(), "expected the file of measured times, a string"))?;
                self.profile = Some(Given { value: file.value(), span: file.span() });
            }
            "dims" => {
                let content;
                parenthesized!(content in input);
                for pair in content.parse_terminated(dim, Token![,])? {
                    self.dims.push(pair);
                }
            }
            "state" => {
                let content;
                parenthesized!(content in input);
                for pair in content.parse_terminated(state, Token![,])? {
                    self.states.push(pair);
                }
            }
            "placement" | "objective" => {
                return Err(Error::new(key.span(), format!("`{key}` is not supported yet")));
            }
            _ => {
                let known = "target, streams, dims, state, weights, budget, arenas, profile";
                return Err(Error::new(key.span(), format!("there is no option `{key}`: expected one of {known}")));
            }
        }
        Ok(())
    }
}

/// `OUTPUT = INPUT`, names or patterns with one `*`.
fn state(input: ParseStream<'_>) -> Result<(Given<String>, Given<String>)> {
    let output = pattern(input)?;
    input.parse::<Token![=]>()?;
    Ok((output, pattern(input)?))
}

/// A name with an optional `*`, as a string or as it stands: `present.*`.
fn pattern(input: ParseStream<'_>) -> Result<Given<String>> {
    if input.peek(LitStr) {
        let text: LitStr = input.parse()?;
        return Ok(Given { value: text.value(), span: text.span() });
    }
    let span = input.span();
    let mut value = String::new();
    while !input.is_empty() && !input.peek(Token![=]) && !input.peek(Token![,]) {
        value.push_str(&input.parse::<proc_macro2::TokenTree>()?.to_string());
    }
    match value.is_empty() {
        true => Err(Error::new(span, "expected a name, as in `state(present.* = past.*)`")),
        false => Ok(Given { value, span }),
    }
}

/// `NAME = 4` or `NAME = 1..=128`; a name that is no identifier is written as a string.
fn dim(input: ParseStream<'_>) -> Result<(Given<String>, Given<DimBound>)> {
    let name = if input.peek(LitStr) {
        let text: LitStr = input.parse()?;
        Given { value: text.value(), span: text.span() }
    } else {
        let ident: Ident = input.parse()?;
        Given { value: ident.to_string(), span: ident.span() }
    };
    input.parse::<Token![=]>()?;
    let first: LitInt = input.parse().map_err(|e| Error::new(e.span(), "expected a size, or a range as in 1..=128"))?;
    if !input.peek(Token![..]) {
        return Ok((name, Given { value: DimBound::Fixed(first.base10_parse()?), span: first.span() }));
    }
    if !input.peek(Token![..=]) {
        return Err(input.error("expected `..=`: the largest size belongs to the range"));
    }
    input.parse::<Token![..=]>()?;
    let last: LitInt = input.parse()?;
    let bound = DimBound::Range(first.base10_parse()?, last.base10_parse()?);
    let span = first.span().join(last.span()).unwrap_or_else(|| first.span());
    Ok((name, Given { value: bound, span: span.span() }))
}
