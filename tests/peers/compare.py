#!/usr/bin/env python3
"""Times kiln's modules, ONNX Runtime and tract on the same cases, interleaved, and prints a Markdown table.

    python -m venv venv && venv/bin/pip install numpy onnx onnxruntime
    cargo build --release -p kiln-compiler --bin kilnc
    cargo build --release --manifest-path tests/peers/Cargo.toml
    venv/bin/python tests/peers/compare.py FOLDER… [--rounds 5] [--iters 10] [--threads 1]

FOLDER holds model.onnx and test_data_set_0 (ONNX's own layout). Each round runs every peer once, one after the other, so
that what else the machine does meets all of them. A time is the median over all runs of all rounds; a ratio is the median
over the rounds of the ratio of the round's medians. Ratios are what counts: the machine's own speed cancels. Needs numpy,
onnx and onnxruntime; a peer that fails is shown as such.
"""
import argparse, json, math, os, re, statistics, subprocess, sys, time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))


def target_dir(manifest_dir):
    return os.environ.get("CARGO_TARGET_DIR", os.path.join(manifest_dir, "target"))


def kiln(folder, iters, threads, names):
    exe = os.path.join(target_dir(ROOT), "release", "kilnc")
    args = [exe, "bench", os.path.join(folder, "model.onnx"), "--iters", str(iters), "--threads", str(threads), "--json", "-q"]
    for k, name in enumerate(names):
        args += ["--input", f"{name}=" + os.path.join(folder, "test_data_set_0", f"input_{k}.pb")]
    out = subprocess.run(args, capture_output=True, text=True)
    if out.returncode:
        raise RuntimeError(out.stderr.strip()[-200:])
    result = json.loads(out.stdout)
    return result.get("times_ns") or [result["median_ns"]]


def inbench(exe, folder, iters):
    """The same program run inside the compiler (cargo build --release -p kiln-compiler --example inbench): no module is built."""
    out = subprocess.run([exe, folder, str(iters), "0"], capture_output=True, text=True)
    found = re.search(r"median (\d+) us", out.stdout)
    if out.returncode or not found:
        raise RuntimeError(out.stderr.strip()[-200:])
    return [int(found[1]) * 1000]


def tract(folder, iters):
    exe = os.path.join(target_dir(HERE), "release", "kiln-peers")
    out = subprocess.run([exe, folder, str(iters)], capture_output=True, text=True)
    if out.returncode:
        raise RuntimeError(out.stderr.strip()[-200:])
    return [int(x) for x in out.stdout.split()]


class OnnxRuntime:
    def __init__(self, folder, threads):
        import numpy, onnx, onnxruntime as ort
        from onnx import numpy_helper
        options = ort.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 3
        self.session = ort.InferenceSession(os.path.join(folder, "model.onnx"), options, providers=["CPUExecutionProvider"])
        self.feed = {}
        for k, i in enumerate(self.session.get_inputs()):
            with open(os.path.join(folder, "test_data_set_0", f"input_{k}.pb"), "rb") as f:
                t = onnx.TensorProto.FromString(f.read())
            self.feed[i.name] = numpy_helper.to_array(t)

    def __call__(self, iters):
        for _ in range(2):
            self.session.run(None, self.feed)
        times = []
        for _ in range(iters):
            start = time.perf_counter_ns()
            self.session.run(None, self.feed)
            times.append(time.perf_counter_ns() - start)
        return times


def main():
    p = argparse.ArgumentParser()
    p.add_argument("folders", nargs="+")
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--iters", type=int, default=10)
    p.add_argument("--threads", type=int, default=1)
    p.add_argument("--inbench", metavar="EXE", help="time kiln by this example of kiln-compiler instead of built modules")
    a = p.parse_args()
    print("| model | kiln, ms | ONNX Runtime, ms | tract, ms | kiln / ONNX Runtime | kiln / tract |\n|--|--|--|--|--|--|")
    ratios = {"ort": [], "tract": []}
    for folder in a.folders:
        folder = folder.rstrip("/")
        times = {"kiln": [], "ort": [], "tract": []}
        errors = {}
        session = OnnxRuntime(folder, a.threads)
        for _ in range(a.rounds):
            for name in times:
                if name in errors:
                    continue
                try:
                    if name == "ort":
                        times[name].append(session(a.iters))
                    elif name == "tract":
                        times[name].append(tract(folder, a.iters))
                    elif a.inbench:
                        times[name].append(inbench(a.inbench, folder, a.iters))
                    else:
                        times[name].append(kiln(folder, a.iters, a.threads, list(session.feed)))
                except Exception as e:
                    errors[name] = str(e)
                    print(f"{os.path.basename(folder)}: {name}: {e}", file=sys.stderr)
        ms = {k: statistics.median(sum(v, [])) / 1e6 if v else None for k, v in times.items()}
        text = lambda x: f"{x:.2f}" if x is not None else "–"
        rounds = lambda peer: [statistics.median(k) / statistics.median(p) for k, p in zip(times["kiln"], times[peer])]
        ratio = lambda peer: statistics.median(rounds(peer)) if rounds(peer) else None
        for peer in ratios:
            if ratio(peer):
                ratios[peer].append(ratio(peer))
        row = [os.path.basename(folder), text(ms["kiln"]), text(ms["ort"]), text(ms["tract"]), text(ratio("ort")), text(ratio("tract"))]
        print("| " + " | ".join(row) + " |", flush=True)
    mean = lambda v: math.exp(sum(map(math.log, v)) / len(v)) if v else float("nan")
    print(f"| geometric mean | | | | {mean(ratios['ort']):.2f} | {mean(ratios['tract']):.2f} |")


if __name__ == "__main__":
    main()
