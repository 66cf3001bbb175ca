//! A kernel call as the compiler holds it: any descriptor behind one object-safe view.

use crate::error::{CompileError, Stage};
use crate::ir::{Dim, Symbol};
use kiln_kernels::{Cx, Descriptor, Dtype, Entry, Field, FieldMut, NO_SLOT, Operand, Role};
use std::fmt::Debug;

/// An operand of a call.
#[derive(Clone, Debug)]
pub struct CallOperand {
    /// The descriptor's field.
    pub name: &'static str,
    /// How the kernel uses it.
    pub role: Role,
    /// Element type.
    pub dtype: Dtype,
    /// Its place and length in bytes.
    pub operand: Operand<Dim>,
}

impl CallOperand {
    /// Whether the kernel writes it.
    pub fn writes(&self) -> bool {
        matches!(self.role, Role::Write | Role::Update)
    }
}

/// A field of a descriptor, printed.
pub enum FieldText<'a> {
    /// An operand.
    Operand(&'a Operand<Dim>),
    /// An operand that may be absent.
    OptOperand(Option<&'a Operand<Dim>>),
    /// An extent.
    Num(&'a Dim),
    /// Several extents.
    Nums(&'a [Dim]),
    /// A Rust expression.
    Param(String),
}

/// A kernel call.
pub trait Call: Debug + Send + Sync {
    /// The kernel's function.
    fn entry(&self) -> &'static str;
    /// The descriptor's type.
    fn descriptor(&self) -> &'static str;
    /// The operands that are given, in declaration order.
    fn operands(&self) -> Vec<CallOperand>;
    /// Moves the operands.
    fn relocate(&mut self, f: &mut dyn FnMut(&mut Operand<Dim>));
    /// Visits the fields in declaration order.
    fn fields(&self, f: &mut dyn FnMut(&'static str, FieldText<'_>));
    /// Visits the fields for change. A step that is more than one kernel call has none.
    fn fields_mut(&mut self, _f: &mut dyn FnMut(&'static str, FieldMut<'_, Dim>)) {}
    /// Runs the kernel here, with values for the symbols.
    fn run(&self, cx: &Cx<'_>, value_of: &dyn Fn(&Symbol) -> i64);
    /// Slots of the extents that the kernel finds.
    fn found(&self) -> Vec<usize>;
    /// Visits every extent, the operands' lengths among them.
    fn dims(&self, f: &mut dyn FnMut(&Dim));
    /// The slots of the objects that the kernel uses, and how; those of absent operands left out.
    fn objects(&self) -> Vec<(usize, Role)>;
    /// The bodies, where the call is control flow.
    fn control(&self) -> Option<&super::control::Control> {
        None
    }
    /// A copy.
    fn boxed(&self) -> Box<dyn Call>;
}

impl Clone for Box<dyn Call> {
    fn clone(&self) -> Self {
        self.boxed()
    }
}

struct TypedCall<D>
where
    D: Descriptor<Dim>,
    D::With<usize>: 'static,
{
    descriptor: D,
    entry: &'static Entry<D::With<usize>>,
}

impl<D> Debug for TypedCall<D>
where
    D: Descriptor<Dim> + Debug,
    D::With<usize>: 'static,
{
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {:?}", self.entry.name, self.descriptor)
    }
}

/// The call of a descriptor's kernel for these element types; an error where no instantiation has them.
pub fn call<D>(key: &[Dtype], descriptor: D) -> Result<Box<dyn Call>, CompileError>
where
    D: Descriptor<Dim> + Debug + Clone + Send + Sync + 'static,
    D::With<usize>: 'static,
{
    let entry = D::entries().iter().find(|e| e.key == key).ok_or_else(|| {
        let names: Vec<_> = key.iter().map(ToString::to_string).collect();
        CompileError::new(Stage::Lower, format!("no kernel {} for {}", D::NAME, names.join(", ")))
    })?;
    Ok(Box::new(TypedCall { descriptor, entry }))
}

impl<D> Call for TypedCall<D>
where
    D: Descriptor<Dim> + Debug + Clone + Send + Sync + 'static,
    D::With<usize>: 'static,
{
    fn entry(&self) -> &'static str {
        self.entry.name
    }

    fn descriptor(&self) -> &'static str {
        D::NAME
    }

    fn operands(&self) -> Vec<CallOperand> {
        let mut out = Vec::new();
        let mut dtypes = self.entry.operand_dtypes.iter();
        self.descriptor.operands(&mut |view| {
            let dtype = *dtypes.next().expect("invariant: one dtype per declared operand");
            if let Some(operand) = view.operand {
                out.push(CallOperand { name: view.name, role: view.role, dtype, operand: operand.clone() });
            }
        });
        out
    }

    fn relocate(&mut self, f: &mut dyn FnMut(&mut Operand<Dim>)) {
        self.descriptor.operands_mut(f);
    }

    fn fields(&self, f: &mut dyn FnMut(&'static str, FieldText<'_>)) {
        self.descriptor.fields(&mut |name, field| {
            f(
                name,
                match field {
                    Field::Operand(o) => FieldText::Operand(o),
                    Field::OptOperand(o) => FieldText::OptOperand(o.as_ref()),
                    Field::Num(n) => FieldText::Num(n),
                    Field::Nums(n) => FieldText::Nums(n),
                    Field::Param(p) => {
                        let mut text = String::new();
                        let _ = p.literal(&mut text);
                        FieldText::Param(text)
                    }
                },
            );
        });
    }

    fn fields_mut(&mut self, f: &mut dyn FnMut(&'static str, FieldMut<'_, Dim>)) {
        self.descriptor.fields_mut(f);
    }

    fn run(&self, cx: &Cx<'_>, value_of: &dyn Fn(&Symbol) -> i64) {
        let fixed = self.descriptor.map(&mut |d: &Dim| d.eval(value_of) as usize);
        (self.entry.run)(cx, &fixed);
    }

    fn found(&self) -> Vec<usize> {
        let mut slots = Vec::new();
        self.descriptor.found(&mut |slot| slots.extend((slot != NO_SLOT).then_some(slot)));
        slots
    }

    fn objects(&self) -> Vec<(usize, Role)> {
        let mut slots = Vec::new();
        self.descriptor.objects(&mut |slot, role| slots.extend((slot != NO_SLOT).then_some((slot, role))));
        slots
    }

    fn dims(&self, f: &mut dyn FnMut(&Dim)) {
        self.descriptor.map(&mut |d: &Dim| f(d));
    }

    fn boxed(&self) -> Box<dyn Call> {
        Box::new(TypedCall { descriptor: self.descriptor.clone(), entry: self.entry })
    }
}
