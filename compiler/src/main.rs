//! The `kilnc` command: see [`kiln_compiler::cli`].
#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    kiln_compiler::cli::main()
}
