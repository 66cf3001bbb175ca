//! Random graphs: element-wise operators, views, reductions, convolutions, joins, over f32 values of fixed shapes.
//!
//! In: a seed. Out: an ONNX model with weights and inputs. The same seed gives the same graph on every machine.

use kiln_compiler::onnx::proto::ModelProto;
use kiln_fixtures::array::{Array, Dtype};
use kiln_fixtures::build::{Attr, GraphBuilder, fixed};
use kiln_fixtures::prng::Prng;

/// Values grow no larger than this.
const MAX_ELEMENTS: usize = 6000;

/// A model and its inputs.
pub struct RandomGraph {
    /// The model.
    pub model: ModelProto,
    /// Its inputs.
    pub inputs: Vec<Array>,
}

struct Builder {
    g: GraphBuilder,
    prng: Prng,
    values: Vec<(String, Vec<usize>)>,
    read: Vec<bool>,
    inputs: Vec<Array>,
    n_names: usize,
}

/// A graph of about `n_nodes` nodes.
pub fn random_graph(seed: u64, n_nodes: usize) -> RandomGraph {
    let g = GraphBuilder::new("random");
    let mut b = Builder { g, prng: Prng::new(seed), values: vec![], read: vec![], inputs: vec![], n_names: 0 };
    for _ in 0..1 + b.prng.below(3) {
        b.input();
    }
    for _ in 0..n_nodes {
        b.node();
    }
    b.finish()
}

