#!/usr/bin/env python3
"""Start-up, memory and size of a program with one model in it, beside ONNX Runtime's start-up; a Markdown table.

    venv/bin/python tests/peers/startup.py FOLDER… [--rounds 5] [--work DIR] [--release 'opt-level = 3']

FOLDER holds model.onnx and test_data_set_0 (ONNX's own layout). For each a crate is made in DIR that compiles the model in its
build script (weights in the binary) and runs it; its program is stripped. Start-up is the time from the start of the
process to the end of the first run, less one warm run: loading, page faults and set-up. ONNX Runtime's is that of loading its
shared library, as a native program does, and from before its session is made to the end of the first run, less one warm run; the
interpreter and its modules are not counted. Rounds interleave the two; figures are medians.
RSS is the peak of the process (VmHWM), which holds nothing but the model and its inputs.
"""
import argparse, json, os, statistics, subprocess, sys, tempfile, time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))

MAIN = """
mod inputs;
kiln::include_compiled!("net");
fn nanos() -> u128 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |d| d.as_nanos())
}
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut model = net::Model::new()?;
    let inputs = inputs::inputs();
    let raw: Vec<_> = inputs.iter().map(|(bytes, shape)| kiln::rt::RawInput { bytes, shape }).collect();
    let mut run = || model.run_raw(&raw, &mut |y, _| { std::hint::black_box(y); });
    run()?;
    let first = nanos();
    let mut warm = Vec::new();
    for _ in 0..5 {
        let start = std::time::Instant::now();
        run()?;
        warm.push(start.elapsed().as_nanos());
    }
    warm.sort_unstable();
    let status = std::fs::read_to_string("/proc/self/status")?;
    let peak = status.lines().find_map(|l| l.strip_prefix("VmHWM:")).unwrap_or("0");
    let peak: u64 = peak.trim().trim_end_matches(" kB").parse()?;
    println!("{first} {} {} {} {}", warm[2], peak * 1024, net::Model::WEIGHT_BYTES, net::Model::ARENA_BYTES);
    Ok(())
}
"""

ALIGNED = """#[repr(align(64))]
struct Aligned<T>(T);
macro_rules! aligned {
    ($path:literal) => {{
        static DATA: Aligned<[u8; include_bytes!($path).len()]> = Aligned(*include_bytes!($path));
        &DATA.0[..]
    }};
}
"""

ORT = """
import ctypes, glob, importlib.util, os, statistics, sys, time
import numpy as np, onnx
from onnx import numpy_helper
folder = sys.argv[1]
package = os.path.dirname(importlib.util.find_spec("onnxruntime").origin)
start = time.perf_counter_ns()
for library in glob.glob(os.path.join(package, "capi", "libonnxruntime.so.*")):
    ctypes.CDLL(library)
library = time.perf_counter_ns() - start
import onnxruntime as ort
files = sorted(glob.glob(os.path.join(folder, "test_data_set_0", "input_*.pb")), key=lambda f: int(f.rsplit("_", 1)[1][:-3]))
values = [numpy_helper.to_array(onnx.load_tensor(f)) for f in files]
options = ort.SessionOptions()
options.intra_op_num_threads = options.inter_op_num_threads = 1
options.log_severity_level = 3
start = time.perf_counter_ns()
session = ort.InferenceSession(os.path.join(folder, "model.onnx"), options, providers=["CPUExecutionProvider"])
feed = dict(zip([i.name for i in session.get_inputs()], values))
session.run(None, feed)
first = time.perf_counter_ns() - start
warm = []
for _ in range(5):
    start = time.perf_counter_ns()
    session.run(None, feed)
    warm.append(time.perf_counter_ns() - start)
print(library, first - statistics.median(warm))
"""


def inputs(folder):
    import glob, onnx
    from onnx import numpy_helper
    files = sorted(glob.glob(os.path.join(folder, "test_data_set_0", "input_*.pb")), key=lambda f: int(f.rsplit("_", 1)[1][:-3]))
    return [numpy_helper.to_array(onnx.load_tensor(f)) for f in files]


