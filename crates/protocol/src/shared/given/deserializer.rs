//! A deserializer between a format and a type. It checks each value before the type gets it.

use std::fmt;

use serde::de::{Deserializer, EnumAccess, Error, MapAccess, SeqAccess, Unexpected, Visitor};

use super::place::Place;
use super::{LARGEST, is_blank};
use access::{Entries, Items, Variants};

mod access;

/// 2^53. Below it, floating point numbers represent every whole number exactly. So a number such as 1.0 is taken as the
/// integer 1 (JSON Schema Validation, "type").
const WHOLE: f64 = (1_u64 << 53) as f64;

/// A format's deserializer, at a place.
pub(super) struct Given<'a, D> {
    inner: D,
    place: Place<'a>,
}

impl<'a, D> Given<'a, D> {
    pub(super) fn new(inner: D, place: Place<'a>) -> Self {
        Self { inner, place }
    }
}

/// Defines the kinds of values that a type can ask for, and the methods that ask. A YAML reader gives `null` as an
/// empty list or mapping to a type that asks for a list or mapping. So the format is first asked whether there is a
/// value, and then for the kind.
macro_rules! kinds {
    ($($kind:ident $method:ident($($argument:ident: $of:ty),*);)*) => {
        #[derive(Clone, Copy)]
        enum Kind { $($kind { $($argument: $of),* }),* }

        impl Kind {
            fn ask<'de, D: Deserializer<'de>, V: Visitor<'de>>(self, of: D, visitor: V) -> Result<V::Value, D::Error> {
                match self { $(Kind::$kind { $($argument),* } => of.$method($($argument,)* visitor)),* }
            }
        }

        impl<'de, D: Deserializer<'de>> Deserializer<'de> for Given<'_, D> {
            type Error = D::Error;

            $(fn $method<V: Visitor<'de>>(self, $($argument: $of,)* visitor: V) -> Result<V::Value, D::Error> {
                let kind = Kind::$kind { $($argument),* };
                self.inner.deserialize_option(Present { kind: Some(kind), visitor, place: self.place })
            })*

            fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
                self.inner.deserialize_option(Present { kind: None, visitor, place: self.place })
            }
        }
    };
}