impl Builder {
    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.prng.below(from.len())]
    }

    fn name(&mut self) -> String {
        self.n_names += 1;
        format!("v{}", self.n_names)
    }

    fn input(&mut self) {
        let channels = self.pick(&[1, 2, 3, 4, 8, 16, 20, 32]);
        let (a, b) = (1 + self.prng.below(7), 1 + self.prng.below(7));
        let batch = self.pick(&[1, 1, 2]);
        let dims: Vec<usize> = self
            .pick(&[&[0usize, 1, 2, 3][..], &[0, 1, 2, 3], &[0, 2, 1], &[2, 1], &[1]])
            .iter()
            .map(|&i| [batch, channels, a, b][i])
            .collect();
        let name = self.name();
        self.g.input(&name, Dtype::F32, &fixed(&dims));
        let n = dims.iter().product();
        self.inputs.push(Array::f32(&dims, self.prng.normals(n, 1.0)));
        self.add(name, dims);
    }

    fn add(&mut self, name: String, dims: Vec<usize>) {
        self.values.push((name, dims));
        self.read.push(false);
    }

    /// An existing value; newer ones more often.
    fn value(&mut self) -> (String, Vec<usize>) {
        let n = self.values.len();
        let i = if self.prng.chance(0.6) { n - 1 - self.prng.below(n.min(3)) } else { self.prng.below(n) };
        self.read[i] = true;
        self.values[i].clone()
    }

    /// An existing value that satisfies a condition.
    fn value_where(&mut self, f: impl Fn(&[usize]) -> bool) -> Option<(String, Vec<usize>)> {
        let fit: Vec<usize> = (0..self.values.len()).filter(|&i| f(&self.values[i].1)).collect();
        if fit.is_empty() {
            return None;
        }
        let i = fit[self.prng.below(fit.len())];
        self.read[i] = true;
        Some(self.values[i].clone())
    }

    fn weight(&mut self, dims: &[usize], deviation: f64) -> String {
        let name = self.name();
        let n = dims.iter().product();
        let value = Array::f32(dims, self.prng.normals(n, deviation));
        self.g.weight(&name, &value)
    }

    fn ints(&mut self, values: &[i64]) -> String {
        let name = self.name();
        self.g.weight(&name, &Array::ints(values))
    }

    fn emit(&mut self, op: &str, inputs: &[&str], dims: Vec<usize>, attrs: &[(&str, Attr)]) {
        let name = self.name();
        self.g.node(op, inputs, &name, attrs);
        self.add(name, dims);
    }

    fn node(&mut self) {
        let image = |d: &[usize]| d.len() == 4;
        match self.prng.below(20) {
            0..=2 => self.unary(),
            3..=5 => self.binary(),
            6 => self.transpose(),
            7 => self.reshape(),
            8 => self.slice(),
            9 => self.concat(),
            10 => self.reduce(),
            11..=13 => match self.value_where(image) {
                Some(x) => self.conv(x),
                None => self.unary(),
            },
            14 => match self.value_where(|d| image(d) && d[2] > 1 && d[3] > 1) {
                Some(x) => self.pool(x),
                None => self.binary(),
            },
            15 => self.matmul(),
            16 => self.softmax(),
            17 => self.split(),
            18 => match self.value_where(image) {
                Some(x) => self.batch_norm(x),
                None => self.select(),
            },
            _ => self.select(),
        }
    }

    fn unary(&mut self) {
        let (x, dims) = self.value();
        let op =
            self.pick(&["Relu", "Neg", "Sigmoid", "Tanh", "LeakyRelu", "HardSwish", "Erf", "Identity", "HardSigmoid"]);
        self.emit(op, &[&x], dims, &[]);
    }

    fn binary(&mut self) {
        let (x, dims) = self.value();
        let op = self.pick(&["Add", "Sub", "Mul", "Min", "Max", "Add"]);
        let same = self.value_where(|d| d == dims).map(|v| v.0).filter(|y| *y != x);
        let y = match same {
            Some(y) if self.prng.chance(0.7) => y,
            _ => {
                // A constant that broadcasts: some extents are one, some leading ones are left out.
                let skip = self.prng.below(dims.len() + 1);
                let small: Vec<usize> =
                    dims[skip..].iter().map(|&d| if self.prng.chance(0.3) { 1 } else { d }).collect();
                self.weight(&small, 1.0)
            }
        };
        let operands = if self.prng.chance(0.5) { [&x[..], &y] } else { [&y[..], &x] };
        self.emit(op, &operands, dims, &[]);
    }

    fn select(&mut self) {
        let (x, dims) = self.value();
        let Some((y, _)) = self.value_where(|d| d == dims) else { return };
        let condition = self.name();
        self.g.node("Greater", &[&x, &y], &condition, &[]);
        self.emit("Where", &[&condition, &x, &y], dims, &[]);
    }

    fn transpose(&mut self) {
        let (x, dims) = self.value();
        let mut perm: Vec<usize> = (0..dims.len()).collect();
        self.prng.shuffle(&mut perm);
        let out = perm.iter().map(|&p| dims[p]).collect();
        self.emit("Transpose", &[&x], out, &[("perm", Attr::Is(perm.iter().map(|&p| p as i64).collect()))]);
    }

    fn reshape(&mut self) {
        let (x, dims) = self.value();
        if dims.len() < 4 && self.prng.chance(0.3) {
            let axis = self.prng.below(dims.len() + 1);
            let mut out = dims;
            out.insert(axis, 1);
            let axes = self.ints(&[axis as i64]);
            return self.emit("Unsqueeze", &[&x, &axes], out, &[]);
        }
        let cut = self.prng.below(dims.len() + 1);
        let out = match self.prng.below(3) {
            0 => vec![dims.iter().product()],
            1 => vec![dims[..cut].iter().product(), dims[cut..].iter().product()],
            _ => [&dims[..cut.min(1)], &[1], &[dims[cut.min(1)..].iter().product::<usize>()][..]].concat(),
        };
        let target = self.ints(&out.iter().map(|&d| d as i64).collect::<Vec<_>>());
        self.emit("Reshape", &[&x, &target], out, &[]);
    }

    fn slice(&mut self) {
        let (x, dims) = self.value();
        if dims.is_empty() {
            return;
        }
        let axis = self.prng.below(dims.len());
        let start = self.prng.below(dims[axis]);
        let end = start + 1 + self.prng.below(dims[axis] - start);
        let step = 1 + self.prng.below(2);
        let mut out = dims;
        out[axis] = (end - start).div_ceil(step);
        let operands = [start, end, axis, step].map(|v| self.ints(&[v as i64]));
        self.emit("Slice", &[&x, &operands[0], &operands[1], &operands[2], &operands[3]], out, &[]);
    }

    fn concat(&mut self) {
        let (x, dims) = self.value();
        if dims.is_empty() {
            return;
        }
        let axis = self.prng.below(dims.len());
        let fits = |d: &[usize]| d.len() == dims.len() && (0..d.len()).all(|i| i == axis || d[i] == dims[i]);
        let mut parts = vec![x];
        let mut out = dims.clone();
        for _ in 0..1 + self.prng.below(2) {
            if let Some((y, d)) = self.value_where(fits) {
                out[axis] += d[axis];
                parts.push(y);
            }
        }
        if out.iter().product::<usize>() > MAX_ELEMENTS {
            return;
        }
        let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
        self.emit("Concat", &parts, out, &[("axis", Attr::I(axis as i64))]);
    }

    fn reduce(&mut self) {
        let (x, dims) = self.value();
        if dims.is_empty() {
            return;
        }
        let axis = self.prng.below(dims.len());
        let keep = self.prng.chance(0.5);
        let mut out = dims;
        out[axis] = 1;
        if !keep {
            out.remove(axis);
        }
        let attrs = [("axes", Attr::Is(vec![axis as i64])), ("keepdims", Attr::I(i64::from(keep)))];
        self.emit("ReduceMean", &[&x], out, &attrs);
    }

    fn conv(&mut self, (x, dims): (String, Vec<usize>)) {
        let [n, c, h, w] = [dims[0], dims[1], dims[2], dims[3]];
        let k = self.pick(&[1, 1, 3]);
        let depthwise = self.prng.chance(0.25);
        let oc = if depthwise { c } else { self.pick(&[1, 3, 8, 16, 16, 24]) };
        let stride = if h >= 3 && w >= 3 { self.pick(&[1, 1, 2]) } else { 1 };
        let per_group = if depthwise { 1 } else { c };
        let weight = self.weight(&[oc, per_group, k, k], (1.0 / (per_group * k * k) as f64).sqrt());
        let out = vec![n, oc, (h - 1) / stride + 1, (w - 1) / stride + 1];
        if out.iter().product::<usize>() > MAX_ELEMENTS {
            return;
        }
        let attrs = [
            ("kernel_shape", Attr::Is(vec![k as i64; 2])),
            ("pads", Attr::Is(vec![k as i64 / 2; 4])),
            ("strides", Attr::Is(vec![stride as i64; 2])),
            ("group", Attr::I(if depthwise { c as i64 } else { 1 })),
        ];
        if self.prng.chance(0.5) {
            let bias = self.weight(&[oc], 0.5);
            self.emit("Conv", &[&x, &weight, &bias], out, &attrs);
        } else {
            self.emit("Conv", &[&x, &weight], out, &attrs);
        }
    }

    fn pool(&mut self, (x, dims): (String, Vec<usize>)) {
        let op = self.pick(&["MaxPool", "AveragePool", "GlobalAveragePool"]);
        if op == "GlobalAveragePool" {
            return self.emit(op, &[&x], vec![dims[0], dims[1], 1, 1], &[]);
        }
        let out = vec![dims[0], dims[1], (dims[2] - 2) / 2 + 1, (dims[3] - 2) / 2 + 1];
        let attrs = [("kernel_shape", Attr::Is(vec![2, 2])), ("strides", Attr::Is(vec![2, 2]))];
        self.emit(op, &[&x], out, &attrs);
    }

    fn matmul(&mut self) {
        let Some((x, dims)) = self.value_where(|d| d.len() >= 2) else { return };
        let (k, n) = (dims[dims.len() - 1], self.pick(&[1, 5, 16, 33]));
        let mut out = dims.clone();
        *out.last_mut().expect("invariant: rank of two and more") = n;
        if out.iter().product::<usize>() > MAX_ELEMENTS || k > 600 {
            return;
        }
        let w = self.weight(&[k, n], (1.0 / k as f64).sqrt());
        self.emit("MatMul", &[&x, &w], out, &[]);
    }

    fn softmax(&mut self) {
        let (x, dims) = self.value();
        if dims.is_empty() {
            return;
        }
        let axis = self.prng.below(dims.len()) as i64;
        self.emit("Softmax", &[&x], dims, &[("axis", Attr::I(axis))]);
    }

    fn split(&mut self) {
        let Some((x, dims)) = self.value_where(|d| d.iter().any(|&n| n > 1)) else { return };
        let axes: Vec<usize> = (0..dims.len()).filter(|&i| dims[i] > 1).collect();
        let axis = self.pick(&axes);
        let first = 1 + self.prng.below(dims[axis] - 1);
        let sizes = self.ints(&[first as i64, (dims[axis] - first) as i64]);
        let names = [self.name(), self.name()];
        self.g.nodes("Split", &[&x, &sizes], &[&names[0], &names[1]], &[("axis", Attr::I(axis as i64))]);
        for (name, n) in names.into_iter().zip([first, dims[axis] - first]) {
            let mut part = dims.clone();
            part[axis] = n;
            self.add(name, part);
        }
    }

    fn batch_norm(&mut self, (x, dims): (String, Vec<usize>)) {
        let c = dims[1];
        let [scale, bias, mean] = [1.0, 0.5, 0.5].map(|d| self.weight(&[c], d));
        let name = self.name();
        let values: Vec<f64> = (0..c).map(|_| self.prng.between(0.5, 2.0)).collect();
        let var = self.g.weight(&name, &Array::f32(&[c], values));
        self.emit("BatchNormalization", &[&x, &scale, &bias, &mean, &var], dims, &[]);
    }

    /// Outputs: all that nobody read, now and then a value inside, an input, or a constant.
    fn finish(mut self) -> RandomGraph {
        let n_inputs = self.inputs.len();
        for i in 0..self.values.len() {
            let leaf = !self.read[i] && i >= n_inputs;
            if leaf || self.prng.chance(0.06) {
                let (name, dims) = self.values[i].clone();
                self.g.output(&name, Dtype::F32, &fixed(&dims));
            }
        }
        if self.g.graph.output.is_empty() {
            let (name, dims) = self.values[self.values.len() - 1].clone();
            self.g.output(&name, Dtype::F32, &fixed(&dims));
        }
        RandomGraph { model: self.g.model(17), inputs: self.inputs }
    }
}
