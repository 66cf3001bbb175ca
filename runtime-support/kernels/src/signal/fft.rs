//! Fourier transforms of any length in f64: powers of two by halving, other lengths as a convolution by such a transform.
//!
//! In and out: real and imaginary parts of `n` elements. Invariant: no result is scaled.
//! Source: Cooley and Tukey 1965; Bluestein 1970.

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
        Some(m) => m.checked_mul(9),
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
        let (work, signal) = rest.split_at_mut(2 * m);
        let (re, im) = signal.split_at_mut(m);
        let mut fft = Self {
            n,
            m,
            roots: roots.split_at_mut(m / 2),
            chirp: chirp.split_at_mut(m),
            kernel: kernel.split_at_mut(m),
            work: work.split_at_mut(m),
            re: &mut re[..n],
            im: &mut im[..n],
        };
        for k in 0..m / 2 {
            let angle = 2.0 * PI * k as f64 / m as f64;
            (fft.roots.0[k], fft.roots.1[k]) = (libm::cos(angle), libm::sin(angle));
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
