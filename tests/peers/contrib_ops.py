"""Random settings of ONNX Runtime's own operators: attributes, shapes, types, operands constant or given in the run.

In: a folder to write, the number of settings of each operator, names of operators (default: all). Out: below the folder one
case in ONNX's layout for every setting that ONNX Runtime's CPU kernels take, with their results as what is expected. Compare with

    python contrib_ops.py OUT 100
    cargo run --release -p kiln-compiler --example insuite -- OUT

`SEED=N` gives other settings. Of prompts of different lengths the rows behind a prompt's end are left out: ONNX Runtime leaves
there what it finds. Needs: numpy, onnx, onnxruntime.
"""

import sys, os, json, random, shutil, warnings
import numpy as np, onnx, onnxruntime as ort
from onnx import helper as h, numpy_helper as nh, TensorProto as T

warnings.filterwarnings("ignore")
ort.set_default_logger_severity(4)
OUT = sys.argv[1]
N = int(sys.argv[2])
ONLY = sys.argv[3:]
SEED = int(os.environ.get("SEED", "0"))
rng = np.random.default_rng(SEED)
R = random.Random(SEED)
MS = "com.microsoft"
DT = {
    np.dtype("float32"): T.FLOAT,
    np.dtype("float16"): T.FLOAT16,
    np.dtype("float64"): T.DOUBLE,
    np.dtype("uint8"): T.UINT8,
    np.dtype("int8"): T.INT8,
    np.dtype("int32"): T.INT32,
    np.dtype("int64"): T.INT64,
    np.dtype("int16"): T.INT16,
    np.dtype("uint16"): T.UINT16,
    np.dtype("bool"): T.BOOL,
}


class Case:
    def __init__(s, op, domain=MS, **attrs):
        s.op, s.domain, s.attrs = op, domain, {k: v for k, v in attrs.items() if v is not None}
        s.ins, s.names, s.inits, s.nout, s.tol = [], [], {}, 1, None
        s.keep = None

    def x(s, a, const=None):
        if a is None:
            s.names.append("")
            return s
        a = np.asarray(a)
        n = f"x{len(s.names)}"
        s.names.append(n)
        a = np.ascontiguousarray(a) if a.shape else a
        if const:
            s.inits[n] = a
        else:
            s.ins.append((n, a))
        return s

    def c(s, a):
        return s.x(a, True)

    def mix(s, a, p=0.7):
        return s.x(a, R.random() < p)

    def outs(s, n):
        s.nout = n
        return s

    def t(s, r, a):
        s.tol = (r, a)
        return s


def f32(*d, s=1.0):
    return (rng.standard_normal(d) * s).astype(np.float32)


def q(dt, *d):
    i = np.iinfo(dt)
    return rng.integers(i.min, i.max + 1, d).astype(dt)


def qs(dt):
    return R.choice([np.uint8, np.int8]) if dt is None else dt


def sc(lo=0.002, hi=0.1):
    return np.float32(rng.uniform(lo, hi)).reshape(())


def zp(dt):
    return np.array(rng.integers(np.iinfo(dt).min, np.iinfo(dt).max + 1), dt) if R.random() < 0.8 else np.array(0, dt)


def ch(*a):
    return R.choice(a)


def dims(r, hi=6):
    return [int(rng.integers(1, hi + 1)) for _ in range(r)]


def bshape(s):
    s2 = [d if R.random() < 0.6 else 1 for d in s]
    return s2[R.randrange(len(s2) + 1) :] if R.random() < 0.4 else s2


def optz(c, z, p=0.15, const=True):
    return c.x(None) if R.random() < p and z == 0 else (c.c(z) if const else c.x(z))


def QLinearBin(op):
    dt = qs(None)
    s = dims(R.randrange(1, 5))
    a, b = (s, bshape(s)) if R.random() < 0.5 else (bshape(s), s)
    if R.random() < 0.3:
        a = b = s
    if R.random() < 0.2:
        a = b = [257]
    c = Case(op)
    k = R.random() < 0.8
    c.x(q(dt, *a))
    c.x(sc(), k)
    c.x(zp(dt), k)
    c.x(q(dt, *b), R.random() < 0.4)
    c.x(sc(), k)
    c.x(zp(dt), k)
    c.x(sc(0.0005, 0.2), k)
    c.x(zp(dt), k)
    return c


def g_QLinearAdd():
    return QLinearBin("QLinearAdd")


def g_QLinearMul():
    return QLinearBin("QLinearMul")


def qun(op, **at):
    dt = qs(None)
    c = Case(op, **at)
    k = R.random() < 0.8
    c.x(q(dt, *(dims(R.randrange(1, 5)) if R.random() < 0.5 else [300])))
    c.x(sc(), k)
    c.x(zp(dt), k)
    c.x(sc(), k)
    c.x(zp(dt), k)
    return c


def g_QLinearSigmoid():
    dt = qs(None)
    c = Case("QLinearSigmoid")
    k = R.random() < 0.8
    return (
        c.x(q(dt, 300))
        .x(sc(), k)
        .x(zp(dt), k)
        .x(np.float32(1 / 256).reshape(()) if R.random() < 0.5 else sc(0.001, 0.01), k)
        .x(zp(dt), k)
    )


