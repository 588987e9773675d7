//! Looks for floats that JSON has no words for.
//!
//! `serde_json` writes NaN and the infinities as `null`. A float refuses to read that back, but an
//! `Option` takes it for `None`, and the value would be lost without a word.

use std::fmt::{self, Write};

use serde::ser::{self, Serialize, Serializer};

/// Where in `event` a float is not finite, as in `prices[2].ratio`; `None` if all are.
///
/// Keys of maps are data and not shown. The event must be known not to be nested too deeply.
pub(super) fn not_finite(event: &impl Serialize) -> Option<String> {
    let mut look = Look::default();
    match event.serialize(&mut look) {
        Err(Stop::Found) => Some(look.path()),
        // Its `Serialize` has worked once; what it says now is not what is written.
        Ok(()) | Err(Stop::Other) => None,
    }
}

#[derive(Debug)]
enum Stop {
    Found,
    Other,
}

impl fmt::Display for Stop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("stopped")
    }
}

impl std::error::Error for Stop {}

impl ser::Error for Stop {
    fn custom<T: fmt::Display>(_: T) -> Self {
        Self::Other
    }
}

enum Step {
    Field(&'static str),
    Item(usize),
    Entry,
}

/// Walks over an event and writes nothing.
#[derive(Default)]
struct Look {
    steps: Vec<Step>,
}

impl Look {
    fn path(&self) -> String {
        let mut path = String::new();
        for step in &self.steps {
            // Writing to a string does not fail.
            let _ = match step {
                Step::Field(name) if path.is_empty() => write!(path, "{name}"),
                Step::Field(name) => write!(path, ".{name}"),
                Step::Item(index) => write!(path, "[{index}]"),
                Step::Entry => write!(path, "[..]"),
            };
        }
        if path.is_empty() {
            path.push_str("itself");
        }
        path
    }

    /// Looks into a part. After a find, the steps that lead there stay.
    fn into<T: Serialize + ?Sized>(&mut self, step: Step, part: &T) -> Result<(), Stop> {
        self.steps.push(step);
        part.serialize(&mut *self)?;
        self.steps.pop();
        Ok(())
    }

    const fn parts(&mut self) -> Parts<'_> {
        Parts {
            look: self,
            index: 0,
        }
    }
}

macro_rules! nothing_in {
    ($($method:ident: $ty:ty),* $(,)?) => {$(
        fn $method(self, _: $ty) -> Result<(), Stop> {
            Ok(())
        }
    )*};
}

impl<'l> Serializer for &'l mut Look {
    type Ok = ();
    type Error = Stop;
    type SerializeSeq = Parts<'l>;
    type SerializeTuple = Parts<'l>;
    type SerializeTupleStruct = Parts<'l>;
    type SerializeTupleVariant = Parts<'l>;
    type SerializeMap = Parts<'l>;
    type SerializeStruct = Parts<'l>;
    type SerializeStructVariant = Parts<'l>;

    nothing_in! {
        serialize_bool: bool, serialize_char: char, serialize_str: &str, serialize_bytes: &[u8],
        serialize_i8: i8, serialize_i16: i16, serialize_i32: i32, serialize_i64: i64, serialize_i128: i128,
        serialize_u8: u8, serialize_u16: u16, serialize_u32: u32, serialize_u64: u64, serialize_u128: u128,
        serialize_unit_struct: &'static str,
    }

    fn serialize_f32(self, value: f32) -> Result<(), Stop> {
        self.serialize_f64(value.into())
    }

    fn serialize_f64(self, value: f64) -> Result<(), Stop> {
        if value.is_finite() {
            Ok(())
        } else {
            Err(Stop::Found)
        }
    }

    fn collect_str<T: fmt::Display + ?Sized>(self, _: &T) -> Result<(), Stop> {
        Ok(())
    }

    fn serialize_none(self) -> Result<(), Stop> {
        Ok(())
    }

    fn serialize_unit(self) -> Result<(), Stop> {
        Ok(())
    }

    fn serialize_unit_variant(self, _: &'static str, _: u32, _: &'static str) -> Result<(), Stop> {
        Ok(())
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result<(), Stop> {
        value.serialize(self)
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        value: &T,
    ) -> Result<(), Stop> {
        value.serialize(self)
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        value: &T,
    ) -> Result<(), Stop> {
        self.into(Step::Field(variant), value)
    }

    fn serialize_seq(self, _: Option<usize>) -> Result<Parts<'l>, Stop> {
        Ok(self.parts())
    }

