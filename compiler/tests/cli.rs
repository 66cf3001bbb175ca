//! The `kilnc` command from outside: exit codes, what goes to stdout and what to stderr, files.
#![cfg(feature = "cli")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn kilnc(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_kilnc"))
        .args(args)
        .env("KILN_CACHE_DIR", Path::new(env!("CARGO_TARGET_TMPDIR")).join("kiln"))
        .output()
        .unwrap()
}

fn code(args: &[&str]) -> i32 {
    kilnc(args).status.code().unwrap()
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

fn fixture(name: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/models").join(name);
    folder.to_str().unwrap().to_owned()
}

fn model(name: &str) -> String {
    format!("{}/model.onnx", fixture(name))
}

/// A folder that is gone afterwards.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("kilnc-test-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).unwrap();
        Self(folder)
    }

    fn path(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_owned()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn wrong_use_is_2_and_help_is_0() {
    let affine = model("affine");
    let given = format!("x={}/test_data_set_0/input_0.pb", fixture("affine"));
    let no_placement = format!("{}/Cargo.toml", env!("CARGO_MANIFEST_DIR"));
    for (args, want) in [
        (&["--help"][..], 0),
        (&["test", "--help"], 0),
        (&["--version"], 0),
        (&[], 2),
        (&["brew"], 2),
        (&["check"], 2),
        (&["check", "/nowhere.onnx"], 2),
        (&["test", "/nowhere"], 2),
        (&["test", &affine, "--jobs", "0"], 2),
        (&["check", &affine, "--target", "moon"], 2),
        (&["check", &affine, "--streams", "0"], 2),
        (&["check", &affine, "--dim", "x"], 2),
        (&["check", &affine, "--dim", "nothing=3"], 2),
        (&["check", &model("rows"), "--dim", "rows=8..2"], 2),
        (&["check", &affine, "--placement", "parallax"], 0),
        (&["check", &affine, "--target", "soc-npu", "--pin", ".*=npu"], 0),
        (&["check", &affine, "--target", "host+gpu"], 1),
        (&["target", "show", "host+gpu"], 0),
        (&["target", "measure", "--gpu", "-o", "/nowhere/target.toml"], 1),
        (&["check", &affine, "--pin", "(=npu"], 2),
        (&["check", &affine, "--load-placement", "/nowhere"], 2),
        (&["check", &affine, "--placement", "nonsense"], 2),
        // Options that the model has no use for, and values that say nothing.
        (&["plan", &affine, "--pin", ".*=foo"], 2),
        (&["plan", &affine, "--pin", ".*=cpu"], 0),
        (&["plan", &affine, "--pin", "oops=cpu"], 2),
        (&["plan", &affine, "--target", "soc-npu", "--pin", "oops=npu"], 2),
        (&["plan", &affine, "--target", "soc-npu", "--pin", ".*=nopu"], 2),
        (&["plan", &affine, "--load-placement", &affine], 2),
        (&["plan", &affine, "--save-placement", "/nowhere/at/all"], 2),
        (&["plan", &affine, "--target", "soc-npu", "--load-placement", &no_placement], 2),
        (&["check", &affine, "--state", "a=b"], 2),
        (&["test", &fixture("affine"), "--dim", "nosuch=3"], 2),
        (&["test", &fixture("affine"), "--target", "soc-npu", "--pin", "oops=npu"], 2),
        (&["test", &fixture("affine"), "--target", "soc-npu", "--save-placement", "/nowhere/f"], 2),
        (&["bench", &affine, "--iters", "0"], 2),
        (&["run", &affine, "--timeout", "0"], 2),
        (&["test", &fixture("affine"), "--timeout", "0"], 2),
        (&["run", &affine, "--input", "x"], 2),
        (&["run", &affine, "--input", "x=/nowhere.npy"], 2),
        (&["run", &affine, "--input", "z=/nowhere.npy"], 2),
        (&["run", &affine, "--input", &given, "--input", &given], 2),
        (&["test", &fixture("affine"), "--rtol", "nan"], 2),
        (&["test", &fixture("affine"), "--atol", "inf"], 2),
        (&["plan", &affine, "--target", "soc-npu", "--load-placement", "f", "--objective", "sum"], 2),
        (&["pack", "/nowhere.csv", "--capacity", "3"], 2),
        (&["target", "show", "host"], 0),
        (&["target", "show", "soc-npu"], 0),
        (&["target", "measure", "-o", "/nowhere/target.toml"], 2),
        (&["target", "show", "moon"], 2),
    ] {
        let output = kilnc(args);
        assert_eq!(output.status.code(), Some(want), "{args:?}: {}", stderr(&output));
        assert_eq!(stdout(&output).is_empty(), want != 0, "{args:?}: results only on stdout");
        assert_eq!(stderr(&output).is_empty(), want == 0, "{args:?}: messages only on stderr");
    }
}

#[test]
fn broken_models_are_2_and_never_panic() {
    let folder = Folder::new("broken");
    let good = std::fs::read(model("affine")).unwrap();
    let mut broken = vec![vec![], vec![0; 100], vec![0xff; 100], b"PK\x03\x04zip".to_vec(), b"not a model".to_vec()];
    broken.extend((1..good.len()).step_by(29).map(|n| good[..n].to_vec()));
    for (i, bytes) in broken.iter().enumerate() {
        let path = folder.path(&format!("{i}.onnx"));
        std::fs::write(&path, bytes).unwrap();
        let output = kilnc(&["check", &path]);
        let text = stderr(&output);
        assert!(!text.contains("panicked") && !text.contains("bug"), "{i}: {text}");
        assert!(matches!(output.status.code(), Some(1 | 2)), "{i}: {text}");
    }
}

#[test]
fn check_and_plan() {
    assert!(stdout(&kilnc(&["check", &model("affine")])).starts_with("supported: 3 nodes"));
    let json: serde_json::Value =
        serde_json::from_str(&stdout(&kilnc(&["check", &model("affine"), "--json"]))).unwrap();
    assert_eq!(json, serde_json::json!({ "supported": true, "problems": [] }));
    let json: serde_json::Value = serde_json::from_str(&stdout(&kilnc(&["plan", &model("affine"), "--json"]))).unwrap();
    assert!(json["arenas"][0]["bytes"].as_u64() >= json["arenas"][0]["lower_bound_bytes"].as_u64());
    assert_eq!(json["devices"]["cpu"].as_u64(), json["streams"][0]["steps"].as_array().map(|s| s.len() as u64));
    assert_eq!(code(&["plan", &model("affine")]), 0);
}

#[test]
fn budgets_layouts_and_measured_times() {
    let folder = Folder::new("budget");
    let half = model("half");
    let plan = |args: &[&str]| kilnc(&[&["plan", &half, "--streams", "2", "--json"], args].concat());
    let json = |output: &Output| serde_json::from_str::<serde_json::Value>(&stdout(output)).unwrap();
    let both = json(&plan(&["--budget", "1000000"]));
    let bytes = |i: usize| both["schedules"][i]["bytes"].as_u64().unwrap();
    assert!(
        bytes(0) > bytes(1)
            && both["schedules"][0]["predicted_ns"].as_u64() < both["schedules"][1]["predicted_ns"].as_u64()
    );
    let least = plan(&["--budget", &(bytes(1) - 1).to_string()]);
    assert_eq!(least.status.code(), Some(1));
    assert!(stderr(&least).contains("budget: "), "{}", stderr(&least));
    let branch = json(&plan(&["--arenas", "branch"]));
    assert_eq!(branch["arenas"][0]["bytes"], branch["arenas"][0]["branch_bytes"]);
    assert!(branch["arenas"][0]["shared_bytes"].as_u64() > Some(0));
    // What bench prints; a name that no node has changes nothing, and that is said.
    let measured = folder.path("bench.json");
    std::fs::write(&measured, r#"{"ops": [{"node": "nobody", "op": "Add", "median_ns": 5}]}"#).unwrap();
    assert_eq!(json(&plan(&["--profile", &measured]))["predicted_ns"], json(&plan(&[]))["predicted_ns"]);
    let warned = stderr(&plan(&["--profile", &measured]));
    assert!(warned.contains("warning: --profile: no node of the model"), "{warned}");
    assert_eq!(stderr(&plan(&["--profile", &measured, "-q"])), "");
    for wrong in ["[]", "{\"ops\": [1]}", "no json"] {
        std::fs::write(&measured, wrong).unwrap();
        assert_eq!(plan(&["--profile", &measured]).status.code(), Some(2), "{wrong}");
    }
    assert_eq!(plan(&["--profile", &folder.path("none")]).status.code(), Some(2));
}

#[test]
fn compile_writes_module_weights_and_plans() {
    let folder = Folder::new("compile");
    let output =
        kilnc(&["compile", &model("affine"), "-o", &folder.path("out"), "--emit", "graph,placement,schedule,memory"]);
    assert!(output.status.success(), "{}", stderr(&output));
    let read = |name: &str| std::fs::read_to_string(folder.path(&format!("out/model{name}"))).unwrap();
    assert!(read(".rs").contains("pub struct Model"));
    assert!(read(".graph.txt").contains("MatMul"));
    assert!(read(".schedule.txt").contains("launch"));
    assert!(read(".memory.txt").starts_with("arena "));
    assert!(read(".placement.txt").lines().all(|l| l.starts_with("cpu ")));
    assert!(std::fs::metadata(folder.path("out/model.weights")).unwrap().len() > 0);
}

#[test]
fn messages_say_what_to_write() {
    let said = |args: &[&str]| stderr(&kilnc(args));
    let free = said(&["check", &model("encoder_dynamic")]);
    assert!(free.contains("--dim batch=1..N --dim sequence=1..N"), "{free}");
    let file = said(&["test", &model("affine")]);
    assert!(file.contains("is a file: give the folder it lies in"), "{file}");
    let unit = said(&["plan", &model("affine"), "--budget", "1M"]);
    assert!(unit.contains("expected a whole number of bytes"), "{unit}");
}

#[test]
fn check_saves_the_placement_too() {
    let folder = Folder::new("placement");
    let (saved, affine) = (folder.path("p.txt"), model("affine"));
    assert_eq!(code(&["check", &affine, "--target", "soc-npu", "--save-placement", &saved]), 0);
    assert!(std::fs::read_to_string(&saved).unwrap().starts_with("# placement on "));
    assert_eq!(code(&["plan", &affine, "--target", "soc-npu", "--load-placement", &saved]), 0);
}

#[test]
fn pack_fits_or_not() {
    let folder = Folder::new("pack");
    let csv = folder.path("b.csv");
    std::fs::write(&csv, "id,lower,upper,size\na,0,2,4\nb,1,3,4\nc,2,4,4\n").unwrap();
    let output = kilnc(&["pack", &csv, "--capacity", "8"]);
    assert_eq!((output.status.code(), stdout(&output).lines().count()), (Some(0), 4));
    let json: serde_json::Value =
        serde_json::from_str(&stdout(&kilnc(&["pack", &csv, "--capacity", "8", "--json", "-q"]))).unwrap();
    assert_eq!((json["bytes"].as_u64(), json["buffers"][0]["id"].as_str()), (Some(8), Some("a")));
    assert_eq!(code(&["pack", &csv, "--capacity", "7"]), 1);
    std::fs::write(&csv, "id,lower\n").unwrap();
    assert_eq!(code(&["pack", &csv, "--capacity", "8"]), 2);
}

/// Builds crates with cargo: one test, because builds wait for each other anyway.
#[test]
fn cases_run_and_models_run() {
    let folder = Folder::new("run");
    let report = folder.path("report.json");
    let output = kilnc(&[
        "test",
        &fixture("affine"),
        &fixture("rows"),
        &fixture("tiny_names"),
        "--json",
        &report,
        "--jobs",
        "2",
    ]);
    let lines: Vec<String> = stdout(&output).lines().map(str::to_owned).collect();
    assert_eq!(lines, ["PASS affine", "PASS rows", "PASS tiny_names", "3 passed, 0 failed, 0 unsupported"]);
    assert_eq!(output.status.code(), Some(0));
    let json: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(&report).unwrap()).unwrap();
    assert_eq!((json["passed"].as_u64(), json["cases"][0]["status"].as_str()), (Some(3), Some("PASS")));

    // A wrong expectation fails, and says so.
    let wrong = folder.0.join("wrong");
    std::fs::create_dir_all(wrong.join("test_data_set_0")).unwrap();
    std::fs::copy(model("affine"), wrong.join("model.onnx")).unwrap();
    let data = |name: &str| format!("{}/test_data_set_0/{name}", fixture("affine"));
    std::fs::copy(data("input_0.pb"), wrong.join("test_data_set_0/input_0.pb")).unwrap();
    let mut expected = std::fs::read(data("output_0.pb")).unwrap();
    let last = expected.len() - 1;
    expected[last] ^= 1;
    std::fs::write(wrong.join("test_data_set_0/output_0.pb"), expected).unwrap();
    let output = kilnc(&["test", wrong.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stdout(&output).starts_with("FAIL wrong output 0: 1 of 6 elements differ"), "{}", stdout(&output));

    let out = folder.path("out");
    let x = format!("x={}", data("input_0.pb"));
    let output = kilnc(&["run", &model("affine"), "--input", &x, "--output-dir", &out]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(
        stdout(&output).trim(),
        "y f32[2, 3] min 0.000000 max 9.500000 mean 3.750000 [7.5, 9.5, 1.25, 0, 0, 4.25]"
    );
    // What was written can be read: an output as an input.
    assert!(std::fs::read(format!("{out}/y.npy")).unwrap().starts_with(b"\x93NUMPY"));
    let y = format!("x={out}/y.npy");
    assert_eq!(code(&["run", &model("affine"), "--input", &y]), 2, "another shape than the model's");

    what_compile_writes_is_used_by_the_line_it_prints(&folder);

    let output = kilnc(&["bench", &model("affine"), "--iters", "5", "--per-op", "--json"]);
    assert!(output.status.success(), "{}", stderr(&output));
    let json: serde_json::Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert!(json["median_ns"].as_u64() >= json["min_ns"].as_u64() && json["min_ns"].as_u64() > Some(0));
    assert!(json["ops"].as_array().is_some_and(|ops| !ops.is_empty()), "{json:#}");
    let number = |key: &str| json[key].as_f64().unwrap();
    assert!((number("peak_fraction") * number("peak_gflops") - number("gflops")).abs() < 1e-6 * number("gflops"));
    assert!(number("roofline_fraction") < 1.05 && number("cache_gb_s") >= number("peak_gb_s"), "{json:#}");
    // The threads that run are said, whatever was asked for: on one core all streams run on one.
    assert_eq!(json["threads"].as_u64(), Some(1));
    let several = std::thread::available_parallelism().is_ok_and(|n| n.get() > 1);
    let n_threads = if several { "2 threads" } else { "1 thread" };
    let output = kilnc(&["bench", &model("affine"), "--iters", "5", "--streams", "2"]);
    assert!(stdout(&output).contains(&format!("(5 runs, {n_threads})")), "{}", stdout(&output));
    let peak = format!("% of this machine's measured peak on {n_threads}, ");
    assert!(stdout(&output).contains(&peak), "{}", stdout(&output));
}

/// A crate with nothing but the lines that `kilnc compile` printed. (Part of the test above: it builds on that test's `kiln`.)
fn what_compile_writes_is_used_by_the_line_it_prints(folder: &Folder) {
    let mut lines = Vec::new();
    for (out, weights) in [("user/compiled", "embed"), ("elsewhere", "file")] {
        std::fs::create_dir_all(folder.0.join("user/src")).unwrap();
        std::fs::write(folder.path("user/Cargo.toml"), "[package]\n").unwrap();
        let output = kilnc(&["compile", &model("affine"), "-o", &folder.path(out), "--weights", weights]);
        let said = stderr(&output);
        lines.push(said.lines().find(|l| l.starts_with("kiln::include_compiled!(")).expect("a line").to_owned());
        let quiet = kilnc(&["compile", &model("affine"), "-o", &folder.path(out), "--weights", weights, "-q"]);
        assert_eq!((stdout(&quiet), stderr(&quiet)), (String::new(), String::new()));
    }
    let inside = "mod model = \"model\" in concat!(env!(\"CARGO_MANIFEST_DIR\"), \"/compiled\"));";
    assert!(lines[0].ends_with(inside), "{}", lines[0]);
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    // As the crates that kilnc generates, so that `kiln` is built once.
    let manifest = format!(
        "[package]\nname = \"user\"\nversion = \"0.0.0\"\nedition = \"2024\"\n\n[workspace]\nresolver = \"3\"\n\n\
         [dependencies]\nkiln = {{ path = {:?}, default-features = false, features = [\"std\"] }}\n\n\
         [profile.release.package.\"*\"]\nopt-level = 3\ncodegen-units = 16\n",
        root.join("runtime-support")
    );
    let main = format!(
        "#![forbid(unsafe_code)]\n{}\nmod from_file {{\n    {}\n    pub(crate) use model::*;\n}}\n\
         const X: [f32; 8] = [1.0, 2.0, 3.0, 4.0, -1.0, -2.0, 0.0, 1.0];\n\
         fn main() -> Result<(), kiln::Error> {{\n    \
             println!(\"{{:?}}\", model::Model::new()?.run(model::Inputs {{ x: &X }})?.y);\n    \
             println!(\"{{:?}}\", from_file::Model::new()?.run(from_file::Inputs {{ x: &X }})?.y);\n    \
             Ok(())\n}}\n",
        lines[0], lines[1]
    );
    std::fs::write(folder.path("user/Cargo.toml"), manifest).unwrap();
    std::fs::write(folder.path("user/src/main.rs"), main).unwrap();
    std::fs::copy(root.join("Cargo.lock"), folder.path("user/Cargo.lock")).unwrap();
    let output = Command::new(env!("CARGO"))
        .args(["run", "--release", "--offline", "--quiet", "--target-dir"])
        .arg(Path::new(env!("CARGO_TARGET_TMPDIR")).join("kiln/build/target"))
        .arg("--manifest-path")
        .arg(folder.path("user/Cargo.toml"))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    let y = "[7.5, 9.5, 1.25, 0.0, 0.0, 4.25]\n";
    assert_eq!(stdout(&output), y.repeat(2));
}