def g_QLinearLeakyRelu():
    return qun("QLinearLeakyRelu", alpha=ch(None, 0.1, 0.5, -0.3, 1.5, 0.0))


def g_QLinearSoftmax():
    dt = qs(None)
    op = ch(11, 13)
    r = R.randrange(1, 5)
    c = Case("QLinearSoftmax", axis=R.randrange(-r, r), opset=op)
    k = R.random() < 0.8
    return (
        c.x(q(dt, *dims(r)))
        .x(sc(0.01, 0.2), k)
        .x(zp(dt), k)
        .x(np.float32(1 / 256).reshape(()) if R.random() < 0.7 else sc(0.001, 0.02), k)
        .x(np.array(np.iinfo(dt).min, dt) if R.random() < 0.7 else zp(dt), k)
    )


def g_QLinearGlobalAveragePool():
    dt = qs(None)
    cl = ch(None, 0, 1)
    c = Case("QLinearGlobalAveragePool", channels_last=cl)
    k = R.random() < 0.8
    s = [R.randrange(1, 4), R.choice([1, 3, 5, 8, 16, 32, 33])] + dims(2, 8)
    if cl == 1:
        s = [s[0]] + s[2:] + [s[1]]
    return c.x(q(dt, *s)).x(sc(), k).x(zp(dt), k).x(sc(), k).x(zp(dt), k)


def g_QLinearAveragePool():
    dt = qs(None)
    cl = ch(None, 0, 1)
    n = R.choice([1, 2, 2, 2, 3])
    if n != 2 and cl == 1 and R.random() < 0.5:
        n = 2
    ks = [R.randrange(1, 4) for _ in range(n)]
    sp = [R.randrange(k, 9) for k in ks]
    at = dict(kernel_shape=ks, channels_last=cl, ceil_mode=ch(None, 0, 1), count_include_pad=ch(None, 0, 1))
    if R.random() < 0.6:
        at["strides"] = [R.randrange(1, 4) for _ in range(n)]
    m = R.random()
    if m < 0.5:
        at["pads"] = [R.randrange(0, k) for k in ks * 2]
    elif m < 0.7:
        at["auto_pad"] = ch("SAME_UPPER", "SAME_LOWER", "VALID")
    c = Case("QLinearAveragePool", **at)
    k = R.random() < 0.8
    C = R.choice([1, 3, 8, 16, 20])
    s = [R.randrange(1, 3), C] + sp
    if cl == 1:
        s = [s[0]] + s[2:] + [s[1]]
    return c.x(q(dt, *s)).x(sc(), k).x(zp(dt), k).x(sc(), k).x(zp(dt), k)


def g_QLinearConcat():
    dt = qs(None)
    r = R.randrange(1, 5)
    ax = R.randrange(-r, r)
    s = dims(r)
    c = Case("QLinearConcat", axis=ax)
    k = R.random() < 0.8
    c.x(sc(), k).x(zp(dt), k)
    same = R.random() < 0.2
    for _ in range(R.randrange(1, 5)):
        s2 = list(s)
        s2[ax] = R.randrange(1, 6)
        c.x(q(dt, *s2)).x(sc(), k).x(zp(dt), k)
    return c


def g_QLinearWhere():
    dt = qs(None)
    s = dims(3)
    k = R.random() < 0.8
    return (
        Case("QLinearWhere")
        .x(rng.integers(0, 2, bshape(s)).astype(bool))
        .x(q(dt, *s))
        .x(sc(), k)
        .x(zp(dt), k)
        .x(q(dt, *bshape(s)))
        .x(sc(), k)
        .x(zp(dt), k)
        .x(sc(), k)
        .x(zp(dt), k)
    )