def build(folder, work, release, built, ints=False):
    """The crate's program, and the bytes of inputs in it. `ints`: small integer inputs are fixed when the model is compiled."""
    name = "start_" + "".join(c if c.isalnum() else "_" for c in os.path.basename(folder.rstrip("/")))
    crate = os.path.join(work, name)
    os.makedirs(os.path.join(crate, "src"), exist_ok=True)
    import onnx
    model = onnx.load(os.path.join(folder, "model.onnx"), load_external_data=False)
    given, dims = inputs(folder), {}
    target = os.path.join(work, "target")
    done = os.path.join(target, "release", name), sum(v.nbytes for v in given)
    if built:
        return done
    for port, value in zip(model.graph.input, given):
        for axis, (d, n) in enumerate(zip(port.type.tensor_type.shape.dim, value.shape)):
            if not d.HasField("dim_value") or d.dim_value <= 0:
                named = any(c.isalnum() for c in d.dim_param)
                dims[d.dim_param if named else f"{port.name}.{axis}"] = n
        if ints and value.dtype.kind == "i" and value.ndim <= 1 and value.size <= 64:
            dims.update({f"{port.name}[{i}]": n for i, n in enumerate(value.reshape(-1).tolist())})
    set_dims = "".join(f".dim({json.dumps(k)}, {v})" for k, v in dims.items())
    items = []
    for k, value in enumerate(given):
        with open(os.path.join(crate, f"input_{k}.bin"), "wb") as f:
            f.write(value.tobytes())
        items.append(f'(aligned!("../input_{k}.bin"), &{list(value.shape)}[..])')
    files = {
        "Cargo.toml": f'[package]\nname = "{name}"\nversion = "0.0.0"\nedition = "2024"\n[dependencies]\nkiln = {{ path = "{ROOT}/runtime-support" }}\n'
        f'[build-dependencies]\nkiln-compiler = {{ path = "{ROOT}/compiler", default-features = false }}\n[profile.release]\n{release}\nstrip = true\n'
        "[profile.release.build-override]\nopt-level = 3\n[workspace]\n",
        "build.rs": f'fn main() {{\n    if let Err(e) = kiln_compiler::Config::new().name("net"){set_dims}.compile({json.dumps(os.path.abspath(folder) + "/model.onnx")}) {{\n'
        '        eprintln!("{e}");\n        std::process::exit(1);\n    }\n}\n',
        "src/main.rs": MAIN,
        "src/inputs.rs": ALIGNED + "pub fn inputs() -> Vec<(&'static [u8], &'static [usize])> {\n    vec![" + ", ".join(items) + "]\n}\n",
    }
    for path, text in files.items():
        full = os.path.join(crate, path)
        if not os.path.exists(full) or open(full).read() != text:
            with open(full, "w") as f:
                f.write(text)
    out = subprocess.run(["cargo", "build", "--release", "-q"], cwd=crate, env={**os.environ, "CARGO_TARGET_DIR": target}, capture_output=True, text=True)
    if out.returncode and not ints:
        return build(folder, work, release, built, True)
    if out.returncode:
        raise RuntimeError(out.stderr.strip()[-1500:])
    return done


def main():
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("folders", nargs="+")
    args.add_argument("--rounds", type=int, default=5)
    args.add_argument("--work", default=os.path.join(tempfile.gettempdir(), "kiln-startup"))
    args.add_argument("--release", default="opt-level = 3")
    args.add_argument("--build-only", action="store_true")
    args.add_argument("--built", action="store_true", help="take the programs that an earlier call built")
    args = args.parse_args()
    os.makedirs(args.work, exist_ok=True)
    print("| model | start-up, ms | ONNX Runtime, ms | its library, ms | its session, ms | ratio | RSS less weights and arena, MB | binary less weights, MB |")
    print("|--|--|--|--|--|--|--|--|")
    for folder in args.folders:
        name = os.path.basename(folder.rstrip("/"))
        try:
            exe, given = build(folder, args.work, args.release, args.built)
            if args.build_only:
                continue
            ours, theirs, rss = [], [], 0
            for _ in range(args.rounds):
                start = time.time_ns()
                out = subprocess.run([exe], capture_output=True, text=True, check=True).stdout
                first, warm, peak, weights, arena = map(int, out.split())
                ours.append(first - start - warm)
                rss = max(rss, peak - weights - arena - given)
                out = subprocess.run([sys.executable, "-c", ORT, folder], capture_output=True, text=True, check=True).stdout
                theirs.append(tuple(map(float, out.split())))
        except (RuntimeError, subprocess.CalledProcessError) as e:
            print(f"{name}: {getattr(e, 'stderr', None) or e}", file=sys.stderr)
            continue
        a = statistics.median(ours) / 1e6
        library, session = (statistics.median(t[k] for t in theirs) / 1e6 for k in range(2))
        b = statistics.median(map(sum, theirs)) / 1e6
        size = os.path.getsize(exe) - weights - given
        print(f"| {name} | {a:.1f} | {b:.1f} | {library:.1f} | {session:.1f} | {a / b:.3f} | {rss / 1e6:.1f} | {size / 1e6:.2f} |", flush=True)


main()
