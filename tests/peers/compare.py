#!/usr/bin/env python3
"""Times kiln's modules, ONNX Runtime, OpenVINO, tract and rten on the same cases, interleaved, and prints a Markdown table.

    python -m venv venv && venv/bin/pip install numpy onnx onnxruntime openvino tract
    cargo build --release -p kiln-compiler --bin kilnc --example instreams
    cargo build --release --manifest-path tests/peers/Cargo.toml      # rten; tract too, where its Python package is missing
    venv/bin/python tests/peers/compare.py FOLDER… [--rounds 12] [--iters 3] [--threads 1] [--peers ort,openvino,tract,rten]
        [--instreams target/release/examples/instreams]

FOLDER holds model.onnx and test_data_set_0 (ONNX's own layout). All models stay loaded; each round runs every peer `iters` times,
one peer after the other, after a short pause and a run that is not counted, so that what else the machine does meets all of them. A time is the
median over all runs of all rounds; a ratio is the median over the rounds of the ratio of the round's medians. Ratios are what
counts: the machine's own speed cancels. With `--instreams` kiln's programs run inside the compiler (the same kernels, plan and
threads, and no module is built); without it `kilnc bench` builds a module and starts it anew in each round. A peer that cannot run
a model is shown as a dash, with its reason on standard error. OpenVINO computes in f32 (its precision hint, and without the dynamic
quantisation that it does by default where weights are int8: with it minilm_int8's result is 3 % off, rms over standard deviation);
tract has one thread.
"""
import argparse, importlib.util, json, math, os, statistics, subprocess, sys, time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))


def target_dir(manifest_dir):
    return os.environ.get("CARGO_TARGET_DIR", os.path.join(manifest_dir, "target"))


class Built:
    """A module of kiln's, built and started by `kilnc bench`, which warms up by itself."""

    def __init__(self, folder, threads, names):
        exe = os.path.join(target_dir(ROOT), "release", "kilnc")
        self.args = [exe, "bench", os.path.join(folder, "model.onnx"), "--threads", str(threads), "--json", "-q"]
        for k, name in enumerate(names):
            self.args += ["--input", f"{name}=" + os.path.join(folder, "test_data_set_0", f"input_{k}.pb")]

    def __call__(self, iters):
        out = subprocess.run([*self.args, "--iters", str(iters)], capture_output=True, text=True)
        if out.returncode:
            raise RuntimeError(out.stderr.strip()[-200:])
        result = json.loads(out.stdout)
        return result.get("times_ns") or [result["median_ns"]]

    def stop(self):
        pass