def g_QLinearConv():
    dt = qs(None)
    wd = R.choice([dt, np.int8]) if dt == np.uint8 else np.int8
    cl = ch(None, 0, 1)
    g = R.choice([1, 1, 2])
    n = R.choice([1, 2, 2])
    cin, cout = g * R.randrange(1, 5), g * R.randrange(1, 9)
    ks = [R.randrange(1, 4) for _ in range(n)]
    at = dict(channels_last=cl, group=g, kernel_shape=ks)
    if R.random() < 0.5:
        at["pads"] = [R.randrange(0, k + 1) for k in ks * 2]
    if R.random() < 0.4:
        at["strides"] = [R.randrange(1, 3) for _ in range(n)]
    if R.random() < 0.3:
        at["dilations"] = [R.randrange(1, 3) for _ in range(n)]
    s = [R.randrange(1, 3), cin] + [R.randrange(2 * k, 10) for k in ks]
    if cl == 1:
        s = [s[0]] + s[2:] + [s[1]]
    per = R.random() < 0.5
    c = Case("QLinearConv", **at)
    c.x(q(dt, *s)).c(sc()).c(zp(dt)).c(q(wd, cout, cin // g, *ks))
    if per:
        c.c(rng.uniform(0.002, 0.1, cout).astype(np.float32)).c(
            np.zeros(cout, wd) if wd == np.int8 else np.full(cout, 128, wd)
        )
    else:
        c.c(sc()).c(zp(wd) if R.random() < 0.5 else np.array(0, wd))
    c.c(sc()).c(zp(dt))
    if R.random() < 0.5:
        c.c(rng.integers(-1000, 1000, cout).astype(np.int32))
    return c


def g_QGemm():
    ad = qs(None)
    bd = R.choice([np.uint8, np.int8]) if ad == np.uint8 else np.int8
    m, k, n = dims(3, 20)
    ta, tb = ch(None, 0, 1), ch(None, 0, 1)
    c = Case("QGemm", transA=ta, transB=tb, alpha=ch(None, 1.0, 0.5, 2.0))
    per = R.random() < 0.4
    c.x(q(ad, *((k, m) if ta else (m, k)))).c(sc()).c(zp(ad))
    c.x(q(bd, *((n, k) if tb else (k, n))), R.random() < 0.7)
    if per:
        c.c(rng.uniform(0.002, 0.1, n).astype(np.float32)).c(q(bd, n))
    else:
        c.c(sc()).c(zp(bd))
    sh = R.choice([None, (n,), (1, n), (m, n), (m, 1), (1,), ()])
    c.x(None if sh is None else rng.integers(-3000, 3000, sh).astype(np.int32), R.random() < 0.6)
    if R.random() < 0.6:
        c.c(sc(0.01, 0.3)).c(zp(ad))
    return c.t(1e-4, 1e-4)


ACT = {"Relu": None, "LeakyRelu": [0.1], "Tanh": None, "Sigmoid": None, "Clip": [-0.5, 0.7], "HardSigmoid": [0.25, 0.4]}


def convatts():
    n = R.choice([1, 2, 2, 3])
    g = R.choice([1, 1, 2, 3])
    ks = [R.randrange(1, 4) for _ in range(n)]
    at = dict(group=g, kernel_shape=ks if R.random() < 0.7 else None)
    m = R.random()
    if m < 0.4:
        at["pads"] = [R.randrange(0, k + 1) for k in ks * 2]
    elif m < 0.6:
        at["auto_pad"] = ch("SAME_UPPER", "SAME_LOWER", "VALID")
    if R.random() < 0.4:
        at["strides"] = [R.randrange(1, 3) for _ in range(n)]
    if R.random() < 0.3 and "auto_pad" not in at:
        at["dilations"] = [R.randrange(1, 3) for _ in range(n)]
    return n, g, ks, at


def g_FusedConv():
    n, g, ks, at = convatts()
    act = ch(None, *ACT)
    if act:
        at["activation"] = act
        at["activation_params"] = ACT[act]
    cin, cout = g * R.randrange(1, 5), g * R.randrange(1, 9)
    x = f32(R.randrange(1, 3), cin, *[R.randrange(2 * k, 10) for k in ks])
    w = f32(cout, cin // g, *ks)
    b = f32(cout)
    c = Case("FusedConv", **at).x(x).mix(w)
    hasb = R.random() < 0.6
    if hasb:
        c.mix(b)
    if n < 3 and R.random() < 0.4:
        if not hasb:
            c.x(None)
        conv = h.make_node(
            "Conv",
            ["x", "w"],
            ["y"],
            **{k: v for k, v in at.items() if not k.startswith("activation") and v is not None},
        )
        gr = h.make_graph(
            [conv],
            "g",
            [h.make_tensor_value_info("x", 1, x.shape), h.make_tensor_value_info("w", 1, w.shape)],
            [h.make_tensor_value_info("y", 1, None)],
        )
        y = ort.InferenceSession(
            h.make_model(gr, opset_imports=[h.make_opsetid("", 11)], ir_version=8).SerializeToString()
        ).run(None, dict(x=x, w=w))[0]
        c.x(f32(*y.shape))
    return c.t(1e-3, 1e-4)


def g_FusedMatMul():
    dt = R.choice([np.float32, np.float32, np.float64])
    r = R.randrange(2, 5)
    b1 = dims(r - 2, 3)
    m, k, n = dims(3, 9)
    ta, tb = ch(None, 0, 1), ch(None, 0, 1)
    tba = tbb = None
    a = b1 + ([k, m] if ta else [m, k])
    b = bshape(b1 + [1, 1])[:-2] if len(b1) else []
    b = b + ([n, k] if tb else [k, n])
    if R.random() < 0.3 and r >= 3:
        b = b1 + ([n, k] if tb else [k, n])
        tba, tbb = ch(0, 1), ch(0, 1)

        # transBatch: [M, batch.., K]: batch dims and M exchange
        def tr(s):
            return [s[-2]] + s[:-2] + [s[-1]]

        if tba:
            a = tr(a)
        if tbb:
            b = tr(b)
    return (
        Case("FusedMatMul", transA=ta, transB=tb, transBatchA=tba, transBatchB=tbb, alpha=ch(None, 0.5, 2.0))
        .x(rng.standard_normal(a).astype(dt))
        .mix(rng.standard_normal(b).astype(dt), 0.4)
        .t(1e-3, 1e-5)
    )


def g_FusedGemm():
    m, k, n = dims(3, 20)
    ta, tb = ch(None, 0, 1), ch(None, 0, 1)
    act = ch(
        "Relu", "LeakyRelu", "Tanh", "Sigmoid", "Elu", "HardSigmoid", "Selu", "Softplus", "Softsign", "ThresholdedRelu"
    )
    at = {}
    if act in ("LeakyRelu", "Elu", "HardSigmoid", "ThresholdedRelu") and R.random() < 0.7:
        at["activation_alpha"] = 0.3
    if act == "HardSigmoid" and R.random() < 0.7:
        at["activation_beta"] = 0.4
    c = (
        Case("FusedGemm", transA=ta, transB=tb, alpha=ch(1.0, 0.5), beta=ch(1.0, 0.5), activation=act, **at)
        .x(f32(*((k, m) if ta else (m, k))))
        .mix(f32(*((n, k) if tb else (k, n))))
    )
    if R.random() < 0.7:
        c.mix(f32(*R.choice([(n,), (1, n), (m, n), (m, 1), (1,), ()])))
    return c.t(1e-3, 1e-4)


def g_Gelu():
    return Case("Gelu").x(f32(*dims(R.randrange(0, 4), 40), s=3)).t(1e-3, 1e-6)


def g_FastGelu():
    s = dims(R.randrange(1, 4), 40)
    c = Case("FastGelu").x(f32(*s, s=3))
    if R.random() < 0.5:
        c.mix(f32(s[-1]))
    return c.t(1e-3, 1e-5)


def g_BiasGelu():
    s = dims(R.randrange(1, 4), 40)
    return Case("BiasGelu").x(f32(*s, s=3)).mix(f32(s[-1])).t(1e-3, 1e-5)


def g_QuickGelu():
    return (
        Case("QuickGelu", alpha=ch(None, 1.0, 0.5, 1.702, -1.0, 0.0))
        .x(f32(*dims(R.randrange(1, 4), 40), s=3))
        .t(1e-3, 1e-5)
    )


def g_SkipLayerNormalization(op="SkipLayerNormalization"):
    dt = R.choice([np.float32, np.float32, np.float32, np.float16])
    s = dims(3, 6)
    s[-1] = R.choice([1, 4, 16, 33, 64])
    if R.random() < 0.25:
        s = s[1:]
    skip = s if R.random() < 0.5 else ([1] + s[1:] if R.random() < 0.5 else s[1:])
    if len(s) == 2:
        skip = s
    m = lambda *d: f32(*d).astype(dt)
    c = Case(op, epsilon=ch(None, 1e-5, 1e-2)).x(m(*s)).x(m(*skip)).mix(m(s[-1]))
    if op == "SkipLayerNormalization":
        c.mix(m(s[-1])) if R.random() < 0.7 else c.x(None)
    if R.random() < 0.5:
        c.mix(m(s[-1]))
    while c.names and c.names[-1] == "":
        c.names.pop()
    c.outs(R.choice([1, 4]))
    c.t(1e-3, 1e-5) if dt == np.float32 else c.t(1e-2, 1e-2)
    if c.nout == 4:
        c.nout = [0, 3]
    return c


def g_SkipSimplifiedLayerNormalization():
    return g_SkipLayerNormalization("SkipSimplifiedLayerNormalization")


def g_SimplifiedLayerNormalization():
    r = R.randrange(1, 5)
    s = dims(r, 8)
    ax = R.randrange(-r, r)
    dt = R.choice([np.float32, np.float32, np.float16, np.float64])
    return (
        Case("SimplifiedLayerNormalization", "", axis=ax, epsilon=ch(None, 1e-2), stash_type=1)
        .x(f32(*s).astype(dt))
        .mix(f32(*s[ax:]).astype(dt))
        .outs(1)
        .t(*((1e-3, 1e-5) if dt != np.float16 else (1e-2, 1e-2)))
    )


def g_EmbedLayerNormalization():
    b, r, n = R.randrange(1, 4), R.randrange(1, 6), R.choice([4, 8, 33])
    V = 20
    seg = R.random() < 0.6
    c = Case("EmbedLayerNormalization", epsilon=ch(None, 1e-3), mask_index_type=ch(None, 0, 1))
    c.x(rng.integers(0, V, (b, r)).astype(np.int32))
    c.x(rng.integers(0, 2, (b, r)).astype(np.int32) if seg else None)
    c.c(f32(V, n)).c(f32(12, n))
    c.c(f32(2, n)) if seg else c.x(None)
    c.c(f32(n)).c(f32(n))
    hm, hp = R.random() < 0.5, R.random() < 0.5
    if hm or hp:
        m = np.zeros((b, r), np.int32)
        for i in range(b):
            m[i, : R.randrange(1, r + 1)] = 1
        c.x(m if hm else None)
    if hp:
        c.x(rng.integers(0, 12, (R.choice([1, b]), r)).astype(np.int32))
    c.nout = R.choice([2, 3])
    return c.t(1e-3, 1e-5)


def mask_of(b, s, total, kinds):
    k = R.choice(kinds)
    if k == 0:
        return None
    if k == "len":
        return rng.integers(1, total + 1, b).astype(np.int32)
    if k == "2b":
        e = rng.integers(1, total + 1, b)
        st = [rng.integers(0, v) for v in e]
        return np.concatenate([e, st]).astype(np.int32)
    if k == "3b2":
        kl = rng.integers(1, total + 1, b)
        ql = rng.integers(1, s + 1, b)
        return np.concatenate([kl, np.concatenate([[0], np.cumsum(ql)]), np.concatenate([[0], np.cumsum(kl)])]).astype(
            np.int32
        )
    sh = dict(m2=(b, total), m3=(b, s, total))[k]
    m = (rng.random(sh) < 0.7).astype(np.int32)
    m[..., 0] = 1
    return m


def g_Attention():
    b, s, H = R.randrange(1, 4), R.randrange(1, 6), R.choice([1, 2, 4])
    sz = R.choice([4, 8])
    D = R.choice([4, 8, 12])
    past = R.choice([None, None, 2, 0]) if R.random() < 0.6 else None
    vsz = sz if past is not None or R.random() < 0.6 else R.choice([4, 8, 16])
    uni = ch(None, 0, 1)
    qkv = [H * sz, H * sz, H * vsz]
    nout = 1
    if vsz == sz and (past is not None or R.random() < 0.3):
        nout = 2
    total = s + (past or 0)
    c = Case(
        "Attention",
        num_heads=H,
        unidirectional=uni,
        qkv_hidden_sizes=qkv if vsz != sz or R.random() < 0.3 else None,
        scale=ch(None, None, 0.3),
        mask_filter_value=ch(None, None, -1e4, -3.0),
    )
    if R.random() < 0.15 and sz == 8:
        c.attrs["do_rotary"] = 1
    (
        c.x(f32(b, s, D)).mix(f32(D, sum(qkv), s=0.5)).mix(f32(sum(qkv)))
        if R.random() < 0.85
        else c.x(f32(b, s, D)).mix(f32(D, sum(qkv), s=0.5)).x(None)
    )
    m = mask_of(b, s, total, [0, "len", "2b", "3b2", "m2", "m3"])
    bias = R.random() < 0.35
    if m is not None or past is not None or bias:
        c.x(m)
    if past is not None or bias:
        c.x(f32(2, b, H, past, sz) if past is not None else None)
    if bias:
        c.x(f32(R.choice([1, b]), R.choice([1, H]), s, total))
    return c.outs(nout).t(1e-3, 1e-4)


def g_MultiHeadAttention():
    b, s, H = R.randrange(1, 4), R.randrange(1, 6), R.choice([1, 2, 4])
    sz = R.choice([4, 8])
    vsz = R.choice([sz, 4, 8])
    kv = R.choice([s, R.randrange(1, 7)])
    form = R.choice(["sep", "sep", "sep", "cross4"])
    uni = ch(None, 0, 1)
    past = None
    c = Case(
        "MultiHeadAttention",
        num_heads=H,
        unidirectional=uni,
        scale=ch(None, 0.3),
        mask_filter_value=ch(None, None, -3.0),
    )
    if form == "qkvp":
        kv = s
        vsz = sz
        c.x(f32(b, s, H, 3, sz)).x(None).x(None)
    elif form == "kvp":
        vsz = sz
        c.x(f32(b, s, H * sz)).x(f32(b, kv, H, 2, sz)).x(None)
    elif form == "cross4":
        c.x(f32(b, s, H * sz)).x(f32(b, H, kv, sz)).x(f32(b, H, kv, vsz))
    else:
        c.x(f32(b, s, H * sz)).x(f32(b, kv, H * sz)).x(f32(b, kv, H * vsz))
    bias = R.random() < 0.4
    c.mix(f32(H * (2 * sz + vsz)) if form == "sep" and bias or form == "cross4" and bias else None)
    if form == "sep" and R.random() < 0.3:
        past = R.randrange(0, 4)
    total = kv + (past or 0)
    m = mask_of(b, s, total, [0, 0, "len", "3b2", "m2", "m3"])
    c.x(m)
    c.x(f32(R.choice([1, b]), R.choice([1, H]), s, total) if R.random() < 0.35 else None)
    if past is not None:
        c.x(f32(b, H, past, sz)).x(f32(b, H, past, vsz))
    nout = R.choice([1, 3]) if past is not None or (form == "sep" and R.random() < 0.2) else 1
    if past is not None:
        nout = R.choice([3, 3, 4])
    elif R.random() < 0.15:
        nout = [0, 3]
    while c.names and c.names[-1] == "":
        c.names.pop()
    return c.outs(nout).t(1e-3, 1e-4)


def g_GroupQueryAttention():
    b, Hkv = R.randrange(1, 4), R.choice([1, 2])
    H = Hkv * R.choice([1, 2, 3])
    sz = R.choice([16, 16, 32])
    mode = R.choice(["prompt", "prompt", "rprompt", "decode", "decode", "chunk"])
    dt = np.float32
    buf = None
    if mode in ("prompt", "rprompt"):
        s = R.randrange(2, 8)
        lens = np.full(b, s) if mode == "prompt" else rng.integers(1, s + 1, b)
        if mode == "rprompt" and R.random() < 0.7:
            lens[R.randrange(b)] = s
        total = int(max(lens.max(), s)) if mode == "rprompt" else s
        pastn = R.choice([None, 0, R.randrange(s, s + 5)])
    elif mode == "decode":
        s = 1
        lens = rng.integers(1, 9, b)
        total = int(lens.max())
        pastn = R.choice([total - 1, total + R.randrange(0, 4)])
    else:
        s = R.randrange(2, 4)
        b = 1
        l = R.randrange(s + 1, 10)
        lens = np.array([l])
        total = l
        pastn = R.choice([l - s, l + 2])
    rot = ch(0, 1)
    packed = R.random() < 0.35
    at = dict(
        num_heads=H,
        kv_num_heads=Hkv,
        do_rotary=rot if rot else None,
        rotary_interleaved=ch(None, 0, 1) if rot else None,
        scale=ch(None, None, 0.3),
        softcap=ch(None, None, None, 2.0),
        local_window_size=ch(None, None, None, 2, 4),
        smooth_softmax=ch(None, None, None, 0, 1),
    )
    c = Case("GroupQueryAttention", **at)
    if packed:
        c.x(f32(b, s, (H + 2 * Hkv) * sz)).x(None).x(None)
    else:
        c.x(f32(b, s, H * sz)).x(f32(b, s, Hkv * sz)).x(f32(b, s, Hkv * sz))
    if pastn is None:
        c.x(None).x(None)
    else:
        c.x(f32(b, Hkv, pastn, sz)).x(f32(b, Hkv, pastn, sz))
    c.x((lens - 1).astype(np.int32)).x(
        np.array(total, np.int32) if R.random() < 0.5 else np.array([total], np.int32), R.random() < 0.8
    )
    extra = R.random()
    if rot:
        rd = R.choice([sz, sz, sz // 2])
        c.c(np.cos(f32(24, rd // 2))).c(np.sin(f32(24, rd // 2)))
    if extra < 0.25:
        if not rot:
            c.x(None).x(None)
        posid = R.random() < 0.5
        if posid and rot:
            c.x(rng.integers(0, 20, (b, s)).astype(np.int64))
        else:
            c.x(None)
        if R.random() < 0.6:
            c.x(f32(R.choice([1, b]), R.choice([1, H]), s, total))
        if R.random() < 0.3:
            while len(c.names) < 11:
                c.x(None)
            c.x(f32(H))
            c.attrs.pop("smooth_softmax", None)
    while c.names and c.names[-1] == "":
        c.names.pop()
    if mode == "rprompt":
        c.keep = (np.arange(s)[None, :] < lens[:, None])[:, :, None]
    return c.outs(3).t(1e-3, 1e-4)


def g_RotaryEmbedding():
    b, s, H = R.randrange(1, 4), R.randrange(1, 6), R.choice([1, 2, 4])
    sz = R.choice([8, 16])
    r4 = R.random() < 0.4
    part = R.random() < 0.3
    rd = sz // 2 if part else sz
    dt = R.choice([np.float32, np.float32, np.float16])
    at = dict(interleaved=ch(None, 0, 1), scale=ch(None, 1.0))
    if part:
        at["rotary_embedding_dim"] = rd
        at["num_heads"] = H
    elif R.random() < 0.4:
        at["num_heads"] = H
    if R.random() < 0.1:
        at["is_packed_batching"] = 1
    p = np.array([R.randrange(0, 5)], np.int64) if R.random() < 0.4 else rng.integers(0, 12, (b, s)).astype(np.int64)
    x = f32(b, H, s, sz) if r4 else f32(b, s, H * sz)
    return (
        Case("RotaryEmbedding", **at)
        .x(x.astype(dt))
        .x(p)
        .mix(f32(12, rd // 2).astype(dt))
        .mix(f32(12, rd // 2).astype(dt))
        .t(*((1e-3, 1e-5) if dt == np.float32 else (1e-2, 1e-2)))
    )


def g_MatMulNBits():
    bits = R.choice([2, 4, 4, 8])
    bl = R.choice([16, 32, 64])
    K = R.choice([16, 32, 48, 64, 70, 96, 128])
    Nn = R.randrange(1, 20)
    dt = R.choice([np.float32, np.float32, np.float16])
    nb = -(-K // bl)
    pb = bl * bits // 8
    c = Case(
        "MatMulNBits",
        K=K,
        N=Nn,
        bits=bits if bits != 4 or R.random() < 0.5 else None,
        block_size=bl,
        accuracy_level=ch(None, 0, 1),
    )
    sh = dims(R.randrange(1, 3), 5) + [K]
    k = R.random() < 0.9
    c.x(f32(*sh).astype(dt)).x(q(np.uint8, Nn, nb, pb), k)
    flat = R.random() < 0.4
    c.x(rng.uniform(0.01, 0.1, (Nn * nb,) if flat else (Nn, nb)).astype(dt), k)
    z = R.random()
    row = -(-nb * bits // 8)
    zz = (
        None
        if z < 0.35
        else (
            q(np.uint8, *((Nn * row,) if flat else (Nn, row)))
            if z < 0.75
            else rng.uniform(0, 2**bits, (Nn * nb,) if flat else (Nn, nb)).astype(dt)
        )
    )
    c.x(zz, k)
    # ONNX Runtime leaves zero points of whole numbers out of account beside group indices.
    gi = R.random() < 0.25 and bits == 4 and (zz is None or zz.dtype != np.uint8)
    g = None
    if gi:
        g = (np.arange(nb * bl) // bl).astype(np.int32)
        if R.random() < 0.6:
            rng.shuffle(g)
        g = g[:K] if R.random() < 0.5 else g
    c.x(g, True) if g is not None else c.x(None)
    if R.random() < 0.4:
        c.x(f32(Nn).astype(dt), True)
    while c.names and c.names[-1] == "":
        c.names.pop()
    return c.t(*((1e-3, 1e-3) if dt == np.float32 else (1e-2, 5e-2)))


def g_DynamicQuantizeMatMul():
    K, Nn = dims(2, 20)
    bd = R.choice([np.uint8, np.int8])
    per = R.random() < 0.4
    c = Case("DynamicQuantizeMatMul").x(f32(*dims(R.randrange(1, 3), 5), K))
    c.c(q(bd, K, Nn))
    k = R.random() < 0.8
    c.x(rng.uniform(0.01, 0.1, Nn).astype(np.float32) if per else sc(), k)
    z = R.random() < 0.6
    zz = None
    if z:
        zz = q(bd, Nn) if per else zp(bd)
    if R.random() < 0.5:
        c.x(zz, k).x(f32(Nn), True)
    elif z:
        c.x(zz, k)
    return c.t(1e-3, 1e-3)


def g_MatMulIntegerToFloat():
    K, Nn = dims(2, 20)
    ad = qs(None)
    bd = R.choice([np.uint8, np.int8])
    per = R.random() < 0.4
    c = (
        Case("MatMulIntegerToFloat")
        .x(q(ad, *dims(R.randrange(1, 3), 5), K))
        .mix(q(bd, K, Nn))
        .mix(sc())
        .mix(rng.uniform(0.01, 0.1, Nn).astype(np.float32) if per else sc())
    )
    c.mix(zp(ad)) if R.random() < 0.6 else c.x(None)
    c.mix(q(bd, Nn) if per else zp(bd)) if R.random() < 0.6 else c.x(None)
    if R.random() < 0.5:
        c.mix(f32(Nn))
    while c.names and c.names[-1] == "":
        c.names.pop()
    return c.t(1e-3, 1e-3)


def g_DynamicQuantizeLSTM():
    d = R.choice(["forward", "reverse", "bidirectional"])
    D = 2 if d == "bidirectional" else 1
    s, b, I, H = dims(4, 5)
    H += 1
    wd = R.choice([np.uint8, np.int8])
    per = R.random() < 0.5
    c = Case(
        "DynamicQuantizeLSTM",
        hidden_size=H,
        direction=d if d != "forward" or R.random() < 0.5 else None,
        clip=ch(None, None, 0.7),
        input_forget=ch(None, None, 0),
    )
    lim = (100, 156) if wd == np.uint8 else (-28, 28)
    W = rng.integers(*lim, (D, I, 4 * H)).astype(wd)
    Rr = rng.integers(*lim, (D, H, 4 * H)).astype(wd)
    c.x(f32(s, b, I)).c(W).c(Rr)
    c.x(f32(D, 8 * H, s=0.3), True) if R.random() < 0.7 else c.x(None)
    c.x(rng.integers(1, s + 1, b).astype(np.int32)) if R.random() < 0.3 else c.x(None)
    c.x(f32(D, b, H)) if R.random() < 0.4 else c.x(None)
    c.x(f32(D, b, H)) if R.random() < 0.4 else c.x(None)
    c.x(f32(D, 3 * H), True) if R.random() < 0.3 else c.x(None)
    for _ in range(2):
        if per:
            c.c(rng.uniform(0.005, 0.02, (D, 4 * H)).astype(np.float32)).c(
                np.full((D, 4 * H), 128, wd) if wd == np.uint8 else np.zeros((D, 4 * H), wd)
            )
        else:
            c.c(rng.uniform(0.005, 0.02, D).astype(np.float32)).c(np.array([128 if wd == np.uint8 else 0] * D, wd))
    return c.outs(R.choice([1, 3])).t(3e-2, 3e-2)


def g_ConvTransposeWithDynamicPads():
    n = 2
    g = R.choice([1, 2])
    ks = [R.randrange(1, 4) for _ in range(n)]
    at = dict(group=g, kernel_shape=ks)
    if R.random() < 0.5:
        at["strides"] = [R.randrange(1, 4) for _ in range(n)]
    if R.random() < 0.3:
        at["output_padding"] = [R.randrange(0, s) for s in at.get("strides", [1, 1])]
    if R.random() < 0.3:
        at["dilations"] = [R.randrange(1, 3) for _ in range(n)]
    cin, cout = g * R.randrange(1, 4), R.randrange(1, 4)
    c = (
        Case("ConvTransposeWithDynamicPads", **at)
        .x(f32(1, cin, R.randrange(2, 7), R.randrange(2, 7)))
        .mix(f32(cin, cout, *ks))
    )
    bias = R.random() < 0.5
    if R.random() < 0.8:
        c.mix(np.array([R.randrange(0, 2) for _ in range(4)], np.int64), 0.5)
    elif bias:
        c.x(None)
    if bias:
        c.mix(f32(cout * g))
    return c.t(1e-3, 1e-4)


def g_QuantizeLinear():
    dt = R.choice([np.uint8, np.int8, np.uint16, np.int16])
    r = R.randrange(1, 4)
    s = dims(r)
    per = R.random() < 0.4
    ax = R.randrange(-r, r)
    c = Case("QuantizeLinear", axis=ax if per else None).x(f32(*s, s=5))
    c.mix(rng.uniform(0.01, 0.1, s[ax]).astype(np.float32) if per else sc())
    c.mix(q(dt, s[ax]) if per else zp(dt))
    return c


def g_DequantizeLinear():
    dt = R.choice([np.uint8, np.int8, np.uint16, np.int16, np.int32])
    r = R.randrange(1, 4)
    s = dims(r)
    per = R.random() < 0.4
    ax = R.randrange(-r, r)
    c = Case("DequantizeLinear", axis=ax if per else None)
    a = q(dt, *s) if dt != np.int32 else rng.integers(-1000, 1000, s).astype(np.int32)
    c.x(a)
    c.mix(rng.uniform(0.01, 0.1, s[ax]).astype(np.float32) if per else sc())
    if dt != np.int32:
        c.mix(q(dt, s[ax]) if per else zp(dt))
    return c


def g_MatMulInteger16():
    K, Nn = dims(2, 9)
    return (
        Case("MatMulInteger16")
        .x(rng.integers(-30000, 30000, dims(1) + [K]).astype(np.int16))
        .mix(rng.integers(-3000, 3000, (K, Nn)).astype(np.int16))
    )


def write(c, name):
    names = list(c.names)
    outs_all = (
        [f"y{i}" for i in range(c.nout)]
        if isinstance(c.nout, int)
        else [f"y{i}" if i in c.nout else "" for i in range(max(c.nout) + 1)]
    )
    node = h.make_node(c.op, names, outs_all, domain=c.domain, name="n", **c.attrs)
    outs = [o for o in outs_all if o]
    nodes = [node]
    if c.keep is not None:
        node.output[0] = "raw"
        c.inits["keep"] = c.keep
        c.inits["zero"] = np.zeros((), np.float32)
        nodes.append(h.make_node("Where", ["keep", "raw", "zero"], ["y0"]))
    gi = [h.make_tensor_value_info(n, DT[a.dtype], a.shape) for n, a in c.ins]
    inits = [nh.from_array(a, n) for n, a in c.inits.items()]

    def model(types):
        go = [
            h.make_tensor_value_info(o, t, None) if t else h.make_empty_tensor_value_info(o)
            for o, t in zip(outs, types)
        ]
        g = h.make_graph(nodes, "g", gi, go, inits)
        return h.make_model(
            g,
            opset_imports=[h.make_opsetid("", int(os.environ.get("OPSET", "17"))), h.make_opsetid(MS, 1)],
            ir_version=9,
        )

    so = ort.SessionOptions()
    so.intra_op_num_threads = 1
    so.log_severity_level = 4
    so.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        s = ort.InferenceSession(model([None] * len(outs)).SerializeToString(), so, providers=["CPUExecutionProvider"])
    except Exception as e:
        if "inference failed" not in str(e):
            raise
        s = ort.InferenceSession(model([1] * len(outs)).SerializeToString(), so, providers=["CPUExecutionProvider"])
    feeds = {n: a for n, a in c.ins}
    res = s.run(outs, feeds)
    m = model([DT[r.dtype] for r in res])
    d = os.path.join(OUT, name)
    shutil.rmtree(d, ignore_errors=True)
    os.makedirs(d + "/test_data_set_0")
    onnx.save(m, d + "/model.onnx")
    for i, (n, a) in enumerate(c.ins):
        open(f"{d}/test_data_set_0/input_{i}.pb", "wb").write(nh.from_array(np.asarray(a), n).SerializeToString())
    for i, (n, a) in enumerate(zip(outs, res)):
        open(f"{d}/test_data_set_0/output_{i}.pb", "wb").write(nh.from_array(np.asarray(a), n).SerializeToString())
    if c.tol:
        json.dump(dict(rtol=c.tol[0], atol=c.tol[1]), open(d + "/data.json", "w"))


import zlib

for k, f in [(k[2:], f) for k, f in list(globals().items()) if k.startswith("g_")]:
    if ONLY and k not in ONLY:
        continue
    ok, errs = 0, {}
    for i in range(N):
        seed = zlib.crc32(f"{k}{i}{SEED}".encode())
        rng = np.random.default_rng(seed)
        R.seed(seed)
        try:
            c = f()
            write(c, f"{k}_{SEED}_{i:03}")
            ok += 1
        except Exception as e:
            m = str(e).replace("\n", " ")[-160:]
            errs[m[-70:]] = (errs.get(m[-70:], (0, ""))[0] + 1, m)
    print(k, ok, "of", N, flush=True)
    if os.environ.get("V"):
        for n, m in errs.values():
            print("    ", n, m)
