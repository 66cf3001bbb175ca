//! Fourier transforms of any length in f64: powers of two by halving, other lengths as a convolution by such a transform;
//! and transforms of lengths without other factors than 2, 3 and 5 with every operation rounded to the signal's type.
//!
//! In and out: real and imaginary parts of `n` elements. Invariant: no result is scaled.
//! Source: Cooley and Tukey 1965; Bluestein 1970; M. Reinecke's pocketfft, whose order of operations the rounded ones keep.

use core::f64::consts::PI;

/// The power of two that a transform of length `n` works with.
const fn work_len(n: usize) -> Option<usize> {
    if n.is_power_of_two() || n == 0 {
        return Some(n);
    }
    match n.checked_mul(2) {
        Some(twice) => twice.checked_next_power_of_two(),
        None => None,
    }
}

/// Elements of f64 scratch that transforms of length `n` need.
pub const fn fft_scratch_len(n: usize) -> Option<usize> {
    match work_len(n) {
        Some(m) => m.checked_mul(11),
        None => None,
    }
}

/// Transforms of one length: tables, and room to work in.
pub(super) struct Fft<'a> {
    n: usize,
    m: usize,
    /// cos, sin of 2πk/m for k < m/2.
    roots: (&'a mut [f64], &'a mut [f64]),
    /// The convolution's: e^(-iπk²/n), its transform, and room.
    chirp: (&'a mut [f64], &'a mut [f64]),
    kernel: (&'a mut [f64], &'a mut [f64]),
    work: (&'a mut [f64], &'a mut [f64]),
    /// cos, sin of 2πk/n, for lengths of small factors.
    turns: (&'a mut [f64], &'a mut [f64]),
    /// The signal: fill in, transform, read.
    pub re: &'a mut [f64],
    /// Its imaginary part.
    pub im: &'a mut [f64],
}

impl<'a> Fft<'a> {
    /// For length `n`; `None` where the scratch is too short.
    pub fn new(n: usize, scratch: &'a mut [f64]) -> Option<Self> {
        let m = work_len(n)?;
        let scratch = scratch.get_mut(..fft_scratch_len(n)?)?;
        let (roots, rest) = scratch.split_at_mut(m);
        let (chirp, rest) = rest.split_at_mut(2 * m);
        let (kernel, rest) = rest.split_at_mut(2 * m);
        let (work, rest) = rest.split_at_mut(2 * m);
        let (turns, signal) = rest.split_at_mut(2 * m);
        let (re, im) = signal.split_at_mut(m);
        let mut fft = Self {
            n,
            m,
            roots: roots.split_at_mut(m / 2),
            chirp: chirp.split_at_mut(m),
            kernel: kernel.split_at_mut(m),
            work: work.split_at_mut(m),
            turns: turns.split_at_mut(m),
            re: &mut re[..n],
            im: &mut im[..n],
        };
        for k in 0..m / 2 {
            let angle = 2.0 * PI * k as f64 / m as f64;
            (fft.roots.0[k], fft.roots.1[k]) = (libm::cos(angle), libm::sin(angle));
        }
        if small_factors(n).is_some() {
            for k in 0..n {
                let angle = 2.0 * PI * k as f64 / n as f64;
                (fft.turns.0[k], fft.turns.1[k]) = (libm::cos(angle), libm::sin(angle));
            }
        }
        if m != n {
            fft.prepare_convolution();
        }
        Some(fft)
    }

    fn prepare_convolution(&mut self) {
        let (n, m) = (self.n, self.m);
        self.kernel.0.fill(0.0);
        self.kernel.1.fill(0.0);
        for k in 0..n {
            // k² mod 2n keeps the angle small and so exact.
            let square = (k as u128 * k as u128 % (2 * n as u128)) as f64;
            let angle = PI * square / n as f64;
            let (c, s) = (libm::cos(angle), libm::sin(angle));
            (self.chirp.0[k], self.chirp.1[k]) = (c, -s);
            for at in [k, (m - k) % m] {
                (self.kernel.0[at], self.kernel.1[at]) = (c, s);
            }
        }
        halving(self.kernel.0, self.kernel.1, &self.roots, false);
    }

