//! Extents that control flow gives their values: which differ between branches or change from iteration to iteration.

use super::super::found::slot;
use super::super::view::Result;
use crate::ir::Dim;
use crate::lower::LowerCx;
use crate::lower::control::BodyCx;
use kiln_kernels::{NO_SLOT, SetExtents};

/// Extents set by one call.
const AT_ONCE: usize = 8;

/// Slots and what each is set to.
pub(super) struct Settings(Vec<(usize, Dim)>);

impl Settings {
    /// For each dimension of `symbols` that is a symbol other than the dimension of `values` at its place.
    pub(super) fn between<'d>(pairs: impl Iterator<Item = (&'d Dim, &'d Dim)>) -> Result<Self> {
        let mut out: Vec<(usize, Dim)> = Vec::new();
        for (symbol, value) in pairs.filter(|(s, v)| s != v) {
            let slot = slot(symbol)?;
            if !out.iter().any(|(known, _)| *known == slot) {
                out.push((slot, value.clone()));
            }
        }
        Ok(Self(out))
    }

    fn calls(&self) -> impl Iterator<Item = SetExtents<Dim>> + '_ {
        self.0.chunks(AT_ONCE).map(|some| SetExtents {
            values: std::array::from_fn(|i| some.get(i).map_or(Dim::Const(0), |(_, v)| v.clone())),
            slot_0: some.first().map_or(NO_SLOT, |s| s.0),
            slot_1: some.get(1).map_or(NO_SLOT, |s| s.0),
            slot_2: some.get(2).map_or(NO_SLOT, |s| s.0),
            slot_3: some.get(3).map_or(NO_SLOT, |s| s.0),
            slot_4: some.get(4).map_or(NO_SLOT, |s| s.0),
            slot_5: some.get(5).map_or(NO_SLOT, |s| s.0),
            slot_6: some.get(6).map_or(NO_SLOT, |s| s.0),
            slot_7: some.get(7).map_or(NO_SLOT, |s| s.0),
        })
    }

    /// Sets them in the graph around.
    pub(super) fn outside(&self, cx: &mut LowerCx<'_>) -> Result<()> {
        self.calls().try_for_each(|d| cx.call(&[], d))
    }

    /// Sets them in a body.
    pub(super) fn inside(&self, body: &mut BodyCx<'_>) -> Result<()> {
        self.calls().try_for_each(|d| body.call(&[], d))
    }
}
