//! Valid programs made wrong, to see that the plan verifier refuses them.

use kiln_compiler::ir::Dim;
use kiln_compiler::program::Program;
use kiln_fixtures::prng::Prng;

/// One change to a program.
#[derive(Clone, Copy, Debug)]
pub enum Mutation {
    /// An operand lies some bytes further on (or before).
    Shift {
        /// The step.
        step: usize,
        /// The operand.
        operand: usize,
        /// Bytes.
        by: i64,
    },
    /// An operand is longer.
    Grow {
        /// The step.
        step: usize,
        /// The operand.
        operand: usize,
        /// Bytes.
        by: i64,
    },
    /// An operand lies in another memory.
    Region {
        /// The step.
        step: usize,
        /// The operand.
        operand: usize,
        /// The memory.
        mem: u32,
    },
    /// Two operands of a step change places.
    Exchange {
        /// The step.
        step: usize,
        /// One operand.
        a: usize,
        /// The other.
        b: usize,
    },
    /// Two steps change places.
    Swap {
        /// One step.
        a: usize,
        /// The other.
        b: usize,
    },
    /// A step is lost.
    Drop {
        /// The step.
        step: usize,
    },
    /// A step runs another's call.
    Replace {
        /// The step that is lost.
        step: usize,
        /// The one that runs twice.
        by: usize,
    },
    /// The arena is smaller.
    Shrink {
        /// Bytes.
        by: u64,
    },
    /// An output is looked for elsewhere.
    Output {
        /// The output.
        port: usize,
        /// Where.
        off: u64,
    },
}

/// Number of kinds.
pub const KINDS: usize = 9;

impl Mutation {
    /// The kind's name.
    pub fn kind(&self) -> &'static str {
        match self {
            Mutation::Shift { .. } => "shift",
            Mutation::Grow { .. } => "grow",
            Mutation::Region { .. } => "region",
            Mutation::Exchange { .. } => "exchange",
            Mutation::Swap { .. } => "swap",
            Mutation::Drop { .. } => "drop",
            Mutation::Replace { .. } => "replace",
            Mutation::Shrink { .. } => "shrink",
            Mutation::Output { .. } => "output",
        }
    }

    /// The call that it changes, as text.
    pub fn place(&self, program: &Program) -> String {
        let steps: &[usize] = match self {
            Mutation::Shift { step, .. } | Mutation::Grow { step, .. } | Mutation::Region { step, .. } => &[*step],
            Mutation::Exchange { step, .. } | Mutation::Drop { step } => &[*step],
            Mutation::Swap { a, b } => &[*a, *b],
            Mutation::Replace { step, by } => &[*step, *by],
            Mutation::Shrink { .. } | Mutation::Output { .. } => &[],
        };
        steps.iter().filter_map(|&s| program.steps.get(s)).map(|s| format!("\n    {:?}", s.call)).collect()
    }

    /// A random change of a kind; `None` where the program offers no place for it.
    pub fn random(kind: usize, program: &Program, prng: &mut Prng) -> Option<Self> {
        let n = program.steps.len();
        if n == 0 {
            return None;
        }
        let step = prng.below(n);
        let n_operands = program.steps[step].call.operands().len();
        let operand = prng.below(n_operands.max(1));
        let distances = [4, 64, -4, -64, 1, 128, 256, 1024, 4096, -256, -1024];
        let by = distances[prng.below(distances.len())];
        let other = prng.below(n);
        let arena = usize::try_from(program.arena.bytes).ok()?;
        Some(match kind {
            0 => Mutation::Shift { step, operand, by },
            1 => Mutation::Grow { step, operand, by: by.abs() },
            2 => Mutation::Region { step, operand, mem: prng.below(2 + program.inputs.len()) as u32 },
            3 => Mutation::Exchange { step, a: operand, b: prng.below(n_operands.max(1)) },
            4 => Mutation::Swap { a: step, b: other },
            5 => Mutation::Drop { step },
            6 => Mutation::Replace { step, by: other },
            7 => Mutation::Shrink { by: 1 + prng.below(arena.max(1)) as u64 },
            _ => {
                let port = prng.below(program.outputs.len().max(1));
                program.outputs.get(port)?;
                Mutation::Output { port, off: (prng.below(arena / 4 + 2) * 4) as u64 }
            }
        })
    }

    /// The changed program, and each step's number in the original; `None` where it cannot be expressed.
    pub fn apply(&self, program: &Program) -> Option<(Program, Vec<usize>)> {
        let mut changed = program.clone();
        let mut order: Vec<usize> = (0..program.steps.len()).collect();
        match *self {
            Mutation::Shift { step, operand, by } => {
                let places = places(program, step);
                let (mem, off) = *places.get(operand)?;
                relocate(&mut changed, step, operand, mem, off.checked_add_signed(by)?);
            }
            Mutation::Region { step, operand, mem } => {
                let off = places(program, step).get(operand)?.1;
                relocate(&mut changed, step, operand, mem, off);
            }
            Mutation::Exchange { step, a, b } => {
                let places = places(program, step);
                let (&(mem_a, off_a), &(mem_b, off_b)) = (places.get(a)?, places.get(b)?);
                relocate(&mut changed, step, a, mem_b, off_b);
                relocate(&mut changed, step, b, mem_a, off_a);
            }
            Mutation::Grow { step, operand, by } => {
                let mut i = 0;
                let by = Dim::Const(by);
                changed.steps[step].call.relocate(&mut |o| {
                    if i == operand {
                        o.bytes = o.bytes.clone() + by.clone();
                    }
                    i += 1;
                });
            }
            Mutation::Swap { a, b } => {
                changed.steps.swap(a, b);
                order.swap(a, b);
            }
            Mutation::Drop { step } => {
                changed.steps.remove(step);
                order.remove(step);
            }
            Mutation::Replace { step, by } => {
                changed.steps[step] = program.steps[by].clone();
                order[step] = by;
            }
            Mutation::Shrink { by } => changed.arena.bytes = changed.arena.bytes.checked_sub(by)?,
            Mutation::Output { port, off } => changed.outputs.get_mut(port)?.off = off,
        }
        Some((changed, order))
    }
}

fn places(program: &Program, step: usize) -> Vec<(u32, u64)> {
    program.steps[step].call.operands().iter().map(|o| (o.operand.mem, o.operand.off)).collect()
}

fn relocate(program: &mut Program, step: usize, operand: usize, mem: u32, off: u64) {
    let mut i = 0;
    program.steps[step].call.relocate(&mut |o| {
        if i == operand {
            (o.mem, o.off) = (mem, off);
        }
        i += 1;
    });
}