    /// Transforms the signal in place; `inverse` without dividing by the length.
    pub fn run(&mut self, inverse: bool) {
        if self.m == self.n {
            halving(self.re, self.im, &self.roots, inverse);
            return;
        }
        // The inverse is the transform between two conjugations.
        let sign = if inverse { -1.0 } else { 1.0 };
        let (re, im) = (&mut *self.work.0, &mut *self.work.1);
        re[self.n..].fill(0.0);
        im[self.n..].fill(0.0);
        for k in 0..self.n {
            let (x, y) = (self.re[k], sign * self.im[k]);
            let (c, s) = (self.chirp.0[k], self.chirp.1[k]);
            (re[k], im[k]) = (x * c - y * s, x * s + y * c);
        }
        halving(re, im, &self.roots, false);
        for k in 0..self.m {
            let (x, y) = (re[k], im[k]);
            let (c, s) = (self.kernel.0[k], self.kernel.1[k]);
            (re[k], im[k]) = (x * c - y * s, x * s + y * c);
        }
        halving(re, im, &self.roots, true);
        let scale = 1.0 / self.m as f64;
        for k in 0..self.n {
            let (x, y) = (re[k] * scale, im[k] * scale);
            let (c, s) = (self.chirp.0[k], self.chirp.1[k]);
            (self.re[k], self.im[k]) = (x * c - y * s, sign * (x * s + y * c));
        }
    }
}

/// The factors 4, 2, 3 and 5 of a length, in the order of the passes; `None` where others are left.
fn small_factors(n: usize) -> Option<([usize; 48], usize)> {
    let (mut factors, mut count, mut rest) = ([0; 48], 0, n);
    if n == 0 {
        return None;
    }
    for factor in [4, 2, 3, 5] {
        while rest.is_multiple_of(factor) {
            *factors.get_mut(count)? = factor;
            count += 1;
            rest /= factor;
        }
        if factor == 2 && count > 0 {
            // A single two comes first.
            factors.swap(0, count - 1);
        }
    }
    (rest == 1).then_some((factors, count))
}

type Complex = (f64, f64);

impl Fft<'_> {
    /// Transforms the signal in place, every operation rounded by `round`; false, and nothing done, where the length has
    /// factors other than 2, 3 and 5.
    pub fn run_rounded(&mut self, inverse: bool, round: impl Fn(f64) -> f64 + Copy) -> bool {
        let Some((factors, count)) = small_factors(self.n) else { return false };
        let n = self.n;
        let sign = if inverse { 1.0 } else { -1.0 };
        let root = |k: usize| (round(self.turns.0[k]), round(sign * self.turns.1[k]));
        let mut done = 1;
        for &factor in &factors[..count] {
            let inner = n / (done * factor);
            for k in 0..done {
                for i in 0..inner {
                    let at = |u: usize| {
                        let at = i + inner * (u + factor * k);
                        (self.re[at], self.im[at])
                    };
                    let parts = butterfly(factor, sign, at, round);
                    for (u, &part) in parts[..factor].iter().enumerate() {
                        let turned = if u > 0 && i > 0 { times(part, root(u * done * i), round) } else { part };
                        let to = i + inner * (k + done * u);
                        (self.work.0[to], self.work.1[to]) = turned;
                    }
                }
            }
            self.re.copy_from_slice(&self.work.0[..n]);
            self.im.copy_from_slice(&self.work.1[..n]);
            done *= factor;
        }
        true
    }
}

fn times(a: Complex, w: Complex, round: impl Fn(f64) -> f64) -> Complex {
    (round(round(a.0 * w.0) - round(a.1 * w.1)), round(round(a.1 * w.0) + round(a.0 * w.1)))
}

