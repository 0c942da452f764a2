//! The parts of lists, mappings and enums, each at its place.

use std::collections::BTreeSet;

use serde::de::{
    Deserialize, DeserializeSeed, Deserializer, EnumAccess, Error, IntoDeserializer, MapAccess, SeqAccess,
    VariantAccess, Visitor,
};

use super::Given;
use crate::shared::given::TWICE;
use crate::shared::given::place::{Place, Step};

/// A seed whose value is checked.
struct Looked<'a, S> {
    seed: S,
    place: Place<'a>,
}

impl<'de, S: DeserializeSeed<'de>> DeserializeSeed<'de> for Looked<'_, S> {
    type Value = S::Value;

    fn deserialize<D: Deserializer<'de>>(self, inner: D) -> Result<S::Value, D::Error> {
        self.seed.deserialize(Given::new(inner, self.place))
    }
}

/// The seed of a key or variant. It stores the name in `name`.
struct Named<'k, S> {
    seed: S,
    name: &'k mut String,
}

impl<'de, S: DeserializeSeed<'de>> DeserializeSeed<'de> for Named<'_, S> {
    type Value = S::Value;

    fn deserialize<D: Deserializer<'de>>(self, inner: D) -> Result<S::Value, D::Error> {
        *self.name = String::deserialize(inner)?;
        self.seed.deserialize(self.name.as_str().into_deserializer())
    }
}

/// Returns the last part of the path to the field or variant of this name.
fn step(names: &'static [&'static str], name: &str) -> Step {
    names.iter().find(|own| **own == name).map_or(Step::Entry, |own| Step::Key(own))
}

/// The items of a list.
pub(super) struct Items<'a, A> {
    inner: A,
    place: Place<'a>,
    next: usize,
}

impl<'a, A> Items<'a, A> {
    pub(super) fn new(inner: A, place: Place<'a>) -> Self {
        Self { inner, place, next: 0 }
    }
}

impl<'de, A: SeqAccess<'de>> SeqAccess<'de> for Items<'_, A> {
    type Error = A::Error;

    fn next_element_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, A::Error> {
        let place = self.place.below(Step::Index(self.next));
        let item = self.inner.next_element_seed(Looked { seed, place })?;
        if item.is_none() && self.next == 0 && !self.place.may_be_empty() {
            return Err(self.place.no_value());
        }
        self.next += 1;
        Ok(item)
    }

    fn size_hint(&self) -> Option<usize> {
        self.inner.size_hint()
    }
}

/// The entries of a mapping or the fields of a struct.
pub(super) struct Entries<'a, A> {
    inner: A,
    place: Place<'a>,
    names: &'static [&'static str],
    name: String,
    seen: BTreeSet<String>,
}

impl<'a, A> Entries<'a, A> {
    pub(super) fn new(inner: A, place: Place<'a>, names: &'static [&'static str]) -> Self {
        Self { inner, place, names, name: String::new(), seen: BTreeSet::new() }
    }
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for Entries<'_, A> {
    type Error = A::Error;

    fn next_key_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, A::Error> {
        let key = self.inner.next_key_seed(Named { seed, name: &mut self.name })?;
        if key.is_none() && self.seen.is_empty() && !self.place.may_be_empty() {
            return Err(self.place.no_value());
        }
        // Structs refuse fields that are there twice, but a map would keep the last value.
        if key.is_some() && !self.seen.insert(self.name.clone()) {
            return Err(match step(self.names, &self.name) {
                Step::Key(name) => A::Error::duplicate_field(name),
                _ => A::Error::custom(format_args!("{}{TWICE}", self.place)),
            });
        }
        Ok(key)
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, A::Error> {
        let place = self.place.below(step(self.names, &self.name));
        self.inner.next_value_seed(Looked { seed, place })
    }

    fn size_hint(&self) -> Option<usize> {
        self.inner.size_hint()
    }
}

/// The variant of an enum. Its content may be empty: an action without options has none.
pub(super) struct Variants<'a, A> {
    inner: A,
    place: Place<'a>,
    names: &'static [&'static str],
}

impl<'a, A> Variants<'a, A> {
    pub(super) fn new(inner: A, place: Place<'a>, names: &'static [&'static str]) -> Self {
        Self { inner, place, names }
    }
}

impl<'a, 'de, A: EnumAccess<'de>> EnumAccess<'de> for Variants<'a, A> {
    type Error = A::Error;
    type Variant = Content<'a, A::Variant>;

    fn variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<(S::Value, Self::Variant), A::Error> {
        let mut name = String::new();
        let (variant, inner) = self.inner.variant_seed(Named { seed, name: &mut name })?;
        Ok((variant, Content { inner, place: self.place, step: step(self.names, &name) }))
    }
}

/// The content of a variant.
pub(super) struct Content<'a, A> {
    inner: A,
    place: Place<'a>,
    step: Step,
}

impl<'de, A: VariantAccess<'de>> VariantAccess<'de> for Content<'_, A> {
    type Error = A::Error;

    fn unit_variant(self) -> Result<(), A::Error> {
        self.inner.unit_variant()
    }

    fn newtype_variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<S::Value, A::Error> {
        self.inner.newtype_variant_seed(Looked { seed, place: self.place.below(self.step) })
    }

    fn tuple_variant<V: Visitor<'de>>(self, len: usize, visitor: V) -> Result<V::Value, A::Error> {
        self.inner.tuple_variant(len, visitor)
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, A::Error> {
        self.inner.struct_variant(fields, visitor)
    }
}
