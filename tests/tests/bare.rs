//! A model runs from a static arena in a program that links neither std nor alloc nor libc.
#![cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]

use std::path::{Path, PathBuf};
use std::process::Command;

#[test]
fn runs_without_std_and_alloc() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let target = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("bare");
    let model = target.join("model");
    std::fs::create_dir_all(&model).unwrap();
    kiln_compiler::Config::new().out_dir(&model).compile("../fixtures/models/affine/model.onnx").unwrap();
    // With a target named, the flags below are for the program only, not for build scripts.
    let triple = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let status = Command::new(env!("CARGO"))
        .args(["build", "--target", &triple])
        .args(["--release", "--offline", "--quiet", "--manifest-path"])
        .arg(root.join("bare/Cargo.toml"))
        .arg("--target-dir")
        .arg(&target)
        .env("KILN_BARE_DIR", &model)
        // Of its own, whatever the tests are built with: nothing of C is linked.
        .env(
            "CARGO_ENCODED_RUSTFLAGS",
            [
                "-Clink-arg=-nostartfiles",
                "-Clink-arg=-nostdlib",
                "-Clink-arg=-static",
                "-Crelocation-model=static",
                "-Dwarnings",
            ]
            .join("\u{1f}"),
        )
        .status()
        .unwrap();
    assert!(status.success(), "the program does not build");
    let code = Command::new(target.join(&triple).join("release/kiln-bare")).status().unwrap().code();
    assert_eq!(code, Some(0), "1: wrong results, 2: an error, 3: a panic");
}
