//! Descriptors: a kernel call as plain data, and the `kernel!` macro that makes one from a single declaration.
//!
//! A descriptor holds operand locations, extents and parameters. Its number type `N` is `usize` in generated code and
//! a symbolic dimension in the compiler, so one declaration serves lowering, folding, emission, verification and the run.
//! From the declaration the macro makes the struct, one entry function per element type (checks the operands, then calls
//! the safe body with slices), and the [`Descriptor`] view that the compiler reads.

use crate::{Cx, Dtype, PartOut, Role};

/// An operand's place: region (in the compiler before planning: buffer), byte offset and byte length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operand<N = usize> {
    /// Region index.
    pub mem: u32,
    /// Byte offset.
    pub off: u64,
    /// Length in bytes.
    pub bytes: N,
}

impl<N> Operand<N> {
    /// An operand at a byte offset of a region.
    pub const fn at(mem: u32, off: u64, bytes: N) -> Self {
        Self { mem, off, bytes }
    }

    /// The same place with the length in another number type.
    pub fn map<M>(&self, f: &mut dyn FnMut(&N) -> M) -> Operand<M> {
        Operand { mem: self.mem, off: self.off, bytes: f(&self.bytes) }
    }
}

/// Element types of tensors in memory.
pub trait Elem: Copy + PartialEq + Default + Send + Sync + 'static {
    /// The ONNX type this is the memory form of.
    const DTYPE: Dtype;
}

macro_rules! elems {
    ($($t:ty = $d:ident),* $(,)?) => { $(impl Elem for $t { const DTYPE: Dtype = Dtype::$d; })* };
}
elems! { f32 = F32, f64 = F64, i8 = I8, i16 = I16, i32 = I32, i64 = I64, u8 = U8, u16 = U16, u32 = U32, u64 = U64 }

/// By width only: what movement kernels take for complex numbers of 16 bytes.
impl Elem for [u64; 2] {
    const DTYPE: Dtype = Dtype::C128;
}

/// The slot of an extent that nobody reads.
pub const NO_SLOT: usize = u32::MAX as usize;

/// The slot of an object that a kernel uses (feature `alloc`: strings, sequences, optional values).
#[derive(Debug)]
pub struct ObjectSlot<N = usize> {
    /// Its number; [`NO_SLOT`] for an absent operand.
    pub slot: usize,
    number: core::marker::PhantomData<fn() -> N>,
}

impl<N> Clone for ObjectSlot<N> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<N> Copy for ObjectSlot<N> {}

impl<N> PartialEq for ObjectSlot<N> {
    fn eq(&self, other: &Self) -> bool {
        self.slot == other.slot
    }
}

impl<N> Eq for ObjectSlot<N> {}

impl<N> ObjectSlot<N> {
    /// The slot of this number.
    pub const fn at(slot: usize) -> Self {
        Self { slot, number: core::marker::PhantomData }
    }

    /// The same slot in a descriptor of another number type.
    pub const fn with<M>(&self) -> ObjectSlot<M> {
        ObjectSlot::at(self.slot)
    }
}

impl<N> Literal for ObjectSlot<N> {
    fn literal(&self, out: &mut dyn core::fmt::Write) -> core::fmt::Result {
        write!(out, "k::ObjectSlot::at({})", self.slot)
    }
}

/// As `part_end`: all units, however many the extents of the run make.
pub const WHOLE: usize = usize::MAX;

/// The end of a part: as given, or all units.
pub(crate) const fn part_end(end: usize, units: usize) -> usize {
    if end == WHOLE { units } else { end }
}

