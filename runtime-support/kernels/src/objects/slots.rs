//! The slots of a run: first the caller's objects, to read only, then the model's own.

use super::Object;
use core::cell::{Ref, RefCell, RefMut};
use core::ops::Deref;

/// The objects of a run, addressed by slot.
#[derive(Clone, Copy, Debug, Default)]
pub struct Objects<'a> {
    /// Slots `0 ..`: the caller's.
    pub given: &'a [&'a Object],
    /// The slots after these: the model's.
    pub own: &'a [RefCell<Object>],
}

impl<'a> Objects<'a> {
    /// The object in a slot; `None` for an unknown slot or one that is being written.
    pub(crate) fn read(&self, slot: usize) -> Option<ObjectRef<'a>> {
        match slot.checked_sub(self.given.len()) {
            None => self.given.get(slot).map(|o| ObjectRef::Given(o)),
            Some(own) => self.own.get(own)?.try_borrow().ok().map(ObjectRef::Own),
        }
    }

    /// The object in a slot, to write; `None` for one of the caller's, an unknown slot, or one in use.
    pub(crate) fn write(&self, slot: usize) -> Option<RefMut<'a, Object>> {
        self.own.get(slot.checked_sub(self.given.len())?)?.try_borrow_mut().ok()
    }
}

/// An object that a kernel reads.
pub enum ObjectRef<'a> {
    /// The caller's.
    Given(&'a Object),
    /// The model's.
    Own(Ref<'a, Object>),
}

impl Deref for ObjectRef<'_> {
    type Target = Object;

    fn deref(&self) -> &Object {
        match self {
            Self::Given(o) => o,
            Self::Own(o) => o,
        }
    }
}
