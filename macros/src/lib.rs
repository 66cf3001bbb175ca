//! The `include_model!` macro: a model file in, a module out.
//!
//! In: the macro's arguments ([`args`]). Out: `mod NAME { … }` around a module that lies, compiled, in a cache folder
//! ([`folder`]); nothing of the model is in the tokens. The module's files, the model, its external data are named in
//! `include!` and `include_bytes!`, so cargo and editors know what it depends on.
//! Invariant: an unchanged model is not read, only looked at (length and time); see `kiln_compiler::artifact`.
#![forbid(unsafe_code)]

mod args;
mod folder;

use args::{Arguments, Given};
use kiln_compiler::artifact::{Artifact, Cache};
use kiln_compiler::error::{CompileError, CompileErrors, Stage};
use kiln_compiler::machine::Machine;
use kiln_compiler::plan::target::Target;
use kiln_compiler::profile::Profile;
use kiln_compiler::{Options, check_options};
use proc_macro2::{Span, TokenStream};
use quote::quote;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use syn::Result;

/// Compiles an ONNX model into a module of this crate.
///
/// ```ignore
/// kiln::include_model!("models/mobilenetv2.onnx");          // `mod mobilenetv2 { … }`
/// kiln::include_model!(
///     pub mod net = "models/net.onnx",
///     target = "host",
///     streams = 2,
///     dims(seq = 1..=128, "input.0" = 4),
///     weights = file,
///     arenas = branch,
///     profile = "net.times.json",
/// );
/// ```
/// The path is relative to `CARGO_MANIFEST_DIR`. Editing the model, its external data, a target file or a
/// file of measured times (`profile`, what `kilnc bench --per-op --json` printed) rebuilds. The module's items are
/// `Model`, `Inputs` and `Outputs`.
///
/// # Where the cache lies
/// Compiled modules are kept in the first of these that there is: `$KILN_CACHE_DIR`; `$CARGO_TARGET_DIR/kiln`; `kiln` in the
/// target folder that rustc is writing to; `kiln` in the nearest `target` folder at or above the package; `kiln` in the
/// system's folder for temporary files. Removing it is safe for builds: it is filled again. A program with `weights = file` that
/// was built before still looks there for its weights; see below.
///
/// # Weights in a file
/// With `weights = file` the weights are not in the binary: the program reads them when a model is made. `Model::new()` looks
/// where the build wrote them, which is the cache above (`Model::WEIGHTS_PATH` is the path), and where that cannot be
/// opened for a file of the same name (`NAME.weights`, after the model) in the folder of the running program.
/// `Model::with_weights(path)` takes the path, `Model::with_weights_in(path, arena)` the caller's memory as well. To ship such
/// a program, copy the file at `Model::WEIGHTS_PATH` beside it. A file of another length, or of another model, is refused
/// with `kiln::Error::Weights`: what is compared is the hash at the file's end, the content is not hashed at start.
#[proc_macro]
pub fn include_model(input: proc_macro::TokenStream) -> proc_macro::TokenStream {
    // See `compile`: an editor may expand on several threads at once.
    static ONE: Mutex<()> = Mutex::new(());
    let _one = ONE.lock();
    let expanded = syn::parse::<Arguments>(input).and_then(|args| expand(&args));
    expanded.unwrap_or_else(|e| e.into_compile_error()).into()
}

fn expand(args: &Arguments) -> Result<TokenStream> {
    let options = options(args)?;
    let model = model_path(&args.path.value);
    let at_path = |text: String| syn::Error::new(args.path.span, text);
    if !model.is_file() {
        let inside = Path::new(&args.path.value).join("model.onnx");
        let meant = match model.join("model.onnx").is_file() {
            true => format!(": did you mean {:?}?", inside.display().to_string()),
            false => String::new(),
        };
        return Err(at_path(format!("there is no file {:?} in the package's folder{meant}", args.path.value)));
    }
    let artifact = compile(&model, &options).map_err(|errors| placed(args, &errors))?;
    module(args, &artifact).ok_or_else(|| at_path("the path is not valid UTF-8".into()))
}

fn model_path(given: &str) -> PathBuf {
    match std::env::var_os("CARGO_MANIFEST_DIR") {
        Some(root) => Path::new(&root).join(given),
        None => given.into(),
    }
}

/// A target's name, or its file: relative to the package's folder, where the name is none.
fn target(given: &str) -> String {
    match model_path(given) {
        file if Target::shipped(given).is_none() && file.is_file() => file.display().to_string(),
        _ => given.to_owned(),
    }
}

fn options(args: &Arguments) -> Result<Options> {
    let mut options = Options { name: args.model_name(), ..Options::default() };
    if let Some(Given { value, span }) = &args.target {
        options.machine = Machine::named(&target(value)).map_err(|e| syn::Error::new(*span, e))?;
    }
    if let Some(Given { value, span }) = &args.streams {
        options.streams = *value;
        check_options(&options).map_err(|e| syn::Error::new(*span, e))?;
    }
    for (name, bound) in &args.dims {
        let twice = options.import.dims.insert(name.value.clone(), bound.value).is_some();
        if twice {
            return Err(syn::Error::new(name.span, format!("dimension \"{}\" is given twice", name.value)));
        }
        check_options(&options).map_err(|e| syn::Error::new(bound.span, e))?;
    }
    options.states = args.states.iter().map(|(o, i)| (o.value.clone(), i.value.clone())).collect();
    if let Some(weights) = &args.weights {
        options.weights = weights.value;
    }
    options.budget_bytes = args.budget_bytes.as_ref().map(|b| b.value);
    options.arenas = args.arenas;
    if let Some(Given { value, span }) = &args.profile {
        let read = Profile::read(&model_path(value));
        options.profile = Some(read.map_err(|e| syn::Error::new(*span, format!("profile {value:?}: {e}")))?);
    }
    Ok(options)
}