    fn serialize_tuple(self, _: usize) -> Result<Parts<'l>, Stop> {
        Ok(self.parts())
    }

    fn serialize_tuple_struct(self, _: &'static str, _: usize) -> Result<Parts<'l>, Stop> {
        Ok(self.parts())
    }

    fn serialize_tuple_variant(
        self,
        _: &'static str,
        _: u32,
        _: &'static str,
        _: usize,
    ) -> Result<Parts<'l>, Stop> {
        Ok(self.parts())
    }

    fn serialize_map(self, _: Option<usize>) -> Result<Parts<'l>, Stop> {
        Ok(self.parts())
    }

    fn serialize_struct(self, _: &'static str, _: usize) -> Result<Parts<'l>, Stop> {
        Ok(self.parts())
    }

    fn serialize_struct_variant(
        self,
        _: &'static str,
        _: u32,
        _: &'static str,
        _: usize,
    ) -> Result<Parts<'l>, Stop> {
        Ok(self.parts())
    }
}

/// The parts of a list, map or struct.
struct Parts<'l> {
    look: &'l mut Look,
    index: usize,
}

impl Parts<'_> {
    fn item<T: Serialize + ?Sized>(&mut self, item: &T) -> Result<(), Stop> {
        let index = self.index;
        self.index += 1;
        self.look.into(Step::Item(index), item)
    }
}

macro_rules! of_items {
    ($($of:ident: $method:ident),* $(,)?) => {$(
        impl ser::$of for Parts<'_> {
            type Ok = ();
            type Error = Stop;

            fn $method<T: Serialize + ?Sized>(&mut self, item: &T) -> Result<(), Stop> {
                self.item(item)
            }

            fn end(self) -> Result<(), Stop> {
                Ok(())
            }
        }
    )*};
}

of_items! {
    SerializeSeq: serialize_element,
    SerializeTuple: serialize_element,
    SerializeTupleStruct: serialize_field,
    SerializeTupleVariant: serialize_field,
}

macro_rules! of_fields {
    ($($of:ident),* $(,)?) => {$(
        impl ser::$of for Parts<'_> {
            type Ok = ();
            type Error = Stop;

            fn serialize_field<T: Serialize + ?Sized>(
                &mut self,
                name: &'static str,
                value: &T,
            ) -> Result<(), Stop> {
                self.look.into(Step::Field(name), value)
            }

            fn end(self) -> Result<(), Stop> {
                Ok(())
            }
        }
    )*};
}

of_fields! { SerializeStruct, SerializeStructVariant }

impl ser::SerializeMap for Parts<'_> {
    type Ok = ();
    type Error = Stop;

    /// JSON refuses a float that is not finite as a key by itself.
    fn serialize_key<T: Serialize + ?Sized>(&mut self, _: &T) -> Result<(), Stop> {
        Ok(())
    }

    fn serialize_value<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Stop> {
        self.look.into(Step::Entry, value)
    }

    fn end(self) -> Result<(), Stop> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde::Serialize;
    use serde_json::json;

    use super::*;

    #[derive(Serialize)]
    enum Shape {
        Circle(f64),
        Box { sides: (f32, f32) },
    }

    #[derive(Serialize)]
    struct Event {
        ratio: Option<f64>,
        list: Vec<Option<f64>>,
        map: BTreeMap<&'static str, Option<f32>>,
        shape: Shape,
        more: More,
    }

    #[derive(Serialize)]
    struct More {
        #[serde(flatten)]
        flat: BTreeMap<&'static str, f64>,
    }

    fn event() -> Event {
        Event {
            ratio: Some(1.0),
            list: vec![None, Some(f64::MAX)],
            map: BTreeMap::from([("a", Some(f32::MIN)), ("b", None)]),
            shape: Shape::Circle(2.0),
            more: More {
                flat: BTreeMap::from([("x", 3.0)]),
            },
        }
    }

    #[test]
    fn an_event_that_is_a_float_is_looked_at_too() {
        assert_eq!(not_finite(&Some(f64::NAN)).as_deref(), Some("itself"));
    }

    #[test]
    fn finite_floats_and_all_else_are_fine() {
        assert_eq!(not_finite(&event()), None);
        let value = json!({"a": [1, -2.5, "x", null, true, {"b": u64::MAX}]});
        assert_eq!(not_finite(&value), None);
        assert_eq!(not_finite(&(i128::MIN, u128::MAX, 'x', ())), None);
    }

    #[test]
    fn the_place_is_named_and_no_key_is_shown() {
        for value in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            let mut found = event();
            found.ratio = Some(value);
            assert_eq!(not_finite(&found).as_deref(), Some("ratio"));
            let mut found = event();
            found.list.push(Some(value));
            assert_eq!(not_finite(&found).as_deref(), Some("list[2]"));
            let mut found = event();
            found.map.insert("b", Some(value as f32));
            assert_eq!(not_finite(&found).as_deref(), Some("map[..]"));
            let mut found = event();
            let sides = (1.0, value as f32);
            found.shape = Shape::Box { sides };
            assert_eq!(not_finite(&found).as_deref(), Some("shape.sides[1]"));
            found.shape = Shape::Circle(value);
            assert_eq!(not_finite(&found).as_deref(), Some("shape.Circle"));
            let mut found = event();
            found.more.flat.insert("x", value);
            assert_eq!(not_finite(&found).as_deref(), Some("more[..]"));
        }
    }
}
