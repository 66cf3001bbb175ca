//! Hostile files through the command: each ends in a clear error (or, where allowed, a compile), in time and memory.
//!
//! Reads `shared/cases/hostile` where it is present; says that it skipped otherwise.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const SECONDS: u64 = 10;
/// Address space for one file: 2 GB, and the stack that the command reserves.
const ADDRESS_KIB: u64 = (2 << 20) + (512 << 10);

fn shared() -> Option<PathBuf> {
    let beside = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared");
    let folder = std::env::var_os("KILN_SHARED").map_or_else(beside, PathBuf::from);
    folder.is_dir().then_some(folder)
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).expect("temporary folder");
    for entry in std::fs::read_dir(from).expect("folder") {
        let path = entry.expect("entry").path();
        let target = to.join(path.file_name().expect("name"));
        if path.is_dir() {
            copy(&path, &target);
        } else {
            std::fs::copy(&path, &target).expect("copy");
        }
    }
}

/// Exit code and messages of `kilnc check FILE`, or why there is none.
fn check(file: &Path) -> Result<(i32, String), String> {
    let script = format!("ulimit -v {ADDRESS_KIB}; exec \"$0\" check \"$1\"");
    let mut child = Command::new("sh")
        .args(["-c", &script, env!("CARGO_BIN_EXE_kilnc")])
        .arg(file)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|e| e.to_string())?;
    let start = Instant::now();
    while child.try_wait().map_err(|e| e.to_string())?.is_none() {
        // A debug build on a busy machine gets more time than a user would wait for a release build.
        if start.elapsed() > Duration::from_secs(SECONDS * if cfg!(debug_assertions) { 6 } else { 1 }) {
            let _ = child.kill();
            return Err("took too long".into());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let out = child.wait_with_output().map_err(|e| e.to_string())?;
    let code = out.status.code().ok_or("killed by a signal")?;
    let text = String::from_utf8_lossy(&out.stderr).into_owned() + &String::from_utf8_lossy(&out.stdout);
    Ok((code, text))
}

#[test]
fn every_hostile_file_ends_as_it_should() {
    let Some(shared) = shared() else {
        println!("skipped: no shared cases here");
        return;
    };
    let folder = std::env::temp_dir().join(format!("kiln-hostile-{}", std::process::id()));
    copy(&shared.join("cases/hostile"), &folder);
    let links = Command::new("sh").arg(folder.join("make_links.sh")).status().expect("sh");
    assert!(links.success());
    let text = std::fs::read_to_string(folder.join("expect.json")).expect("expect.json");
    let expected: Vec<serde_json::Value> = serde_json::from_str(&text).expect("json");
    let mut wrong = Vec::new();
    for case in &expected {
        let (file, expect) = (case["file"].as_str().expect("file"), case["expect"].as_str().expect("expect"));
        match check(&folder.join(file)) {
            Err(e) => wrong.push(format!("{file}: {e}")),
            Ok((code, text)) => {
                let fits = match expect {
                    "reject" => code == 1 || code == 2,
                    _ => (0..=2).contains(&code),
                };
                let says = code == 0
                    || (!text.trim().is_empty() && !text.contains("panicked") && !text.contains("bug in the"));
                if !fits || !says {
                    wrong
                        .push(format!("{file}: exit {code}, expected {expect}: {}", text.lines().next().unwrap_or("")));
                }
            }
        }
    }
    let _ = std::fs::remove_dir_all(&folder);
    assert!(expected.len() > 50);
    assert!(wrong.is_empty(), "{} files:\n{}", wrong.len(), wrong.join("\n"));
}
