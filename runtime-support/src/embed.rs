//! Weights in the binary, without slowing rustc: an object that the build script wrote, `.incbin` where the object format allows
//! it, `include_bytes!` elsewhere.

/// Puts a file's bytes into the binary, aligned to 64, and defines `fn weights() -> &'static [u8]`.
///
/// Used by generated modules: `embed_weights!(path, "symbol", length)`. Equal weights of two modules are kept once.
#[doc(hidden)]
#[macro_export]
macro_rules! embed_weights {
    ($path:expr, $symbol:literal, $bytes:expr) => {
        #[cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]
        // Within one object `.ifndef` keeps equal weights once, between objects the section group does.
        $crate::__global_asm!(
            concat!(".ifndef ", $symbol),
            concat!(".pushsection .rodata.", $symbol, ",\"aG\",@progbits,", $symbol, ",comdat"),
            concat!(".weak ", $symbol),
            ".balign 64",
            concat!($symbol, ":"),
            concat!(".incbin \"", $path, "\""),
            ".popsection",
            ".endif",
        );

        // The build tools see the file through this, and follow changes of it.
        #[cfg(not(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64"))))]
        static BYTES: $crate::rt::Aligned<[u8; $bytes]> = $crate::rt::Aligned(*include_bytes!($path));

        #[cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]
        fn weights() -> &'static [u8] {
            unsafe extern "C" {
                #[link_name = $symbol]
                static BYTES: [u8; $bytes];
            }
            // SAFETY: the assembly above defines the symbol over a file of exactly this many bytes (the compiler wrote
            // both), in a section that nothing writes to.
            unsafe { &BYTES }
        }

        #[cfg(not(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64"))))]
        fn weights() -> &'static [u8] {
            &BYTES.0
        }
    };
}

/// Names weights that lie in an object which the build script wrote and cargo links: rustc never sees their bytes.
///
/// Used by what [`include_compiled!`](crate::include_compiled) includes: `link_weights!("symbol", length)` defines
/// `fn weights() -> &'static [u8]`.
#[doc(hidden)]
#[macro_export]
macro_rules! link_weights {
    ($symbol:literal, $bytes:expr) => {
        fn weights() -> &'static [u8] {
            unsafe extern "C" {
                #[link_name = $symbol]
                static BYTES: [u8; $bytes];
            }
            // SAFETY: the build script that wrote this module wrote the object too, with this many bytes under a symbol made of
            // their hash, in a section that nothing writes to.
            unsafe { &BYTES }
        }
    };
}

/// Weights of a module that lies in a folder of its own: `__kiln_weights_path!()`, defined around the module, is their path.
#[doc(hidden)]
#[macro_export]
macro_rules! weights_at_path {
    () => {
        __kiln_weights_path!()
    };
    ($symbol:literal, $bytes:expr) => {
        $crate::embed_weights!(__kiln_weights_path!(), $symbol, $bytes);
    };
}

/// Includes a module that a build script compiled: `include_compiled!("net")` gives `mod net { … }`,
/// `include_compiled!(pub mod other = "net")` gives it another name and visibility.
///
/// `include_compiled!(mod net = "net" in FOLDER)` includes what `kilnc compile net.onnx -o FOLDER` wrote, wherever that is:
/// `in "/an/absolute/path"`, or `in concat!(env!("CARGO_MANIFEST_DIR"), "/compiled")` for a folder of the package.
///
/// The build script is `kiln_compiler::Config::new().compile("models/net.onnx")`, which writes `$OUT_DIR/net.rs`,
/// `$OUT_DIR/net.weights` and, because no macro by example can make a name out of a string, `$OUT_DIR/net.mod.rs`; how the weights
/// come into the binary stands in `$OUT_DIR/net.weights.rs`.
/// Feature `macros` is not needed.
#[macro_export]
macro_rules! include_compiled {
    ($file:literal) => {
        ::core::include!(::core::concat!(::core::env!("OUT_DIR"), "/", $file, ".mod.rs"));
    };
    ($vis:vis mod $name:ident = $file:literal in $folder:expr) => {
        #[doc = ::core::concat!("The model `", $file, "`, compiled by kilnc.")]
        #[allow(dead_code, reason = "a model's user need not use all of it")]
        $vis mod $name {
            macro_rules! __kiln_weights_path {
                () => {
                    ::core::concat!($folder, "/", $file, ".weights")
                };
            }
            use $crate::weights_at_path as __kiln_weights;
            ::core::include!(::core::concat!($folder, "/", $file, ".rs"));
        }
    };
    ($vis:vis mod $name:ident = $file:literal) => {
        #[doc = ::core::concat!("The model `", $file, "`, compiled by the build script.")]
        #[allow(dead_code, reason = "a model's user need not use all of it")]
        $vis mod $name {
            ::core::include!(::core::concat!(::core::env!("OUT_DIR"), "/", $file, ".weights.rs"));
            ::core::include!(::core::concat!(::core::env!("OUT_DIR"), "/", $file, ".rs"));
        }
    };
}
