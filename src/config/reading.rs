//! How one setting is read, and what that may depend on.

use crate::{
    config::{
        precedence::{self, Given, Notes},
        row::Setting,
        share::Share,
        spill::Spill,
    },
    error::Result,
    memory::Strategy,
};

/// What the reading of one setting may depend on, and adds to.
#[derive(Debug, Default)]
pub(super) struct Context {
    /// The strategy, once it was read and valid.
    pub(super) decided: Option<Strategy>,
    /// The group, likewise.
    pub(super) share: Option<Share>,
    /// Where arrays are spilled to, likewise.
    pub(super) spill: Option<Spill>,
    pub(super) notes: Notes,
}

impl Context {
    /// The strategy. One that cannot be read is an error by itself, and what it would have meant for others is moot
    /// then.
    pub(super) fn strategy(&self) -> Strategy {
        self.decided.unwrap_or(Strategy::Preallocate)
    }

    /// Why what belongs to a group means nothing, if there is none.
    pub(super) fn without_share(&self) -> Option<&'static str> {
        (self.share == Some(Share(None))).then_some("it means something with share only, which is off")
    }

    /// Why what belongs to spilling means nothing, if nothing is spilled.
    pub(super) fn without_spill(&self) -> Option<&'static str> {
        (self.spill == Some(Spill::Off)).then_some("it means something with spill only, which is off")
    }

    pub(super) fn read<T>(
        &mut self,
        given: Result<Vec<Given>>,
        read: impl Fn(&[Given], &mut Self) -> Result<Setting<T>>,
    ) -> Result<Setting<T>> {
        read(&given?, self)
    }
}

/// Reads a setting whose names all take the same kind of text: the strongest one decides, or `default` for the
/// strategy.
pub(super) fn parsed<T: PartialEq>(
    parse: impl Fn(&Given) -> Result<T>,
    default: impl Fn(Strategy) -> T,
) -> impl Fn(&[Given], &mut Context) -> Result<Setting<T>> {
    move |given, context| precedence::decide(given, &parse, default(context.strategy()), &mut context.notes)
}

/// As [`parsed`], of a setting that means something beside another one only: `without` says why it means nothing.
pub(super) fn beside<T: PartialEq>(
    without: impl Fn(&Context) -> Option<&'static str>,
    parse: impl Fn(&Given) -> Result<T>,
    default: impl Fn() -> T,
) -> impl Fn(&[Given], &mut Context) -> Result<Setting<T>> {
    move |given, context| {
        let setting = precedence::decide(given, &parse, default(), &mut context.notes)?;
        if let Some(why) = without(context)
            && setting.value != default()
        {
            context.notes.no_effect(given, why);
        }
        Ok(setting)
    }
}