/// Large models nest deeply, and rustc's own stack is small.
const STACK_BYTES: usize = 512 << 20;

/// Compiles on a thread of its own. There, rustc's own tokens are out of reach (and slow): for so long `proc_macro2` makes
/// its own. That is a setting of the whole process, hence the lock around each expansion.
fn compile(model: &Path, options: &Options) -> std::result::Result<Artifact, CompileErrors> {
    proc_macro2::fallback::force();
    let artifact = compile_on_thread(model, options);
    proc_macro2::fallback::unforce();
    artifact
}

fn compile_on_thread(model: &Path, options: &Options) -> std::result::Result<Artifact, CompileErrors> {
    let cache = Cache::new(folder::cache());
    let fault = |what: &str| Err(CompileError::new(Stage::Read, what).into());
    // Tokens of the generated module are plain data in that thread: rustc's own exist in this one only, and are slower.
    proc_macro2::fallback::force();
    let artifact = std::thread::scope(|scope| {
        let work = || cache.module(model, options);
        match std::thread::Builder::new().stack_size(STACK_BYTES).spawn_scoped(scope, work) {
            Ok(thread) => thread.join().unwrap_or_else(|_| fault("the compiler panicked: this is a bug in kiln")),
            Err(e) => fault(&format!("cannot start a thread: {e}")),
        }
    });
    proc_macro2::fallback::unforce();
    artifact
}

/// The errors as one, at the argument that they are about.
fn placed(args: &Arguments, errors: &CompileErrors) -> syn::Error {
    syn::Error::new(culprit(args, errors), format!("cannot compile {}:\n{errors}", args.path.value))
}

/// The argument that an error names: a dimension, a state's output, the budget; else the model's path.
fn culprit(args: &Arguments, errors: &CompileErrors) -> Span {
    if let Some(budget) =
        args.budget_bytes.as_ref().filter(|_| errors.iter().any(|e| e.operand.as_deref() == Some("budget")))
    {
        return budget.span;
    }
    named(args, errors).span
}

/// The dimension or state's output that an error names; else the model's path.
fn named<'a>(args: &'a Arguments, errors: &CompileErrors) -> &'a Given<String> {
    let about = |what: String| errors.iter().any(|e| e.operand.as_deref() == Some(&what));
    let dim = args.dims.iter().map(|(name, _)| name).find(|name| about(format!("dim \"{}\"", name.value)));
    let state = args.states.iter().find(|(o, i)| about(format!("state \"{}={}\"", o.value, i.value)));
    dim.or(state.map(|(output, _)| output)).unwrap_or(&args.path)
}

/// The module around the compiled one. The files it was made from stand in the body of a function that nobody calls: that
/// is the cheapest place that rustc still tracks (a quarter of a second for 270 MB; a constant costs ten and 3 GB).
fn module(args: &Arguments, artifact: &Artifact) -> Option<TokenStream> {
    let (source, weights) = (artifact.source.to_str()?, artifact.weights.to_str()?);
    let mut tracked = TokenStream::new();
    let target = args.target.as_ref().map(|t| PathBuf::from(target(&t.value))).filter(|file| file.is_file());
    let profile = args.profile.as_ref().map(|p| model_path(&p.value));
    for file in artifact.tracked.iter().chain(&target).chain(&profile) {
        let file = file.to_str()?;
        tracked.extend(quote! { let _ = ::core::include_bytes!(#file); });
    }
    let doc = format!("The model `{}`, compiled by `include_model!`.", args.path.value.replace('`', "'"));
    let (vis, name) = (&args.vis, syn::Ident::new(&args.module_name(), args.name_span.unwrap_or_else(Span::call_site)));
    Some(quote! {
        #[doc = #doc]
        #[allow(dead_code, reason = "a model's user need not use all of it")]
        #vis mod #name {
            macro_rules! __kiln_weights {
                () => { #weights };
                ($symbol:literal, $bytes:expr) => { ::kiln::embed_weights!(#weights, $symbol, $bytes); };
            }
            ::core::include!(#source);
            const _: () = {
                fn tracked() {
                    #tracked
                }
            };
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The argument that an error about this points at.
    fn points_at(operand: &str) -> String {
        let text = "\"m.onnx\", dims(n = 2), state(h_out = h_in, \"c.*\" = \"d.*\")";
        let args: Arguments = syn::parse_str(text).expect("parses");
        let error = CompileError::new(Stage::Import, "wrong").at(operand.to_owned());
        named(&args, &error.into()).value.clone()
    }

    #[test]
    fn errors_point_at_the_argument_that_they_are_about() {
        assert_eq!(points_at("state \"h_out=h_in\""), "h_out");
        assert_eq!(points_at("state \"c.*=d.*\""), "c.*");
        assert_eq!(points_at("dim \"n\""), "n");
        assert_eq!(points_at("dim \"m\""), "m.onnx");
    }
}
