//! Indices into the tables of a file.

/// Declares indices into the tables of a file. They are unchecked until a table looks them up.
macro_rules! ids {
    ($($(#[$doc:meta])* $name:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub(in crate::program) struct $name(pub(in crate::program) u64);
    )*};
}

ids! {
    /// An entry of the string table.
    StringId;
    /// An entry of the dialect table.
    DialectId;
    /// An operation name, counted over all groups.
    OpNameId;
    /// An attribute; attributes and types have separate index spaces.
    AttrId;
    /// A type.
    TypeId;
    /// A property blob.
    PropertyId;
    /// An SSA value, counted from the enclosing isolated operation.
    ValueId;
}