/// The transform of 2 to 5 elements, before the twiddles.
fn butterfly(
    factor: usize,
    sign: f64,
    at: impl Fn(usize) -> Complex,
    round: impl Fn(f64) -> f64 + Copy,
) -> [Complex; 5] {
    let add = |a: Complex, b: Complex| (round(a.0 + b.0), round(a.1 + b.1));
    let sub = |a: Complex, b: Complex| (round(a.0 - b.0), round(a.1 - b.1));
    let mut y = [(0.0, 0.0); 5];
    let x = at(0);
    match factor {
        2 => (y[0], y[1]) = (add(x, at(1)), sub(x, at(1))),
        4 => {
            let (even, odd) = (add(x, at(2)), sub(x, at(2)));
            let (sum, difference) = (add(at(1), at(3)), sub(at(1), at(3)));
            let turned = (-sign * difference.1, sign * difference.0);
            (y[0], y[2]) = (add(even, sum), sub(even, sum));
            (y[1], y[3]) = (add(odd, turned), sub(odd, turned));
        }
        3 => {
            let (sum, difference) = (add(at(1), at(2)), sub(at(1), at(2)));
            let sine = round(sign * 0.866_025_403_784_438_6);
            let a = (round(x.0 + round(-0.5 * sum.0)), round(x.1 + round(-0.5 * sum.1)));
            let b = (-round(sine * difference.1), round(sine * difference.0));
            y[0] = add(x, sum);
            (y[1], y[2]) = (add(a, b), sub(a, b));
        }
        _ => {
            let (s1, d1, s2, d2) = (add(at(1), at(4)), sub(at(1), at(4)), add(at(2), at(3)), sub(at(2), at(3)));
            y[0] = add(add(x, s1), s2);
            let (c1, c2) = (round(0.309_016_994_374_947_45), round(-0.809_016_994_374_947_5));
            let (n1, n2) = (round(sign * 0.951_056_516_295_153_5), round(sign * 0.587_785_252_292_473_1));
            let mut pair = |u: usize, [c1, c2, n1, n2]: [f64; 4]| {
                let mix = |x: f64, s1: f64, s2: f64| round(round(x + round(c1 * s1)) + round(c2 * s2));
                let a = (mix(x.0, s1.0, s2.0), mix(x.1, s1.1, s2.1));
                let b = (-round(round(n1 * d1.1) + round(n2 * d2.1)), round(round(n1 * d1.0) + round(n2 * d2.0)));
                (y[u], y[5 - u]) = (add(a, b), sub(a, b));
            };
            pair(1, [c1, c2, n1, n2]);
            pair(2, [c2, c1, n2, -n1]);
        }
    }
    y
}

/// The transform of a power of two: bit reversal, then butterflies.
fn halving(re: &mut [f64], im: &mut [f64], roots: &(&mut [f64], &mut [f64]), inverse: bool) {
    let n = re.len();
    if n < 2 {
        return;
    }
    let shift = usize::BITS - n.trailing_zeros();
    for i in 0..n {
        let j = i.reverse_bits() >> shift;
        if i < j {
            re.swap(i, j);
            im.swap(i, j);
        }
    }
    let mut len = 2;
    while len <= n {
        let (half, step) = (len / 2, n / len);
        for start in (0..n).step_by(len) {
            for k in 0..half {
                let (c, s) = (roots.0[k * step], roots.1[k * step]);
                let s = if inverse { s } else { -s };
                let (i, j) = (start + k, start + k + half);
                let (x, y) = (re[j] * c - im[j] * s, re[j] * s + im[j] * c);
                (re[j], im[j]) = (re[i] - x, im[i] - y);
                (re[i], im[i]) = (re[i] + x, im[i] + y);
            }
        }
        len *= 2;
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::vec;
    use std::vec::Vec;

    #[test]
    fn agrees_with_the_definition() {
        for n in [1usize, 2, 3, 5, 8, 12, 64, 100, 127, 400] {
            let mut scratch = vec![0.0; fft_scratch_len(n).unwrap()];
            let mut fft = Fft::new(n, &mut scratch).unwrap();
            for inverse in [false, true] {
                let x = |k: usize| (((k * 7) % 13) as f64 - 5.0, ((k * 5) % 11) as f64);
                for k in 0..n {
                    (fft.re[k], fft.im[k]) = x(k);
                }
                fft.run(inverse);
                let exact: Vec<(f64, f64)> = (0..n).map(|k| (fft.re[k], fft.im[k])).collect();
                for k in 0..n {
                    (fft.re[k], fft.im[k]) = x(k);
                }
                assert_eq!(fft.run_rounded(inverse, |x| x), n != 127);
                for (k, (re, im)) in exact.iter().enumerate().filter(|_| n != 127) {
                    assert!((re - fft.re[k]).abs() < 1e-9 && (im - fft.im[k]).abs() < 1e-9, "{n} {inverse} {k}");
                }
                for (k, &(re, im)) in exact.iter().enumerate() {
                    (fft.re[k], fft.im[k]) = (re, im);
                }
                for j in 0..n {
                    let (mut re, mut im) = (0.0, 0.0);
                    for k in 0..n {
                        let angle = 2.0 * PI * ((j * k) % n) as f64 / n as f64 * if inverse { 1.0 } else { -1.0 };
                        let (a, b) = x(k);
                        re += a * angle.cos() - b * angle.sin();
                        im += a * angle.sin() + b * angle.cos();
                    }
                    assert!((re - fft.re[j]).abs() < 1e-9 && (im - fft.im[j]).abs() < 1e-9, "{n} {inverse} {j}");
                }
            }
        }
    }
}
