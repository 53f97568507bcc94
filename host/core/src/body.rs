//! Reading the body of a verb: a JSON object whose keys stand once, and errors that name the field and say nothing of how
//! the host is built.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::de::{self, DeserializeOwned, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_path_to_error::Segment;

use crate::error::{Error, bounded, shown};

/// How much of an error about a body is said.
const SHOWN_MESSAGE: usize = 300;

/// Reads a body.
///
/// # Errors
/// `bad_request`, with the field where there is one.
pub(crate) fn read<T: DeserializeOwned>(body: &[u8]) -> Result<T, Error> {
    // A verb may be called with no body at all where it takes nothing or only what may be left out.
    let body = if body.trim_ascii().is_empty() { b"{}" } else { body };
    // Fields would also be read from an array, by their position.
    if !body.trim_ascii_start().starts_with(b"{") {
        return Err(Error::bad_request("the body is not a JSON object"));
    }
    let mut reader = serde_json::Deserializer::from_slice(body);
    let value = serde_path_to_error::deserialize(&mut reader).map_err(|e| {
        let message = bounded(&e.inner().to_string(), SHOWN_MESSAGE);
        match field(e.path()) {
            at if at.is_empty() => Error::bad_request(message),
            at => Error::bad_request(format!("`{}`: {message}", shown(&at))),
        }
    })?;
    reader.end().map_err(|e| Error::bad_request(e.to_string()))?;
    Ok(value)
}

/// Reads what stands in the query of a URL.
///
/// # Errors
/// `bad_request`, which names the field.
pub(crate) fn read_query<T: DeserializeOwned>(query: &str) -> Result<T, Error> {
    serde_urlencoded::from_str(query)
        .map_err(|e| Error::bad_request(format!("the query: {}", bounded(&e.to_string(), SHOWN_MESSAGE))))
}

/// A path as somebody would write it, as far as it is known.
fn field(path: &serde_path_to_error::Path) -> String {
    let mut at = String::new();
    for segment in path.iter() {
        match segment {
            Segment::Seq { index } => at.push_str(&format!("[{index}]")),
            Segment::Map { key } if at.is_empty() => at.push_str(key),
            Segment::Map { key } => at.extend([".", key]),
            Segment::Enum { .. } | Segment::Unknown => break,
        }
    }
    at
}

/// A map in which no key stands twice; an ordinary one takes the last.
#[derive(Debug)]
pub(crate) struct Unique<K, V>(pub(crate) BTreeMap<K, V>);

impl<K, V> Default for Unique<K, V> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<K: JsonSchema, V: JsonSchema> JsonSchema for Unique<K, V> {
    fn schema_name() -> Cow<'static, str> {
        BTreeMap::<K, V>::schema_name()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        BTreeMap::<K, V>::json_schema(generator)
    }
}

impl<'de, K, V> Deserialize<'de> for Unique<K, V>
where
    K: Deserialize<'de> + Ord + fmt::Display,
    V: Deserialize<'de>,
{
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries<K, V>(PhantomData<(K, V)>);

        impl<'de, K, V> Visitor<'de> for Entries<K, V>
        where
            K: Deserialize<'de> + Ord + fmt::Display,
            V: Deserialize<'de>,
        {
            type Value = Unique<K, V>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Self::Value, A::Error> {
                let mut map = BTreeMap::new();
                while let Some(key) = entries.next_key::<K>()? {
                    if map.contains_key(&key) {
                        return Err(de::Error::custom(format!("`{}` stands there twice", shown(&key.to_string()))));
                    }
                    map.insert(key, entries.next_value()?);
                }
                Ok(Unique(map))
            }
        }

        deserializer.deserialize_map(Entries(PhantomData))
    }
}

/// A value that is written out.
#[derive(Debug, JsonSchema)]
pub(crate) struct Plain(pub(crate) String);

impl<'de> Deserialize<'de> for Plain {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;

        impl Visitor<'_> for Text {
            type Value = Plain;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text (what is kept in a file or a variable is written in the configuration)")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Plain, E> {
                Ok(Plain(text.to_owned()))
            }
        }

        deserializer.deserialize_str(Text)
    }
}
