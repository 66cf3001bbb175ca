//! The `include_model!` macro.
#![forbid(unsafe_code)]

/// Compiles a model.
#[proc_macro]
pub fn include_model(_: proc_macro::TokenStream) -> proc_macro::TokenStream {
    proc_macro::TokenStream::new()
}