kinds! {
    Any deserialize_any();
    Bool deserialize_bool();
    I8 deserialize_i8();
    I16 deserialize_i16();
    I32 deserialize_i32();
    I64 deserialize_i64();
    I128 deserialize_i128();
    U8 deserialize_u8();
    U16 deserialize_u16();
    U32 deserialize_u32();
    U64 deserialize_u64();
    U128 deserialize_u128();
    F32 deserialize_f32();
    F64 deserialize_f64();
    Char deserialize_char();
    Str deserialize_str();
    String deserialize_string();
    Bytes deserialize_bytes();
    ByteBuf deserialize_byte_buf();
    Unit deserialize_unit();
    UnitStruct deserialize_unit_struct(name: &'static str);
    NewtypeStruct deserialize_newtype_struct(name: &'static str);
    Seq deserialize_seq();
    Tuple deserialize_tuple(len: usize);
    TupleStruct deserialize_tuple_struct(name: &'static str, len: usize);
    Map deserialize_map();
    Struct deserialize_struct(name: &'static str, fields: &'static [&'static str]);
    Enum deserialize_enum(name: &'static str, variants: &'static [&'static str]);
    Identifier deserialize_identifier();
    IgnoredAny deserialize_ignored_any();
}

impl Kind {
    /// Returns the names that fields or variants of the value may have.
    fn names(self) -> &'static [&'static str] {
        match self {
            Kind::Struct { fields, .. } => fields,
            Kind::Enum { variants, .. } => variants,
            _ => &[],
        }
    }
}

/// Asks the format for `kind` if there is a value. Without `kind`, the type is an `Option`, and its content asks.
struct Present<'a, V> {
    kind: Option<Kind>,
    visitor: V,
    place: Place<'a>,
}

impl<'de, V: Visitor<'de>> Visitor<'de> for Present<'_, V> {
    type Value = V::Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.visitor.expecting(f)
    }

    fn visit_none<E: Error>(self) -> Result<V::Value, E> {
        Err(self.place.no_value())
    }

    fn visit_unit<E: Error>(self) -> Result<V::Value, E> {
        Err(self.place.no_value())
    }

    fn visit_some<D: Deserializer<'de>>(self, inner: D) -> Result<V::Value, D::Error> {
        match self.kind {
            Some(kind) => kind.ask(inner, Looking { visitor: self.visitor, place: self.place, kind }),
            None => self.visitor.visit_some(Given::new(inner, self.place)),
        }
    }
}

/// Checks a value and passes it on to the type's visitor.
struct Looking<'a, V> {
    visitor: V,
    place: Place<'a>,
    kind: Kind,
}

impl<V> Looking<'_, V> {
    fn check<E: Error>(&self, text: &str) -> Result<(), E> {
        if is_blank(text) && !self.place.may_be_blank() { Err(self.place.no_value()) } else { Ok(()) }
    }
}

/// Passes on the kinds of values that need no check.
macro_rules! passes {
    ($($method:ident $of:ty;)*) => {
        $(fn $method<E: Error>(self, value: $of) -> Result<V::Value, E> {
            self.visitor.$method(value)
        })*
    };
}

impl<'de, V: Visitor<'de>> Visitor<'de> for Looking<'_, V> {
    type Value = V::Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.visitor.expecting(f)
    }

    passes! {
        visit_bool bool;
        visit_i8 i8;
        visit_i16 i16;
        visit_i32 i32;
        visit_i64 i64;
        visit_i128 i128;
        visit_u8 u8;
        visit_u16 u16;
        visit_u32 u32;
        visit_u128 u128;
        visit_f32 f32;
        visit_char char;
        visit_bytes &[u8];
        visit_borrowed_bytes &'de [u8];
        visit_byte_buf Vec<u8>;
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<V::Value, E> {
        // The numbers in reports have narrower bounds, each with its own error message.
        if number > LARGEST && !self.place.is_in_report() {
            return Err(E::invalid_value(Unexpected::Unsigned(number), &"a number below 2^63"));
        }
        self.visitor.visit_u64(number)
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<V::Value, E> {
        let whole = (number.fract() == 0.0 && number.abs() < WHOLE).then_some(number as i64);
        match whole.filter(|_| !matches!(self.kind, Kind::F32 {} | Kind::F64 {})) {
            Some(whole) if whole >= 0 => self.visit_u64(whole.unsigned_abs()),
            Some(whole) => self.visitor.visit_i64(whole),
            None => self.visitor.visit_f64(number),
        }
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<V::Value, E> {
        self.check(text)?;
        self.visitor.visit_str(text)
    }

    fn visit_borrowed_str<E: Error>(self, text: &'de str) -> Result<V::Value, E> {
        self.check(text)?;
        self.visitor.visit_borrowed_str(text)
    }

    fn visit_string<E: Error>(self, text: String) -> Result<V::Value, E> {
        self.check(&text)?;
        self.visitor.visit_string(text)
    }

    fn visit_none<E: Error>(self) -> Result<V::Value, E> {
        Err(self.place.no_value())
    }

    fn visit_unit<E: Error>(self) -> Result<V::Value, E> {
        Err(self.place.no_value())
    }

    fn visit_some<D: Deserializer<'de>>(self, inner: D) -> Result<V::Value, D::Error> {
        self.visitor.visit_some(Given::new(inner, self.place))
    }

    fn visit_newtype_struct<D: Deserializer<'de>>(self, inner: D) -> Result<V::Value, D::Error> {
        self.visitor.visit_newtype_struct(Given::new(inner, self.place))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, items: A) -> Result<V::Value, A::Error> {
        // A derived type would take a list as its fields in order, and an empty list as no fields.
        if matches!(self.kind, Kind::Struct { .. }) {
            return Err(A::Error::invalid_type(Unexpected::Seq, &self.visitor));
        }
        self.visitor.visit_seq(Items::new(items, self.place))
    }

    fn visit_map<A: MapAccess<'de>>(self, entries: A) -> Result<V::Value, A::Error> {
        self.visitor.visit_map(Entries::new(entries, self.place, self.kind.names()))
    }

    fn visit_enum<A: EnumAccess<'de>>(self, variant: A) -> Result<V::Value, A::Error> {
        self.visitor.visit_enum(Variants::new(variant, self.place, self.kind.names()))
    }
}