/// One instantiation of a kernel.
pub struct Entry<D> {
    /// Name of the function in this crate.
    pub name: &'static str,
    /// The element types that select it, in the order of the declaration's type names.
    pub key: &'static [Dtype],
    /// Element type of each operand in declaration order.
    pub operand_dtypes: &'static [Dtype],
    /// The function.
    pub run: fn(&Cx<'_>, &D),
}

/// A parameter or extent of a descriptor, for printing it as Rust.
pub enum Field<'d, N> {
    /// An operand.
    Operand(&'d Operand<N>),
    /// An operand that may be absent.
    OptOperand(&'d Option<Operand<N>>),
    /// An extent.
    Num(&'d N),
    /// Several extents.
    Nums(&'d [N]),
    /// Anything else, printed as a Rust expression.
    Param(&'d dyn Literal),
}

/// A field of a descriptor, open to change: how a call is cut into parts.
pub enum FieldMut<'d, N> {
    /// An operand that is given.
    Operand(&'d mut Operand<N>),
    /// An extent, or several.
    Nums(&'d mut [N]),
    /// A parameter.
    Param(&'d mut dyn core::any::Any),
}

/// A value that can be written as a Rust expression (paths relative to this crate's root, spelled `k::`).
pub trait Literal {
    /// Writes the expression.
    fn literal(&self, out: &mut dyn core::fmt::Write) -> core::fmt::Result;
}

macro_rules! plain_literals {
    ($($t:ty),*) => { $(impl Literal for $t {
        fn literal(&self, out: &mut dyn core::fmt::Write) -> core::fmt::Result { write!(out, "{self}") }
    })* };
}
plain_literals!(bool, u8, i8, u16, i16, u32, i32, u64, i64, usize, isize);

macro_rules! float_literals {
    ($($t:ident),*) => { $(impl Literal for $t {
        fn literal(&self, out: &mut dyn core::fmt::Write) -> core::fmt::Result {
            if self.is_finite() {
                write!(out, "{self:?}")
            } else {
                write!(out, concat!(stringify!($t), "::from_bits({:#x})"), self.to_bits())
            }
        }
    })* };
}
float_literals!(f32, f64);

impl<T: Literal, const K: usize> Literal for [T; K] {
    fn literal(&self, out: &mut dyn core::fmt::Write) -> core::fmt::Result {
        out.write_str("[")?;
        for (i, x) in self.iter().enumerate() {
            if i > 0 {
                out.write_str(", ")?;
            }
            x.literal(out)?;
        }
        out.write_str("]")
    }
}

impl<T: Literal> Literal for Option<T> {
    fn literal(&self, out: &mut dyn core::fmt::Write) -> core::fmt::Result {
        match self {
            None => out.write_str("None"),
            Some(x) => {
                out.write_str("Some(")?;
                x.literal(out)?;
                out.write_str(")")
            }
        }
    }
}

/// Declares a field-less enum whose values can stand in a descriptor.
#[macro_export]
macro_rules! param_enum {
    ($(#[$meta:meta])* pub enum $name:ident { $($(#[$vmeta:meta])* $variant:ident),* $(,)? }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $name { $($(#[$vmeta])* $variant),* }
        impl $crate::Literal for $name {
            fn literal(&self, out: &mut dyn core::fmt::Write) -> core::fmt::Result {
                out.write_str(match self { $(Self::$variant => concat!("k::", stringify!($name), "::", stringify!($variant))),* })
            }
        }
    };
}

/// The types behind the operand kinds of `kernel!`.
#[doc(hidden)]
#[allow(non_camel_case_types, reason = "spelled as the kinds are")]
pub mod kinds {
    use super::Operand;
    pub type read<N> = Operand<N>;
    pub type alias<N> = Operand<N>;
    pub type write<N> = Operand<N>;
    pub type update<N> = Operand<N>;
    pub type opt<N> = Option<Operand<N>>;
    pub type opt_alias<N> = Option<Operand<N>>;
    pub type opt_write<N> = Option<Operand<N>>;
    pub type write_parts<N> = Operand<N>;
    pub type update_parts<N> = Operand<N>;
    pub type opt_write_parts<N> = Option<Operand<N>>;
}

/// One operand as the compiler sees it.
pub struct OperandView<'d, N> {
    /// Field name.
    pub name: &'static str,
    /// How the kernel uses it.
    pub role: Role,
    /// Where it is; `None` for an absent optional one.
    pub operand: Option<&'d Operand<N>>,
}

/// A kernel call as data. Implemented by `kernel!`.
pub trait Descriptor<N>: Sized {
    /// Type name.
    const NAME: &'static str;
    /// The same descriptor with another number type.
    type With<M>;
    /// The instantiations.
    fn entries() -> &'static [Entry<Self::With<usize>>];
    /// The same call with extents converted.
    fn map<M>(&self, f: &mut dyn FnMut(&N) -> M) -> Self::With<M>;
    /// Visits the operands in declaration order, absent ones too.
    fn operands(&self, f: &mut dyn FnMut(OperandView<'_, N>));
    /// Lets the caller move the operands, in declaration order, absent ones left out.
    fn operands_mut(&mut self, f: &mut dyn FnMut(&mut Operand<N>));
    /// Visits all fields in declaration order.
    fn fields(&self, f: &mut dyn FnMut(&'static str, Field<'_, N>));
    /// Visits the fields in declaration order for change; operands that are absent and slots are left out.
    fn fields_mut(&mut self, f: &mut dyn FnMut(&'static str, FieldMut<'_, N>));
    /// Visits the slots of the extents that the kernel finds at run time ([`Cx::dim`]).
    fn found(&self, f: &mut dyn FnMut(usize));
    /// Visits the slots of the objects that the kernel uses (feature `alloc`: [`crate::objects`]).
    fn objects(&self, f: &mut dyn FnMut(usize, Role));
}

/// Declares a kernel: descriptor, entry functions, and the compiler's view of both.
///
/// ```ignore
/// kernel! {
///     /// What it computes.
///     pub struct Softmax {
///         operands { read x: T, write y: T }
///         nums { outer, n, inner }           // extents
///         arrays { dims: 8 }                 // extents, fixed count
///         params { log: bool }               // anything `Literal`
///         found { count }                    // slots of extents found at run time: the body returns `[usize; 1]`
///         objects { read s, write t }        // slots of objects: the body gets `&Object` and `&mut Object` after the operands
///     }
///     entries { softmax_f32 { T = f32 } softmax_f64 { T = f64 } }
///     body = softmax;                        // fn(Isa, &Softmax, &[T], &mut [T]) -> Result<(), Fault>
/// }
/// ```
/// What the body gets: `read` `&[T]`; `opt` `Option<&[T]>`; `write` and `update` (a write of a part, or a read and a write)
/// `&mut [T]`; `opt_write` `Option<&mut [T]>`; `write_parts`, `update_parts` and `opt_write_parts`, what several parts of one
/// call fill at once, a [`PartOut`] in the place of the slice; `alias` `Option<&[T]>`, where `None` says that it *is* the first written
/// operand (in place); `opt_alias` `Option<Option<&[T]>>`, the outer `None` for an absent one.
#[macro_export]
macro_rules! kernel {
    (
        $(#[$meta:meta])*
        pub struct $name:ident {
            operands $ops:tt
            $(nums $nums:tt)?
            $(arrays $arrays:tt)?
            $(params $params:tt)?
            $(found $found:tt)?
            $(objects $objects:tt)?
        }
        entries $entries:tt
        body = $body:path;
    ) => {
        $crate::kernel! { @all [$(#[$meta])*] $name $ops [$($nums)?] [$($arrays)?] [$($params)?] [$($found)?] [$($objects)?] $entries $body }
    };

    (@all $meta:tt $name:ident $ops:tt $nums:tt $arrays:tt $params:tt $found:tt $objects:tt { $($entry:ident $types:tt)* } $body:path) => {
        $crate::kernel! { @struct $meta $name $ops $nums $arrays $params $found $objects [$($entry $types)*] }
        $($crate::kernel! { @entry $entry $types $name $ops $ops $found $objects $body })*
    };

    // The body's call: operands, then objects.
    (@call $cx:ident $d:ident $body:path, [$($op:ident),*] []) => { $body($cx.isa(), $d, $($op),*) };
    (@call $cx:ident $d:ident $body:path, [$($op:ident),*] [{ $($kind:ident $obj:ident),* $(,)? }]) => {{
        $(
            let Some($obj) = $crate::kernel!(@borrow $kind $cx $d $obj) else {
                $cx.fail($crate::Fault::Descriptor);
                return;
            };
            #[allow(unused_mut, reason = "only written objects change")]
            let mut $obj = $obj;
        )*
        $body($cx.isa(), $d, $($op,)* $($crate::kernel!(@lend $kind $obj)),*)
    }};
    (@borrow read $cx:ident $d:ident $obj:ident) => { $cx.object($d.$obj.slot) };
    (@borrow opt $cx:ident $d:ident $obj:ident) => { $cx.opt_object($d.$obj.slot) };
    (@borrow write $cx:ident $d:ident $obj:ident) => { $cx.object_mut($d.$obj.slot) };
    (@borrow update $cx:ident $d:ident $obj:ident) => { $cx.object_mut($d.$obj.slot) };
    (@lend read $obj:ident) => { &$obj };
    (@lend opt $obj:ident) => { $obj.as_deref() };
    (@lend write $obj:ident) => { &mut $obj };
    (@lend update $obj:ident) => { &mut $obj };

    // What a body returns: nothing, or the extents it found.
    (@found $cx:ident $d:ident $found:ident []) => { let () = $found; };
    (@found $cx:ident $d:ident $found:ident [{ $($(#[$fmeta:meta])* $slot:ident),* $(,)? }]) => {
        let [$($slot),*] = $found;
        $($cx.set_dim($d.$slot, $slot);)*
    };

    (@entry $entry:ident { $($tname:ident = $tty:ty),* $(,)? } $name:ident { $($kind:ident $op:ident : $ty:ident),* $(,)? } $all:tt $found:tt $objects:tt $body:path) => {
        #[doc = concat!("[`", stringify!($name), "`] with ", $(stringify!($tname), " = `", stringify!($tty), "`, ",)* "operands checked; a fault is kept in `cx`.")]
        #[inline(never)]
        pub fn $entry(cx: &$crate::Cx<'_>, d: &$name) {
            $(#[allow(dead_code, reason = "some types only select the entry")] type $tname = $tty;)*
            if !cx.check(&d.accesses([$(core::mem::align_of::<$ty>()),*])) {
                cx.fail($crate::Fault::Descriptor);
                return;
            }
            $(
                // SAFETY: `check` accepted this operand: in bounds, aligned, and no written operand overlaps another
                // (an `alias` operand that is the written one becomes `None` and no slice). Every bit pattern is a
                // valid element. Concurrent streams are ordered by the plan (see `Region::share`); only parts of one call
                // write into the same operand at once, and get no slice of it but a `PartOut`.
                let $op = unsafe { $crate::kernel!(@slice $kind $ty cx d $op $all) };
            )*
            match $crate::kernel!(@call cx d $body, [$($op),*] $objects) {
                Ok(found) => { $crate::kernel!(@found cx d found $found); }
                Err(fault) => cx.fail(fault),
            }
        }
    };

    (@table $entry:ident { $($tname:ident = $tty:ty),* $(,)? } $name:ident { $($kind:ident $op:ident : $ty:ident),* $(,)? }) => {{
        const ENTRY: $crate::Entry<$name> = {
            $(#[allow(dead_code, reason = "some types only select the entry")] type $tname = $tty;)*
            $crate::Entry {
                name: stringify!($entry),
                key: &[$(<$tname as $crate::Elem>::DTYPE),*],
                operand_dtypes: &[$(<$ty as $crate::Elem>::DTYPE),*],
                run: $entry,
            }
        };
        ENTRY
    }};

    (
        @struct [$(#[$meta:meta])*] $name:ident
        { $($kind:ident $op:ident : $ty:ident),* $(,)? }
        [$({ $($(#[$nmeta:meta])* $num:ident),* $(,)? })?]
        [$({ $($(#[$ameta:meta])* $arr:ident : $count:literal),* $(,)? })?]
        [$({ $($(#[$pmeta:meta])* $param:ident : $pty:ty),* $(,)? })?]
        [$({ $($(#[$fmeta:meta])* $slot:ident),* $(,)? })?]
        [$({ $($(#[$bmeta:meta])* $bkind:ident $obj:ident),* $(,)? })?]
        [$($entry:ident $types:tt)*]
    ) => {
        $(#[$meta])*
        #[derive(Clone, Debug, PartialEq)]
        pub struct $name<N = usize> {
            $(#[doc = concat!("Operand (`", stringify!($kind), "`).")] pub $op: $crate::kinds::$kind<N>,)*
            $($($(#[$nmeta])* #[doc = "(Extent.)"] pub $num: N,)*)?
            $($($(#[$ameta])* #[doc = "(Extents.)"] pub $arr: [N; $count],)*)?
            $($($(#[$pmeta])* #[doc = "(Parameter.)"] pub $param: $pty,)*)?
            $($($(#[$fmeta])* #[doc = "(Slot of an extent that the kernel finds.)"] pub $slot: usize,)*)?
            $($($(#[$bmeta])* #[doc = concat!("(Slot of an object, `", stringify!($bkind), "`.)")] pub $obj: $crate::ObjectSlot<N>,)*)?
        }

        impl<N> $crate::Descriptor<N> for $name<N> {
            const NAME: &'static str = stringify!($name);
            type With<M> = $name<M>;

            fn entries() -> &'static [$crate::Entry<$name>] {
                $crate::kernel!(@entries $name { $($kind $op : $ty),* } $($entry $types)*)
            }

            #[allow(unused_variables, reason = "a kernel may have objects only")]
            fn map<M>(&self, f: &mut dyn FnMut(&N) -> M) -> $name<M> {
                $name {
                    $($op: $crate::kernel!(@map $kind (self.$op), f),)*
                    $($($num: f(&self.$num),)*)?
                    $($($arr: self.$arr.each_ref().map(&mut *f),)*)?
                    $($($param: self.$param.clone(),)*)?
                    $($($slot: self.$slot,)*)?
                    $($($obj: self.$obj.with(),)*)?
                }
            }

            fn operands(&self, _f: &mut dyn FnMut($crate::OperandView<'_, N>)) {
                $(_f($crate::OperandView {
                    name: stringify!($op),
                    role: $crate::kernel!(@role $kind),
                    operand: $crate::kernel!(@asopt $kind (self.$op)),
                });)*
            }

            fn operands_mut(&mut self, _f: &mut dyn FnMut(&mut $crate::Operand<N>)) {
                $(if let Some(o) = $crate::kernel!(@asoptmut $kind (self.$op)) { _f(o); })*
            }

            fn fields(&self, f: &mut dyn FnMut(&'static str, $crate::Field<'_, N>)) {
                $(f(stringify!($op), $crate::kernel!(@fieldref $kind (self.$op)));)*
                $($(f(stringify!($num), $crate::Field::Num(&self.$num));)*)?
                $($(f(stringify!($arr), $crate::Field::Nums(&self.$arr));)*)?
                $($(f(stringify!($param), $crate::Field::Param(&self.$param));)*)?
                $($(f(stringify!($slot), $crate::Field::Param(&self.$slot));)*)?
                $($(f(stringify!($obj), $crate::Field::Param(&self.$obj));)*)?
            }

            fn fields_mut(&mut self, _f: &mut dyn FnMut(&'static str, $crate::FieldMut<'_, N>)) {
                $(if let Some(o) = $crate::kernel!(@asoptmut $kind (self.$op)) { _f(stringify!($op), $crate::FieldMut::Operand(o)); })*
                $($(_f(stringify!($num), $crate::FieldMut::Nums(core::slice::from_mut(&mut self.$num)));)*)?
                $($(_f(stringify!($arr), $crate::FieldMut::Nums(&mut self.$arr));)*)?
                $($(_f(stringify!($param), $crate::FieldMut::Param(&mut self.$param));)*)?
            }

            fn found(&self, _f: &mut dyn FnMut(usize)) {
                $($(_f(self.$slot);)*)?
            }

            fn objects(&self, _f: &mut dyn FnMut(usize, $crate::Role)) {
                $($(_f(self.$obj.slot, $crate::kernel!(@role $bkind));)*)?
            }
        }

        impl $name<usize> {
            /// Refuses, at compile time of the generated module, an operand outside its region or a write that overlaps
            /// another operand. `regions` are the regions' sizes in bytes.
            #[must_use]
            pub const fn checked(self, regions: &[usize]) -> Self {
                $crate::assert_static(&self.accesses([1; Self::N_OPERANDS]), regions);
                self
            }

            const N_OPERANDS: usize = <[&str]>::len(&[$(stringify!($op)),*]);

            /// The operands as checks see them, given the alignment of each one's element type.
            const fn accesses(&self, align: [usize; Self::N_OPERANDS]) -> [$crate::Access; Self::N_OPERANDS] {
                let [$($op),*] = align;
                [$($crate::Access::of($crate::kernel!(@asopt $kind (self.$op)), $op, $crate::kernel!(@role $kind))),*]
            }
        }
    };
    (@entries $name:ident $ops:tt $($entry:ident $types:tt)*) => { &[$($crate::kernel!(@table $entry $types $name $ops)),*] };

    (@role read) => { $crate::Role::Read };
    (@role opt) => { $crate::Role::Read };
    (@role alias) => { $crate::Role::Alias };
    (@role opt_alias) => { $crate::Role::Alias };
    (@role write) => { $crate::Role::Write };
    (@role update) => { $crate::Role::Update };
    (@role opt_write) => { $crate::Role::Write };
    (@role write_parts) => { $crate::Role::Write };
    (@role update_parts) => { $crate::Role::Update };
    (@role opt_write_parts) => { $crate::Role::Write };

    (@asopt opt $e:expr) => { $e.as_ref() };
    (@asopt opt_write $e:expr) => { $e.as_ref() };
    (@asopt opt_write_parts $e:expr) => { $e.as_ref() };
    (@asopt opt_alias $e:expr) => { $e.as_ref() };
    (@asopt $kind:ident $e:expr) => { Some(&$e) };
    (@asoptmut opt $e:expr) => { $e.as_mut() };
    (@asoptmut opt_write $e:expr) => { $e.as_mut() };
    (@asoptmut opt_write_parts $e:expr) => { $e.as_mut() };
    (@asoptmut opt_alias $e:expr) => { $e.as_mut() };
    (@asoptmut $kind:ident $e:expr) => { Some(&mut $e) };
    (@fieldref opt $e:expr) => { $crate::Field::OptOperand(&$e) };
    (@fieldref opt_write $e:expr) => { $crate::Field::OptOperand(&$e) };
    (@fieldref opt_write_parts $e:expr) => { $crate::Field::OptOperand(&$e) };
    (@fieldref opt_alias $e:expr) => { $crate::Field::OptOperand(&$e) };
    (@fieldref $kind:ident $e:expr) => { $crate::Field::Operand(&$e) };
    (@map opt $e:expr, $f:ident) => { $e.as_ref().map(|o| o.map(&mut *$f)) };
    (@map opt_write $e:expr, $f:ident) => { $e.as_ref().map(|o| o.map(&mut *$f)) };
    (@map opt_write_parts $e:expr, $f:ident) => { $e.as_ref().map(|o| o.map(&mut *$f)) };
    (@map opt_alias $e:expr, $f:ident) => { $e.as_ref().map(|o| o.map(&mut *$f)) };
    (@map $kind:ident $e:expr, $f:ident) => { $e.map(&mut *$f) };

    (@slice read $ty:ident $cx:ident $d:ident $op:ident $all:tt) => { $crate::operand_slice::<$ty>($cx, &$d.$op) };
    (@slice opt $ty:ident $cx:ident $d:ident $op:ident $all:tt) => { $d.$op.as_ref().map(|o| $crate::operand_slice::<$ty>($cx, o)) };
    (@slice write $ty:ident $cx:ident $d:ident $op:ident $all:tt) => { $crate::operand_slice_mut::<$ty>($cx, &$d.$op) };
    (@slice update $ty:ident $cx:ident $d:ident $op:ident $all:tt) => { $crate::operand_slice_mut::<$ty>($cx, &$d.$op) };
    (@slice opt_write $ty:ident $cx:ident $d:ident $op:ident $all:tt) => { $d.$op.as_ref().map(|o| $crate::operand_slice_mut::<$ty>($cx, o)) };
    (@slice write_parts $ty:ident $cx:ident $d:ident $op:ident $all:tt) => { $crate::operand_part::<$ty>($cx, &$d.$op) };
    (@slice update_parts $ty:ident $cx:ident $d:ident $op:ident $all:tt) => { $crate::operand_part::<$ty>($cx, &$d.$op) };
    (@slice opt_write_parts $ty:ident $cx:ident $d:ident $op:ident $all:tt) => { $d.$op.as_ref().map(|o| $crate::operand_part::<$ty>($cx, o)) };
    (@slice alias $ty:ident $cx:ident $d:ident $op:ident $all:tt) => {
        if $crate::same_place($cx, &$d.$op, $crate::kernel!(@first_write $d $all)) { None } else { Some($crate::operand_slice::<$ty>($cx, &$d.$op)) }
    };
    // An absent operand is `None`, one in place `Some(None)`.
    (@slice opt_alias $ty:ident $cx:ident $d:ident $op:ident $all:tt) => {
        $d.$op.as_ref().map(|o| if $crate::same_place($cx, o, $crate::kernel!(@first_write $d $all)) { None } else { Some($crate::operand_slice::<$ty>($cx, o)) })
    };
    (@first_write $d:ident { write $op:ident : $ty:ident $(, $($rest:tt)*)? }) => { &$d.$op };
    (@first_write $d:ident { write_parts $op:ident : $ty:ident $(, $($rest:tt)*)? }) => { &$d.$op };
    (@first_write $d:ident { update_parts $op:ident : $ty:ident $(, $($rest:tt)*)? }) => { &$d.$op };
    (@first_write $d:ident { update $op:ident : $ty:ident $(, $($rest:tt)*)? }) => { &$d.$op };
    (@first_write $d:ident { $kind:ident $op:ident : $ty:ident, $($rest:tt)* }) => { $crate::kernel!(@first_write $d { $($rest)* }) };
}

/// Whether two operands start at the same byte (a checked alias then is the whole written operand).
#[doc(hidden)]
pub fn same_place(cx: &Cx<'_>, a: &Operand, b: &Operand) -> bool {
    a.bytes != 0 && cx.address::<u8>(a.mem, a.off, a.bytes) == cx.address::<u8>(b.mem, b.off, b.bytes)
}

/// A checked operand as a slice.
///
/// # Safety
/// `cx.check` accepted the operand, and no `&mut` to any of its bytes lives.
#[doc(hidden)]
pub unsafe fn operand_slice<'c, T: Elem>(cx: &'c Cx<'_>, o: &Operand) -> &'c [T] {
    let ptr = cx.address::<T>(o.mem, o.off, o.bytes);
    // SAFETY: the caller's promise; element types have no invalid bit patterns.
    unsafe { core::slice::from_raw_parts(ptr, o.bytes / size_of::<T>()) }
}

/// A checked operand as a mutable slice.
///
/// # Safety
/// `cx.check` accepted the operand as written, and no other reference to any of its bytes lives.
#[doc(hidden)]
#[expect(clippy::mut_from_ref, reason = "regions are interior mutable; `check` guarantees uniqueness")]
pub unsafe fn operand_slice_mut<'c, T: Elem>(cx: &'c Cx<'_>, o: &Operand) -> &'c mut [T] {
    let ptr = cx.address::<T>(o.mem, o.off, o.bytes);
    // SAFETY: the caller's promise; element types have no invalid bit patterns.
    unsafe { core::slice::from_raw_parts_mut(ptr, o.bytes / size_of::<T>()) }
}

/// A checked operand that several parts of one call may fill at once.
///
/// # Safety
/// `cx.check` accepted the operand as written; while the result lives, nobody else accesses the elements that the part
/// writes, and only other parts of the call access the operand at all.
#[doc(hidden)]
pub unsafe fn operand_part<'c, T: Elem>(cx: &'c Cx<'_>, o: &Operand) -> PartOut<'c, T> {
    let first = cx.address::<T>(o.mem, o.off, o.bytes);
    // SAFETY: the caller's promise; element types have no invalid bit patterns.
    unsafe { PartOut::new(first, o.bytes / size_of::<T>()) }
}

/// The const form of [`Cx::check`]: panics, that is fails the build, on an operand outside its region or an overlap.
#[doc(hidden)]
pub const fn assert_static(all: &[crate::Access], regions: &[usize]) {
    let mut first_write = usize::MAX;
    let mut i = 0;
    while i < all.len() {
        let a = &all[i];
        assert!(a.bytes == 0 || (a.mem as usize) < regions.len(), "operand in an unknown region");
        assert!(a.bytes == 0 || a.off as usize + a.bytes <= regions[a.mem as usize], "operand outside its region");
        if first_write == usize::MAX && matches!(a.role, Role::Write | Role::Update) {
            first_write = i;
        }
        i += 1;
    }
    let mut i = 0;
    while i < all.len() {
        let w = &all[i];
        if w.bytes > 0 && matches!(w.role, Role::Write | Role::Update) {
            let mut j = 0;
            while j < all.len() {
                let a = &all[j];
                if i != j && a.bytes > 0 && a.mem == w.mem {
                    let disjoint = a.off + a.bytes as u64 <= w.off || w.off + w.bytes as u64 <= a.off;
                    let in_place =
                        matches!(a.role, Role::Alias) && i == first_write && a.off == w.off && a.bytes == w.bytes;
                    assert!(disjoint || in_place, "a written operand overlaps another operand");
                }
                j += 1;
            }
        }
        i += 1;
    }
}
