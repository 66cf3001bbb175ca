//! A value at hand at a model's border: a tensor (strings too), or an object.

use super::{Elements, SequenceType, Tensor, TensorType, Type};
use kiln_kernels::{Dtype, Object, Strings, TensorObject};

/// A value at hand.
#[derive(Clone, Debug, PartialEq)]
pub enum Datum {
    /// A tensor, of strings too.
    Tensor(Tensor),
    /// A sequence or an optional value, and its type.
    Object(Type, Object),
}

impl From<Tensor> for Datum {
    fn from(t: Tensor) -> Self {
        Self::Tensor(t)
    }
}

impl Datum {
    /// The tensor, if it is one.
    pub fn tensor(&self) -> Option<&Tensor> {
        match self {
            Self::Tensor(t) => Some(t),
            Self::Object(..) => None,
        }
    }

    /// Its type, as narrow as the value.
    pub fn ty(&self) -> Type {
        match self {
            Self::Tensor(t) => TensorType::fixed(t.dtype(), t.dims()).into(),
            Self::Object(ty, _) => ty.clone(),
        }
    }

    /// As an object of a run; `None` for a tensor that is too large.
    pub fn object(&self) -> Option<Object> {
        match self {
            Self::Tensor(t) => t.to_object(),
            Self::Object(_, o) => Some(o.clone()),
        }
    }

    /// An object found in a run, as a value of this type.
    pub fn found(ty: &Type, object: Object) -> Option<Self> {
        match (ty, object) {
            (Type::Tensor(_), o) => Tensor::from_object(&o).map(Self::Tensor),
            (_, o) => Some(Self::Object(narrow(ty, &o), o)),
        }
    }
}

/// A type with what the value at hand says of it.
pub fn narrow(ty: &Type, object: &Object) -> Type {
    match (ty, object) {
        (Type::Optional(t), Object::None) => Type::Optional(t.clone()),
        (Type::Optional(t), o) => Type::Optional(Box::new(narrow(t, o))),
        (Type::Tensor(_), Object::Tensor(t)) => TensorType::fixed(t.dtype(), t.dims()).into(),
        (Type::Tensor(_), Object::Strings(s)) => TensorType::fixed(Dtype::Str, s.dims()).into(),
        (Type::Sequence(s), Object::Sequence(all)) => {
            let shape = |o: &Object| {
                let dims = o.dims().unwrap_or_default().iter().map(|&d| super::Dim::from(d)).collect::<Vec<_>>();
                Elements::of(&dims)
            };
            let elements = all.iter().map(shape).fold(Elements::Nothing, |a, b| a.join(&b));
            Type::Sequence(SequenceType { dtype: s.dtype, elements, most: i64::try_from(all.len()).ok() })
        }
        _ => ty.clone(),
    }
}

impl Tensor {
    /// As an object of a run.
    pub fn to_object(&self) -> Option<Object> {
        match self.to_strings() {
            Some(strings) => Strings::new(self.dims().to_vec(), strings).map(Object::Strings),
            None => TensorObject::new(self.dtype(), self.dims().to_vec(), self.data()).map(Object::Tensor),
        }
    }

    /// The tensor in an object.
    pub fn from_object(object: &Object) -> Option<Self> {
        match object {
            Object::Strings(s) => Self::from_strings(s.dims(), s.data()),
            o => {
                let t = o.as_tensor()?;
                Self::new(t.dtype(), t.dims().to_vec(), t.bytes().to_vec().into())
            }
        }
    }
}