class Served:
    """A program that answers each number on its standard input with so many times, one a line."""

    def __init__(self, *args):
        self.process = subprocess.Popen(args, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def __call__(self, iters):
        try:
            self.process.stdin.write(f"{iters}\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass
        lines = [self.process.stdout.readline() for _ in range(iters)]
        if "" in lines:
            raise RuntimeError(self.process.stderr.read().strip()[-200:])
        return [int(line) for line in lines]

    def stop(self):
        self.process.kill()
        self.process.wait()


class InProcess:
    """A peer that is a Python package: `call()` runs the model once."""

    def __init__(self, call):
        self.call = call

    def __call__(self, iters):
        self.call()
        times = []
        for _ in range(iters):
            start = time.perf_counter_ns()
            self.call()
            times.append(time.perf_counter_ns() - start)
        return times

    def stop(self):
        pass


def onnx_runtime(folder, threads):
    import onnxruntime as ort
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    session = ort.InferenceSession(os.path.join(folder, "model.onnx"), options, providers=["CPUExecutionProvider"])
    values = dict(zip([i.name for i in session.get_inputs()], inputs(folder)))
    return InProcess(lambda: session.run(None, values))


def inputs(folder):
    import onnx
    from onnx import numpy_helper
    files = (os.path.join(folder, "test_data_set_0", f"input_{k}.pb") for k in range(1000))
    tensors = []
    for name in files:
        if not os.path.exists(name):
            return tensors
        with open(name, "rb") as f:
            tensors.append(numpy_helper.to_array(onnx.TensorProto.FromString(f.read())))


def input_names(folder):
    import onnx
    graph = onnx.load(os.path.join(folder, "model.onnx"), load_external_data=False).graph
    weights = {t.name for t in graph.initializer}
    return [i.name for i in graph.input if i.name not in weights]


def tract_package(folder):
    import tract
    values = inputs(folder)
    model = tract.onnx().load(os.path.join(folder, "model.onnx"))
    types = {"float32": "f32", "float64": "f64", "int64": "i64", "int32": "i32", "bool": "bool"}
    for k, v in enumerate(values):
        model.set_input_fact(k, ",".join([*map(str, v.shape), types[str(v.dtype)]]))
    runnable = model.into_model().into_runnable()
    tensors = [tract.Tensor.from_numpy(v) for v in values]
    return InProcess(lambda: runnable.run(tensors))


def openvino(folder, threads):
    import openvino as ov
    core = ov.Core()
    model = core.read_model(os.path.join(folder, "model.onnx"))
    values = inputs(folder)
    model.reshape({port: list(value.shape) for port, value in zip(model.inputs, values)})
    settings = {"INFERENCE_NUM_THREADS": threads, "INFERENCE_PRECISION_HINT": "f32", "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0", "PERFORMANCE_HINT": "LATENCY", "NUM_STREAMS": 1}
    request = core.compile_model(model, "CPU", settings).create_infer_request()
    for k, value in enumerate(values):
        request.set_input_tensor(k, ov.Tensor(value))
    return InProcess(request.infer)


def measure(name, folder, a, has_tract):
    """What times `name` on `folder`: a function from a number of runs to nanoseconds for each."""
    if name == "kiln" and a.instreams:
        return Served(a.instreams, folder, str(a.threads), "serve")
    if name == "kiln":
        return Built(folder, a.threads, input_names(folder))
    if name == "ort":
        return onnx_runtime(folder, a.threads)
    if name == "openvino":
        return openvino(folder, a.threads)
    if name == "tract" and has_tract:
        return tract_package(folder)
    return Served(os.path.join(target_dir(HERE), "release", "kiln-peers"), name, folder, str(a.threads))


TITLES = {"ort": "ONNX Runtime", "openvino": "OpenVINO", "tract": "tract", "rten": "rten"}


def main():
    p = argparse.ArgumentParser()
    p.add_argument("folders", nargs="+")
    p.add_argument("--rounds", type=int, default=12)
    p.add_argument("--iters", type=int, default=3)
    p.add_argument("--threads", type=int, default=1)
    p.add_argument("--peers", default="ort,tract", help="of ort, openvino, tract, rten")
    p.add_argument("--instreams", metavar="EXE", help="time kiln by this example of kiln-compiler instead of built modules")
    a = p.parse_args()
    peers = a.peers.split(",")
    has_tract = importlib.util.find_spec("tract") is not None
    titles = [TITLES[peer] for peer in peers]
    heads = ["model", "kiln, ms"] + [t + ", ms" for t in titles] + ["kiln / " + t for t in titles]
    print("| " + " | ".join(heads) + " |\n" + "|--" * len(heads) + "|", flush=True)
    text = lambda x: f"{x:.2f}" if x is not None else "–"
    ratios = {peer: [] for peer in peers}
    for folder in a.folders:
        folder = folder.rstrip("/")
        times = {name: [] for name in ["kiln", *peers]}
        running, failed = {}, set()
        for _ in range(a.rounds):
            for name in times:
                if name in failed:
                    continue
                try:
                    running[name] = running.get(name) or measure(name, folder, a, has_tract)
                    # Threads of the peer before still wait for work in a loop: not on this one's time.
                    time.sleep(0.05)
                    times[name].append(running[name](a.iters))
                except Exception as e:
                    failed.add(name)
                    print(f"{os.path.basename(folder)}: {name}: {e}", file=sys.stderr)
        for peer in running.values():
            peer.stop()
        row = [os.path.basename(folder)] + [text(statistics.median(sum(v, [])) / 1e6 if v else None) for v in times.values()]
        for peer in peers:
            rounds = [statistics.median(k) / statistics.median(p) for k, p in zip(times["kiln"], times[peer])]
            row.append(text(statistics.median(rounds) if rounds else None))
            if rounds:
                ratios[peer].append(statistics.median(rounds))
        print("| " + " | ".join(row) + " |", flush=True)
    mean = lambda v: f"{math.exp(sum(map(math.log, v)) / len(v)):.2f}" if v else "–"
    print("| geometric mean |" + " |" * (1 + len(peers)) + "".join(f" {mean(v)} |" for v in ratios.values()))


if __name__ == "__main__":
    main()
